//! A SELECT in its scope, which is the input of the rules.

use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::numbered_rows::NumberedRows;
use crate::blendsql::scope::Scope;
use crate::blendsql::tree::{CompoundOperator, Expr, Query, SelectCore};

/// Use of a query's rows.
#[derive(Clone, Copy)]
pub(crate) enum RowUse<'s> {
    /// All rows are read.
    All,
    /// The rows of an EXISTS, IN or scalar subquery, in the scope of the expression.
    Expr(&'s Expr, &'s Scope<'s>),
    /// The rows are only counted, and their count is compared with a number. Contains the number of
    /// rows that decides the comparison.
    Counted(u64),
    /// The rows of an IN; only the truth value of the IN matters.
    Truth(&'s Expr, &'s Scope<'s>),
    /// The SELECT is an arm of a UNION ALL. Only the first rows of the UNION ALL are needed.
    Arm(&'s Query),
    /// Only the first rows in a window's order are used.
    Numbered(NumberedRows<'s>),
    /// One side of a compound.
    Side { operator: CompoundOperator, other: &'s Query, is_left: bool },
}

/// A SELECT in its scope, to which rules are applied.
pub(crate) struct SelectScope<'s> {
    pub analysis: &'s Analysis<'s>,
    pub query: &'s Query,
    pub core: &'s SelectCore,
    pub scope: &'s Scope<'s>,
    pub row_use: RowUse<'s>,
}

impl SelectScope<'_> {
    /// Returns the offset that identifies the SELECT in the plan.
    pub fn offset(&self) -> usize {
        self.core.span.start
    }

    pub fn depends_on_call(&self, expr: &Expr) -> bool {
        self.analysis.depends_on_call(expr, self.scope)
    }
}
