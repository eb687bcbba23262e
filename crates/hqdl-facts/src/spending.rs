//! Spending of all runs over time.

use hqdl_values::ASSUMED_CACHE_WRITE;

/// The cost of one model in one hour.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HourlySpending {
    /// Start of the hour, UTC: `2026-11-21T09`.
    pub hour: String,
    /// Name of the model.
    pub model: String,
    /// Cost in USD.
    pub usd: f64,
    /// Input and output tokens.
    pub tokens: u64,
    /// Number of answered requests.
    pub requests: u64,
}

/// The cost of a column's cells on one day.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnDailyCost {
    /// Date in UTC.
    pub day: String,
    /// The column's identity: [`hqdl_values::key::ColumnIdentity`] as JSON.
    pub identity: String,
    /// Cost in USD.
    pub usd: f64,
    /// Number of answered cells.
    pub cells: u64,
}

/// Totals over the whole history.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Totals {
    /// Number of runs.
    pub runs: u64,
    /// Number of requests sent.
    pub requests: u64,
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Cost in USD.
    pub cost_usd: f64,
    /// Input tokens that were written to the endpoint's prompt cache and billed at an assumed rate.
    pub assumed_cache_writes: u64,
    /// Worst-case cost of requests without an answer, in USD.
    pub in_doubt_usd: f64,
}

impl Totals {
    /// Returns a note if part of the cost is assumed.
    #[must_use]
    pub fn price_note(&self) -> Option<&'static str> {
        (self.assumed_cache_writes > 0).then_some(ASSUMED_CACHE_WRITE)
    }
}
