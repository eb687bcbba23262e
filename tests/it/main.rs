//! Tests from outside: the library's public surface and the built program.

mod swan;
mod tidy;
