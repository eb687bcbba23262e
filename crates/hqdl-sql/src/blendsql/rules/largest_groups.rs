//! Rule: if a SELECT returns only the groups with the most rows, or with the fewest, hqdl stops
//! asking about the rows of a group once the group cannot be returned.
//!
//! Precondition: the SELECT is the outermost one, has GROUP BY and LIMIT, and neither HAVING nor
//! DISTINCT. Its ORDER BY begins with `count(*)`. Calls occur only in its conditions, which meet
//! the precondition of [`first_of_group`](super::first_of_group). The groups depend on no call and
//! have no custom collation.
//!
//! Effect: an undecided row does not pass for now. A group has at least as many rows as are known
//! to pass, and at most that number plus the number of undecided rows. If enough other groups
//! certainly precede a group, the group is not returned, whatever its undecided rows are. A pass is
//! final once all other groups are decided. Groups with equal numbers do not precede each other, so
//! the remaining terms of ORDER BY need not be known.

use crate::blendsql::plan::analysis::is_row_count;
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{
    ConditionStage, DemandPlan, NeededPart, NeededRows, RejectionReason, RuleResult,
};
use crate::blendsql::rules::first_of_group::{
    check_conditions, check_groups_are_plain, count_limited_rows,
};
use crate::blendsql::terms::{Clause, resolve_term_expr};

/// Stops asking about a group once it cannot be among the returned groups.
pub(crate) fn stop_at_decided_groups(
    plan: &mut DemandPlan,
    select: &SelectScope<'_>,
) -> RuleResult {
    let SelectScope { analysis, query, core, .. } = *select;
    let planned = plan.find_or_add_select(select.offset());
    let asks = planned.conjuncts_at_stage(ConditionStage::Last).next().is_some();
    let first = query.order.first().filter(|_| asks && query.limit.is_some());
    let Some(first) = first.filter(|_| !core.group.is_empty()) else {
        return RuleResult::Irrelevant;
    };
    let count = resolve_term_expr(&first.expr, Clause::Order, core, analysis.sql);
    if planned.limit.is_some() || !count.is_some_and(is_row_count) {
        return RuleResult::Irrelevant;
    }
    if select.offset() != analysis.root
        || core.distinct
        || core.having.is_some()
        || !planned.outer_joins.is_empty()
    {
        return RuleResult::Refused(
            "it is not outermost, or has HAVING, DISTINCT, or calls in an outer join",
        );
    }
    let calls = planned.conditions_with_calls();
    match check_conditions(select, &calls).and_then(|()| find_needed_groups(select)) {
        Ok(needed) => {
            let part = NeededPart::WholeGroups { largest: first.descending };
            let effect = format!("until the first {} groups are decided", needed.count);
            planned.needed = Some(NeededRows { part, ..needed });
            RuleResult::Applied(effect)
        }
        Err(why) => RuleResult::Refused(why),
    }
}

fn find_needed_groups(select: &SelectScope<'_>) -> Result<NeededRows, RejectionReason> {
    let count = count_limited_rows(select, select.query)?;
    let groups = check_groups_are_plain(select)?;
    let groups = groups.iter().map(|e| e.span.clone()).collect();
    Ok(NeededRows { set: select.offset(), groups, count, ..NeededRows::default() })
}
