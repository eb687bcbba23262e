//! Why a query has no rows, or not all of them.

use std::ops::Range;
use std::time::Duration;

use hqdl_database::StoreError;
use hqdl_facts::FactsError;
use hqdl_model::SetupError;
use hqdl_model::generate::Stopped;
use hqdl_spec::overrides::OverridesError;
use hqdl_values::problem::{Problem, Severity};

/// Why a query has no rows, or not all of them.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The query is wrong; the span is bytes of the query as the user wrote it.
    #[error("{}", .0.message)]
    Sql(Box<Problem>),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The facts failed.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The overrides cannot be used.
    #[error(transparent)]
    Overrides(#[from] OverridesError),
    /// There is no model to ask.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A value must be asked for, and the request came without a model.
    #[error("a call needs a model, but none is named")]
    NoModel,
    /// The query stopped on the way; what was answered is kept.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// `SQLite` took longer over the query than it may.
    #[error("the query exceeded its time limit of {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The rows could not be written.
    #[error("cannot write the result: {0}")]
    Output(std::io::Error),
    /// The runtime could not be started.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

impl QueryError {
    /// Something is wrong with the query: what, where (bytes of its text), what
    /// was expected there, and what to do about it (both may be empty).
    #[must_use]
    pub fn sql(
        message: impl Into<String>,
        span: Option<Range<usize>>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self::Sql(Box::new(Problem {
            severity: Severity::Error,
            message: message.into(),
            span,
            label: label.into(),
            help: Some(help.into()).filter(|h| !h.is_empty()),
        }))
    }
}
