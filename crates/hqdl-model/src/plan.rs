//! The plan of a run: missing cells grouped into row batches, with tokens, price and time. Making a
//! plan sends no requests.

mod meter;
mod pace;
mod room;
mod shape;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

pub use self::meter::Meter;
pub use self::pace::{Pace, reasoning};
pub use self::room::{Beyond, BudgetLeft};
pub use self::shape::RequestShape;
use hqdl_facts::Reason;
use hqdl_spec::{Expansion, Limits, PriceTable};
use hqdl_values::Row;
use hqdl_values::key::Entity;

/// Tokens of the message envelope of a chat request.
const ENVELOPE: u64 = 11;
/// Maximum number of open batches with different missing columns. Beyond it, the fullest batch is
/// emitted early, so that memory stays bounded.
const OPEN_BATCHES: usize = 64;
/// Maximum duration of a batch in seconds.
const BATCH_SECONDS: f64 = 24.0 * 60.0 * 60.0;
/// Assumed maximum number of items in a cell with several values.
pub const MOST_ITEMS: u64 = 15;

/// A row with missing cells.
#[derive(Debug, Clone, PartialEq)]
pub struct MissingRow {
    /// Its key and context.
    pub row: Row,
    /// The entity of the row.
    pub entity: Entity,
}

/// Rows that share a request. They lack the same columns and show the same part of the key.
#[derive(Debug, Clone, PartialEq)]
pub struct RowBatch {
    /// Positions of the requested columns.
    pub columns: Vec<usize>,
    /// Positions of all columns that the rows' sources ask for. A recording of whole rows answers
    /// these.
    pub whole: Vec<usize>,
    /// The rows with missing cells.
    pub gaps: Vec<MissingRow>,
}

/// Groups missing rows into batches.
#[derive(Debug)]
pub struct Batcher<'e> {
    expansion: &'e Expansion,
    rows: usize,
    open: BTreeMap<Lacking<'e>, Vec<MissingRow>>,
}

/// The requested columns, all columns of the row, and the part of the key that is shown.
type Lacking<'e> = (Vec<usize>, Vec<usize>, Option<&'e [usize]>);

impl<'e> Batcher<'e> {
    /// Creates a batcher for batches of at most `rows` rows.
    #[must_use]
    pub fn new(expansion: &'e Expansion, rows: u32) -> Self {
        Self { expansion, rows: rows.max(1) as usize, open: BTreeMap::new() }
    }

    /// Adds a missing row. Returns a batch if one is full.
    pub fn push(
        &mut self,
        columns: Vec<usize>,
        whole: Vec<usize>,
        gap: MissingRow,
    ) -> Option<RowBatch> {
        let lacking = (columns, whole, self.expansion.part_of(&gap.row.key));
        let gaps = match self.open.get_mut(&lacking) {
            Some(gaps) => gaps,
            None => self.open.entry(lacking.clone()).or_default(),
        };
        gaps.push(gap);
        if gaps.len() >= self.rows {
            return self.take(&lacking);
        }
        if self.open.len() > OPEN_BATCHES {
            let fullest = self.open.iter().max_by_key(|(_, g)| g.len()).map(|(c, _)| c.clone())?;
            return self.take(&fullest);
        }
        None
    }

    /// Returns the batches that are not full.
    #[must_use]
    pub fn finish(self) -> Vec<RowBatch> {
        let cut = |((columns, whole, _), gaps)| RowBatch { columns, whole, gaps };
        self.open.into_iter().map(cut).collect()
    }

    fn take(&mut self, lacking: &Lacking<'e>) -> Option<RowBatch> {
        let gaps = self.open.remove(lacking)?;
        let (columns, whole, _) = lacking.clone();
        Some(RowBatch { columns, whole, gaps })
    }
}

/// A number as low, likely and maximum estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Range3 {
    /// Estimated minimum.
    pub low: f64,
    /// Most likely value.
    pub likely: f64,
    /// Estimated maximum.
    pub most: f64,
}

impl Range3 {
    fn new(low: f64, likely: f64, most: f64) -> Self {
        Self { low, likely, most }
    }

    /// Adds `n` times another range.
    pub fn add(&mut self, other: Self, n: f64) {
        self.low += other.low * n;
        self.likely += other.likely * n;
        self.most += other.most * n;
    }
}

/// The plan of one expansion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpansionPlan {
    /// Name of the expansion.
    pub name: String,
    /// Name of the model to ask.
    pub model: String,
    /// Price of its requests, in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Number of its entities.
    pub keys: u64,
    /// Number of published rows whose key is no longer in a source.
    pub orphaned: u64,
    /// Its columns, in the order of the spec.
    pub columns: Vec<ColumnPlan>,
    /// Number of requests.
    pub requests: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Input tokens that repeat the prefix of an earlier request.
    pub repeated_tokens: u64,
    /// Maximum number of additional input tokens.
    pub maybe_input: u64,
    /// Output tokens.
    pub output_tokens: Range3,
    /// Its requests, by columns and number of rows.
    pub shapes: Vec<(Vec<usize>, RequestShape)>,
}

