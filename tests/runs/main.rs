//! Tests of runs: facts, requests, costs, failures and published tables.

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

mod aliases;
mod audio;
mod batches;
mod budget_schedules;
mod budgets;
mod cascades;
mod changed_keys;
mod choices_of_a_run;
mod contexts;
mod damage;
mod drafts;
mod earlier;
mod escalate;
mod evidence;
mod faults;
mod fleet;
mod generation;
mod images;
mod increments;
mod key_parts;
mod kills;
mod models;
mod odd_values;
mod on_server;
mod packing;
mod parameters;
mod prices;
mod prompt_cache;
mod protocols;
mod providers;
mod publishing;
mod rates;
mod readers;
mod regressions;
mod replies;
mod rounds;
mod row_contexts;
mod sharing;
mod shots;
mod unify;
mod usage;
