//! Sends requests through the Batch API. All missing rows first go into the journal's queue; from
//! there they are sent in batch jobs ([`hqdl_model::dispatch`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use super::coverage::CoverageReport;
use super::run::Run;
use super::{MaterializeError, Materializer, Report, RunMode, WalkError};
use hqdl_facts::{BatchedRequest, Facts, NamedLock, Outcome};
use hqdl_model::ModelError;
use hqdl_model::dispatch::read::{LineCounts, UnansweredSink};
use hqdl_model::dispatch::template::{
    AnswerParsers, ColumnUsageEntry, RequestTemplate, new_request,
};
use hqdl_model::dispatch::{BatchRunOptions, Dispatch};
use hqdl_model::generate::{ClaimedBatches, Event, Listener, StopReason, claim_row_batch};
use hqdl_model::plan::RowBatch;
use hqdl_values::cell::Tally;
use hqdl_values::usage::{SpentAmount, Usage};

/// Number of requests that are queued in one commit.
const ENQUEUE_CHUNK: usize = 500;

/// Result of an import.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportResult {
    /// Counts of the imported lines, by outcome.
    pub lines: LineCounts,
    /// Tokens and cost of the answers.
    pub usage: Usage,
    /// Imported cells, by state.
    pub cells: Tally,
    /// Usage per column.
    pub columns: Vec<ColumnUsageEntry>,
}

/// Sink for imports: leaves the cells of a failed request missing, so that the next run asks for
/// them again.
struct MissingSink<'f>(&'f Facts);

impl UnansweredSink for MissingSink<'_> {
    fn queue_retries(&mut self, _: i64, _: Vec<(RowBatch, u32)>) -> Result<(), StopReason> {
        Ok(())
    }

    fn record_failed_request(
        &mut self,
        request: BatchedRequest,
        _: ModelError,
    ) -> Result<(), StopReason> {
        Ok(self.0.history().mark_export_failed(request.id)?)
    }
}

/// Result of [`Materializer::export_batches`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExportResult {
    /// The files that were written.
    pub files: Vec<ExportFile>,
    /// Unanswered files from earlier exports, whose cells were not exported again.
    pub unanswered_files: Vec<UnansweredFile>,
}

/// A file from an earlier export that is not answered yet.
#[derive(Debug, Clone, PartialEq)]
pub struct UnansweredFile {
    /// Path of the file; `None` if it is no longer known.
    pub path: Option<PathBuf>,
    /// Number of the file's requests without an answer.
    pub unanswered_requests: u64,
    /// Number of requests in the file.
    pub requests: u64,
    /// Number of missing cells that the file requests.
    pub cells: u64,
}

/// A file of requests for the user to submit.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Number of requests in the file.
    pub requests: u64,
    /// Maximum cost of the file at batch prices, and maximum number of tokens.
    pub max_spent: SpentAmount,
}

