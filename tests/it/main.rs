//! hqdl from outside: its public surface and the built program, offline.

// A test fails by panicking, and says why on the terminal.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod answers;
mod checker;
mod fixture;
mod keys;
mod spec;
mod swan;
mod tidy;
