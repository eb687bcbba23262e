//! Rule: conditions with calls are evaluated last, for the rows that all other conditions and joins
//! keep.
//!
//! Precondition: the condition is in WHERE, or in an inner join of a SELECT without RIGHT and FULL
//! JOIN, where it means the same as in WHERE. A plain condition that may fail stays after the calls
//! that precede it, so that it is not evaluated for a row that the calls exclude.
//!
//! `SQLite` evaluates a condition as soon as all referenced columns are available, so the condition
//! references every table. It cannot reference the tables that a view or subquery joins internally.
//! Such a source is read as `SELECT … LIMIT -1`, which `SQLite` does not flatten, and the
//! conditions about that source alone move inside. The condition of a LEFT JOIN stays in its place
//! and references every table up to it, because `SQLite` reorders the join if WHERE makes it an
//! inner one.

use crate::blendsql::frame::is_random_function;
use crate::blendsql::plan::barrier::{build_join_barrier, build_table_barrier};
use crate::blendsql::plan::condition::{Condition, may_fail, split_conjuncts};
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{
    ConditionClause, ConditionStage, DemandPlan, OuterJoin, RuleResult, SelectPlan, SourceFence,
};
use crate::blendsql::scope::Scope;
use crate::blendsql::tree::{Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore};

/// Plans the conditions with calls, and the conditions that must be evaluated before them.
pub(crate) fn evaluate_conditions_last(
    plan: &mut DemandPlan,
    select: &SelectScope<'_>,
) -> RuleResult {
    let SelectScope { analysis, core, scope, .. } = *select;
    let planned = plan.find_or_add_select(select.offset());
    let is_movable = core.from.iter().all(|i| i.join != JoinKind::Outer);
    let has_calls = planned.conjuncts.iter().any(|c| c.stage.has_calls());
    planned.fences = find_fences(planned, select);
    defer_fallible_conditions(planned);
    let last: Vec<Expr> = planned.conjuncts_at_stage(ConditionStage::Last).cloned().collect();
    let last: Vec<&Expr> = last.iter().collect();
    // With a LIMIT, the statement returns whole rows and evaluates the conditions as a result
    // column.
    let is_result = planned.limit.as_ref().is_some_and(|limit| !limit.is_grouped);
    if is_result || !last.is_empty() {
        planned.truth = Some(Condition::all_of(&last, analysis, scope));
    }
    if !is_result && !last.is_empty() {
        add_guards(planned, select, is_movable);
        let barrier = build_join_barrier(scope);
        // `SQLite` evaluates a condition that references no table before it reads a row.
        let references_rows = last.iter().any(|c| analysis.references_own_rows(c, scope));
        if barrier.len() > 1 || !references_rows {
            planned.barrier = barrier;
        }
    }
    planned.outer_joins = plan_outer_joins(select, is_movable);
    match (has_calls, is_movable) {
        (true, true) => {
            RuleResult::Applied("only for rows that pass the plain conditions and joins".to_owned())
        }
        (true, false) => {
            RuleResult::Applied("only those of WHERE, because of a RIGHT or FULL JOIN".to_owned())
        }
        (false, _) => RuleResult::Refused("no condition of WHERE or of an inner join has a call"),
    }
}

/// Moves a condition that may fail to a position after the calls, if it follows a call in the text.
fn defer_fallible_conditions(planned: &mut SelectPlan) {
    let in_where = planned.conjuncts.iter().filter(|c| c.clause == ConditionClause::Where);
    let calls = in_where.filter(|c| c.stage.has_calls()).map(|c| c.expr.span.start);
    let Some(call) = calls.min() else { return };
    if !planned.conjuncts.iter().any(|c| c.stage == ConditionStage::Last) && planned.limit.is_none()
    {
        return;
    }
    for conjunct in &mut planned.conjuncts {
        let is_plain = conjunct.clause == ConditionClause::Where && !conjunct.stage.has_calls();
        if is_plain && conjunct.expr.span.start > call && may_fail(&conjunct.expr) {
            conjunct.stage = ConditionStage::AfterCalls;
        }
    }
}

