//! Work beside Python: on a thread of its own, while the one that called waits without
//! the interpreter's lock, hears of Ctrl-C and tells events.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hqdl::failure::Failure;
use hqdl::generate::{Event, Listener};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use tokio::sync::watch;

use crate::cache::Registry;
use crate::errors::{Failed, bug, lock};

/// How often it is looked whether Ctrl-C was pressed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Becomes set when a run is to end: what is in flight is finished and kept.
#[pyclass(frozen)]
pub struct Interrupt(watch::Sender<bool>);

#[pymethods]
impl Interrupt {
    #[new]
    fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Ends the runs that were given it.
    fn set(&self) {
        self.0.send_replace(true);
    }
}

/// What work is given to talk with whoever called.
pub struct Run {
    pub listener: Listener,
    pub interrupt: watch::Receiver<bool>,
}

enum Told<T> {
    Event(String),
    Ended(T),
}

/// Takes a run out of the registry however it ends.
struct Noted(u64);

impl Drop for Noted {
    fn drop(&mut self) {
        Registry::own().end(self.0);
    }
}

/// Does some work, and tells its events, as JSON, to `on_event` on this thread.
///
/// The first Ctrl-C ends the work where it keeps everything; the second leaves it to
/// itself.
pub fn run<T: Send + 'static>(
    py: Python<'_>,
    interrupt: Option<&Interrupt>,
    on_event: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Run) -> Result<T, Failed> + Send + 'static,
) -> PyResult<T> {
    let stop = interrupt.map_or_else(|| watch::Sender::new(false), |i| i.0.clone());
    let (tell, told) = mpsc::channel::<Told<Result<T, Failed>>>();
    let listener: Listener = match on_event {
        None => Arc::new(|_| {}),
        Some(_) => {
            let tell = tell.clone();
            Arc::new(move |event: &Event| {
                drop(tell.send(Told::Event(event.to_json().to_string())));
            })
        }
    };
    let run = Run { listener, interrupt: stop.subscribe() };
    let noted = Noted(Registry::own().begin(stop.clone()));
    std::thread::spawn(move || {
        let ended = work(&run);
        // No event comes after the end.
        drop(run);
        drop(noted);
        drop(tell.send(Told::Ended(ended)));
    });
    // What Python raised while the work went on.
    let mut raised: Option<PyErr> = None;
    let told = Mutex::new(told);
    loop {
        let next = py.detach(|| lock(&told).recv_timeout(LOOK_EVERY));
        match next {
            Ok(Told::Event(json)) => {
                if let (Some(tell), None) = (on_event, &raised)
                    && let Err(error) = tell.call1((json,))
                {
                    stop.send_replace(true);
                    raised = Some(error);
                }
            }
            Ok(Told::Ended(ended)) => {
                return match (raised, ended) {
                    (Some(error), _) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => {
                        Err(error)
                    }
                    (Some(_), Err(failed)) if is_interrupt(&failed.0) => Err(failed.into()),
                    (Some(error), _) => Err(error),
                    (None, ended) => Ok(ended?),
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
            Err(RecvTimeoutError::Disconnected) => return Err(bug("the run ended without a result")),
        }
    }
}

fn is_interrupt(failure: &Failure) -> bool {
    failure.exit() == hqdl::failure::INTERRUPTED
}

/// Ends every run, waits until what is in flight is kept, and closes all caches: what is
/// left to do when the interpreter exits.
pub fn close(py: Python<'_>) -> PyResult<()> {
    while Registry::own().interrupt_all() {
        py.detach(|| std::thread::sleep(LOOK_EVERY));
        py.check_signals()?;
    }
    py.detach(|| Registry::own().close_idle());
    Ok(())
}
