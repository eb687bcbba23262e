//! What is used: requests, tokens, money.

use serde::{Deserialize, Serialize};

use crate::PriceTable;
use crate::cell::Tally;
use crate::price::ASSUMED_CACHE_WRITE;

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens.
    pub input: u64,
    /// Those of them that the endpoint had cached.
    pub cached_input: u64,
    /// Those of them that the endpoint wrote to its prompt cache.
    pub cache_write: u64,
    /// Output tokens.
    pub output: u64,
}

impl Tokens {
    /// What they cost, in USD.
    #[must_use]
    pub fn cost(&self, price: &PriceTable) -> f64 {
        let rates = price.rates(self.input);
        let cached = self.cached_input.min(self.input);
        let written = self.cache_write.min(self.input - cached);
        ((self.input - cached - written) as f64 * rates.input
            + cached as f64 * rates.cached_input
            + written as f64 * rates.cache_write
            + self.output as f64 * rates.output)
            / 1e6
    }
}

/// Money and tokens spent, or to be spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// USD.
    pub usd: f64,
    /// Tokens, input and output.
    pub tokens: u64,
}

impl Spent {
    /// Returns the most that a request with so many tokens can cost: every kind of token at
    /// the highest rate that can apply to it.
    #[must_use]
    pub fn worst(input: u64, output: u64, price: Option<&PriceTable>) -> Self {
        let usd = price.map_or(0.0, |price| {
            let rates = price.highest_rates(input);
            (input as f64 * rates.input + output as f64 * rates.output) / 1e6
        });
        Self { usd, tokens: input + output }
    }

    /// What tokens amount to at a price.
    #[must_use]
    pub fn of(tokens: Tokens, price: Option<&PriceTable>) -> Self {
        Self { usd: price.map_or(0.0, |p| tokens.cost(p)), tokens: tokens.input + tokens.output }
    }
}

/// Requests that may have been billed without an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Doubt {
    /// How many.
    pub requests: u64,
    /// What they have cost at the most.
    pub most: Spent,
}

/// What a run has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Requests that got a reply.
    pub requests: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Those of them that the endpoint had cached.
    pub cached_input_tokens: u64,
    /// Those of them that were written to the endpoint's prompt cache and billed at an assumed
    /// rate.
    pub assumed_cache_writes: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Price in USD.
    pub cost_usd: f64,
}

impl Usage {
    /// Counts one more request at its price.
    pub fn add(&mut self, tokens: Tokens, price: Option<&PriceTable>) {
        self.requests += 1;
        self.input_tokens += tokens.input;
        self.cached_input_tokens += tokens.cached_input;
        if price.is_some_and(|price| price.assumes_cache_write(tokens.input)) {
            self.assumed_cache_writes += tokens.cache_write;
        }
        self.output_tokens += tokens.output;
        self.cost_usd += price.map_or(0.0, |price| tokens.cost(price));
    }

    /// Returns a note if a part of the cost is assumed.
    #[must_use]
    pub fn price_note(&self) -> Option<String> {
        (self.assumed_cache_writes > 0).then(|| ASSUMED_CACHE_WRITE.to_owned())
    }

    /// Adds what else was used.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.input_tokens += other.input_tokens;
        self.cached_input_tokens += other.cached_input_tokens;
        self.assumed_cache_writes += other.assumed_cache_writes;
        self.output_tokens += other.output_tokens;
        self.cost_usd += other.cost_usd;
    }
}

/// What one column has used. A request for several columns is shared by them
/// evenly, as it is by their cells.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ColumnUsage {
    /// Cells that ended, by state.
    pub cells: Tally,
    /// Requests that asked for it, alone or with others.
    pub requests: u64,
    /// Its share of the input tokens.
    pub input_tokens: f64,
    /// Its share of the output tokens.
    pub output_tokens: f64,
    /// Its share of the price, in USD.
    pub cost_usd: f64,
}

impl ColumnUsage {
    /// Adds what else it used.
    pub fn merge(&mut self, other: &Self) {
        self.cells.merge(&other.cells);
        self.requests += other.requests;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cost_usd += other.cost_usd;
    }

    /// Counts one more request that asked for so many columns, this one among
    /// them, and how this one's cells ended.
    pub fn add(&mut self, cells: &Tally, columns: usize, tokens: Tokens, cost_usd: f64) {
        let share = 1.0 / columns.max(1) as f64;
        self.cells.merge(cells);
        self.requests += 1;
        self.input_tokens += tokens.input as f64 * share;
        self.output_tokens += tokens.output as f64 * share;
        self.cost_usd += cost_usd * share;
    }
}
