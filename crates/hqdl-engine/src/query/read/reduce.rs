//! Rewrites the values of an `LLMReduce` call as an aggregate, which becomes the call's argument.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMReduce('q', t.c)}}` | `{{LLMReduce('q', hq_texts(t.c))}}` |
//! | `{{LLMReduce('q', t.c)}} FILTER (WHERE …)` | `{{LLMReduce('q', hq_texts(t.c) FILTER (WHERE …))}}` |
//! | `{{LLMReduce('q', (SELECT c FROM t))}}` | `{{LLMReduce('q', (… SELECT hq_texts(c) FROM …))}}` |

use crate::query::read::arguments::{ArgumentNames, MacroNode};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::blendsql::runtime::Function;
use hqdl_sql::{EditText, Edits};

impl MacroNode<'_> {
    /// Returns the edit that turns the values of an `LLMReduce` call into an aggregate.
    pub(super) fn rewrite_reduce(&self) -> Result<Edits, QueryError> {
        let arguments: [ArgumentNames<'_>; 2] = [&["question"], &["value", "values"]];
        let (matched, others) = self.match_arguments(&arguments)?;
        let [question, Some(value)] = matched[..] else {
            let name = self.name();
            let help = format!("write {{{{{name}('…', t.column)}}}}");
            // If the first argument is a column, it was matched as the question.
            let is_text = |question: &WrittenArgument| question.text_content(self.text).is_some();
            let message = match matched[0] {
                Some(question) if !is_text(question) => format!("`{name}` has no question"),
                _ => format!("`{name}` has no values to reduce"),
            };
            let label = "needs a question, and a column or an expression";
            return Err(self.error_at_name(message, label, &help));
        };
        let mut parts = vec![EditText::from("{{LLMReduce(")];
        for argument in question.into_iter().chain(others) {
            parts.push((argument.full_span().start..argument.span().end).into());
            parts.push(", ".into());
        }
        let query = value.query_span(self.text).map(EditText::from);
        let head = EditText::join(parts, "");
        let written = self.write_reduction(head, query, self.value_sql(value))?;
        let mut edits = Edits::default();
        edits.replace(self.call.span.clone(), written);
        Ok(edits)
    }

    /// Returns the call with the values as an aggregate. `head` is the text before the values, and
    /// `query` is the query that returns them, in parentheses; `None` if they are not a query.
    pub(super) fn write_reduction(
        &self,
        head: EditText,
        query: Option<EditText>,
        value: EditText,
    ) -> Result<EditText, QueryError> {
        let texts = Function::Texts.name();
        let values = match query {
            Some(query) => {
                self.reject_filter_of_query()?;
                EditText::concat([
                    "(WITH hq_reduced(hq_text) AS ".into(),
                    query,
                    format!(" SELECT {texts}(hq_text) FROM hq_reduced)").into(),
                ])
            }
            None => {
                EditText::concat([format!("{texts}(").into(), value, ")".into(), self.filter_sql()])
            }
        };
        Ok(EditText::concat([head, values, ")}}".into()]))
    }

    /// Returns the call's FILTER clause as SQL; empty if there is none.
    pub(super) fn filter_sql(&self) -> EditText {
        let Some(filter) = self.written.filter.clone() else { return EditText::default() };
        EditText::concat([" FILTER (WHERE ".into(), filter.into(), ")".into()])
    }

    /// Rejects a FILTER after a call whose values come from a query.
    pub(super) fn reject_filter_of_query(&self) -> Result<(), QueryError> {
        let Some(filter) = self.written.filter.clone() else { return Ok(()) };
        Err(QueryError::in_sql(
            format!("a query in `{}` has no FILTER", self.name()),
            Some(filter),
            "its rows are those of the query",
            "write the condition into its WHERE",
        ))
    }
}
