//! What is to be asked: missing cells cut into batches, with tokens, price and
//! time. A plan is a value one can print; making one asks nothing.

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

/// Tokens that the message envelope of a chat request takes.
const ENVELOPE: u64 = 11;
/// Different sets of missing columns that may be collected side by side; past
/// this the fullest batch goes out early, so that memory stays bounded.
const OPEN_BATCHES: usize = 64;
/// Seconds within which a batch is answered.
const BATCH_SECONDS: f64 = 24.0 * 60.0 * 60.0;
/// Values of a list that a model is taken to give at the most.
pub const MOST_ITEMS: u64 = 15;

/// A row that lacks some cells.
#[derive(Debug, Clone, PartialEq)]
pub struct MissingRow {
    /// Its key and context.
    pub row: Row,
    /// Whom it is about.
    pub entity: Entity,
}

/// Rows that are asked about together: they lack the same columns, and are
/// shown with the same part of the key.
#[derive(Debug, Clone, PartialEq)]
pub struct RowBatch {
    /// Positions of the columns asked for.
    pub columns: Vec<usize>,
    /// Positions of all columns that their sources ask for: what a recording
    /// of whole rows answers.
    pub whole: Vec<usize>,
    /// The rows.
    pub gaps: Vec<MissingRow>,
}

/// Cuts gaps into batches as they come.
#[derive(Debug)]
pub struct Batcher<'e> {
    expansion: &'e Expansion,
    rows: usize,
    open: BTreeMap<Lacking<'e>, Vec<MissingRow>>,
}

/// The columns asked for, the whole row's, and the part of the key that the rows
/// are shown with.
type Lacking<'e> = (Vec<usize>, Vec<usize>, Option<&'e [usize]>);

impl<'e> Batcher<'e> {
    /// Batches of at most `rows` rows of an expansion.
    #[must_use]
    pub fn new(expansion: &'e Expansion, rows: u32) -> Self {
        Self { expansion, rows: rows.max(1) as usize, open: BTreeMap::new() }
    }

    /// Takes a gap in; gives a batch when one is full.
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

    /// The batches that did not fill up.
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

/// A number as low, likely and most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Range3 {
    /// At least about this.
    pub low: f64,
    /// Probably this.
    pub likely: f64,
    /// Hardly more than this.
    pub most: f64,
}

impl Range3 {
    fn new(low: f64, likely: f64, most: f64) -> Self {
        Self { low, likely, most }
    }

    /// Adds `n` times another.
    pub fn add(&mut self, other: Self, n: f64) {
        self.low += other.low * n;
        self.likely += other.likely * n;
        self.most += other.most * n;
    }
}

/// What one expansion lacks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpansionPlan {
    /// Its name.
    pub name: String,
    /// The model that is asked.
    pub model: String,
    /// What is paid for its requests, in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Its entities.
    pub keys: u64,
    /// Rows published whose key is in no source any more.
    pub orphaned: u64,
    /// Its columns, in the spec's order.
    pub columns: Vec<ColumnPlan>,
    /// Requests it takes.
    pub requests: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Those of them that repeat an earlier request's beginning.
    pub repeated_tokens: u64,
    /// Input tokens that may come on top, at the most.
    pub maybe_input: u64,
    /// Output tokens.
    pub output_tokens: Range3,
    /// Its requests, by the columns they ask for and their rows.
    pub shapes: Vec<(Vec<usize>, RequestShape)>,
}

/// What one column lacks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnPlan {
    /// Its name.
    pub name: String,
    /// Cells that are known.
    pub known: u64,
    /// Cells that a person has overridden.
    pub overridden: u64,
    /// Cells to be asked, by reason.
    pub missing: BTreeMap<Reason, u64>,
}

impl ColumnPlan {
    /// Cells to be asked.
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.missing.values().sum()
    }
}

/// What a run would ask.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Expansion by expansion.
    pub expansions: Vec<ExpansionPlan>,
    /// Whether tokens were counted by the model's own tokenizer.
    pub counted: bool,
    /// Whether there is a price.
    pub priced: bool,
    /// Price in USD.
    pub cost_usd: Range3,
    /// Where prices are from that are not the spec's ([`Spec::price_notes`]).
    ///
    /// [`Spec::price_notes`]: hqdl_spec::Spec::price_notes
    pub price_notes: Vec<String>,
    /// What the budget has left.
    pub room: BudgetLeft,
    /// Time under the limits, in seconds.
    pub seconds: f64,
    /// Whether a request that the budget does not hold is asked in parts.
    pub splits: bool,
}

impl Plan {
    /// Cells to be asked.
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.expansions.iter().flat_map(|e| &e.columns).map(ColumnPlan::cells).sum()
    }

    /// Requests to be sent.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.expansions.iter().map(|e| e.requests).sum()
    }

    /// Input tokens.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens).sum()
    }

    /// Input tokens at the most.
    #[must_use]
    pub fn most_input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens + e.maybe_input).sum()
    }

    /// Output tokens.
    #[must_use]
    pub fn output_tokens(&self) -> Range3 {
        let mut sum = Range3::default();
        self.expansions.iter().for_each(|e| sum.add(e.output_tokens, 1.0));
        sum
    }

    /// Puts a price and a time on the tokens: none where there is no pace, since
    /// nobody is waited for.
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

    /// Takes the price and the time of the Batch API for those of live requests.
    pub fn batch(&mut self, limits: &Limits) {
        for expansion in &mut self.expansions {
            expansion.price = expansion.price.as_ref().map(PriceTable::batched);
        }
        self.price(limits, None);
        self.splits = false;
        self.seconds = BATCH_SECONDS;
    }

    /// As the contract of `plan --json`.
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
