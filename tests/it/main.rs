//! hqdl from outside: its public surface and the built program, offline.

// A test fails by panicking, and says why on the terminal.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]
// Exact figures are what is tested; helpers take what reads best at their calls.
#![allow(clippy::float_cmp, clippy::needless_pass_by_value, clippy::unnecessary_wraps)]

mod answers;
mod batch_endpoint;
mod batches;
mod checker;
mod databases;
mod endpoint;
mod faults;
mod fixture;
mod generation;
mod init;
mod keys;
mod limits;
mod project;
mod regressions;
mod spec;
mod swan;
mod tidy;
