//! Rows that others are asking about. What there is to ask comes before them: several
//! workers over the same rows pass each other so, and none waits for another's request
//! while rows are left that nobody asks about. At the end they are looked at, many at
//! once, and what nobody has brought by then is waited for, and asked.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Context, RequestGate, RowBatch, Settled, Stopped, Todo, settle, stopped};
use hqdl_facts::{ClaimKey, Found};

/// Batches left at the most, so that memory does not grow with their number.
const MOST: usize = 20_000;
/// Batches looked at at once.
const AT_ONCE: usize = 500;

/// Rows whose cells others are asking for.
pub struct Elsewhere {
    pub(super) cut: RowBatch,
    /// The first of these cells.
    pub(super) first: ClaimKey,
    /// How often they were asked about, the next time included.
    pub(super) attempt: u32,
}

/// What others are asking about, until it is seen what came of it.
#[derive(Default)]
pub(super) struct Backlog {
    left: VecDeque<Elsewhere>,
    /// Looked at: nobody has brought them yet.
    missing: VecDeque<Elsewhere>,
}

/// What is to be done next about rows that others ask about.
pub(super) enum Next {
    /// To look which of them are known by now.
    Look(Vec<Elsewhere>),
    /// To wait for one, and to ask what is missing then.
    Wait(Elsewhere),
}

impl Backlog {
    /// Rows to come back to.
    pub(super) fn extend(&mut self, more: Vec<Elsewhere>) {
        self.left.extend(more);
    }

    /// Rows that were looked at in vain.
    pub(super) fn extend_missing(&mut self, more: Vec<Elsewhere>) {
        self.missing.extend(more);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.missing.is_empty()
    }

    /// Whether it is time to come back, whatever else there is to ask.
    pub(super) fn is_full(&self) -> bool {
        self.left.len() >= MOST || !self.missing.is_empty()
    }

    /// What to do next.
    pub(super) fn next(&mut self) -> Option<Next> {
        self.missing.pop_front().map(Next::Wait).or_else(|| {
            let many = self.left.len().min(AT_ONCE);
            (many > 0).then(|| Next::Look(self.left.drain(..many).collect()))
        })
    }
}

/// Does what is next.
pub(super) async fn come_back(
    context: Arc<Context>,
    next: Next,
    gate: RequestGate,
) -> Result<Settled, Stopped> {
    match next {
        Next::Look(rows) => context.look(rows).await,
        Next::Wait(Elsewhere { cut, first, attempt }) => {
            // Nothing is claimed while this waits.
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
    /// Looks which rows are known by now, and leaves them out.
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
