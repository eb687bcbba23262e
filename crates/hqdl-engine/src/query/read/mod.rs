//! Reads a query: translates its dialect, expands macros, and turns literals that no column
//! contains into questions. Each rewrite passes its text on and maps error spans back to the
//! original.

pub mod arguments;
pub mod classify;
mod dedup;
mod enclosing_query;
mod extract;
mod labels;
pub mod macros;
mod nearest;
pub mod one_row;
mod rank;
mod reduce;

use std::path::Path;

use crate::query::connection::schema::column_lookup;
use crate::query::request::Request;
use crate::query::request::dialect::Dialect;
use crate::query::request::error::QueryError;
use hqdl_sql::{suql, vendors};

impl Dialect {
    /// Translates a query to `SQLite`'s dialect and passes it to `run`. Error spans point into the
    /// original query.
    pub fn translate_query<T>(
        self,
        sql: &str,
        database: &Path,
        run: impl FnOnce(&str) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        if let Some(vendor) = self.vendor() {
            let rewritten = vendors::translate(sql, vendor)?;
            let dialect = if self == Self::AlloyDb { Self::Suql } else { Self::Sqlite };
            return remap_spans(&rewritten, |sql| dialect.translate_query(sql, database, run));
        }
        if self == Self::Sqlite {
            return run(sql);
        }
        let translated = suql::translate_with_columns(sql, &column_lookup(database));
        let translated = translated.map_err(|error| {
            let hint = "use `--dialect sqlite` for this call, or LLMMap, LLMQA, LLMValidate, LLMJoin or LLMReduce";
            macros::explain_missing_macro(error.into(), hint)
        })?;
        remap_spans(&translated, run)
    }
}

/// Passes the rewritten text of a query to `run`, and maps the error spans back to the original
/// text.
fn remap_spans<T>(
    rewritten: &suql::TranslatedQuery,
    run: impl FnOnce(&str) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    run(&rewritten.sql).map_err(|error| error.map_span(|span| rewritten.original_span(&span)))
}

/// Passes a request to `run` after translating its query to `SQLite`'s dialect.
pub fn with_translation<T>(
    request: &Request<'_>,
    run: impl FnOnce(&Request<'_>) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    request.dialect.translate_query(request.sql, request.database, |sql| {
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

/// Runs a query after two rewrites. The first one turns literals that no column contains into
/// questions. The second one rewrites questions about one row to calls that a column answers.
fn with_classified_literals<T>(
    request: &Request<'_>,
    sql: &str,
    run: impl FnOnce(&str) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    let run = |sql: &str| match one_row::rewrite_one_row_questions(request, sql)? {
        Some(written) => remap_spans(&written, run),
        None => run(sql),
    };
    match classify::classify_literals(request, sql)? {
        Some(rewritten) => remap_spans(&rewritten, run),
        None => run(sql),
    }
}
