//! Rewrites `nearest` and `search` as aggregates over the values of a column.
//!
//! | written | read as |
//! |---|---|
//! | `nearest(x, u.d, 3)` | `(SELECT hq_nearest(v, similarity(x, v), 3) FROM (SELECT DISTINCT u.d AS v FROM u))` |
//! | `search(u.d, x, 3)` | `(SELECT hq_search(v, x, 3, 'words', NULL) FROM (SELECT DISTINCT u.d AS v FROM u))` |
//! | `nearest(x, (SELECT …), 3)` | the same, over the rows of the query |

use crate::query::read::arguments::{ArgumentNames, MacroNode};
use crate::query::request::error::QueryError;
use hqdl_spec::ingredients::{SearchBy, SearchTable};
use hqdl_sql::blendsql::SEARCH;
use hqdl_sql::blendsql::lexer::{Token, TokenKind};
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::blendsql::runtime::{NEAREST_AGGREGATE, SEARCH_AGGREGATE};
use hqdl_sql::{EditText, Edits};
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

/// Source of the values that a call compares.
pub(super) enum ValueSource {
    /// A query in parentheses, and the name of its table. The name appears in the message of
    /// `SQLite` about a query that returns several columns.
    Query(EditText, &'static str),
    /// A column and its table.
    Column { column: String, table: String },
}

impl ValueSource {
    /// Returns the values that a spec names: a query, or `table.column`.
    pub(super) fn from_search(search: &SearchTable) -> Self {
        let query = match search.column() {
            // The query may end with a comment.
            None => format!("({}\n)", search.values.trim()),
            Some((table, column)) => {
                let (table, column) = (sql::quote_name(table), sql::quote_name(column));
                // Qualify the column, because SQLite reads an unknown double-quoted name as a text.
                format!("(SELECT {table}.{column} FROM {table})")
            }
        };
        Self::Query(query.into(), "hq_spec_values")
    }

    /// Returns a query for the `k` values that match a text best, as a JSON list.
    pub(super) fn search_sql(&self, text: EditText, k: EditText, by: SearchBy) -> EditText {
        let similarity = match by {
            SearchBy::Words => "NULL".into(),
            SearchBy::Embeddings | SearchBy::Both => similarity_sql(text.clone(), k.clone()),
        };
        self.aggregate_sql(EditText::concat([
            format!("{SEARCH_AGGREGATE}(hq_value, ").into(),
            text,
            ", ".into(),
            k,
            format!(", {}, ", sql::quote_text(by.name())).into(),
            similarity,
            ")".into(),
        ]))
    }

    /// Returns a query that evaluates an aggregate over the distinct values, which are named
    /// `hq_value`.
    fn aggregate_sql(&self, aggregate: EditText) -> EditText {
        match self {
            Self::Query(query, name) => EditText::concat([
                format!("(WITH {name}(hq_value) AS ").into(),
                query.clone(),
                " SELECT ".into(),
                aggregate,
                format!(" FROM (SELECT DISTINCT hq_value FROM {name}))").into(),
            ]),
            Self::Column { column, table } => EditText::concat([
                "(SELECT ".into(),
                aggregate,
                format!(" FROM (SELECT DISTINCT {column} AS hq_value FROM {table}))").into(),
            ]),
        }
    }
}

impl MacroNode<'_> {
    /// Returns the edit that replaces a call to `nearest` or `search`.
    pub(super) fn rewrite_value_function(&self) -> Result<Edits, QueryError> {
        let written = if self.written.name.is_word(self.text, SEARCH) {
            self.build_search_sql()?
        } else {
            self.build_nearest_sql()?
        };
        // Wrap the query in a function, because a query as options would be evaluated once instead
        // of for each row.
        let written = if self.is_option_list {
            EditText::concat(["json(".into(), written, ")".into()])
        } else {
            written
        };
        let mut edits = Edits::default();
        edits.replace(self.call.span.clone(), written);
        Ok(edits)
    }

