//! LIMIT pushdown at run time (the rule is `blendsql::rules::limit_pushdown`). Reads candidate rows
//! as they arrive, and decides whether the result is complete or which demands to send.

use std::collections::HashMap;

use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::targets::Demand;
use crate::query::functions::call_runtime::pending_set::{
    Candidate, Distinct, MAX_EXISTS_CANDIDATES, RowState,
};
use crate::query::functions::call_runtime::{SharedRuntime, lock_runtime};
use crate::query::result::query_result::{RowSink, to_owned_value};
use crate::query::run::selectivity_sampler::SelectivitySampler;
use hqdl_sql::blendsql::plan::LimitPushdown;

/// Maximum number of values in the first batch, before any outcome is known.
const FIRST_BATCH: u64 = 20;
/// Minimum number of rows to read even if enough demands are known, because a later row may
/// complete the result without a request.
const MIN_ROWS_READ: u64 = 100_000;

/// Sink that reads candidate rows.
pub struct CandidateReader<'r> {
    rule: &'r LimitPushdown,
    runtime: SharedRuntime,
    rows_per_request: u64,
    /// Number of rows whose conditions were decided, and number of these rows that passed.
    tested_rows: (u64, u64),
    columns: Vec<String>,
    /// Rows in result order; with DISTINCT, equal rows share one entry.
    rows: Vec<CandidateRow>,
    /// With DISTINCT: position in `rows` by the row's canonical bytes.
    row_positions: HashMap<Vec<u8>, usize>,
    read_count: u64,
    certain_count: u64,
    pending_count: u64,
    /// All demands of the rows read.
    demands: Distinct<Demand>,
    /// Whether the order of the conditions is still being sampled.
    is_sampling: bool,
    /// Whether no request has been sent yet. Rows may then be certain because of answers from
    /// earlier queries.
    is_first_request: bool,
}

/// A row or, with DISTINCT, a set of equal rows.
struct CandidateRow {
    values: Vec<Sql>,
    rank: i64,
    state: RowState,
    /// Values of the columns with calls.
    call_values: Vec<Sql>,
    /// Demands of the row; for a set of equal rows, the demands of some of the rows.
    demand_sets: Vec<Vec<Demand>>,
    /// Number of equal rows that failed.
    failed_count: usize,
}

impl CandidateRow {
    /// Returns the demand sets to send: one set for each equal row that has already failed, but at
    /// least one set and at most `MAX_EXISTS_CANDIDATES`.
    fn sampled_demands(&self) -> &[Vec<Demand>] {
        &self.demand_sets
            [..self.demand_sets.len().min(self.failed_count.clamp(1, MAX_EXISTS_CANDIDATES))]
    }
}

/// Outcome of reading the candidates.
pub enum CandidateOutcome {
    /// Columns and rows of the result.
    Rows(Vec<String>, Vec<Vec<Sql>>),
    SendDemands(Vec<Demand>),
}

impl<'r> CandidateReader<'r> {
    /// Creates a reader that has not read any rows yet.
    pub fn new(
        rule: &'r LimitPushdown,
        runtime: &SharedRuntime,
        rows_per_request: u64,
        tested_rows: (u64, u64),
        is_first_request: bool,
    ) -> Self {
        Self {
            rule,
            runtime: SharedRuntime::clone(runtime),
            rows_per_request: rows_per_request.max(1),
            tested_rows,
            columns: Vec::new(),
            rows: Vec::new(),
            row_positions: HashMap::new(),
            read_count: 0,
            certain_count: 0,
            pending_count: 0,
            demands: Distinct::default(),
            is_sampling: rule.rows_needed.is_none() && rule.condition_count > 1,
            is_first_request,
        }
    }

    /// Returns the number of rows to ask about next, chosen so that the expected number of passing
    /// rows equals the number of rows still needed.
    fn compute_next_batch_size(&self, certain: u64) -> u64 {
        let missing_count = match self.rule.rows_needed {
            Some(need) => need.saturating_sub(certain).max(1),
            None => return u64::MAX,
        };
        let (asked, passed) = self.tested_rows;
        let batch_size = missing_count.saturating_mul(asked + 2) / (passed + 2).min(asked + 2);
        let batch_size = batch_size.clamp(1, FIRST_BATCH.max(missing_count).max(asked / 32));
        if self.rule.is_ranked {
            // Do not round up to whole requests: the most likely rows come first, and few documents
            // fit into a request.
            return batch_size;
        }
        batch_size.div_ceil(self.rows_per_request).saturating_mul(self.rows_per_request)
    }

