//! SQL for the calls of a query, as determined by the engine's routing.

use crate::blendsql::ingredients::Subject;
use crate::blendsql::runtime::Function;

/// SQL for a call in the rewritten query.
#[derive(Debug, Clone, Default)]
pub struct CallSite {
    /// SQL before the answer.
    pub sql_before: String,
    /// Arguments as SQL; `None` to use the query's own arguments.
    pub argument_sql: Option<Vec<String>>,
    /// SQL after the answer.
    pub sql_after: String,
    /// Subject of the call.
    pub subject: Subject,
    /// Number of columns if the answer is a list that becomes a row value.
    pub row_width: Option<u32>,
}

impl CallSite {
    /// Returns the aggregate that converts the query in argument `n` to one value, or `None` if the
    /// argument is a scalar subquery.
    pub(crate) fn find_context_function(&self, n: usize) -> Option<Function> {
        match self.subject {
            Subject::Rows => Some(Function::Rows),
            // Arguments after the value asked about are context.
            Subject::Value if n > 0 => Some(Function::Values),
            _ => None,
        }
    }
}
