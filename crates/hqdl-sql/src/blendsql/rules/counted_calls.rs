//! Rule: if a count of calls is only compared with a number, hqdl asks about the rows of each group
//! until enough of them have been counted to decide the comparison.
//!
//! Precondition: the SELECT is an aggregate whose conditions have no calls. Calls occur only in the
//! FILTER of `count(*)`, or in the argument of a `count(…)` without DISTINCT, ORDER BY and FILTER.
//! These counts are only compared with a number. The groups depend on no call. The SELECT is the
//! outermost one: a nested SELECT can run several times, and its rows would be counted repeatedly.
//!
//! Effect: an undecided row does not count for now. The comparison is decided once enough rows
//! count, because more rows do not change its result.

use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::analysis::{find_compared_count, visit_own_calls};
use crate::blendsql::plan::condition::{Condition, Predicate};
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{
    ConditionStage, CountCondition, CountedCalls, DemandPlan, NeededRows, RuleResult,
};
use crate::blendsql::rules::first_of_group::check_groups_are_plain;
use crate::blendsql::tree::{Expr, ExprKind};

/// Plans the number of rows that each compared count needs.
pub(crate) fn limit_counted_rows(plan: &mut DemandPlan, select: &SelectScope<'_>) -> RuleResult {
    let SelectScope { analysis, query, core, .. } = *select;
    let planned = plan.find_or_add_select(select.offset());
    let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
    let exprs = columns.chain(&core.having).chain(query.order.iter().map(|o| &o.expr));
    let mut counts: Vec<(&Expr, u64)> = Vec::new();
    let mut is_only_compared = true;
    exprs.for_each(|e| is_only_compared &= collect_counts(e, select, &mut counts));
    if counts.is_empty() {
        return RuleResult::Irrelevant;
    }
    let has_conditions = planned.conjuncts.iter().any(|c| c.stage == ConditionStage::Last)
        || planned.limit.is_some()
        || !planned.outer_joins.is_empty();
    if !is_only_compared || has_conditions || select.offset() != analysis.root {
        return RuleResult::Refused("it is not outermost, or has a call outside compared counts");
    }
    match check_groups_are_plain(select) {
        Ok(groups) => {
            for (count, needed) in counts {
                let Some(condition) = find_counted_condition(count, select) else { continue };
                let set = count.span.start;
                let groups = groups.iter().map(|e| e.span.clone()).collect();
                let needed = NeededRows { set, groups, count: needed, ..NeededRows::default() };
                planned.counted.push(CountedCalls { span: count.span.clone(), condition, needed });
            }
            RuleResult::Applied("until a compared count is decided".to_owned())
        }
        Err(why) => RuleResult::Refused(why),
    }
}

/// Collects the counts of calls that are compared with a number. Returns false if a call is
/// elsewhere.
fn collect_counts<'e>(
    expr: &'e Expr,
    select: &SelectScope<'_>,
    counts: &mut Vec<(&'e Expr, u64)>,
) -> bool {
    if !select.depends_on_call(expr) {
        return true;
    }
    if let ExprKind::Compare(operator, left, right) = &expr.kind
        && let Some((count, needed)) =
            find_compared_count(operator, left, right, select.analysis.sql)
        && find_counted_call(count).is_some_and(|call| reports_own_pending_calls(call, select))
    {
        counts.push((count, needed));
        return true;
    }
    let (exprs, query) = expr.children();
    query.is_none()
        && !matches!(expr.kind, ExprKind::Call(..) | ExprKind::Column { .. })
        && exprs.into_iter().all(|e| collect_counts(e, select, counts))
}

/// Returns true if each row reports the expression's pending calls itself: no call asks about
/// pairs, is in a subquery, or is hidden behind an alias.
fn reports_own_pending_calls(call: &Expr, select: &SelectScope<'_>) -> bool {
    let SelectScope { analysis, scope, .. } = *select;
    let mut asks_pairs = false;
    visit_own_calls(call, &mut |n| asks_pairs |= analysis.sites[n].subject == Subject::Pair);
    !asks_pairs
        && !analysis.subquery_has_calls(call)
        && !analysis.references_hidden_calls(call, scope)
}

/// Returns the expression that decides whether a count includes a row: the FILTER condition, or the
/// only argument.
fn find_counted_call(count: &Expr) -> Option<&Expr> {
    match &count.kind {
        ExprKind::Function { args, filter: Some(filter), .. } if args.is_empty() => Some(filter),
        ExprKind::Function { args, filter: None, has_modifier: false, .. } => match args.as_slice()
        {
            [only] => Some(only),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the condition under which a count includes a row.
fn find_counted_condition(count: &Expr, select: &SelectScope<'_>) -> Option<CountCondition> {
    let SelectScope { analysis, scope, .. } = *select;
    let call = find_counted_call(count)?;
    Some(match &count.kind {
        ExprKind::Function { filter: None, .. } => {
            CountCondition::NotNull(Predicate::new(call, true, analysis, scope))
        }
        _ => CountCondition::Holds(Condition::all_of(&[call], analysis, scope)),
    })
}
