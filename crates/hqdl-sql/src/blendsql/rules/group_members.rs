//! Rule: if HAVING or a LIMIT without calls decides which groups are kept, hqdl asks only about the
//! rows of these groups.
//!
//! Precondition: the SELECT has a GROUP BY, and only its results have calls, inside of aggregates.
//! HAVING, ORDER BY and LIMIT depend on no call, and refer to no result by position or alias. There
//! is no DISTINCT, OFFSET, window function, random value, outer aggregate or custom collation.
//!
//! Effect: the groups are found first, without their results, and rows of other groups are dropped.
//! Rows whose grouping column is NULL are kept, because IN does not match NULL. HAVING, ORDER BY
//! and LIMIT still apply, so extra rows do no harm.

use crate::blendsql::aggregates::{has_window, is_aggregate_call};
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{DemandPlan, MemberRows, Membership, RejectionReason, RuleResult};
use crate::blendsql::terms::{Clause, ResolvedTerm, resolve_term};
use crate::blendsql::tree::{Expr, ExprKind, FromItem, Span};

/// Restricts the SELECT to rows of the groups that are kept.
pub(crate) fn restrict_to_kept_groups(
    plan: &mut DemandPlan,
    select: &SelectScope<'_>,
) -> RuleResult {
    let SelectScope { query, core, .. } = *select;
    let planned = plan.find_or_add_select(select.offset());
    let has_calls = core.columns.iter().filter_map(|c| c.expr.as_ref()).any(has_aggregated_call);
    if core.group.is_empty()
        || core.having.is_none() && query.limit.is_none()
        || !has_calls
        || planned.conjuncts.iter().any(|c| c.stage.has_calls())
    {
        return RuleResult::Irrelevant;
    }
    match find_group_columns(select) {
        Ok(columns) => {
            let rows = MemberRows::Groups { after: span_starting_at_from(select) };
            planned.memberships.push(Membership { columns, rows, keeps: true });
            RuleResult::Applied("only for rows of groups that HAVING and LIMIT keep".to_owned())
        }
        Err(why) => RuleResult::Refused(why),
    }
}

/// Returns the byte range from FROM to the end of the query.
fn span_starting_at_from(select: &SelectScope<'_>) -> Span {
    let start = select.core.columns.last().map_or(select.core.span.start, |c| c.span.end);
    start..select.query.span.end.max(select.core.span.end)
}

fn has_aggregated_call(expr: &Expr) -> bool {
    if is_aggregate_call(expr) {
        return expr.has_call();
    }
    expr.children().0.into_iter().any(has_aggregated_call)
}

fn source_has_calls(item: &FromItem, select: &SelectScope<'_>) -> bool {
    let mut found = !select.analysis.list_source_calls(item).is_empty();
    item.visit_exprs(&mut |e| found |= e.has_call());
    found
}

fn find_group_columns(select: &SelectScope<'_>) -> Result<Vec<Span>, RejectionReason> {
    let SelectScope { analysis, query, core, scope, .. } = *select;
    let sql = analysis.sql;
    let order = || query.order.iter().map(|o| &o.expr);
    let tail = core.having.iter().chain(order()).chain(&query.limit).chain(&core.filter);
    if tail.chain(&core.group).any(|e| select.depends_on_call(e))
        || core.from.iter().any(|item| source_has_calls(item, select))
    {
        return Err("a call decides which groups are kept");
    }
    // DISTINCT merges the results of several groups before LIMIT counts them.
    if core.distinct
        || query.offset.is_some()
        || !query.with.is_empty()
        || has_window(core, query)
        || analysis.is_volatile(query)
        || !analysis.find_outer_aggregates(core, query, scope).is_empty()
    {
        return Err("it has DISTINCT, OFFSET, WITH, a window function, or random values");
    }
    let is_expression =
        |e: &Expr, clause| resolve_term(e, clause, core, sql) == ResolvedTerm::Expression;
    if !core.group.iter().all(|g| is_expression(g, Clause::Group))
        || !order().all(|o| is_expression(o, Clause::Order))
    {
        return Err("a position or alias refers to a result");
    }
    let mut is_resolved = true;
    for expr in core.having.iter().chain(order()).chain(&core.group).chain(&core.filter) {
        analysis.resolver().visit_expr(expr, scope, false, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                is_resolved &= at.find_column(table.as_deref(), column).is_some();
            }
        });
    }
    if !is_resolved
        || core.group.iter().any(|g| analysis.resolver().may_have_custom_collation(g, scope))
    {
        return Err("a name is an alias or unknown, or a grouping column has a collation");
    }
    let plain = core.group.iter().all(|g| matches!(g.kind, ExprKind::Column { .. }));
    if !plain {
        return Err("it groups by an expression");
    }
    Ok(core.group.iter().map(|g| g.span.clone()).collect())
}
