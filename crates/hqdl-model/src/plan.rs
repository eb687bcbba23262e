//! The plan of a run: missing cells grouped into row batches, with estimates of tokens, cost and
//! time. Planning sends no requests.

mod cascade;
mod cost_estimator;
mod throughput;
mod budget_left;
mod measured;
mod request_shape;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

pub use self::budget_left::{BudgetLeft, BudgetShortfall};
pub use self::cascade::{AcceptedCells, CascadePlan, CascadeThreshold};
pub use self::cost_estimator::CostEstimator;
pub use self::measured::MeasuredAnswers;
pub(crate) use self::request_shape::ANSWER_HEADROOM;
pub use self::request_shape::RequestShape;
pub use self::throughput::{ThroughputEstimate, describe_reasoning, estimate_reasoning_tokens};
use hqdl_facts::Reason;
use hqdl_spec::{Expansion, Limits, PriceTable};
use hqdl_values::Row;
use hqdl_values::key::Entity;

/// Number of tokens in the message envelope of a chat request.
const ENVELOPE_TOKENS: u64 = 11;
/// Maximum number of open batches with different missing columns. When it is exceeded, the fullest
/// batch is emitted early, so that memory stays bounded.
const OPEN_BATCHES: usize = 64;
/// Maximum duration of a batch in seconds.
const BATCH_SECONDS: f64 = 24.0 * 60.0 * 60.0;
/// Assumed maximum number of items in a cell with several values.
pub const MAX_ITEMS: u64 = 15;

/// A row with missing cells.
#[derive(Debug, Clone, PartialEq)]
pub struct MissingRow {
    /// Key and context of the row.
    pub row: Row,
    /// The entity of the row.
    pub entity: Entity,
}

/// Rows that share a request. They lack the same columns, and their prompts show the same key
/// columns.
#[derive(Debug, Clone, PartialEq)]
pub struct RowBatch {
    /// Positions of the requested columns.
    pub columns: Vec<usize>,
    /// Positions of all columns requested from the rows' sources. A recording of whole rows answers
    /// all of them.
    pub source_columns: Vec<usize>,
    /// The rows with missing cells.
    pub missing_rows: Vec<MissingRow>,
}

/// Groups missing rows into batches.
#[derive(Debug)]
pub struct Batcher<'e> {
    expansion: &'e Expansion,
    rows: usize,
    open: BTreeMap<BatchKey<'e>, Vec<MissingRow>>,
}

/// The requested columns, all columns of the row, and the positions of the shown key columns;
/// `None` if all of them are shown.
type BatchKey<'e> = (Vec<usize>, Vec<usize>, Option<&'e [usize]>);

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
        source_columns: Vec<usize>,
        missing_row: MissingRow,
    ) -> Option<RowBatch> {
        let batch_key = (columns, source_columns, self.expansion.key_part(&missing_row.row.key));
        let missing_rows = match self.open.get_mut(&batch_key) {
            Some(missing_rows) => missing_rows,
            None => self.open.entry(batch_key.clone()).or_default(),
        };
        missing_rows.push(missing_row);
        if missing_rows.len() >= self.rows {
            return self.take_batch(&batch_key);
        }
        if self.open.len() > OPEN_BATCHES {
            let fullest = self.open.iter().max_by_key(|(_, g)| g.len()).map(|(c, _)| c.clone())?;
            return self.take_batch(&fullest);
        }
        None
    }

    /// Returns the batches that are not full.
    #[must_use]
    pub fn finish_batches(self) -> Vec<RowBatch> {
        let to_batch = |((columns, source_columns, _), missing_rows)| RowBatch {
            columns,
            source_columns,
            missing_rows,
        };
        self.open.into_iter().map(to_batch).collect()
    }

    fn take_batch(&mut self, batch_key: &BatchKey<'e>) -> Option<RowBatch> {
        let missing_rows = self.open.remove(batch_key)?;
        let (columns, source_columns, _) = batch_key.clone();
        Some(RowBatch { columns, source_columns, missing_rows })
    }
}

