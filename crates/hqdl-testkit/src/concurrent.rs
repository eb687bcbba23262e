//! Runs cases of a test side by side.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Runs cases concurrently (they mostly wait) and names those that fail.
pub fn each<C: Send>(cases: Vec<(String, C)>, run: impl Fn(C) + Sync) {
    each_of(8, cases, run);
}

/// The same with `at_once` cases at a time.
pub fn each_of<C: Send>(at_once: usize, cases: Vec<(String, C)>, run: impl Fn(C) + Sync) {
    let cases = Mutex::new(cases);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = cases.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some((name, case)) = next else { return };
                    if catch_unwind(AssertUnwindSafe(|| run(case))).is_err() {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failed: {failed:#?}");
}
