//! Handlers for the status, specs, plans, runs, provenance and overrides.

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
use super::query::{READ_TIMEOUT, parse_timeout, run_blocking};
use super::reply::{HttpError, read_json_body};
use crate::daemon::active_spec::ActiveSpec;
use crate::daemon::event::{DaemonEvent, StartRun, shutdown_failure};
use crate::daemon::job::guard_failure;
use crate::daemon::metrics::text::MetricsText;
use crate::daemon::status::{Cause, RunStatus};
use crate::database::Database;
use crate::database::provenance::{CellProvenance, find_column};
use crate::facts::Facts;
use crate::failure::{Failure, check_budget};
use crate::materialize::{Materializer, Selection};
use crate::model;
use crate::overrides::{self, OverrideLine, read_lines};
use crate::query::connection::guard::GuardedConnection;
use crate::session::override_cell;
use crate::spec::{Expansion, Spec};

type ApiAnswer = Result<axum::Json<Json>, HttpError>;

/// Handles `GET /healthz`.
pub(super) async fn get_health() -> &'static str {
    "ok\n"
}

/// Handles `GET /metrics`, for Prometheus.
pub(super) async fn get_metrics(State(state): State<HttpState>) -> impl IntoResponse {
    let status = state.context.status.borrow().clone();
    let mut text = MetricsText::default();
    status.write_metrics(&mut text);
    state.context.metrics.write_metrics(state.context.clients.count(), &mut text);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text.0)
}

/// Handles `GET /v1/status`.
pub(super) async fn get_status(State(state): State<HttpState>) -> axum::Json<Json> {
    let status = state.context.status.borrow().clone();
    axum::Json(status.to_json())
}

/// Handles `GET /v1/specs`.
pub(super) async fn list_specs(State(state): State<HttpState>) -> axum::Json<Json> {
    let status = state.context.status.borrow().clone();
    axum::Json(json!({ "specs": status.specs.values().map(|s| s.to_json()).collect::<Vec<_>>() }))
}

/// Handles `GET /v1/specs/{spec}`.
pub(super) async fn get_spec(
    State(state): State<HttpState>,
    Path(name): Path<String>,
) -> ApiAnswer {
    let spec = state.context.status.borrow().find_spec(&name).cloned();
    let Some(spec) = spec else { return Err(unknown_spec_error(&state, &name)) };
    Ok(axum::Json(spec.to_json()))
}

fn unknown_spec_error(state: &HttpState, name: &str) -> HttpError {
    let status = state.context.status.borrow().clone();
    let failure = super::unknown_spec_failure(name, status.specs.keys());
    HttpError { status: StatusCode::NOT_FOUND, failure }
}

/// Cells to ask for.
#[derive(Debug, Default, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WantedCells {
    /// Name of the spec. Optional if there is only one.
    pub(super) spec: Option<String>,
    /// Ask only about the first N keys with missing cells.
    limit: Option<u64>,
    /// Ask only for these columns.
    columns: Option<Vec<String>>,
    /// Ask only about keys of source rows that match this SQL condition.
    #[serde(rename = "where")]
    filter: Option<String>,
    /// Ask again for all cells of these columns.
    refresh: Vec<String>,
    /// Ask again for cells that were answered without a value.
    retry_failed: bool,
    /// Maximum cost of the run in USD [default: the spec's budget].
    budget: Option<f64>,
    /// Time limit in seconds for the database to find the keys that match `where` and to plan
    /// [default: 30, at most 600].
    timeout: Option<f64>,
    /// Wait for the end of the run before responding (only `/v1/runs`).
    wait: bool,
}

impl WantedCells {
    fn to_selection(&self) -> Selection {
        Selection {
            limit: self.limit,
            columns: self.columns.clone(),
            filter: self.filter.clone(),
            refresh: self.refresh.clone(),
            retry_failed: self.retry_failed,
            ..Selection::default()
        }
    }
}

