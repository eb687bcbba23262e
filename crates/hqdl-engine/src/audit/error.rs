//! Errors of an audit.

use std::path::{Path, PathBuf};

use hqdl_database::StoreError;
use hqdl_spec::overrides::OverridesError;

/// Reason why an audit cannot be drawn, read or applied.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The expansion has no audit.
    #[error("{} does not exist: no sample has been drawn yet", .0.display())]
    Missing(PathBuf),
    /// The expansion already has an audit.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// A file cannot be used.
    #[error("{}", hqdl_values::format::format_file_error(&path.display().to_string(), *line, message))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Line number.
        line: Option<u64>,
        /// Description of the error.
        message: String,
    },
    /// The request does not fit this spec.
    #[error("{message}")]
    Request {
        /// Description of the error.
        message: String,
        /// Suggestion for the user.
        hint: String,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The overrides cannot be used.
    #[error(transparent)]
    Overrides(#[from] OverridesError),
}

impl AuditError {
    /// Returns an error about a file.
    pub(crate) fn in_file(path: &Path, line: Option<u64>, message: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), line, message: message.into() }
    }

    /// Returns an error about a request.
    pub(crate) fn in_request(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Request { message: message.into(), hint: hint.into() }
    }

    /// Returns a suggestion for the user.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Missing(_) => "draw one with `hqdl audit SPEC`",
            Self::Exists(_) => {
                "fill it in; to draw another, move this file and the .jsonl file next to it away"
            }
            Self::File { line: None, .. } => {
                "hqdl changed nothing; restore the file, or move the audit's files away and draw another"
            }
            Self::File { .. } => "hqdl changed nothing; correct the line, or draw a new audit",
            Self::Request { hint, .. } => hint,
            Self::Store(error) => error.hint(),
            Self::Overrides(_) => "hqdl changed nothing",
        }
    }
}