    fn build_nearest_sql(&self) -> Result<EditText, QueryError> {
        let arguments: [ArgumentNames<'_>; 3] = [&["text"], &["values"], &["k"]];
        let [text, values, k] = self.match_all_arguments(arguments)?;
        let needed = "a text, a column of values and the number of values";
        let (Some(text), Some(values), Some(k)) = (text, values, k) else {
            return Err(self.missing_argument_error(needed));
        };
        let aggregate = EditText::concat([
            format!("{NEAREST_AGGREGATE}(hq_value, ").into(),
            similarity_sql(text.span().into(), k.span().into()),
            ", ".into(),
            k.span().into(),
            ")".into(),
        ]);
        Ok(self.parse_value_source(values)?.aggregate_sql(aggregate))
    }

    fn build_search_sql(&self) -> Result<EditText, QueryError> {
        let arguments: [ArgumentNames<'_>; 4] = [&["values"], &["text"], &["k"], &["by"]];
        let [values, text, k, by] = self.match_all_arguments(arguments)?;
        let needed = "a column of values, a text to search for and the number of values";
        let (Some(values), Some(text), Some(k)) = (values, text, k) else {
            return Err(self.missing_argument_error(needed));
        };
        let by_text = by.map_or(Some("words".to_owned()), |by| by.text_content(self.text));
        let by = by_text.as_deref().and_then(SearchBy::from_name).ok_or_else(|| {
            QueryError::in_sql(
                "`search` cannot search by this",
                by.map(WrittenArgument::span),
                "expected 'words', 'embeddings' or 'both'",
                "",
            )
        })?;
        let source = self.parse_value_source(values)?;
        Ok(source.search_sql(text.span().into(), k.span().into(), by))
    }

    /// Returns the error for values that come from a column of a subquery or table function.
    fn derived_values_error(&self, values: &WrittenArgument, column: &str) -> QueryError {
        let name = self.name();
        QueryError::in_sql(
            format!("the values of `{name}` are those of a subquery or of a function in FROM"),
            Some(values.span()),
            "expected a column of a table",
            format!("repeat it in the call, as in (SELECT {column} FROM …)"),
        )
    }

    /// Returns the values that an argument names: a column or a query.
    pub(super) fn parse_value_source(
        &self,
        values: &WrittenArgument,
    ) -> Result<ValueSource, QueryError> {
        if let Some(query) = values.query_span(self.text) {
            let is_search = self.written.name.is_word(self.text, SEARCH);
            let name = if is_search { "hq_searched" } else { "hq_values" };
            return Ok(ValueSource::Query(query.into(), name));
        }
        if let Some((table, column)) = values.column_names(self.text) {
            let table = match self.scope.find_source(&table) {
                Some(Some(source)) => source,
                Some(None) => return Err(self.derived_values_error(values, &column)),
                None => sql::quote_name(&table),
            };
            let column = format!("{table}.{}", sql::quote_name(&column));
            return Ok(ValueSource::Column { column, table });
        }
        let is_name =
            |t: &Token| matches!(t.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name);
        if let [schema, dot, table, second, column] = values.tokens.as_slice()
            && [schema, table, column].into_iter().all(is_name)
            && dot.is_symbol(b'.')
            && second.is_symbol(b'.')
        {
            let table = self.part(*schema, *table).to_owned();
            let column = self.part(*schema, *column).to_owned();
            return Ok(ValueSource::Column { column, table });
        }
        let name = self.name();
        Err(QueryError::in_sql(
            format!("the values of `{name}` are neither a column nor a query"),
            Some(values.span()),
            "expected table.column",
            "write products.name, or (SELECT name FROM products WHERE …)",
        ))
    }
}

/// Returns SQL for the similarity of a value to a text. The SQL yields NULL if `k` is 0, so that no
/// text is embedded.
fn similarity_sql(text: EditText, k: EditText) -> EditText {
    EditText::concat([
        "CASE WHEN (".into(),
        k,
        ") > 0 THEN similarity(".into(),
        text,
        ", hq_value) END".into(),
    ])
}
