//! Sessions: the processes that use these facts now. If the session of a run is over, the run was
//! killed, and another process may resume it. Requests that were in flight when a session ended
//! count at their worst-case cost.

use std::sync::Arc;

/// A process that uses the facts, or one client of the cache server.
#[derive(Debug, Clone)]
pub struct FactsSession {
    /// Its id in the journal.
    pub(super) id: Arc<str>,
    /// Its description for other processes.
    pub(super) description: Arc<str>,
    /// Whether it owns the cache and therefore writes its own session to the journal.
    pub(super) is_owner: bool,
}

impl FactsSession {
    /// Creates the session of the process that owns the cache.
    pub(super) fn for_owner(description: &str) -> Self {
        Self { id: new_id().into(), description: description.into(), is_owner: true }
    }
}

/// Returns a unique session id.
pub(super) fn new_id() -> String {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..))
}
