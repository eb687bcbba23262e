//! The error for a query that cannot have an interval.

use crate::query::QueryError;
use hqdl_sql::blendsql::tree::Span;

/// Returns the error for a query that cannot have an interval.
pub(super) fn reject_interval<T>(span: &Span, reason: impl AsRef<str>) -> Result<T, QueryError> {
    let message = format!("no interval: {}", reason.as_ref());
    Err(QueryError::in_sql(message, Some(span.clone()), "", HELP))
}

const HELP: &str = "an interval needs COUNT, SUM, AVG or a ratio of them over one expansion joined \
                    to its source, with WHERE, FILTER and GROUP BY";
