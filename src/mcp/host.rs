//! The process that serves the protocol. It depends on the transport.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use super::context::ServerContext;
use crate::failure::Failure;

/// A process that serves the protocol.
pub trait McpHost: Clone + Send + Sync + 'static {
    /// Returns the database and the settings that a call uses. Blocks. `spec` is the name of the
    /// spec in the call's path.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the call names no usable spec.
    fn open_context(&self, spec: Option<&str>) -> Result<Arc<ServerContext>, Failure>;

    /// Waits until another call may run.
    ///
    /// # Errors
    /// Returns a [`Failure`] if too many calls wait already.
    fn begin_work(&self) -> impl Future<Output = Result<WorkPermit, Failure>> + Send;
}

/// Permission to run a call's work. It is kept until the work ends.
pub struct WorkPermit {
    /// Guards that count the work.
    pub guards: Box<dyn Send>,
    /// Becomes true when the process ends.
    pub ending: watch::Receiver<bool>,
}
