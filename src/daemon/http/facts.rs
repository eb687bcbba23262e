//! Implements `/v1/facts`, which returns the known facts of some entities and can ask for the
//! missing ones.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::HttpState;
use super::query::{READ_TIMEOUT, run_blocking};
use super::reply::{HttpError, read_json_body};
use crate::daemon::active_spec::ActiveSpec;
use crate::daemon::job::guard_failure;
use crate::database::row_contexts;
use crate::facts::{CellLookup, Facts};
use crate::failure::{Failure, check_budget};
use crate::format::format_name_list;
use crate::key::Entity;
use crate::materialize::Selection;
use crate::model;
use crate::overrides::Overrides;
use crate::query::connection::guard::GuardedConnection;
use crate::spec::{Expansion, Spec};
use crate::sql;
use crate::value::Value;

/// Maximum number of keys per request.
const MAX_KEYS: usize = 1000;

/// Cells to look up.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedCells {
    /// Name of the spec. Optional if there is only one.
    spec: Option<String>,
    /// Name of the expansion. Optional if there is only one.
    expansion: Option<String>,
    /// The keys. Each is an array in the order of the key columns, or an object of names and
    /// values.
    keys: Vec<Json>,
    /// Names of the columns [default: all].
    columns: Option<Vec<String>>,
    /// Ask the model for missing cells. hqdl does not ask about keys that the source does not
    /// contain.
    #[serde(default)]
    fill: bool,
    /// Maximum cost of the request in USD [default: the spec's budget].
    budget: Option<f64>,
}

