//! Tests of hqdl from outside: its public interface and the built program, offline.

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
mod ask;
mod ask_measured;
mod ask_page;
mod audio;
mod batches;
mod binding;
mod blendsql_cases;
mod budget_schedules;
mod budgets;
mod cascades;
mod changed_keys;
mod chat;
mod choices_of_a_run;
mod classify;
mod contexts;
mod corpus;
mod damage;
mod daemon_crowd;
mod daemon_http;
mod daemon_life;
mod daemon_limits;
mod daemon_page;
mod daemon_soak;
mod daemon_watch;
mod databases;
mod drafts;
mod earlier;
mod embeddings;
mod escalate;
mod evidence;
mod faults;
mod first_steps;
mod fleet;
mod forms;
mod functions;
mod generation;
mod guides;
mod images;
mod increments;
mod input_messages;
mod ingredients;
mod init_kinds;
mod join_pairs;
mod key_parts;
mod kills;
#[cfg(unix)]
mod intervals;
mod log;
mod mcp;
mod mcp_http;
mod mcp_tools;
mod messages;
mod models;
mod odd_values;
mod on_server;
mod packing;
mod parameters;
mod page_query;
mod page_states;
mod page_tables;
mod page_tasks;
mod prices;
mod prompt_cache;
mod protocols;
mod providers;
mod published_calls;
mod publishing;
mod rates;
mod queries;
mod queries_cli;
mod query_cases;
mod readers;
mod reductions;
mod reference;
mod regressions;
mod replies;
mod review_rows;
mod rounds;
mod routing;
mod row_contexts;
mod sembench;
mod sharing;
mod searches;
mod shots;
mod snapshots;
mod spec_page;
mod stored_columns;
mod suggestions;
mod suql;
mod suql_documents;
mod suql_postgres;
mod swan2;
mod swan;
mod swan_published;
mod swan_queries;
mod swan_runs;
mod tidy;
mod truth;
mod unify;
mod usage;
