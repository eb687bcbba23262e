//! Aggregate and window functions. A SELECT that contains such a function does not simply return
//! the rows of its FROM clause.

use super::runtime::{CALL_AGGREGATES, Function};
use super::tree::{Expr, ExprKind, Query, SelectCore};

/// Aggregate functions that replace no call.
const AGGREGATES: [&str; 24] = [
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "var_pop",
    "var_samp",
    "variance",
    "avg",
    "count",
    "group_concat",
    "string_agg",
    "sum",
    "total",
    "json_group_array",
    "json_group_object",
    "jsonb_group_array",
    "jsonb_group_object",
    "median",
    "percentile",
    "percentile_cont",
    "percentile_disc",
    Function::Rows.name(),
    Function::Values.name(),
    "max",
    "min",
];

/// Returns true if a function is an aggregate. A SELECT that calls one returns groups.
pub(super) fn is_aggregate_name(name: &str) -> bool {
    AGGREGATES.contains(&name) || CALL_AGGREGATES.iter().any(|aggregate| aggregate.function == name)
}

pub(super) fn is_aggregate_call(expr: &Expr) -> bool {
    let ExprKind::Function { name, window: None, args, .. } = &expr.kind else { return false };
    let is_unambiguous = !matches!(name.as_str(), "max" | "min") || args.len() == 1;
    is_unambiguous && is_aggregate_name(name)
}

pub(super) fn is_aggregate(core: &SelectCore, query: &Query) -> bool {
    let mut found = core.having.is_some();
    let mut collect = |e: &Expr| {
        visit_own_exprs(e, &mut |e| {
            if let ExprKind::Function { name, window: None, args, .. } = &e.kind {
                let is_unambiguous = !matches!(name.as_str(), "max" | "min") || args.len() == 1;
                found |= is_unambiguous && is_aggregate_name(name);
            }
        });
    };
    core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut collect);
    query.order.iter().for_each(|o| collect(&o.expr));
    found
}

pub(super) fn has_window(core: &SelectCore, query: &Query) -> bool {
    count_windows(core, query) > 0
}

/// Returns the number of window functions plus the number of expressions in the WINDOW clause.
pub(super) fn count_windows(core: &SelectCore, query: &Query) -> usize {
    let mut count = core.windows.len();
    let mut collect = |e: &Expr| {
        visit_own_exprs(e, &mut |e| {
            count += usize::from(matches!(&e.kind, ExprKind::Function { window: Some(_), .. }));
        });
    };
    core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut collect);
    query.order.iter().for_each(|o| collect(&o.expr));
    count
}

/// Visits an expression and everything inside it except subqueries.
pub(super) fn visit_own_exprs(expr: &Expr, visit: &mut dyn FnMut(&Expr)) {
    visit(expr);
    let (exprs, _) = expr.children();
    exprs.into_iter().for_each(|e| visit_own_exprs(e, visit));
}
