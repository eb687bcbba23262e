//! Runs queries. A call in a query is answered from a stored column if one has the answer, and
//! otherwise by the model.
//!
//! ```text
//! scan, parse (blendsql) → calls: target of each call → engine: passes until one
//! has nothing pending { rewrite → SQLite, with our functions → demands → ask }
//! ```
//!
//! A call is a scalar function of its key. In a pass it looks up its cell (`targets`). If the cell
//! has no value yet, the call is *pending*: it returns NULL for now, and a demand is recorded with
//! its row (`pending_set`). Between passes, some or all demands are sent to the model together
//! (`ask`, `join`), with the same code that materializes a spec.
//!
//! In the last pass nothing is pending, so its rows are those of plain SQL over known values. The
//! order in which demands are sent (`selectivity_sampler`) does not change the result. Only a pass
//! with LIMIT pushdown (`limit_pushdown`) may be the last one although calls are pending: by then
//! the rows of its result are certain.
//!
//! A query in the SUQL dialect is first translated to `SQLite`'s, and literals that a column does
//! not contain are turned into questions (`classify`). Documents (`documents`) are identified by
//! their content. The most similar ones are asked about first (`candidates`, `similarity`). For a
//! long document, the prompt contains only some `passages`.
//!
//! [`guard`] is the read-only connection, `smoothie` is the result, and [`plain`] runs a query
//! without calls.

mod answer;
mod arguments;
mod ask;
mod call_target;
mod batches;
mod model_router;
mod calls;
mod call_options;
mod classify;
mod context;
mod documents;
mod embedding_usage;
mod engine;
mod entities;
pub mod error;
mod estimate;
mod limit_pushdown;
mod coercion;
mod functions;
pub mod guard;
mod headers;
mod join;
pub mod json;
mod row_buffer;
mod key_match;
mod keys;
mod kinds;
mod selectivity_sampler;
mod call_runtime;
mod map;
pub mod macros;
pub mod math;
mod one_row;
pub mod params;
mod passages;
mod pass_loop;
pub mod plain;
mod quoted_texts;
mod answer_parsing;
mod candidate_order;
mod schema;
mod server;
pub mod query_result;
pub mod statement;
mod stored_values;
mod targets;
mod call_stats;
mod validation;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use error::QueryError;
pub use map::{MappedAnswers, ValueQuestion, map_known_values, map_values};
pub use params::Param;
pub use plain::PlainQuery;
pub use query_result::{Meta, Pass, QueryResult, Route, RouteKind, RowSink, Unbounded};

use self::headers::SourceHeaders;
use hqdl_facts::{CellRequirements, Facts};
use hqdl_model::generate::Listener;
use hqdl_model::{self as model, Model, ModelChoice};
use hqdl_spec::{Expansion, Spec, is_server};
use hqdl_sql::blendsql::may_have_calls;
use hqdl_sql::suql;
use hqdl_values::value::Value;

/// Stack size of the thread that runs a query, in bytes. Only pages that are touched use memory.
const STACK_BYTES: usize = 64 << 20;

/// A query with all its settings.
#[derive(Clone)]
pub struct Request<'a> {
    /// The spec; it has no expansions if the user has none.
    pub spec: &'a Spec,
    /// The database to query: the expanded copy, if there is one.
    pub database: &'a Path,
    /// The fact store.
    pub facts: &'a Facts,
    /// The model. Without one, a query that needs a new value fails with [`QueryError::NoModel`].
    pub model: Option<Arc<dyn Model>>,
    /// Text of the query.
    pub sql: &'a str,
    /// SQL dialect of the query.
    pub dialect: Dialect,
    /// Values of the query's parameters.
    pub params: Vec<(Param, Value)>,
    /// Whether to map literals that a low-cardinality column does not contain to the values that
    /// mean the same. The spec can also enable this for a column.
    pub classify: bool,
    /// Whether to truncate a context that is too long instead of failing.
    pub truncate: bool,
    /// Known values to ask for again.
    pub refresh: Option<RefreshScope>,
    /// Rows per request, if the user set it.
    pub rows_per_request: Option<u32>,
    /// Maximum time that `SQLite` may spend on one pass. Time spent waiting for the model does not
    /// count.
    pub timeout: Option<Duration>,
    /// Name of the command in the journal.
    pub command: &'a str,
    /// Callback for progress events.
    pub listener: Listener,
    /// Becomes true when the user interrupts the query.
    pub interrupt: watch::Receiver<bool>,
}

/// SQL dialect of a query. Calls have the same syntax in all dialects.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    serde::Deserialize,
    schemars::JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// `SQLite`'s dialect with `BlendSQL`'s ingredients.
    #[default]
    #[value(help = "SQLite with BlendSQL ingredients")]
    Sqlite,
    /// SUQL's dialect: `PostgreSQL`'s with `answer` and `summary`.
    #[value(help = "PostgreSQL syntax, with answer and summary (SUQL)")]
    Suql,
}

impl Dialect {
    /// Translates a query to `SQLite`'s dialect and passes it to `run`. Error spans point into the
    /// original query.
    fn translate<T>(
        self,
        sql: &str,
        database: &Path,
        run: impl FnOnce(&str) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        if self == Self::Sqlite {
            return run(sql);
        }
        remap_spans(&suql::translate_with_columns(sql, &schema::column_lookup(database))?, run)
    }
}

