//! Options of calls: the values of lists, columns and queries, read from the database before the
//! query runs.

use std::ops::Range;

use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::parse::ParsedQuery;
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith, SelectOutputs};
use hqdl_sql::blendsql::{Call, Choices};
use hqdl_values::problem::Problem;
use hqdl_values::value::Value;

/// Maximum number of a compared column's values that may be inferred as options.
const MAX_INFERRED: usize = 300;

/// Reads the values that a query needs before it runs.
pub trait ValueListProvider {
    /// Returns the distinct values of a query's columns in order, without NULLs. Returns `None` if
    /// the query contains an unanswered call and no request may be sent.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the query fails.
    fn query_values(
        &mut self,
        sql: &str,
        max_values: usize,
    ) -> Result<Option<Vec<Value>>, QueryError>;

    /// Returns the columns that a SELECT yields, with their lineage.
    fn analyze_select_outputs(&mut self, select: &str) -> SelectOutputs;

    /// Returns the distinct values of a column, given the position of its expansion in the spec and
    /// the column's position in the expansion. Returns `None` if the value of any key is unknown.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the sources or the facts cannot be read.
    fn stored_values(
        &mut self,
        expansion: usize,
        column: usize,
    ) -> Result<Option<Vec<String>>, QueryError>;

    /// Creates a temporary table with the rows of a SELECT and an index on its first columns.
    /// Returns the table's name as SQL.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the table cannot be created.
    fn create_lookup_table(
        &mut self,
        key_columns: &[String],
        value_columns: &[String],
        select: &str,
    ) -> Result<String, QueryError>;
}

/// Returns the options of a call, if it has any. If `infer` is true and the call is compared with a
/// column of few values, these values are the options.
pub(in crate::query) fn read_options(
    sql: &str,
    parsed: &ParsedQuery,
    call: &Call,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
    infer: bool,
) -> Result<Option<Vec<Value>>, QueryError> {
    use hqdl_sql::blendsql::usage::OptionsColumn;
    use hqdl_values::sql::quote_name;
    let column = |table: &str, column: &str| {
        // Qualify the name, because `SQLite` reads an unknown double-quoted name as a text.
        format!("SELECT DISTINCT {1}.{0} FROM {1}", quote_name(column), quote_name(table))
    };
    let with = |text: &str| format!("{}{text}", build_with_clause(sql, parsed, call, text));
    match (&call.options, &usage.options) {
        (Some(Choices::List(values)), _) => Ok(Some(values.clone())),
        (Some(Choices::Query(span)), _) => {
            let text = with(&format!("SELECT * FROM ({})", &sql[span.clone()]));
            let begins = text.len() - ")".len() - span.len();
            value_provider
                .query_values(&text, usize::MAX)
                .map_err(|e| remap_to_part(e, span, Some(begins)))
        }
        (Some(Choices::Column { span, .. }), Some(OptionsColumn::Base(origin))) => {
            let text = column(&origin.table, &origin.column);
            value_provider.query_values(&text, usize::MAX).map_err(|e| remap_to_part(e, span, None))
        }
        (Some(Choices::Column { span, .. }), Some(OptionsColumn::Named(table, of))) => {
            let text = with(&column(table, of));
            value_provider.query_values(&text, usize::MAX).map_err(|e| remap_to_part(e, span, None))
        }
        (Some(Choices::Column { column, span, .. }), None) => Err(QueryError::in_sql(
            format!("the options `{column}` do not name a column"),
            Some(span.clone()),
            "expected a column",
            "write options=table.column, options=('a', 'b') or options=(SELECT …)",
        )),
        (None, _) if infer => {
            let origin = usage.compared_with.iter().find_map(|c| match c {
                ComparedWith::Column(origin) => Some(origin),
                _ => None,
            });
            let Some(origin) = origin else { return Ok(None) };
            let text = column(&origin.table, &origin.column);
            let values = value_provider.query_values(&text, MAX_INFERRED + 1)?;
            Ok(values.filter(|v| v.len() <= MAX_INFERRED && !v.is_empty()))
        }
        (None | Some(Choices::RowList(_)), _) => Ok(None),
    }
}

/// Maps an error in SQL that was built from a part of the query back to that part. If the part was
/// copied to the offset `copied_at`, the span is exact. Otherwise the span covers the whole part.
fn remap_to_part(error: QueryError, part: &Range<usize>, copied_at: Option<usize>) -> QueryError {
    let QueryError::Sql(problem) = error else { return error };
    let exact_span = problem.span.as_ref().zip(copied_at).and_then(|(span, begins)| {
        let start = span.start.checked_sub(begins)? + part.start;
        let end = span.end.checked_sub(begins)? + part.start;
        (end <= part.end).then_some(start..end)
    });
    let span = Some(exact_span.unwrap_or_else(|| part.clone()));
    QueryError::Sql(Box::new(Problem { span, ..*problem }))
}

/// Returns the WITH clause for SQL that runs separately for a call: the common table expressions
/// that the SQL names, directly or indirectly. Excludes common table expressions that contain or
/// follow the call.
fn build_with_clause(sql: &str, parsed: &ParsedQuery, call: &Call, separate_sql: &str) -> String {
    let all = &parsed.query.with;
    let contains_call =
        |span: &Range<usize>| span.start <= call.span.start && call.span.end <= span.end;
    let end = all.iter().position(|c| contains_call(&c.query.span)).unwrap_or(all.len());
    let mut text = separate_sql.to_owned();
    let mut ctes: Vec<String> = Vec::new();
    for cte in all[..end].iter().rev() {
        if !mentions_name(&text, &cte.name) {
            continue;
        }
        let columns = if cte.columns.is_empty() {
            String::new()
        } else {
            format!("({})", hqdl_values::sql::quote_names("", &cte.columns))
        };
        let query = &sql[cte.query.span.clone()];
        ctes.push(format!("{}{columns} AS ({query})", hqdl_values::sql::quote_name(&cte.name)));
        text.push_str(query);
    }
    ctes.reverse();
    if ctes.is_empty() { String::new() } else { format!("WITH RECURSIVE {} ", ctes.join(", ")) }
}

/// Returns true if an SQL text contains a name as a whole word, ignoring case.
pub(in crate::query) fn mentions_name(sql: &str, column: &str) -> bool {
    let (sql, column) = (sql.to_lowercase(), column.to_lowercase());
    sql.match_indices(&column).any(|(at, _)| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        !sql[..at].chars().next_back().is_some_and(word)
            && !sql[at + column.len()..].chars().next().is_some_and(word)
    })
}
