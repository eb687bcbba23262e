//! Start and end of a run, and the state that all requests of a run share.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::info;

use super::{MaterializeError, Report, Work};
use hqdl_facts::{Outcome, RunId};
use hqdl_model::dispatch::Unsent;
use hqdl_model::generate::{Event, Events, Listener, Stopped};
use hqdl_values::cell::Tally;
use hqdl_values::format::count_noun;

/// How a run requests missing cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Way {
    /// One request at a time, answered immediately.
    #[default]
    Live,
    /// Through the Batch API, which answers within a day.
    Batch,
    /// No requests: the run only publishes known facts.
    Kept,
}

/// State that all requests of a run share.
pub(super) struct Run {
    pub(super) runtime: tokio::runtime::Runtime,
    /// The run's id in the journal.
    pub(super) id: RunId,
    pub(super) events: Events,
    /// Files that an earlier, killed run uploaded but never submitted.
    pub(super) unsent: Unsent,
    seen: SeenCells,
}

impl Run {
    /// Creates the runtime and the event listener of a run.
    pub(super) fn open(id: RunId, listener: &Listener) -> Result<Self, MaterializeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(MaterializeError::Runtime)?;
        let seen = SeenCells::default();
        Ok(Self {
            runtime,
            id,
            unsent: Unsent::new(),
            events: Events::of(&watching(listener, &seen)),
            seen,
        })
    }
}

impl Work<'_> {
    /// Starts a run or resumes one that was killed.
    pub(super) fn start(
        &self,
        command: &str,
        listener: &Listener,
    ) -> Result<Run, MaterializeError> {
        // The journal contains the cost of the resumed run.
        let (id, left) = self.facts.history().begin_or_go_on(command, &self.spec.full_path())?;
        if left.requests > 0 {
            let price = if self.spec.is_priced() {
                format!("${:.4}", left.most.usd)
            } else {
                format!("{} tokens", left.most.tokens)
            };
            listener(&Event::Warning(format!(
                "{} {} in flight when an earlier run was killed; up to {price} counts as spent",
                count_noun(left.requests, "request"),
                if left.requests == 1 { "was" } else { "were" }
            )));
        }
        Run::open(id, listener)
    }

    /// Copies the run's usage and results into the report. The run is still open, because its
    /// tables are not published yet.
    pub(super) fn settle(&self, run: Option<&Run>, report: &mut Report) {
        let Some(run) = run else { return };
        report.usage = run.events.usage();
        (report.asked, report.last_error) =
            run.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Err(error) = self.facts.flush() {
            report.failed.get_or_insert(error.into());
        }
    }

    /// Ends the run if its tables are up to date. Otherwise, or if batch jobs are open, it leaves
    /// the run open: the next run resumes it with the remaining budget. If nothing was left to
    /// request, this ends an earlier run that was killed.
    pub(super) fn end(&self, run: Option<Run>, stands: bool, report: &mut Report) {
        let run = run.map(|run| run.id);
        let outcome = match (report.stopped.as_deref(), &report.failed) {
            (None, None) => Outcome::Complete,
            (Some(Stopped::Interrupted | Stopped::Left(_)), _) => Outcome::Interrupted,
            _ => Outcome::Stopped,
        };
        let ended = || {
            let history = self.facts.history();
            match run {
                Some(id) if !stands || history.has_under_way(id)? => history.leave_open(id),
                Some(id) => history.end(id, outcome),
                None if stands && self.way != Way::Kept => {
                    history.end_unfinished(&self.spec.full_path(), outcome)
                }
                None => Ok(()),
            }
        };
        info!(run = run.map(RunId::get), ?outcome, stands, usage = ?report.usage, asked = ?report.asked, "the run ends");
        if let Err(error) = ended() {
            report.failed.get_or_insert(error.into());
        }
    }
}

/// Cells answered by the run, by state, and the error of the last failed request.
type SeenCells = Arc<Mutex<(Tally, Option<String>)>>;

/// Returns a listener that records the run's results and forwards each event to `listener`.
fn watching(listener: &Listener, seen: &SeenCells) -> Listener {
    let (listener, seen) = (Arc::clone(listener), Arc::clone(seen));
    Arc::new(move |event: &Event| {
        {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Kept { cells, .. } => seen.0.merge(cells),
                Event::Failed(message) => seen.1 = Some(message.clone()),
                _ => {}
            }
        }
        listener(event);
    })
}