/// Passes the rewritten text of a query to `run`, and maps the error spans back to the original
/// text.
fn remap_spans<T>(
    rewritten: &suql::TranslatedQuery,
    run: impl FnOnce(&str) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    run(&rewritten.sql).map_err(|error| match error {
        QueryError::Sql(mut problem) => {
            problem.span = problem.span.map(|s| rewritten.original_span(&s));
            QueryError::Sql(problem)
        }
        other => other,
    })
}

/// Passes a request to `run` after translating its query to `SQLite`'s dialect.
fn with_translation<T>(
    request: &Request<'_>,
    run: impl FnOnce(&Request<'_>) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    request.dialect.translate(request.sql, request.database, |sql| {
        let run = |sql: &str| {
            run(&Request { sql, dialect: Dialect::Sqlite, classify: false, ..request.clone() })
        };
        let result = match macros::expand_macros(request, sql)? {
            Some(expanded) => {
                remap_spans(&expanded, |sql| with_classified_literals(request, sql, run))
                    .map_err(|error| macros::name_call_in_error(request, sql, error))
            }
            None => with_classified_literals(request, sql, run),
        };
        result.map_err(|error| macros::list_ingredients_in_error(request, error))
    })
}

/// Runs a query whose words that no column has are brought into questions first, and
/// whose questions about one row are brought to the column that answers them.
fn with_classified_literals<T>(
    request: &Request<'_>,
    sql: &str,
    run: impl FnOnce(&str) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    let run = |sql: &str| match one_row::written(request, sql)? {
        Some(written) => remap_spans(&written, run),
        None => run(sql),
    };
    match classify::classify_literals(request, sql)? {
        Some(rewritten) => remap_spans(&rewritten, run),
        None => run(sql),
    }
}

/// Selects the known values to ask for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshScope {
    /// Facts of completions up to this id are ignored.
    pub up_to: i64,
    /// Ignore only those of these facts that have no value.
    pub failed_only: bool,
}

impl RefreshScope {
    /// Marks the values to ask for again as missing.
    fn mark_missing(self, requirements: &mut CellRequirements, columns: usize) {
        for column in 0..columns {
            if self.failed_only {
                requirements.retry_column(column, self.up_to);
            } else {
                requirements.refresh_column(column, self.up_to);
            }
        }
    }
}

impl<'a> Request<'a> {
    /// Returns a request with default settings: `SQLite`'s dialect, no model. Override fields with
    /// struct update syntax.
    #[must_use]
    pub fn new(spec: &'a Spec, database: &'a Path, facts: &'a Facts, sql: &'a str) -> Self {
        Self {
            spec,
            database,
            facts,
            model: None,
            sql,
            dialect: Dialect::default(),
            params: Vec::new(),
            classify: false,
            truncate: false,
            refresh: None,
            rows_per_request: None,
            timeout: None,
            command: "query",
            listener: Arc::new(|_| {}),
            interrupt: watch::channel(false).1,
        }
    }

    /// Returns the model that answers for an expansion.
    fn model_choice(&self, expansion: &Expansion) -> ModelChoice {
        model::choose_model(self.spec, self.model.as_deref(), expansion)
    }

    /// Returns the query as one without calls.
    #[must_use]
    pub fn to_plain(&'a self) -> PlainQuery<'a> {
        PlainQuery {
            database: self.database,
            sql: self.sql,
            dialect: self.dialect,
            params: &self.params,
            timeout: self.timeout,
            interrupt: self.interrupt.clone(),
        }
    }
}

/// Returns whether a query may need facts or a model. A query that needs neither can run as
/// `Plain`.
#[must_use]
pub fn may_ask(spec: &Spec, sql: &str, dialect: Dialect, classify: bool) -> bool {
    // A literal that a column does not contain may become a question.
    let classify = classify || spec.expansions.iter().flat_map(|e| &e.columns).any(|c| c.classify);
    if classify && sql.contains('\'') {
        return true;
    }
    match dialect {
        Dialect::Sqlite => may_have_calls(sql),
        // A query that cannot be translated fails when it is run. The lookup returns one column for
        // every name, because no column contains a call.
        Dialect::Suql => suql::translate_with_columns(sql, &|_| {
            Some(suql::TableColumns {
                names: vec!["c".to_owned()],
                types: Vec::new(),
                has_rowid: true,
            })
        })
        .map_or_else(|_| may_have_calls(sql), |t| may_have_calls(&t.sql)),
    }
}

/// Runs a query and streams its rows to the sink.
///
/// # Errors
/// [`QueryError`]; answers received before the error are kept.
pub fn run(request: &Request<'_>, sink: &mut dyn RowSink) -> Result<Meta, QueryError> {
    let sink = &mut SourceHeaders::new(request.sql, request.dialect, sink);
    if is_server(request.database) {
        return with_large_stack(|| server::run_with_calls(request, Some(sink)))?;
    }
    with_translation(request, |request| with_large_stack(|| engine::run_query(request, sink))?)
}

/// Returns how a query would run and how many values it would ask for. Sends no request.
///
/// # Errors
/// [`QueryError`] if the query could not be run.
pub fn explain(request: &Request<'_>) -> Result<Meta, QueryError> {
    if is_server(request.database) {
        return with_large_stack(|| server::run_with_calls(request, None))?;
    }
    with_translation(request, |request| with_large_stack(|| engine::explain::explain(request))?)
}

/// Runs `work` on a thread with a stack for expressions as deep as `SQLite` accepts.
fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, QueryError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let result = thread.spawn_scoped(scope, work).map_err(QueryError::Runtime)?.join();
        result.map_err(|panic| std::panic::resume_unwind(panic))
    })
}
