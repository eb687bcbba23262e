//! Rule: if a query needs only a limited number of rows, hqdl makes requests only for these rows
//! (LIMIT pushdown).
//!
//! Precondition:
//!
//! * The rows belong to the outermost SELECT, or to a standalone nested one (below).
//! * The SELECT is not a compound and has no window function. LIMIT and OFFSET are numbers, or the
//!   SELECT is DISTINCT.
//! * No call affects the order. If the SELECT is DISTINCT, no result has a call and every ORDER BY
//!   term is a result.
//! * If the SELECT has groups, no call affects the grouping.
//! * No call in a condition is about all rows together, and no condition references a result by its
//!   alias.
//!
//! Effect: a separate statement returns the rows that the conditions without calls keep, complete
//! and in their final order. Each row has a state: it fails, it is undecided, it passes with
//! unknown values, or it passes and is complete. The result is complete once enough rows pass and
//! no earlier row is undecided. hqdl makes requests only for the undecided and incomplete rows of
//! this prefix.
//!
//! The result does not depend on how often or in which order `SQLite` evaluates a condition. Ties
//! are broken once, because the returned rows are the result. If a subquery in the FROM clause
//! computes a value once, for the first row, all rows that reference the value wait for it. Without
//! an ORDER BY, more rows are read than needed before any request is made, because cached answers
//! may complete the result.
//!
//! A nested SELECT is standalone if it has a LIMIT, references no outer row and is not volatile. In
//! addition, its sources have no calls, its rows are not groups, and each row reports its own
//! pending calls. When an iteration reaches the SELECT and needs its rows, hqdl runs the SELECT
//! separately. After that, its rows are *complete*: in the original position of the SELECT, a row
//! that is not known to pass fails, and the query waits for no value. The remaining rows are the
//! first ones, because everything before them is known. Without an ORDER BY, any rows that pass are
//! valid.

use crate::blendsql::aggregates::{has_window, is_aggregate};
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::analysis::visit_own_calls;
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{
    DemandPlan, LimitPushdown, RejectionReason, RuleResult, SubqueryLimit,
};
use crate::blendsql::scope::{Table, strip_expr_parens};
use crate::blendsql::terms::{Clause, ResolvedTerm, read_integer, resolve_term, resolve_term_expr};
use crate::blendsql::tree::{Expr, ExprKind, ResultColumn, SelectCore};

/// Plans the number of needed rows, or adds a nested SELECT to the SELECTs that run separately.
pub(crate) fn push_down_limit(plan: &mut DemandPlan, select: &SelectScope<'_>) -> RuleResult {
    let calls = plan.find_or_add_select(select.offset()).conditions_with_calls();
    let is_nested = select.offset() != select.analysis.root;
    let found = plan_limit(select, &calls).and_then(|limit| {
        if is_nested {
            check_standalone(select, &limit)?;
        }
        Ok(limit)
    });
    let mut limit = match found {
        Ok(limit) => limit,
        Err(why) => return RuleResult::Refused(why),
    };
    let rows = match limit.rows_needed {
        Some(need) => format!("the first {need} rows that match"),
        None => "one of each group of equal rows".to_owned(),
    };
    if is_nested {
        let calls = select.analysis.list_reachable_calls(select.query);
        plan.subquery_limits.push(SubqueryLimit { at: select.offset(), calls });
    } else {
        for n in &limit.held_columns {
            if let Some(expr) = &select.core.columns[*n].expr {
                select.analysis.collect_shared_calls(expr, select.scope, &mut limit.shared_calls);
            }
        }
        plan.find_or_add_select(select.offset()).limit = Some(limit);
    }
    RuleResult::Applied(rows)
}

