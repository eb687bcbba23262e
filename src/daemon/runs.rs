//! Tracks the runs in progress and the results of recent runs.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::context::DaemonContext;
use super::event::DaemonEvent;
use super::event::RunResult;
use super::job::{self, RunProgress};
use super::spec::RunStart;
use super::status::{Cause, RunState, RunStatus};

/// Maximum number of concurrent runs, each of a different spec.
const MAX_CONCURRENT: usize = 4;
/// Maximum number of ended runs to keep.
const MAX_REMEMBERED: usize = 200;
/// Reason why a run that may send no requests is incomplete.
const HELD: &str =
    ": its missing cells wait for approval; start a run on the page or with POST /v1/runs";

#[derive(Default)]
pub(super) struct DaemonRuns {
    last_id: u64,
    running: Vec<DaemonRun>,
    /// Ended runs, newest first.
    past: VecDeque<Arc<RunStatus>>,
    /// Channels of the clients that wait for runs that have ended, until the new status is
    /// published.
    waiters: Vec<oneshot::Sender<()>>,
}

struct DaemonRun {
    status: RunStatus,
    progress: Arc<RunProgress>,
    interrupt: watch::Sender<bool>,
    waiter: Option<oneshot::Sender<()>>,
}

impl DaemonRun {
    /// Returns true if the status must list the run, because it has cells to request or a client
    /// requested it.
    fn is_listed(&self) -> bool {
        self.status.cells > 0 || self.status.cause == Cause::Client
    }
}

impl DaemonRuns {
    /// Reserves and returns the number of the next run.
    pub(super) fn reserve_run_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns true if one more run may start.
    pub(super) fn has_free_slot(&self) -> bool {
        self.running.len() < MAX_CONCURRENT
    }

    /// Returns the number of runs in progress.
    pub(super) fn count_running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn start_run(&mut self, begin: RunStart, context: &DaemonContext) {
        let RunStart { parameters, ended } = begin;
        let limits = &parameters.active_spec.spec.limits;
        let status = RunStatus {
            id: parameters.id,
            spec: parameters.name.clone(),
            cause: parameters.cause,
            state: RunState::Running,
            began: crate::database::current_timestamp(),
            since: Instant::now(),
            total_seconds: None,
            cells: 0,
            done: 0,
            usage: crate::usage::Usage::default(),
            budget: parameters.budget.or(limits.budget_usd),
            failed: 0,
            last_error: None,
            last_warning: None,
            failure: None,
            report: None,
        };
        let (interrupt, receive) = watch::channel(false);
        let progress = Arc::new(RunProgress::default());
        let (facts, metrics) = (Arc::clone(&context.facts), &context.metrics);
        job::start_run(parameters, facts, receive, &progress, metrics, context.events.clone());
        self.running.push(DaemonRun { status, progress, interrupt, waiter: ended });
    }

    /// Interrupts a run. Returns true if the run was in progress and had not been interrupted yet.
    pub(super) fn interrupt_run(&self, id: u64) -> bool {
        let run = self.running.iter().find(|r| r.status.id == id);
        run.is_some_and(|r| !r.interrupt.send_replace(true))
    }

    pub(super) fn interrupt_all_runs(&self) {
        for run in &self.running {
            run.interrupt.send_replace(true);
        }
    }

    pub(super) fn update_progress(&mut self, id: u64, events: &mpsc::Sender<DaemonEvent>) {
        if let Some(run) = self.running.iter_mut().find(|r| r.status.id == id) {
            copy_counters(run);
            run.progress.notify_after_delay(id, events);
        }
    }

    /// Returns the name of the spec that a run in progress belongs to.
    pub(super) fn find_spec_name(&self, id: u64) -> Option<String> {
        self.running.iter().find(|r| r.status.id == id).map(|r| r.status.spec.clone())
    }

    /// Records the end of a run. Returns a line to print, if the run is listed.
    pub(super) fn finish_run(&mut self, ended: &RunResult) -> Option<String> {
        let at = self.running.iter().position(|r| r.status.id == ended.id)?;
        let mut run = self.running.swap_remove(at);
        copy_counters(&mut run);
        let is_listed = run.is_listed() || ended.published || ended.failure.is_some();
        let mut status = run.status;
        status.total_seconds = Some(ended.seconds);
        status.state = match ended {
            RunResult { interrupted: true, .. } => RunState::Interrupted,
            RunResult { failure: Some(_), .. } => RunState::Failed,
            RunResult { complete: true, .. } => RunState::Complete,
            _ => RunState::Incomplete,
        };
        status.failure = ended.failure.clone().filter(|_| !ended.interrupted).map(Arc::new);
        status.report = ended.report.clone().map(|mut report| {
            report["seconds"] = ended.seconds.into();
            Arc::new(report)
        });
        let line = is_listed.then(|| {
            let why = status.failure.as_ref().map(|f| format!(": {}", f.message()));
            let held = ended.plan.is_some() && status.state == RunState::Incomplete;
            let why = why.or_else(|| held.then(|| HELD.to_owned()));
            format!(
                "{}: run {} ({}) {}, {} of {} cells, {}, {}{}",
                status.spec,
                status.id,
                status.cause.name(),
                status.state.name(),
                status.done,
                status.cells,
                format_count(status.usage.requests, "request"),
                format_usd(status.usage.cost_usd),
                why.unwrap_or_default()
            )
        });
        if is_listed {
            self.past.push_front(Arc::new(status));
            self.past.truncate(MAX_REMEMBERED);
        }
        self.waiters.extend(run.waiter);
        line
    }

    /// Notifies the clients that wait for ended runs. Call this after the new status is published.
    pub(super) fn notify_waiters(&mut self) {
        for waiter in self.waiters.drain(..) {
            let _ = waiter.send(());
        }
    }

    /// Returns true if the ended run is listed.
    pub(super) fn is_listed(&self, id: u64) -> bool {
        self.past.iter().any(|r| r.id == id)
    }

    pub(super) fn find_listed_run(&self, id: u64) -> Option<Arc<RunStatus>> {
        let running = self.running.iter().find(|r| r.status.id == id && r.is_listed());
        running
            .map(|r| Arc::new(r.status.clone()))
            .or_else(|| self.past.iter().find(|r| r.id == id).cloned())
    }

    /// Returns all listed runs, newest first.
    pub(super) fn list_runs(&self) -> Vec<Arc<RunStatus>> {
        let mut all: Vec<Arc<RunStatus>> = self
            .running
            .iter()
            .filter(|r| r.is_listed())
            .map(|r| Arc::new(r.status.clone()))
            .collect();
        all.extend(self.past.iter().cloned());
        all.sort_by_key(|r| std::cmp::Reverse(r.id));
        all
    }
}

fn copy_counters(run: &mut DaemonRun) {
    let counters = run.progress.counters();
    let status = &mut run.status;
    (status.cells, status.done, status.usage) = (counters.cells, counters.done, counters.usage);
    (status.failed, status.last_error) = (counters.failed, counters.last_error);
    status.last_warning = counters.last_warning;
}
use crate::format::{format_count, format_usd};
