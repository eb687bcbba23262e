//! Starts and ends a run, and holds the state that its requests share.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::info;

use super::{MaterializeError, Materializer, Report};
use hqdl_facts::{Outcome, RunId};
use hqdl_model::dispatch::UnsentJobs;
use hqdl_model::generate::{Event, Events, Listener, StopReason};
use hqdl_values::cell::Tally;
use hqdl_values::format::format_count;

/// How a run requests missing cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunMode {
    /// Each request is answered immediately.
    #[default]
    Live,
    /// Requests go through the Batch API, which answers within a day.
    Batch,
    /// The run sends no requests and only publishes known facts.
    CachedOnly,
}

/// State that all requests of a run share.
pub(super) struct Run {
    pub(super) runtime: tokio::runtime::Runtime,
    /// The run's id in the journal.
    pub(super) id: RunId,
    pub(super) events: Events,
    /// Files that an earlier, killed run uploaded but never submitted.
    pub(super) unsent: UnsentJobs,
    results: RunResults,
}

impl Run {
    /// Creates the runtime and the event listener of a run.
    pub(super) fn open(id: RunId, listener: &Listener) -> Result<Self, MaterializeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(MaterializeError::Runtime)?;
        let results = RunResults::default();
        Ok(Self {
            runtime,
            id,
            unsent: UnsentJobs::new(),
            events: Events::new(&wrap_listener(listener, &results)),
            results,
        })
    }
}

impl Materializer<'_> {
    /// Starts a run or resumes one that was killed.
    pub(super) fn start_run(
        &self,
        command: &str,
        listener: &Listener,
    ) -> Result<Run, MaterializeError> {
        // The journal contains the cost of the resumed run.
        let (id, in_flight) =
            self.facts.history().resume_or_start_run(command, &self.spec.full_path())?;
        if in_flight.requests > 0 {
            let price = if self.spec.is_priced() {
                format!("${:.4}", in_flight.max_spent.usd)
            } else {
                format!("{} tokens", in_flight.max_spent.tokens)
            };
            listener(&Event::Warning(format!(
                "{} {} in flight when an earlier run was killed; up to {price} counts as spent",
                format_count(in_flight.requests, "request"),
                if in_flight.requests == 1 { "was" } else { "were" }
            )));
        }
        Run::open(id, listener)
    }

    /// Copies the run's usage and results into the report. Does not end the run, because the tables
    /// are not published yet.
    pub(super) fn update_report(&self, run: Option<&Run>, report: &mut Report) {
        let Some(run) = run else { return };
        report.usage = run.events.usage();
        (report.requested, report.last_error) =
            run.results.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Err(error) = self.facts.flush() {
            report.failure.get_or_insert(error.into());
        }
    }

    /// Ends the run if its tables are up to date and no batch job is open. Otherwise leaves the run
    /// open, so that the next run resumes it with the remaining budget. If `run` is `None`, because
    /// there was nothing to request, ends an earlier run that was killed.
    pub(super) fn finish_run(&self, run: Option<Run>, is_published: bool, report: &mut Report) {
        let run = run.map(|run| run.id);
        let outcome = match (report.stop_reason.as_deref(), &report.failure) {
            (None, None) => Outcome::Complete,
            (Some(StopReason::Interrupted | StopReason::BatchesPending(_)), _) => {
                Outcome::Interrupted
            }
            _ => Outcome::Stopped,
        };
        let finish = || {
            let history = self.facts.history();
            match run {
                Some(id) if !is_published || history.has_open_batch_jobs(id)? => {
                    history.leave_run_open(id)
                }
                Some(id) => history.finish_run(id, outcome),
                None if is_published && self.run_mode != RunMode::CachedOnly => {
                    history.finish_unfinished_run(&self.spec.full_path(), outcome)
                }
                None => Ok(()),
            }
        };
        info!(run = run.map(RunId::get), ?outcome, is_published, usage = ?report.usage, asked = ?report.requested, "the run ends");
        if let Err(error) = finish() {
            report.failure.get_or_insert(error.into());
        }
    }
}

/// Cells answered by the run, by state, and the error of the last failed request.
type RunResults = Arc<Mutex<(Tally, Option<String>)>>;

/// Returns a listener that records the run's results and forwards each event to `listener`.
fn wrap_listener(listener: &Listener, results: &RunResults) -> Listener {
    let (listener, results) = (Arc::clone(listener), Arc::clone(results));
    Arc::new(move |event: &Event| {
        {
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Stored { cells, .. } => results.0.merge(cells),
                Event::Failed(message) => results.1 = Some(message.clone()),
                _ => {}
            }
        }
        listener(event);
    })
}
