//! A run: begun when there is something to do, with what all its requests
//! share; ended with what it brought in the report.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::info;

use super::{MaterializeError, Report, Work};
use crate::cell::Tally;
use crate::dispatch::Unsent;
use crate::facts::{Outcome, Writer};
use crate::generate::{Event, Listener, Stopped};
use crate::usage::Usage;

/// How what is missing is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Way {
    /// Request by request.
    #[default]
    Live,
    /// Through the Batch API, which answers within a day.
    Batch,
    /// Not at all: what is known is published.
    Kept,
}

/// What all requests of a run share.
pub(super) struct Run {
    pub(super) runtime: tokio::runtime::Runtime,
    /// Its id in the journal.
    pub(super) id: i64,
    pub(super) writer: Arc<Writer>,
    pub(super) usage: Arc<Mutex<Usage>>,
    pub(super) listener: Listener,
    /// What was uploaded before a kill.
    pub(super) unsent: Unsent,
    seen: Seen,
}

impl Work<'_> {
    /// Begins a run, or goes on with one that was killed.
    pub(super) fn start(
        &self,
        command: &str,
        listener: &Listener,
    ) -> Result<Run, MaterializeError> {
        // What it has spent is in the journal.
        let (id, left) = self.facts.journal().begin_or_go_on(command, &self.spec.full_path())?;
        if left.requests > 0 {
            let price = if self.spec.model.price.is_some() {
                format!("${:.4}", left.most.usd)
            } else {
                format!("{} tokens", left.most.tokens)
            };
            listener(&Event::Warning(format!(
                "{} requests were in flight when a run was killed; they may have cost {price}, which counts as spent",
                left.requests
            )));
        }
        self.open(id, listener)
    }

    /// Makes ready for the requests of a run.
    pub(super) fn open(&self, id: i64, listener: &Listener) -> Result<Run, MaterializeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(MaterializeError::Runtime)?;
        let seen = Seen::default();
        Ok(Run {
            runtime,
            id,
            writer: Arc::new(self.facts.writer()),
            usage: Arc::default(),
            unsent: Unsent::new(),
            listener: watching(listener, &seen),
            seen,
        })
    }

    /// Ends a run; what it brought is in the report. A run with batches under
    /// way is not over: the next one goes on with it and with its budget.
    pub(super) fn end(&self, run: Option<Run>, report: &mut Report) {
        let Some(run) = run else { return };
        report.usage = *run.usage.lock().unwrap_or_else(PoisonError::into_inner);
        (report.asked, report.last_error) =
            run.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let id = run.id;
        // Everything the writing thread was given is kept before it ends.
        drop(run);
        let outcome = match (report.stopped.as_deref(), &report.failed) {
            (None, None) => Outcome::Complete,
            (Some(Stopped::Interrupted | Stopped::Left(_)), _) => Outcome::Interrupted,
            _ => Outcome::Stopped,
        };
        info!(run = id, ?outcome, usage = ?report.usage, asked = ?report.asked, "the run ends");
        let ended = || {
            let journal = self.facts.journal();
            if journal.has_under_way(id)? {
                journal.leave_open(id)?;
            } else {
                journal.end(id, outcome)?;
            }
            drop(journal);
            self.facts.index().flush()
        };
        if let Err(error) = ended() {
            report.failed.get_or_insert(error.into());
        }
    }
}

/// How cells ended, and the last request that failed.
type Seen = Arc<Mutex<(Tally, Option<String>)>>;

/// Notes what a run brings, and tells the listener.
fn watching(listener: &Listener, seen: &Seen) -> Listener {
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
