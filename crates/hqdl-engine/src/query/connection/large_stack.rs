//! Runs a query on a thread with a large stack.

use crate::query::request::error::QueryError;

/// Stack size in bytes of the thread that runs a query. Only pages that are touched use memory.
const STACK_BYTES: usize = 64 << 20;

/// Runs `work` on a thread whose stack suffices for the deepest expressions that `SQLite` accepts.
pub fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, QueryError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let result = thread.spawn_scoped(scope, work).map_err(QueryError::Runtime)?.join();
        result.map_err(|panic| std::panic::resume_unwind(panic))
    })
}
