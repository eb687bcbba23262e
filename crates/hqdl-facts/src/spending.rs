//! What was spent when, over all runs.

/// What an hour cost, of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hour {
    /// Its beginning, UTC: `2026-11-21T09`.
    pub hour: String,
    /// The model.
    pub model: String,
    /// USD.
    pub usd: f64,
    /// Tokens, input and output.
    pub tokens: u64,
    /// Requests that were answered.
    pub requests: u64,
}

/// What the cells of a column cost on a day.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnDay {
    /// Its date, UTC.
    pub day: String,
    /// What the column means: [`hqdl_values::key::Meaning`] as JSON.
    pub meaning: String,
    /// USD.
    pub usd: f64,
    /// Cells that were answered.
    pub cells: u64,
}

/// All that was ever asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Totals {
    /// Runs begun.
    pub runs: u64,
    /// Requests sent.
    pub requests: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Price in USD.
    pub cost_usd: f64,
    /// What requests without an answer may have cost, in USD.
    pub in_doubt_usd: f64,
}
