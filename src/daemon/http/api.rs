//! Status, specs, plans, runs, provenance and overrides.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::oneshot;

use super::HttpState;
use super::query::{LOOK, at_work, seconds};
use super::reply::{HttpRefusal, json_body};
use crate::daemon::event::{DaemonEvent, RunWish};
use crate::daemon::job::broken_off;
use crate::daemon::loaded::ActiveSpec;
use crate::daemon::state::ending;
use crate::daemon::status::{Cause, RunStatus};
use crate::database::Database;
use crate::database::provenance::{Origin, find};
use crate::facts::Facts;
use crate::failure::Failure;
use crate::materialize::{Selection, Work};
use crate::model;
use crate::overrides::{self, read_lines};
use crate::query::guard::Guard;
use crate::session::override_cell;

type ApiAnswer = Result<axum::Json<Json>, HttpRefusal>;

/// `GET /healthz`
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// `GET /metrics`, for Prometheus.
pub(super) async fn metrics(State(shop): State<HttpState>) -> impl IntoResponse {
    let status = shop.house.status.borrow().clone();
    let text = shop.house.metrics.text(&status, shop.house.clients.count());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// `GET /v1/status`
pub(super) async fn status(State(shop): State<HttpState>) -> axum::Json<Json> {
    let status = shop.house.status.borrow().clone();
    axum::Json(status.to_json())
}

/// `GET /v1/specs`
pub(super) async fn specs(State(shop): State<HttpState>) -> axum::Json<Json> {
    let status = shop.house.status.borrow().clone();
    axum::Json(json!({ "specs": status.specs.values().map(|s| s.to_json()).collect::<Vec<_>>() }))
}

/// `GET /v1/specs/{spec}`
pub(super) async fn spec(State(shop): State<HttpState>, Path(name): Path<String>) -> ApiAnswer {
    let spec = shop.house.status.borrow().spec(&name).cloned();
    let Some(spec) = spec else { return Err(missing_spec(&shop, &name)) };
    Ok(axum::Json(spec.to_json()))
}

fn missing_spec(shop: &HttpState, name: &str) -> HttpRefusal {
    let status = shop.house.status.borrow().clone();
    let failure = super::no_spec(name, status.specs.keys());
    HttpRefusal { status: StatusCode::NOT_FOUND, failure }
}

/// Cells to ask for.
#[derive(Debug, Default, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WantedCells {
    /// The spec; may be left out when there is one only.
    pub(super) spec: Option<String>,
    /// Ask only about the first N keys with missing cells.
    limit: Option<u64>,
    /// Ask for these columns only.
    columns: Option<Vec<String>>,
    /// Ask only about keys of source rows that match this SQL condition.
    #[serde(rename = "where")]
    filter: Option<String>,
    /// Ask again for all cells of these columns.
    refresh: Vec<String>,
    /// Ask again for cells that were answered without a value.
    retry_failed: bool,
    /// Budget of the run in USD, instead of the spec's.
    budget: Option<f64>,
    /// Time limit in seconds for the database to find the keys that match `where`, and to plan
    /// [default: 30, at most 600].
    timeout: Option<f64>,
    /// Respond only when the run has ended.
    wait: bool,
}

impl WantedCells {
    fn selection(&self) -> Selection {
        Selection {
            limit: self.limit,
            columns: self.columns.clone(),
            filter: self.filter.clone(),
            refresh: self.refresh.clone(),
            retry_failed: self.retry_failed,
        }
    }
}

/// `POST /v1/plan`: returns what a run would ask, and its price.
pub(super) async fn plan(
    State(shop): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let wanted: WantedCells = json_body(&headers, body).await?;
    let (name, loaded) = shop.loaded(wanted.spec.as_deref())?;
    let timeout = seconds(wanted.timeout)?;
    let (served, interrupt) = shop.house.clients.begin();
    let place = shop.place().await?;
    let facts = Arc::clone(&shop.house.facts);
    let planned = at_work(place, served, move || {
        let guard = Guard::watch(&loaded.spec.database, Some(timeout), interrupt);
        let guard = guard.map_err(Failure::from)?;
        let planned = planned(&name, &loaded, &wanted, &facts, guard.database());
        Ok(planned.map_err(|failure| broken_off(&guard).unwrap_or(failure))?)
    });
    Ok(axum::Json(planned.await?))
}

fn planned(
    name: &str,
    loaded: &ActiveSpec,
    wanted: &WantedCells,
    facts: &Facts,
    database: &Database,
) -> Result<Json, Failure> {
    let mut spec = loaded.spec.clone();
    spec.set_budget(wanted.budget)?;
    let model = match &loaded.model {
        Ok(model) => Arc::clone(model),
        Err(_) => model::for_planning(&spec)?,
    };
    let selection = wanted.selection();
    let (plan, notes) = Work::new(&spec, database, facts, model, &selection)?.plan()?;
    let mut json = plan.to_json();
    json["spec"] = name.into();
    json["notes"] = notes.into();
    Ok(json)
}

