//! Writes an `LLMDedup` as questions about pairs of values, and the clusters of the pairs.
//!
//! | part | SQL |
//! |---|---|
//! | values | `SELECT DISTINCT hq_trimmed(t.c) AS v FROM t` |
//! | candidates | `SELECT a.v AS x, b.v AS y FROM (values) AS a JOIN (values) AS b ON a.v < b.v WHERE similarity(a.v, b.v) >= 0.6` |
//! | clusters | `SELECT hq_clusters(x, y, {{LLMMap('…', json_array(x, y))}}) FROM (candidates)` |
//! | result | `hq_canonical('…', count, hq_trimmed(t.c), (clusters))` |

use crate::query::read::arguments::{ArgumentNames, CallArgument, CallText};
use crate::query::read::enclosing_query::EnclosingQuery;
use crate::query::read::extract::ExpandPart;
use crate::query::read::nearest::ValueSource;
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::runtime::{
    CANONICAL_FUNCTION, CLUSTERS_AGGREGATE, TRIGRAMS_FUNCTION, TRIMMED_FUNCTION,
};
use hqdl_values::sql;

/// Example of a call and its result, for a model that writes queries.
pub(super) const USAGE: (&str, &str) = (
    "GROUP BY {{LLMDedup(t.company)}}",
    "one spelling for all values of a column that mean the same thing. Keyword arguments: threshold, \
     question, of, block, exact, model",
);

/// Question about a pair.
const QUESTION: &str = "Do the two texts of {} mean the same thing?";

/// Minimum similarity of a candidate pair by embeddings.
const EMBEDDING_THRESHOLD: f64 = 0.6;

/// Minimum similarity of a candidate pair by trigrams; the default of `pg_trgm`.
const TRIGRAM_THRESHOLD: f64 = 0.3;

impl CallText<'_> {
    /// Returns the text that replaces a call for the canonical value of a row.
    pub(super) fn rewrite_dedup(
        &self,
        query: EnclosingQuery<'_>,
        has_embeddings: bool,
        expand: ExpandPart<'_>,
    ) -> Result<String, QueryError> {
        let arguments: [ArgumentNames<'_>; 7] = [
            &["value"],
            &["threshold"],
            &["question"],
            &["of", "values"],
            &["block"],
            &["exact"],
            &["model"],
        ];
        let [value, threshold, question, of, block, exact, model] =
            self.match_all_arguments(arguments)?;
        let value = value.ok_or_else(|| self.missing_argument_error("a column"))?;
        self.reject_bare_parameters(None)?;
        let question = match question {
            Some(question) => question
                .text_content(self.text)
                .ok_or_else(|| self.missing_argument_error("a text as its question"))?,
            None => QUESTION.to_owned(),
        };
        let model = match model {
            Some(model) => format!(", model={}", expand(model.span())?),
            None => String::new(),
        };
        let block = self.block_condition(threshold, block, exact, has_embeddings)?;
        let values = match self.value_source(of.unwrap_or(value), query, expand)? {
            ValueSource::Query(query) => format!(
                "(WITH hq_values(hq_value) AS {query} SELECT DISTINCT {TRIMMED_FUNCTION}(hq_value) AS v FROM hq_values WHERE {TRIMMED_FUNCTION}(hq_value) IS NOT NULL)"
            ),
            ValueSource::Column { column, table } => format!(
                "(SELECT DISTINCT {TRIMMED_FUNCTION}({column}) AS v FROM {table} WHERE {TRIMMED_FUNCTION}({column}) IS NOT NULL)"
            ),
        };
        let pair = format!(
            "{{{{LLMMap({}, json_array(hq_x, hq_y), return_type='bool'{model})}}}}",
            sql::quote_text(&question)
        );
        let pairs = format!(
            "(SELECT hq_a.v AS hq_x, hq_b.v AS hq_y FROM {values} AS hq_a JOIN {values} AS hq_b ON hq_a.v < hq_b.v{block})"
        );
        let clusters = format!("(SELECT {CLUSTERS_AGGREGATE}(hq_x, hq_y, {pair}) FROM {pairs})");
        let call = sql::quote_text(
            self.text.get(self.open_token.start..self.end_offset).unwrap_or_default(),
        );
        let value = self.row_value(value, expand)?;
        Ok(format!(
            "{CANONICAL_FUNCTION}({call}, (SELECT count(*) FROM {values}), {TRIMMED_FUNCTION}({value}), {clusters})"
        ))
    }

    /// Returns the WHERE clause that candidate pairs meet.
    fn block_condition(
        &self,
        threshold: Option<&CallArgument>,
        block: Option<&CallArgument>,
        exact: Option<&CallArgument>,
        has_embeddings: bool,
    ) -> Result<String, QueryError> {
        let wrong = |argument: &CallArgument, message: &str, label: &str| {
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
                None => Ok(String::new()),
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
        Ok(format!(" WHERE {function}(hq_a.v, hq_b.v) >= {threshold:?}"))
    }
}
