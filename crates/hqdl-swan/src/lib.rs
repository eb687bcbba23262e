//! Runs SWAN (2024), a benchmark of hybrid queries over databases and language models. It consists
//! of four of BIRD's databases without some of their columns, and of 120 questions that need those
//! columns.
//!
//! ```text
//! prepare:  BIRD's database → rows that SWAN includes (gold) → copy without the hidden columns
//! run:      questions → materialize → query, question by question → a record
//! score:    record + gold → correctness, relative errors, cost
//! report:   scores → Markdown, JSON, charts
//! ```
//!
//! [`run()`] uses the same two paths as every user, [`hqdl_engine::materialize`] and
//! [`hqdl_engine::query`]; neither contains code for the benchmark. [`run()`] reads only the
//! prepared database; only [`score_run()`] opens the gold database.

pub mod benchmark;
pub mod chart;
pub mod compare;
pub mod factuality;
pub mod grade;
pub mod oracle;
pub mod prepare;
pub mod published;
pub mod questions;
pub mod record;
pub mod report;
pub mod run;
pub mod score;
pub mod setup;
pub mod shots;

use std::path::{Path, PathBuf};

pub use benchmark::Benchmark;
pub use questions::{BenchmarkQuestion, Mode};
pub use record::RunsRecord;
pub use run::run;
pub use score::{RunScore, score_run};

use hqdl_database::StoreError;
use hqdl_facts::FactsError;
use hqdl_model::SetupError;
use hqdl_spec::ReadError;

/// Reason why an evaluation failed.
#[derive(Debug, thiserror::Error)]
pub enum SwanError {
    /// The input cannot be used.
    #[error("{message}")]
    Input {
        /// Error message.
        message: String,
        /// Suggestion for the user.
        hint: String,
    },
    /// A file cannot be read or written.
    #[error("{}", hqdl_values::format::describe_read_error(path, error))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        error: std::io::Error,
    },
    /// A database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The facts of a run cannot be used.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The spec cannot be read.
    #[error(transparent)]
    Spec(#[from] ReadError),
    /// The recordings cannot be read.
    #[error(transparent)]
    Model(#[from] SetupError),
    /// The user interrupted the command.
    #[error("interrupted")]
    Interrupted,
}

impl SwanError {
    fn wrong_input(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Input { message: message.into(), hint: hint.into() }
    }

    fn file(path: &Path, error: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }

    /// Returns a suggestion for the user; empty if the error itself contains it.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Input { hint, .. } => hint,
            Self::File { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                "check the path"
            }
            Self::File { .. } => {
                "check that the file and its directory can be read and written, then run this again"
            }
            Self::Store(error) => error.hint(),
            Self::Facts(error) => error.hint(),
            Self::Spec(_) | Self::Model(_) | Self::Interrupted => "",
        }
    }
}