/// Handles `POST /v1/plan`: returns what a run would ask, and its cost.
pub(super) async fn plan_run(
    State(state): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let wanted: WantedCells = read_json_body(&headers, body).await?;
    let (name, active_spec) = state.find_active_spec(wanted.spec.as_deref())?;
    let timeout = parse_timeout(wanted.timeout)?;
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_query_permit().await?;
    let facts = Arc::clone(&state.context.facts);
    let plan = run_blocking(permit, client_guard, move || {
        let guard =
            GuardedConnection::open_for_sql(&active_spec.spec.database, Some(timeout), interrupt);
        let guard = guard.map_err(Failure::from)?;
        let planned = plan_to_json(&name, &active_spec, &wanted, &facts, guard.database());
        Ok(planned.map_err(|failure| guard_failure(&guard).unwrap_or(failure))?)
    });
    Ok(axum::Json(plan.await?))
}

fn plan_to_json(
    name: &str,
    active_spec: &ActiveSpec,
    wanted: &WantedCells,
    facts: &Facts,
    database: &Database,
) -> Result<Json, Failure> {
    let mut spec = active_spec.spec.clone();
    check_budget(wanted.budget)?;
    spec.set_budget(wanted.budget)?;
    let model = match &active_spec.model {
        Ok(model) => Arc::clone(model),
        Err(_) => model::connect_for_planning(&spec)?,
    };
    let selection = wanted.to_selection();
    let (plan, notes) =
        Materializer::new(&spec, database, facts, model, &selection)?.plan_requests()?;
    let mut json = plan.to_json();
    json["spec"] = name.into();
    json["notes"] = notes.into();
    Ok(json)
}

/// Handles `GET /v1/runs`.
pub(super) async fn list_runs(State(state): State<HttpState>) -> axum::Json<Json> {
    let status = state.context.status.borrow().clone();
    axum::Json(json!({ "runs": status.runs.iter().map(|r| r.to_json()).collect::<Vec<_>>() }))
}

/// Handles `GET /v1/runs/{run}`.
pub(super) async fn get_run(State(state): State<HttpState>, Path(id): Path<String>) -> ApiAnswer {
    let id = parse_run_id(&id)?;
    let run = state.context.status.borrow().find_run(id).cloned();
    match run {
        Some(run) => Ok(axum::Json(run.to_json())),
        None => Err(unknown_run_error(id)),
    }
}

fn parse_run_id(text: &str) -> Result<u64, HttpError> {
    text.parse().map_err(|_| {
        HttpError::bad_request(
            format!("`{text}` is not the number of a run"),
            "GET /v1/runs lists the latest runs",
        )
    })
}

fn unknown_run_error(id: u64) -> HttpError {
    HttpError::new(
        StatusCode::NOT_FOUND,
        format!("there is no run {id}"),
        "GET /v1/runs lists the latest runs",
    )
}

/// Handles `DELETE /v1/runs/{run}`: interrupts the run; all answers are kept.
pub(super) async fn interrupt_run(
    State(state): State<HttpState>,
    Path(id): Path<String>,
) -> ApiAnswer {
    let id = parse_run_id(&id)?;
    state.request_interrupt(id).await?;
    Ok(axum::Json(json!({ "run": id, "interrupted": true })))
}

/// Handles `POST /v1/runs`: approves and starts a run.
pub(super) async fn start_run(
    State(state): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, axum::Json<Json>), HttpError> {
    let wanted: WantedCells = read_json_body(&headers, body).await?;
    let (name, active_spec) = state.find_active_spec(wanted.spec.as_deref())?;
    let selection = wanted.to_selection();
    selection.check_columns(&active_spec.spec).map_err(Failure::from)?;
    check_budget(wanted.budget)?;
    let timeout = parse_timeout(wanted.timeout)?;
    let timeout = wanted.filter.as_ref().map(|_| timeout);
    let _permit = if wanted.wait { Some(state.acquire_wait_permit()?) } else { None };
    let started = state.request_run(&name, selection, wanted.budget, timeout).await?;
    if !wanted.wait {
        let body = json!({ "run": started.id, "spec": name });
        return Ok((StatusCode::ACCEPTED, axum::Json(body)));
    }
    let run = started.wait_for_end(&state).await?;
    Ok((StatusCode::OK, axum::Json(run.to_json())))
}

