//! Implements `/v1/query` and `/v1/explain`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::reply::{HttpError, read_json_body, unknown_spec_failure};
use super::rows::{self, LineSink, RowLimits};
use super::timeout_stream::StallTimeout;
use super::{HttpState, MAX_WAITING, STALL_TIMEOUT};
use crate::daemon::active_spec::ActiveSpec;
use crate::daemon::clients::ClientGuard;
use crate::database::{Database, output};
use crate::failure::{Failure, check_budget};
use crate::format::format_name_list;
use crate::generate::{Event, Listener};
use crate::interval::{IntervalRequest, run_with_intervals};
use crate::model::{self, Model};
use crate::problem::Problems;
use crate::query::{self, Dialect, Meta, Param, QueryError, Request, RowSink};
use crate::spec::Spec;
use crate::value::Value;

/// Default time limit of the database for one pass, in seconds.
const DEFAULT_SECONDS: f64 = 30.0;
/// Maximum time limit, in seconds.
const MAX_SECONDS: f64 = 600.0;
/// Time limit of a short read.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A query.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AskedQuery {
    /// Name of the spec. Optional if there is only one.
    pub(super) spec: Option<String>,
    /// Path of a spec's database, to query it without the spec's expansions.
    pub(super) db: Option<PathBuf>,
    /// The query.
    pub(super) sql: String,
    /// Parameters of the query: an object of names and values, or an array in the order of the
    /// positions.
    pub(super) params: Json,
    /// SQL dialect of the query; `suql` accepts `PostgreSQL` syntax, and the others accept the AI
    /// functions of the systems they are named after.
    pub(super) dialect: Dialect,
    /// If a query compares a column of few distinct values with a word that is not among them, ask
    /// the model once which values the word means.
    pub(super) classify: bool,
    /// If the rows of a question exceed `context_tokens`, cut them instead of failing.
    pub(super) truncate: bool,
    /// Maximum number of rows in one request to the model.
    pub(super) rows_per_request: Option<u32>,
    /// Time limit in seconds for the database's work in one pass [default: 30, at most 600]. The
    /// rows of `/v1/query` must be read within this time plus the daemon's `--read-within` (60
    /// seconds); otherwise the last line is an error.
    pub(super) timeout: Option<f64>,
    /// Maximum number of rows in the result (only `/v1/query`).
    pub(super) max_rows: Option<u64>,
    /// Maximum cost of the query in USD [default: the spec's budget]. If the daemon runs with
    /// `--no-spend`, a query without it sends no request.
    pub(super) budget: Option<f64>,
    /// Confidence in percent, such as 95. Adds a confidence interval to each aggregate `x`, as
    /// columns `x_low`, `x_high` and `x_estimate`. It covers the aggregate over the true values,
    /// which the spec's audit estimates.
    pub(super) interval: Option<f64>,
    /// With `interval` and GROUP BY: apply the confidence to all groups together instead of to
    /// each.
    pub(super) simultaneous: bool,
}

/// A query with everything needed to run it.
pub(super) struct PreparedQuery {
    spec_name: String,
    active_spec: Arc<ActiveSpec>,
    /// Modified copy of the spec, if the request changes it.
    changed_spec: Option<Spec>,
    /// Whether the query may send requests, because the daemon approves all queries, the request
    /// has a budget, or a person has approved this query.
    is_approved: bool,
    target: PathBuf,
    sql: String,
    dialect: Dialect,
    classify: bool,
    params: Vec<(Param, Value)>,
    truncate: bool,
    rows_per_request: Option<u32>,
    timeout: Duration,
    command: String,
    interval: Option<IntervalRequest>,
    /// Whether the query was opened by its address: it reads only stored answers.
    is_link: bool,
    /// Receives the events of the query's requests.
    progress: Option<Listener>,
}

