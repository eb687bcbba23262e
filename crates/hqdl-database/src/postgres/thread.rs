//! Thread that runs the connections to a server, so that callers can be on any thread, inside or
//! outside an async runtime.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::warn;

/// An async runtime on its own thread. The thread runs until this value is dropped.
#[derive(Debug)]
pub struct ServerThread {
    /// Handle for spawning tasks.
    pub handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails with the operating system's error.
    pub fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || drop(runtime.block_on(stopped)))?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns true if the caller runs on this thread.
    #[must_use]
    pub fn is_current_thread(&self) -> bool {
        let thread = self.thread.as_ref().map(|thread| thread.thread().id());
        thread == Some(std::thread::current().id())
    }

    /// Blocks the calling thread until a future completes.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let _guard = self.handle.enter();
        // Without `unconstrained`, the future could yield to the calling thread's runtime.
        block_on_current_thread(tokio::task::unconstrained(future))
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        // The last owner may be a task on this thread, which cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            warn!("the thread of the server's connections has failed");
        }
    }
}

/// Waker that unparks a thread.
pub struct ThreadWaker(pub Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until a future completes, outside any async runtime.
pub fn block_on_current_thread<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
