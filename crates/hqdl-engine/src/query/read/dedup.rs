//! Rewrites `LLMDedup` as questions about pairs of values and an aggregate that clusters the pairs.
//!
//! | part | SQL |
//! |---|---|
//! | values | `SELECT DISTINCT hq_trimmed(t.c) AS v FROM t` |
//! | candidates | `SELECT a.v AS x, b.v AS y FROM (values) AS a JOIN (values) AS b ON a.v < b.v WHERE similarity(a.v, b.v) >= 0.6` |
//! | audited pairs | `SELECT a.v AS x, b.v AS y FROM … WHERE NOT (similarity(a.v, b.v) >= 0.6) ORDER BY hq_pair_order(a.v, b.v) LIMIT 50` |
//! | clusters | `SELECT hq_clusters(x, y, {{LLMMap('…', json_array(x, y))}}, is_candidate) FROM (candidates UNION ALL audited pairs)` |
//! | result | `hq_canonical('…', count, hq_trimmed(t.c), (clusters))` |

use crate::query::read::arguments::{
    ArgumentNames, BuiltInMacro, MacroNode, format_keyword_arguments,
};
use crate::query::read::nearest::ValueSource;
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::macros::WrittenArgument;
use hqdl_sql::blendsql::runtime::{
    CANONICAL_FUNCTION, CLUSTERS_AGGREGATE, PAIR_ORDER_FUNCTION, TRIGRAMS_FUNCTION,
    TRIMMED_FUNCTION,
};
use hqdl_sql::blendsql::{MacroSignature, Subject};
use hqdl_sql::{EditText, Edits};
use hqdl_values::sql;

/// The macro `LLMDedup`.
pub(super) const DEDUP: BuiltInMacro = BuiltInMacro {
    signature: MacroSignature::new(Subject::Document, false),
    usage: Some((
        "GROUP BY {{LLMDedup(t.company)}}",
        "one spelling for all values of a column that mean the same thing. Keyword arguments: threshold, \
     question, of, block, exact, audit_block, model",
    )),
    expand: |node, request| node.rewrite_dedup(request.spec.embeddings.is_some()),
};

/// Question about a pair.
const QUESTION: &str = "Do the two texts of {} mean the same thing?";

/// Minimum embedding similarity of a candidate pair.
const EMBEDDING_THRESHOLD: f64 = 0.6;

/// Minimum trigram similarity of a candidate pair; the same as the default of `pg_trgm`.
const TRIGRAM_THRESHOLD: f64 = 0.3;