/// Handles `POST /v1/query`.
pub(super) async fn run_query(
    State(state): State<HttpState>,
    Extension(stall_timeout): Extension<StallTimeout>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, HttpError> {
    let asked: AskedQuery = read_json_body(&headers, body).await?;
    let settings = &state.context.settings;
    let limits = RowLimits {
        rows: asked.max_rows.unwrap_or(u64::MAX).min(settings.max_rows),
        bytes: settings.max_bytes,
        time: settings.read_within + parse_timeout(asked.timeout)?,
    };
    // Give the connection a longer timeout than the rows, so that a slow reader still receives the
    // error.
    stall_timeout.set(limits.time + 2 * STALL_TIMEOUT);
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_query_permit().await?;
    let (lines, mut chunks) = LineSink::new(limits, Handle::current());
    let context = state.context.clone();
    tokio::task::spawn_blocking(move || {
        let mut lines = lines;
        let run_prepared =
            |prepared: PreparedQuery| Ok(prepared.run_with_sink(&context, interrupt, &mut lines)?);
        let ended = prepare_query(&state, asked).and_then(run_prepared);
        // Release the permit before waiting for a slow reader.
        drop(permit);
        match ended {
            Ok(meta) => {
                context.metrics.count_reused_values(meta.values_reused);
                lines.end_response(Ok(&meta));
            }
            Err(error) => lines.end_response(Err(error)),
        }
    });
    match chunks.recv().await {
        Some(Ok(first)) => {
            let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
            Ok((kind, rows::stream_body(first, chunks, client_guard)).into_response())
        }
        Some(Err(error)) => Err(error),
        None => Err(internal_failure().into()),
    }
}

/// Handles `POST /v1/explain`.
pub(super) async fn explain_query(
    State(state): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> Result<axum::Json<Json>, HttpError> {
    let asked: AskedQuery = read_json_body(&headers, body).await?;
    let meta = explain_request(&state, asked).await?;
    Ok(axum::Json(meta.explained_to_json()))
}

/// Explains a query.
pub(super) async fn explain_request(
    state: &HttpState,
    asked: AskedQuery,
) -> Result<Meta, HttpError> {
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let state = state.clone();
    let permit = state.acquire_query_permit().await?;
    run_blocking(permit, client_guard, move || {
        Ok(prepare_query(&state, asked)?.explain(&state, interrupt)?)
    })
    .await
}

/// Whether a query of the page may send requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuerySpending {
    /// The query reads only stored answers, and does not count as a use of the columns.
    Forbidden,
    /// The daemon's settings decide.
    AsConfigured,
    /// A person has seen the cost.
    Approved,
}

/// Runs a query and collects its rows in `sink`, for the page. `progress` receives the events of the query's requests.
pub(super) async fn collect_rows<S: RowSink + Send + 'static>(
    state: &HttpState,
    asked: AskedQuery,
    spending: QuerySpending,
    progress: Option<Listener>,
    sink: S,
) -> Result<(Meta, S), HttpError> {
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let state = state.clone();
    let permit = state.acquire_query_permit().await?;
    run_blocking(permit, client_guard, move || {
        let mut sink = sink;
        let mut prepared = prepare_query(&state, asked)?;
        match spending {
            QuerySpending::Forbidden => {
                prepared.is_approved = false;
                prepared.is_link = true;
            }
            QuerySpending::AsConfigured => {}
            QuerySpending::Approved => prepared.is_approved = true,
        }
        prepared.progress = progress;
        let meta = prepared.run_with_sink(&state.context, interrupt, &mut sink)?;
        state.context.metrics.count_reused_values(meta.values_reused);
        Ok((meta, sink))
    })
    .await
}

/// Runs blocking work in a separate thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    client_guard: ClientGuard,
    work: impl FnOnce() -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let ended = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    let ended = ended.await;
    drop(client_guard);
    ended.map_err(|_| HttpError::from(internal_failure()))?
}

fn internal_failure() -> Failure {
    Failure::wrong_input("this is a bug in hqdl", "please report this query")
}

impl HttpState {
    /// Waits for a permit to run a query. Fails if too many clients wait already.
    pub(super) async fn acquire_query_permit(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        self.acquire_permit(&self.query_permits).await
    }

