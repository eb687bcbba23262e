//! Tests from outside: the library's public surface and the built program.

mod databases;
mod endpoint;
mod faults;
mod generation;
mod project;
mod swan;
mod tidy;
