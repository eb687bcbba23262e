//! Rule: if the result of a SELECT depends only on the first passing rows of each group, hqdl asks
//! about rows in that order. It stops as soon as enough rows of each group are known to pass.
//!
//! Precondition:
//!
//! * The SELECT has conditions with calls in WHERE or in inner joins, and calls nowhere else. No
//!   call asks about all rows together, and none is in a subquery or in a source. No join is RIGHT
//!   or FULL, because in such a join `SQLite` also evaluates conditions for rows that are not
//!   results.
//! * The result is one of the following. (a) Only `max` and `min` of one column in one direction,
//!   which need the first row by that column. (b) Comparisons of `count(*)` with a number, which
//!   need at most one more row than that number. (c) Only grouping columns, which need any row of
//!   the group. (d) The first rows of a LIMIT. (e) An arm of a UNION ALL with a LIMIT. (f) Rows
//!   numbered by `row_number()` or `rank()`, if the outer WHERE uses only the first numbers. In
//!   case (f), the SELECT has no other window function and no LIMIT.
//! * Grouping, order and results depend on no call and have no custom collation.
//! * More than one row per group is needed only in the outermost query, or for (f) in one of its
//!   sources, because both run only once per pass. Another SELECT can run several times, and its
//!   rows would be counted repeatedly.
//!
//! Effect: a row whose conditions are undecided does not pass for now. A group is decided if enough
//! of its rows pass and no undecided row precedes them, because the unknown rows then cannot change
//! its result. A pass is final only if all groups are decided. The values of outer columns are part
//! of the group, so each outer row has its own groups.

use crate::blendsql::aggregates::{count_windows, is_aggregate, is_aggregate_call};
use crate::blendsql::frame::is_random_function;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::analysis::{
    find_compared_count, is_legacy_column, is_row_count, visit_own_calls,
};
use crate::blendsql::plan::numbered_rows::NumberedRows;
use crate::blendsql::plan::select_scope::{RowUse, SelectScope};
use crate::blendsql::plan::{
    ConditionStage, DemandPlan, NeededPart, NeededRows, OrderKey, RejectionReason, RuleResult,
};
use crate::blendsql::rules::limit_pushdown::parse_row_count;
use crate::blendsql::scope::{Scope, strip_expr_parens};
use crate::blendsql::terms::{Clause, ResolvedTerm, resolve_term, resolve_term_expr};
use crate::blendsql::tree::{
    Expr, ExprKind, FromItem, FromSource, JoinKind, OrderTerm, Query, Span,
};

const ALL_ROWS: RejectionReason = "its result depends on all rows that pass";

/// Plans the number of rows that must pass in each group.
pub(crate) fn stop_at_first_rows(plan: &mut DemandPlan, select: &SelectScope<'_>) -> RuleResult {
    let is_limited = plan.subquery_limits.iter().any(|limit| limit.at == select.offset());
    let planned = plan.find_or_add_select(select.offset());
    if planned.limit.is_some()
        || is_limited
        || planned.conjuncts_at_stage(ConditionStage::Last).next().is_none()
    {
        return RuleResult::Irrelevant;
    }
    if planned.conjuncts.iter().any(|c| c.stage == ConditionStage::AfterHaving)
        || !planned.outer_joins.is_empty()
    {
        return RuleResult::Refused("a condition with calls is in HAVING or in an outer join");
    }
    let calls = planned.conditions_with_calls();
    let found = check_conditions(select, &calls).and_then(|()| find_needed_rows(select));
    match found {
        Ok(needed) => {
            let rows = match needed.count {
                1 => "one row that passes".to_owned(),
                count => format!("{count} rows that pass"),
            };
            let is_grouped = !needed.groups.is_empty();
            let effect = if is_grouped { format!("{rows}, of each group") } else { rows };
            planned.needed = Some(needed);
            RuleResult::Applied(effect)
        }
        Err(ALL_ROWS) if !has_groups(select) => RuleResult::Irrelevant,
        Err(why) => RuleResult::Refused(why),
    }
}

fn has_groups(select: &SelectScope<'_>) -> bool {
    !select.core.group.is_empty() || is_aggregate(select.core, select.query)
}

