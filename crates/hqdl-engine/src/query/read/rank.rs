//! Rewrites `LLMRank` as an `LLMMap` that returns a score, and `LLMTopK` as an aggregate over the
//! scores.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMRank('q', t.c)}}` | `{{LLMMap('q (a number …)', t.c, return_type='float')}}` |
//! | `{{LLMTopK('q', t.c, 3)}}` | `hq_best(t.c, {{LLMRank('q', t.c)}}, 3)` |
//! | `{{LLMTopK('q', (SELECT c FROM t), 3)}}` | `(… SELECT hq_best(c, {{LLMRank('q', c)}}, 3) FROM …)` |

use crate::query::read::arguments::{
    ArgumentNames, BuiltInMacro, MEDIA, MacroNode, format_keyword_arguments,
};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::macros::MacroSuffix;
use hqdl_sql::blendsql::runtime::BEST_AGGREGATE;
use hqdl_sql::blendsql::{MacroSignature, Subject};
use hqdl_sql::{EditText, Edits};
use hqdl_values::sql;

/// The macro `LLMRank`.
pub(super) const RANK: BuiltInMacro = BuiltInMacro {
    signature: MacroSignature::new(Subject::Value, true),
    usage: Some((
        "ORDER BY {{LLMRank('How funny is it?', t.joke)}} DESC, t.joke LIMIT 3",
        "a score from 0 to 10 of the value of each row. Keyword arguments: context, model, {media}",
    )),
    expand: |node, _| node.rewrite_rank(),
};

/// The macro `LLMTopK`.
pub(super) const TOP_K: BuiltInMacro = BuiltInMacro {
    signature: MacroSignature {
        suffix: MacroSuffix::Filter,
        ..MacroSignature::new(Subject::Document, true)
    },
    usage: Some((
        "{{LLMTopK('How funny is it?', t.joke, 3)}}",
        "the JSON list of the best values of a group. Keyword arguments: model, {media}",
    )),
    expand: |node, _| node.rewrite_top_k(),
};

/// Scale of a score, appended to the criterion.
const SCALE: &str = " (a number from 0 to 10; 10 is the best)";

impl MacroNode<'_> {
    /// Returns the edits that rewrite a ranking as an `LLMMap` that returns a score.
    fn rewrite_rank(&self) -> Result<Edits, QueryError> {
        let arguments: [ArgumentNames<'_>; 5] =
            [&["question", "criterion"], &["value", "values"], &["context"], &["model"], MEDIA];
        let [question, value, ..] = self.match_all_arguments(arguments)?;
        let criterion = question.and_then(|question| question.text_content(self.text));
        let (Some(question), Some(criterion)) = (question, criterion) else {
            return Err(self.missing_argument_error("a text as its criterion"));
        };
        value.ok_or_else(|| self.missing_argument_error("a value"))?;
        let head = format!("LLMMap({}, ", format_score_arguments(&criterion));
        let mut edits = Edits::default();
        edits.replace(self.head_span(), head);
        edits.replace(question.full_span(), "");
        Ok(edits)
    }

    /// Returns the edit that replaces an `LLMTopK` call with an aggregate.
    fn rewrite_top_k(&self) -> Result<Edits, QueryError> {
        let arguments: [ArgumentNames<'_>; 5] =
            [&["question", "criterion"], &["value", "values"], &["k"], &["model"], MEDIA];
        let [question, value, k, model, media] = self.match_all_arguments(arguments)?;
        let criterion = question
            .and_then(|question| question.text_content(self.text))
            .ok_or_else(|| self.missing_argument_error("a text as its criterion"))?;
        let value = value.ok_or_else(|| self.missing_argument_error("a value"))?;
        let k = k.ok_or_else(|| self.missing_argument_error("the number of values"))?;
        let k = EditText::from(k.span());
        let others =
            format_keyword_arguments([(model, "model"), (media, self.media_keyword(media))]);
        let question = format_score_arguments(&criterion);
        // If `k` is 0, no value is returned, so do not ask for scores.
        let best = |value: EditText| {
            EditText::concat([
                format!("{BEST_AGGREGATE}(").into(),
                value.clone(),
                ", CASE WHEN (".into(),
                k.clone(),
                format!(") > 0 THEN {{{{LLMMap({question}, ").into(),
                value,
                others,
                ")}} END, ".into(),
                k,
                ")".into(),
            ])
        };
        let written = if let Some(query) = value.query_span(self.text) {
            self.reject_filter_of_query()?;
            EditText::concat([
                "(WITH hq_ranked(hq_text) AS ".into(),
                query.into(),
                " SELECT ".into(),
                best("hq_text".into()),
                " FROM hq_ranked)".into(),
            ])
        } else {
            EditText::concat([best(self.value_sql(value)), self.filter_sql()])
        };
        let mut edits = Edits::default();
        edits.replace(self.call.span.clone(), written);
        Ok(edits)
    }
}

/// Returns the arguments of the `LLMMap` call: the question that asks for a score, and the return
/// type.
fn format_score_arguments(criterion: &str) -> String {
    format!("{}, return_type='float'", sql::quote_text(&format!("{criterion}{SCALE}")))
}
