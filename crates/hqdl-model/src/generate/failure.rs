//! Handles a request that failed as a whole: splits it, defers it, or stores its cells as failed.

use std::sync::Arc;

use super::circuit_breaker::EndpointHealth;
use super::packing::split_in_half;
use super::{Context, Event, MAX_ATTEMPTS, ModelRun, PendingRequest, StopReason};
use crate::ModelError;
use crate::plan::RowBatch;
use hqdl_facts::Completion;
use hqdl_values::cell::State;

/// A deferred request: it failed while no other request was answered.
pub(super) struct DeferredRequest {
    context: Arc<Context>,
    row_batch: RowBatch,
    attempt: u32,
    /// Number of answers when the request was sent.
    since_answers: u64,
    completion: Completion,
    reason: String,
}

impl Context {
    /// Handles a failed request. Returns the rows to request now, and the request itself if it must
    /// be deferred.
    pub(super) async fn retry_or_store_failure(
        self: &Arc<Self>,
        pending: PendingRequest,
        completion: Completion,
        error: ModelError,
        since: u64,
    ) -> Result<(Vec<PendingRequest>, Option<DeferredRequest>), StopReason> {
        let PendingRequest { row_batch, attempt, piece_since } = pending;
        let is_single = row_batch.missing_rows.len() == 1;
        let retry = |row_batches: Vec<(RowBatch, u32)>| {
            let pending =
                |(row_batch, attempt)| PendingRequest { row_batch, attempt, piece_since: None };
            Ok((row_batches.into_iter().map(pending).collect(), None))
        };
        match &error {
            // A part of the request may fit into the budget.
            ModelError::TooLong(_) | ModelError::Budget(_) if !is_single => {
                return retry(split_in_half(&row_batch, attempt));
            }
            // Other rows of a column with several kinds of media may have media that are accepted.
            ModelError::NoMedia { media, .. } if !self.declares_media(&row_batch, media) => {}
            ModelError::Refused { .. }
            | ModelError::NoMedia { .. }
            | ModelError::Budget(_)
            | ModelError::Usage(_) => {
                return Err(error.into());
            }
            ModelError::Filtered(_) => {
                let too_many_rejections = self.run.circuit_breaker.record_rejection();
                if !is_single {
                    return retry(if too_many_rejections {
                        split_into_rows(&row_batch, attempt)
                    } else {
                        split_in_half(&row_batch, attempt)
                    });
                }
                self.store_failed_cells(
                    &row_batch,
                    completion,
                    State::Refused,
                    &error.to_string(),
                    None,
                )
                .await?;
                return Ok((Vec::new(), None));
            }
            // The endpoint cannot be reached, so the rows are not to blame.
            ModelError::NoConnection { .. } if self.run.circuit_breaker.answer_count() == 0 => {
                return Err(error.into());
            }
            ModelError::Temporary { .. }
            | ModelError::Unfinished(_)
            | ModelError::NoConnection { .. } => {
                let (since_answers, is_part) =
                    (piece_since.unwrap_or(since), piece_since.is_some());
                let health = self.record_endpoint_failure(&error, since_answers, is_part);
                if health == EndpointHealth::Gone {
                    (self.run.events.listener)(&Event::Failed(error.to_string()));
                    return Err(StopReason::Gone(error.to_string()));
                }
                if is_single && matches!(error, ModelError::Unfinished(_)) && attempt < MAX_ATTEMPTS
                {
                    return retry(vec![(row_batch, attempt + 1)]);
                }
                if !is_single {
                    let deferred = DeferredRequest {
                        context: Arc::clone(self),
                        row_batch,
                        attempt,
                        since_answers,
                        completion,
                        reason: error.to_string(),
                    };
                    return Ok(match health {
                        EndpointHealth::Alive => (deferred.split_rows(), None),
                        _ => (Vec::new(), Some(deferred)),
                    });
                }
            }
            ModelError::TooLong(_) | ModelError::NoAnswer(_) => {}
        }
        (self.run.events.listener)(&Event::Failed(error.to_string()));
        self.store_failed_cells(&row_batch, completion, State::Error, &error.to_string(), None)
            .await?;
        Ok((Vec::new(), None))
    }

    /// Returns true if a column of the rows contains only media of this kind.
    fn declares_media(&self, row_batch: &RowBatch, plural: &str) -> bool {
        let mut kinds = self.list_row_media(row_batch).filter_map(|(column, _)| column.kind);
        kinds.any(|kind| kind.plural == plural)
    }

    /// Records a failure that may be the endpoint's. Warns of the first request that times out,
    /// because the run continues for minutes without any other message.
    fn record_endpoint_failure(
        &self,
        error: &ModelError,
        since_answers: u64,
        is_part: bool,
    ) -> EndpointHealth {
        let breaker = &self.run.circuit_breaker;
        let is_first = breaker.failure_count() == 0;
        let health = breaker.record_failure(error, since_answers, is_part, self.packing.max_rows());
        if is_first && matches!(error, ModelError::Unfinished(_)) {
            let message = format!("{error}; hqdl tries again before it gives up");
            (self.run.events.listener)(&Event::Warning(message));
        }
        health
    }
}

impl DeferredRequest {
    /// Gives up the request and stores its rows as failed.
    pub(super) async fn store_failure(self) -> Result<(), StopReason> {
        let Self { context, row_batch, completion, reason, .. } = self;
        (context.run.events.listener)(&Event::Failed(reason.clone()));
        context.store_failed_cells(&row_batch, completion, State::Error, &reason, None).await
    }

    fn split_rows(&self) -> Vec<PendingRequest> {
        let piece_since = Some(self.context.run.circuit_breaker.answer_count());
        let halves = split_in_half(&self.row_batch, self.attempt).into_iter();
        halves
            .map(|(row_batch, attempt)| PendingRequest { row_batch, attempt, piece_since })
            .collect()
    }
}

/// Removes a deferred request that can be sent now, because the endpoint has answered since or no
/// other request is left (`is_last`). Returns its parts, with their context.
pub(super) fn take_next_deferred_request(
    run: &ModelRun,
    deferred: &mut Vec<DeferredRequest>,
    is_last: bool,
) -> Option<(Arc<Context>, Vec<PendingRequest>)> {
    let answers = run.circuit_breaker.answer_count();
    let position = deferred.iter().position(|a| is_last || answers > a.since_answers)?;
    let request = deferred.swap_remove(position);
    let parts = request.split_rows();
    Some((request.context, parts))
}

fn split_into_rows(row_batch: &RowBatch, attempt: u32) -> Vec<(RowBatch, u32)> {
    let rows = row_batch.missing_rows.iter().map(|missing_row| RowBatch {
        missing_rows: vec![missing_row.clone()],
        ..row_batch.clone()
    });
    rows.map(|row_batch| (row_batch, attempt)).collect()
}
