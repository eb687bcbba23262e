//! Rule: hqdl asks about the rows of an EXISTS or IN in batches, until one row is known to decide
//! it.
//!
//! Precondition: the query is a single SELECT with a condition that has calls. It has no LIMIT,
//! OFFSET, WITH, groups, aggregate or window function. Then its rows are independent. A single row
//! that is known to pass decides an EXISTS, or an IN for the row's value, whatever the other rows
//! are. For IN, the value of the rows must be a column that depends on no call.

use crate::blendsql::aggregates::{has_window, is_aggregate};
use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::planner::{RowUse, SelectScope};
use crate::blendsql::plan::{DecisiveRows, DemandPlan, Outcome, RefusalReason};
use crate::blendsql::scope::{Scope, without_parens};
use crate::blendsql::tree::{Body, Expr, ExprKind, Query, SelectCore};

/// Marks the rows of an EXISTS or IN of which a single one can decide it.
pub(crate) fn find_decisive_rows(plan: &mut DemandPlan, select: &SelectScope<'_>) -> Outcome {
    let RowUse::Expr(expr, outer_scope) = select.row_use else { return Outcome::Irrelevant };
    if !matches!(expr.kind, ExprKind::Exists(_) | ExprKind::In { .. }) {
        return Outcome::Irrelevant;
    }
    let planned = plan.select_mut(select.at());
    if matches!(expr.kind, ExprKind::In { .. }) {
        let value = find_candidate_value(select.analysis, select.core, select.scope);
        planned.candidate_value = value.map(|e| e.span.clone());
    }
    match find_decisive_select(select.analysis, expr, outer_scope) {
        Ok(query) => {
            planned.decisive = Some(DecisiveRows {
                makes_true: !matches!(expr.kind, ExprKind::In { negated: true, .. }),
                runs_once: !select.analysis.is_correlated(query, outer_scope),
            });
            Outcome::Applied("a few of its rows at a time".to_owned())
        }
        Err(_) if !select.query.has_call() => Outcome::Irrelevant,
        Err(why) => Outcome::Refused(why),
    }
}

/// Returns the query of an EXISTS or IN that a single row decides, because more rows never change
/// the result. For IN, the value of the rows must be known before any call.
pub(crate) fn find_decisive_select<'e>(
    analysis: &Analysis<'_>,
    expr: &'e Expr,
    outer_scope: &Scope<'_>,
) -> Result<&'e Query, RefusalReason> {
    let (query, core) = syntactic_decisive_select(expr)?;
    if matches!(expr.kind, ExprKind::In { .. }) {
        let resolver = analysis.resolver();
        let cte_scope = resolver.cte_scope(query, Some(outer_scope));
        let scope = resolver.select_scope(core, &cte_scope);
        find_candidate_value(analysis, core, &scope)
            .ok_or("the value of its rows is not a column of a table")?;
    }
    Ok(query)
}

/// Returns the value column of an IN's SELECT, if it is a plain column that depends on no call.
fn find_candidate_value<'e>(
    analysis: &Analysis<'_>,
    core: &'e SelectCore,
    scope: &Scope<'_>,
) -> Option<&'e Expr> {
    let [only] = core.columns.as_slice() else { return None };
    let column = |e: &&Expr| matches!(without_parens(e).kind, ExprKind::Column { .. });
    only.expr.as_ref().filter(column).filter(|e| !analysis.depends_on_call(e, scope))
}

/// Same as [`find_decisive_select`], but checks only the syntax.
pub(crate) fn syntactic_decisive_select(
    expr: &Expr,
) -> Result<(&Query, &SelectCore), RefusalReason> {
    let (ExprKind::Exists(query) | ExprKind::In { query: Some(query), .. }) = &expr.kind else {
        return Err("it is neither EXISTS nor IN");
    };
    let Body::Core(core) = &query.body else { return Err("it is more than one SELECT") };
    if query.limit.is_some() || query.offset.is_some() {
        return Err("it has a LIMIT");
    }
    if !query.with.is_empty() {
        return Err("it has a WITH");
    }
    if !core.group.is_empty() || is_aggregate(core, query) || has_window(core, query) {
        return Err("it has a GROUP BY, an aggregate or a window function");
    }
    if !core.filter.as_ref().is_some_and(Expr::has_call) {
        return Err("none of its conditions has a call");
    }
    Ok((query, core))
}