/// Handles `POST /v1/facts`.
pub(super) async fn look_up_facts(
    State(state): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> Result<axum::Json<Json>, HttpError> {
    let asked: AskedCells = read_json_body(&headers, body).await?;
    check_budget(asked.budget)?;
    let (name, active_spec) = state.find_active_spec(asked.spec.as_deref())?;
    let cells = RequestedCells::from_request(&asked, &active_spec)?;
    let mut found = cells.find_facts(&state).await?;
    let mut run = Json::Null;
    let missing = found.iter().flat_map(|c| c["cells"].as_object().into_iter().flatten());
    if asked.fill && missing.into_iter().any(|(_, cell)| cell["state"] == "missing") {
        let _permit = state.acquire_wait_permit()?;
        let started = state.request_run(&name, cells.to_selection(), asked.budget, None).await?;
        let ended = started.wait_for_end(&state).await?;
        if let Some(failure) = &ended.failure {
            return Err(Failure::clone(failure).into());
        }
        run = ended.id.into();
        found = cells.find_facts(&state).await?;
    }
    let expansion = &cells.expansion().name;
    Ok(axum::Json(json!({ "spec": name, "expansion": expansion, "run": run, "facts": found })))
}

/// The requested cells, validated against the spec.
#[derive(Clone)]
struct RequestedCells {
    active_spec: Arc<ActiveSpec>,
    expansion: usize,
    keys: Vec<Vec<Value>>,
    columns: Vec<usize>,
}

impl RequestedCells {
    fn from_request(asked: &AskedCells, active_spec: &Arc<ActiveSpec>) -> Result<Self, HttpError> {
        let all = &active_spec.spec.expansions;
        let at = match (&asked.expansion, all.len()) {
            (Some(name), _) => all.iter().position(|e| e.name.eq_ignore_ascii_case(name)),
            (None, 1) => Some(0),
            (None, _) => None,
        };
        let Some(at) = at else {
            let name = asked.expansion.as_deref().unwrap_or_default();
            let hint = format_name_list("expansion", all.iter().map(|e| e.name.as_str()));
            return Err(HttpError::bad_request(format!("no expansion `{name}`"), &hint));
        };
        let expansion = &all[at];
        if asked.keys.len() > MAX_KEYS {
            let message =
                format!("the request has {} keys, but the limit is {MAX_KEYS}", asked.keys.len());
            return Err(HttpError::bad_request(message, "send several smaller requests"));
        }
        let keys = asked.keys.iter().map(|k| parse_key(expansion, k)).collect::<Result<_, _>>()?;
        let columns = match &asked.columns {
            None => (0..expansion.columns.len()).collect(),
            Some(names) => names
                .iter()
                .map(|name| {
                    expansion.find_column(name).ok_or_else(|| {
                        let all: Vec<&str> =
                            expansion.columns.iter().map(|c| c.name.as_str()).collect();
                        let hint = format!("its columns are: {}", all.join(", "));
                        HttpError::bad_request(
                            format!("`{}` has no column `{name}`", expansion.name),
                            &hint,
                        )
                    })
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Self { active_spec: Arc::clone(active_spec), expansion: at, keys, columns })
    }

    fn expansion(&self) -> &Expansion {
        &self.active_spec.spec.expansions[self.expansion]
    }

    /// Returns the facts that are currently known.
    async fn find_facts(&self, state: &HttpState) -> Result<Vec<Json>, HttpError> {
        let (client_guard, interrupt) = state.context.clients.begin_work();
        let permit = state.acquire_read_permit().await?;
        let (cells, facts) = (self.clone(), Arc::clone(&state.context.facts));
        run_blocking(permit, client_guard, move || Ok(cells.load_known_facts(&facts, interrupt)?))
            .await
    }

    fn load_known_facts(
        &self,
        facts: &Facts,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Vec<Json>, Failure> {
        let spec = &self.active_spec.spec;
        let model = match &self.active_spec.model {
            Ok(model) => Arc::clone(model),
            Err(_) => model::connect_for_planning(spec)?,
        };
        let expansion = self.expansion();
        let models = model::choose_models(spec, Some(&*model), expansion);
        let requirements = models.build_requirements(facts.history(), expansion)?;
        let overrides = Overrides::read(spec)?;
        let entities = self.keys.iter().map(|key| expansion.build_entity(key)).collect();
        let in_context = find_fact_entities(spec, expansion, entities, interrupt)?;
        let entity = |key: &Vec<Value>| {
            let entity = expansion.build_entity(key);
            let row = (in_context.get(&entity).unwrap_or(&entity), &entity);
            let record = facts.sync().get_rows(&[row])?.pop().flatten();
            let cells: serde_json::Map<String, Json> = self
                .columns
                .iter()
                .map(|c| {
                    let cell = match overrides.get(self.expansion, &entity, *c) {
                        Some(cell_override) => json!({
                            "state": cell_override.state().name(), "value": cell_override.value.to_json(),
                            "note": cell_override.note,
                        }),
                        None => cell_to_json(&requirements.look_up_cell(record.as_ref(), *c)),
                    };
                    (expansion.columns[*c].name.clone(), cell)
                })
                .collect();
            let key: Vec<Json> = key.iter().map(Value::to_json).collect();
            Ok(json!({ "key": key, "cells": cells }))
        };
        self.keys.iter().map(entity).collect()
    }

    /// Returns the selection with which a run requests these cells.
    fn to_selection(&self) -> Selection {
        let expansion = self.expansion();
        let mut filter = String::from("EXISTS (SELECT 1 FROM (VALUES ");
        for (n, key) in self.keys.iter().enumerate() {
            let parts: Vec<String> = key.iter().map(format_sql_literal).collect();
            let _ = write!(filter, "{}({})", if n == 0 { "" } else { "," }, parts.join(","));
        }
        let same: Vec<String> = expansion
            .key
            .names()
            .iter()
            .enumerate()
            .map(|(n, name)| format!("asked.column{} IS {}", n + 1, sql::quote_name(name)))
            .collect();
        let _ = write!(filter, ") AS asked WHERE {})", same.join(" AND "));
        let columns = self.columns.iter().map(|c| expansion.columns[*c].name.clone()).collect();
        Selection { filter: Some(filter), columns: Some(columns), ..Selection::default() }
    }
}

/// Maps each entity to the entity under which its facts are stored. The map is empty if the
/// expansion has no row context. Stops at the time limit of reads.
pub(super) fn find_fact_entities(
    spec: &Spec,
    expansion: &Expansion,
    entities: HashSet<Entity>,
    interrupt: watch::Receiver<bool>,
) -> Result<HashMap<Entity, Entity>, Failure> {
    if !expansion.has_row_context() {
        return Ok(HashMap::new());
    }
    let guard = GuardedConnection::open_for_sql(&spec.database, Some(READ_TIMEOUT), interrupt)?;
    row_contexts::find_fact_entities(guard.database(), expansion, entities, READ_TIMEOUT)
        .map_err(|e| guard_failure(&guard).unwrap_or_else(|| e.into()))
}

fn parse_key(expansion: &Expansion, json: &Json) -> Result<Vec<Value>, HttpError> {
    let names = expansion.key.names();
    let wrong = || {
        HttpError::bad_request(
            format!("{json} is not a key of `{}`", expansion.name),
            &format!("its key is {}: pass an array in this order, or an object", names.join(", ")),
        )
    };
    let parts: Vec<&Json> = match json {
        Json::Array(parts) => parts.iter().collect(),
        Json::Object(parts) if parts.len() == names.len() => {
            names.iter().map(|n| parts.get(n)).collect::<Option<_>>().ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    let scalar = |p: &&Json| !p.is_array() && !p.is_object();
    if parts.len() != names.len() || !parts.iter().all(scalar) {
        return Err(wrong());
    }
    Ok(parts.into_iter().map(Value::from_json).collect())
}

/// Formats a value as an SQL literal, because a selection's condition has no parameters.
fn format_sql_literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        other => other.to_string(),
    }
}

fn cell_to_json(found: &CellLookup<'_>) -> Json {
    match found {
        CellLookup::Known(fact) => json!({
            "state": fact.answer.state.name(), "value": fact.answer.value.to_json(),
            "raw": fact.answer.raw, "repair": fact.answer.repair, "completion": fact.completion,
        }),
        CellLookup::Missing(reason, _) => {
            json!({ "state": "missing", "value": null, "reason": reason.name() })
        }
    }
}
