//! The adaptive number of rows per request.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tracing::info;

use crate::plan::{MissingRow, RowBatch};
use hqdl_prompt::PromptFrame;

/// Share of failed rows, beyond the expected share, from which requests get smaller.
const TOO_MANY: f64 = 0.2;
/// Share of failed rows, beyond the expected share, up to which requests get larger again.
const FEW: f64 = 0.1;
/// Factor by which each failure increases the number of good requests required for growth.
const DISTRUST: u32 = 4;
/// Weight of one request in the average failure rate of single rows.
const WEIGHT: f64 = 0.3;

/// Adaptive number of rows per request. It is halved when too many rows fail, and grows by one
/// after a request with few or no failures. Each failure quadruples the number of good single-row
/// requests required before a request gets two rows. So a model that can only answer single rows
/// gets few larger requests.
///
/// Fewer rows fix misalignment, but not ignorance. If rows fail as often when they are asked alone,
/// smaller requests would only cost more. An example is a column that the model always answers with
/// nonsense.
#[derive(Debug)]
pub struct Packing {
    most: u32,
    state: Mutex<PackingState>,
}

#[derive(Debug, Clone, Copy)]
struct PackingState {
    now: u32,
    /// Share of rows that fail when asked alone.
    alone: f64,
    /// Number of good single-row requests required before a request gets two rows.
    patience: u32,
    /// Number of good requests since the last failure or growth.
    good: u32,
}

impl Packing {
    /// Starts with the maximum number of rows that the spec allows.
    #[must_use]
    pub fn new(most: u32) -> Self {
        let most = most.max(1);
        Self {
            most,
            state: Mutex::new(PackingState { now: most, alone: 0.0, patience: 1, good: 0 }),
        }
    }

    /// Returns the maximum number of rows per request.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Returns the current number of rows per request.
    pub(super) fn rows(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).now as usize
    }

    /// Adapts to the number of rows that were asked for the first time, and how many of them
    /// failed. Rows that are asked again have failed before and are not representative.
    pub(super) fn learn(&self, asked: usize, failed: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = failed as f64 / asked.max(1) as f64;
        if asked == 1 || rate < state.alone {
            state.alone += WEIGHT * (rate - state.alone);
        }
        if asked == 1 && failed > 0 {
            // Its rows fail even when they are asked alone.
            state.patience = 1;
        }
        let beyond = rate - state.alone;
        let next = if beyond >= TOO_MANY && asked > 1 {
            state.patience = state.patience.saturating_mul(DISTRUST);
            state.good = 0;
            // Halve the number of rows asked, not the current limit: many requests in flight fail
            // together, which counts as one failure.
            state.now.min((asked as u32 / 2).max(1))
        } else if beyond <= FEW && asked as u32 >= state.now {
            if asked > 1 {
                state.patience = 1;
            }
            state.good += 1;
            let grows = state.good >= state.patience;
            if grows {
                state.good = 0;
            }
            (state.now + u32::from(grows)).min(self.most)
        } else {
            state.now
        };
        if next != state.now {
            info!(
                from = state.now,
                to = next,
                asked,
                failed,
                alone = state.alone,
                "rows a request"
            );
        }
        state.now = next;
    }
}

/// Rows to ask again, by their missing columns.
pub(super) type AskedAgain = BTreeMap<Vec<usize>, Vec<MissingRow>>;

/// Returns batches of at most half the size, or of one row if a single row has its own prompt
/// format.
pub(super) fn smaller(
    again: AskedAgain,
    cut: &RowBatch,
    attempt: u32,
    frame: &PromptFrame,
) -> Vec<(RowBatch, u32)> {
    let half = (cut.gaps.len() / 2).max(1);
    parts(again, if frame.has_simplest_form() { 1 } else { half }, cut, attempt)
}

/// Returns batches of at most `max` rows.
fn parts(again: AskedAgain, most: usize, cut: &RowBatch, attempt: u32) -> Vec<(RowBatch, u32)> {
    let mut cuts = Vec::new();
    for (columns, gaps) in again {
        for part in gaps.chunks(most) {
            let part = RowBatch {
                columns: columns.clone(),
                whole: cut.whole.clone(),
                gaps: part.to_vec(),
            };
            cuts.push((part, attempt));
        }
    }
    cuts
}

/// Splits a batch in two, as `plan` counts them: thirteen rows become seven and six. Splitting does
/// not count as an attempt.
pub(crate) fn halves(cut: &RowBatch, attempt: u32) -> Vec<(RowBatch, u32)> {
    let again = BTreeMap::from([(cut.columns.clone(), cut.gaps.clone())]);
    parts(again, cut.gaps.len().div_ceil(2), cut, attempt)
}