impl MacroNode<'_> {
    /// Returns the edit that replaces the call with the canonical value of a row.
    fn rewrite_dedup(&self, has_embeddings: bool) -> Result<Edits, QueryError> {
        let arguments: [ArgumentNames<'_>; 8] = [
            &["value"],
            &["threshold"],
            &["question"],
            &["of", "values"],
            &["block"],
            &["exact"],
            &["model"],
            &["audit_block"],
        ];
        let [value, threshold, question, of, block, exact, model, audit] =
            self.match_all_arguments(arguments)?;
        let value = value.ok_or_else(|| self.missing_argument_error("a column"))?;
        let question = match question {
            Some(question) => question
                .text_content(self.text)
                .ok_or_else(|| self.missing_argument_error("a text as its question"))?,
            None => QUESTION.to_owned(),
        };
        let block = self.build_block_condition(threshold, block, exact, has_embeddings)?;
        let audited = self.parse_audited_pair_limit(audit, block.as_deref())?;
        let values = match self.parse_value_source(of.unwrap_or(value))? {
            ValueSource::Query(query, _) => EditText::concat([
                "(WITH hq_spellings(hq_value) AS ".into(),
                query,
                format!(" SELECT DISTINCT {TRIMMED_FUNCTION}(hq_value) AS v FROM hq_spellings WHERE {TRIMMED_FUNCTION}(hq_value) IS NOT NULL)").into(),
            ]),
            ValueSource::Column { column, table } => format!(
                "(SELECT DISTINCT {TRIMMED_FUNCTION}({column}) AS v FROM {table} WHERE {TRIMMED_FUNCTION}({column}) IS NOT NULL)"
            )
            .into(),
        };
        let call = self.text.get(self.call.span.clone()).unwrap_or_default();
        let question = sql::quote_text(&question);
        let pairs = EditText::concat([
            values.clone(),
            " AS hq_a JOIN ".into(),
            values.clone(),
            " AS hq_b ON hq_a.v < hq_b.v".into(),
        ]);
        let select = |is_candidate: u8, condition: String| {
            let columns = "SELECT hq_a.v AS hq_x, hq_b.v AS hq_y";
            EditText::concat([
                format!("{columns}, {is_candidate} AS hq_is_candidate FROM ").into(),
                pairs.clone(),
                condition.into(),
            ])
        };
        let condition = block.as_ref().map(|block| format!(" WHERE {block}"));
        let mut candidates = select(1, condition.unwrap_or_default());
        if let Some((block, limit)) = block.zip(audited) {
            let order = format!("ORDER BY {PAIR_ORDER_FUNCTION}(hq_a.v, hq_b.v) LIMIT {limit}");
            let sample = select(0, format!(" WHERE NOT ({block}) {order}"));
            candidates = EditText::concat([
                candidates,
                " UNION ALL SELECT * FROM (".into(),
                sample,
                ")".into(),
            ]);
        }
        let written = EditText::concat([
            format!("{CANONICAL_FUNCTION}({}, (SELECT count(*) FROM ", sql::quote_text(call)).into(),
            values.clone(),
            format!("), {TRIMMED_FUNCTION}(").into(),
            self.value_sql(value),
            format!("), (SELECT {CLUSTERS_AGGREGATE}(hq_x, hq_y, {{{{LLMMap({question}, json_array(hq_x, hq_y), return_type='bool'").into(),
            format_keyword_arguments([(model, "model")]),
            ")}}, hq_is_candidate) FROM (".into(),
            candidates,
            ")))".into(),
        ]);
        let mut edits = Edits::default();
        edits.replace(self.call.span.clone(), written);
        Ok(edits)
    }

    /// Returns the number of excluded pairs that an audit asks about; `None` without an audit.
    fn parse_audited_pair_limit(
        &self,
        audit: Option<&WrittenArgument>,
        block: Option<&str>,
    ) -> Result<Option<u32>, QueryError> {
        let Some(audit) = audit else { return Ok(None) };
        let wrong =
            |message: &str, label: &str| QueryError::in_sql(message, Some(audit.span()), label, "");
        if block.is_none() {
            let message = "with `exact=true`, `LLMDedup` excludes no pair that it could audit";
            return Err(wrong(message, "has no effect"));
        }
        let number = audit.literal_content(self.text).and_then(|text| text.parse().ok());
        number.filter(|number| *number > 0).map(Some).ok_or_else(|| {
            let message = "`audit_block` of `LLMDedup` is not a number of pairs";
            wrong(message, "expected a whole number of 1 or more, such as 50")
        })
    }

    /// Returns the condition that selects candidate pairs; `None` if all pairs are candidates.
    fn build_block_condition(
        &self,
        threshold: Option<&WrittenArgument>,
        block: Option<&WrittenArgument>,
        exact: Option<&WrittenArgument>,
        has_embeddings: bool,
    ) -> Result<Option<String>, QueryError> {
        let wrong = |argument: &WrittenArgument, message: &str, label: &str| {
            QueryError::in_sql(message, Some(argument.span()), label, "")
        };
        let is_exact = exact.map_or(Ok(false), |exact| self.parse_flag(exact, "exact"))?;
        if is_exact {
            return match threshold.or(block) {
                Some(argument) => Err(wrong(
                    argument,
                    "with `exact=true`, `LLMDedup` asks about all pairs",
                    "has no effect",
                )),
                None => Ok(None),
            };
        }
        let by_embeddings = match block {
            None => has_embeddings,
            Some(block) => match block.text_content(self.text).as_deref() {
                Some("embeddings") => true,
                Some("trigrams") => false,
                _ => {
                    let label = "expected 'embeddings' or 'trigrams'";
                    return Err(wrong(block, "`block` is unknown", label));
                }
            },
        };
        let (function, default) = if by_embeddings {
            ("similarity", EMBEDDING_THRESHOLD)
        } else {
            (TRIGRAMS_FUNCTION, TRIGRAM_THRESHOLD)
        };
        let threshold = match threshold {
            None => default,
            Some(argument) => argument
                .literal_content(self.text)
                .and_then(|text| text.parse().ok())
                .filter(|threshold| (0.0..=1.0).contains(threshold))
                .ok_or_else(|| {
                    let message = "the threshold of `LLMDedup` is not a number from 0 to 1";
                    wrong(argument, message, "expected a number such as 0.6")
                })?,
        };
        Ok(Some(format!("{function}(hq_a.v, hq_b.v) >= {threshold:?}")))
    }
}