/// Checks that each row reports its own pending calls, and that only conditions have calls.
pub(crate) fn check_conditions(
    select: &SelectScope<'_>,
    calls: &[Expr],
) -> Result<(), RejectionReason> {
    let SelectScope { analysis, query, core, scope, .. } = *select;
    let mut asks_pairs = false;
    for call in calls {
        visit_own_calls(call, &mut |n| asks_pairs |= analysis.sites[n].subject == Subject::Pair);
    }
    if asks_pairs {
        return Err("a condition asks about all rows together");
    }
    let hidden =
        |e: &Expr| analysis.subquery_has_calls(e) || analysis.references_hidden_calls(e, scope);
    let is_recursive = |n: &usize| analysis.is_recursive_call.get(*n).is_some_and(|r| *r);
    if analysis.list_reachable_calls(query).iter().any(is_recursive) {
        return Err("it is in a recursive query");
    }
    if core.has_outer_join() {
        return Err("a RIGHT or FULL JOIN evaluates conditions for rows before they are matched");
    }
    if calls.iter().any(hidden)
        || core
            .from
            .iter()
            .any(|item| !analysis.list_source_calls(item).is_empty() && !is_inner_table(item))
    {
        return Err("a call is in a subquery or in a source");
    }
    let results = core.columns.iter().filter_map(|c| c.expr.as_ref()).chain(&core.group);
    let results = results.chain(&core.having).chain(&core.windows);
    let tail = query.order.iter().map(|o| &o.expr).chain(&query.limit).chain(&query.offset);
    if results.chain(tail).any(|e| select.depends_on_call(e)) {
        return Err("a call is outside its conditions");
    }
    let numbering_count = usize::from(matches!(select.row_use, RowUse::Numbered(_)));
    if count_windows(core, query) > numbering_count
        || analysis.is_volatile(query)
        || !analysis.find_outer_aggregates(core, query, scope).is_empty()
        || !query.with.is_empty()
    {
        return Err("it has a window function, random values, a WITH or an outer aggregate");
    }
    Ok(())
}

/// Returns true if a FROM item is a table joined by an inner join. The condition of such a join may
/// have calls.
fn is_inner_table(item: &FromItem) -> bool {
    matches!(item.source, FromSource::Table { .. }) && item.join == JoinKind::Inner
}

fn find_needed_rows(select: &SelectScope<'_>) -> Result<NeededRows, RejectionReason> {
    let SelectScope { query, core, .. } = *select;
    let mut needed = NeededRows { set: select.offset(), ..NeededRows::default() };
    let is_grouped = has_groups(select);
    let limited = match select.row_use {
        RowUse::Arm(compound) => Some(compound),
        _ => Some(query),
    };
    let limited = limited.filter(|q| q.limit.is_some());
    match limited {
        _ if let RowUse::Numbered(numbered) = select.row_use => {
            require_window_rows(select, numbered, &mut needed)?;
        }
        _ if is_grouped && !matches!(select.row_use, RowUse::Arm(_)) => {
            require_aggregate_rows(select, &mut needed)?;
        }
        Some(limited) if !is_grouped && !core.distinct => {
            needed.set = limited.span.start;
            needed.count = count_limited_rows(select, limited)?;
            needed.order = find_limit_order(select, &limited.order)?;
        }
        _ => return Err(ALL_ROWS),
    }
    let outer = find_outer_columns(select)?;
    let runs_once = match select.row_use {
        RowUse::Arm(compound) => compound.span == select.analysis.whole_span,
        RowUse::Numbered(numbered) => numbered.runs_once,
        _ => select.offset() == select.analysis.root,
    };
    if needed.count > 1 && !runs_once {
        return Err("it may run several times, and needs more than one row");
    }
    needed.groups.extend(outer);
    Ok(needed)
}

/// Determines which rows are needed to assign the first numbers of a window.
fn require_window_rows(
    select: &SelectScope<'_>,
    numbered: NumberedRows<'_>,
    needed: &mut NeededRows,
) -> Result<(), RejectionReason> {
    let NumberedRows { window, last, .. } = numbered;
    if has_groups(select) || select.query.limit.is_some() {
        return Err(ALL_ROWS);
    }
    if window.order.is_empty() {
        return Err("its window has no ORDER BY");
    }
    if !window.exprs().all(|e| is_plain(e, select)) {
        return Err("its window is not plain");
    }
    needed.groups = window.partition.iter().map(|e| e.span.clone()).collect();
    needed.order = window.order.iter().map(|term| build_order_key(term, &term.expr)).collect();
    needed.count = last;
    needed.part = NeededPart::FirstRowsWithTies;
    Ok(())
}

