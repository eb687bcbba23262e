//! Rows that other runs have claimed. They are deferred until nothing else is left to ask, so that
//! several runs over the same rows do not wait for each other's requests. Then they are looked up
//! in large groups. For rows that are still missing, the run waits until they are released, and
//! asks for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Context, RequestGate, RowBatch, Settled, Stopped, Todo, settle, stopped};
use hqdl_facts::{ClaimKey, Found};

/// Maximum number of deferred batches, so that memory does not grow with their number.
const MOST: usize = 20_000;
/// Number of batches that are looked up at once.
const AT_ONCE: usize = 500;

/// Rows with cells that other runs have claimed.
pub struct Elsewhere {
    pub(super) cut: RowBatch,
    /// Claim key of the first of these cells.
    pub(super) first: ClaimKey,
    /// Number of attempts at the rows, including the next one.
    pub(super) attempt: u32,
}

/// The queue of rows that other runs have claimed.
#[derive(Default)]
pub(super) struct Backlog {
    left: VecDeque<Elsewhere>,
    /// Rows that were looked up and are still missing.
    missing: VecDeque<Elsewhere>,
}

/// The next step for the deferred rows.
pub(super) enum Next {
    /// Look up which of them are known now.
    Look(Vec<Elsewhere>),
    /// Wait for the claim to be released, then ask for whatever is still missing.
    Wait(Elsewhere),
}

impl Backlog {
    /// Adds rows to look up later.
    pub(super) fn extend(&mut self, more: Vec<Elsewhere>) {
        self.left.extend(more);
    }

    /// Adds rows that were looked up and are still missing.
    pub(super) fn extend_missing(&mut self, more: Vec<Elsewhere>) {
        self.missing.extend(more);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.missing.is_empty()
    }

    /// Returns whether the deferred rows come first, before any other rows.
    pub(super) fn is_full(&self) -> bool {
        self.left.len() >= MOST || !self.missing.is_empty()
    }

    /// Returns the next step.
    pub(super) fn next(&mut self) -> Option<Next> {
        self.missing.pop_front().map(Next::Wait).or_else(|| {
            let many = self.left.len().min(AT_ONCE);
            (many > 0).then(|| Next::Look(self.left.drain(..many).collect()))
        })
    }
}

/// Executes a step.
pub(super) async fn come_back(
    context: Arc<Context>,
    next: Next,
    gate: RequestGate,
) -> Result<Settled, Stopped> {
    match next {
        Next::Look(rows) => context.look(rows).await,
        Next::Wait(Elsewhere { cut, first, attempt }) => {
            // The run holds no claim while it waits.
            tokio::select! {
                biased;
                released = context.run.facts.released(&first) => released?,
                () = stopped(&gate.stopping) => return Ok(Settled::default()),
            }
            settle(context, vec![Todo { cut, attempt, piece_since: None }], gate).await
        }
    }
}

impl Context {
    /// Looks up which rows are known now, and drops them.
    async fn look(&self, rows: Vec<Elsewhere>) -> Result<Settled, Stopped> {
        let gaps = rows.iter().flat_map(|row| &row.cut.gaps);
        let entities: Vec<_> = gaps.map(|gap| &gap.entity).collect();
        let mut records = self.run.facts.get_latest(&entities).await?.into_iter();
        let mut missing = Vec::new();
        for mut row in rows {
            let columns = &row.cut.columns;
            row.cut.gaps.retain(|_| {
                let record = records.next().flatten();
                let is_known =
                    |c: &usize| matches!(self.wanted.find(record.as_ref(), *c), Found::Known(_));
                let known = columns.iter().all(is_known);
                if known {
                    self.run.found.fetch_add(columns.len() as u64, Ordering::Relaxed);
                }
                !known
            });
            let first = row.cut.gaps.first().zip(row.cut.columns.first());
            if let Some(first) = first.and_then(|(gap, c)| self.wanted.claimed(&gap.entity, *c)) {
                missing.push(Elsewhere { first, ..row });
            }
        }
        Ok(Settled { missing, ..Settled::default() })
    }
}
