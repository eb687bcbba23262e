//! Tests of the daemon, its page and its MCP servers.

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

mod ask_page;
mod daemon_crowd;
mod daemon_http;
mod daemon_life;
mod daemon_limits;
mod daemon_page;
mod daemon_soak;
mod daemon_watch;
mod mcp;
mod mcp_http;
mod mcp_tools;
mod page_query;
mod page_states;
mod page_tables;
mod page_tasks;
mod review_rows;
mod spec_page;
