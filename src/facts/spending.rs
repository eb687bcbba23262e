//! What was spent when, over all runs.

use super::{FactsError, Journal};

/// What an hour cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hour {
    /// Its beginning, UTC: `2026-11-21T09`.
    pub hour: String,
    /// USD.
    pub usd: f64,
    /// Tokens, input and output.
    pub tokens: u64,
    /// Requests that were answered.
    pub requests: u64,
}

impl Journal {
    /// The hours since a moment (RFC 3339, UTC) in which something was spent.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn hours_since(&self, since: &str) -> Result<Vec<Hour>, FactsError> {
        self.run(|c| {
            c.prepare_cached(
                "SELECT substr(asked_at, 1, 13), sum(cost_usd), sum(input_tokens + output_tokens), count(*)
                 FROM completion WHERE asked_at >= ?1 GROUP BY 1 ORDER BY 1",
            )?
            .query_map([since], |r| {
                Ok(Hour { hour: r.get(0)?, usd: r.get(1)?, tokens: r.get(2)?, requests: r.get(3)? })
            })?
            .collect()
        })
    }
}
