//! `hqdl` expands the schema of a `SQLite` database with what a language model
//! knows. A TOML *spec* declares missing columns over *semantic keys*; missing
//! cells are asked for once, kept as *facts*, and published as ordinary tables.
//!
//! # The map
//!
//! The engine is made of the crates in `crates/`, each on those named before it below;
//! this one has the doors. Read [`materialize`] for the path of the data:
//!
//! ```text
//! spec → check → keys − facts → plan → prompt → model → answers → facts → publish
//! ```
//!
//! What stands between prompt and answers is [`generate`], request by request,
//! or [`dispatch`], through the Batch API. [`query`] is the other path, which ends
//! in the same generation:
//!
//! ```text
//! scan → parse → routes → rewrite → (run → demand → ask)* → rows
//! ```
//!
//! [`daemon`] does both for whoever asks, and by itself when a file changes:
//!
//! ```text
//! watch | clock | http | signals → Event → one loop → checks, runs → Event
//! ```
//!
//! # Invariants
//!
//! * A fact is found by what it *is*: the entity ([`key::Entity`]) and the
//!   column's meaning ([`key::Fingerprint`]), never by prompt text.
//! * A value lands only in the row whose number and tag, or number and key, its
//!   answer echoed ([`prompt::align`]).
//! * Only states `ok` and `overridden` show a value ([`cell::State`]); every
//!   other cell is NULL with its state kept behind it.
//! * What is answered is in the journal (or on the server that several machines
//!   share) before anything else happens to it ([`facts`]); the index and the
//!   published tables can be made again from it.
//! * Only tables that hqdl made are ever written or dropped
//!   ([`database::publish`]).
//! * Recordings take the same way as live answers ([`model::replay`]).
//! * A query writes nothing: it runs behind [`query::guard`].
//! * Likeness ([`retrieval`]) orders what is asked and selects what is shown; it
//!   never decides which rows qualify.
//!
//! `docs/architecture.md` follows both paths function by function, and
//! `docs/decisions.md` says what was decided where the design was silent, and why.

// ── the engine, crate by crate, each on those before it ──
pub use hqdl_database as database;
pub use hqdl_engine::{init, materialize, query, retrieval, routing, session, suggest, truth};
pub use hqdl_facts::{self as facts, limits};
pub use hqdl_model::{self as model, dispatch, generate, plan};
pub use hqdl_prompt as prompt;
pub use hqdl_spec::{self as spec, overrides};
pub use hqdl_sql::{blendsql, suql};
pub use hqdl_values::{Row, cell, format, key, problem, sql, tokens, usage, value};
// ── doors ──
pub mod swan;
pub mod failure;
pub mod daemon;
pub mod cli;
