//! hqdl from outside: public interfaces, data in and data out, offline.

mod answers;
mod checker;
mod fixture;
mod keys;
mod spec;
