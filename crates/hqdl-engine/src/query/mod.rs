//! Runs queries. A call in a query is answered from a stored column if a column has the answer, and
//! otherwise by the model. A query passes through these folders; each folder imports only from the
//! folders below it:
//!
//! | folder | purpose |
//! |---|---|
//! | `read` | parses the text to a tree in `SQLite`'s dialect, with calls of ingredients only |
//! | `explain` | an upper bound on the requests of a query, without running it |
//! | `run` | passes over the database until one has no pending calls |
//! | `plan` | the statement to run, with everything that its passes need |
//! | `route` | the target of each call: a column of the spec, or a new question |
//! | `ask` | requests to the model for the demands of a pass |
//! | `functions` | the SQL functions that replace calls, and the state that they record |
//! | `cells` | the cells that calls read |
//! | `connection` | the read-only connection |
//! | `result` | rows, and the report about them |
//! | `request` | the query with its settings |
//!
//! A call is a scalar function of its key. In a pass it looks up its cell (`cells::targets`). If
//! the cell has no value yet, the call is *pending*: it returns NULL for now, and a demand is
//! recorded with its row (`functions::call_runtime::pending_set`). Between passes, some or all
//! demands are sent to the model together (`ask`, `run::join`), with the same code that
//! materializes a spec.
//!
//! In the last pass nothing is pending, so it returns the same rows as plain SQL over known values.
//! The order in which demands are sent (`run::selectivity_sampler`) does not change the result.
//! With LIMIT pushdown (`run::limit_pushdown`), a pass can also be the last one while calls are
//! pending, if the rows of its result are already certain.
//!
//! Documents (`cells::documents`) are identified by their content. hqdl asks about the documents
//! most similar to the question first (`run::candidate_order`, `ask::similarity`). For a long
//! document, the prompt contains only some of its passages (`ask::passages`).
//!
//! [`PlainQuery`] runs a query without calls, `server` runs a query over a database on a server,
//! and [`map_values`] asks about values without a query. [`StatementWriter`] asks the model to
//! write a query, or prose about the rows of a query.

mod ask;
mod cells;
pub mod connection;
mod explain;
mod functions;
mod map;
mod plain;
mod plan;
mod read;
mod request;
pub mod result;
mod route;
mod run;
mod server;
mod statement;

use self::connection::large_stack::with_large_stack;
use self::read::macros::find_signature;
use self::read::with_read_query;
use self::result::headers::SourceHeaders;
use hqdl_spec::{Spec, is_server};
use hqdl_sql::blendsql::parse::Syntax;
use hqdl_sql::blendsql::{Subject, may_have_calls, scan_calls};
use hqdl_sql::suql;

pub use self::map::{MappedAnswers, ValueQuestion, map_known_values, map_values};
pub use self::plain::PlainQuery;
pub use self::read::macros::describe_calls;
pub use self::request::dialect::Dialect;
pub use self::request::error::{self, QueryError};
pub use self::request::params::{self, Param};
pub use self::request::{CountedCost, RefreshScope, Request};
pub use self::result::query_result::{
    self, CallBound, Meta, Pass, QueryResult, Route, RouteKind, RowSink, UnboundedCall,
};
pub use self::statement::{ProseQuestion, StatementQuestion, StatementWriter};

/// Returns true if a query may need facts or a model. A query that needs neither can run as a
/// [`PlainQuery`].
#[must_use]
pub fn may_need_model(spec: &Spec, sql: &str, dialect: Dialect, classify: bool) -> bool {
    // A literal that a column does not contain may become a question.
    let classify = classify || spec.expansions.iter().flat_map(|e| &e.columns).any(|c| c.classify);
    if classify && sql.contains('\'') {
        return true;
    }
    // On a server, `similarity` and `embed` are functions of the server.
    if is_server(&spec.database)
        && let Ok(calls) = scan_calls(sql)
        && calls.iter().all(|call| call.ingredient.subject() == Subject::Embedding)
    {
        return false;
    }
    let vendor = dialect.vendor();
    if !dialect.has_postgres_syntax() {
        return may_have_calls(sql, vendor);
    }
    // A query that cannot be translated fails when it is run. The lookup returns a dummy column for
    // every table, because columns do not affect whether the query contains a call.
    let translated = suql::translate_with_columns(sql, vendor, &|_| {
        let (names, types) = (vec!["c".to_owned()], Vec::new());
        Some(suql::TableColumns { names, types, has_rowid: true })
    });
    translated.map_or_else(|_| may_have_calls(sql, vendor), |t| may_have_calls(&t.sql, vendor))
}

/// Runs a query and streams its rows to the sink.
///
/// # Errors
/// Returns [`QueryError`] if the query fails. Answers received before the error are kept.
pub fn run(request: &Request<'_>, sink: &mut dyn RowSink) -> Result<Meta, QueryError> {
    with_large_stack(|| {
        let is_server = is_server(request.database);
        let find_macro = |name: &str| find_signature(&request.spec.ingredients, name);
        let syntax = Syntax { is_server, find_macro: Some(&find_macro), ..Syntax::default() };
        let sink = &mut SourceHeaders::new(request.sql, request.dialect, syntax, sink);
        if is_server {
            return server::run_with_calls(request, Some(sink));
        }
        with_read_query(request, |r, query| run::run_query(r, query, sink))
    })?
}

/// Returns a description of how a query would run, and the number of values that it would ask for.
/// Sends no request.
///
/// # Errors
/// Returns [`QueryError`] if the query cannot be run.
pub fn explain(request: &Request<'_>) -> Result<Meta, QueryError> {
    if is_server(request.database) {
        return with_large_stack(|| server::run_with_calls(request, None))?;
    }
    with_large_stack(|| with_read_query(request, explain::explain))?
}