/// `GET /v1/runs`
pub(super) async fn runs(State(shop): State<HttpState>) -> axum::Json<Json> {
    let status = shop.house.status.borrow().clone();
    axum::Json(json!({ "runs": status.runs.iter().map(|r| r.to_json()).collect::<Vec<_>>() }))
}

/// `GET /v1/runs/{run}`
pub(super) async fn run(State(shop): State<HttpState>, Path(id): Path<u64>) -> ApiAnswer {
    let run = shop.house.status.borrow().run(id).cloned();
    match run {
        Some(run) => Ok(axum::Json(run.to_json())),
        None => Err(missing_run(id)),
    }
}

fn missing_run(id: u64) -> HttpRefusal {
    HttpRefusal::new(
        StatusCode::NOT_FOUND,
        format!("there is no run {id}"),
        "GET /v1/runs lists the latest runs",
    )
}

/// `DELETE /v1/runs/{run}`: ends the run; everything answered is kept.
pub(super) async fn interrupt(State(shop): State<HttpState>, Path(id): Path<u64>) -> ApiAnswer {
    shop.interrupt(id).await?;
    Ok(axum::Json(json!({ "run": id, "interrupted": true })))
}

/// `POST /v1/runs`: approves and starts a run.
pub(super) async fn start(
    State(shop): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, axum::Json<Json>), HttpRefusal> {
    let wanted: WantedCells = json_body(&headers, body).await?;
    let (name, _) = shop.loaded(wanted.spec.as_deref())?;
    if let Some(budget) = wanted.budget.filter(|b| !b.is_finite() || *b < 0.0) {
        return Err(HttpRefusal::bad(
            format!("{budget} is not a valid budget"),
            "pass `budget` in USD, 0 or more",
        ));
    }
    let timeout = seconds(wanted.timeout)?;
    let timeout = wanted.filter.as_ref().map(|_| timeout);
    let _place = if wanted.wait { Some(shop.wait()?) } else { None };
    let begun = shop.begin(&name, wanted.selection(), wanted.budget, timeout).await?;
    if !wanted.wait {
        let body = json!({ "run": begun.id, "spec": name });
        return Ok((StatusCode::ACCEPTED, axum::Json(body)));
    }
    let run = begun.end(&shop).await?;
    Ok((StatusCode::OK, axum::Json(run.to_json())))
}

/// A run that was started for a client.
pub(super) struct Begun {
    pub(super) id: u64,
    ended: oneshot::Receiver<()>,
}

impl Begun {
    /// Waits for the end of the run.
    pub(super) async fn end(self, shop: &HttpState) -> Result<Arc<RunStatus>, HttpRefusal> {
        let Ok(()) = self.ended.await else { return Err(ending().into()) };
        let run = shop.house.status.borrow().run(self.id).cloned();
        run.ok_or_else(|| missing_run(self.id))
    }
}

impl HttpState {
    /// Interrupts a run through the loop.
    pub(super) async fn interrupt(&self, id: u64) -> Result<(), HttpRefusal> {
        let (reply, told) = oneshot::channel();
        let _ = self.house.events.send(DaemonEvent::Interrupt(id, reply)).await;
        match told.await {
            Ok(true) => Ok(()),
            _ => Err(HttpRefusal::new(
                StatusCode::NOT_FOUND,
                format!("there is run {id} is not running"),
                "GET /v1/runs lists the latest runs",
            )),
        }
    }

    /// Starts a run through the loop.
    pub(super) async fn begin(
        &self,
        spec: &str,
        selection: Selection,
        budget: Option<f64>,
        timeout: Option<Duration>,
    ) -> Result<Begun, HttpRefusal> {
        let (begun, told) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let wish = RunWish {
            spec: spec.to_owned(),
            selection,
            budget,
            timeout,
            cause: Cause::Client,
            begun,
            ended: Some(end),
        };
        let _ = self.house.events.send(DaemonEvent::Start(Box::new(wish))).await;
        let id = told.await.map_err(|_| ending())??;
        Ok(Begun { id, ended })
    }
}

/// `GET /v1/why?spec=…&table=…&key=…&key=…&column=…`
pub(super) async fn why(
    State(shop): State<HttpState>,
    Query(asked): Query<Vec<(String, String)>>,
) -> ApiAnswer {
    let cells = origins(&shop, asked).await?;
    Ok(axum::Json(json!({ "cells": cells.iter().map(Origin::to_json).collect::<Vec<_>>() })))
}

