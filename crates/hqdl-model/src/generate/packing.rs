//! The adaptive number of rows per request.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tracing::info;

use crate::plan::{MissingRow, RowBatch};
use hqdl_prompt::PromptFrame;

/// Requests shrink if the share of failed rows exceeds the expected share by at least this much.
const SHRINK_THRESHOLD: f64 = 0.2;
/// Requests can grow again if the share of failed rows exceeds the expected share by at most this
/// much.
const GROW_THRESHOLD: f64 = 0.1;
/// Factor by which each failure multiplies the number of good requests required for growth.
const FAILURE_PENALTY: u32 = 4;
/// Weight of one request in the moving average of the single-row failure rate.
const SINGLE_ROW_WEIGHT: f64 = 0.3;

/// Adaptive number of rows per request. It is halved when too many rows fail, and grows by one
/// after a request with few or no failures. Each failure quadruples the number of good single-row
/// requests required before a request gets two rows. So hqdl rarely sends larger requests to a
/// model that can only answer single rows.
///
/// Fewer rows fix misalignment, but not ignorance. If rows fail just as often when requested alone,
/// smaller requests only cost more, for example for a column that the model always answers with
/// nonsense.
#[derive(Debug)]
pub struct Packing {
    max: u32,
    state: Mutex<PackingState>,
}

#[derive(Debug, Clone, Copy)]
struct PackingState {
    current: u32,
    /// Share of rows that fail when requested alone.
    single_row_failure_rate: f64,
    /// Number of good single-row requests required before requests grow to two rows.
    required_successes: u32,
    /// Number of good requests since the last failure or growth.
    successes: u32,
    /// Whether failures have ever reduced requests to one row.
    was_single: bool,
}

/// Effect of a reply on the rows per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adaptation {
    /// Requests were reduced to one row for the first time.
    FirstSingleRows,
    /// Any other effect.
    Other,
}

impl Packing {
    /// Creates the state for a spec that allows up to `max` rows per request, and starts with that
    /// many.
    #[must_use]
    pub fn new(max: u32) -> Self {
        let max = max.max(1);
        Self {
            max,
            state: Mutex::new(PackingState {
                current: max,
                single_row_failure_rate: 0.0,
                required_successes: 1,
                successes: 0,
                was_single: false,
            }),
        }
    }

    /// Returns the maximum number of rows per request.
    pub(super) fn max_rows(&self) -> u32 {
        self.max
    }

    /// Returns the current number of rows per request.
    pub(super) fn current_rows(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).current as usize
    }

    /// Adapts to the number of rows requested for the first time and how many of them failed.
    /// Retried rows have already failed once and are not representative.
    pub(super) fn adapt_to_failures(&self, asked: usize, failed: usize) -> Adaptation {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let failure_rate = failed as f64 / asked.max(1) as f64;
        if asked == 1 || failure_rate < state.single_row_failure_rate {
            state.single_row_failure_rate +=
                SINGLE_ROW_WEIGHT * (failure_rate - state.single_row_failure_rate);
        }
        if asked == 1 && failed > 0 {
            // The row fails even when it is requested alone.
            state.required_successes = 1;
        }
        let excess = failure_rate - state.single_row_failure_rate;
        let next = if excess >= SHRINK_THRESHOLD && asked > 1 {
            state.required_successes = state.required_successes.saturating_mul(FAILURE_PENALTY);
            state.successes = 0;
            // Halve the requested number of rows, not the current limit: many requests in flight
            // fail together and must count as one failure.
            let half = (asked as u32 / 2).max(1);
            // If some rows were readable, their number shows how many rows the model can answer.
            let read = asked.saturating_sub(failed) as u32;
            state.current.min(if read == 0 { half } else { half.min(read) })
        } else if excess <= GROW_THRESHOLD && asked as u32 >= state.current {
            if asked > 1 {
                state.required_successes = 1;
            }
            state.successes += 1;
            let grows = state.successes >= state.required_successes;
            if grows {
                state.successes = 0;
            }
            (state.current + u32::from(grows)).min(self.max)
        } else {
            state.current
        };
        if next != state.current {
            info!(
                from = state.current,
                to = next,
                asked,
                failed,
                alone = state.single_row_failure_rate,
                "rows a request"
            );
        }
        let is_first = next == 1 && state.current > 1 && !state.was_single;
        state.was_single |= is_first;
        state.current = next;
        if is_first { Adaptation::FirstSingleRows } else { Adaptation::Other }
    }
}

/// Rows to request again, by missing columns.
pub(super) type RowsToRetry = BTreeMap<Vec<usize>, Vec<MissingRow>>;

/// Splits rows into batches of at most half the size, or into single rows if a single row has its
/// own prompt format.
pub(super) fn split_into_halves_or_rows(
    to_retry: RowsToRetry,
    row_batch: &RowBatch,
    attempt: u32,
    frame: &PromptFrame,
) -> Vec<(RowBatch, u32)> {
    let half = (row_batch.missing_rows.len() / 2).max(1);
    split_rows(to_retry, if frame.has_simplest_form() { 1 } else { half }, row_batch, attempt)
}

/// Splits rows into batches of at most `max` rows.
fn split_rows(
    to_retry: RowsToRetry,
    max: usize,
    row_batch: &RowBatch,
    attempt: u32,
) -> Vec<(RowBatch, u32)> {
    let mut row_batches = Vec::new();
    for (columns, missing_rows) in to_retry {
        for part in missing_rows.chunks(max) {
            let part = RowBatch {
                columns: columns.clone(),
                source_columns: row_batch.source_columns.clone(),
                missing_rows: part.to_vec(),
            };
            row_batches.push((part, attempt));
        }
    }
    row_batches
}

/// Splits a row batch into two halves; the first half gets the extra row, as in `plan`. Splitting
/// does not count as an attempt.
pub(crate) fn split_in_half(row_batch: &RowBatch, attempt: u32) -> Vec<(RowBatch, u32)> {
    let to_retry = BTreeMap::from([(row_batch.columns.clone(), row_batch.missing_rows.clone())]);
    split_rows(to_retry, row_batch.missing_rows.len().div_ceil(2), row_batch, attempt)
}
