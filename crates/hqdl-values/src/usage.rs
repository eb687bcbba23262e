//! Usage of runs, columns and requests: tokens and cost.

use serde::{Deserialize, Serialize};

use crate::PriceTable;
use crate::cell::Tally;
use crate::price::ASSUMED_CACHE_WRITE;

/// Number of tokens used by a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Number of input tokens.
    pub input: u64,
    /// Number of input tokens that the endpoint read from its prompt cache.
    pub cached_input: u64,
    /// Number of input tokens that the endpoint wrote to its prompt cache.
    pub cache_write: u64,
    /// Number of input tokens that were recordings.
    pub audio_input: u64,
    /// Number of output tokens.
    pub output: u64,
}

impl Tokens {
    /// Returns the number of cache-write tokens billed at an assumed rate.
    #[must_use]
    pub fn count_assumed_cache_writes(self, price: Option<&PriceTable>) -> u64 {
        if price.is_some_and(|price| price.assumes_cache_write_rate(self.input)) {
            self.cache_write
        } else {
            0
        }
    }

    /// Returns the cost in USD.
    #[must_use]
    pub fn compute_cost(&self, price: &PriceTable) -> f64 {
        let rates = price.find_rates(self.input);
        let audio = self.audio_input.min(self.input);
        let text = self.input - audio;
        let cached = self.cached_input.min(text);
        let cache_writes = self.cache_write.min(text - cached);
        ((text - cached - cache_writes) as f64 * rates.input
            + audio as f64 * rates.audio_input
            + cached as f64 * rates.cached_input
            + cache_writes as f64 * rates.cache_write
            + self.output as f64 * rates.output)
            / 1e6
    }
}

/// Cost and tokens, either spent or reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SpentAmount {
    /// Cost in USD.
    pub usd: f64,
    /// Number of input and output tokens.
    pub tokens: u64,
}

impl SpentAmount {
    /// Returns the maximum cost of a request: every kind of token is billed at the highest rate
    /// that can apply to it.
    #[must_use]
    pub fn worst_case(input: u64, output: u64, price: Option<&PriceTable>) -> Self {
        Self::worst_case_with_audio(input, 0, output, price)
    }

    /// Returns the maximum cost of a request of whose input tokens at most `audio` are recordings.
    #[must_use]
    pub fn worst_case_with_audio(
        input: u64,
        audio: u64,
        output: u64,
        price: Option<&PriceTable>,
    ) -> Self {
        let usd = price.map_or(0.0, |price| {
            let (rates, audio) = (price.find_highest_rates(input), audio.min(input));
            ((input - audio) as f64 * rates.input
                + audio as f64 * rates.audio_input
                + output as f64 * rates.output)
                / 1e6
        });
        Self { usd, tokens: input + output }
    }

    /// Returns the amount for these tokens, with their cost.
    #[must_use]
    pub fn from_tokens(tokens: Tokens, price: Option<&PriceTable>) -> Self {
        Self {
            usd: price.map_or(0.0, |p| tokens.compute_cost(p)),
            tokens: tokens.input + tokens.output,
        }
    }
}

/// Requests that may have been billed although no answer arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UnconfirmedCost {
    /// Number of requests.
    pub requests: u64,
    /// Maximum cost of these requests.
    pub max_spent: SpentAmount,
}

/// Usage of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Number of requests with a reply.
    pub requests: u64,
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Number of input tokens that the endpoint read from its prompt cache.
    pub cached_input_tokens: u64,
    /// Number of input tokens that were written to the endpoint's prompt cache and billed at an
    /// assumed rate.
    pub assumed_cache_writes: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Cost in USD.
    pub cost_usd: f64,
}

impl Usage {
    /// Adds the tokens and the cost of one request.
    pub fn add_request(&mut self, tokens: Tokens, price: Option<&PriceTable>) {
        self.requests += 1;
        self.input_tokens += tokens.input;
        self.cached_input_tokens += tokens.cached_input;
        self.assumed_cache_writes += tokens.count_assumed_cache_writes(price);
        self.output_tokens += tokens.output;
        self.cost_usd += price.map_or(0.0, |price| tokens.compute_cost(price));
    }

    /// Returns a note if part of the cost is assumed.
    #[must_use]
    pub fn price_note(&self) -> Option<String> {
        (self.assumed_cache_writes > 0).then(|| ASSUMED_CACHE_WRITE.to_owned())
    }

    /// Adds another usage to this one.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.input_tokens += other.input_tokens;
        self.cached_input_tokens += other.cached_input_tokens;
        self.assumed_cache_writes += other.assumed_cache_writes;
        self.output_tokens += other.output_tokens;
        self.cost_usd += other.cost_usd;
    }
}

/// Usage of one column. The usage of a request is divided evenly among its columns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ColumnUsage {
    /// Finished cells, by state.
    pub cells: Tally,
    /// Number of requests with a reply that included the column.
    pub requests: u64,
    /// Share of the input tokens.
    pub input_tokens: f64,
    /// Share of the output tokens.
    pub output_tokens: f64,
    /// Share of the cost, in USD.
    pub cost_usd: f64,
}

impl ColumnUsage {
    /// Adds another usage of the column to this one.
    pub fn merge(&mut self, other: &Self) {
        self.cells.merge(&other.cells);
        self.requests += other.requests;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cost_usd += other.cost_usd;
    }

    /// Adds one request. `columns` is the number of its columns, including this one; `cells`
    /// contains the results for this column.
    pub fn add_request(&mut self, cells: &Tally, columns: usize, tokens: Tokens, cost_usd: f64) {
        let share = 1.0 / columns.max(1) as f64;
        self.cells.merge(cells);
        self.requests += 1;
        self.input_tokens += tokens.input as f64 * share;
        self.output_tokens += tokens.output as f64 * share;
        self.cost_usd += cost_usd * share;
    }
}
