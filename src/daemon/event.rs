//! Events of the daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::active_spec::ActiveSpec;
use super::spec_files::FileFingerprint;
use super::status::Cause;
use crate::failure::Failure;
use crate::materialize::{ColumnReport, Selection};

/// An event for the daemon's loop, which has no other input.
pub(super) enum DaemonEvent {
    /// Files changed, and then stayed unchanged for a short time.
    FilesChanged(Vec<PathBuf>),
    /// The loop must compare all files, because the system missed changes or cannot watch them.
    CompareFiles,
    /// The system cannot report all changes; contains the reason.
    WatchFailed(String),
    TimerExpired,
    /// A client requests a run.
    StartRun(Box<StartRun>),
    /// A client cancels a run. The reply is true if the run was in progress and had not been
    /// interrupted yet.
    InterruptRun(u64, oneshot::Sender<bool>),
    /// A thread has read and checked a spec.
    SpecChecked(Box<SpecChecked>),
    /// A run has new progress.
    RunProgressed(u64),
    RunEnded(Box<RunResult>),
    /// A signal requests that the daemon read all specs again.
    Reload,
    /// A signal requests a shutdown.
    Stop,
}

/// A client's request for a run.
pub(super) struct StartRun {
    /// Name of the spec.
    pub(super) spec: String,
    /// Cells to ask for.
    pub(super) selection: Selection,
    /// Budget in USD, instead of the spec's.
    pub(super) budget: Option<f64>,
    /// Time limit for the selection's SQL in the database.
    pub(super) timeout: Option<Duration>,
    pub(super) cause: Cause,
    /// Receives the run's number, or the reason why the run was rejected.
    pub(super) started: oneshot::Sender<Result<u64, Failure>>,
    /// Receives a message when the run has ended.
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// Result of checking a spec.
pub(super) struct SpecChecked {
    pub(super) name: String,
    pub(super) cause: Cause,
    /// Files the spec depends on, with their fingerprints before they were read.
    pub(super) files: Vec<(PathBuf, FileFingerprint)>,
    pub(super) result: Result<Arc<ActiveSpec>, Arc<Failure>>,
}

pub(super) struct RunResult {
    pub(super) id: u64,
    pub(super) seconds: f64,
    /// Reports of the columns; `None` if the run ended before it computed them.
    pub(super) columns: Option<Vec<ColumnReport>>,
    pub(super) report: Option<Json>,
    pub(super) published: bool,
    /// Whether the output contained tables of another cache. If the run published, it replaced
    /// these tables; otherwise, it left them unchanged.
    pub(super) had_other_tables: bool,
    /// Number of required values that were already known.
    pub(super) reused: u64,
    pub(super) complete: bool,
    pub(super) interrupted: bool,
    pub(super) failure: Option<Failure>,
    /// Plan of the missing cells, if the run was not allowed to ask the model.
    pub(super) plan: Option<Json>,
    pub(super) follow_up: FollowUp,
}

/// Action that the daemon takes after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FollowUp {
    /// Do nothing.
    Nothing,
    /// Run again after a pause or when a file changes, because the failure may be temporary.
    Retry,
    /// Wait for approval or a changed spec, because a retry would fail again or exceed the run's
    /// budget.
    Hold,
    /// Wait for approval, a changed spec, or the next day, because today's budget is exhausted.
    NextDay,
}

/// Returns the failure for a request during shutdown.
pub(super) fn shutdown_failure() -> Failure {
    Failure::wrong_input("the daemon is shutting down", "retry after its restart")
}