    /// Acquires a permit for a short read, which queries do not use.
    pub(super) async fn acquire_read_permit(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        self.acquire_permit(&self.read_permits).await
    }

    async fn acquire_permit(
        &self,
        permits: &Arc<Semaphore>,
    ) -> Result<OwnedSemaphorePermit, HttpError> {
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Ok(permit);
        }
        let waiting = WaitingGuard::new(&self.context.metrics.waiting);
        let busy = || HttpError::server_busy("too many requests are waiting");
        if waiting.1 > MAX_WAITING {
            return Err(busy());
        }
        Arc::clone(permits).acquire_owned().await.map_err(|_| busy())
    }

    /// Acquires a permit to wait for the end of a run.
    pub(super) fn acquire_wait_permit(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        let permit = Arc::clone(&self.wait_permits).try_acquire_owned();
        permit.map_err(|_| HttpError::server_busy("too many clients wait for runs"))
    }

    /// Returns the name and the active version of a spec. Without a name, returns the only spec.
    pub(super) fn find_active_spec(
        &self,
        name: Option<&str>,
    ) -> Result<(String, Arc<ActiveSpec>), HttpError> {
        self.find_active_spec_or_advise(name, "pass `spec`")
    }

    /// Like [`Self::find_active_spec`]; `advice` is the hint if the request names no spec.
    pub(super) fn find_active_spec_or_advise(
        &self,
        name: Option<&str>,
        advice: &str,
    ) -> Result<(String, Arc<ActiveSpec>), HttpError> {
        let status = self.context.status.borrow();
        let spec = match name {
            Some(name) => status.find_spec(name),
            None => status.specs.values().next().filter(|_| status.specs.len() == 1),
        };
        let Some(spec) = spec else {
            let failure = match name {
                Some(name) => unknown_spec_failure(name, status.specs.keys()),
                None => {
                    let names = status.specs.keys().map(String::as_str);
                    let hint = format!("{advice}: {}", format_name_list("spec", names));
                    Failure::wrong_input("the request names no spec", hint)
                }
            };
            let status = match name {
                Some(_) => axum::http::StatusCode::NOT_FOUND,
                None => axum::http::StatusCode::BAD_REQUEST,
            };
            return Err(HttpError { status, failure });
        };
        match (&spec.active_spec, &spec.problem) {
            (Some(active_spec), _) => Ok((spec.name.clone(), Arc::clone(active_spec))),
            (None, Some(problem)) => Err(Failure::clone(problem).into()),
            (None, None) => Err(HttpError::new(
                axum::http::StatusCode::SERVICE_UNAVAILABLE,
                format!("the spec {} is still being read", spec.name),
                "ask again in a moment",
            )),
        }
    }
}

/// Counts a request as waiting until the guard is dropped.
struct WaitingGuard<'a>(&'a std::sync::atomic::AtomicI64, i64);

