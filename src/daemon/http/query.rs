//! `/v1/query` and `/v1/explain`.

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

use super::reply::{HttpRefusal, json_body, no_spec};
use super::rows::{self, LineSink, RowsMost};
use super::stalled::Patience;
use super::{HttpState, STALLED, WAITING};
use crate::daemon::clients::Served;
use crate::daemon::loaded::ActiveSpec;
use crate::database::{Database, output};
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::problem::Problems;
use crate::query::{self, Dialect, Meta, Param, QueryError, Request, Sink};
use crate::spec::Spec;
use crate::value::Value;

/// Default time limit of the database for one pass, in seconds.
const PATIENCE: f64 = 30.0;
/// Maximum time limit, in seconds.
const LONGEST: f64 = 600.0;
/// Time limit of a short read.
pub(super) const LOOK: Duration = Duration::from_secs(10);

/// A query.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AskedQuery {
    /// The spec; may be left out when there is one only.
    pub(super) spec: Option<String>,
    /// A database of a spec, to query it as it is, without the spec's expansions.
    pub(super) db: Option<PathBuf>,
    /// The query.
    pub(super) sql: String,
    /// Its parameters: an object by name, or an array by position.
    pub(super) params: Json,
    /// SQL dialect of the query; `suql` accepts `PostgreSQL` syntax.
    pub(super) dialect: Dialect,
    /// If a column has few distinct values and a word of the query is none of them, ask the model
    /// once which of them it means.
    pub(super) classify: bool,
    /// Cut a context that is too long for the model instead of failing.
    pub(super) truncate: bool,
    /// Maximum number of rows per request.
    pub(super) rows_per_request: Option<u32>,
    /// Time limit in seconds for the database's work in one pass [default: 30, at most 600]. The
    /// rows must be read within this time plus the daemon's `--read-within` (60 seconds); otherwise
    /// the last line is an error.
    pub(super) timeout: Option<f64>,
    /// Maximum number of rows of the result.
    pub(super) max_rows: Option<u64>,
    /// Budget of the query in USD, instead of the spec's.
    pub(super) budget: Option<f64>,
}

/// A query with everything needed to run it.
pub(super) struct Ready {
    loaded: Arc<ActiveSpec>,
    /// Modified copy of the spec, if the request changes it.
    other: Option<Spec>,
    target: PathBuf,
    sql: String,
    dialect: Dialect,
    classify: bool,
    params: Vec<(Param, Value)>,
    truncate: bool,
    rows_per_request: Option<u32>,
    timeout: Duration,
    command: String,
}

/// `POST /v1/query`
pub(super) async fn run(
    State(shop): State<HttpState>,
    Extension(patience): Extension<Patience>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, HttpRefusal> {
    let asked: AskedQuery = json_body(&headers, body).await?;
    let settings = &shop.house.settings;
    let most = RowsMost {
        rows: asked.max_rows.unwrap_or(u64::MAX).min(settings.max_rows),
        bytes: settings.max_bytes,
        time: settings.read_within + seconds(asked.timeout)?,
    };
    // The timeout of the connection is longer than that of the rows, so that a slow reader still
    // receives the error.
    patience.set(most.time + 2 * STALLED);
    let (served, interrupt) = shop.house.clients.begin();
    let place = shop.place().await?;
    let (lines, mut parts) = LineSink::new(most, Handle::current());
    let house = shop.house.clone();
    tokio::task::spawn_blocking(move || {
        let mut lines = lines;
        let ran = |ready: Ready| Ok(ready.run(&house, interrupt, &mut lines)?);
        let ended = ready(&shop, asked).and_then(ran);
        // Release the permit before waiting for a slow reader.
        drop(place);
        match ended {
            Ok(meta) => {
                house.metrics.reused(meta.values_reused);
                lines.close(Ok(&meta));
            }
            Err(refusal) => lines.close(Err(refusal)),
        }
    });
    match parts.recv().await {
        Some(Ok(first)) => {
            let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
            Ok((kind, rows::body(first, parts, served)).into_response())
        }
        Some(Err(refusal)) => Err(refusal),
        None => Err(bug().into()),
    }
}

/// `POST /v1/explain`
pub(super) async fn explain(
    State(shop): State<HttpState>,
    headers: HeaderMap,
    body: Body,
) -> Result<axum::Json<Json>, HttpRefusal> {
    let asked: AskedQuery = json_body(&headers, body).await?;
    let meta = explained(&shop, asked).await?;
    Ok(axum::Json(meta.explained_json()))
}

/// Explains a query.
pub(super) async fn explained(shop: &HttpState, asked: AskedQuery) -> Result<Meta, HttpRefusal> {
    let (served, interrupt) = shop.house.clients.begin();
    let shop = shop.clone();
    let place = shop.place().await?;
    at_work(place, served, move || Ok(ready(&shop, asked)?.explain(&shop, interrupt)?)).await
}

/// Runs a query and collects its rows in `sink`, for the page.
pub(super) async fn kept<S: Sink + Send + 'static>(
    shop: &HttpState,
    asked: AskedQuery,
    sink: S,
) -> Result<(Meta, S), HttpRefusal> {
    let (served, interrupt) = shop.house.clients.begin();
    let shop = shop.clone();
    let place = shop.place().await?;
    at_work(place, served, move || {
        let mut sink = sink;
        let meta = ready(&shop, asked)?.run(&shop.house, interrupt, &mut sink)?;
        shop.house.metrics.reused(meta.values_reused);
        Ok((meta, sink))
    })
    .await
}

