//! Refresh jobs, which ask for known cells again. If a job is limited or interrupted, the next run
//! resumes it.

/// Selects the cells that a refresh job asks for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshKind {
    /// `--refresh`: all known cells.
    Refresh,
    /// `--retry-failed`: cells without a value.
    Retry,
}

impl RefreshKind {
    /// Returns the kind's name in messages and in the journal.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refresh => "refresh",
            Self::Retry => "retry",
        }
    }
}

/// Scope of a refresh job. The same command resumes the same job.
#[derive(Debug, Clone)]
pub struct RefreshSubject {
    /// Selects the cells to ask for again.
    pub kind: RefreshKind,
    /// The spec's full path.
    pub spec: String,
    /// Name of the expansion.
    pub expansion: String,
    /// Id of the column's identity in the journal.
    pub identity_id: u32,
    /// Id of the model in the journal.
    pub model: u32,
    /// The SQL of `--where`; empty for all keys.
    pub scope: String,
}

/// A refresh job in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRefresh {
    /// Id of the refresh in the journal.
    pub id: i64,
    /// Id of the last completion whose facts no longer count.
    pub up_to: i64,
    /// Time at which the job was started, RFC 3339.
    pub begun_at: String,
}
