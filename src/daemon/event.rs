//! All that can happen to the daemon.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;

use super::job::{Checked, Ended};
use super::status::Cause;
use crate::failure::Failure;
use crate::materialize::Selection;

/// Something that happened. The set is closed: what is not here does not
/// happen to the daemon.
pub(super) enum Event {
    /// Files changed; each change is told once it is quiet.
    Files(Vec<PathBuf>),
    /// It is time to look at all files: the system does not tell of changes.
    Look,
    /// The system cannot tell of changes, or not of all.
    Blind(String),
    /// A moment that was waited for has come.
    Clock,
    /// A client wants a run.
    Start(Box<Wish>),
    /// A client wants a run to end.
    Interrupt(u64, oneshot::Sender<bool>),
    /// A spec was read and checked.
    Checked(Box<Checked>),
    /// A run has something to show.
    Progress(u64),
    /// A run has ended.
    Ended(Box<Ended>),
    /// Read everything again.
    Reload,
    /// End.
    Stop,
}

/// A run that somebody wants.
pub(super) struct Wish {
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