/// Runs blocking work on its own thread.
pub(super) async fn at_work<T: Send + 'static>(
    place: OwnedSemaphorePermit,
    served: Served,
    work: impl FnOnce() -> Result<T, HttpRefusal> + Send + 'static,
) -> Result<T, HttpRefusal> {
    let ended = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(place);
        done
    });
    let ended = ended.await;
    drop(served);
    ended.map_err(|_| HttpRefusal::from(bug()))?
}

fn bug() -> Failure {
    Failure::input("this is a bug in hqdl", "please report this query")
}

impl HttpState {
    /// Acquires a permit for a query. Waits for one, unless too many clients wait already.
    pub(super) async fn place(&self) -> Result<OwnedSemaphorePermit, HttpRefusal> {
        self.place_in(&self.places).await
    }

    /// Acquires a permit for a short read, which queries do not use.
    pub(super) async fn look(&self) -> Result<OwnedSemaphorePermit, HttpRefusal> {
        self.place_in(&self.looks).await
    }

    async fn place_in(&self, places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, HttpRefusal> {
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Ok(place);
        }
        let waiting = WaitingQuery::new(&self.house.metrics.waiting);
        let busy = || HttpRefusal::busy("too many requests are waiting");
        if waiting.1 > WAITING {
            return Err(busy());
        }
        Arc::clone(places).acquire_owned().await.map_err(|_| busy())
    }

    /// Acquires a permit to wait for the end of a run.
    pub(super) fn wait(&self) -> Result<OwnedSemaphorePermit, HttpRefusal> {
        let place = Arc::clone(&self.waits).try_acquire_owned();
        place.map_err(|_| HttpRefusal::busy("too many clients wait for runs"))
    }

    /// Returns the spec in force by name; without a name, the only one.
    pub(super) fn loaded(
        &self,
        name: Option<&str>,
    ) -> Result<(String, Arc<ActiveSpec>), HttpRefusal> {
        let status = self.house.status.borrow();
        let spec = match name {
            Some(name) => status.spec(name),
            None => status.specs.values().next().filter(|_| status.specs.len() == 1),
        };
        let Some(spec) = spec else {
            let failure = match name {
                Some(name) => no_spec(name, status.specs.keys()),
                None => {
                    let names: Vec<&str> = status.specs.keys().map(String::as_str).collect();
                    Failure::input(
                        "the daemon has no spec to query",
                        format!("name one: {}", names.join(", ")),
                    )
                }
            };
            return Err(HttpRefusal { status: axum::http::StatusCode::NOT_FOUND, failure });
        };
        match (&spec.loaded, &spec.problem) {
            (Some(loaded), _) => Ok((spec.name.clone(), Arc::clone(loaded))),
            (None, Some(problem)) => Err(Failure::clone(problem).into()),
            (None, None) => Err(HttpRefusal::new(
                axum::http::StatusCode::SERVICE_UNAVAILABLE,
                format!("the spec {} is still being read", spec.name),
                "ask again in a moment",
            )),
        }
    }
}

/// Counts a waiting request until it is dropped.
struct WaitingQuery<'a>(&'a std::sync::atomic::AtomicI64, i64);

impl<'a> WaitingQuery<'a> {
    fn new(count: &'a std::sync::atomic::AtomicI64) -> Self {
        let before = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self(count, before + 1)
    }
}

impl Drop for WaitingQuery<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Reads and checks everything except the query itself.
fn ready(shop: &HttpState, asked: AskedQuery) -> Result<Ready, HttpRefusal> {
    let (name, loaded, bare) = match (&asked.spec, &asked.db) {
        (Some(name), _) => (name.clone(), shop.loaded(Some(name))?.1, false),
        (None, None) => {
            let (name, loaded) = shop.loaded(None)?;
            (name, loaded, false)
        }
        (None, Some(db)) => {
            let (name, loaded) = of_database(shop, db)?;
            (name, loaded, true)
        }
    };
    let mut other = None;
    if bare || asked.budget.is_some() {
        let mut spec = loaded.spec.clone();
        if bare {
            spec.expansions.clear();
        }
        spec.set_budget(asked.budget).map_err(Failure::from)?;
        other = Some(spec);
    }
    let target = match (&asked.db, &loaded.spec.output) {
        (Some(db), _) if bare => db.clone(),
        (_, None) => loaded.spec.database.clone(),
        (_, Some(copy)) => {
            let readable = Database::open(&loaded.spec.database)
                .and_then(|database| output::readable(&database, Some(copy)));
            readable.map_err(Failure::from)?.0
        }
    };
    let timeout = seconds(asked.timeout)?;
    Ok(Ready {
        params: params(&asked.params)?,
        command: format!("query {name}"),
        loaded,
        other,
        target,
        sql: asked.sql,
        dialect: asked.dialect,
        classify: asked.classify,
        truncate: asked.truncate,
        rows_per_request: asked.rows_per_request.filter(|n| *n > 0),
        timeout,
    })
}

