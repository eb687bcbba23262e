//! PATH 2: a query, answered from stored columns where they hold the answer
//! and by the model where they don't.
//!
//! ```text
//! scan, parse (blendsql) → calls: what each asks for → engine: passes until one
//! has nothing pending { rewrite → SQLite, with our functions → demands → ask }
//! ```
//!
//! A call is a scalar function over its key. In a pass it looks its cell up
//! (`targets`); one that is not known is *pending*: NULL for now, and noted with
//! its row (`notes`). Between passes some or all of what was noted is
//! asked together (`ask`, `join`) by the same generation that
//! materializes a spec. The last pass is `SQLite`'s own, over known values: nothing
//! in it was pending, so its rows are those of plain SQL whatever the values are
//! that it did not reach. Which of the noted rows are asked about first (`learning`)
//! decides nothing. The one pass that may end with pending calls is that of the
//! rule of the first rows (`first_rows`), which shows why.
//!
//! A query in `SUQL`'s dialect is brought into `SQLite`'s words first, and words
//! that a column does not have into questions (`classify`). Documents
//! (`documents`) are known by their content and asked about in the order of how
//! much they are like the questions (`candidates`, `likeness`), and of long ones
//! a question is shown some `passages`.
//!
//! [`guard`] is the read-only connection it runs on, [`smoothie`] what it ends
//! in; [`plain`] runs a query without calls.

mod answer;
mod arguments;
mod ask;
mod asks;
mod batches;
mod binder;
mod calls;
mod choosing;
mod classify;
mod context;
mod documents;
mod embedded;
mod engine;
mod entities;
pub mod error;
mod estimate;
mod first_rows;
mod fits;
mod functions;
pub mod guard;
mod headers;
mod join;
pub mod json;
mod kept;
mod key_match;
mod keys;
mod kinds;
mod learning;
mod live;
mod map;
pub mod macros;
pub mod math;
mod one_row;
pub mod params;
mod passages;
mod passes;
pub mod plain;
mod quoted_texts;
mod reading;
mod retrieve;
mod schema;
mod server;
pub mod smoothie;
pub mod statement;
mod stored_values;
mod targets;
mod touched;
mod validation;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use error::QueryError;
pub use map::{Mapped, ValueQuestion, map, map_known};
pub use params::Param;
pub use plain::Plain;
pub use smoothie::{Meta, Pass, Route, RouteKind, Sink, Smoothie, Unbounded};

use self::headers::WrittenHeaders;
use hqdl_facts::{Facts, Wanted};
use hqdl_model::generate::Listener;
use hqdl_model::{self as model, Model, ModelChoice};
use hqdl_spec::{Expansion, Spec, is_server};
use hqdl_sql::blendsql::may_have_calls;
use hqdl_sql::suql;
use hqdl_values::value::Value;

/// Bytes of stack for a query; what is not used costs nothing.
const STACK: usize = 64 << 20;

/// A query, with everything it needs.
#[derive(Clone)]
pub struct Request<'a> {
    /// The spec; without expansions when the user has none.
    pub spec: &'a Spec,
    /// The database to query: expanded, where it is.
    pub database: &'a Path,
    /// What is known.
    pub facts: &'a Facts,
    /// Who is asked; without one, a value that must be asked for is
    /// [`QueryError::NoModel`].
    pub model: Option<Arc<dyn Model>>,
    /// The query.
    pub sql: &'a str,
    /// Whose spellings it is written in.
    pub dialect: Dialect,
    /// The values of its parameters.
    pub params: Vec<(Param, Value)>,
    /// Whether words that a column with few values does not have mean the values
    /// that mean the same; the spec may say so of a column, too.
    pub classify: bool,
    /// Whether a context that is too long is cut, instead of an error.
    pub truncate: bool,
    /// What of that is asked again.
    pub again: Option<Again>,
    /// Rows that share a request, where the user said so.
    pub rows_per_request: Option<u32>,
    /// How long `SQLite` may take over one pass; waiting for the model does not
    /// count.
    pub timeout: Option<Duration>,
    /// What the run is called in the journal.
    pub command: &'a str,
    /// Who is told what goes on.
    pub listener: Listener,
    /// Becomes true when the user wants it to end.
    pub interrupt: watch::Receiver<bool>,
}

/// Whose spellings a query is written in. Calls are the same in all.
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
    /// That of `SQLite`, with `BlendSQL`'s ingredients.
    #[default]
    #[value(help = "SQLite with BlendSQL ingredients")]
    Sqlite,
    /// That of `SUQL`, which is `PostgreSQL`'s with `answer` and `summary`.
    #[value(help = "PostgreSQL syntax, with answer and summary (SUQL)")]
    Suql,
}

impl Dialect {
    /// Runs what takes a query in `SQLite`'s words; errors point into the query
    /// as it was written.
    fn brought<T>(
        self,
        sql: &str,
        database: &Path,
        run: impl FnOnce(&str) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        if self == Self::Sqlite {
            return run(sql);
        }
        placed(&suql::translate_over(sql, &schema::columns_of(database))?, run)
    }
}

