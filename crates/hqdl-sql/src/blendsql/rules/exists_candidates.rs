//! Rule: hqdl asks about the rows of an EXISTS or IN in batches, until one row is known to decide
//! the result.
//!
//! Precondition: the query is a single SELECT with a condition that has calls. It has no LIMIT,
//! OFFSET, WITH, groups, aggregate or window function, so its rows are independent. A single row
//! that is known to pass decides an EXISTS, or an IN for the row's value, whatever the other rows
//! are. For IN, the value of the rows must be a column that depends on no call.
//!
//! If two conditions are met, an outer row of an IN waits only for the inner rows that equal its
//! operand: only the truth value of the IN matters, and both sides are columns that `SQLite`
//! compares byte by byte. A LIMIT on the outer rows then asks only about the inner rows that its
//! first rows need.

use crate::blendsql::plan::analysis::{
    find_candidate_value, find_decisive_select, is_legacy_column,
};
use crate::blendsql::plan::select_scope::{RowUse, SelectScope};
use crate::blendsql::plan::{DecisiveRows, DemandPlan, RuleResult};
use crate::blendsql::scope::{Scope, strip_expr_parens};
use crate::blendsql::tree::{Expr, ExprKind, Span};

/// Marks the rows of an EXISTS or IN that a single row can decide.
pub(crate) fn find_decisive_rows(plan: &mut DemandPlan, select: &SelectScope<'_>) -> RuleResult {
    let (RowUse::Expr(expr, outer_scope) | RowUse::Truth(expr, outer_scope)) = select.row_use
    else {
        return RuleResult::Irrelevant;
    };
    if !matches!(expr.kind, ExprKind::Exists(_) | ExprKind::In { .. }) {
        return RuleResult::Irrelevant;
    }
    let planned = plan.find_or_add_select(select.offset());
    if matches!(expr.kind, ExprKind::In { .. }) {
        let value = find_candidate_value(select.analysis, select.core, select.scope);
        planned.candidate_value = value.map(|e| e.span.clone());
    }
    match find_decisive_select(select.analysis, expr, outer_scope) {
        Ok(query) => {
            let runs_once = !select.analysis.is_correlated(query, outer_scope);
            let is_truth = runs_once && matches!(select.row_use, RowUse::Truth(..));
            let operand =
                find_byte_comparable_operand(select, expr, outer_scope).filter(|_| is_truth);
            let effect = match operand {
                Some(_) => "only those with the value of an outer row, a few at a time",
                None => "a few of its rows at a time",
            };
            let makes_true = !matches!(expr.kind, ExprKind::In { negated: true, .. });
            planned.decisive = Some(DecisiveRows { makes_true, runs_once, operand });
            RuleResult::Applied(effect.to_owned())
        }
        Err(_) if !select.query.has_call() => RuleResult::Irrelevant,
        Err(why) => RuleResult::Refused(why),
    }
}

/// Returns the left operand of an IN if `SQLite` compares it with the rows' values byte by byte:
/// both are columns of the database with the same affinity and without a custom collation.
fn find_byte_comparable_operand(
    select: &SelectScope<'_>,
    expr: &Expr,
    outer_scope: &Scope<'_>,
) -> Option<Span> {
    let ExprKind::In { operand, .. } = &expr.kind else { return None };
    let affinity_of = |expr: &Expr, scope: &Scope<'_>| {
        let ExprKind::Column { table, column } = &strip_expr_parens(expr).kind else { return None };
        let field = scope.find_column(table.as_deref(), column)?.field;
        let origin = field.origin.as_ref().filter(|_| !field.is_from_call)?;
        let affinity = select.analysis.schema.affinity(&origin.table, &origin.column)?;
        (!field.has_custom_collation).then_some(affinity)
    };
    let value = find_candidate_value(select.analysis, select.core, select.scope)?;
    let is_same = affinity_of(operand, outer_scope)? == affinity_of(value, select.scope)?;
    (is_same && !is_legacy_column(operand, select.analysis.sql)).then(|| operand.span.clone())
}
