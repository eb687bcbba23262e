//! Tests from outside: the library's public surface and the built program.

// clippy.toml allows these inside test functions; their helpers are tests, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod databases;
mod endpoint;
mod faults;
mod generation;
mod project;
mod swan;
mod tidy;
