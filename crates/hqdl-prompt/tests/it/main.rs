//! What becomes of a model's words.

// A test fails by panicking, and says why on the terminal.
#![allow(
    clippy::too_many_lines,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]
// Exact figures are what is tested; helpers take what reads best at their calls.
#![allow(clippy::float_cmp, clippy::needless_pass_by_value, clippy::unnecessary_wraps)]

mod answers;
mod drafts;
mod forms;
mod readings;
mod row_form;
mod several;
mod statement;
