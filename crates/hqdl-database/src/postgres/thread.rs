//! The thread on which the connections to a server live, so that whoever asks may be on
//! any thread, in a runtime or in none.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::warn;

/// A runtime on a thread of its own, until this is dropped.
#[derive(Debug)]
pub struct ServerThread {
    /// Where tasks are spawned.
    pub handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Starts one.
    ///
    /// # Errors
    /// The system's.
    pub fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || drop(runtime.block_on(stopped)))?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Whether this runs on that thread.
    #[must_use]
    pub fn is_here(&self) -> bool {
        let thread = self.thread.as_ref().map(|thread| thread.thread().id());
        thread == Some(std::thread::current().id())
    }

    /// Waits for work on the thread of the caller, whatever runs there.
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let _inside = self.handle.enter();
        // What is polled here never yields to the runtime that this may be in.
        wait_here(tokio::task::unconstrained(work))
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        // The last one to let go may be a task on that very thread.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            warn!("the thread of the server's connections has failed");
        }
    }
}

/// Wakes a thread that is parked.
pub struct Unpark(pub Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for work on this thread, outside of any runtime.
pub fn wait_here<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
        std::thread::park();
    }
}
