//! Writes `nearest` and `search` as aggregates over the values of a column.
//!
//! | written | read as |
//! |---|---|
//! | `nearest(x, u.d, 3)` | `(SELECT hq_nearest(v, similarity(x, v), 3) FROM (SELECT DISTINCT u.d AS v FROM u))` |
//! | `search(u.d, x, 3)` | `(SELECT hq_search(v, x, 3, 'words', NULL) FROM (SELECT DISTINCT u.d AS v FROM u))` |
//! | `nearest(x, (SELECT …), 3)` | the same, over the rows of the query |

use crate::query::read::arguments::{ArgumentNames, CallArgument, CallText};
use crate::query::read::enclosing_query::{EnclosingQuery, NamedSource};
use crate::query::read::extract::ExpandPart;
use crate::query::read::reduce::{column_sql, is_query};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::lexer::{Lexeme, Token};
use hqdl_sql::blendsql::runtime::{NEAREST_AGGREGATE, SEARCH_AGGREGATE};
use hqdl_sql::blendsql::{NEAREST, SEARCH};
use hqdl_values::sql;

/// Example of a call and its result, for a model that writes queries.
pub(super) const USAGE: (&str, &str) = (
    "nearest(t.text, products.name, 3)",
    "the JSON list of the values of a column whose meaning is most similar to a text",
);

/// Example of a call and its result, for a model that writes queries.
pub(super) const SEARCH_USAGE: (&str, &str) = (
    "answer(search(documents.text, t.name, 5), 'When was it founded?')",
    "`search` returns the JSON list of the values of a column that share the most words with a text",
);

/// Values that a call compares.
pub(super) enum ValueSource {
    /// A query in parentheses.
    Query(String),
    /// A column and its table.
    Column { column: String, table: String },
}

impl ValueSource {
    /// Returns a query for an aggregate over the distinct values, which are named `hq_value`.
    fn aggregate_sql(&self, aggregate: &str) -> String {
        match self {
            Self::Query(query) => format!(
                "(WITH hq_values(hq_value) AS {query} SELECT {aggregate} FROM (SELECT DISTINCT hq_value FROM hq_values))"
            ),
            Self::Column { column, table } => format!(
                "(SELECT {aggregate} FROM (SELECT DISTINCT {column} AS hq_value FROM {table}))"
            ),
        }
    }
}

/// Returns the call of `nearest` or `search` that begins at the `n`th token.
pub(super) fn parse_value_function<'t>(
    text: &'t str,
    tokens: &[Token],
    n: usize,
) -> Option<CallText<'t>> {
    let [name, paren] = *tokens.get(n..n + 2)? else { return None };
    let before = n.checked_sub(1).map(|before| tokens[before]);
    // A name after `{{` is an ingredient, and one after `.` belongs to a schema.
    let is_other = before.is_some_and(|t| t.is_symbol(b'.') || t.lexeme == Lexeme::Open);
    let is_known = [NEAREST, SEARCH].iter().any(|word| name.is_word(text, word));
    if !is_known || !paren.is_symbol(b'(') || is_other {
        return None;
    }
    let call = CallText::parse_function(text, tokens, n)?;
    // `WITH nearest(a, b) AS (…)` names a table.
    let mut rest = tokens.iter().skip_while(|t| t.start < call.end_offset);
    let is_as = rest.next().is_some_and(|t| t.is_word(text, "AS"));
    let begins_body =
        |t: &Token| t.is_symbol(b'(') || t.is_word(text, "NOT") || t.is_word(text, "MATERIALIZED");
    let is_table = is_as && rest.next().is_some_and(begins_body);
    (!is_table).then_some(call)
}

