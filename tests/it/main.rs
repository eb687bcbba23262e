//! hqdl from outside: its public surface and the built program, offline.

mod answers;
mod checker;
mod fixture;
mod keys;
mod spec;
mod swan;
mod tidy;