    /// Returns true if enough rows were read, so that later rows can no longer matter. With
    /// DISTINCT, or without an order, a later row may be certain and save a request, so the reader
    /// continues for a while.
    fn has_enough_rows(&self) -> bool {
        if self.rule.is_ranked || self.rule.is_distinct && self.read_count < MIN_ROWS_READ {
            return false;
        }
        let is_full = self.rule.rows_needed.is_some_and(|need| self.certain_count >= need);
        let may_skip_requests =
            !self.rule.is_ordered && self.is_first_request && self.read_count < MIN_ROWS_READ;
        is_full
            || !may_skip_requests
                && self.pending_count >= self.compute_next_batch_size(self.certain_count)
    }

    /// Returns the outcome, given the rows that were read.
    pub fn into_outcome(mut self, sampler: &mut SelectivitySampler) -> CandidateOutcome {
        if self.rule.is_ranked {
            self.rows.sort_by_key(|row| row.rank);
        }
        let (need, skipped) = (self.rule.rows_needed.unwrap_or(u64::MAX), self.rule.rows_skipped);
        let (mut chosen, mut undecided, mut valueless) = (Vec::new(), Vec::new(), Vec::new());
        for row in &self.rows {
            match row.state {
                RowState::Failed => continue,
                RowState::Possible => undecided.push(row),
                RowState::Certain | RowState::MissingValue => {
                    if chosen.len() as u64 >= skipped && row.state == RowState::MissingValue {
                        valueless.push(row);
                    }
                    chosen.push(row);
                }
            }
            if chosen.len() as u64 >= need {
                break;
            }
        }
        let is_full = chosen.len() as u64 >= need;
        // Without an ORDER BY, any passing rows are a correct result.
        let is_complete = undecided.is_empty() || is_full && !self.rule.is_ordered;
        let pending_demands = |rows: &[&'_ CandidateRow], max_rows: u64| -> Vec<Vec<Demand>> {
            let all = rows.iter().flat_map(|row| row.sampled_demands()).filter(|d| !d.is_empty());
            all.take(usize::try_from(max_rows).unwrap_or(usize::MAX)).cloned().collect()
        };
        let asked = if is_complete {
            if valueless.is_empty() {
                let from = usize::try_from(skipped).unwrap_or(usize::MAX).min(chosen.len());
                let rows = chosen[from..].iter().map(|row| self.build_result_row(row)).collect();
                return CandidateOutcome::Rows(self.columns, rows);
            }
            pending_demands(&valueless, u64::MAX).concat()
        } else if self.is_sampling {
            let rows = pending_demands(&undecided, u64::MAX);
            let asked = sampler.choose_row_demands(rows.iter().map(Vec::as_slice).collect());
            sampler.advance_sample();
            asked
        } else {
            pending_demands(&undecided, self.compute_next_batch_size(chosen.len() as u64)).concat()
        };
        if !asked.is_empty() {
            return CandidateOutcome::SendDemands(asked);
        }
        // The demands of the chosen rows were recorded with other rows, so send all recorded
        // demands.
        CandidateOutcome::SendDemands(self.demands.into_iter().collect())
    }

