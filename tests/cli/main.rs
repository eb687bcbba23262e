//! Tests of commands, their input and their messages.

// A test fails by panicking and prints the reason.
#![allow(
    clippy::too_many_lines,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]
// Tests compare exact figures, and helpers take the arguments that make their calls readable.
#![allow(clippy::float_cmp, clippy::needless_pass_by_value, clippy::unnecessary_wraps)]

mod databases;
mod first_steps;
mod init_kinds;
mod input_messages;
mod log;
mod messages;
mod queries_cli;
mod suggestions;
mod truth;
