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

use super::{FIRST_ROWS, LIKENESS, Refused, Rewriter};
use crate::blendsql::aggregates::{has_window, is_aggregate, is_of_rows};
use crate::blendsql::emit;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::{FirstRows, InnerRows};
use crate::blendsql::rewrite::own_calls;
use crate::blendsql::scope::{Scope, Table, bare};
use crate::blendsql::terms::{Clause, ResolvedTerm, read_integer, resolve_term, term_expr};
use crate::blendsql::tree::{Core, Expr, ExprKind, Query, ResultColumn, Span};
use crate::blendsql::truth;

impl Rewriter<'_> {
    /// Returns the LIMIT plan of the outermost SELECT if the rule applies; `calls` are its
    /// conditions with calls. Records a nested SELECT to which the rule applies and returns `None`
    /// for it.
    pub(in crate::blendsql) fn first_rows(
        &mut self,
        query: &Query,
        core: &Core,
        scope: &Scope<'_>,
        calls: &[&Expr],
    ) -> Option<FirstRows> {
        let inner = core.span.start != self.root;
        let found = self.needed_rows(query, core, scope, calls).and_then(|first| {
            if inner {
                self.stands_by_itself(query, core, scope, &first)?;
            }
            Ok(first)
        });
        match found {
            Ok(mut first) => {
                let rows = match first.need {
                    Some(need) => format!("the first {need} rows that match"),
                    None => "one of each group of equal rows".to_owned(),
                };
                self.note(core, FIRST_ROWS, Ok(rows));
                if inner {
                    let (at, calls) = (core.span.start, self.calls_read(query));
                    self.out.inner.push(InnerRows { at, calls });
                    return None;
                }
                if self.alone.is_some() {
                    return Some(first);
                }
                let likened = self.likeness(query, core, first.grouped, calls);
                self.note(core, LIKENESS, likened.as_ref().map(|_| String::new()).map_err(|e| *e));
                first.likened = likened.ok();
                first.ranked = first.likened.is_some();
                Some(first)
            }
            Err(why) => {
                self.note(core, FIRST_ROWS, Err(why));
                None
            }
        }
    }

    fn needed_rows(
        &self,
        query: &Query,
        core: &Core,
        scope: &Scope<'_>,
        calls: &[&Expr],
    ) -> Result<FirstRows, Refused> {
        if core.from.is_empty() {
            return Err("it reads no table");
        }
        if !self.firsts && core.span.start == self.root {
            return Err("the pending calls cannot be assigned to rows");
        }
        let plain = |e: &Expr| !self.bears(e, scope);
        let limit = match &query.limit {
            Some(limit) => Some(number(limit, self.sql).ok_or("its LIMIT is not a number")?),
            None => None,
        };
        let skipped = match &query.offset {
            Some(offset) => number(offset, self.sql).ok_or("its OFFSET is not a number")?,
            None => 0,
        };
        if limit.is_none() && !core.distinct || limit == Some(0) {
            return Err("it needs all of its rows: there is no LIMIT and no DISTINCT");
        }
        let order_is_plain = query
            .order
            .iter()
            .all(|o| term_expr(&o.expr, Clause::Order, core, self.sql).is_some_and(plain));
        let mut pairs = false;
        calls
            .iter()
            .for_each(|c| own_calls(c, &mut |n| pairs |= self.sites[n].subject == Subject::Pair));
        let results = || core.columns.iter().filter_map(|c| c.expr.as_ref());
        let (starred, held): (Vec<_>, Vec<_>) =
            (0..core.columns.len()).partition(|n| core.columns[*n].expr.is_none());
        let held: Vec<usize> = held
            .into_iter()
            .filter(|n| core.columns[*n].expr.as_ref().is_some_and(Expr::has_call))
            .collect();
        let refused = [
            (pairs, "a condition asks about all rows together"),
            (!order_is_plain, "a call decides the order"),
            (has_window(core, query), "it has a window function"),
            (starred.len() > 1 && !held.is_empty(), "it has more than one * beside calls"),
            (self.is_aggregate_from_within(core, query, scope), "it is an aggregate of a subquery"),
            (self.has_alias_in_conditions(core, scope), "a condition names a result by its alias"),
        ];
        if let Some((_, why)) = refused.into_iter().find(|(refused, _)| *refused) {
            return Err(why);
        }
        let grouped = !core.group.is_empty();
        if grouped {
            let by_calls = core.group.iter().chain(&core.having).any(|e| !plain(e));
            // A position or alias in GROUP BY refers to a result.
            let early = (0..core.columns.len()).any(|n| {
                core.columns[n].expr.as_ref().is_some_and(Expr::has_call)
                    && is_early(&core.columns[n], n, core, self.sql)
            });
            if core.distinct || by_calls || early {
                return Err("a call decides which groups there are, or they are DISTINCT");
            }
        } else if is_aggregate(core, query) {
            return Err("it is an aggregate of all rows");
        }
        let of_results = |e: &Expr| {
            matches!(resolve_term(e, Clause::Order, core, self.sql), ResolvedTerm::Result(_))
                || results().any(|r| self.same(r, e))
        };
        // A star includes the columns of all tables.
        let collates_a_star = !starred.is_empty() && scope.tables.iter().any(Table::collates);
        if core.distinct
            && !(results().all(|r| plain(r) && !self.resolver().collates(r, scope))
                && !collates_a_star
                && query.order.iter().all(|o| of_results(&o.expr)))
        {
            return Err(
                "DISTINCT: a call is a result, the order is by no result, or texts collate",
            );
        }
        if held.is_empty() && (calls.is_empty() || grouped) {
            return Err("neither a condition nor a result of its rows has a call");
        }
        Ok(FirstRows {
            need: limit.map(|l| l.saturating_add(skipped)),
            skipped,
            ordered: !query.order.is_empty(),
            distinct: core.distinct,
            ranked: false,
            held,
            written: core.columns.len(),
            conditions: calls.iter().map(|c| truth::leaves(self, c, scope)).sum(),
            star: starred.first().copied(),
            grouped,
            unheard: false,
            truth: "1".to_owned(),
            likened: None,
        })
    }

    /// Checks that a nested SELECT returns the same rows if it is run separately.
    fn stands_by_itself(
        &self,
        query: &Query,
        core: &Core,
        scope: &Scope<'_>,
        first: &FirstRows,
    ) -> Result<(), Refused> {
        // SQLite pushes outer conditions down into a subquery without LIMIT, so that fewer rows are
        // reached.
        if first.need.is_none() {
            return Err("it is within another SELECT, and has no LIMIT");
        }
        if first.grouped {
            return Err("its rows are groups");
        }
        if self.draws(query) {
            return Err("it uses random values");
        }
        let own = (!query.with.is_empty()).then_some(query.span.start);
        if self.declaring.iter().any(|at| *at != own.unwrap_or(self.whole.start)) {
            return Err("common table expressions are declared between it and the outermost query");
        }
        if core.from.iter().any(|item| !self.calls_of_rows(item).is_empty()) {
            return Err("the tables it reads contain calls");
        }
        let calls = self.calls_read(query);
        if calls.iter().any(|n| self.recursing.get(*n).is_some_and(|r| *r)) {
            return Err("it is in a recursive query");
        }
        let mut unheard = Vec::new();
        let results = core.columns.iter().filter_map(|c| c.expr.as_ref());
        results.chain(&core.filter).for_each(|e| self.unheard(e, scope, &mut unheard));
        if !unheard.is_empty() {
            return Err("the pending calls cannot be assigned to rows");
        }
        match scope.parent.and_then(|ctes| ctes.parent) {
            Some(around) if !self.may_be_correlated(query, around) => Ok(()),
            _ => Err("it refers to a row of an outer SELECT"),
        }
    }

    /// Returns true if a query references outer rows, or if that is unknown.
    fn may_be_correlated(&self, query: &Query, around: &Scope<'_>) -> bool {
        let mut scope = Some(around);
        while let Some(here) = scope {
            if here.tables.iter().any(|table| table.fields.is_none()) {
                return true;
            }
            scope = here.parent;
        }
        let mut outer = self.is_correlated(query, around);
        self.resolver().each(query, around, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                let (table, inner) = (table.as_deref(), at.find(table.as_deref(), column));
                outer |= inner.is_none() && around.find(table, column).is_some();
            }
        });
        outer
    }

    fn same(&self, a: &Expr, b: &Expr) -> bool {
        self.sql[bare(a).span.clone()] == self.sql[bare(b).span.clone()]
    }

    /// Rewrites a SELECT into the statement that returns its rows with their state. It has no
    /// DISTINCT and no LIMIT. An extra last column holds the number of the recorded row, and only
    /// that column evaluates values with calls.
    pub(in crate::blendsql) fn yield_rows(
        &mut self,
        mut first: FirstRows,
        query: &Query,
        core: &Core,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        let (Some(head), Some(last)) = (core.columns.first(), core.columns.last()) else { return };
        let (mut values, mut unheard) = (Vec::new(), Vec::new());
        for n in &first.held {
            let column = &core.columns[*n];
            let Some(expr) = &column.expr else { continue };
            values.push(format!("({})", self.value(expr, scope)));
            self.unheard(expr, scope, &mut unheard);
            let stands = format!("(NULL+{n})");
            if column.alias.is_none() {
                let name = match &bare(expr).kind {
                    ExprKind::Call(n, _) => self.questions.get(*n).cloned().unwrap_or_default(),
                    _ => self.sql[expr.span.clone()].to_owned(),
                };
                self.out.names.insert(stands.clone(), name);
            }
            parts.push((expr.span.clone(), stands));
        }
        first.unheard = !unheard.is_empty();
        let unit = self.unit(core.span.start, 0);
        let truth = if values.is_empty() {
            first.truth.clone()
        } else {
            emit::held(&first.truth, &unheard, values)
        };
        let rank = first.likened.take().map_or(String::new(), |(calls, rank)| {
            self.out.likened.extend(calls);
            format!(", {rank}")
        });
        let noted = format!("{rank}, {}", emit::row_number(unit, &truth));
        parts.push((last.span.end..last.span.end, noted));
        if core.distinct {
            parts.push((core.span.start..head.span.start, "SELECT ".to_owned()));
        }
        let ends = query.limit.iter().chain(&query.offset).map(|e| e.span.start).min();
        if let Some(at) = ends {
            let before = self.sql[..at].trim_end();
            let at = before.len().saturating_sub("limit".len());
            parts.push((at..query.span.end, String::new()));
        }
        self.out.first = Some(first);
    }

    /// Returns true if a condition references a result by its alias. The rule's statement evaluates
    /// the conditions among the results, where aliases are not visible.
    fn has_alias_in_conditions(&self, core: &Core, scope: &Scope<'_>) -> bool {
        let mut found = false;
        for expr in core.filter.iter().chain(&core.having) {
            self.resolver().each_in(expr, scope, false, &mut |e, at, _| {
                let ExprKind::Column { table: None, column } = &e.kind else { return };
                let named = |c: &ResultColumn| {
                    c.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(column))
                };
                found |= at.find(None, column).is_none() && core.columns.iter().any(named);
            });
        }
        found
    }

    /// Returns true if an aggregate in a subquery belongs to this SELECT.
    pub(in crate::blendsql) fn is_aggregate_from_within(
        &self,
        core: &Core,
        query: &Query,
        scope: &Scope<'_>,
    ) -> bool {
        !self.aggregates_from_within(core, query, scope).is_empty()
    }

    /// Returns the aggregates in subqueries that belong to this SELECT: all columns in their
    /// arguments, ORDER BY and FILTER are columns of this SELECT or an outer one.
    pub(in crate::blendsql) fn aggregates_from_within(
        &self,
        core: &Core,
        query: &Query,
        scope: &Scope<'_>,
    ) -> Vec<Expr> {
        let mut found = Vec::new();
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let exprs = columns.chain(&core.having).chain(query.order.iter().map(|o| &o.expr));
        for expr in exprs {
            self.resolver().each_in(expr, scope, false, &mut |e, at, _| {
                if at.depth <= scope.depth || !is_of_rows(e) {
                    return;
                }
                let (mut own, mut outer) = (false, false);
                // Includes the arguments, DISTINCT, ORDER BY and FILTER.
                e.each(&mut |e| {
                    if let ExprKind::Column { table, column } = &e.kind {
                        let depth = at.find(table.as_deref(), column).map(|f| f.depth);
                        own |= depth.is_some_and(|d| d > scope.depth);
                        outer |= depth.is_none_or(|d| d <= scope.depth);
                    }
                });
                if outer && !own {
                    found.push(e.clone());
                }
            });
        }
        found
    }
}

/// Returns the number of rows in a LIMIT or OFFSET; `None` if it is not an integer literal or is
/// negative.
fn number(expr: &Expr, sql: &str) -> Option<u64> {
    u64::try_from(read_integer(expr, sql)?).ok()
}

/// Returns true if a result column is evaluated before grouping: GROUP BY, HAVING or ON reference
/// it by alias or position.
fn is_early(column: &ResultColumn, at: usize, core: &Core, sql: &str) -> bool {
    let mut found = core.group.iter().any(|g| match resolve_term(g, Clause::Group, core, sql) {
        ResolvedTerm::Result(n) => n == at,
        ResolvedTerm::Unresolved => true,
        ResolvedTerm::Expression => false,
    });
    if let Some(alias) = &column.alias {
        let mut see = |e: &Expr| {
            found |= matches!(&e.kind, ExprKind::Column { table: None, column }
                if column.eq_ignore_ascii_case(alias));
        };
        core.group.iter().chain(&core.having).for_each(|e| e.each(&mut see));
        core.from.iter().for_each(|i| i.each(&mut see));
    }
    found
}
