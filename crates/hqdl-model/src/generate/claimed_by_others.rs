//! Rows that other runs have claimed. The run defers these rows until it has nothing else to ask,
//! so that several runs over the same rows do not wait for each other's requests. Then it looks the
//! rows up in large groups. For rows that are still missing, it waits until the claims are released
//! and then asks for the rows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{
    Context, ModelRun, PendingRequest, RowBatch, RunControl, StopReason, TaskOutcome,
    process_batch, wait_for_stop,
};
use crate::REPORTED_WAIT;
use hqdl_facts::{CellLookup, ClaimKey};

/// Maximum number of deferred batches, so that memory does not grow with their number.
const MAX_DEFERRED: usize = 20_000;
/// Number of batches that are looked up at once.
const LOOKUP_BATCHES: usize = 500;

/// Rows with cells that other runs have claimed.
pub struct ClaimedByOthers {
    pub(super) context: Arc<Context>,
    pub(super) row_batch: RowBatch,
    /// Claim key of the first of these cells.
    pub(super) first_key: ClaimKey,
    /// Number of attempts for the rows, including the next one.
    pub(super) attempt: u32,
}

/// The queue of rows that other runs have claimed.
#[derive(Default)]
pub(super) struct Backlog {
    unchecked: VecDeque<ClaimedByOthers>,
    /// Rows that were looked up and are still missing.
    missing: VecDeque<ClaimedByOthers>,
}

/// The next step for the deferred rows.
pub(super) enum NextStep {
    /// Look up which of these rows are known now.
    LookUp(Vec<ClaimedByOthers>),
    /// Wait for the claim to be released, then ask for the cells that are still missing.
    Wait(ClaimedByOthers),
}

impl Backlog {
    /// Adds rows to look up later.
    pub(super) fn extend(&mut self, more: Vec<ClaimedByOthers>) {
        self.unchecked.extend(more);
    }

    /// Adds rows that were looked up and are still missing.
    pub(super) fn extend_missing_rows(&mut self, more: Vec<ClaimedByOthers>) {
        self.missing.extend(more);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unchecked.is_empty() && self.missing.is_empty()
    }

    /// Returns true if the queue is so long that its rows must be handled before any others.
    pub(super) fn is_full(&self) -> bool {
        self.unchecked.len() >= MAX_DEFERRED || !self.missing.is_empty()
    }

    pub(super) fn next_step(&mut self) -> Option<NextStep> {
        self.missing.pop_front().map(NextStep::Wait).or_else(|| {
            let count = self.unchecked.len().min(LOOKUP_BATCHES);
            (count > 0).then(|| NextStep::LookUp(self.unchecked.drain(..count).collect()))
        })
    }
}

pub(super) async fn execute_step(
    run: Arc<ModelRun>,
    step: NextStep,
    control: RunControl,
) -> Result<TaskOutcome, StopReason> {
    match step {
        NextStep::LookUp(rows) => look_up_rows(&run, rows).await,
        NextStep::Wait(ClaimedByOthers { context, row_batch, first_key, attempt }) => {
            // This task holds no cell while it waits. Its run may hold the name of a join's left
            // value. All runs claim the name before the join's cells, never the other way round, so they
            // cannot wait for each other.
            tokio::select! {
                biased;
                released = run.facts.wait_for_release(&first_key) => released?,
                () = wait_for_stop(&control.stopping) => return Ok(TaskOutcome::default()),
                () = report_claims(&context) => {}
            }
            process_batch(
                context,
                vec![PendingRequest { row_batch, attempt, piece_since: None }],
                control,
            )
            .await
        }
    }
}

/// Reports once a minute that the run is waiting for another process. Never returns.
async fn report_claims(context: &Context) {
    loop {
        tokio::time::sleep(REPORTED_WAIT).await;
        context.run.report_claims(&context.expansion.name);
    }
}

/// Looks up which rows are known now, and removes them from the queue.
async fn look_up_rows(
    run: &ModelRun,
    rows: Vec<ClaimedByOthers>,
) -> Result<TaskOutcome, StopReason> {
    let missing_rows = rows.iter().flat_map(|row| &row.row_batch.missing_rows);
    let entities: Vec<_> = missing_rows.map(|missing_row| &missing_row.entity).collect();
    let mut records = run.facts.get_latest_records(&entities).await?.into_iter();
    let mut missing = Vec::new();
    for mut row in rows {
        let columns = &row.row_batch.columns;
        row.row_batch.missing_rows.retain(|_| {
            let record = records.next().flatten();
            let is_known = |c: &usize| {
                matches!(
                    row.context.requirements.look_up_cell(record.as_ref(), *c),
                    CellLookup::Known(_)
                )
            };
            let known = columns.iter().all(is_known);
            if known {
                run.answered_by_others.fetch_add(columns.len() as u64, Ordering::Relaxed);
            }
            !known
        });
        let first_key = row.row_batch.missing_rows.first().zip(row.row_batch.columns.first());
        if let Some(first_key) = first_key.and_then(|(missing_row, c)| {
            row.context.requirements.claim_key(&missing_row.entity, *c)
        }) {
            missing.push(ClaimedByOthers { first_key, ..row });
        }
    }
    Ok(TaskOutcome { missing, ..TaskOutcome::default() })
}