/// An estimate of a number: low, likely and maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Estimated minimum.
    pub low: f64,
    /// Most likely value.
    pub likely: f64,
    /// Estimated maximum.
    pub max: f64,
}

impl Estimate {
    fn new(low: f64, likely: f64, max: f64) -> Self {
        Self { low, likely, max }
    }

    /// Adds `n` times another estimate.
    pub fn add_times(&mut self, other: Self, n: f64) {
        self.low += other.low * n;
        self.likely += other.likely * n;
        self.max += other.max * n;
    }
}

/// The plan of one expansion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpansionPlan {
    /// Name of the expansion.
    pub name: String,
    /// Name of the model to ask.
    pub model: String,
    /// Price of the expansion's requests, in USD per million tokens; `None` if unknown.
    pub price: Option<PriceTable>,
    /// Number of entities of the expansion.
    pub keys: u64,
    /// Number of published rows whose key is no longer in a source.
    pub orphaned: u64,
    /// Columns of the expansion, in the order of the spec.
    pub columns: Vec<ColumnPlan>,
    /// Number of requests to send.
    pub requests: u64,
    /// Number of input tokens of all requests.
    pub input_tokens: u64,
    /// Input tokens that repeat the prefix of an earlier request.
    pub repeated_tokens: u64,
    /// Maximum number of additional input tokens.
    pub extra_input: u64,
    /// Input tokens of the recordings in all requests.
    pub audio_tokens: u64,
    /// Number of output tokens of all requests.
    pub output_tokens: Estimate,
    /// Shapes of the expansion's requests, by requested columns.
    pub shapes: Vec<(Vec<usize>, RequestShape)>,
    /// Figures of earlier requests that the estimates are based on; `None` if they are assumptions.
    pub measured: Option<MeasuredAnswers>,
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
    pub fn cell_count(&self) -> u64 {
        self.missing.values().sum()
    }
}

/// One model's part of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPart {
    /// Name of the model.
    pub model: String,
    /// Number of requests.
    pub requests: u64,
    /// Cost in USD; `None` if it is unknown.
    pub cost_usd: Option<Estimate>,
}

/// The plan of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The plan of each expansion.
    pub expansions: Vec<ExpansionPlan>,
    /// Cascades of the columns with a target.
    pub cascades: Vec<CascadePlan>,
    /// Whether tokens were counted with the model's own tokenizer.
    pub is_counted: bool,
    /// Whether all expansions have a price.
    pub has_price: bool,
    /// Cost of the run in USD.
    pub cost_usd: Estimate,
    /// Sources of prices that the spec does not set ([`Spec::price_notes`]).
    ///
    /// [`Spec::price_notes`]: hqdl_spec::Spec::price_notes
    pub price_notes: Vec<String>,
    /// Rest of the budget.
    pub budget_left: BudgetLeft,
    /// Estimated duration in seconds under the rate limits; 0 if unknown. For batches, the maximum
    /// duration.
    pub seconds: f64,
    /// Whether the run splits requests that exceed the budget.
    pub splits_requests: bool,
}

impl Plan {
    /// Returns the number of cells to ask for.
    #[must_use]
    pub fn cell_count(&self) -> u64 {
        self.expansions.iter().flat_map(|e| &e.columns).map(ColumnPlan::cell_count).sum()
    }

