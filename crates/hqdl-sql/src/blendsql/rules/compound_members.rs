//! Rule: for each side of an INTERSECT or EXCEPT, hqdl asks only about the rows that the other side
//! does not already exclude from the result.
//!
//! Precondition: the other side has no calls, no random values and no reference to outer rows. The
//! side itself is a SELECT whose conditions have calls, without groups or aggregates. Its results
//! are plain columns without a custom collation.
//!
//! Effect: a row of an INTERSECT that is not in the other side is dropped first, as is a row on the
//! right of an EXCEPT that is not on its left. A row on the left of an EXCEPT that also occurs on
//! the right is dropped, too. Rows with NULL are kept, because IN does not match NULL.

use crate::blendsql::aggregates::{has_window, is_aggregate};
use crate::blendsql::plan::select_scope::{RowUse, SelectScope};
use crate::blendsql::plan::{
    ConditionStage, DemandPlan, MemberRows, Membership, RejectionReason, RuleResult,
};
use crate::blendsql::scope::strip_expr_parens;
use crate::blendsql::tree::{CompoundOperator, Expr, ExprKind, Query, Span};

/// Restricts the SELECT to rows that the other side does not exclude from the result.
pub(crate) fn restrict_by_other_side(
    plan: &mut DemandPlan,
    select: &SelectScope<'_>,
) -> RuleResult {
    let RowUse::Side { operator, other, is_left } = select.row_use else {
        return RuleResult::Irrelevant;
    };
    let planned = plan.find_or_add_select(select.offset());
    if operator.is_union() || planned.conjuncts_at_stage(ConditionStage::Last).next().is_none() {
        return RuleResult::Irrelevant;
    }
    match find_compared_columns(select, other) {
        Ok(columns) => {
            let keeps = !(operator == CompoundOperator::Except && is_left);
            let rows = MemberRows::Query(other.span.clone());
            planned.memberships.push(Membership { columns, rows, keeps });
            RuleResult::Applied("only for rows that the other side can keep".to_owned())
        }
        Err(why) => RuleResult::Refused(why),
    }
}

fn find_compared_columns(
    select: &SelectScope<'_>,
    other: &Query,
) -> Result<Vec<Span>, RejectionReason> {
    let SelectScope { analysis, query, core, scope, .. } = *select;
    if !analysis.list_reachable_calls(other).is_empty()
        || analysis.is_volatile(other)
        || !other.with.is_empty()
        || analysis.may_be_correlated(other, scope)
    {
        return Err("the other side has calls, random values or outer rows");
    }
    if !core.group.is_empty() || is_aggregate(core, query) || has_window(core, query) {
        return Err("its rows are groups, or it has a window function");
    }
    let plain_column = |expr: &Expr| {
        let ExprKind::Column { table, column } = &strip_expr_parens(expr).kind else {
            return false;
        };
        let hit = scope.find_column(table.as_deref(), column);
        hit.is_some_and(|hit| hit.depth == scope.depth && !hit.field.is_from_call)
            && !analysis.resolver().may_have_custom_collation(expr, scope)
    };
    let columns = core.columns.iter().map(|c| c.expr.as_ref().filter(|e| plain_column(e)));
    let columns: Option<Vec<Span>> = columns.map(|e| Some(e?.span.clone())).collect();
    columns.ok_or("a result is not a plain column")
}
