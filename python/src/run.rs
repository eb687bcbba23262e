//! Runs work on its own thread. The calling thread waits without the interpreter's lock, checks for
//! Ctrl-C and passes events to Python.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hqdl::failure::Failure;
use hqdl::generate::{Event, Listener};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use tokio::sync::watch;

use crate::cache::Registry;
use crate::errors::{Failed, internal_error, lock};

/// Interval between checks for Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Flag that interrupts runs. Answers of requests in flight are still stored.
#[pyclass(frozen)]
pub struct Interrupt(watch::Sender<bool>);

#[pymethods]
impl Interrupt {
    #[new]
    fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Interrupts the runs that were started with this flag.
    fn set(&self) {
        self.0.send_replace(true);
    }
}

/// Event listener and interrupt flag that connect work to its caller.
pub struct RunContext {
    pub listener: Listener,
    pub interrupt: watch::Receiver<bool>,
}

enum Message<T> {
    /// A progress event, as JSON.
    Event(String),
    /// The result of the work.
    Finished(T),
}

/// Removes a run from the registry when dropped.
struct RegisteredRun(u64);

impl Drop for RegisteredRun {
    fn drop(&mut self) {
        Registry::current().remove_run(self.0);
    }
}

/// Runs `work` on its own thread and calls `on_event` on the calling thread with each event as
/// JSON.
///
/// The first Ctrl-C interrupts the work, which still stores its answers. After a second Ctrl-C, the
/// function returns without waiting for the work.
pub fn run_work<T: Send + 'static>(
    py: Python<'_>,
    interrupt: Option<&Interrupt>,
    on_event: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&RunContext) -> Result<T, Failed> + Send + 'static,
) -> PyResult<T> {
    let stop = interrupt.map_or_else(|| watch::Sender::new(false), |i| i.0.clone());
    let (sender, receiver) = mpsc::channel::<Message<Result<T, Failed>>>();
    let listener: Listener = match on_event {
        None => Arc::new(|_| {}),
        Some(_) => {
            let sender = sender.clone();
            Arc::new(move |event: &Event| {
                drop(sender.send(Message::Event(event.to_json().to_string())));
            })
        }
    };
    let context = RunContext { listener, interrupt: stop.subscribe() };
    let registered = RegisteredRun(Registry::current().add_run(stop.clone()));
    std::thread::spawn(move || {
        let result = work(&context);
        // Drop the listener first: no event may follow the result.
        drop(context);
        drop(registered);
        drop(sender.send(Message::Finished(result)));
    });
    // First exception of a callback or signal handler; raised after the work has ended.
    let mut raised: Option<PyErr> = None;
    let receiver = Mutex::new(receiver);
    loop {
        let message = py.detach(|| lock(&receiver).recv_timeout(SIGNAL_INTERVAL));
        match message {
            Ok(Message::Event(json)) => {
                if let (Some(callback), None) = (on_event, &raised)
                    && let Err(error) = callback.call1((json,))
                {
                    stop.send_replace(true);
                    raised = Some(error);
                }
            }
            Ok(Message::Finished(result)) => {
                return match (raised, result) {
                    (Some(error), _) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => {
                        Err(error)
                    }
                    (Some(_), Err(failed)) if is_interruption(&failed.0) => Err(failed.into()),
                    (Some(error), _) => Err(error),
                    (None, result) => Ok(result?),
                };
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = py.check_signals() {
                    stop.send_replace(true);
                    if raised.is_some() {
                        return Err(error);
                    }
                    raised = Some(error);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(internal_error("the run ended without a result"));
            }
        }
    }
}

fn is_interruption(failure: &Failure) -> bool {
    failure.exit_code() == hqdl::failure::INTERRUPTED
}

/// Interrupts every run, waits until the answers of requests in flight are stored, and closes all
/// caches. Called when the interpreter exits.
pub fn close_all(py: Python<'_>) -> PyResult<()> {
    while Registry::current().interrupt_all() {
        py.detach(|| std::thread::sleep(SIGNAL_INTERVAL));
        py.check_signals()?;
    }
    py.detach(|| Registry::current().close_idle());
    Ok(())
}
