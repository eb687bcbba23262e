//! An MCP server: an assistant queries a database through tools. [`serve_stdio`] serves the
//! protocol on stdin and stdout, with the official SDK, and the daemon serves an [`McpServer`] over
//! HTTP. `call` runs a tool, [`context`] does the work of the tools, `approval` decides whether a
//! plan may run, and [`crate::approval`] contains the rules.

mod actions;
mod call;
pub mod config;
pub mod connection;
pub mod context;
mod approval;
pub mod host;
mod page;
mod resources;
mod server;
mod stdin;
mod tools;

pub use server::{McpServer, serve_stdio};