/// A run that a client started.
pub(super) struct StartedRun {
    pub(super) id: u64,
    ended: oneshot::Receiver<()>,
}

impl StartedRun {
    pub(super) async fn wait_for_end(self, state: &HttpState) -> Result<Arc<RunStatus>, HttpError> {
        let Ok(()) = self.ended.await else { return Err(shutdown_failure().into()) };
        let run = state.context.status.borrow().find_run(self.id).cloned();
        run.ok_or_else(|| unknown_run_error(self.id))
    }
}

impl HttpState {
    /// Asks the loop to interrupt a run.
    pub(super) async fn request_interrupt(&self, id: u64) -> Result<(), HttpError> {
        let (reply, interrupted) = oneshot::channel();
        let _ = self.context.events.send(DaemonEvent::InterruptRun(id, reply)).await;
        match interrupted.await {
            Ok(true) => Ok(()),
            _ => Err(HttpError::new(
                StatusCode::NOT_FOUND,
                format!("run {id} is not running"),
                "GET /v1/runs lists the latest runs",
            )),
        }
    }

    /// Asks the loop to start a run.
    pub(super) async fn request_run(
        &self,
        spec: &str,
        selection: Selection,
        budget: Option<f64>,
        timeout: Option<Duration>,
    ) -> Result<StartedRun, HttpError> {
        let (started, reply) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let request = StartRun {
            spec: spec.to_owned(),
            selection,
            budget,
            timeout,
            cause: Cause::Client,
            started,
            ended: Some(end),
        };
        let _ = self.context.events.send(DaemonEvent::StartRun(Box::new(request))).await;
        let id = reply.await.map_err(|_| shutdown_failure())??;
        Ok(StartedRun { id, ended })
    }
}

/// Handles `GET /v1/why?spec=…&table=…&key=…&key=…&column=…`.
pub(super) async fn get_provenance(
    State(state): State<HttpState>,
    Query(asked): Query<Vec<(String, String)>>,
) -> ApiAnswer {
    let cells = read_provenance(&state, asked).await?;
    Ok(axum::Json(
        json!({ "cells": cells.iter().map(CellProvenance::to_json).collect::<Vec<_>>() }),
    ))
}

/// Returns the provenance of a cell. `asked` contains the query parameters of `/v1/why`.
pub(super) async fn read_provenance(
    state: &HttpState,
    asked: Vec<(String, String)>,
) -> Result<Vec<CellProvenance>, HttpError> {
    let one = |name: &str| asked.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let needed = |name: &str| {
        one(name).ok_or_else(|| {
            HttpError::bad_request(
                format!("no `{name}`"),
                "pass spec, table, column, and one key=… for each part of the key",
            )
        })
    };
    let (table, column) = (needed("table")?, needed("column")?);
    let key: Vec<String> =
        asked.iter().filter(|(n, _)| n == "key").map(|(_, v)| v.clone()).collect();
    if key.is_empty() {
        let hint = "pass one key=… for each part of the key";
        return Err(HttpError::bad_request("no `key`", hint));
    }
    let (_, active_spec) = state.find_active_spec(one("spec").as_deref())?;
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    run_blocking(permit, client_guard, move || {
        let guard = GuardedConnection::open_for_sql(
            active_spec.spec.target(),
            Some(READ_TIMEOUT),
            interrupt,
        );
        let guard = guard.map_err(Failure::from)?;
        let cells = read_cell(guard.database(), &table, &key, &column);
        Ok(cells.map_err(|failure| guard_failure(&guard).unwrap_or(failure))?)
    })
    .await
}

