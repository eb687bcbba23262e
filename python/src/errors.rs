//! Failures as exceptions of `hqdl.errors`: the command's text, hint and exit code.

use hqdl::failure::Failure;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// A failure on its way to Python, with what a run did until then, as JSON.
pub struct Failed(pub Failure, pub Option<String>);

impl<T: Into<Failure>> From<T> for Failed {
    fn from(failure: T) -> Self {
        Self(failure.into(), None)
    }
}

/// Wrong input, with what to do about it.
pub fn input(message: impl Into<String>, hint: impl Into<String>) -> Failed {
    Failed(Failure::input(message, hint), None)
}

impl From<Failed> for PyErr {
    fn from(Failed(failure, report): Failed) -> Self {
        let hint = match &failure {
            Failure::Message { hint, .. } => hint.clone(),
            Failure::Problems(problems) => {
                problems.problems.iter().find_map(|p| p.help.clone()).unwrap_or_default()
            }
        };
        let told = (failure.message(), hint, failure.exit(), failure.text(), report);
        Python::attach(|py| {
            let raised = py.import("hqdl.errors").and_then(|m| m.getattr("_of")?.call1(told));
            raised.map_or_else(|error| error, PyErr::from_value)
        })
    }
}

/// A lock that a panic left behind is as good as any: what it guards is whole.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Something that cannot happen did.
pub fn bug(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{what}: this is a bug in hqdl; please report it"))
}
