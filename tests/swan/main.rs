//! Tests of `hqdl swan`.

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

mod swan;
mod swan2;
mod swan_published;
mod swan_queries;
mod swan_runs;
