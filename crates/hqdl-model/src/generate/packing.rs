//! How many rows share a request.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tracing::info;

use crate::plan::{MissingRow, RowBatch};
use hqdl_prompt::PromptFrame;

/// The part of its rows that a request may lose beyond what would be lost
/// anyway, before requests get smaller.
const TOO_MANY: f64 = 0.2;
/// The part up to which they get larger again.
const FEW: f64 = 0.1;
/// How many times more good requests it takes after each failure.
const DISTRUST: u32 = 4;
/// How much one request counts in what is known of rows asked alone.
const WEIGHT: f64 = 0.3;

/// How many rows share a request: halved when too many of them fail, one more
/// after a request that comes back whole, or nearly. After a failure, it takes four times as many
/// good requests about one row, so that a model that answers one row at a time only is hardly
/// asked about more.
///
/// Fewer rows mend misalignment, not ignorance: where rows fail as often when
/// they are asked alone (a column that the model always answers with nonsense),
/// smaller requests would only cost more.
#[derive(Debug)]
pub struct Packing {
    most: u32,
    state: Mutex<PackingState>,
}

#[derive(Debug, Clone, Copy)]
struct PackingState {
    now: u32,
    /// The part of rows that fail when they are asked alone.
    alone: f64,
    /// Good requests about one row that it takes to ask about two.
    patience: u32,
    /// Those since the last failure or growth.
    good: u32,
}

impl Packing {
    /// Begins with as many rows as the spec allows.
    #[must_use]
    pub fn new(most: u32) -> Self {
        let most = most.max(1);
        Self {
            most,
            state: Mutex::new(PackingState { now: most, alone: 0.0, patience: 1, good: 0 }),
        }
    }

    /// Rows that a request may ever hold.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Rows that a request may hold now.
    pub(super) fn rows(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).now as usize
    }

    /// Learns from rows that were asked about for the first time: how many, and
    /// how many of them failed. (Those that are asked again have failed before,
    /// and say nothing of the others.)
    pub(super) fn learn(&self, asked: usize, failed: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = failed as f64 / asked.max(1) as f64;
        if asked == 1 || rate < state.alone {
            state.alone += WEIGHT * (rate - state.alone);
        }
        if asked == 1 && failed > 0 {
            // Its requests do not fail because they have several rows.
            state.patience = 1;
        }
        let beyond = rate - state.alone;
        let next = if beyond >= TOO_MANY && asked > 1 {
            state.patience = state.patience.saturating_mul(DISTRUST);
            state.good = 0;
            // From what was asked, not from what is allowed by now: many
            // requests in flight fail together, and that is one failure.
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

/// Rows to be asked again, by the columns they still lack.
pub(super) type AskedAgain = BTreeMap<Vec<usize>, Vec<MissingRow>>;

/// Returns batches of at most half the size; of one row where it is asked in a form of its own.
pub(super) fn smaller(
    again: AskedAgain,
    cut: &RowBatch,
    attempt: u32,
    frame: &PromptFrame,
) -> Vec<(RowBatch, u32)> {
    let half = (cut.gaps.len() / 2).max(1);
    parts(again, if frame.has_simplest_form() { 1 } else { half }, cut, attempt)
}

/// Batches of at most so many rows.
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

/// A batch that was too long, in two, as `plan` counts them: of thirteen rows seven and
/// six. That is no attempt at its rows.
pub(crate) fn halves(cut: &RowBatch, attempt: u32) -> Vec<(RowBatch, u32)> {
    let again = BTreeMap::from([(cut.columns.clone(), cut.gaps.clone())]);
    parts(again, cut.gaps.len().div_ceil(2), cut, attempt)
}