/// Returns the provenance of a cell. `asked` holds the query parameters of `/v1/why`.
pub(super) async fn origins(
    shop: &HttpState,
    asked: Vec<(String, String)>,
) -> Result<Vec<Origin>, HttpRefusal> {
    let one = |name: &str| asked.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let needed = |name: &str| {
        one(name).ok_or_else(|| {
            HttpRefusal::bad(
                format!("no `{name}`"),
                "pass spec, table, column, and one key=… for each part of the key",
            )
        })
    };
    let (table, column) = (needed("table")?, needed("column")?);
    let key: Vec<String> =
        asked.iter().filter(|(n, _)| n == "key").map(|(_, v)| v.clone()).collect();
    let (_, loaded) = shop.loaded(one("spec").as_deref())?;
    let (served, interrupt) = shop.house.clients.begin();
    let place = shop.look().await?;
    at_work(place, served, move || {
        let guard = Guard::watch(loaded.spec.target(), Some(LOOK), interrupt);
        let guard = guard.map_err(Failure::from)?;
        let cell = cell(guard.database(), &table, &key, &column);
        Ok(cell.map_err(|failure| broken_off(&guard).unwrap_or(failure))?)
    })
    .await
}

fn cell(
    database: &Database,
    table: &str,
    key: &[String],
    column: &str,
) -> Result<Vec<Origin>, Failure> {
    let published = database.published()?;
    let Some((expansion, column)) = find(&published, table, column) else {
        let all: Vec<String> = published
            .iter()
            .map(|p| {
                let columns: Vec<&str> = p.columns.iter().map(|(c, _)| c.as_str()).collect();
                format!("{} ({})", p.expansion, columns.join(", "))
            })
            .collect();
        return Err(Failure::input(
            format!("there is no published table `{table}` with a column `{column}`"),
            format!("there is {}", all.join("; ")),
        ));
    };
    let cells = database.why(&expansion.expansion, key, &column)?;
    if cells.is_empty() {
        return Err(Failure::input(
            format!("`{}` has no row with the key {}", expansion.expansion, key.join(", ")),
            format!("its key is: {}", expansion.key.join(", ")),
        ));
    }
    Ok(cells)
}

/// An override of a cell.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideWord {
    /// The spec; may be left out when there is one only.
    pub(super) spec: Option<String>,
    /// The expansion, or the table of a one-to-many column.
    pub(super) table: String,
    /// The key's values in the order of the key; `NULL` for NULL.
    pub(super) key: Vec<String>,
    /// The column.
    pub(super) column: String,
    /// The value; `|` separates the values of a list. Not for DELETE.
    #[serde(default)]
    pub(super) value: String,
    /// Reason, stored with the value.
    #[serde(default)]
    pub(super) note: String,
    /// Accept a key that no source has, or a value outside the value list.
    #[serde(default)]
    pub(super) force: bool,
}

/// `POST /v1/overrides`: sets a value that wins over the model's answer.
pub(super) async fn set(
    State(shop): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let word: OverrideWord = json_body(&headers, body).await?;
    let path = shop.override_cell(word, true).await?;
    Ok(axum::Json(json!({ "set": true, "file": path })))
}

/// `DELETE /v1/overrides`: makes the model's answer count again.
pub(super) async fn unset(
    State(shop): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let word: OverrideWord = json_body(&headers, body).await?;
    let path = shop.override_cell(word, false).await?;
    Ok(axum::Json(json!({ "set": false, "file": path })))
}

impl HttpState {
    /// Sets or removes an override, and notifies the loop.
    pub(super) async fn override_cell(
        &self,
        word: OverrideWord,
        set: bool,
    ) -> Result<std::path::PathBuf, HttpRefusal> {
        let (_, loaded) = self.loaded(word.spec.as_deref())?;
        let (served, _) = self.house.clients.begin();
        let place = self.look().await?;
        let one_at_a_time = self.edits.lock().await;
        let path = loaded.spec.overrides_path();
        at_work(place, served, move || {
            let OverrideWord { table, key, column, value, note, force, .. } = word;
            let spec = &loaded.spec;
            if !set {
                overrides::unset(spec, &table, &key, &column).map_err(Failure::from)?;
                return Ok(());
            }
            let database = Database::open(&spec.database).map_err(Failure::from)?;
            let cell = (table.as_str(), &*key, column.as_str(), value.as_str());
            override_cell(spec, &database, cell, &note, force).map_err(Failure::from)?;
            Ok(())
        })
        .await?;
        drop(one_at_a_time);
        let _ = self.house.events.send(DaemonEvent::Files(vec![path.clone()])).await;
        Ok(path)
    }
}

/// `GET /v1/overrides?spec=…`
pub(super) async fn overrides(
    State(shop): State<HttpState>,
    Query(asked): Query<Vec<(String, String)>>,
) -> ApiAnswer {
    let name = asked.into_iter().find(|(n, _)| n == "spec").map(|(_, v)| v);
    let (_, loaded) = shop.loaded(name.as_deref())?;
    let lines = read_lines(&loaded.spec.overrides_path()).map_err(Failure::from)?;
    let lines: Vec<Json> = lines
        .into_iter()
        .map(|(number, l)| {
            let key: serde_json::Map<String, Json> =
                l.key.into_iter().map(|(n, v)| (n, v.into())).collect();
            json!({ "line": number, "key": key, "column": l.column, "value": l.value, "note": l.note })
        })
        .collect();
    Ok(axum::Json(json!({ "overrides": lines })))
}