/// Runs what takes the new text of a query; errors point into the old one.
fn placed<T>(
    text: &suql::Translated,
    run: impl FnOnce(&str) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    run(&text.sql).map_err(|error| match error {
        QueryError::Sql(mut problem) => {
            problem.span = problem.span.map(|s| text.place(&s));
            QueryError::Sql(problem)
        }
        other => other,
    })
}

/// Runs a query in `SQLite`'s words, whatever it was written in.
fn in_sqlite<T>(
    request: &Request<'_>,
    run: impl FnOnce(&Request<'_>) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    request.dialect.brought(request.sql, request.database, |sql| {
        let run = |sql: &str| {
            run(&Request { sql, dialect: Dialect::Sqlite, classify: false, ..request.clone() })
        };
        let ended = match macros::written(request, sql)? {
            Some(written) => placed(&written, |sql| classified(request, sql, run))
                .map_err(|error| macros::named(request, sql, error)),
            None => classified(request, sql, run),
        };
        ended.map_err(|error| macros::listed(request, error))
    })
}

/// Runs a query whose words that no column has are brought into questions first, and
/// whose questions about one row are brought to the column that answers them.
fn classified<T>(
    request: &Request<'_>,
    sql: &str,
    run: impl FnOnce(&str) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    let run = |sql: &str| match one_row::written(request, sql)? {
        Some(written) => placed(&written, run),
        None => run(sql),
    };
    match classify::classified(request, sql)? {
        Some(classified) => placed(&classified, run),
        None => run(sql),
    }
}

/// What is asked again although it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    /// Facts of completions up to this one no longer count …
    pub up_to: i64,
    /// … or those alone of them that have no value.
    pub failed: bool,
}

impl Again {
    /// Lets what is to be asked again count as missing.
    fn tell(self, wanted: &mut Wanted, columns: usize) {
        for column in 0..columns {
            if self.failed {
                wanted.retry(column, self.up_to);
            } else {
                wanted.refresh(column, self.up_to);
            }
        }
    }
}

impl<'a> Request<'a> {
    /// A query in `SQLite`'s words, of nobody: to be changed where it is more.
    #[must_use]
    pub fn of(spec: &'a Spec, database: &'a Path, facts: &'a Facts, sql: &'a str) -> Self {
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
            again: None,
            rows_per_request: None,
            timeout: None,
            command: "query",
            listener: Arc::new(|_| {}),
            interrupt: watch::channel(false).1,
        }
    }

    /// Whom the cells of an expansion are asked of.
    fn choice(&self, expansion: &Expansion) -> ModelChoice {
        model::choose(self.spec, self.model.as_deref(), expansion)
    }

    /// The query, taken to have no calls.
    #[must_use]
    pub fn plain(&'a self) -> Plain<'a> {
        Plain {
            database: self.database,
            sql: self.sql,
            dialect: self.dialect,
            params: &self.params,
            timeout: self.timeout,
            interrupt: self.interrupt.clone(),
        }
    }
}

/// Whether a query may ask anything; what asks nothing needs neither facts nor a
/// model, and is [`Plain`].
#[must_use]
pub fn may_ask(spec: &Spec, sql: &str, dialect: Dialect, classify: bool) -> bool {
    // A word that a column does not have may become a question.
    let classify = classify || spec.expansions.iter().flat_map(|e| &e.columns).any(|c| c.classify);
    if classify && sql.contains('\'') {
        return true;
    }
    match dialect {
        Dialect::Sqlite => may_have_calls(sql),
        // What cannot be read is told when it is run; more names than this one column has
        // may be those of a table. No column makes a call.
        Dialect::Suql => suql::translate_over(sql, &|_| {
            Some(suql::TableColumns {
                names: vec!["c".to_owned()],
                types: Vec::new(),
                has_rowid: true,
            })
        })
        .map_or_else(|_| may_have_calls(sql), |t| may_have_calls(&t.sql)),
    }
}

/// Runs a query; its rows go to the sink as they come.
///
/// # Errors
/// [`QueryError`]; what was answered until then is kept.
pub fn run(request: &Request<'_>, sink: &mut dyn Sink) -> Result<Meta, QueryError> {
    let sink = &mut WrittenHeaders::of(request.sql, request.dialect, sink);
    if is_server(request.database) {
        return deep(|| server::run(request, Some(sink)))?;
    }
    in_sqlite(request, |request| deep(|| engine::run(request, sink))?)
}

/// Tells how a query would be run, and what it would ask; asks nothing.
///
/// # Errors
/// [`QueryError`] when it could not be run.
pub fn explain(request: &Request<'_>) -> Result<Meta, QueryError> {
    if is_server(request.database) {
        return deep(|| server::run(request, None))?;
    }
    in_sqlite(request, |request| deep(|| engine::explain::explain(request))?)
}

/// Does some work where there is room for expressions as deep as `SQLite` takes
/// them, whatever thread the caller has.
fn deep<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, QueryError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let ended = thread.spawn_scoped(scope, work).map_err(QueryError::Runtime)?.join();
        ended.map_err(|panic| std::panic::resume_unwind(panic))
    })
}