fn plan_limit(select: &SelectScope<'_>, calls: &[Expr]) -> Result<LimitPushdown, RejectionReason> {
    let SelectScope { analysis, query, core, scope, .. } = *select;
    if core.from.is_empty() {
        return Err("it reads no table");
    }
    if !analysis.limit_pushdown_enabled && core.span.start == analysis.root {
        return Err("the pending calls cannot be assigned to rows");
    }
    let limit = match &query.limit {
        Some(limit) => {
            Some(parse_row_count(limit, analysis.sql).ok_or("its LIMIT is not a number")?)
        }
        None => None,
    };
    let rows_skipped = match &query.offset {
        Some(offset) => {
            parse_row_count(offset, analysis.sql).ok_or("its OFFSET is not a number")?
        }
        None => 0,
    };
    if limit.is_none() && !core.distinct || limit == Some(0) {
        return Err("it needs all of its rows: there is no LIMIT and no DISTINCT");
    }
    let order_is_plain = query.order.iter().all(|o| {
        resolve_term_expr(&o.expr, Clause::Order, core, analysis.sql)
            .is_some_and(|e| !select.depends_on_call(e))
    });
    let mut asks_pairs = false;
    calls.iter().for_each(|c| {
        visit_own_calls(c, &mut |n| asks_pairs |= analysis.sites[n].subject == Subject::Pair);
    });
    let (star_columns, held_columns): (Vec<_>, Vec<_>) =
        (0..core.columns.len()).partition(|n| core.columns[*n].expr.is_none());
    let held_columns: Vec<usize> = held_columns
        .into_iter()
        .filter(|n| core.columns[*n].expr.as_ref().is_some_and(Expr::has_call))
        .collect();
    let refusals = [
        (asks_pairs, "a condition asks about all rows together"),
        (!order_is_plain, "a call decides the order"),
        (has_window(core, query), "it has a window function"),
        (star_columns.len() > 1 && !held_columns.is_empty(), "it has more than one * beside calls"),
        (
            !analysis.find_outer_aggregates(core, query, scope).is_empty(),
            "it is an aggregate of a subquery",
        ),
        (has_alias_in_conditions(select), "a condition names a result by its alias"),
    ];
    if let Some((_, why)) = refusals.into_iter().find(|(refused, _)| *refused) {
        return Err(why);
    }
    check_groups(select)?;
    check_distinct(select, !star_columns.is_empty())?;
    let is_grouped = !core.group.is_empty();
    if held_columns.is_empty() && (calls.is_empty() || is_grouped) {
        return Err("neither a condition nor a result of its rows has a call");
    }
    Ok(LimitPushdown {
        rows_needed: limit.map(|l| l.saturating_add(rows_skipped)),
        rows_skipped,
        is_ordered: !query.order.is_empty(),
        is_distinct: core.distinct,
        held_columns,
        column_count: core.columns.len(),
        condition_count: calls.iter().map(|c| analysis.count_predicates(c, scope)).sum(),
        star_position: star_columns.first().copied(),
        is_grouped,
        ..LimitPushdown::default()
    })
}

/// Checks that no call affects the grouping.
fn check_groups(select: &SelectScope<'_>) -> Result<(), RejectionReason> {
    let SelectScope { analysis, query, core, .. } = *select;
    if core.group.is_empty() {
        let is_aggregate = is_aggregate(core, query);
        return if is_aggregate { Err("it is an aggregate of all rows") } else { Ok(()) };
    }
    let depends_on_calls = core.group.iter().chain(&core.having).any(|e| select.depends_on_call(e));
    // A position or alias in GROUP BY refers to a result.
    let has_early_result = (0..core.columns.len()).any(|n| {
        core.columns[n].expr.as_ref().is_some_and(Expr::has_call)
            && is_evaluated_before_group(&core.columns[n], n, core, analysis.sql)
    });
    if core.distinct || depends_on_calls || has_early_result {
        return Err("a call decides which groups there are, or they are DISTINCT");
    }
    Ok(())
}

/// Checks that DISTINCT compares only values that depend on no call, and that every ORDER BY term
/// is among these values.
fn check_distinct(select: &SelectScope<'_>, has_star: bool) -> Result<(), RejectionReason> {
    let SelectScope { analysis, query, core, scope, .. } = *select;
    let results = || core.columns.iter().filter_map(|c| c.expr.as_ref());
    let text = |e: &Expr| &analysis.sql[strip_expr_parens(e).span.clone()];
    let is_result = |e: &Expr| {
        matches!(resolve_term(e, Clause::Order, core, analysis.sql), ResolvedTerm::Result(_))
            || results().any(|r| text(r) == text(e))
    };
    // A star includes the columns of all tables.
    let star_has_custom_collation =
        has_star && scope.tables.iter().any(Table::has_custom_collation);
    let compares_plain_bytes = results().all(|r| {
        !select.depends_on_call(r) && !analysis.resolver().may_have_custom_collation(r, scope)
    });
    if core.distinct
        && !(compares_plain_bytes
            && !star_has_custom_collation
            && query.order.iter().all(|o| is_result(&o.expr)))
    {
        return Err("DISTINCT: a call is a result, the order is by no result, or texts collate");
    }
    Ok(())
}

