//! Rule: if a SELECT uses only the first rows of a source in a window's order, the source evaluates
//! results with calls only for these rows.
//!
//! Precondition: the source numbers its rows with `row_number()` or `rank()`, and a condition of
//! the outer WHERE limits this number. No join of the outer SELECT is RIGHT or FULL. In the source,
//! calls occur only in results other than the row number, and nothing else uses these results. No
//! call asks about all rows together. The source has no DISTINCT, no random values and no other
//! window function. The results have no type affinity, because the guard around them has none.
//!
//! Effect: for all other rows the results are NULL. The outer WHERE excludes these rows.

use crate::blendsql::aggregates::count_windows;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::analysis::visit_own_calls;
use crate::blendsql::plan::select_scope::{RowUse, SelectScope};
use crate::blendsql::plan::{DemandPlan, RejectionReason, RuleResult, ValueGuard};
use crate::blendsql::scope::strip_expr_parens;
use crate::blendsql::terms::{Clause, resolve_term_expr};
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator};

/// Restricts the results with calls to the rows that are used.
pub(crate) fn restrict_to_first_rows(
    plan: &mut DemandPlan,
    select: &SelectScope<'_>,
) -> RuleResult {
    let RowUse::Numbered(numbered) = select.row_use else { return RuleResult::Irrelevant };
    let mut results = select.core.columns.iter().filter_map(|c| c.expr.as_ref());
    if !results.any(|e| select.depends_on_call(e)) {
        return RuleResult::Irrelevant;
    }
    if select.depends_on_call(numbered.function) {
        return RuleResult::Refused("its window contains a call");
    }
    match check_results(select) {
        Ok(()) => {
            let (number, last) = (numbered.function.span.clone(), numbered.last);
            let planned = plan.find_or_add_select(select.offset());
            planned.value_guard = Some(ValueGuard { number, last });
            RuleResult::Applied(format!("for rows whose number is at most {last}"))
        }
        Err(why) => RuleResult::Refused(why),
    }
}

/// Checks that calls occur only in results, and that rows beyond the first ones do not need these
/// results.
fn check_results(select: &SelectScope<'_>) -> Result<(), RejectionReason> {
    let SelectScope { analysis, query, core, .. } = *select;
    let results = core.columns.iter().filter_map(|c| Some((c.alias.as_ref(), c.expr.as_ref()?)));
    let (values, plain): (Vec<_>, Vec<_>) = results.partition(|(_, e)| select.depends_on_call(e));
    let group = core.group.iter().map(|e| resolve_term_expr(e, Clause::Group, core, analysis.sql));
    let order =
        query.order.iter().map(|o| resolve_term_expr(&o.expr, Clause::Order, core, analysis.sql));
    let joins = core.from.iter().filter_map(|i| i.on.as_ref());
    let others = core.filter.iter().chain(&core.having).chain(joins).chain(&query.limit);
    let others = others.chain(&query.offset).chain(plain.into_iter().map(|(_, e)| e));
    for expr in others.map(Some).chain(group).chain(order) {
        let expr = expr.ok_or("its groups or order are not plain")?;
        let mut uses_value = select.depends_on_call(expr);
        expr.visit_exprs(&mut |e| {
            let ExprKind::Column { table: None, column } = &e.kind else { return };
            let is_named = |alias: &String| alias.eq_ignore_ascii_case(column);
            uses_value |= values.iter().any(|(alias, _)| alias.is_some_and(is_named));
        });
        if uses_value {
            return Err("a call is outside its results");
        }
    }
    if core.distinct || analysis.is_volatile(query) || count_windows(core, query) > 1 {
        return Err("it has DISTINCT, random values, or another window function");
    }
    if core.from.iter().any(|item| !analysis.list_source_calls(item).is_empty()) {
        return Err("the tables it reads contain calls");
    }
    let mut asks_pairs = false;
    for (_, value) in values {
        visit_own_calls(value, &mut |n| asks_pairs |= analysis.sites[n].subject == Subject::Pair);
        if may_have_affinity(value, select) {
            return Err("a result converts what it is compared with");
        }
    }
    if asks_pairs { Err("a result asks about all rows together") } else { Ok(()) }
}

/// Returns true if comparing a value with the expression may convert the value to the expression's
/// type.
fn may_have_affinity(expr: &Expr, select: &SelectScope<'_>) -> bool {
    match &strip_expr_parens(expr).kind {
        ExprKind::Call(n, _) => {
            let site = &select.analysis.sites[*n];
            !site.sql_before.is_empty() || site.row_width.is_some()
        }
        ExprKind::Operation(operator, _) => {
            matches!(operator, ExprOperator::Collate(_) | ExprOperator::Row | ExprOperator::Unknown)
        }
        ExprKind::Cast(..) | ExprKind::Scalar(_) | ExprKind::Column { .. } => true,
        _ => false,
    }
}