/// The plan of one column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnPlan {
    /// Name of the column.
    pub name: String,
    /// Number of known cells.
    pub known: u64,
    /// Number of cells that a user has overridden.
    pub overridden: u64,
    /// Number of cells to ask for, by reason.
    pub missing: BTreeMap<Reason, u64>,
}

impl ColumnPlan {
    /// Returns the number of cells to ask for.
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.missing.values().sum()
    }
}

/// The plan of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The plan of each expansion.
    pub expansions: Vec<ExpansionPlan>,
    /// Whether tokens were counted with the model's own tokenizer.
    pub counted: bool,
    /// Whether all expansions have a price.
    pub priced: bool,
    /// Price in USD.
    pub cost_usd: Range3,
    /// Sources of prices that the spec does not set ([`Spec::price_notes`]).
    ///
    /// [`Spec::price_notes`]: hqdl_spec::Spec::price_notes
    pub price_notes: Vec<String>,
    /// The rest of the budget.
    pub room: BudgetLeft,
    /// Duration in seconds, under the rate limits.
    pub seconds: f64,
    /// Whether a request that exceeds the budget is split.
    pub splits: bool,
}

impl Plan {
    /// Returns the number of cells to ask for.
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.expansions.iter().flat_map(|e| &e.columns).map(ColumnPlan::cells).sum()
    }

    /// Returns the number of requests to send.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.expansions.iter().map(|e| e.requests).sum()
    }

    /// Returns the input tokens.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens).sum()
    }

    /// Returns the maximum number of input tokens.
    #[must_use]
    pub fn most_input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens + e.maybe_input).sum()
    }

    /// Returns the output tokens.
    #[must_use]
    pub fn output_tokens(&self) -> Range3 {
        let mut sum = Range3::default();
        self.expansions.iter().for_each(|e| sum.add(e.output_tokens, 1.0));
        sum
    }

    /// Computes the price and the duration. The duration is 0 without a throughput estimate, as for
    /// batches, whose answers are not waited for.
    pub fn price(&mut self, limits: &Limits, pace: Option<Pace>) {
        let (input, output) = (self.input_tokens() as f64, self.output_tokens());
        self.priced = self.expansions.iter().all(|e| e.price.is_some());
        self.splits = true;
        self.cost_usd = Range3::default();
        self.expansions.iter().for_each(|e| self.cost_usd.add(e.cost_usd(), 1.0));
        let requests = self.requests() as f64;
        let per_minute =
            |used: f64, limit: Option<u32>| limit.map_or(0.0, |l| used / f64::from(l) * 60.0);
        self.seconds = pace.map_or(0.0, |pace| {
            let at_once = requests.min(f64::from(limits.concurrency)).max(1.0);
            (pace.seconds(requests, output.likely) / at_once)
                .max(per_minute(requests, limits.requests_per_minute))
                .max(per_minute(input + output.likely, limits.tokens_per_minute))
        });
    }

    /// Computes the price and the duration for the Batch API instead of live requests.
    pub fn batch(&mut self, limits: &Limits) {
        for expansion in &mut self.expansions {
            expansion.price = expansion.price.as_ref().map(PriceTable::batched);
        }
        self.price(limits, None);
        self.splits = false;
        self.seconds = BATCH_SECONDS;
    }

    /// Returns the plan as JSON for `plan --json`, a stable contract.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let output = self.output_tokens();
        let expansions: Vec<Json> = self
            .expansions
            .iter()
            .map(|e| {
                let columns: Vec<Json> = e
                    .columns
                    .iter()
                    .map(|c| {
                        let missing: serde_json::Map<String, Json> =
                            Reason::ALL.iter().map(|r| (r.name().to_owned(), c.missing.get(r).copied().unwrap_or(0).into())).collect();
                        json!({ "column": c.name, "cells": c.cells(), "known": c.known, "overridden": c.overridden, "reasons": missing })
                    })
                    .collect();
                json!({
                    "expansion": e.name, "model": e.model, "keys": e.keys, "orphaned": e.orphaned, "columns": columns,
                    "requests": e.requests, "input_tokens": e.input_tokens,
                    "output_tokens": e.output_tokens.likely.round() as u64,
                })
            })
            .collect();
        json!({
            "expansions": expansions,
            "budget": self.budget_json(),
            "price_notes": self.price_notes,
            "totals": {
                "cells": self.cells(), "requests": self.requests(), "input_tokens": self.input_tokens(),
                "output_tokens": output.likely.round() as u64,
                "cost_usd": { "low": self.cost_usd.low, "likely": self.cost_usd.likely, "most": self.cost_usd.most },
                "seconds": self.seconds, "tokens_counted": self.counted,
            },
        })
    }
}
