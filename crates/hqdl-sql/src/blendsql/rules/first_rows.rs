//! The rule of the first rows: where a query needs only so many of its rows,
//! only those are asked about.
//!
//! Precondition: the rows are those of the outermost SELECT, or of one within that
//! stands by itself (below); it is no compound and has no window; LIMIT and OFFSET are numbers, or it is DISTINCT; no call
//! decides the order, and of a DISTINCT one no call is a result and every term of
//! the order is; with groups, no call decides which groups there are; no call in a
//! condition is asked of all rows together, and none names a result by its alias.
//!
//! What it does: another statement yields the rows that the plain conditions
//! leave, complete and in their final order, each with what is known of it: it
//! does not pass, it may, it does and a value of it is open, or all is known. The
//! rows of the answer are settled once as many as are needed pass and none before
//! them is open. What is asked for is what is open in this prefix. Nothing here
//! depends on how often or in which order `SQLite` evaluates a condition, and ties
//! are cut once: the rows that were yielded are the answer. What a subquery beneath the
//! FROM clause computes once, for the first row, is waited for by all that name it. Where
//! there is no order, some rows are read on before anything is asked: what is known may
//! settle the answer.
//!
//! A SELECT within stands by itself if it has a LIMIT, names no row around it, nothing is
//! drawn by lot, what it reads has no calls, its rows are no groups and each tells for
//! itself what it waits for. It is run so when a pass reaches it and waits for it. From
//! then on its rows are *settled*: where it stands, a row that is not known to pass fails,
//! and no value is waited for. That leaves the rows that are known to be the first, since
//! what comes before them is known, too; where there is no order any rows that pass do.

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
    /// Whether the rule holds of the outermost SELECT; `calls` are its conditions with
    /// calls. One within, of which it holds, is noted.
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
            // A group's number or alias stands for a result.
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
        // A star has the columns of all tables.
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

    /// Whether a SELECT within gives the same rows where it is run alone.
    fn stands_by_itself(
        &self,
        query: &Query,
        core: &Core,
        scope: &Scope<'_>,
        first: &FirstRows,
    ) -> Result<(), Refused> {
        // SQLite takes conditions around into what has no LIMIT: fewer rows are reached.
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

    /// Whether a query hangs on the rows around it; where that cannot be told, it may.
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

    /// Writes a SELECT as the statement that yields its rows with what is known of
    /// them: no DISTINCT and no LIMIT, a last column for the number of what the row
    /// is noted as, and values with calls only there.
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

    /// Whether a condition names a result by its alias: among the results, where
    /// the statement of the rule has its conditions, there are no aliases.
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

    /// Whether an aggregate in a subquery is one of this SELECT.
    pub(in crate::blendsql) fn is_aggregate_from_within(
        &self,
        core: &Core,
        query: &Query,
        scope: &Scope<'_>,
    ) -> bool {
        !self.aggregates_from_within(core, query, scope).is_empty()
    }

    /// Returns the aggregates in subqueries that are aggregates of this SELECT: the columns of
    /// their arguments, ORDER BY and FILTER are all of here.
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
                // Arguments, DISTINCT, ORDER BY and FILTER: all are inside.
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

/// Returns the number of rows that a LIMIT or OFFSET names; `None` if it is no integer
/// of the text, or negative.
fn number(expr: &Expr, sql: &str) -> Option<u64> {
    u64::try_from(read_integer(expr, sql)?).ok()
}

/// Whether a result column is evaluated before its group is there: its alias or
/// its number stands in GROUP BY, HAVING or ON.
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
