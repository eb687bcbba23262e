//! Collects a finished batch: stores its answers, sends failed requests again a limited number of
//! times, and closes the batch job. If the process is killed, collection starts over and skips
//! answers that are already stored.

use std::collections::HashSet;
use std::path::Path;

use tracing::info;

use super::Dispatch;
use super::read::{self, LineCounts, UnansweredSink};
use super::send::to_stop_reason;
use super::template::{self, AnswerParsers, to_row_batch};
use crate::ModelError;
use crate::batch::{Batch, BatchApi};
use crate::generate::{Event, StopReason, split_in_half};
use crate::plan::RowBatch;
use crate::wire;
use hqdl_facts::{BatchJob, BatchedRequest, Completion, FactsError, RunId};
use hqdl_values::cell::State;
use hqdl_values::format::format_count;

/// Maximum number of times that a request is sent if its batch expires or fails as a whole.
const MAX_SENDS: u32 = 2;
/// Maximum number of times that an incomplete file is downloaded again.
const MAX_DOWNLOADS: u32 = 8;
/// Maximum number of times that a request is sent if it fails while others succeed.
const MAX_TRIES: u32 = 3;

impl Dispatch<'_, '_> {
    /// Stores the answers of a finished batch and closes its batch job. `has_others` states whether
    /// more batches are in progress.
    pub(super) async fn collect_batch(
        &mut self,
        batch_job: &BatchJob,
        batch: &Batch,
        has_others: bool,
    ) -> Result<(), StopReason> {
        let history = || self.facts().history();
        let mut handler = UnansweredRequests {
            parsers: &self.parsers,
            run: self.run,
            endpoint: &*self.endpoint,
            retry_policy: RetryPolicy::for_batch(batch, has_others),
            has_answers: batch.completed > 0,
            status: &batch.status,
            given_up: Vec::new(),
            cancelled: 0,
            refused: None,
        };
        let mut lines = LineCounts::default();
        let mut deleted = Vec::new();
        let files = [
            (&batch.output_file, "output", batch.output_lines),
            (&batch.error_file, "errors", batch.failed),
        ];
        for (file, what, line_count) in files {
            let Some(file) = file else { continue };
            std::fs::create_dir_all(&self.dir)
                .map_err(|error| FactsError::File { path: self.dir.clone(), error })?;
            let path = self.dir.join(format!("{}.{what}.jsonl", batch_job.token));
            match self.download_complete_file(file, &path, line_count).await {
                Ok(()) => {}
                // The batch exists, so its file was deleted or has expired.
                Err(StopReason::Endpoint(ModelError::Refused { status: 404, .. })) => {
                    deleted.push(what);
                    continue;
                }
                Err(reason) => return Err(reason),
            }
            let read = self.parsers.read_file(&path, Some(batch_job.id), &mut handler).await?;
            lines.answered += read.answered;
            lines.failed += read.failed;
            lines.unreadable += read.unreadable;
            let _ = std::fs::remove_file(&path);
        }
        if deleted.contains(&"output") {
            let id = &batch.id;
            self.charge_unconfirmed_requests(
                batch_job,
                format!("the endpoint no longer has the output of {id}"),
            )
            .await?;
        }
        // Requests without an output line.
        let unanswered = history().list_unanswered_requests(batch_job.id)?;
        for id in unanswered {
            let Some(request) = history().load_request(id)? else { continue };
            lines.failed += 1;
            let message = match &batch.error {
                Some((code, message)) => format!("the batch {}: {code}: {message}", batch.status),
                None => {
                    format!("the batch is {} and contains no answer to this request", batch.status)
                }
            };
            let error = ModelError::Temporary { message, wait: None, in_doubt: false };
            handler.record_failed_request(request, error)?;
        }
        let UnansweredRequests { given_up, cancelled, refused, retry_policy, .. } = handler;
        for (id, state, reason) in given_up {
            let Some(request) = history().load_request(id)? else { continue };
            self.store_failure(&request, state, &reason).await?;
        }
        history().close_batch_job(batch_job.id, &batch.status)?;
        info!(batch = batch.id, status = batch.status, ?lines, "a batch is collected");
        (self.parsers.events.listener)(&Event::Collected {
            batch: batch.id.clone(),
            status: batch.status.clone(),
            answered: lines.answered,
            failed: lines.failed,
        });
        if cancelled > 0 {
            (self.parsers.events.listener)(&Event::Warning(format!(
                "{} was cancelled; {cancelled} of its requests have no answer, and the next run sends them again",
                batch.id
            )));
        }
        if lines.unreadable > 0 {
            (self.parsers.events.listener)(&Event::Warning(format!(
                "{}: ignored {} that hqdl cannot read as output of a batch",
                batch.id,
                format_count(lines.unreadable, "line")
            )));
        }
        // A finished batch frees capacity at the endpoint, unless the batch never entered the
        // queue.
        self.is_endpoint_full = retry_policy == RetryPolicy::Requeue;
        refused.map_or(Ok(()), |error| Err(StopReason::Endpoint(error)))
    }

