//! Tests of queries, questions in plain words, and their rows.

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

mod ask;
mod ask_measured;
mod binding;
mod blendsql_cases;
mod chat;
mod classify;
mod corpus;
mod embeddings;
mod forms;
mod functions;
mod ingredients;
#[cfg(unix)]
mod intervals;
mod join_pairs;
mod published_calls;
mod queries;
mod query_cases;
mod reductions;
mod routing;
mod searches;
mod sembench;
mod stored_columns;
mod suql;
mod suql_documents;
mod suql_postgres;