/// Checks that a nested SELECT returns the same rows if it is run separately.
fn check_standalone(
    select: &SelectScope<'_>,
    limit: &LimitPushdown,
) -> Result<(), RejectionReason> {
    let SelectScope { analysis, query, core, scope, .. } = *select;
    // `SQLite` pushes outer conditions down into a subquery without LIMIT, so the subquery reaches
    // fewer rows.
    if limit.rows_needed.is_none() {
        return Err("it is within another SELECT, and has no LIMIT");
    }
    if limit.is_grouped {
        return Err("its rows are groups");
    }
    if analysis.is_volatile(query) {
        return Err("it uses random values");
    }
    let own_cte_scope = (!query.with.is_empty()).then_some(query.span.start);
    let outermost = analysis.whole_span.start;
    if analysis.cte_scopes.iter().any(|at| *at != own_cte_scope.unwrap_or(outermost)) {
        return Err("common table expressions are declared between it and the outermost query");
    }
    if core.from.iter().any(|item| !analysis.list_source_calls(item).is_empty()) {
        return Err("the tables it reads contain calls");
    }
    let calls = analysis.list_reachable_calls(query);
    if calls.iter().any(|n| analysis.is_recursive_call.get(*n).is_some_and(|r| *r)) {
        return Err("it is in a recursive query");
    }
    let mut shared_calls = Vec::new();
    let results = core.columns.iter().filter_map(|c| c.expr.as_ref());
    results
        .chain(&core.filter)
        .for_each(|e| analysis.collect_shared_calls(e, scope, &mut shared_calls));
    if !shared_calls.is_empty() {
        return Err("the pending calls cannot be assigned to rows");
    }
    match scope.parent.and_then(|ctes| ctes.parent) {
        Some(outer_scope) if !analysis.may_be_correlated(query, outer_scope) => Ok(()),
        _ => Err("it refers to a row of an outer SELECT"),
    }
}

/// Returns true if a condition references a result by its alias. The rule's statement evaluates
/// the conditions among the results, where aliases are not visible.
fn has_alias_in_conditions(select: &SelectScope<'_>) -> bool {
    let core = select.core;
    let mut found = false;
    for expr in core.filter.iter().chain(&core.having) {
        let resolver = select.analysis.resolver();
        resolver.visit_expr(expr, select.scope, false, &mut |e, at, _| {
            let ExprKind::Column { table: None, column } = &e.kind else { return };
            let named =
                |c: &ResultColumn| c.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(column));
            found |= at.find_column(None, column).is_none() && core.columns.iter().any(named);
        });
    }
    found
}

/// Returns the number of rows in a LIMIT or OFFSET; `None` if the expression is negative or not an
/// integer literal.
pub(crate) fn parse_row_count(expr: &Expr, sql: &str) -> Option<u64> {
    u64::try_from(read_integer(expr, sql)?).ok()
}

/// Returns true if a result column is evaluated before grouping, because GROUP BY, HAVING or ON
/// references it by alias or position.
fn is_evaluated_before_group(
    column: &ResultColumn,
    at: usize,
    core: &SelectCore,
    sql: &str,
) -> bool {
    let mut found = core.group.iter().any(|g| match resolve_term(g, Clause::Group, core, sql) {
        ResolvedTerm::Result(n) => n == at,
        ResolvedTerm::Unresolved => true,
        ResolvedTerm::Expression => false,
    });
    if let Some(alias) = &column.alias {
        let mut check = |e: &Expr| {
            found |= matches!(&e.kind, ExprKind::Column { table: None, column }
                if column.eq_ignore_ascii_case(alias));
        };
        core.group.iter().chain(&core.having).for_each(|e| e.visit_exprs(&mut check));
        core.from.iter().for_each(|i| i.visit_exprs(&mut check));
    }
    found
}
