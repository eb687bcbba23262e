//! Sessions: which processes use these facts now. A run whose session is over
//! was killed, and is gone on with; one whose session is not is somebody's, and
//! stays theirs. What a session that is over had in flight is in doubt.

use std::sync::Arc;

/// A process that uses the facts, or one borrower of its owner.
#[derive(Debug, Clone)]
pub struct FactsSession {
    /// What it is found by in the journal.
    pub(super) id: Arc<str>,
    /// What it says of itself.
    pub(super) holder: Arc<str>,
    /// Whether it owns the cache, and so writes itself down.
    pub(super) owns: bool,
}

impl FactsSession {
    /// A session of the process that owns the cache.
    pub(super) fn of_owner(holder: &str) -> Self {
        Self { id: new_id().into(), holder: holder.into(), owns: true }
    }
}

/// An id that no other session has.
pub(super) fn new_id() -> String {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..))
}
