//! Rule: if a query needs only a limited number of rows, hqdl makes requests only for those (LIMIT
//! pushdown).
//!
//! Precondition:
//!
//! * The rows belong to the outermost SELECT, or to a standalone nested one (below).
//! * The SELECT is not a compound and has no window function. LIMIT and OFFSET are numbers, or it
//!   is DISTINCT.
//! * No call affects the order. If it is DISTINCT, no result has a call and every ORDER BY term is
//!   a result.
//! * If it has groups, no call affects the grouping.
//! * No call in a condition is about all rows together, and no condition references a result by its
//!   alias.
//!
//! Effect: a separate statement returns the rows that the conditions without calls keep, complete
//! and in their final order. Each row has a state: it fails, it is undecided, it passes with
//! unknown values, or it passes and is complete. The answer is complete once enough rows pass and
//! no earlier row is undecided. Requests are made only for the open rows of this prefix.
//!
//! The result does not depend on how often or in which order `SQLite` evaluates a condition. Ties
//! are broken once, because the returned rows are the answer. If a subquery in the FROM clause
//! computes a value once, for the first row, all rows that reference it wait for it. Without an
//! ORDER BY, some more rows are read before any request is made, because cached answers may
//! complete the result.
//!
//! A nested SELECT is standalone if it has a LIMIT, references no outer row and is not volatile. In
//! addition, its sources have no calls, its rows are not groups, and each row reports its own
//! pending calls. It is run separately when an iteration reaches it and waits for it. After that
//! its rows are *complete*: in its original position, a row that is not known to pass fails, and no
//! value is waited for. The remaining rows are the first ones, because everything before them is
//! known. Without an ORDER BY, any rows that pass are valid.

use super::{LIMIT_PUSHDOWN, RefusalReason, Rewriter, SIMILARITY};
use crate::blendsql::aggregates::{has_window, is_aggregate, is_aggregate_call};
use crate::blendsql::emit;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::{LimitPushdown, SubqueryLimit};
use crate::blendsql::rewrite::visit_own_calls;
use crate::blendsql::scope::{Scope, Table, without_parens};
use crate::blendsql::terms::{Clause, ResolvedTerm, read_integer, resolve_term, term_expr};
use crate::blendsql::tree::{Expr, ExprKind, Query, ResultColumn, SelectCore, Span};
use crate::blendsql::truth;

