//! Rule: a WHERE condition with calls that depends only on grouping columns is evaluated after the
//! HAVING conditions without calls.
//!
//! Precondition: the SELECT has a GROUP BY and a HAVING condition without calls. No custom
//! collation applies, because the model may answer differently about texts that are equal under it.
//! The condition uses grouping columns unchanged, without subqueries and functions. Then its value
//! is the same for all rows of a group.

use crate::blendsql::plan::condition::{Condition, split_conjuncts};
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{ConditionStage, DemandPlan, RuleResult};
use crate::blendsql::scope::{Scope, strip_expr_parens};
use crate::blendsql::tree::{Expr, ExprKind};

/// Moves conditions on grouping columns after the HAVING conditions, and plans HAVING.
pub(crate) fn move_group_conditions(plan: &mut DemandPlan, select: &SelectScope<'_>) -> RuleResult {
    let planned = plan.find_or_add_select(select.offset());
    let mut having: Vec<&Expr> = select.core.having.iter().flat_map(split_conjuncts).collect();
    let mut moved = Vec::new();
    if having.iter().any(|h| !select.depends_on_call(h)) {
        for conjunct in planned.conjuncts.iter_mut().filter(|c| c.stage == ConditionStage::Last) {
            if depends_only_on_group(&conjunct.expr, select) {
                conjunct.stage = ConditionStage::AfterHaving;
                moved.push(conjunct.expr.clone());
            }
        }
    }
    let has_calls = select.core.having.iter().any(|h| select.depends_on_call(h));
    having.extend(&moved);
    planned.having = (has_calls || !moved.is_empty())
        .then(|| Condition::all_of(&having, select.analysis, select.scope));
    match moved.len() {
        _ if select.core.group.is_empty() => RuleResult::Irrelevant,
        0 => RuleResult::Refused(
            "no condition with calls is on grouping columns alone, or HAVING has no plain part",
        ),
        n => RuleResult::Applied(format!("{n} after the plain part of HAVING")),
    }
}

/// Returns true if a condition depends only on grouping columns.
fn depends_only_on_group(expr: &Expr, select: &SelectScope<'_>) -> bool {
    let (core, scope, resolver) = (select.core, select.scope, select.analysis.resolver());
    if core.group.is_empty() {
        return false;
    }
    let resolve = |table: Option<&str>, column: &str, scope: &Scope<'_>| {
        scope
            .find_column(table, column)
            .map(|f| (f.depth, f.table.name.clone(), f.field.name.clone()))
    };
    let grouped: Vec<_> = core
        .group
        .iter()
        // The model may answer differently about texts that are equal under a custom collation.
        .filter(|g| !resolver.may_have_custom_collation(g, scope))
        .filter_map(|g| match &strip_expr_parens(g).kind {
            ExprKind::Column { table, column } => resolve(table.as_deref(), column, scope),
            _ => None,
        })
        .collect();
    let mut only_group_columns = true;
    resolver.visit_expr(expr, scope, true, &mut |e, at, _| match &e.kind {
        ExprKind::Column { table, column } => {
            let found = resolve(table.as_deref(), column, at);
            only_group_columns &= match found {
                Some(found) => found.0 != scope.depth || grouped.contains(&found),
                None => matches!(column.to_ascii_lowercase().as_str(), "true" | "false"),
            };
        }
        ExprKind::Exists(_) | ExprKind::Scalar(_) | ExprKind::In { query: Some(_), .. } => {
            only_group_columns = false;
        }
        // 1 and 1.0 are in the same group but are different texts.
        ExprKind::Function { .. } | ExprKind::Cast(..) | ExprKind::Operation(..) => {
            only_group_columns &= e
                .children()
                .0
                .iter()
                .all(|i| !matches!(strip_expr_parens(i).kind, ExprKind::Column { .. }));
        }
        ExprKind::Call(_, args) => {
            only_group_columns &=
                args.iter().all(|a| matches!(a.kind, ExprKind::Column { .. } | ExprKind::Literal));
        }
        _ => {}
    });
    only_group_columns
}