/// Adds conditions that are evaluated before the calls, because `SQLite` would otherwise evaluate
/// them later or convert them to a join.
fn add_guards(planned: &mut SelectPlan, select: &SelectScope<'_>, is_movable: bool) {
    let SelectScope { analysis, core, scope, .. } = *select;
    for conjunct in &mut planned.conjuncts {
        if conjunct.clause == ConditionClause::Where
            && conjunct.stage == ConditionStage::InPlace
            && analysis.has_correlated_subquery(&conjunct.expr, scope)
        {
            conjunct.stage = ConditionStage::BeforeCalls;
        }
    }
    let mut guards: Vec<Expr> =
        planned.conjuncts_at_stage(ConditionStage::BeforeCalls).cloned().collect();
    if is_movable {
        // `SQLite` evaluates join conditions after the WHERE conditions unless something else
        // determines the order.
        let after_left = core.from.iter().any(|i| i.join == JoinKind::Left);
        let inner = core.from.iter().filter(|i| i.join == JoinKind::Inner);
        let plain = inner.filter_map(|i| i.on.as_ref()).flat_map(split_conjuncts);
        let plain = plain.filter(|e| !select.depends_on_call(e));
        let late = plain.filter(|e| after_left || analysis.has_correlated_subquery(e, scope));
        guards.extend(late.cloned());
    }
    planned.guards = guards;
}

/// Plans the join conditions with calls that cannot move to WHERE.
fn plan_outer_joins(select: &SelectScope<'_>, is_movable: bool) -> Vec<OuterJoin> {
    let SelectScope { analysis, core, scope, .. } = *select;
    let (mut table_count, mut joins) = (0, Vec::new());
    for item in &core.from {
        table_count += count_tables(item);
        let stays_in_join = item.join != JoinKind::Inner || !is_movable;
        let on = item.on.as_ref().filter(|on| stays_in_join && select.depends_on_call(on));
        let Some(on) = on else { continue };
        let (plain, calls): (Vec<&Expr>, Vec<&Expr>) =
            split_conjuncts(on).into_iter().partition(|e| !select.depends_on_call(e));
        // `SQLite` can convert a LEFT JOIN to an inner join because of WHERE and then reorder it.
        // Therefore the condition waits for a row of all preceding tables and for its own parts
        // without calls.
        let before = scope.tables.get(..table_count).unwrap_or_default();
        joins.push(OuterJoin {
            on: on.span.clone(),
            truth: Condition::all_of(&calls, analysis, scope),
            barrier: is_movable.then(|| build_table_barrier(before, scope)),
            guards: plain.iter().filter(|e| is_cheap_and_stable(e)).map(|e| (*e).clone()).collect(),
            plain: plain.into_iter().cloned().collect(),
        });
    }
    joins
}

/// Returns the sources that `SQLite` must not flatten, so that their inner joins and limits are
/// evaluated before the calls.
fn find_fences(planned: &SelectPlan, select: &SelectScope<'_>) -> Vec<SourceFence> {
    let SelectScope { core, query, .. } = *select;
    let has_calls = planned.conjuncts.iter().any(|c| c.stage.has_calls());
    // With a LIMIT plan, the rows are already complete.
    let waits_for_rows = has_calls && planned.limit.as_ref().is_none_or(|f| f.is_grouped)
        || core.from.iter().any(|i| join_depends_on_call(i, select));
    let conditions = waits_for_rows.then(|| find_single_table_conditions(planned, select));
    let has_own_call = has_own_call(query, core);
    let mut fences = Vec::new();
    for item in &core.from {
        let by_limit = (has_own_call && select.analysis.source_has_limit(item)).then_some(&[][..]);
        let by_join = conditions.as_deref().filter(|_| select.analysis.source_joins_tables(item));
        if let Some(conditions) = by_join.or(by_limit) {
            add_fences(item, conditions, select, &mut fences);
        }
    }
    fences
}

