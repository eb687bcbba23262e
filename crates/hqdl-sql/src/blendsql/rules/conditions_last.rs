//! The rule of conditions last: conditions with calls are evaluated for the rows that
//! plain conditions and joins leave.
//!
//! Precondition: the condition is one of WHERE, or of an inner join where nothing is
//! joined by RIGHT or FULL, for there it means the same in WHERE. A plain condition
//! that may fail stays behind the calls that it stands behind: where they exclude the
//! row, it is not evaluated.
//!
//! `SQLite` evaluates a condition as soon as all that it names is there, so it names
//! every table. What a view or a subquery joins beneath it cannot name.

use super::Rewriter;
use crate::blendsql::rewrite::has_field;
use crate::blendsql::scope::{Scope, Table};
use crate::blendsql::tree::{Expr, ExprKind};
use crate::blendsql::truth;
use hqdl_values::sql;

impl Rewriter<'_> {
    /// Whether a condition has a subquery that runs for each row.
    pub(in crate::blendsql) fn hangs_on_rows(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().each_in(expr, scope, true, &mut |e, at, _| match &e.kind {
            ExprKind::Exists(_) => found = true,
            ExprKind::Column { table, column } if at.depth > scope.depth => {
                found |=
                    at.find(table.as_deref(), column).is_none_or(|hit| hit.depth <= scope.depth);
            }
            _ => {}
        });
        found
    }
}

/// A column of each table that a scope reads, and whether there is one of every
/// table: only then does a condition that names them wait for all of them.
pub(in crate::blendsql) fn fence(scope: &Scope<'_>) -> (Vec<String>, bool) {
    let of = |table: &Table| {
        if table.name.is_some() {
            return table.any_column();
        }
        // A name that no other table has means this one's.
        let fields = table.fields.as_ref()?;
        let alone = |name: &str| {
            let having = |t: &&Table| has_field(t, name);
            scope.tables.iter().filter(having).count() == 1
        };
        let own = fields.iter().find(|f| !f.name.is_empty() && alone(&f.name))?;
        Some(sql::name(&own.name))
    };
    let columns: Vec<Option<String>> = scope.tables.iter().map(of).collect();
    let whole = columns.len() < 2 || columns.iter().all(Option::is_some);
    (columns.into_iter().flatten().collect(), whole)
}

/// Takes those of some plain conditions that may fail and stand behind a call.
pub(in crate::blendsql) fn held_back(
    plain: &mut Vec<Expr>,
    calls: &[Expr],
    sql: &str,
) -> Vec<Expr> {
    let Some(call) = calls.iter().map(|c| c.span.start).min() else { return Vec::new() };
    let held = |e: &Expr| e.span.start > call && truth::may_fail(e, sql);
    let (held, rest) = std::mem::take(plain).into_iter().partition(|e| held(e));
    *plain = rest;
    held
}