    /// Downloads a file with `lines` lines. A file with fewer lines was silently truncated and must
    /// be downloaded again, because paid answers would be lost otherwise. If the new download has
    /// the same length as the last one, it is accepted.
    async fn download_complete_file(
        &self,
        file: &str,
        path: &Path,
        lines: u64,
    ) -> Result<(), StopReason> {
        let disk = |error| FactsError::File { path: path.to_owned(), error };
        let mut lengths = HashSet::new();
        loop {
            self.endpoint.download_file(file, path).await.map_err(to_stop_reason)?;
            let found = read::count_output_lines(path).map_err(disk)?;
            let length = std::fs::metadata(path).map_err(disk)?.len();
            if found >= lines || !lengths.insert(length) {
                return Ok(());
            }
            info!(file, found, lines, "a file is incomplete and is downloaded again");
            if lengths.len() > MAX_DOWNLOADS as usize {
                let why =
                    format!("only {found} of {lines} lines of {file} arrive, even after retries");
                return Err(StopReason::Gone(why));
            }
            tokio::time::sleep(self.first_pause()).await;
        }
    }

    /// Closes a batch job that the endpoint no longer knows. Its cells are missing and may be asked
    /// for again.
    pub(super) async fn close_lost_job(
        &self,
        batch_job: &BatchJob,
        batch: &str,
    ) -> Result<(), StopReason> {
        self.charge_unconfirmed_requests(
            batch_job,
            format!("the endpoint no longer knows {batch}"),
        )
        .await?;
        self.facts().history().close_batch_job(batch_job.id, "lost")?;
        Ok(())
    }

    /// Counts every unanswered request of a batch at its worst-case cost, because the request may
    /// have been answered and billed.
    async fn charge_unconfirmed_requests(
        &self,
        batch_job: &BatchJob,
        reason: String,
    ) -> Result<(), StopReason> {
        let unanswered = self.facts().history().list_unanswered_requests(batch_job.id)?;
        for id in unanswered {
            let request = self.facts().history().load_request(id)?;
            let Some(request) = request else { continue };
            let completion = Completion {
                error: Some(reason.clone()),
                cost_usd: request.worst_case.usd,
                input_tokens: request.worst_case.tokens,
                ..self.build_completion(&request)?
            };
            let answers = Some(request.id);
            let unit = hqdl_facts::CommitUnit { completion, answers, ..Default::default() };
            self.parsers.facts.commit_unit(unit).await?;
        }
        (self.parsers.events.listener)(&Event::Warning(format!(
            "{reason}: what it may have cost counts against the budget"
        )));
        Ok(())
    }

    /// Stores the permanent failure of a request as the state of its cells.
    async fn store_failure(
        &self,
        request: &BatchedRequest,
        state: State,
        reason: &str,
    ) -> Result<(), StopReason> {
        let context = self.parsers.load_context(request.template, request.run)?;
        let completion = self.build_completion(request)?;
        if state == State::Error {
            (self.parsers.events.listener)(&Event::Failed(reason.to_owned()));
        }
        context
            .store_failed_cells(&to_row_batch(request), completion, state, reason, Some(request.id))
            .await
    }

    fn build_completion(&self, request: &BatchedRequest) -> Result<Completion, StopReason> {
        let context = self.parsers.load_context(request.template, request.run)?;
        let row_batch = to_row_batch(request);
        let (_, prompt) = context.build_prompt(&row_batch);
        let asked_at = request.sent_at.clone();
        Ok(Completion { asked_at, ..context.new_completion(&row_batch, prompt.provenance_hash()) })
    }
}

/// Retry policy for a batch's requests without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryPolicy {
    /// The requests are sent up to this many times in total, then fail.
    Retry(u32),
    /// The requests are sent again once; then the run stops.
    RetryOnce,
    /// The requests are sent again when the endpoint has capacity.
    Requeue,
    /// The requests are left for the next run.
    LeaveForNextRun,
}

impl RetryPolicy {
    fn for_batch(batch: &Batch, has_others: bool) -> Self {
        let code = batch.error.as_ref().map(|(code, _)| code.as_str());
        match batch.status.as_str() {
            // The batch was cancelled at the endpoint.
            "cancelled" => Self::LeaveForNextRun,
            // The endpoint's limit of queued tokens is exceeded.
            "failed" if code == Some("token_limit_exceeded") && has_others => Self::Requeue,
            "failed" => Self::RetryOnce,
            "expired" => Self::Retry(MAX_SENDS),
            _ => Self::Retry(MAX_TRIES),
        }
    }
}