    /// Adds a row, or merges it into the entry of an equal row (DISTINCT).
    fn add_row(&mut self, values: Vec<Sql>, rank: i64, candidate: Candidate) {
        let Candidate { state, demands, call_values } = candidate;
        self.demands.extend(demands.iter().copied());
        let failed = usize::from(state == RowState::Failed);
        let row = CandidateRow {
            values,
            rank,
            state,
            call_values,
            demand_sets: vec![demands],
            failed_count: failed,
        };
        if !self.rule.is_distinct {
            if state != RowState::Failed {
                self.update_counters(&row, 1);
                self.rows.push(row);
            }
            return;
        }
        let mut key = Vec::new();
        let values: Vec<ValueRef<'_>> = row.values.iter().map(to_distinct_form).collect();
        write_canonical_bytes(&values, &mut key);
        let at = *self.row_positions.entry(key).or_insert(self.rows.len());
        let Some(mut known) = self.rows.get_mut(at).map(|known| {
            let none = CandidateRow {
                values: Vec::new(),
                call_values: Vec::new(),
                demand_sets: Vec::new(),
                ..*known
            };
            std::mem::replace(known, none)
        }) else {
            self.update_counters(&row, 1);
            self.rows.push(row);
            return;
        };
        self.update_counters(&known, -1);
        known.failed_count += failed;
        let better = |state| match state {
            RowState::Certain => 2,
            RowState::Possible | RowState::MissingValue => 1,
            RowState::Failed => 0,
        };
        let is_better = better(state) > better(known.state);
        match (known.state, state) {
            // For a passing row whose values are missing, send only the demands of these values.
            _ if is_better => {
                (known.state, known.call_values, known.demand_sets) =
                    (state, row.call_values, row.demand_sets);
            }
            (RowState::Possible, RowState::Possible)
                if known.demand_sets.len() < MAX_EXISTS_CANDIDATES =>
            {
                known.demand_sets.extend(row.demand_sets);
            }
            _ => {}
        }
        self.update_counters(&known, 1);
        self.rows[at] = known;
    }

    /// Adds `by` to the counter for rows in this row's state.
    fn update_counters(&mut self, row: &CandidateRow, by: i64) {
        let counter = match row.state {
            RowState::Failed => return,
            RowState::Possible if row.demand_sets.iter().all(Vec::is_empty) => return,
            RowState::Possible => &mut self.pending_count,
            RowState::Certain | RowState::MissingValue => &mut self.certain_count,
        };
        *counter = counter.saturating_add_signed(by);
    }

    /// Converts a candidate row to a result row by filling in the values of its calls.
    fn build_result_row(&self, row: &CandidateRow) -> Vec<Sql> {
        let mut values = row.values.clone();
        // A preceding `*` expands to several columns.
        let star_width = values.len() - self.rule.column_count.min(values.len());
        for (at, value) in self.rule.held_columns.iter().zip(&row.call_values) {
            let at = at + if self.rule.has_star_before(*at) { star_width } else { 0 };
            if let Some(slot) = values.get_mut(at) {
                value.clone_into(slot);
            }
        }
        values
    }
}

/// Returns a value in the form that DISTINCT compares.
fn to_distinct_form(value: &Sql) -> ValueRef<'_> {
    // A whole number of 64 bits is exact as an integer.
    let limit = 63_f64.exp2();
    match value {
        Sql::Real(r) if r.fract() == 0.0 && (-limit..limit).contains(r) => {
            ValueRef::Integer(*r as i64)
        }
        other => ValueRef::from(other),
    }
}

impl RowSink for CandidateReader<'_> {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        let added_columns = if self.rule.is_ranked { 2 } else { 1 };
        self.columns = names[..names.len().saturating_sub(added_columns)].to_vec();
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        let number = |value: Option<&ValueRef<'_>>| match value {
            Some(ValueRef::Integer(n)) => *n,
            _ => i64::MAX,
        };
        let width = self.columns.len();
        let candidate = number(row.last());
        let rank = if self.rule.is_ranked { number(row.get(width)) } else { 0 };
        let candidate = lock_runtime(&self.runtime).pass.pending.candidates.remove(&candidate);
        // Add failed rows, too, because DISTINCT counts them.
        if let Some(candidate) = candidate {
            let values = row[..width].iter().map(|v| to_owned_value(*v)).collect();
            self.add_row(values, rank, candidate);
        }
        self.read_count += 1;
        if self.has_enough_rows() { Err(std::io::Error::other(StopReading)) } else { Ok(()) }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Error by which a [`CandidateReader`] ends a statement when it needs no more rows.
#[derive(Debug, thiserror::Error)]
#[error("enough rows")]
struct StopReading;

/// Returns true if a [`CandidateReader`] ended the statement because it needs no more rows.
pub(in crate::query) fn is_stop_reading_error(error: &std::io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<StopReading>()).is_some()
}
