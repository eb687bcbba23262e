//! Raises failures as exceptions of `hqdl.errors`, with the command's text, hint and exit code.

use hqdl::failure::Failure;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// A failure to raise in Python, with the JSON report of the failed run, if any.
pub struct Failed(pub Failure, pub Option<String>);

impl<T: Into<Failure>> From<T> for Failed {
    fn from(failure: T) -> Self {
        Self(failure.into(), None)
    }
}

/// Returns a failure for wrong input, with a hint for the user.
pub fn wrong_input(message: impl Into<String>, hint: impl Into<String>) -> Failed {
    Failed(Failure::wrong_input(message, hint), None)
}

impl From<Failed> for PyErr {
    fn from(Failed(failure, report): Failed) -> Self {
        let args =
            (failure.message(), failure.hint(), failure.exit_code(), failure.to_text(), report);
        Python::attach(|py| {
            let raised = py.import("hqdl.errors").and_then(|m| m.getattr("_of")?.call1(args));
            raised.map_or_else(|error| error, PyErr::from_value)
        })
    }
}

/// Locks a mutex. A poisoned mutex is still usable, because a panic leaves its data consistent.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns an exception for a bug in hqdl.
pub fn internal_error(message: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{message}: this is a bug in hqdl; please report it"))
}
