//! Sends a batch job to the endpoint: uploads its file and creates the batch. The batch is never
//! created twice, even if the process is killed or the connection breaks.

use std::path::Path;
use std::time::Duration;

use tracing::info;

use super::Dispatch;
use crate::ModelError;
use crate::batch::{Batch, BatchQuery};
use crate::budget::{BudgetExhausted, Caps};
use crate::generate::{Event, StopReason, wait_for_stop};
use hqdl_facts::{BatchJob, KnownRequest, Stage};
use hqdl_values::usage::SpentAmount;

/// Maximum number of times that hqdl requests the creation of a batch that remains unconfirmed.
const MAX_TRIES: u32 = 5;

impl Dispatch<'_, '_> {
    /// Uploads the file of a batch job and creates its batch.
    pub(super) async fn send_job(
        &mut self,
        batch_job: &mut BatchJob,
        path: &Path,
    ) -> Result<(), StopReason> {
        let file = match self.upload_file(batch_job, path).await {
            // The user interrupted the run before the batch was requested.
            Ok(None) if *self.interrupt.borrow() => return Ok(()),
            Ok(file) => file,
            Err(error) => {
                self.facts().history().delete_batch_job(batch_job.id)?;
                return Err(to_stop_reason(error));
            }
        };
        if let Some(file) = &file {
            self.facts().history().mark_batch_job_uploaded(batch_job.id, file)?;
        }
        // From here on, the batch may exist.
        let daily_budget = self.limits.budget_usd_per_day;
        let exceeded =
            self.facts().history().mark_batch_job_creating(batch_job.id, daily_budget)?;
        if let Some(spent_usd) = exceeded {
            // Other runs have spent the budget since this job was packed.
            let next = self.facts().history().sum_worst_case_cost(batch_job.id)?;
            self.facts().history().delete_batch_job(batch_job.id)?;
            self.delete_upload(file.as_deref()).await;
            let caps = Caps::for_day(daily_budget);
            let spent = SpentAmount { usd: spent_usd, tokens: 0 };
            return Err(StopReason::Endpoint(ModelError::Budget(BudgetExhausted {
                caps,
                spent,
                next,
            })));
        }
        match self.create_batch(batch_job, path, file.as_deref()).await {
            Ok(batch) => {
                self.mark_batch_job_open(batch_job, &batch)?;
                let _ = std::fs::remove_file(path);
                info!(batch = batch.id, requests = batch_job.requests, "a batch is submitted");
                (self.parsers.events.listener)(&Event::Submitted {
                    batch: batch.id,
                    requests: batch_job.requests,
                });
                Ok(())
            }
            Err(error @ ModelError::Temporary { .. }) => Err(to_stop_reason(error)),
            // The endpoint definitely rejected the batch, so it does not exist.
            Err(error) => {
                self.facts().history().delete_batch_job(batch_job.id)?;
                self.delete_upload(file.as_deref()).await;
                Err(to_stop_reason(error))
            }
        }
    }

    /// Records which batch at the endpoint contains the requests of a batch job.
    pub(super) fn mark_batch_job_open(
        &self,
        batch_job: &mut BatchJob,
        batch: &Batch,
    ) -> Result<(), StopReason> {
        self.facts().history().mark_batch_job_open(batch_job.id, &batch.id)?;
        batch_job.batch = Some(batch.id.clone());
        batch_job.stage = Stage::Open;
        Ok(())
    }

    /// Finds the batch of a job whose run was killed while the batch was being created. Returns
    /// `None` if the batch was never created.
    pub(super) async fn find_batch_of_job(
        &self,
        batch_job: &BatchJob,
    ) -> Result<Option<Batch>, ModelError> {
        let found = self.find_batch_once(batch_job).await?;
        if found.is_some() {
            return Ok(found);
        }
        // A batch created just now may not be listed yet.
        tokio::time::sleep(self.first_pause()).await;
        self.find_batch_once(batch_job).await
    }

    /// Asks the endpoint once for the batch of a job.
    pub(super) async fn find_batch_once(
        &self,
        batch_job: &BatchJob,
    ) -> Result<Option<Batch>, ModelError> {
        let history = self.facts().history();
        let journal_error = |e: hqdl_facts::FactsError| ModelError::NoAnswer(e.to_string());
        let requests = history.list_unanswered_requests(batch_job.id).map_err(journal_error)?;
        let first = match requests.first() {
            Some(id) => history.load_request(*id).map_err(journal_error)?,
            None => None,
        };
        let has_request = |custom_id: &str| {
            let found = history.find_request(custom_id, Some(batch_job.id));
            matches!(found, Ok(KnownRequest::Open(_) | KnownRequest::Done))
        };
        self.endpoint
            .find_batch(&BatchQuery {
                token: &batch_job.token,
                requests: batch_job.requests,
                sent_at: first.and_then(|request| request.sent_at.parse().ok()),
                has_request: &has_request,
            })
            .await
    }

    async fn delete_upload(&self, file: Option<&str>) {
        if let Some(file) = file {
            let _ = self.endpoint.delete_file(file).await;
        }
    }

    /// Returns the uploaded file of a batch job: an upload from a killed run, or a new one. `None`
    /// if the run was interrupted, or if the endpoint accepts no files.
    async fn upload_file(
        &mut self,
        batch_job: &BatchJob,
        path: &Path,
    ) -> Result<Option<String>, ModelError> {
        let name = format!("hqdl-{}.jsonl", batch_job.token);
        if let Some(earlier_upload) = self.unsent.remove(&batch_job.token) {
            let size = std::fs::metadata(path).map_or(0, |m| m.len());
            let found = match earlier_upload {
                Some(file) => Some(file),
                // If the endpoint cannot list files, upload the file again.
                None => self.endpoint.find_upload(&name, size).await.unwrap_or_default(),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        tokio::select! {
            biased;
            uploaded = self.endpoint.upload_file(path, &name) => uploaded,
            () = wait_for_stop(&self.interrupt) => Ok(None),
        }
    }

    /// Creates a batch. If the creation is unconfirmed, looks for the batch before it requests the
    /// creation again.
    async fn create_batch(
        &self,
        batch_job: &BatchJob,
        path: &Path,
        file: Option<&str>,
    ) -> Result<Batch, ModelError> {
        let mut attempts = 1;
        loop {
            let error = match self.endpoint.create_batch(path, file, &batch_job.token).await {
                Err(error @ ModelError::Temporary { .. }) if attempts < MAX_TRIES => error,
                result => return result,
            };
            let requested_pause = match error {
                ModelError::Temporary { wait: Some(wait), .. } => wait,
                _ => Duration::ZERO,
            };
            let pause = self.first_pause() * 2u32.pow(attempts - 1);
            tokio::time::sleep(pause.max(requested_pause.min(crate::limits::MAX_PAUSE))).await;
            if let Some(batch) = self.find_batch_once(batch_job).await? {
                return Ok(batch);
            }
            attempts += 1;
        }
    }
}

/// Converts an endpoint's error to the reason why the run stops.
pub(super) fn to_stop_reason(error: ModelError) -> StopReason {
    match error {
        ModelError::Temporary { message, .. } => StopReason::Gone(message),
        error => StopReason::Endpoint(error),
    }
}
