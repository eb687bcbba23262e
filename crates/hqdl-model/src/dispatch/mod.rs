//! Sends requests together through the Batch API, which answers within a day at half the price.
//! Requests are packed, uploaded, submitted, polled and collected.
//!
//! Every step of a *batch job* is in the journal before the next one starts
//! ([`hqdl_facts::batch_jobs`]), so the next run can resume a run that was killed:
//!
//! * If the batch was not requested yet, nothing can have been billed. The job is deleted and its
//!   cells are missing. An upload is found again by its name.
//! * If creation of the batch was requested but not confirmed, the batch is looked up by the token
//!   in its metadata. The job is deleted only if there is none.
//! * After that, the batch is polled and its results are stored. Each answer is settled in the
//!   transaction that stores it, so no answer is stored twice.
//!
//! The worst-case cost of every request is reserved from before the batch is requested until its
//! answer is stored. Requests that the budget does not cover wait until batches in progress are
//! settled.

mod collect;
pub mod template;
mod pack;
pub mod read;
mod send;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tracing::debug;

use self::pack::{BatchBudget, BatchPacker, PackOutcome};
use self::send::to_stop_reason;
use self::template::{AnswerParsers, ColumnUsageEntry};
use crate::ModelError;
use crate::batch::BatchApi;
use crate::budget::{BudgetExhausted, load_run_caps};
use crate::generate::{Event, StopReason, wait_for_stop};
use hqdl_facts::{BatchJob, Facts, FactsError, RunId, Stage};
use hqdl_spec::Limits;
use hqdl_values::usage::SpentAmount;

/// First interval between two polls of a batch. The interval grows to the maximum in the spec.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Factor by which the poll interval grows.
const PAUSE_GROWTH: f64 = 1.5;

/// Number of consecutive failed polls after which the endpoint is considered gone.
const MAX_MISSED_POLLS: u32 = 20;

/// Sends queued batch requests and collects their results.
pub struct Dispatch<'d, 'f> {
    parsers: AnswerParsers<'f>,
    endpoint: Box<dyn BatchApi + 'd>,
    limits: Limits,
    run: RunId,
    spec: String,
    dir: PathBuf,
    interrupt: watch::Receiver<bool>,
    unsent: UnsentJobs,
    /// Whether the endpoint has no capacity. Nothing more is sent until a batch finishes.
    is_endpoint_full: bool,
}

impl Drop for Dispatch<'_, '_> {
    fn drop(&mut self) {
        // This fails if the directory is not empty, as intended.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// Options of a batch run.
pub struct BatchRunOptions<'d> {
    /// The endpoint that the requests are sent to.
    pub endpoint: Box<dyn BatchApi + 'd>,
    /// Budgets and batch limits.
    pub limits: Limits,
    /// Id of the run.
    pub run: RunId,
    /// The spec's full path.
    pub spec: String,
    /// Directory for temporary files; each run has a subdirectory.
    pub dir: PathBuf,
    /// Becomes true when the user interrupts the run.
    pub interrupt: watch::Receiver<bool>,
    /// Uploads of a killed run that [`Dispatch::recover_jobs`] found.
    pub unsent: UnsentJobs,
}

/// Tokens of batch jobs that were never submitted, with the id of their uploaded file.
pub type UnsentJobs = HashMap<String, Option<String>>;

impl<'d, 'f> Dispatch<'d, 'f> {
    /// Prepares a batch run; sends nothing.
    #[must_use]
    pub fn new(parsers: AnswerParsers<'f>, options: BatchRunOptions<'d>) -> Self {
        let BatchRunOptions { endpoint, limits, run, spec, dir, interrupt, unsent } = options;
        let dir = dir.join(run.to_string());
        Self {
            parsers,
            endpoint,
            limits,
            run,
            spec,
            dir,
            interrupt,
            unsent,
            is_endpoint_full: false,
        }
    }

