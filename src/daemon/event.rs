//! All that can happen to the daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::listing::Stamp;
use super::loaded::ActiveSpec;
use super::status::Cause;
use crate::failure::Failure;
use crate::materialize::{ColumnReport, Selection};

/// Something that happened. The set is closed: what is not here does not
/// happen to the daemon.
pub(super) enum DaemonEvent {
    /// Files changed; each change is told once it is quiet.
    Files(Vec<PathBuf>),
    /// It is time to look at all files: the system does not tell of changes.
    Look,
    /// The system cannot tell of changes, or not of all.
    Blind(String),
    /// A moment that was waited for has come.
    Clock,
    /// A client wants a run.
    Start(Box<RunWish>),
    /// A client wants a run to end.
    Interrupt(u64, oneshot::Sender<bool>),
    /// A spec was read and checked.
    Checked(Box<Checked>),
    /// A run has something to show.
    Progress(u64),
    /// A run has ended.
    Ended(Box<EndedRun>),
    /// Read everything again.
    Reload,
    /// End.
    Stop,
}

/// A run that somebody wants.
pub(super) struct RunWish {
    /// The spec's name.
    pub(super) spec: String,
    /// What to ask.
    pub(super) selection: Selection,
    /// USD it may spend, instead of the spec's word.
    pub(super) budget: Option<f64>,
    /// How long the database may take over the selection's SQL.
    pub(super) timeout: Option<Duration>,
    /// Why.
    pub(super) cause: Cause,
    /// Told the run's number, or why there is none.
    pub(super) begun: oneshot::Sender<Result<u64, Failure>>,
    /// Told when it has ended.
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// A spec was read and checked.
pub(super) struct Checked {
    pub(super) name: String,
    pub(super) cause: Cause,
    /// The files it depends on, as they were before.
    pub(super) files: Vec<(PathBuf, Stamp)>,
    pub(super) result: Result<Arc<ActiveSpec>, Arc<Failure>>,
}

/// A run has ended.
pub(super) struct EndedRun {
    pub(super) id: u64,
    pub(super) seconds: f64,
    /// How the columns stand, where that was found out.
    pub(super) columns: Option<Vec<ColumnReport>>,
    pub(super) report: Option<Json>,
    pub(super) published: bool,
    /// Values that it needed and were known.
    pub(super) reused: u64,
    pub(super) complete: bool,
    pub(super) interrupted: bool,
    pub(super) failure: Option<Failure>,
    /// What would be asked, when nothing was.
    pub(super) plan: Option<Json>,
    pub(super) after: After,
}

/// What is to come after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing.
    Rest,
    /// The same again, in a while or when a file changes: what failed may pass.
    Retry,
    /// Nothing until somebody says so or the spec changes: it would fail again,
    /// or spend more than a run may.
    Hold,
    /// Nothing until somebody says so, the spec changes, or the next day begins:
    /// the budget of this one is spent.
    Tomorrow,
}