fn read_cell(
    database: &Database,
    table: &str,
    key: &[String],
    column: &str,
) -> Result<Vec<CellProvenance>, Failure> {
    let published = database.list_published_expansions()?;
    let Some((expansion, column)) = find_column(&published, table, column) else {
        let all: Vec<String> = published
            .iter()
            .map(|p| {
                let columns: Vec<&str> = p.columns.iter().map(|(c, _)| c.as_str()).collect();
                format!("{} ({})", p.expansion, columns.join(", "))
            })
            .collect();
        return Err(Failure::wrong_input(
            format!("there is no published table `{table}` with a column `{column}`"),
            format!("the tables and their columns are {}", all.join("; ")),
        ));
    };
    let cells = database.find_cells(&expansion.expansion, key, &column)?;
    if cells.is_empty() {
        return Err(Failure::wrong_input(
            format!("`{}` has no row with the key {}", expansion.expansion, key.join(", ")),
            format!(
                "its key is {}; if the row is new, start a run first",
                expansion.key.join(", ")
            ),
        ));
    }
    Ok(cells)
}

/// An override of a cell.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideRequest {
    /// Name of the spec. Optional if there is only one.
    pub(super) spec: Option<String>,
    /// Table of an expansion or of a one-to-many column.
    pub(super) table: String,
    /// Values of the key columns in their order; `NULL` for NULL.
    pub(super) key: Vec<String>,
    /// Name of the column.
    pub(super) column: String,
    /// The value; `|` separates the values of a list, `""` is the empty text, and `?` sets the cell
    /// to no value, unless the column's value list contains it. Ignored by DELETE.
    #[serde(default)]
    pub(super) value: String,
    /// Reason for the override, stored with it. Ignored by DELETE.
    #[serde(default)]
    pub(super) note: String,
    /// Accept a key that no source contains, or a value that is not in the value list. Ignored by
    /// DELETE.
    #[serde(default)]
    pub(super) force: bool,
}

/// Handles `POST /v1/overrides`: sets a value that takes precedence over the model's answer.
pub(super) async fn set_override(
    State(state): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let request: OverrideRequest = read_json_body(&headers, body).await?;
    if request.value.trim().is_empty() {
        let hint = "pass the new value in `value`; DELETE removes an override";
        return Err(HttpError::bad_request("`value` is missing or empty", hint));
    }
    let path = state.override_cell(request, OverrideChange::Set).await?;
    Ok(axum::Json(json!({ "set": true, "file": path })))
}

/// Handles `DELETE /v1/overrides`: removes an override, so that the model's answer applies again.
pub(super) async fn delete_override(
    State(state): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let request: OverrideRequest = read_json_body(&headers, body).await?;
    let path = state.override_cell(request, OverrideChange::Remove).await?;
    Ok(axum::Json(json!({ "set": false, "file": path })))
}

/// Change of a cell's override.
#[derive(Clone, Copy)]
pub(super) enum OverrideChange {
    /// Sets the value, and replaces an override that exists.
    Set,
    /// Sets the value if the cell has no override yet.
    SetFirst,
    /// Removes the override.
    Remove,
    /// Removes the override if it still has the request's value and note.
    Undo,
}

