//! Writes an `LLMRank` as the `LLMMap` of a score, and an `LLMTopK` as an aggregate over it.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMRank('q', t.c)}}` | `{{LLMMap('q (a number …)', t.c, return_type='float')}}` |
//! | `{{LLMTopK('q', t.c, 3)}}` | `hq_best(t.c, {{LLMRank('q', t.c)}}, 3)` |
//! | `{{LLMTopK('q', (SELECT c FROM t), 3)}}` | `(… SELECT hq_best(c, {{LLMRank('q', c)}}, 3) FROM …)` |

use std::ops::Range;

use crate::query::read::arguments::{ArgumentNames, CallText};
use crate::query::read::extract::ExpandPart;
use crate::query::read::reduce::{column_sql, is_query, reject_window};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::lexer::Token;
use hqdl_sql::blendsql::runtime::BEST_AGGREGATE;
use hqdl_values::sql;

/// Example of a call and its result, for a model that writes queries.
pub(super) const USAGE: (&str, &str) = (
    "ORDER BY {{LLMRank('How funny is it?', t.joke)}} DESC, t.joke LIMIT 3",
    "a score from 0 to 10 of the value of each row. Keyword arguments: context, model, image",
);

/// Example of a call and its result, for a model that writes queries.
pub(super) const TOP_USAGE: (&str, &str) = (
    "{{LLMTopK('How funny is it?', t.joke, 3)}}",
    "the JSON list of the best values of a group. Keyword arguments: model, image",
);

/// Scale of a score, appended to the criterion.
const SCALE: &str = " (a number from 0 to 10; 10 is the best)";

impl CallText<'_> {
    /// Returns the edits that make a ranking the `LLMMap` of a score.
    pub(super) fn rewrite_rank(&self) -> Result<Vec<(Range<usize>, String)>, QueryError> {
        let arguments: [ArgumentNames<'_>; 5] = [
            &["question", "criterion"],
            &["value", "values"],
            &["context"],
            &["model"],
            &["image"],
        ];
        let [question, value, ..] = self.match_all_arguments(arguments)?;
        let criterion = question.and_then(|question| question.text_content(self.text));
        let (Some(question), Some(criterion)) = (question, criterion) else {
            return Err(self.missing_argument_error("a text as its criterion"));
        };
        value.ok_or_else(|| self.missing_argument_error("a value"))?;
        let head = format!("LLMMap({}, ", format_score_arguments(&criterion));
        Ok(vec![
            (self.name_token.start..self.paren_token.end, head),
            (question.full_span.clone(), String::new()),
        ])
    }

    /// Returns the text that replaces a call for the best values of a group. `rest` contains the
    /// tokens after the call.
    pub(super) fn rewrite_top_k(
        &self,
        rest: &[Token],
        expand: ExpandPart<'_>,
    ) -> Result<String, QueryError> {
        let arguments: [ArgumentNames<'_>; 5] =
            [&["question", "criterion"], &["value", "values"], &["k"], &["model"], &["image"]];
        let [question, value, k, model, image] = self.match_all_arguments(arguments)?;
        let criterion = question
            .and_then(|question| question.text_content(self.text))
            .ok_or_else(|| self.missing_argument_error("a text as its criterion"))?;
        let value = value.ok_or_else(|| self.missing_argument_error("a value"))?;
        let k = k.ok_or_else(|| self.missing_argument_error("the number of values"))?;
        reject_window(self, rest)?;
        // The value is copied, unless it is a query. A copied `?` would get a new number.
        self.reject_bare_parameters(Some(value).filter(|value| is_query(self.text, value)))?;
        let mut others = String::new();
        for (argument, keyword) in [(model, "model"), (image, "image")] {
            let Some(argument) = argument else { continue };
            others.push_str(&format!(", {keyword}={}", expand(argument.span())?));
        }
        let best = |value: &str, k: &str| {
            let score =
                format!("{{{{LLMMap({}, {value}{others})}}}}", format_score_arguments(&criterion));
            // The best 0 values need no score.
            let score = format!("CASE WHEN ({k}) > 0 THEN {score} END");
            format!("{BEST_AGGREGATE}({value}, {score}, {k})")
        };
        let k = expand(k.span())?;
        if is_query(self.text, value) {
            let query = expand(value.span())?;
            let best = best("hq_text", &k);
            return Ok(format!(
                "(WITH hq_ranked(hq_text) AS {query} SELECT {best} FROM hq_ranked)"
            ));
        }
        let value = match column_sql(self.text, value) {
            Some(column) => column,
            None => expand(value.span())?,
        };
        Ok(best(&value, &k))
    }
}

/// Returns the question of a score and its type, as arguments.
fn format_score_arguments(criterion: &str) -> String {
    format!("{}, return_type='float'", sql::quote_text(&format!("{criterion}{SCALE}")))
}
