//! Rule: a condition of WHERE with calls that depends only on grouping columns is evaluated after
//! the HAVING conditions without calls.
//!
//! Precondition: the SELECT has a GROUP BY and a HAVING condition without calls. No custom
//! collation applies, because texts that are equal under it are different texts for the model. The
//! condition uses grouping columns unchanged, without subqueries and functions. Then its value is
//! the same for all rows of a group.

use super::Rewriter;
use crate::blendsql::scope::{Scope, without_parens};
use crate::blendsql::tree::{Expr, ExprKind, SelectCore};

impl Rewriter<'_> {
    /// Returns true if a condition depends only on grouping columns.
    pub(in crate::blendsql) fn depends_only_on_group(
        &self,
        expr: &Expr,
        core: &SelectCore,
        scope: &Scope<'_>,
    ) -> bool {
        if core.group.is_empty() {
            return false;
        }
        let resolve = |table: Option<&str>, column: &str, scope: &Scope<'_>| {
            scope
                .find_column(table, column)
                .map(|f| (f.depth, f.table.name.clone(), f.field.name.clone()))
        };
        let grouped: Vec<_> = core
            .group
            .iter()
            // Texts that are equal under a custom collation differ for the model.
            .filter(|g| !self.resolver().may_have_custom_collation(g, scope))
            .filter_map(|g| match &without_parens(g).kind {
                ExprKind::Column { table, column } => resolve(table.as_deref(), column, scope),
                _ => None,
            })
            .collect();
        let mut only_group_columns = true;
        self.resolver().visit_expr(expr, scope, true, &mut |e, at, _| match &e.kind {
            ExprKind::Column { table, column } => {
                let found = resolve(table.as_deref(), column, at);
                only_group_columns &= match found {
                    Some(found) => found.0 != scope.depth || grouped.contains(&found),
                    None => matches!(column.to_ascii_lowercase().as_str(), "true" | "false"),
                };
            }
            ExprKind::Exists(_) | ExprKind::Scalar(_) | ExprKind::In { query: Some(_), .. } => {
                only_group_columns = false;
            }
            // 1 and 1.0 are in the same group but are different texts.
            ExprKind::Function { .. } | ExprKind::Cast(..) | ExprKind::Operation(..) => {
                only_group_columns &= e
                    .children()
                    .0
                    .iter()
                    .all(|i| !matches!(without_parens(i).kind, ExprKind::Column { .. }));
            }
            ExprKind::Call(_, args) => {
                only_group_columns &= args
                    .iter()
                    .all(|a| matches!(a.kind, ExprKind::Column { .. } | ExprKind::Literal));
            }
            _ => {}
        });
        only_group_columns
    }
}
