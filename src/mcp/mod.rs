//! An MCP server: an assistant queries a database through tools. [`serve_stdio`] speaks the protocol
//! on stdin and stdout, with the official SDK. [`context`] does the work of the tools, `gate` decides
//! what may be spent, and [`crate::approval`] holds the rules.

pub mod config;
pub mod context;
mod gate;
mod page;
mod server;
mod stdin;
mod tools;

pub use server::serve_stdio;
