//! Figures of earlier requests, which replace the assumptions of a plan: how often a cell was
//! requested until it had an answer, and how long the answers were.

use std::collections::HashMap;

use super::{ExpansionPlan, RequestShape};
use hqdl_facts::{Completion, FactsError, History};
use hqdl_spec::{ModelSettings, Provider};
use hqdl_values::cell::State;

/// Maximum number of requests. It covers the large requests at the start of a run, even if the run
/// continues with smaller ones.
const MAX_REQUESTS: u32 = 300;
/// Number of the latest fact rows in which the answers of the requests are searched.
const FACT_ROWS: i64 = 4000;
/// Minimum number of answered cells whose figures replace the assumptions.
const MIN_CELLS: u64 = 20;

/// Figures of a model's latest requests about the columns of one expansion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeasuredAnswers {
    /// Number of requests.
    pub requests: u64,
    /// Number of requested cells, once per request.
    pub requested_cells: f64,
    /// Number of answered cells of each column.
    answered: Vec<u64>,
    /// Input tokens of all requests.
    input_tokens: f64,
    /// Output tokens of all requests.
    output_tokens: f64,
    /// Maximum number of cells in a request.
    largest_request: f64,
    /// Number of requests that only repeated cells of other requests.
    repeated_requests: f64,
}

impl MeasuredAnswers {
    /// Reads a model's latest requests. `identity_ids` are the ids of the columns' identities. A
    /// request without answers belongs to no known expansion. It counts in proportion to the
    /// expansion's share of the answered requests. Returns `None` if too few cells have an answer.
    ///
    /// # Errors
    /// [`FactsError`] if the history cannot be read.
    pub fn from_history(
        history: &dyn History,
        settings: &ModelSettings,
        identity_ids: &[Option<u32>],
    ) -> Result<Option<Self>, FactsError> {
        if settings.provider == Provider::Replay {
            return Ok(None);
        }
        let (_, last_row) = history.load_journal_position()?;
        let mut answered: HashMap<i64, HashMap<u32, u64>> = HashMap::new();
        let first_row = last_row.saturating_sub(FACT_ROWS).max(0);
        let damage = history.find_damage(first_row)?;
        history.visit_answers_after(first_row, &damage, &mut |_, _, facts| {
            for fact in facts.iter().filter(|fact| fact.answer.state != State::Error) {
                let cells = answered.entry(fact.completion).or_default();
                *cells.entry(fact.identity_id).or_default() += 1;
            }
            Ok(())
        })?;
        let first_completion = answered.keys().min().copied().unwrap_or(i64::MAX);
        let mut own = Self { answered: vec![0; identity_ids.len()], ..Self::default() };
        let (mut lost, mut answered_requests) = (Self::default(), 0.0);
        let model = settings.stored_name(&settings.name);
        for (id, completion) in history.load_latest_completions(&model, MAX_REQUESTS)? {
            if id < first_completion {
                break;
            }
            let cells = completion.cells as f64;
            let Some(columns) = answered.get(&id) else {
                // An unreadable reply about several cells is split into two requests.
                lost.add_request(&completion, if cells > 1.0 { 2.0 } else { 1.0 });
                continue;
            };
            answered_requests += 1.0;
            let count = |id: &Option<u32>| id.and_then(|id| columns.get(&id)).copied();
            let counts: Vec<u64> = identity_ids.iter().map(|id| count(id).unwrap_or(0)).collect();
            let found: u64 = counts.iter().sum();
            if found > 0 {
                own.add_request(&completion, if (found as f64) < cells { 1.0 } else { 0.0 });
                own.answered.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
            }
        }
        let share = own.requests as f64 / f64::max(answered_requests, 1.0);
        own.requested_cells += lost.requested_cells * share;
        own.input_tokens += lost.input_tokens * share;
        own.output_tokens += lost.output_tokens * share;
        if share >= 1.0 {
            own.largest_request = own.largest_request.max(lost.largest_request);
        }
        own.repeated_requests += lost.repeated_requests * share;
        own.requests += (lost.requests as f64 * share).round() as u64;
        Ok(Some(own).filter(|own| own.answered_cells() >= MIN_CELLS))
    }