    /// Resumes an interrupted run: discards unsent jobs, polls each sent job once and collects the
    /// finished ones. Returns the files that were uploaded but never submitted.
    ///
    /// # Errors
    /// [`StopReason`] if the journal cannot be read or written, or if the endpoint returns an
    /// error.
    pub async fn recover_jobs(&mut self) -> Result<UnsentJobs, StopReason> {
        let deleted = self.facts().history().delete_unsent_requests(&self.spec, self.run)?;
        self.unsent = deleted.into_iter().map(|p| (p.token, p.input_file)).collect();
        self.delete_old_files()?;
        let batch_jobs = self.facts().history().list_open_batch_jobs(&self.spec)?;
        for mut batch_job in batch_jobs {
            if batch_job.endpoint != self.endpoint.base_url() {
                (self.parsers.events.listener)(&Event::Warning(format!(
                    "batch {} is at another endpoint, {}: collect it with `--base-url {}`",
                    batch_job.batch.as_deref().unwrap_or("(unknown)"),
                    batch_job.endpoint,
                    batch_job.endpoint
                )));
                continue;
            }
            if batch_job.stage == Stage::Creating {
                if let Some(batch) =
                    self.find_batch_of_job(&batch_job).await.map_err(to_stop_reason)?
                {
                    self.mark_batch_job_open(&mut batch_job, &batch)?;
                } else {
                    self.facts().history().delete_batch_job(batch_job.id)?;
                    self.unsent.insert(batch_job.token, batch_job.input_file);
                    continue;
                }
            }
            self.report_job(&batch_job)?;
            self.poll_job(&batch_job, false).await?;
        }
        // Polling may have queued rows for another request. Delete these requests: their cells then
        // count as missing, so this run asks for them together with all other missing cells.
        self.facts().history().delete_unsent_requests(&self.spec, self.run)?;
        Ok(std::mem::take(&mut self.unsent))
    }

    /// Deletes the files of finished runs.
    fn delete_old_files(&self) -> Result<(), FactsError> {
        let entries = self.dir.parent().map(std::fs::read_dir);
        let Some(Ok(entries)) = entries else { return Ok(()) };
        for path in entries.flatten().map(|entry| entry.path()) {
            let run = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<i64>().ok());
            let other_run = run.map(RunId::from).filter(|run| *run != self.run);
            if !other_run.map_or(Ok(false), |run| self.facts().history().is_run_active(run))? {
                let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            }
        }
        Ok(())
    }

    /// Sends all queued requests and collects the results, until the queue is empty and no batch is
    /// in progress.
    ///
    /// # Errors
    /// [`StopReason`] if the budget is exhausted, the user interrupts the run, or the endpoint or
    /// the journal fails. Batches in progress stay at the endpoint, and the next run collects them.
    pub async fn run_to_completion(&mut self) -> Result<(), StopReason> {
        let mut pause = self.first_pause();
        let mut missed_polls = 0;
        loop {
            let exceeded = self.send_queued_requests().await?;
            let open_jobs = self.list_open_jobs()?;
            if *self.interrupt.borrow() {
                return Err(self.interrupt_reason()?);
            }
            if open_jobs.is_empty() {
                // Delete the uploads of a killed run that were not used.
                for file in std::mem::take(&mut self.unsent).into_values().flatten() {
                    let _ = self.endpoint.delete_file(&file).await;
                }
                match exceeded {
                    Some(exceeded) => {
                        return Err(StopReason::Endpoint(ModelError::Budget(exceeded)));
                    }
                    None if self.facts().history().count_queued_requests(self.run)? == 0 => {
                        return Ok(());
                    }
                    // No batch is left that could free capacity by finishing.
                    None => self.is_endpoint_full = false,
                }
                continue;
            }
            tokio::select! {
                biased;
                () = wait_for_stop(&self.interrupt) => return Err(self.interrupt_reason()?),
                () = tokio::time::sleep(pause) => {}
            }
            let mut ended_count = 0;
            for batch_job in &open_jobs {
                let has_others = open_jobs.len() > 1 + ended_count;
                match self.poll_job(batch_job, has_others).await {
                    Ok(has_ended) => {
                        ended_count += usize::from(has_ended);
                        missed_polls = 0;
                    }
                    // A batch takes up to a day, and the endpoint continues to process it even if a
                    // poll fails.
                    Err(StopReason::Gone(reason)) if missed_polls < MAX_MISSED_POLLS => {
                        if missed_polls == 0 {
                            let reason = format!("checking a batch failed; hqdl retries: {reason}");
                            (self.parsers.events.listener)(&Event::Warning(reason));
                        }
                        missed_polls += 1;
                    }
                    Err(reason) => return Err(reason),
                }
            }
            pause = if ended_count > 0 {
                self.first_pause()
            } else {
                pause.mul_f64(PAUSE_GROWTH).min(self.limits.batches.poll)
            };
        }
    }

