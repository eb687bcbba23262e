//! Tests of the benchmark through the library: grades, and the true values.

// A test fails by panicking and prints the reason.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod grades;
mod truth;
