//! Runs in progress, and the results of recent runs.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::event::DaemonEvent;
use super::event::EndedRun;
use super::house::DaemonContext;
use super::job::{self, RunProgress};
use super::spec::Begin;
use super::status::{Cause, RunState, RunStatus};

/// Maximum number of concurrent runs, each of a different spec.
const AT_ONCE: usize = 4;
/// Maximum number of ended runs to keep.
const REMEMBERED: usize = 200;

/// All runs.
#[derive(Default)]
pub(super) struct DaemonRuns {
    last: u64,
    going: Vec<DaemonRun>,
    /// Ended runs, newest first.
    past: VecDeque<Arc<RunStatus>>,
    /// Channels of the clients that wait for ended runs.
    waiting: Vec<oneshot::Sender<()>>,
}

struct DaemonRun {
    status: RunStatus,
    progress: Arc<RunProgress>,
    interrupt: watch::Sender<bool>,
    waiting: Option<oneshot::Sender<()>>,
}

impl DaemonRun {
    /// Returns true if the run is listed. A run that a client did not request and that found no
    /// missing cells is not.
    fn is_shown(&self) -> bool {
        self.status.cells > 0 || self.status.cause == Cause::Client
    }
}

impl DaemonRuns {
    /// Returns the number of the next run.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns true if one more run may start.
    pub(super) fn has_room(&self) -> bool {
        self.going.len() < AT_ONCE
    }

    /// Returns the number of runs in progress.
    pub(super) fn under_way(&self) -> usize {
        self.going.len()
    }

    /// Starts a run.
    pub(super) fn begin(&mut self, begin: Begin, house: &DaemonContext) {
        let Begin { order, ended } = begin;
        let limits = &order.loaded.spec.limits;
        let status = RunStatus {
            id: order.id,
            spec: order.name.clone(),
            cause: order.cause,
            state: RunState::Running,
            began: crate::database::now(),
            since: Instant::now(),
            took: None,
            cells: 0,
            done: 0,
            usage: crate::usage::Usage::default(),
            budget: order.budget.or(limits.budget_usd),
            failed: 0,
            last_error: None,
            failure: None,
            report: None,
        };
        let (interrupt, receive) = watch::channel(false);
        let progress = Arc::new(RunProgress::default());
        let (facts, metrics) = (Arc::clone(&house.facts), &house.metrics);
        job::run(order, facts, receive, &progress, metrics, house.events.clone());
        self.going.push(DaemonRun { status, progress, interrupt, waiting: ended });
    }

    /// Interrupts a run. Returns true if it was in progress and not yet interrupted.
    pub(super) fn interrupt(&self, id: u64) -> bool {
        let run = self.going.iter().find(|r| r.status.id == id);
        run.is_some_and(|r| !r.interrupt.send_replace(true))
    }

    /// Interrupts all runs.
    pub(super) fn interrupt_all(&self) {
        for run in &self.going {
            run.interrupt.send_replace(true);
        }
    }

    /// Updates the progress of a run.
    pub(super) fn progress(&mut self, id: u64, events: &mpsc::Sender<DaemonEvent>) {
        if let Some(run) = self.going.iter_mut().find(|r| r.status.id == id) {
            take(run);
            run.progress.look_again(id, events);
        }
    }

    /// Returns the spec of a run in progress.
    pub(super) fn spec_of(&self, id: u64) -> Option<String> {
        self.going.iter().find(|r| r.status.id == id).map(|r| r.status.spec.clone())
    }

    /// Records the end of a run. Returns a line to print, if the run is listed.
    pub(super) fn ended(&mut self, ended: &EndedRun) -> Option<String> {
        let at = self.going.iter().position(|r| r.status.id == ended.id)?;
        let mut run = self.going.swap_remove(at);
        take(&mut run);
        let shown = run.is_shown() || ended.published || ended.failure.is_some();
        let mut status = run.status;
        status.took = Some(ended.seconds);
        status.state = match ended {
            EndedRun { interrupted: true, .. } => RunState::Interrupted,
            EndedRun { failure: Some(_), .. } => RunState::Failed,
            EndedRun { complete: true, .. } => RunState::Complete,
            _ => RunState::Incomplete,
        };
        status.failure = ended.failure.clone().filter(|_| !ended.interrupted).map(Arc::new);
        status.report = ended.report.clone().map(|mut report| {
            report["seconds"] = ended.seconds.into();
            Arc::new(report)
        });
        let line = shown.then(|| {
            let why = status.failure.as_ref().map(|f| format!(": {}", f.message()));
            format!(
                "{}: run {} ({}) {}, {} of {} cells, {}, {}{}",
                status.spec,
                status.id,
                status.cause.name(),
                status.state.name(),
                status.done,
                status.cells,
                count_noun(status.usage.requests, "request"),
                usd(status.usage.cost_usd),
                why.unwrap_or_default()
            )
        });
        if shown {
            self.past.push_front(Arc::new(status));
            self.past.truncate(REMEMBERED);
        }
        self.waiting.extend(run.waiting);
        line
    }

    /// Notifies the clients that wait for ended runs. Call this after the new status is published.
    pub(super) fn release(&mut self) {
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(());
        }
    }

    /// Returns true if the ended run is listed.
    pub(super) fn is_shown(&self, id: u64) -> bool {
        self.past.iter().any(|r| r.id == id)
    }

    /// Returns a listed run.
    pub(super) fn shown(&self, id: u64) -> Option<Arc<RunStatus>> {
        let going = self.going.iter().find(|r| r.status.id == id && r.is_shown());
        going
            .map(|r| Arc::new(r.status.clone()))
            .or_else(|| self.past.iter().find(|r| r.id == id).cloned())
    }

    /// Returns all listed runs, newest first.
    pub(super) fn all(&self) -> Vec<Arc<RunStatus>> {
        let mut all: Vec<Arc<RunStatus>> = self
            .going
            .iter()
            .filter(|r| r.is_shown())
            .map(|r| Arc::new(r.status.clone()))
            .collect();
        all.extend(self.past.iter().cloned());
        all.sort_by_key(|r| std::cmp::Reverse(r.id));
        all
    }
}

fn take(run: &mut DaemonRun) {
    let going = run.progress.now();
    let status = &mut run.status;
    (status.cells, status.done, status.usage) = (going.cells, going.done, going.usage);
    (status.failed, status.last_error) = (going.failed, going.last_error);
}
use crate::format::{count_noun, usd};
