//! How many rows share a request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::info;

use crate::plan::{Cut, Gap};

/// How many rows share a request: halved when a fifth of them or more fail,
/// one more after every request that comes back whole.
#[derive(Debug)]
pub struct Packing {
    now: AtomicU32,
    most: u32,
}

impl Packing {
    /// Begins with as many rows as the spec allows.
    #[must_use]
    pub fn new(most: u32) -> Self {
        Self { now: most.max(1).into(), most: most.max(1) }
    }

    /// Rows that a request may hold now.
    pub(super) fn rows(&self) -> usize {
        self.now.load(Ordering::Relaxed) as usize
    }

    /// Learns from a request: rows asked about, rows that must be asked again.
    pub(super) fn learn(&self, asked: usize, failed: usize) {
        let now = self.now.load(Ordering::Relaxed);
        let next = if failed * 5 >= asked.max(1) && asked > 1 {
            // From what was asked, not from what is allowed by now: many
            // requests in flight fail together, and that is one failure.
            now.min((asked as u32 / 2).max(1))
        } else if failed == 0 && asked as u32 >= now {
            (now + 1).min(self.most)
        } else {
            now
        };
        if next != now {
            info!(from = now, to = next, asked, failed, "rows a request");
        }
        self.now.store(next, Ordering::Relaxed);
    }
}

/// Rows to be asked again, by the columns they still lack.
pub(super) type Again = BTreeMap<Vec<usize>, Vec<Gap>>;

/// Batches of at most half the size.
pub(super) fn smaller(again: Again, cut: &Cut, attempt: u32) -> Vec<(Cut, u32)> {
    let most = (cut.gaps.len() / 2).max(1);
    let mut cuts = Vec::new();
    for (columns, gaps) in again {
        for part in gaps.chunks(most) {
            let part =
                Cut { columns: columns.clone(), whole: cut.whole.clone(), gaps: part.to_vec() };
            cuts.push((part, attempt));
        }
    }
    cuts
}

/// A batch that was too long, in two; that is no attempt at its rows.
pub(super) fn halves(cut: &Cut, attempt: u32) -> Vec<(Cut, u32)> {
    smaller(BTreeMap::from([(cut.columns.clone(), cut.gaps.clone())]), cut, attempt)
}
