//! Errors of a query.

use std::ops::Range;
use std::time::Duration;

use hqdl_database::StoreError;
use hqdl_facts::FactsError;
use hqdl_model::SetupError;
use hqdl_model::generate::StopReason;
use hqdl_spec::overrides::OverridesError;
use hqdl_sql::blendsql::SqlError;
use hqdl_values::problem::{Problem, Severity};

/// Reason why a query failed or was not completed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The query is invalid. The span is a byte range of the query as the user wrote it.
    #[error("{}", .0.message)]
    Sql(Box<Problem>),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The fact store failed.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The overrides cannot be used.
    #[error(transparent)]
    Overrides(#[from] OverridesError),
    /// The model is not set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The query needs a value that is not stored, but the request has no model.
    #[error("a call needs a model, but none is named")]
    NoModel,
    /// The provider, or the model itself, refused to write the query or the prose of a question.
    #[error("the provider refused to answer this question")]
    Refused,
    /// The run stopped before the query was complete. Answers received until then are kept.
    #[error(transparent)]
    Stopped(#[from] StopReason),
    /// The query exceeded its time limit.
    #[error("the query exceeded its time limit of {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The sink could not write the rows.
    #[error("cannot write the result: {}", hqdl_values::format::describe_io_error(.0))]
    Output(std::io::Error),
    /// The documents of an expansion cannot be read.
    #[error("the evidence of `{expansion}`: {message}")]
    Evidence {
        /// Name of the expansion.
        expansion: String,
        /// Reason why the documents cannot be read.
        message: String,
    },
    /// A thread or the async runtime could not be started.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

impl QueryError {
    /// Returns an error in the text of the query: the message, its span in bytes, the label of the
    /// span, and a hint. The label and the hint may be empty.
    #[must_use]
    pub fn in_sql(
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

    /// Returns the error for an unusable embeddings file.
    pub(in crate::query) fn from_vector_file_error(error: &rusqlite::Error) -> Self {
        Self::in_sql(
            format!("hqdl cannot use its file of embeddings: {error}"),
            None,
            "",
            "check the permissions of `vectors.sqlite` in the cache folder, and its free space",
        )
    }

    /// Returns the error with its span mapped to another text by `map`.
    #[must_use]
    pub fn map_span(self, map: impl FnOnce(Range<usize>) -> Range<usize>) -> Self {
        let Self::Sql(mut problem) = self else { return self };
        problem.span = problem.span.map(map);
        Self::Sql(problem)
    }
}

impl From<SqlError> for QueryError {
    fn from(error: SqlError) -> Self {
        let known_names = error.known_names_hint();
        let suggests = error.is_suggestion;
        let help: Vec<String> = error.help.into_iter().chain(known_names).collect();
        let help = help.join(if suggests { " " } else { "; " });
        Self::in_sql(error.message, Some(error.span), error.label, help)
    }
}
