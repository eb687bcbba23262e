//! The read-only connection that a query runs on: its checks, its schema and its functions.

mod best;
pub mod dedup;
pub mod guard;
pub mod large_stack;
pub mod math;
pub mod quoted_texts;
pub mod schema;
mod search;
mod sqlite_message;
pub mod statement;
mod try_cast;
