//! What was spent when, over all runs.

use super::{FactsError, Journal};

/// Holds of completions that were paid for. Recordings answer for nothing, and
/// their names say that they are some ([`crate::model::replay`]).
pub(super) const PAID: &str =
    "model NOT IN (SELECT id FROM model WHERE name LIKE '% (recording ________)')";

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
        let sql = format!(
            "SELECT substr(asked_at, 1, 13), sum(cost_usd), sum(input_tokens + output_tokens), count(*)
             FROM completion WHERE asked_at >= ?1 AND {PAID} GROUP BY 1 ORDER BY 1"
        );
        self.run(|c| {
            c.prepare_cached(&sql)?
                .query_map([since], |r| {
                    Ok(Hour {
                        hour: r.get(0)?,
                        usd: r.get(1)?,
                        tokens: r.get(2)?,
                        requests: r.get(3)?,
                    })
                })?
                .collect()
        })
    }
}
