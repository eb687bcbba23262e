//! `hqdl` adds columns to a `SQLite` database and fills them with a language model's answers. A
//! TOML *spec* declares the missing columns and the *semantic keys* of their rows. hqdl asks for
//! each missing cell once, stores the answers as *facts*, and publishes them as ordinary tables.
//!
//! # Overview
//!
//! The engine consists of the crates in `crates/`, which are re-exported below;
//! `docs/architecture.md` lists them in dependency order. This crate adds the front ends: the
//! command line, the daemon and the MCP server. [`materialize`] shows the path of the data:
//!
//! ```text
//! spec → check → keys − facts → plan → prompt → model → answers → facts → publish
//! ```
//!
//! [`generate`] turns prompts into answers one request at a time; [`dispatch`] does so through the
//! Batch API. [`query`] is the other path. It generates answers in the same way:
//!
//! ```text
//! scan → parse → routes → rewrite → (run → demand → ask)* → rows
//! ```
//!
//! [`daemon`] does both for its clients, and materializes specs when a file changes:
//!
//! ```text
//! watch | clock | http | signals → Event → one loop → checks, runs → Event
//! ```
//!
//! # Invariants
//!
//! - A fact is found by the entity ([`key::Entity`]) and the identity of the column
//!   ([`key::Fingerprint`]), never by prompt text.
//! - A value is assigned to a row only if its answer repeats the row's number and tag, or its
//!   number and key ([`prompt::align`]).
//! - A cell has a value only in the states `ok` and `overridden` ([`cell::State`]). Every other
//!   cell is NULL, and its state is stored beside it.
//! - An answer is written to the journal (or to the server that several machines share) before it
//!   is used ([`facts`]). The index and the published tables can be rebuilt from the journal.
//! - hqdl writes or drops only tables that it made ([`database::publish`]).
//! - Recordings use the same code path as live answers ([`model::replay`]).
//! - A query writes nothing: it runs behind [`query::connection::guard`].
//! - Similarity ([`retrieval`]) orders requests and selects context. It never decides which rows
//!   qualify.
//!
//! `docs/architecture.md` follows both paths function by function. `docs/decisions.md` lists the
//! decisions that the design left open, with their reasons.

// ── the engine ──
pub use hqdl_database as database;
pub use hqdl_engine::{
    approval, ask, audit, init, interval, materialize, private_dir, query, retrieval, routing,
    session, suggest, truth,
};
pub use hqdl_facts::{self as facts, limits};
pub use hqdl_model::{self as model, dispatch, generate, plan};
pub use hqdl_prompt as prompt;
pub use hqdl_spec::{self as spec, overrides};
pub use hqdl_sql::{blendsql, suql};
pub use hqdl_swan as swan;
pub use hqdl_values::{Row, cell, evidence, format, key, problem, sql, tokens, usage, value};
// ── the front ends ──
pub mod failure;
pub mod spec_file;
pub mod sample_prompts;
pub mod daemon;
pub mod mcp;
pub mod cli;