/// Returns the number of rows up to the last row that LIMIT and OFFSET select.
pub(crate) fn count_limited_rows(
    select: &SelectScope<'_>,
    limited: &Query,
) -> Result<u64, RejectionReason> {
    let sql = select.analysis.sql;
    let count = |e: &Expr| parse_row_count(e, sql).ok_or("its LIMIT or OFFSET is not a number");
    let limit = limited.limit.as_ref().map_or(Ok(0), count)?;
    let skipped = limited.offset.as_ref().map_or(Ok(0), count)?;
    match limit {
        0 => Err("its LIMIT is zero"),
        limit => Ok(limit.saturating_add(skipped)),
    }
}

/// Returns the order of the rows to which a LIMIT applies.
fn find_limit_order(
    select: &SelectScope<'_>,
    terms: &[OrderTerm],
) -> Result<Vec<OrderKey>, RejectionReason> {
    let mut order = Vec::new();
    for term in terms {
        let (core, sql) = (select.core, select.analysis.sql);
        let expr = match select.row_use {
            // In a compound, a name refers to a result column of any arm.
            RowUse::Arm(_) => match resolve_term(&term.expr, Clause::Group, core, sql) {
                ResolvedTerm::Result(n) => core.columns[n].expr.as_ref(),
                _ => None,
            },
            _ => resolve_term_expr(&term.expr, Clause::Order, core, sql),
        };
        let expr = expr.filter(|e| is_plain(e, select)).ok_or("its order is not plain")?;
        order.push(build_order_key(term, expr));
    }
    Ok(order)
}

fn build_order_key(term: &OrderTerm, expr: &Expr) -> OrderKey {
    let nulls_first = term.nulls_first.unwrap_or(!term.descending);
    OrderKey { span: expr.span.clone(), descending: term.descending, nulls_first }
}

/// Determines the rows that the grouping columns and aggregates of a SELECT need.
fn require_aggregate_rows(
    select: &SelectScope<'_>,
    needed: &mut NeededRows,
) -> Result<(), RejectionReason> {
    let SelectScope { analysis, query, core, .. } = *select;
    let groups = check_groups_are_plain(select)?;
    needed.groups = groups.iter().map(|e| e.span.clone()).collect();
    needed.count = 1;
    if let (RowUse::Counted(rows), [only], true) =
        (select.row_use, core.columns.as_slice(), groups.is_empty())
        && only.expr.as_ref().is_some_and(is_row_count)
        && core.having.is_none()
    {
        needed.count = rows;
        return Ok(());
    }
    let results = core.columns.iter().map(|c| c.expr.as_ref());
    let exprs = results.chain(core.having.iter().map(Some));
    for expr in exprs.chain(
        query.order.iter().map(|o| resolve_term_expr(&o.expr, Clause::Order, core, analysis.sql)),
    ) {
        require_result_rows(expr.ok_or(ALL_ROWS)?, &groups, select, needed)?;
    }
    Ok(())
}

/// Determines the rows that one result column of a group needs.
fn require_result_rows(
    expr: &Expr,
    groups: &[&Expr],
    select: &SelectScope<'_>,
    needed: &mut NeededRows,
) -> Result<(), RejectionReason> {
    let sql = select.analysis.sql;
    if groups.iter().any(|group| is_same_value(group, strip_expr_parens(expr), select)) {
        return Ok(());
    }
    match &expr.kind {
        ExprKind::Literal => return Ok(()),
        ExprKind::Compare(operator, left, right) => {
            if let Some((count, rows)) = find_compared_count(operator, left, right, sql)
                && is_row_count(count)
            {
                needed.count = needed.count.max(rows);
                return Ok(());
            }
        }
        ExprKind::Function { name, args, filter: None, window: None, .. }
            if is_aggregate_call(expr) =>
        {
            let ([arg], "max" | "min") = (args.as_slice(), name.as_str()) else {
                return Err(ALL_ROWS);
            };
            if !is_plain(arg, select) {
                return Err("an aggregate is of no plain column");
            }
            let descending = name == "max";
            let key = OrderKey { span: arg.span.clone(), descending, nulls_first: false };
            let is_same = |known: &OrderKey| {
                known.descending == descending && sql[known.span.clone()] == sql[key.span.clone()]
            };
            if needed.order.first().is_some_and(|known| !is_same(known)) {
                return Err("its aggregates need different rows");
            }
            needed.order = vec![key];
            return Ok(());
        }
        ExprKind::Function { .. } if is_aggregate_call(expr) => return Err(ALL_ROWS),
        ExprKind::Column { .. } => return Err("a result is neither a group nor an aggregate"),
        ExprKind::Function { window: Some(_), .. } => return Err(ALL_ROWS),
        _ => {}
    }
    match expr.children() {
        (_, Some(_)) => Err("a result has a subquery"),
        (exprs, None) => {
            exprs.into_iter().try_for_each(|e| require_result_rows(e, groups, select, needed))
        }
    }
}