/// Checks that a cell's override has not changed since a person saw it.
fn check_override_unchanged(
    spec: &Spec,
    request: &OverrideRequest,
    change: OverrideChange,
) -> Result<(), HttpError> {
    let existing = find_override(spec, request)?;
    let is_unchanged = match (change, &existing) {
        (OverrideChange::Set | OverrideChange::Remove, _) | (OverrideChange::SetFirst, None) => {
            true
        }
        (OverrideChange::SetFirst, Some(_)) | (OverrideChange::Undo, None) => false,
        (OverrideChange::Undo, Some(line)) => {
            line.value == request.value && line.note == request.note
        }
    };
    if is_unchanged {
        return Ok(());
    }
    let now = existing.map_or_else(
        || "it has no override now".to_owned(),
        |line| format!("its override is now `{}` ({})", line.value, line.describe_reason()),
    );
    let (cell, key) = (format!("{}.{}", request.table, request.column), request.key.join(", "));
    let message = format!("{cell} of {key} has changed since you saw it: {now}");
    let hint = "nothing was changed; to change the override, open the page of the cell";
    Err(HttpError::new(StatusCode::CONFLICT, message, hint))
}

/// Returns the line of the overrides file for a cell of an expansion's table, if there is one.
pub(super) fn find_override(
    spec: &Spec,
    request: &OverrideRequest,
) -> Result<Option<OverrideLine>, Failure> {
    let is_named = |e: &&Expansion| e.name.eq_ignore_ascii_case(&request.table);
    let Some(expansion) = spec.expansions.iter().find(is_named) else { return Ok(None) };
    let texts = request.key.iter().map(|text| if text == "NULL" { "" } else { text.as_str() });
    let key = expansion.key.names().iter().cloned().zip(texts.map(str::to_owned)).collect();
    let column = request.column.clone();
    let [value, note, replaced] = [const { String::new() }; 3];
    let cell = OverrideLine { key, column, value, note, replaced };
    let lines = read_lines(&spec.overrides_path()).map_err(Failure::from)?;
    Ok(lines.into_iter().map(|(_, line)| line).find(|line| overrides::is_same_cell(line, &cell)))
}

impl HttpState {
    /// Sets or removes an override, and notifies the loop.
    pub(super) async fn override_cell(
        &self,
        request: OverrideRequest,
        change: OverrideChange,
    ) -> Result<std::path::PathBuf, HttpError> {
        let (_, active_spec) = self.find_active_spec(request.spec.as_deref())?;
        let (client_guard, _) = self.context.clients.begin_work();
        let permit = self.acquire_read_permit().await?;
        let edit_lock = self.edits.lock().await;
        let path = active_spec.spec.overrides_path();
        run_blocking(permit, client_guard, move || {
            let spec = &active_spec.spec;
            check_override_unchanged(spec, &request, change)?;
            let OverrideRequest { table, key, column, value, note, force, .. } = request;
            if matches!(change, OverrideChange::Remove | OverrideChange::Undo) {
                overrides::remove_override(spec, &table, &key, &column).map_err(Failure::from)?;
                return Ok(());
            }
            let database = Database::open(&spec.database).map_err(Failure::from)?;
            let cell = (table.as_str(), &*key, column.as_str(), value.as_str());
            override_cell(spec, &database, cell, &note, force).map_err(Failure::from)?;
            Ok(())
        })
        .await?;
        drop(edit_lock);
        let _ = self.context.events.send(DaemonEvent::FilesChanged(vec![path.clone()])).await;
        Ok(path)
    }
}

/// Handles `GET /v1/overrides?spec=…`.
pub(super) async fn list_overrides(
    State(state): State<HttpState>,
    Query(asked): Query<Vec<(String, String)>>,
) -> ApiAnswer {
    let name = asked.into_iter().find(|(n, _)| n == "spec").map(|(_, v)| v);
    let (_, active_spec) = state.find_active_spec(name.as_deref())?;
    let lines = read_lines(&active_spec.spec.overrides_path()).map_err(Failure::from)?;
    let lines: Vec<Json> = lines
        .into_iter()
        .map(|(number, l)| {
            let key: serde_json::Map<String, Json> =
                l.key.into_iter().map(|(n, v)| (n, v.into())).collect();
            json!({ "line": number, "key": key, "column": l.column, "value": l.value, "note": l.note, "replaced": l.replaced })
        })
        .collect();
    Ok(axum::Json(json!({ "overrides": lines })))
}
