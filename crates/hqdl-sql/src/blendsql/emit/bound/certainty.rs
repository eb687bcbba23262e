//! Decides which rows and values of a query depend on no answer.

use super::BoundWriter;
use crate::blendsql::aggregates::{
    is_aggregate, is_aggregate_call, is_aggregate_name, visit_own_exprs,
};
use crate::blendsql::emit::{column_sql, replace_parts};
use crate::blendsql::frame::{Frame, is_random_function, joins_by_name};
use crate::blendsql::plan::analysis::{is_legacy_column, list_reachable_calls};
use crate::blendsql::plan::condition::{may_fail, split_conjuncts};
use crate::blendsql::tree::{Expr, ExprKind, Query, SelectCore};

impl BoundWriter<'_> {
    /// Returns true if neither the rows nor the values of a query depend on an answer.
    pub fn is_certain_query(&self, query: &Query, around: &Frame<'_>) -> bool {
        if query.has_call() {
            return false;
        }
        let mut settled = true;
        let live = |name: &str| {
            around
                .scope
                .cte_fields(name)
                .is_some_and(|f| f.iter().flatten().any(|f| f.is_from_call))
        };
        let by_name = joins_by_name(query);
        query.visit_tables(&mut |name| {
            settled &= around.is_exact(name) && !(by_name && live(name));
        });
        let opaque = around.ancestors().any(|f| f.is_opaque);
        self.analysis.resolver().visit_exprs(query, &around.scope, &mut |e, at, _| match &e.kind {
            ExprKind::Column { table, column } => {
                settled &= match at.find_column(table.as_deref(), column) {
                    Some(hit) => !hit.field.is_from_call,
                    // The name can be the alias of an outer SELECT's result column.
                    None => !opaque && !around.ancestors().any(|f| f.find_alias(column).is_some()),
                };
            }
            ExprKind::Function { name, args, window: None, .. } if is_aggregate_name(name) => {
                // An aggregate of outer columns belongs to the outer SELECT.
                let mut deepest = None;
                args.iter().for_each(|a| {
                    a.visit_exprs(&mut |e| {
                        if let ExprKind::Column { table, column } = &e.kind {
                            let depth = at
                                .find_column(table.as_deref(), column)
                                .map_or(at.depth, |f| f.depth);
                            deepest = deepest.max(Some(depth));
                        }
                    });
                });
                settled &= deepest.is_none_or(|d| d > around.scope.depth);
            }
            ExprKind::Function { name, .. } => settled &= !is_random_function(name),
            _ => {}
        });
        settled
    }

    /// Returns true if the value of an expression does not depend on any answer. Aggregates and
    /// window functions depend on all rows, so they are certain only if `exact_rows` is true.
    pub fn is_certain(&self, expr: &Expr, frame: &Frame<'_>, exact_rows: bool) -> bool {
        match &expr.kind {
            ExprKind::Call(..) => return false,
            ExprKind::Column { table, column } => {
                return self.is_certain_column(table.as_deref(), column, frame);
            }
            ExprKind::Function { name, window, .. }
                if is_random_function(name)
                    || !exact_rows && (window.is_some() || is_aggregate_call(expr)) =>
            {
                return false;
            }
            _ => {}
        }
        let (exprs, query) = expr.children();
        exprs.into_iter().all(|e| self.is_certain(e, frame, exact_rows))
            && query.is_none_or(|q| {
                // A pass evaluates a subquery that reaches calls after other conditions, even if it
                // uses no answer.
                list_reachable_calls(q, &self.plan.cte_calls).is_empty()
                    && self.is_certain_query(q, frame)
            })
    }

    fn is_certain_column(&self, table: Option<&str>, column: &str, frame: &Frame<'_>) -> bool {
        let alias = frame.find_alias(column).filter(|_| table.is_none());
        match (frame.scope.find_column(table, column), alias) {
            (Some(hit), None) => !hit.field.is_from_call,
            (Some(hit), Some(_)) => hit.depth == frame.scope.depth && !hit.field.is_from_call,
            (None, Some(expr)) => {
                let mut found = true;
                visit_own_exprs(expr, &mut |e| {
                    if let ExprKind::Column { table, column } = &e.kind {
                        found &= frame.scope.find_column(table.as_deref(), column).is_some();
                    }
                });
                found && self.is_certain(expr, frame, false)
            }
            (None, None) => {
                let truth = ["true", "false"].iter().any(|t| column.eq_ignore_ascii_case(t));
                let row = frame.scope.find_row_scope_depth(table, column).is_some();
                row && !frame.ancestors().any(|f| f.is_opaque) || truth && table.is_none()
            }
        }
    }

    /// Returns the SQL of an expression, with aliases replaced by their expressions.
    pub fn expr_sql(&self, expr: &Expr, frame: &Frame<'_>) -> String {
        let mut parts = Vec::new();
        visit_own_exprs(expr, &mut |e| {
            let ExprKind::Column { table, column } = &e.kind else { return };
            let unknown = table.is_none() && frame.scope.find_column(None, column).is_none();
            if let Some(alias) = frame.find_alias(column).filter(|_| unknown) {
                parts.push((e.span.clone(), format!("({})", &self.sql[alias.span.clone()])));
            } else if is_legacy_column(e, self.sql) {
                parts.push((e.span.clone(), column_sql(e, self.sql)));
            }
        });
        replace_parts(self.sql, &expr.span, parts)
    }

    /// Returns a condition in which each part that depends on an answer is assumed to hold.
    pub fn build_possible_condition(&self, condition: &Expr, frame: &Frame<'_>) -> String {
        let open = split_conjuncts(condition);
        let open = open.into_iter().filter(|c| !self.is_certain(c, frame, false));
        let first = open.map(|c| c.span.start).min().unwrap_or(usize::MAX);
        self.write_possible_condition(condition, true, frame, first)
    }

    fn write_possible_condition(
        &self,
        expr: &Expr,
        wanted: bool,
        frame: &Frame<'_>,
        first: usize,
    ) -> String {
        match &expr.kind {
            ExprKind::Paren(inner) => self.write_possible_condition(inner, wanted, frame, first),
            ExprKind::Not(inner) => self.write_possible_condition(inner, !wanted, frame, first),
            ExprKind::And(parts) | ExprKind::Or(parts) => {
                let all = matches!(expr.kind, ExprKind::And(_)) == wanted;
                let parts =
                    parts.iter().map(|p| self.write_possible_condition(p, wanted, frame, first));
                let parts: Vec<String> = parts.filter(|p| p != "1" || !all).collect();
                if parts.iter().any(|p| p == "1") || parts.is_empty() {
                    return "1".to_owned();
                }
                format!("({})", parts.join(if all { " AND " } else { " OR " }))
            }
            _ if !self.is_certain(expr, frame, false) => "1".to_owned(),
            // An earlier uncertain condition may protect this condition from an error, so do not
            // evaluate it.
            _ if may_fail(expr) && expr.span.start > first => "1".to_owned(),
            _ if wanted => format!("({})", self.expr_sql(expr, frame)),
            _ => format!("(NOT ({}))", self.expr_sql(expr, frame)),
        }
    }

    /// Returns true if the rows of a SELECT are groups.
    pub fn is_grouped(&self, query: &Query, core: &SelectCore, frame: &Frame<'_>) -> bool {
        !core.group.is_empty()
            || is_aggregate(core, query)
            || !self.analysis.find_outer_aggregates(core, query, &frame.scope).is_empty()
    }
}