/// Returns the spec with this database. Clients can read no other files.
fn of_database(shop: &HttpState, db: &Path) -> Result<(String, Arc<ActiveSpec>), Failure> {
    let full = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let status = shop.house.status.borrow().clone();
    let found = status.specs.values().find_map(|s| {
        let loaded = s.loaded.as_ref()?;
        let own = full(&loaded.spec.database) == full(db) || full(loaded.spec.target()) == full(db);
        own.then(|| (s.name.clone(), Arc::clone(loaded)))
    });
    found.ok_or_else(|| {
        Failure::input(
            format!("no spec uses the database {}", db.display()),
            "pass in `db` the full path of a database that one of the daemon's specs uses",
        )
    })
}

/// Parses a client's time limit for the database.
pub(super) fn seconds(asked: Option<f64>) -> Result<Duration, Failure> {
    let seconds = asked.unwrap_or(PATIENCE).min(LONGEST);
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|t| !t.is_zero());
    timeout.ok_or_else(|| Failure::input("pass `timeout` in seconds, more than 0", ""))
}

fn params(json: &Json) -> Result<Vec<(Param, Value)>, Failure> {
    let scalar = |value: &Json| match value {
        Json::Array(_) | Json::Object(_) => Err(Failure::input(
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
        _ => Err(Failure::input("pass `params` as an object or an array", "")),
    }
}

impl Ready {
    fn request<'r>(
        &'r self,
        house: &'r crate::daemon::house::DaemonContext,
        model: Option<Arc<dyn Model>>,
        interrupt: watch::Receiver<bool>,
    ) -> Request<'r> {
        let spec = self.other.as_ref().unwrap_or(&self.loaded.spec);
        Request {
            model,
            dialect: self.dialect,
            classify: self.classify,
            params: self.params.clone(),
            truncate: self.truncate,
            rows_per_request: self.rows_per_request,
            timeout: Some(self.timeout),
            command: &self.command,
            listener: house.metrics.listener(),
            interrupt,
            ..Request::of(spec, &self.target, &house.facts, &self.sql)
        }
    }

    fn has_calls(&self) -> bool {
        let spec = self.other.as_ref().unwrap_or(&self.loaded.spec);
        query::may_ask(spec, &self.sql, self.dialect, self.classify)
    }

    fn run(
        &self,
        house: &crate::daemon::house::DaemonContext,
        interrupt: watch::Receiver<bool>,
        sink: &mut dyn Sink,
    ) -> Result<Meta, Failure> {
        let request = self.request(house, self.loaded.model.clone().ok(), interrupt);
        let ran =
            if self.has_calls() { query::run(&request, sink) } else { request.plain().run(sink) };
        ran.map_err(|error| self.failure(error))
    }

    fn explain(&self, shop: &HttpState, interrupt: watch::Receiver<bool>) -> Result<Meta, Failure> {
        // Planning needs the model's name and provider profile, but no API key.
        let model = match &self.loaded.model {
            Ok(model) => Arc::clone(model),
            Err(_) => model::for_planning(&self.loaded.spec)?,
        };
        let request = self.request(&shop.house, Some(model), interrupt);
        let explained =
            if self.has_calls() { query::explain(&request) } else { request.plain().explain() };
        explained.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: QueryError) -> Failure {
        match (error, &self.loaded.model) {
            (QueryError::Sql(problem), _) => Failure::Problems(Problems {
                path: PathBuf::from("<query>"),
                text: self.sql.clone(),
                problems: vec![*problem],
            }),
            (QueryError::NoModel, Err(why)) => Failure::clone(why),
            (QueryError::Output(e), _) if e.kind() == std::io::ErrorKind::FileTooLarge => {
                Failure::input(
                    e.to_string(),
                    "add LIMIT, or raise `max_rows` (at most the daemon's --max-rows and --max-bytes)",
                )
            }
            (QueryError::Output(e), _) if e.kind() == std::io::ErrorKind::TimedOut => {
                Failure::input(
                    e.to_string(),
                    "read faster, add LIMIT, or raise the daemon's --read-within: hqdl cannot write to the database until you have read all rows",
                )
            }
            (error, _) => error.into(),
        }
    }
}