    /// Packs all queued requests into files that the user sends. Returns each file with its number
    /// of requests and its worst-case cost.
    ///
    /// # Errors
    /// [`StopReason`] if a file cannot be written.
    pub fn export_files(&self, dir: &Path) -> Result<Vec<(PathBuf, u64, SpentAmount)>, StopReason> {
        let packer = BatchPacker { dir, stage: Stage::Exported, ..self.create_packer() };
        let mut files = Vec::new();
        while let PackOutcome::Packed(batch_job, path, worst_case) =
            packer.pack_job(&BatchBudget::default())?
        {
            files.push((path, batch_job.requests, worst_case));
        }
        Ok(files)
    }

    /// Returns the usage of the columns whose answers arrived.
    #[must_use]
    pub fn column_usage(&self) -> Vec<ColumnUsageEntry> {
        self.parsers.column_usage()
    }

    fn facts(&self) -> &'f Facts {
        self.parsers.facts
    }

    fn first_pause(&self) -> Duration {
        FIRST_PAUSE.min(self.limits.batches.poll)
    }

    fn create_packer(&self) -> BatchPacker<'_, 'f> {
        BatchPacker {
            parsers: &self.parsers,
            endpoint: &*self.endpoint,
            limits: self.limits.batches,
            run: self.run,
            spec: &self.spec,
            dir: &self.dir,
            prefix: "hqdl-",
            stage: Stage::Written,
        }
    }

    /// Sends queued requests, as far as the budget and the endpoint allow.
    async fn send_queued_requests(&mut self) -> Result<Option<BudgetExhausted>, StopReason> {
        while !self.is_endpoint_full && !*self.interrupt.borrow() {
            let budget = self.batch_budget()?;
            match self.create_packer().pack_job(&budget)? {
                PackOutcome::Packed(mut batch_job, path, _) => {
                    self.send_job(&mut batch_job, &path).await?;
                }
                PackOutcome::Empty => break,
                PackOutcome::BudgetExceeded(exhausted) => return Ok(Some(exhausted)),
            }
        }
        Ok(None)
    }

    /// Returns the remaining budget, computed from the journal alone.
    fn batch_budget(&self) -> Result<BatchBudget, FactsError> {
        let (caps, committed) =
            load_run_caps(self.facts().history(), &self.limits, Some(self.run))?;
        Ok(BatchBudget { caps, committed })
    }

    /// Returns the batch jobs that this endpoint is processing.
    fn list_open_jobs(&self) -> Result<Vec<BatchJob>, FactsError> {
        let mut open_jobs = self.facts().history().list_open_batch_jobs(&self.spec)?;
        open_jobs.retain(|p| p.endpoint == self.endpoint.base_url() && p.batch.is_some());
        Ok(open_jobs)
    }

    /// Polls a batch once. Returns true if it had finished and was collected.
    async fn poll_job(
        &mut self,
        batch_job: &BatchJob,
        has_others: bool,
    ) -> Result<bool, StopReason> {
        let Some(id) = &batch_job.batch else { return Ok(false) };
        let batch = match self.endpoint.get_batch(id).await {
            Ok(batch) => batch,
            Err(error @ ModelError::Refused { status: 404, .. }) => {
                // The endpoint itself may be gone, not only the batch.
                if self.find_batch_once(batch_job).await.map_err(to_stop_reason)?.is_some() {
                    return Err(to_stop_reason(error));
                }
                self.close_lost_job(batch_job, id).await?;
                return Ok(true);
            }
            Err(error) => return Err(to_stop_reason(error)),
        };
        debug!(batch = batch.id, status = batch.status, "a batch is polled");
        (self.parsers.events.listener)(&Event::Polled {
            batch: batch.id.clone(),
            status: batch.status.clone(),
            completed: batch.completed,
            failed: batch.failed,
            requests: batch_job.requests,
        });
        if batch.has_ended() {
            self.collect_batch(batch_job, &batch, has_others).await?;
        }
        Ok(batch.has_ended())
    }

    /// Reports a batch job of an earlier run.
    fn report_job(&self, batch_job: &BatchJob) -> Result<(), FactsError> {
        let cells = self.facts().history().count_unanswered_cells(batch_job.id)?;
        for (template_id, cells) in cells {
            let context = self.parsers.load_context(template_id, batch_job.run)?;
            let expansion = context.expansion.name.clone();
            (self.parsers.events.listener)(&Event::Begin { expansion, cells });
        }
        Ok(())
    }

    fn interrupt_reason(&self) -> Result<StopReason, FactsError> {
        let open_jobs: Vec<String> =
            self.list_open_jobs()?.into_iter().filter_map(|p| p.batch).collect();
        Ok(if open_jobs.is_empty() {
            StopReason::Interrupted
        } else {
            StopReason::BatchesPending(open_jobs)
        })
    }
}
