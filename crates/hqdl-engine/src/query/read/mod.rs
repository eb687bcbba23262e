//! Reads a query: translates `PostgreSQL`'s syntax and parses it. Passes over the tree expand macros,
//! replace the calls of other engines' functions, and turn literals that no column contains into
//! questions.

pub mod arguments;
pub mod classify;
mod dates;
mod dedup;
mod extract;
mod function_calls;
mod labels;
pub mod macros;
mod nearest;
pub mod one_row;
mod rank;
mod reduce;
mod spec_ingredients;
mod vendor_calls;

use std::path::Path;

use crate::query::connection::schema::build_column_lookup;
use crate::query::plan::prepare::{ReadQuery, open_database};
use crate::query::request::Request;
use crate::query::request::dialect::Dialect;
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::macros::FindMacro;
use hqdl_sql::blendsql::normalize::{SourceQuery, normalize_plain_query};
use hqdl_sql::blendsql::parse::Syntax;
use hqdl_sql::blendsql::vendors::Vendor;
use hqdl_sql::{TranslatedQuery, suql};

/// Translates a query in `PostgreSQL`'s syntax to `SQLite`'s. Returns `None` if the dialect has
/// `SQLite`'s syntax. The calls of other engines' functions stay as they are.
fn translate_postgres_syntax(
    sql: &str,
    dialect: Dialect,
    database: &Path,
) -> Result<Option<TranslatedQuery>, QueryError> {
    if !dialect.has_postgres_syntax() {
        return Ok(None);
    }
    let lookup = build_column_lookup(database);
    let translated = suql::translate_with_columns(sql, dialect.vendor(), &lookup);
    translated.map(Some).map_err(|error| {
        let hint = "use `--dialect sqlite` for this call, or LLMMap, LLMQA, LLMValidate, LLMJoin or LLMReduce";
        macros::explain_missing_macro(error.into(), hint)
    })
}

/// Translates a query without calls to `SQLite`'s SQL. Returns `None` if the query is written in it.
pub fn translate_plain_query(
    sql: &str,
    dialect: Dialect,
    database: &Path,
) -> Result<Option<TranslatedQuery>, QueryError> {
    if dialect.has_postgres_syntax() {
        return translate_postgres_syntax(sql, dialect, database);
    }
    Ok(normalize_plain_query(sql, dialect.vendor())?)
}

/// Passes the rewritten text of a query to `run`, and maps the error spans back to the original
/// text.
pub fn run_with_remapped_spans<T>(
    rewritten: &TranslatedQuery,
    run: impl FnOnce(&str) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    run(&rewritten.sql)
        .map_err(|error| error.map_span(|span| rewritten.map_span_to_original(&span)))
}

/// Reads a query and passes it to `run`. Error spans point into the original query.
pub fn with_read_query<T>(
    request: &Request<'_>,
    run: impl FnOnce(&Request<'_>, ReadQuery) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    let vendor = request.dialect.vendor();
    let run = |sql: &str| {
        let request = &Request { sql, dialect: Dialect::Sqlite, ..request.clone() };
        let result = parse_and_run_query(request, vendor, run);
        result.map_err(|error| macros::list_ingredients_in_error(request, error))
    };
    match translate_postgres_syntax(request.sql, request.dialect, request.database)? {
        Some(translated) => run_with_remapped_spans(&translated, run),
        None => run(request.sql),
    }
}

/// Parses a query, applies the edits of all passes over its tree, and parses the resulting text
/// again. Passes the final query to `run`.
fn parse_and_run_query<T>(
    request: &Request<'_>,
    vendor: Option<Vendor>,
    run: impl FnOnce(&Request<'_>, ReadQuery) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    let (guard, schema) = open_database(request)?;
    let is_table = |table: &str| schema.has_table(table);
    let find_macro = |name: &str| macros::find_signature(&request.spec.ingredients, name);
    let find_macro = Some::<FindMacro<'_>>(&find_macro);
    let syntax = Syntax { is_table: &is_table, is_server: false, find_macro, vendor };
    if let Some(expanded) = function_calls::expand_aliases(request, syntax)? {
        let run = |sql: &str| parse_and_run_query(&Request { sql, ..request.clone() }, vendor, run);
        return run_with_remapped_spans(&expanded, run);
    }
    let mut source = SourceQuery::parse(request.sql, syntax)?;
    let expanded = macros::expand_macros(request, &schema, &source)?;
    let classified = classify::classify_literals(request, &guard, &schema, &source);
    source.edits.extend(expanded);
    source.edits.extend(classified);
    let names = macros::MacroNames::from_source(&source);
    let written = source.apply_edits(syntax).map_err(QueryError::from);
    let result = written.and_then(|(normalized, parsed)| {
        let query = ReadQuery { normalized, parsed, guard, schema };
        run(request, one_row::rewrite_one_row_questions(request, query)?)
    });
    result.map_err(|error| names.name_call_in_error(error))
}