fn add_fences(
    item: &FromItem,
    conditions: &[(String, Vec<Expr>)],
    select: &SelectScope<'_>,
    fences: &mut Vec<SourceFence>,
) {
    let own = |name: &String| conditions.iter().find(|(of, _)| of.eq_ignore_ascii_case(name));
    let own = item.name.as_ref().and_then(own).map_or(Vec::new(), |(_, all)| all.clone());
    match &item.source {
        FromSource::Table { span, .. } if item.name.is_some() && !span.is_empty() => {
            fences.push(SourceFence { at: span.start, conditions: own });
        }
        FromSource::Query(query) => {
            fences.push(SourceFence { at: query.span.start, conditions: own });
        }
        FromSource::Join(items) => {
            let reads = |i: &&FromItem| {
                select.analysis.source_joins_tables(i) || select.analysis.source_has_limit(i)
            };
            items.iter().filter(reads).for_each(|i| add_fences(i, conditions, select, fences));
        }
        FromSource::Table { .. } | FromSource::Function { .. } => {}
    }
}

/// Returns, for each table, the conditions without calls that reference only that table. Returns an
/// empty list if a join is RIGHT or FULL.
fn find_single_table_conditions(
    planned: &SelectPlan,
    select: &SelectScope<'_>,
) -> Vec<(String, Vec<Expr>)> {
    let SelectScope { core, scope, .. } = *select;
    let mut conditions: Vec<(String, Vec<Expr>)> = Vec::new();
    if core.from.iter().any(|i| i.join == JoinKind::Outer) {
        return conditions;
    }
    let tables = core.from.iter().filter(|i| i.join == JoinKind::Inner);
    let names: Vec<&String> = tables.filter_map(|i| i.name.as_ref()).collect();
    let plain = planned.conjuncts.iter().filter(|c| c.clause == ConditionClause::Where);
    let plain = plain.filter(|c| !c.stage.has_calls()).map(|c| &c.expr);
    for condition in plain.filter(|e| !may_fail(e)) {
        let Some(name) = find_single_table(condition, select, scope) else { continue };
        if names.iter().filter(|n| n.eq_ignore_ascii_case(&name)).count() != 1 {
            continue;
        }
        match conditions.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(condition.clone()),
            None => conditions.push((name, vec![condition.clone()])),
        }
    }
    conditions
}

/// Returns the table that a condition references, if it references exactly one.
fn find_single_table(
    condition: &Expr,
    select: &SelectScope<'_>,
    scope: &Scope<'_>,
) -> Option<String> {
    let (mut table_name, mut is_single_table) = (None, true);
    let resolver = select.analysis.resolver();
    resolver.visit_expr(condition, scope, true, &mut |e, at, _| match &e.kind {
        ExprKind::Column { table, column } => match at.find_column(table.as_deref(), column) {
            Some(hit) if hit.depth == scope.depth => {
                is_single_table &= table_name.as_ref().is_none_or(|known| *known == hit.table.name);
                table_name = Some(hit.table.name.clone());
            }
            Some(_) => {}
            None => is_single_table = false,
        },
        ExprKind::Function { name, .. } => is_single_table &= !is_random_function(name),
        _ => {}
    });
    table_name.filter(|_| is_single_table).flatten()
}

fn join_depends_on_call(item: &FromItem, select: &SelectScope<'_>) -> bool {
    let inner = match &item.source {
        FromSource::Join(items) => items.as_slice(),
        _ => &[],
    };
    item.on.as_ref().is_some_and(|on| select.depends_on_call(on))
        || inner.iter().any(|i| join_depends_on_call(i, select))
}

/// Returns true if a SELECT has calls outside of its FROM clause.
fn has_own_call(query: &Query, core: &SelectCore) -> bool {
    let order = query.order.iter().map(|o| &o.expr);
    let exprs = core.columns.iter().filter_map(|c| c.expr.as_ref()).chain(&core.filter);
    exprs.chain(&core.group).chain(&core.having).chain(order).any(Expr::has_call)
}

/// Returns the number of tables that a FROM entry adds to the scope.
fn count_tables(item: &FromItem) -> usize {
    match &item.source {
        FromSource::Join(items) if item.name.is_none() => items.iter().map(count_tables).sum(),
        _ => 1,
    }
}

/// Returns true if an expression can be evaluated twice: it is deterministic and has no subquery.
fn is_cheap_and_stable(expr: &Expr) -> bool {
    let mut stable = true;
    expr.visit_exprs(&mut |e| {
        let random = matches!(&e.kind, ExprKind::Function { name, .. } if is_random_function(name));
        stable &= !random && e.children().1.is_none();
    });
    stable
}