    /// Returns the number of requests to send.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.expansions.iter().map(|e| e.requests).sum()
    }

    /// Returns each model's part, in the order in which the expansions use the models.
    #[must_use]
    pub fn list_model_parts(&self) -> Vec<ModelPart> {
        let mut parts: Vec<ModelPart> = Vec::new();
        for expansion in &self.expansions {
            let cost_usd = expansion.price.is_some().then(|| expansion.cost_usd());
            match parts.iter_mut().find(|part| part.model == expansion.model) {
                Some(part) => {
                    part.requests += expansion.requests;
                    part.cost_usd = part.cost_usd.zip(cost_usd).map(|(mut sum, cost)| {
                        sum.add_times(cost, 1.0);
                        sum
                    });
                }
                None => parts.push(ModelPart {
                    model: expansion.model.clone(),
                    requests: expansion.requests,
                    cost_usd,
                }),
            }
        }
        parts
    }

    /// Returns the number of input tokens of all expansions.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens).sum()
    }

    /// Returns the maximum number of input tokens.
    #[must_use]
    pub fn max_input_tokens(&self) -> u64 {
        self.expansions.iter().map(|e| e.input_tokens + e.extra_input).sum()
    }

    /// Returns the estimated number of output tokens of all expansions.
    #[must_use]
    pub fn output_tokens(&self) -> Estimate {
        let mut sum = Estimate::default();
        self.expansions.iter().for_each(|e| sum.add_times(e.output_tokens, 1.0));
        sum
    }

    /// Returns the number of earlier requests that the estimates are based on, and how often such a
    /// request asked for a cell on average until the cell had an answer; `None` if there are none.
    #[must_use]
    pub fn measured_requests(&self) -> Option<(u64, f64)> {
        let (mut requests, mut requested, mut answered) = (0, 0.0, 0);
        for measured in self.expansions.iter().filter_map(|e| e.measured.as_ref()) {
            requests += measured.requests;
            requested += measured.requested_cells;
            answered += measured.answered_cells();
        }
        (requests > 0).then(|| (requests, f64::max(requested / answered.max(1) as f64, 1.0)))
    }

    /// Computes the cost and the duration. Without a throughput estimate, the duration is 0.
    /// Batches have no throughput estimate, because the run does not wait for their answers.
    pub fn estimate_cost(&mut self, limits: &Limits, throughput: Option<ThroughputEstimate>) {
        let (input, output) = (self.input_tokens() as f64, self.output_tokens());
        self.has_price = self.expansions.iter().all(|e| e.price.is_some());
        self.splits_requests = true;
        self.cost_usd = Estimate::default();
        self.expansions.iter().for_each(|e| self.cost_usd.add_times(e.cost_usd(), 1.0));
        let requests = self.request_count() as f64;
        let per_minute =
            |used: f64, limit: Option<u32>| limit.map_or(0.0, |l| used / f64::from(l) * 60.0);
        self.seconds = throughput.map_or(0.0, |pace| {
            let concurrency = requests.min(f64::from(limits.concurrency)).max(1.0);
            (pace.estimate_seconds(requests, output.likely) / concurrency)
                .max(per_minute(requests, limits.requests_per_minute))
                .max(per_minute(input + output.likely, limits.tokens_per_minute))
        });
    }

    /// Computes the cost and the duration for the Batch API instead of live requests.
    pub fn estimate_batch_cost(&mut self, limits: &Limits) {
        for expansion in &mut self.expansions {
            expansion.price = expansion.price.as_ref().map(PriceTable::to_batch_prices);
        }
        self.estimate_cost(limits, None);
        self.splits_requests = false;
        self.seconds = BATCH_SECONDS;
    }

    /// Returns the plan as JSON for `plan --json`, a stable format.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let output = self.output_tokens();
        let measured = self.measured_requests();
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
                        json!({ "column": c.name, "cells": c.cell_count(), "known": c.known, "overridden": c.overridden, "reasons": missing })
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
            "cascades": self.cascades.iter().map(CascadePlan::to_json).collect::<Vec<_>>(),
            "budget": self.budget_json(),
            "price_notes": self.price_notes,
            "totals": {
                "cells": self.cell_count(), "requests": self.request_count(), "input_tokens": self.input_tokens(),
                "output_tokens": output.likely.round() as u64,
                "cost_usd": { "low": self.cost_usd.low, "likely": self.cost_usd.likely, "most": self.cost_usd.max },
                "seconds": self.seconds, "tokens_counted": self.is_counted,
                "measured_requests": measured.map_or(0, |(requests, _)| requests),
                "measured_repeats": measured.map(|(_, repeats)| repeats),
            },
        })
    }
}