    fn add_request(&mut self, completion: &Completion, repeats: f64) {
        let cells = completion.cells as f64;
        self.requests += 1;
        self.requested_cells += cells;
        self.largest_request = self.largest_request.max(cells);
        self.input_tokens += completion.input_tokens as f64;
        self.output_tokens += completion.output_tokens as f64;
        self.repeated_requests += repeats;
    }

    /// Returns the number of answered cells.
    #[must_use]
    pub fn answered_cells(&self) -> u64 {
        self.answered.iter().sum()
    }

    /// Returns the number of answered cells of each column.
    #[must_use]
    pub fn answered_by_column(&self) -> &[u64] {
        &self.answered
    }

    /// Returns how often a cell was requested until it had an answer; at least 1.
    #[must_use]
    pub fn cell_repeats(&self) -> f64 {
        (self.requested_cells / self.answered_cells().max(1) as f64).max(1.0)
    }

    /// Returns the ratio of all requests to those that repeat no other request; at least 1.
    fn request_repeats(&self) -> f64 {
        let first = self.requests as f64 - self.repeated_requests;
        (self.requests as f64 / first.max(1.0)).max(1.0)
    }
}

impl ExpansionPlan {
    /// Replaces the assumptions of the plan by measured figures. `expected_output` is the number of
    /// output tokens that the plan would expect for the measured answers; `None` if the answers also
    /// have reasoning tokens, which the plan adds itself. The maximum includes the repeated
    /// requests, and is never lower than without the figures.
    pub fn apply_measured(&mut self, measured: &MeasuredAnswers, expected_output: Option<f64>) {
        let repeats = measured.cell_repeats();
        let (requests, input) = self.compute_factors(measured);
        let scale = |tokens: &mut u64| *tokens = (*tokens as f64 * input).ceil() as u64;
        self.requests = (self.requests as f64 * requests).ceil() as u64;
        scale(&mut self.input_tokens);
        scale(&mut self.extra_input);
        scale(&mut self.audio_tokens);
        scale(&mut self.repeated_tokens);
        let ratio = match expected_output {
            Some(expected) if expected > 0.0 => measured.output_tokens / expected,
            _ => repeats,
        };
        let output = &mut self.output_tokens;
        output.likely *= ratio;
        output.low = output.low.min(output.likely);
        output.max = (output.max * repeats).max(output.likely);
        for (_, shape) in &mut self.shapes {
            shape.row_output *= ratio;
            shape.repeated_share = input - 1.0;
        }
        self.measured = Some(measured.clone());
    }

    /// Returns the factors of the planned requests and of their input tokens; each is at least 1. If
    /// the earlier requests were as large as the planned ones, the factors come from the earlier
    /// numbers of requests and tokens. Those include the smaller requests that a run sends after
    /// replies that lack rows.
    fn compute_factors(&self, measured: &MeasuredAnswers) -> (f64, f64) {
        if measured.cell_repeats() <= 1.0 {
            return (1.0, 1.0);
        }
        let cells = |shape: &RequestShape| (shape.rows * shape.columns) as f64;
        let largest = self.shapes.iter().map(|(_, shape)| cells(shape)).fold(0.0, f64::max);
        if (largest - measured.largest_request).abs() > 0.5 {
            return (measured.request_repeats(), measured.cell_repeats());
        }
        let planned = self.shapes.iter().map(|(_, shape)| shape.requests as f64 * cells(shape));
        let share = planned.sum::<f64>() / measured.answered_cells().max(1) as f64;
        let factor =
            |measured: f64, planned: u64| (measured * share / planned.max(1) as f64).max(1.0);
        (
            factor(measured.requests as f64, self.requests),
            factor(measured.input_tokens, self.input_tokens),
        )
    }
}