impl CallText<'_> {
    /// Returns the text that replaces a call of `nearest` or `search`.
    pub(super) fn rewrite_value_function(
        &self,
        query: EnclosingQuery<'_>,
        expand: ExpandPart<'_>,
    ) -> Result<String, QueryError> {
        if self.name_token.is_word(self.text, SEARCH) {
            return self.rewrite_search(query, expand);
        }
        let arguments: [ArgumentNames<'_>; 3] = [&["text"], &["values"], &["k"]];
        let [text, values, k] = self.match_all_arguments(arguments)?;
        let text = text.ok_or_else(|| self.missing_argument_error("a text"))?;
        let values = values.ok_or_else(|| self.missing_argument_error("a column of values"))?;
        let k = k.ok_or_else(|| self.missing_argument_error("the number of values"))?;
        self.reject_bare_parameters(None)?;
        let (text, k) = (expand(text.span())?, expand(k.span())?);
        // The nearest 0 values need no similarity.
        let score = format!("CASE WHEN ({k}) > 0 THEN similarity({text}, hq_value) END");
        let source = self.value_source(values, query, expand)?;
        Ok(source.aggregate_sql(&format!("{NEAREST_AGGREGATE}(hq_value, {score}, {k})")))
    }

    fn rewrite_search(
        &self,
        query: EnclosingQuery<'_>,
        expand: ExpandPart<'_>,
    ) -> Result<String, QueryError> {
        let arguments: [ArgumentNames<'_>; 4] = [&["values"], &["text"], &["k"], &["by"]];
        let [values, text, k, by] = self.match_all_arguments(arguments)?;
        let values = values.ok_or_else(|| self.missing_argument_error("a column of values"))?;
        let text = text.ok_or_else(|| self.missing_argument_error("a text to search for"))?;
        let k = k.ok_or_else(|| self.missing_argument_error("the number of values"))?;
        self.reject_bare_parameters(None)?;
        let (text, k) = (expand(text.span())?, expand(k.span())?);
        let by_text = by.map_or(Some("words".to_owned()), |by| by.text_content(self.text));
        let similarity = match by_text.as_deref() {
            Some("words") => "NULL".to_owned(),
            Some("embeddings" | "both") => {
                format!("CASE WHEN ({k}) > 0 THEN similarity({text}, hq_value) END")
            }
            _ => {
                return Err(QueryError::in_sql(
                    "`search` cannot search by this",
                    by.map(CallArgument::span),
                    "expected 'words', 'embeddings' or 'both'",
                    "",
                ));
            }
        };
        let by = sql::quote_text(&by_text.unwrap_or_default());
        let source = self.value_source(values, query, expand)?;
        let aggregate = format!("{SEARCH_AGGREGATE}(hq_value, {text}, {k}, {by}, {similarity})");
        Ok(source.aggregate_sql(&aggregate))
    }

    /// Returns the SQL of the value of a row.
    pub(super) fn row_value(
        &self,
        value: &CallArgument,
        expand: ExpandPart<'_>,
    ) -> Result<String, QueryError> {
        column_sql(self.text, value).map_or_else(|| expand(value.span()), Ok)
    }

    /// Returns the error for values from the column of a subquery or of a table function.
    fn derived_values_error(&self, values: &CallArgument, column: &Token) -> QueryError {
        let name = self.name_token.text(self.text);
        let column = column.text(self.text);
        QueryError::in_sql(
            format!("the values of `{name}` are those of a subquery or of a function in FROM"),
            Some(values.span()),
            "expected a column of a table",
            format!("repeat it in the call, as in (SELECT {column} FROM …)"),
        )
    }

    /// Returns the values that an argument names: a column or a query.
    pub(super) fn value_source(
        &self,
        values: &CallArgument,
        query: EnclosingQuery<'_>,
        expand: ExpandPart<'_>,
    ) -> Result<ValueSource, QueryError> {
        if is_query(self.text, values) {
            return expand(values.span()).map(ValueSource::Query);
        }
        let part = |first: &Token, last: &Token| {
            self.text.get(first.start..last.end).unwrap_or_default().to_owned()
        };
        let is_name = |t: &Token| matches!(t.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name);
        match values.tokens.as_slice() {
            [table, dot, column] if is_name(table) && dot.is_symbol(b'.') && is_name(column) => {
                let name = table.unquoted_text(self.text);
                let table = match query.find_source(&name, self.open_token.start) {
                    Some(NamedSource::Table(table)) => table,
                    Some(NamedSource::Derived) => {
                        return Err(self.derived_values_error(values, column));
                    }
                    None => part(table, table),
                };
                let column = format!("{table}.{}", column.text(self.text));
                return Ok(ValueSource::Column { column, table });
            }
            [schema, dot, table, second, column]
                if [schema, table, column].into_iter().all(is_name)
                    && dot.is_symbol(b'.')
                    && second.is_symbol(b'.') =>
            {
                let (column, table) = (part(schema, column), part(schema, table));
                return Ok(ValueSource::Column { column, table });
            }
            _ => {}
        }
        if let Some(column) = column_sql(self.text, values)
            && let Some((table, _)) = column.rsplit_once('.')
        {
            let table = table.to_owned();
            return Ok(ValueSource::Column { column, table });
        }
        let name = self.name_token.text(self.text);
        Err(QueryError::in_sql(
            format!("the values of `{name}` are neither a column nor a query"),
            Some(values.span()),
            "expected table.column",
            "write products.name, or (SELECT name FROM products WHERE …)",
        ))
    }
}
