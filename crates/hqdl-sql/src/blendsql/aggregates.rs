//! Aggregate and window functions. A SELECT with one of them does not return the rows of its FROM
//! clause.

use super::runtime::Function;
use super::tree::{Core, Expr, ExprKind, Query};

/// Aggregate functions, which make a SELECT a grouped one.
pub(super) const AGGREGATES: [&str; 24] = [
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

/// Returns true if the expression is an aggregate call.
pub(super) fn is_of_rows(expr: &Expr) -> bool {
    let ExprKind::Function { name, window: false, args, .. } = &expr.kind else { return false };
    let one = !matches!(name.as_str(), "max" | "min") || args.len() == 1;
    one && AGGREGATES.contains(&name.as_str())
}

pub(super) fn is_aggregate(core: &Core, query: &Query) -> bool {
    let mut found = core.having.is_some();
    let mut see = |e: &Expr| {
        own(e, &mut |e| {
            if let ExprKind::Function { name, window: false, args, .. } = &e.kind {
                let one = !matches!(name.as_str(), "max" | "min") || args.len() == 1;
                found |= one && AGGREGATES.contains(&name.as_str());
            }
        });
    };
    core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut see);
    query.order.iter().for_each(|o| see(&o.expr));
    found
}

pub(super) fn has_window(core: &Core, query: &Query) -> bool {
    let mut found = !core.windows.is_empty();
    let mut see = |e: &Expr| {
        own(e, &mut |e| found |= matches!(&e.kind, ExprKind::Function { window: true, .. }));
    };
    core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut see);
    query.order.iter().for_each(|o| see(&o.expr));
    found
}

/// Visits an expression and everything inside it except subqueries.
pub(super) fn own(expr: &Expr, see: &mut dyn FnMut(&Expr)) {
    see(expr);
    let (exprs, _) = expr.inside();
    exprs.into_iter().for_each(|e| own(e, see));
}