impl Materializer<'_> {
    /// Acquires the lock on the spec's batches, and waits while another run holds it.
    pub(super) fn lock_batches(
        &self,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<NamedLock<'_>, MaterializeError> {
        let name = self.batch_lock_name();
        if let Some(lock) = self.facts.try_lock(&name)? {
            return Ok(lock);
        }
        let notice = "another run sends batches of this spec; this run waits until it ends";
        listener(&Event::Warning(notice.to_owned()));
        let lock = self.facts.lock(&name, interrupt)?;
        lock.ok_or(MaterializeError::Stopped(StopReason::Interrupted))
    }

    fn batch_lock_name(&self) -> String {
        format!("batches {}", self.spec.full_path())
    }

    /// Collects the answers of earlier runs' batch jobs and discards jobs that were never sent.
    /// Returns the run if there was anything to do. `has_lock` is true if the caller already holds
    /// the lock on the spec's batches.
    pub(super) fn recover_batches(
        &self,
        has_lock: bool,
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<Option<Run>, MaterializeError> {
        let has_interrupted =
            self.facts.history().has_interrupted_batch_run(&self.spec.full_path())?;
        if self.run_mode == RunMode::CachedOnly || !has_interrupted {
            return Ok(None);
        }
        // If another run holds the lock, it collects the answers itself.
        let lock = if has_lock { None } else { self.facts.try_lock(&self.batch_lock_name())? };
        if !has_lock && lock.is_none() {
            return Ok(None);
        }
        let mut run = self.start_run(command, listener)?;
        let recovered = self.create_dispatch(&run, interrupt).map(|mut dispatch| {
            let unsent = run.runtime.block_on(dispatch.recover_jobs());
            report.add_usage(&dispatch.column_usage());
            unsent
        });
        match recovered {
            Some(Ok(unsent)) => run.unsent = unsent,
            Some(Err(stopped)) => report.stop_reason = Some(Arc::new(stopped)),
            None => {}
        }
        Ok(Some(run))
    }

    /// Sends the missing cells through the Batch API and waits for the answers.
    pub(super) fn send_batches(
        &self,
        run: &Run,
        coverages: &[CoverageReport<'_>],
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) {
        let Some(mut dispatch) = self.create_dispatch(run, interrupt) else { return };
        if let Err(failed) = self.enqueue_missing_cells(run, coverages, interrupt) {
            report.failure = Some(failed);
            return;
        }
        if let Err(stopped) = run.runtime.block_on(dispatch.run_to_completion()) {
            report.stop_reason = Some(Arc::new(stopped));
        }
        report.add_answers(&dispatch.column_usage());
    }

    /// Writes requests for the missing cells into files that the user submits. The export sends
    /// nothing and does not use the budget; [`Materializer::plan_requests`] computes the cost.
    /// Cells in earlier, unanswered files are skipped unless `include_unanswered` is set.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if keys cannot be read or a file cannot be written.
    pub fn export_batches(
        &self,
        (dir, include_unanswered): (&Path, bool),
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<ExportResult, MaterializeError> {
        if self.model.batch_api().is_none() {
            return Err(MaterializeError::BatchesUnsupported);
        }
        self.ensure_batch_support()?;
        let _lock = self.lock_batches(listener, interrupt)?;
        self.exported_cells.replace((!include_unanswered).then(BTreeMap::new));
        let mut coverages = Vec::new();
        for n in 0..self.spec.expansions.len() {
            coverages.push(self.compute_coverage(n, false)?);
        }
        let warnings = self.check_filter(&coverages)?;
        warnings.into_iter().for_each(|warning| listener(&Event::Warning(warning)));
        let unanswered_files = self.exported_cells.borrow().clone().unwrap_or_default();
        let unanswered_files = unanswered_files
            .into_iter()
            .map(|(batch_job_id, cells)| self.load_unanswered_file(batch_job_id, cells));
        let unanswered_files: Vec<UnansweredFile> = unanswered_files.collect::<Result<_, _>>()?;
        // Use a separate run, which has no budget.
        let id = self.facts.history().start_run(command, "")?;
        self.facts.history().delete_unsent_requests(&self.spec.full_path(), id)?;
        let run = Run::open(id, listener)?;
        let dispatch =
            self.create_dispatch(&run, interrupt).ok_or(MaterializeError::BatchesUnsupported)?;
        self.enqueue_missing_cells(&run, &coverages, interrupt)?;
        if *interrupt.borrow() {
            return Err(MaterializeError::Stopped(StopReason::Interrupted));
        }
        let files = dispatch.export_files(dir).map_err(MaterializeError::Stopped)?;
        self.facts.history().finish_run(id, Outcome::Complete)?;
        let to_export_file = |(path, requests, max_spent)| ExportFile { path, requests, max_spent };
        Ok(ExportResult {
            files: files.into_iter().map(to_export_file).collect(),
            unanswered_files,
        })
    }

    fn load_unanswered_file(
        &self,
        batch_job_id: i64,
        cells: u64,
    ) -> Result<UnansweredFile, MaterializeError> {
        let (batch_job, unanswered) = self.facts.history().load_batch_job(batch_job_id)?;
        let path = batch_job.file.map(PathBuf::from);
        Ok(UnansweredFile {
            path,
            unanswered_requests: unanswered,
            requests: batch_job.requests,
            cells,
        })
    }

    /// Imports answer files of batches. Each answer to a request that was exported from this fact
    /// store is stored exactly once.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if a file cannot be read or an answer cannot be stored, or if
    /// `interrupt` becomes true while another process is importing. Answers that were already
    /// imported remain stored.
    pub fn import_answers(
        &self,
        files: &[PathBuf],
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<ImportResult, MaterializeError> {
        // The lock prevents two processes from importing the same answer at the same time.
        let lock = self.facts.lock("import", interrupt)?;
        let _lock = lock.ok_or(MaterializeError::Stopped(StopReason::Interrupted))?;
        let id = self.facts.history().start_run(command, "")?;
        let run = Run::open(id, listener)?;
        let mut parsers = self.create_answer_parsers(&run);
        parsers.run = Some(id);
        let mut lines = LineCounts::default();
        let result = run.runtime.block_on(async {
            for file in files {
                let file_lines =
                    parsers.read_file(file, None, &mut MissingSink(self.facts)).await?;
                lines.answered += file_lines.answered;
                lines.failed += file_lines.failed;
                lines.known += file_lines.known;
                lines.unknown += file_lines.unknown;
                lines.unreadable += file_lines.unreadable;
            }
            Ok(())
        });
        let columns = parsers.column_usage();
        drop(parsers);
        let stopped = result.err().map(Arc::new);
        let mut report = Report { stop_reason: stopped, ..Report::default() };
        self.update_report(Some(&run), &mut report);
        // An import publishes nothing. The spec's next run publishes the answers.
        self.finish_run(Some(run), true, &mut report);
        match (report.failure.take(), report.stop_reason.take().and_then(Arc::into_inner)) {
            (Some(failed), _) => Err(failed),
            (None, Some(stopped)) => Err(MaterializeError::Stopped(stopped)),
            (None, None) => {
                Ok(ImportResult { lines, usage: report.usage, cells: report.requested, columns })
            }
        }
    }

    /// Adds requests for all missing cells to the queue.
    fn enqueue_missing_cells(
        &self,
        run: &Run,
        coverages: &[CoverageReport<'_>],
        interrupt: &watch::Receiver<bool>,
    ) -> Result<(), MaterializeError> {
        for (n, coverage) in coverages.iter().enumerate() {
            let cells = coverage.count_missing_cells();
            if cells == 0 {
                continue;
            }
            let expansion = self.spec.expansions[n].name.clone();
            (run.events.listener)(&Event::Begin { expansion, cells });
            for model in self.models[n].first_positions() {
                if coverage.count_missing_cells_of_model(model) > 0 {
                    self.enqueue_for_model((n, model), run, coverage, interrupt)?;
                }
            }
        }
        Ok(())
    }

    /// Adds requests for the missing cells that one model of an expansion answers.
    fn enqueue_for_model(
        &self,
        (n, model): (usize, usize),
        run: &Run,
        coverage: &CoverageReport<'_>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<(), MaterializeError> {
        let choice = self.models[n].choices()[model].clone();
        let template = RequestTemplate::new(&self.spec.expansions[n], choice);
        let text = serde_json::to_string(&template).unwrap_or_default();
        let template_id = self.facts.history().store_template(&text)?;
        let requirements = self.requirements[n].model_requirements(model);
        let (mut queued, mut held_claims): (Vec<BatchedRequest>, Vec<ClaimedBatches>) =
            Default::default();
        self.for_each_row_batch((n, model), coverage, &mut |row_batch: RowBatch| {
            if *interrupt.borrow() {
                return Err(WalkError::Closed);
            }
            // Hold the claims until the requests are in the queue, where other processes can see
            // them. Skip cells that other processes have claimed.
            let claimed =
                run.runtime.block_on(claim_row_batch(self.facts, requirements, row_batch, true))?;
            let acquired = claimed.batches.iter().cloned();
            queued.extend(
                acquired.map(|row_batch| new_request(template_id, requirements, row_batch, 1)),
            );
            held_claims.push(claimed);
            if queued.len() >= ENQUEUE_CHUNK {
                self.facts.history().enqueue_requests(run.id, &queued)?;
                queued.clear();
                held_claims.clear();
            }
            Ok(())
        })?;
        Ok(self.facts.history().enqueue_requests(run.id, &queued)?)
    }

    fn create_dispatch<'d>(
        &'d self,
        run: &Run,
        interrupt: &watch::Receiver<bool>,
    ) -> Option<Dispatch<'d, 'd>> {
        let endpoint = self.model.batch_api()?;
        let options = BatchRunOptions {
            endpoint,
            limits: self.spec.limits,
            run: run.id,
            spec: self.spec.full_path(),
            dir: self.facts.dir().join("batches"),
            interrupt: interrupt.clone(),
            unsent: run.unsent.clone(),
        };
        Some(Dispatch::new(self.create_answer_parsers(run), options))
    }

    fn create_answer_parsers<'d>(&'d self, run: &Run) -> AnswerParsers<'d> {
        AnswerParsers::new(self.facts, Arc::clone(&self.model), run.events.clone())
    }
}
