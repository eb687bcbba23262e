//! Writes the values of an `LLMReduce` as an aggregate: an argument of the call.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMReduce('q', t.c)}}` | `{{LLMReduce('q', hq_texts(t.c))}}` |
//! | `{{LLMReduce('q', t.c)}} FILTER (WHERE …)` | `{{LLMReduce('q', hq_texts(t.c) FILTER (WHERE …))}}` |
//! | `{{LLMReduce('q', (SELECT c FROM t))}}` | `{{LLMReduce('q', (… SELECT hq_texts(c) FROM …))}}` |

use std::ops::Range;

use crate::query::read::arguments::{ArgumentNames, CallArgument, CallText};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::lexer::Token;
use hqdl_sql::blendsql::runtime::Function;
use hqdl_sql::blendsql::split_legacy_column;
use hqdl_values::sql;

impl CallText<'_> {
    /// Returns the edits that turn the values of the call into an aggregate. `rest` contains the
    /// tokens after the call.
    pub(super) fn rewrite_reduce(
        &self,
        rest: &[Token],
    ) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        let arguments: [ArgumentNames<'_>; 2] = [&["question"], &["value", "values"]];
        let (matched, others) = self.match_arguments(&arguments)?;
        let [question, Some(value)] = matched[..] else {
            let help = "write {{LLMReduce('…', t.column)}}";
            let name = self.name_token.text(self.text);
            let message = format!("`{name}` has no values to reduce");
            return Err(self.error_at_name(message, "needs a column or an expression", help));
        };
        reject_window(self, rest)?;
        self.reject_bare_parameters(Some(value))?;
        // Write the values last, so that a FILTER after the call can follow them.
        let mut head = "LLMReduce(".to_owned();
        let mut edits = Vec::new();
        for argument in question.into_iter().chain(others) {
            let span = argument.full_span.start..argument.span().end;
            head.push_str(self.text.get(span).unwrap_or_default());
            head.push_str(", ");
        }
        let span = value.span();
        edits.push((self.name_token.start..span.start, head));
        let texts = Function::Texts.name();
        let filter_end = find_filter_end(self.text, rest);
        if is_query(self.text, value) {
            if filter_end.is_some() {
                return Err(QueryError::in_sql(
                    "a query in `LLMReduce` has no FILTER",
                    rest.first().map(|token| token.span()),
                    "its rows are those of the query",
                    "write the condition into its WHERE",
                ));
            }
            edits.push((span.start..span.start, "(WITH hq_reduced(hq_text) AS ".to_owned()));
            let end = format!(" SELECT {texts}(hq_text) FROM hq_reduced))}}}}");
            edits.push((span.end..self.end_offset, end));
            return Ok(edits);
        }
        edits.push((span.start..span.start, format!("{texts}(")));
        if let Some(column) = column_sql(self.text, value) {
            edits.push((span.clone(), column));
        }
        match filter_end {
            Some(end) => {
                edits.push((span.end..self.end_offset, ")".to_owned()));
                edits.push((end..end, ")}}".to_owned()));
            }
            None => edits.push((span.end..self.end_offset, "))}}".to_owned())),
        }
        Ok(edits)
    }
}

/// Rejects a call that is used as a window function.
pub(super) fn reject_window(call: &CallText<'_>, rest: &[Token]) -> Result<(), QueryError> {
    let over = rest.first().filter(|token| token.is_word(call.text, "OVER"));
    over.map_or(Ok(()), |over| {
        Err(QueryError::in_sql(
            format!("`{}` is not a window function", call.name_token.text(call.text)),
            Some(over.span()),
            "windows are not supported",
            "use GROUP BY, and join its rows to the others",
        ))
    })
}

/// Returns the column that a text such as `'t::c'` names.
pub(super) fn column_sql(text: &str, argument: &CallArgument) -> Option<String> {
    let (table, column) = split_legacy_column(&argument.text_content(text)?)?;
    Some(format!("{}.{}", sql::quote_name(&table), sql::quote_name(&column)))
}

/// Returns true if an argument is a query in parentheses.
pub(super) fn is_query(text: &str, argument: &CallArgument) -> bool {
    let is_word =
        |token: &Token| ["SELECT", "WITH", "VALUES"].iter().any(|word| token.is_word(text, word));
    let tokens = argument.tokens.as_slice();
    let closes_last = matches!(tokens, [open, .., _] if open.is_symbol(b'('))
        && closing_position(tokens, 0) == Some(tokens.len() - 1);
    closes_last && tokens.get(1).is_some_and(is_word)
}

/// Returns the end of the FILTER with which the tokens begin, if there is one.
fn find_filter_end(text: &str, tokens: &[Token]) -> Option<usize> {
    let filter = tokens.first().filter(|token| token.is_word(text, "FILTER"));
    filter.and(tokens.get(1)).filter(|token| token.is_symbol(b'('))?;
    closing_position(tokens, 1).map(|at| tokens[at].end)
}

/// Returns the index of the parenthesis that closes the one at `open`.
fn closing_position(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.is_symbol(b'(') {
            depth += 1;
        } else if token.is_symbol(b')') {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}
