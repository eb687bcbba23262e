//! Reads the arguments by which a join selects the pairs that it asks about.

use std::ops::Range;

use crate::blendsql::argument::token_span;
use crate::blendsql::ingredients::Keyword;
use crate::blendsql::lexer::Token;
use crate::blendsql::{SqlError, answer_arguments};

/// Default of `threshold`, as in `PostgreSQL`'s `pg_trgm`.
const DEFAULT_THRESHOLD: f64 = 0.3;

/// The arguments `block`, `threshold` and `exact`.
#[derive(Default)]
pub(super) struct BlockingArguments {
    is_exact: bool,
    /// Byte range of the last argument that restricts the pairs.
    restricted_by: Option<Range<usize>>,
    threshold: Option<f64>,
}

impl BlockingArguments {
    pub(super) fn read_argument(
        &mut self,
        sql: &str,
        keyword: Keyword,
        tokens: &[Token],
    ) -> Result<(), SqlError> {
        let span = token_span(tokens);
        if keyword == Keyword::Exact {
            self.is_exact = answer_arguments::parse_boolean(sql, tokens, "exact")?;
            return Ok(());
        }
        if keyword == Keyword::Threshold {
            let number = sql.get(span.clone()).and_then(|text| text.parse().ok());
            let number = number.filter(|threshold| (0.0..=1.0).contains(threshold));
            self.threshold = Some(number.ok_or_else(|| {
                let message = "the threshold of `LLMJoin` is not a number from 0 to 1";
                SqlError::new(span.clone(), message, "expected a number such as 0.3")
            })?);
        } else {
            let block = answer_arguments::parse_string(sql, tokens, "`block`")?;
            match block.as_deref() {
                None => return Ok(()),
                Some("trigrams") => {}
                Some(_) => {
                    let error = SqlError::new(
                        span,
                        "`LLMJoin` cannot select pairs by this",
                        "expected 'trigrams'",
                    );
                    return Err(error.with_help(
                        "for embeddings, write similarity(t.a, u.b) >= 0.6 AND {{LLMJoin(t.a, u.b)}}",
                    ));
                }
            }
        }
        self.restricted_by = Some(span);
        Ok(())
    }

    /// Returns the minimum similarity of the pairs that the join asks about; `None` for all pairs.
    pub(super) fn min_similarity(self, is_narrowed: bool) -> Result<Option<f64>, SqlError> {
        let Some(span) = self.restricted_by else { return Ok(None) };
        if self.is_exact || is_narrowed {
            let keyword = if self.is_exact { "exact=true" } else { "narrow" };
            let message = format!("`{keyword}` and `block` contradict each other");
            return Err(SqlError::new(span, message, "restricts the pairs")
                .with_help("remove one of the two"));
        }
        Ok(Some(self.threshold.unwrap_or(DEFAULT_THRESHOLD)))
    }
}