impl<'a> WaitingGuard<'a> {
    fn new(count: &'a std::sync::atomic::AtomicI64) -> Self {
        let before = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self(count, before + 1)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Reads and checks everything that a query needs, except the query itself.
fn prepare_query(state: &HttpState, asked: AskedQuery) -> Result<PreparedQuery, HttpError> {
    let (name, active_spec, bare) = match (&asked.spec, &asked.db) {
        (Some(name), _) => (name.clone(), state.find_active_spec(Some(name))?.1, false),
        (None, None) => {
            let (name, active_spec) = state.find_active_spec(None)?;
            (name, active_spec, false)
        }
        (None, Some(db)) => {
            let (name, active_spec) = find_spec_by_database(state, db)?;
            (name, active_spec, true)
        }
    };
    if asked.sql.trim().is_empty() {
        let hint = "pass the query in `sql`, such as \"SELECT count(*) FROM t\"";
        return Err(HttpError::bad_request("`sql` is missing or empty", hint));
    }
    check_budget(asked.budget)?;
    let mut changed_spec = None;
    if bare || asked.budget.is_some() {
        let mut spec = active_spec.spec.clone();
        if bare {
            spec.expansions.clear();
        }
        spec.set_budget(asked.budget).map_err(Failure::from)?;
        changed_spec = Some(spec);
    }
    let target = match &asked.db {
        Some(db) if bare => db.clone(),
        _ => find_target(&active_spec.spec)?,
    };
    let timeout = parse_timeout(asked.timeout)?;
    let interval = match asked.interval {
        None => None,
        Some(percent) => {
            let request = IntervalRequest::from_percent(percent, asked.simultaneous);
            Some(request.ok_or_else(|| {
                Failure::wrong_input(
                    format!("{percent} is not a valid `interval`"),
                    "pass a confidence in percent, from 50 to less than 100",
                )
            })?)
        }
    };
    Ok(PreparedQuery {
        interval,
        is_link: false,
        progress: None,
        is_approved: state.context.settings.spend || asked.budget.is_some(),
        params: parse_params(&asked.params)?,
        command: format!("query {name}"),
        spec_name: name,
        active_spec,
        changed_spec,
        target,
        sql: asked.sql,
        dialect: asked.dialect,
        classify: asked.classify,
        truncate: asked.truncate,
        rows_per_request: asked.rows_per_request.filter(|n| *n > 0),
        timeout,
    })
}

/// Returns the path of the database that a spec's queries read: the expanded copy, if there is one.
pub(super) fn find_target(spec: &Spec) -> Result<PathBuf, Failure> {
    let Some(copy) = &spec.output else { return Ok(spec.database.clone()) };
    let readable = Database::open(&spec.database)
        .and_then(|database| output::find_expanded_database(&database, Some(copy)));
    Ok(readable?.0)
}

/// Returns the spec that uses this database. Clients cannot read any other file.
fn find_spec_by_database(
    state: &HttpState,
    db: &Path,
) -> Result<(String, Arc<ActiveSpec>), Failure> {
    let full = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let status = state.context.status.borrow().clone();
    let found = status.specs.values().find_map(|s| {
        let active_spec = s.active_spec.as_ref()?;
        let own = full(&active_spec.spec.database) == full(db)
            || full(active_spec.spec.target()) == full(db);
        own.then(|| (s.name.clone(), Arc::clone(active_spec)))
    });
    found.ok_or_else(|| {
        Failure::wrong_input(
            format!("no spec uses the database {}", db.display()),
            "pass in `db` the full path of a database that one of the daemon's specs uses",
        )
    })
}

/// Parses a client's time limit for the database.
pub(super) fn parse_timeout(asked: Option<f64>) -> Result<Duration, Failure> {
    let seconds = asked.unwrap_or(DEFAULT_SECONDS);
    let timeout = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| !timeout.is_zero() && seconds <= MAX_SECONDS);
    timeout.ok_or_else(|| {
        Failure::wrong_input(
            format!("{seconds} is not a valid `timeout`"),
            "pass seconds, more than 0 and at most 600",
        )
    })
}

fn parse_params(json: &Json) -> Result<Vec<(Param, Value)>, Failure> {
    let scalar = |value: &Json| match value {
        Json::Array(_) | Json::Object(_) => Err(Failure::wrong_input(
            format!("the parameter {value} is not a value"),
            "pass null, a number, a text, true or false",
        )),
        value => Ok(Value::from_json(value)),
    };
    match json {
        Json::Null => Ok(Vec::new()),
        Json::Object(all) => {
            all.iter().map(|(name, v)| Ok((Param::parse(name), scalar(v)?))).collect()
        }
        Json::Array(all) => {
            let at = |n: usize| Param::Position(n + 1);
            all.iter().enumerate().map(|(n, v)| Ok((at(n), scalar(v)?))).collect()
        }
        other => Err(Failure::wrong_input(
            format!("`params` is {other}, expected an object or a list"),
            "pass {\"name\": value}, or the values in a list",
        )),
    }
}

impl PreparedQuery {
    fn build_request<'r>(
        &'r self,
        context: &'r crate::daemon::context::DaemonContext,
        model: Option<Arc<dyn Model>>,
        interrupt: watch::Receiver<bool>,
    ) -> Request<'r> {
        let spec = self.changed_spec.as_ref().unwrap_or(&self.active_spec.spec);
        let count_usage = context.metrics.new_usage_listener();
        let listener = match self.progress.clone() {
            None => count_usage,
            Some(progress) => Arc::new(move |event: &Event| {
                count_usage(event);
                progress(event);
            }),
        };
        Request {
            model,
            dialect: self.dialect,
            classify: self.classify,
            params: self.params.clone(),
            truncate: self.truncate,
            rows_per_request: self.rows_per_request,
            timeout: Some(self.timeout),
            command: &self.command,
            listener,
            interrupt,
            ..Request::new(spec, &self.target, &context.facts, &self.sql)
        }
    }

    fn has_calls(&self) -> bool {
        let spec = self.changed_spec.as_ref().unwrap_or(&self.active_spec.spec);
        query::may_need_model(spec, &self.sql, self.dialect, self.classify)
    }

    fn run_with_sink(
        &self,
        context: &crate::daemon::context::DaemonContext,
        interrupt: watch::Receiver<bool>,
        sink: &mut dyn RowSink,
    ) -> Result<Meta, Failure> {
        // A query without a model reads only stored answers.
        let model = self.active_spec.model.clone().ok().filter(|_| self.is_approved);
        let request = self.build_request(context, model, interrupt);
        let result = if let Some(interval) = self.interval {
            run_with_intervals(request.spec, &request.to_plain(), interval, sink)
        } else if self.has_calls() {
            query::run(&request, sink)
        } else {
            request.to_plain().run(sink)
        };
        let meta = result.map_err(|error| self.to_failure(error))?;
        if !self.is_link {
            context.uses.count_query(&self.spec_name, &self.sql, &meta);
        }
        Ok(meta)
    }

    fn explain(
        &self,
        state: &HttpState,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Meta, Failure> {
        // Planning needs the model's name and provider profile, but no API key.
        let model = match &self.active_spec.model {
            Ok(model) => Arc::clone(model),
            Err(_) => model::connect_for_planning(&self.active_spec.spec)?,
        };
        let request = self.build_request(&state.context, Some(model), interrupt);
        let explained =
            if self.has_calls() { query::explain(&request) } else { request.to_plain().explain() };
        explained.map_err(|error| self.to_failure(error))
    }

    fn to_failure(&self, error: QueryError) -> Failure {
        match (error, &self.active_spec.model) {
            (QueryError::Sql(problem), _) => Failure::Problems(Problems {
                path: PathBuf::from("<query>"),
                text: self.sql.clone(),
                problems: vec![*problem],
            }),
            (QueryError::NoModel, _) if self.is_link => {
                Failure::wrong_input("an answer is no longer stored", "press Run to see the price")
            }
            (QueryError::NoModel, _) if !self.is_approved => Failure::wrong_input(
                "the query needs answers that are not stored, and the daemon runs with --no-spend",
                "approve it with `budget`, its maximum cost in USD; `/v1/explain` returns the cost",
            ),
            (QueryError::NoModel, Err(why)) => Failure::clone(why),
            (QueryError::Output(e), _) if e.kind() == std::io::ErrorKind::FileTooLarge => {
                Failure::wrong_input(
                    e.to_string(),
                    "add LIMIT, or raise `max_rows` (at most the daemon's --max-rows and --max-bytes)",
                )
            }
            (QueryError::Output(e), _) if e.kind() == std::io::ErrorKind::TimedOut => {
                Failure::wrong_input(
                    e.to_string(),
                    "read faster, add LIMIT, or raise the daemon's --read-within: hqdl cannot write to the database until you have read all rows",
                )
            }
            (error, _) => error.into(),
        }
    }
}