impl Rewriter<'_> {
    /// Returns the LIMIT plan of the outermost SELECT if the rule applies; `calls` are its
    /// conditions with calls. Records a nested SELECT to which the rule applies and returns `None`
    /// for it.
    pub(in crate::blendsql) fn plan_limit_pushdown(
        &mut self,
        query: &Query,
        core: &SelectCore,
        scope: &Scope<'_>,
        calls: &[&Expr],
    ) -> Option<LimitPushdown> {
        let is_nested = core.span.start != self.root;
        let found = self.check_limit_pushdown(query, core, scope, calls).and_then(|first| {
            if is_nested {
                self.ensure_standalone(query, core, scope, &first)?;
            }
            Ok(first)
        });
        match found {
            Ok(mut first) => {
                let rows = match first.rows_needed {
                    Some(need) => format!("the first {need} rows that match"),
                    None => "one of each group of equal rows".to_owned(),
                };
                self.record_outcome(core, LIMIT_PUSHDOWN, Ok(rows));
                if is_nested {
                    let (at, calls) = (core.span.start, self.reachable_calls(query));
                    self.out.subquery_limits.push(SubqueryLimit { at, calls });
                    return None;
                }
                if self.standalone.is_some() {
                    return Some(first);
                }
                let similarity_order = self.similarity_order(query, core, first.is_grouped, calls);
                self.record_outcome(
                    core,
                    SIMILARITY,
                    similarity_order.as_ref().map(|_| String::new()).map_err(|e| *e),
                );
                first.similarity_order = similarity_order.ok();
                first.is_ranked = first.similarity_order.is_some();
                Some(first)
            }
            Err(why) => {
                self.record_outcome(core, LIMIT_PUSHDOWN, Err(why));
                None
            }
        }
    }

    fn check_limit_pushdown(
        &self,
        query: &Query,
        core: &SelectCore,
        scope: &Scope<'_>,
        calls: &[&Expr],
    ) -> Result<LimitPushdown, RefusalReason> {
        if core.from.is_empty() {
            return Err("it reads no table");
        }
        if !self.limit_pushdown_enabled && core.span.start == self.root {
            return Err("the pending calls cannot be assigned to rows");
        }
        let is_without_calls = |e: &Expr| !self.depends_on_call(e, scope);
        let limit = match &query.limit {
            Some(limit) => {
                Some(parse_row_count(limit, self.sql).ok_or("its LIMIT is not a number")?)
            }
            None => None,
        };
        let rows_skipped = match &query.offset {
            Some(offset) => {
                parse_row_count(offset, self.sql).ok_or("its OFFSET is not a number")?
            }
            None => 0,
        };
        if limit.is_none() && !core.distinct || limit == Some(0) {
            return Err("it needs all of its rows: there is no LIMIT and no DISTINCT");
        }
        let order_is_plain = query.order.iter().all(|o| {
            term_expr(&o.expr, Clause::Order, core, self.sql).is_some_and(is_without_calls)
        });
        let mut asks_pairs = false;
        calls.iter().for_each(|c| {
            visit_own_calls(c, &mut |n| asks_pairs |= self.sites[n].subject == Subject::Pair);
        });
        let results = || core.columns.iter().filter_map(|c| c.expr.as_ref());
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
            (
                star_columns.len() > 1 && !held_columns.is_empty(),
                "it has more than one * beside calls",
            ),
            (self.has_outer_aggregate(core, query, scope), "it is an aggregate of a subquery"),
            (self.has_alias_in_conditions(core, scope), "a condition names a result by its alias"),
        ];
        if let Some((_, why)) = refusals.into_iter().find(|(refused, _)| *refused) {
            return Err(why);
        }
        let is_grouped = !core.group.is_empty();
        if is_grouped {
            let depends_on_calls =
                core.group.iter().chain(&core.having).any(|e| !is_without_calls(e));
            // A position or alias in GROUP BY refers to a result.
            let has_early_result = (0..core.columns.len()).any(|n| {
                core.columns[n].expr.as_ref().is_some_and(Expr::has_call)
                    && is_evaluated_before_group(&core.columns[n], n, core, self.sql)
            });
            if core.distinct || depends_on_calls || has_early_result {
                return Err("a call decides which groups there are, or they are DISTINCT");
            }
        } else if is_aggregate(core, query) {
            return Err("it is an aggregate of all rows");
        }
        let is_result = |e: &Expr| {
            matches!(resolve_term(e, Clause::Order, core, self.sql), ResolvedTerm::Result(_))
                || results().any(|r| self.is_same_text(r, e))
        };
        // A star includes the columns of all tables.
        let star_has_custom_collation =
            !star_columns.is_empty() && scope.tables.iter().any(Table::has_custom_collation);
        if core.distinct
            && !(results().all(|r| {
                is_without_calls(r) && !self.resolver().may_have_custom_collation(r, scope)
            }) && !star_has_custom_collation
                && query.order.iter().all(|o| is_result(&o.expr)))
        {
            return Err(
                "DISTINCT: a call is a result, the order is by no result, or texts collate",
            );
        }
        if held_columns.is_empty() && (calls.is_empty() || is_grouped) {
            return Err("neither a condition nor a result of its rows has a call");
        }
        Ok(LimitPushdown {
            rows_needed: limit.map(|l| l.saturating_add(rows_skipped)),
            rows_skipped,
            is_ordered: !query.order.is_empty(),
            is_distinct: core.distinct,
            is_ranked: false,
            held_columns,
            column_count: core.columns.len(),
            condition_count: calls.iter().map(|c| truth::count_predicates(self, c, scope)).sum(),
            star_position: star_columns.first().copied(),
            is_grouped,
            has_shared_calls: false,
            truth: "1".to_owned(),
            similarity_order: None,
        })
    }

    /// Checks that a nested SELECT returns the same rows if it is run separately.
    fn ensure_standalone(
        &self,
        query: &Query,
        core: &SelectCore,
        scope: &Scope<'_>,
        limit: &LimitPushdown,
    ) -> Result<(), RefusalReason> {
        // SQLite pushes outer conditions down into a subquery without LIMIT, so that fewer rows are
        // reached.
        if limit.rows_needed.is_none() {
            return Err("it is within another SELECT, and has no LIMIT");
        }
        if limit.is_grouped {
            return Err("its rows are groups");
        }
        if self.is_volatile(query) {
            return Err("it uses random values");
        }
        let own_cte_scope = (!query.with.is_empty()).then_some(query.span.start);
        if self.cte_scopes.iter().any(|at| *at != own_cte_scope.unwrap_or(self.whole_span.start)) {
            return Err("common table expressions are declared between it and the outermost query");
        }
        if core.from.iter().any(|item| !self.calls_in_source(item).is_empty()) {
            return Err("the tables it reads contain calls");
        }
        let calls = self.reachable_calls(query);
        if calls.iter().any(|n| self.is_recursive_call.get(*n).is_some_and(|r| *r)) {
            return Err("it is in a recursive query");
        }
        let mut shared_calls = Vec::new();
        let results = core.columns.iter().filter_map(|c| c.expr.as_ref());
        results
            .chain(&core.filter)
            .for_each(|e| self.collect_shared_calls(e, scope, &mut shared_calls));
        if !shared_calls.is_empty() {
            return Err("the pending calls cannot be assigned to rows");
        }
        match scope.parent.and_then(|ctes| ctes.parent) {
            Some(outer_scope) if !self.may_be_correlated(query, outer_scope) => Ok(()),
            _ => Err("it refers to a row of an outer SELECT"),
        }
    }

    /// Returns true if a query references outer rows, or if that is unknown.
    fn may_be_correlated(&self, query: &Query, outer_scope: &Scope<'_>) -> bool {
        let mut scope = Some(outer_scope);
        while let Some(current) = scope {
            if current.tables.iter().any(|table| table.fields.is_none()) {
                return true;
            }
            scope = current.parent;
        }
        let mut outer = self.is_correlated(query, outer_scope);
        self.resolver().visit_exprs(query, outer_scope, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                let (table, inner) = (table.as_deref(), at.find_column(table.as_deref(), column));
                outer |= inner.is_none() && outer_scope.find_column(table, column).is_some();
            }
        });
        outer
    }

    fn is_same_text(&self, a: &Expr, b: &Expr) -> bool {
        self.sql[without_parens(a).span.clone()] == self.sql[without_parens(b).span.clone()]
    }

    /// Rewrites a SELECT into the statement that returns its rows with their state. It has no
    /// DISTINCT and no LIMIT. An extra last column holds the number of the recorded row, and only
    /// that column evaluates values with calls.
    pub(in crate::blendsql) fn rewrite_limited_select(
        &mut self,
        mut limit: LimitPushdown,
        query: &Query,
        core: &SelectCore,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        let (Some(head), Some(last)) = (core.columns.first(), core.columns.last()) else { return };
        let (mut values, mut shared_calls) = (Vec::new(), Vec::new());
        for n in &limit.held_columns {
            let column = &core.columns[*n];
            let Some(expr) = &column.expr else { continue };
            values.push(format!("({})", self.rewrite_value(expr, scope)));
            self.collect_shared_calls(expr, scope, &mut shared_calls);
            let placeholder = format!("(NULL+{n})");
            if column.alias.is_none() {
                let name = match &without_parens(expr).kind {
                    ExprKind::Call(n, _) => self.questions.get(*n).cloned().unwrap_or_default(),
                    _ => self.sql[expr.span.clone()].to_owned(),
                };
                self.out.result_names.insert(placeholder.clone(), name);
            }
            parts.push((expr.span.clone(), placeholder));
        }
        limit.has_shared_calls = !shared_calls.is_empty();
        let condition_group = self.condition_group_index(core.span.start, 0);
        let truth = if values.is_empty() {
            limit.truth.clone()
        } else {
            emit::hold_values(&limit.truth, &shared_calls, values)
        };
        let rank = limit.similarity_order.take().map_or(String::new(), |(calls, rank)| {
            self.out.similarity_calls.extend(calls);
            format!(", {rank}")
        });
        let extra_columns = format!("{rank}, {}", emit::candidate_number(condition_group, &truth));
        parts.push((last.span.end..last.span.end, extra_columns));
        if core.distinct {
            parts.push((core.span.start..head.span.start, "SELECT ".to_owned()));
        }
        let tail_start = query.limit.iter().chain(&query.offset).map(|e| e.span.start).min();
        if let Some(at) = tail_start {
            let before = self.sql[..at].trim_end();
            let at = before.len().saturating_sub("limit".len());
            parts.push((at..query.span.end, String::new()));
        }
        self.out.limit_pushdown = Some(limit);
    }

    /// Returns true if a condition references a result by its alias. The rule's statement evaluates
    /// the conditions among the results, where aliases are not visible.
    fn has_alias_in_conditions(&self, core: &SelectCore, scope: &Scope<'_>) -> bool {
        let mut found = false;
        for expr in core.filter.iter().chain(&core.having) {
            self.resolver().visit_expr(expr, scope, false, &mut |e, at, _| {
                let ExprKind::Column { table: None, column } = &e.kind else { return };
                let named = |c: &ResultColumn| {
                    c.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(column))
                };
                found |= at.find_column(None, column).is_none() && core.columns.iter().any(named);
            });
        }
        found
    }

    /// Returns true if an aggregate in a subquery belongs to this SELECT.
    pub(in crate::blendsql) fn has_outer_aggregate(
        &self,
        core: &SelectCore,
        query: &Query,
        scope: &Scope<'_>,
    ) -> bool {
        !self.outer_aggregates(core, query, scope).is_empty()
    }

    /// Returns the aggregates in subqueries that belong to this SELECT: all columns in their
    /// arguments, ORDER BY and FILTER are columns of this SELECT or an outer one.
    pub(in crate::blendsql) fn outer_aggregates(
        &self,
        core: &SelectCore,
        query: &Query,
        scope: &Scope<'_>,
    ) -> Vec<Expr> {
        let mut found = Vec::new();
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let exprs = columns.chain(&core.having).chain(query.order.iter().map(|o| &o.expr));
        for expr in exprs {
            self.resolver().visit_expr(expr, scope, false, &mut |e, at, _| {
                if at.depth <= scope.depth || !is_aggregate_call(e) {
                    return;
                }
                let (mut is_inner, mut is_outer) = (false, false);
                // Includes the arguments, DISTINCT, ORDER BY and FILTER.
                e.visit_exprs(&mut |e| {
                    if let ExprKind::Column { table, column } = &e.kind {
                        let depth = at.find_column(table.as_deref(), column).map(|f| f.depth);
                        is_inner |= depth.is_some_and(|d| d > scope.depth);
                        is_outer |= depth.is_none_or(|d| d <= scope.depth);
                    }
                });
                if is_outer && !is_inner {
                    found.push(e.clone());
                }
            });
        }
        found
    }
}

/// Returns the number of rows in a LIMIT or OFFSET; `None` if it is not an integer literal or is
/// negative.
fn parse_row_count(expr: &Expr, sql: &str) -> Option<u64> {
    u64::try_from(read_integer(expr, sql)?).ok()
}

/// Returns true if a result column is evaluated before grouping: GROUP BY, HAVING or ON reference
/// it by alias or position.
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