/// Handles a batch's requests that have no answer.
struct UnansweredRequests<'r, 'f> {
    parsers: &'r AnswerParsers<'f>,
    /// The run whose queue receives the requests to retry.
    run: RunId,
    endpoint: &'r (dyn BatchApi + 'r),
    retry_policy: RetryPolicy,
    /// Whether the batch contains any answer. If it does, a failure is due to the rows.
    has_answers: bool,
    status: &'r str,
    given_up: Vec<(i64, State, String)>,
    cancelled: u64,
    refused: Option<ModelError>,
}

impl UnansweredSink for UnansweredRequests<'_, '_> {
    fn queue_retries(
        &mut self,
        template_id: i64,
        row_batches: Vec<(RowBatch, u32)>,
    ) -> Result<(), StopReason> {
        enqueue_retries(self.parsers, self.run, template_id, row_batches)
    }

    fn record_failed_request(
        &mut self,
        request: BatchedRequest,
        error: ModelError,
    ) -> Result<(), StopReason> {
        let history = || self.parsers.facts.history();
        let row_batch = to_row_batch(&request);
        // A rejected request is not billed. If the endpoint rejected `response_format`, later
        // requests leave it out.
        let error = match error {
            ModelError::Refused { .. } => self.endpoint.interpret_error(error),
            error => error,
        };
        match (error, self.retry_policy) {
            (ModelError::TooLong(_) | ModelError::Filtered(_), _)
                if row_batch.missing_rows.len() > 1 =>
            {
                enqueue_retries(
                    self.parsers,
                    self.run,
                    request.template,
                    split_in_half(&row_batch, request.attempt),
                )?;
                history().drop_request(request.id)?;
            }
            (ModelError::Temporary { .. }, RetryPolicy::LeaveForNextRun) => {
                self.cancelled += 1;
                history().drop_request(request.id)?;
            }
            (ModelError::Temporary { .. }, RetryPolicy::Requeue) => {
                history().requeue_request(request.id, self.run, false)?;
            }
            // The request failed although others were answered, so its rows are to blame.
            (ModelError::Temporary { .. }, RetryPolicy::Retry(MAX_TRIES))
                if request.sent_count >= MAX_TRIES
                    && self.has_answers
                    && row_batch.missing_rows.len() > 1 =>
            {
                enqueue_retries(
                    self.parsers,
                    self.run,
                    request.template,
                    split_in_half(&row_batch, request.attempt),
                )?;
                history().drop_request(request.id)?;
            }
            (ModelError::Temporary { message, .. }, RetryPolicy::Retry(max))
                if request.sent_count >= max =>
            {
                self.given_up.push((request.id, State::Error, message));
            }
            (ModelError::Temporary { message, .. }, RetryPolicy::RetryOnce)
                if request.sent_count >= MAX_SENDS =>
            {
                let message = format!(
                    "{message} (sent {})",
                    format_count(u64::from(request.sent_count), "time")
                );
                self.refused.get_or_insert(wire::refused_error(400, message));
                history().drop_request(request.id)?;
            }
            (ModelError::Temporary { .. }, _) => {
                history().requeue_request(request.id, self.run, true)?;
            }
            // The endpoint rejects the content of a single row.
            (error @ ModelError::Filtered(_), _) => {
                self.given_up.push((request.id, State::Refused, error.to_string()));
            }
            (
                error @ (ModelError::Refused { .. }
                | ModelError::Budget(_)
                | ModelError::NoConnection { .. }
                | ModelError::NoMedia { .. }
                | ModelError::Usage(_)),
                _,
            ) => {
                self.refused.get_or_insert(error);
                history().drop_request(request.id)?;
            }
            (
                error @ (ModelError::TooLong(_)
                | ModelError::Unfinished(_)
                | ModelError::NoAnswer(_)),
                _,
            ) => {
                let reason = format!("{error} (batch {})", self.status);
                self.given_up.push((request.id, State::Error, reason));
            }
        }
        Ok(())
    }
}

/// Queues rows for another request.
fn enqueue_retries(
    parsers: &AnswerParsers<'_>,
    run: RunId,
    template_id: i64,
    row_batches: Vec<(RowBatch, u32)>,
) -> Result<(), StopReason> {
    let context = parsers.load_context(template_id, parsers.run.unwrap_or_default())?;
    let requests: Vec<BatchedRequest> = row_batches
        .into_iter()
        .map(|(row_batch, attempt)| {
            template::new_request(template_id, &context.requirements, row_batch, attempt)
        })
        .collect();
    parsers.facts.history().enqueue_requests(run, &requests)?;
    Ok(())
}