/// Returns true if two expressions have the same text or are the same column.
fn is_same_value(a: &Expr, b: &Expr, select: &SelectScope<'_>) -> bool {
    let column = |e: &Expr| match &e.kind {
        ExprKind::Column { table, column } => {
            let hit = select.scope.find_column(table.as_deref(), column)?;
            Some((hit.depth, std::ptr::from_ref(hit.table), std::ptr::from_ref(hit.field)))
        }
        _ => None,
    };
    let sql = select.analysis.sql;
    sql[a.span.clone()] == sql[b.span.clone()] || column(a).is_some() && column(a) == column(b)
}

/// Checks that all grouping expressions are plain, and returns them.
pub(crate) fn check_groups_are_plain<'s>(
    select: &SelectScope<'s>,
) -> Result<Vec<&'s Expr>, RejectionReason> {
    let mut groups = Vec::new();
    for term in &select.core.group {
        let expr = resolve_term_expr(term, Clause::Group, select.core, select.analysis.sql);
        let expr = expr.filter(|e| is_plain(e, select)).ok_or("its groups are not plain")?;
        groups.push(strip_expr_parens(expr));
    }
    Ok(groups)
}

/// Returns true if an expression references only rows of this SELECT, depends on no call, and can
/// be evaluated a second time for each row.
fn is_plain(expr: &Expr, select: &SelectScope<'_>) -> bool {
    let mut is_plain = !select.depends_on_call(expr)
        && !select.analysis.resolver().may_have_custom_collation(expr, select.scope);
    expr.visit_exprs(&mut |e| {
        is_plain &= e.children().1.is_none() && !is_aggregate_call(e);
        match &e.kind {
            ExprKind::Column { table, column } => {
                let hit = select.scope.find_column(table.as_deref(), column);
                is_plain &= hit.is_some_and(|hit| hit.depth == select.scope.depth)
                    || select.scope.find_row_scope_depth(table.as_deref(), column)
                        == Some(select.scope.depth);
            }
            ExprKind::Function { name, window, .. } => {
                is_plain &= window.is_none() && !is_random_function(name);
            }
            _ => {}
        }
    });
    is_plain
}

/// Returns the columns of outer rows that a SELECT references.
fn find_outer_columns(select: &SelectScope<'_>) -> Result<Vec<Span>, RejectionReason> {
    let SelectScope { analysis, query, scope, .. } = *select;
    let (mut outer, mut is_known): (Vec<Span>, bool) = (Vec::new(), true);
    let Some(around) = scope.parent.and_then(|ctes| ctes.parent) else { return Ok(outer) };
    analysis.resolver().visit_exprs(query, around, &mut |e, at, _| {
        if let ExprKind::Call(n, args) = &e.kind
            && analysis.sites[*n].argument_sql.is_some()
        {
            // The SQL of a call's key can reference more columns of an outer row than the call's
            // arguments do.
            is_known &= args.iter().all(|arg| !references_outer_rows(arg, at, scope.depth));
        }
        let ExprKind::Column { table, column } = &e.kind else { return };
        let hit = at.find_column(table.as_deref(), column);
        let depth =
            hit.map(|f| f.depth).or_else(|| at.find_row_scope_depth(table.as_deref(), column));
        match depth {
            Some(depth) if depth >= scope.depth => {}
            Some(_) if at.depth == scope.depth && !is_legacy_column(e, analysis.sql) => {
                outer.push(e.span.clone());
            }
            Some(_) => is_known = false,
            None => is_known &= ["true", "false"].iter().any(|t| column.eq_ignore_ascii_case(t)),
        }
    });
    if is_known { Ok(outer) } else { Err("it refers to unknown columns or outer rows") }
}

/// Returns true if an expression may refer to rows outside of the SELECT at a depth.
fn references_outer_rows(expr: &Expr, scope: &Scope<'_>, depth: usize) -> bool {
    let mut found = false;
    expr.visit_exprs(&mut |e| {
        if let ExprKind::Column { table, column } = &e.kind {
            let hit = scope.find_column(table.as_deref(), column);
            found |= hit.is_none_or(|hit| hit.depth < depth);
        }
    });
    found
}
