//! Computes an upper bound on the number of values that a query asks about in all its passes. The
//! bound consists of statements that evaluate each call for every value it can receive, whatever
//! the answers are.
//!
//! For each SELECT with calls, one statement evaluates the calls over the SELECT's possible rows
//! (`possible`). A subquery in an expression is evaluated in place, once per outer row. AND, OR,
//! CASE, `iif` and `coalesce` skip an operand only if their operands without calls decide the
//! result, as in a pass. LIMIT, EXISTS and IN skip nothing here. A call whose argument is an answer
//! cannot be counted and is reported as unbounded.

use std::collections::BTreeMap;

mod possible_from;
mod possible_rows;
mod probe_expr;

use super::sql;
use crate::blendsql::aggregates::visit_own_exprs;
use crate::blendsql::emit::find_result_column;
use crate::blendsql::frame::{Frame, is_random_function, reads_table};
use crate::blendsql::plan::DemandPlan;
use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::barrier::{build_join_barrier, build_table_barrier};
use crate::blendsql::plan::call_site::CallSite;
use crate::blendsql::plan::condition::split_conjuncts;
use crate::blendsql::plan::statistics::Statistics;
use crate::blendsql::scope::{Field, Schema, Scope, Table};
use crate::blendsql::terms::{Clause, ResolvedTerm, resolve_term, resolve_term_expr};
use crate::blendsql::tree::{
    Body, Expr, ExprKind, ExprOperator, FromItem, FromSource, JoinKind, Query, SelectCore, Span,
};
use hqdl_values::sql::quote_name;
use possible_from::PossibleFrom;
use possible_rows::PossibleRowsBuilder;

/// Upper bound on the number of values that a query asks about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestBound {
    /// Statements that evaluate the query's calls for all reachable values.
    pub probes: Vec<Probe>,
    /// Indices of the calls without an upper bound, with the reasons.
    pub unknown: BTreeMap<usize, &'static str>,
    /// Whether the counted values share requests.
    pub batching: Batching,
}

/// Whether the values that a query asks about can share requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Batching {
    /// One pass asks about all values.
    All,
    /// One pass asks about all values, but rows that need different columns cannot share a request.
    Partial,
    /// Several passes ask about the values, because a part of the query waits for an answer.
    #[default]
    Never,
}

/// A statement that evaluates calls for all rows that can reach them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// SQL text.
    pub sql: String,
    /// Indices of the calls that the statement evaluates.
    pub calls: Vec<usize>,
}

/// Maximum length of a statement in bytes.
const MAX_STATEMENT_BYTES: usize = 8 << 20;

pub(in crate::blendsql::emit) const ANSWER_ARGUMENT: &str = "its argument is an answer";
pub(in crate::blendsql::emit) const CALL_IN_CONTEXT: &str = "its context contains calls";
const RECURSIVE_QUERY: &str = "it is in a recursive query";
const ROWS_FROM_ANSWERS: &str = "its rows come from answers";
const INNER_TABLES: &str = "it may be evaluated before tables in parentheses are joined";
// In a RIGHT or FULL JOIN, `SQLite` first evaluates the condition on the unmatched rows of the
// right table.
const OUTER_JOIN_ROWS: &str =
    "a RIGHT or FULL JOIN can evaluate it before the join has matched its rows";
// If all columns of a table are answers, a condition cannot reference a plain column of the table,
// so nothing delays the condition until the table is read.
const ANSWER_TABLE: &str = "it can be evaluated before a table whose columns are all answers";
const QUERY_TOO_LONG: &str = "the query is too long to count its rows";

/// Returns an upper bound on the number of values that a query asks about.
#[must_use]
pub fn compute_request_bound(
    sql: &str,
    query: &Query,
    lone: bool,
    sites: &[CallSite],
    schema: &dyn Schema,
    plan: &DemandPlan,
) -> RequestBound {
    let costs = Statistics::default();
    let analysis = Analysis::new(sql, sites, schema, &costs);
    let rows = PossibleRowsBuilder { sql, sites, analysis };
    let mut out = RequestBound::default();
    let mut probing = ProbeBuilder {
        rows,
        out: &mut out,
        is_single_pass: true,
        calls: Vec::new(),
        has_group_calls: false,
        plan,
    };
    let root = Frame::new_root();
    let frame = probing.rows.declare_ctes(query, &root);
    let with = frame.with_clause();
    probing.emit_probes(query, &frame, lone, &mut |probing, text| {
        let calls = std::mem::take(&mut probing.calls);
        if with.len() + text.len() > MAX_STATEMENT_BYTES {
            calls.iter().for_each(|n| probing.mark_unbounded(*n, QUERY_TOO_LONG));
        } else {
            probing.out.probes.push(Probe { sql: format!("{with}SELECT {text}"), calls });
        }
    });
    out.batching = match probing.is_single_pass {
        false => Batching::Never,
        true if asks_about_every_row(query) => Batching::All,
        true => Batching::Partial,
    };
    out
}

/// Returns true if every call is evaluated for every row of the query, because calls occur only in
/// result columns and in positions that are always evaluated.
fn asks_about_every_row(query: &Query) -> bool {
    fn is_always_evaluated(expr: &Expr) -> bool {
        let known = match &expr.kind {
            ExprKind::Function { name, filter, window, .. } => {
                let chooses = ["iif", "if", "coalesce", "ifnull", "nullif", "min", "max"];
                filter.is_none() && window.is_none() && !chooses.contains(&name.as_str())
            }
            ExprKind::Call(..)
            | ExprKind::Paren(_)
            | ExprKind::Column { .. }
            | ExprKind::Literal
            | ExprKind::Compare(..)
            | ExprKind::Cast(..)
            | ExprKind::Not(_) => true,
            _ => false,
        };
        !expr.has_call() || known && expr.children().0.into_iter().all(is_always_evaluated)
    }
    let Body::Core(core) = &query.body else { return false };
    let mut calls = 0;
    query.visit_exprs(&mut |e| calls += usize::from(matches!(e.kind, ExprKind::Call(..))));
    let mut results = 0;
    let columns: Vec<&Expr> = core.columns.iter().filter_map(|c| c.expr.as_ref()).collect();
    for column in &columns {
        column.visit_exprs(&mut |e| results += usize::from(matches!(e.kind, ExprKind::Call(..))));
    }
    query.limit.is_none()
        && core.group.is_empty()
        && calls == results
        && columns.into_iter().all(is_always_evaluated)
}

/// Context in which an expression is evaluated.
#[derive(Clone, Copy)]
pub(in crate::blendsql::emit) struct EvalPosition<'f> {
    pub(in crate::blendsql::emit) frame: &'f Frame<'f>,
    /// Whether the expression is evaluated once per group instead of once per row.
    pub(in crate::blendsql::emit) per_group: bool,
    /// Whether aggregates and window functions have exact values here.
    pub(in crate::blendsql::emit) exact_aggregates: bool,
    /// Whether the SELECT has groups.
    pub(in crate::blendsql::emit) is_grouped: bool,
}

pub(in crate::blendsql::emit) struct ProbeBuilder<'q, 'o> {
    pub(in crate::blendsql::emit) rows: PossibleRowsBuilder<'q>,
    pub(in crate::blendsql::emit) out: &'o mut RequestBound,
    /// Whether a single pass can ask about all values, because no call seen so far waits for an
    /// answer.
    pub(in crate::blendsql::emit) is_single_pass: bool,
    /// Indices of the calls that the current statement evaluates.
    pub(in crate::blendsql::emit) calls: Vec<usize>,
    /// Whether the current SELECT has calls whose arguments contain aggregates.
    pub(in crate::blendsql::emit) has_group_calls: bool,
    plan: &'q DemandPlan,
}

impl ProbeBuilder<'_, '_> {
    pub(in crate::blendsql::emit) fn mark_unbounded(&mut self, call: usize, why: &'static str) {
        self.out.unknown.entry(call).or_insert(why);
    }

    fn mark_all_unbounded(&mut self, expr: &Expr, why: &'static str) {
        expr.visit_exprs(&mut |e| {
            if let ExprKind::Call(n, _) = &e.kind {
                self.mark_unbounded(*n, why);
            }
        });
    }

    /// Calls `emit` with each piece of the SQL that evaluates the calls of a query. The caller
    /// declares the query's common table expressions for each piece.
    fn emit_probes(
        &mut self,
        query: &Query,
        frame: &Frame<'_>,
        lone: bool,
        emit: &mut dyn FnMut(&mut Self, String),
    ) {
        for cte in query.with.iter().filter(|cte| cte.query.has_call()) {
            if reads_table(&cte.query, &cte.name) {
                cte.query.visit_exprs(&mut |e| {
                    if let ExprKind::Call(n, _) = &e.kind {
                        self.mark_unbounded(*n, RECURSIVE_QUERY);
                    }
                });
                continue;
            }
            if let Some(text) = self.probe_query(&cte.query, frame) {
                emit(self, text);
            }
        }
        match &query.body {
            Body::Core(core) => self.probe_select(query, core, frame, lone, emit),
            Body::Compound(operator, left, right) => {
                // The answers can change which rows a LIMIT keeps.
                self.is_single_pass &= query.limit.is_none();
                // EXCEPT and INTERSECT skip the right side if the left side has no rows.
                self.is_single_pass &= operator.is_union() || !left.has_call();
                for side in [left, right] {
                    if let Some(text) = self.probe_query(side, frame) {
                        emit(self, text);
                    }
                }
                for term in query.order.iter().filter(|o| o.expr.has_call()) {
                    if find_result_column(self.rows.sql, &term.expr, query).is_none() {
                        self.mark_all_unbounded(&term.expr, ROWS_FROM_ANSWERS);
                    }
                }
            }
            Body::Values(exprs, _) => {
                let at = EvalPosition {
                    frame,
                    per_group: false,
                    exact_aggregates: false,
                    is_grouped: false,
                };
                let parts = exprs.iter().filter_map(|e| self.probe_expr(e, at)).collect();
                if let Some(text) = sum_terms(parts) {
                    emit(self, text);
                }
            }
        }
        for limit in query.limit.iter().chain(&query.offset).filter(|e| e.has_call()) {
            self.is_single_pass = false;
            let at = EvalPosition {
                frame,
                per_group: false,
                exact_aggregates: false,
                is_grouped: false,
            };
            if let Some(text) = self.probe_expr(limit, at) {
                emit(self, text);
            }
        }
    }

    /// Returns an SQL value that evaluates the calls of a query, or `None` if it has no call.
    pub(in crate::blendsql::emit) fn probe_query(
        &mut self,
        query: &Query,
        around: &Frame<'_>,
    ) -> Option<String> {
        if !query.has_call() {
            return None;
        }
        let frame = self.rows.declare_ctes(query, around);
        let mut parts = Vec::new();
        self.emit_probes(query, &frame, false, &mut |_, text| parts.push(text));
        let text = sum_terms(parts)?;
        let with = frame.with_clause();
        Some(if with.is_empty() { text } else { format!("({with}SELECT {text})") })
    }

    fn probe_select(
        &mut self,
        query: &Query,
        core: &SelectCore,
        around: &Frame<'_>,
        lone: bool,
        emit: &mut dyn FnMut(&mut Self, String),
    ) {
        for item in &core.from {
            self.probe_source(item, around, emit);
        }
        let values = || {
            let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
            let order = query.order.iter().map(|o| &o.expr);
            columns.chain(&core.group).chain(&core.windows).chain(order)
        };
        let Some(open) = self.rows.build_possible_from(core, around) else {
            let mut all: Vec<&Expr> = values().chain(&core.filter).chain(&core.having).collect();
            core.from.iter().for_each(|i| visit_join_conditions(i, 0, &mut |on, _| all.push(on)));
            all.into_iter().for_each(|e| self.mark_all_unbounded(e, ROWS_FROM_ANSWERS));
            self.mark_joins_by_name_unbounded(core);
            return;
        };
        self.update_single_pass(query, core, &open);
        let outer = core.from.iter().any(|i| i.join == JoinKind::Outer);
        let mut early: Vec<&Expr> = core.filter.iter().collect();
        core.from.iter().for_each(|i| visit_join_conditions(i, 0, &mut |on, _| early.push(on)));
        let unnamed = self.find_unawaited_tables(&early, &open.frame.scope);
        let replacements: Option<Vec<(Span, String)>> =
            unnamed.iter().map(|t| build_null_row(t, core)).collect();
        if outer || core.from.iter().any(can_be_flattened) || replacements.is_none() {
            let why = match (outer, &replacements) {
                (true, _) => OUTER_JOIN_ROWS,
                (false, None) => ANSWER_TABLE,
                (false, Some(_)) => INNER_TABLES,
            };
            early.iter().for_each(|e| self.mark_all_unbounded(e, why));
        }
        let grouped = self.rows.is_grouped(query, core, &open.frame);
        let windows = open.exact && core.windows.is_empty();
        let mut at = EvalPosition {
            frame: &open.frame,
            per_group: false,
            exact_aggregates: windows && !grouped,
            is_grouped: grouped,
        };
        let before = std::mem::take(&mut self.has_group_calls);
        let moved = self.probe_join_conditions(core, &open, at, outer, emit);
        // `SQLite` can evaluate the conditions before it reads a table that the conditions do not
        // reference.
        if let Some(replacements) = replacements.filter(|i| !i.is_empty()) {
            let parts = early.iter().filter_map(|e| self.probe_expr(e, at)).collect();
            for from in self.rows.write_from_variants(core, &open, core.from_end, &replacements) {
                let rows = format!("{from} WHERE {}", open.condition);
                if let Some(text) = sum_terms(Vec::clone(&parts)) {
                    emit(self, probe_rows_sql(&text, &rows));
                }
            }
        }
        self.probe_conditions_without_columns(core, &moved, at, emit);
        // An aggregate in a subquery can belong to this SELECT.
        let analysis = &self.rows.analysis;
        let within = analysis.find_outer_aggregates(core, query, &open.frame.scope);
        let rows = core.filter.iter().chain(moved).chain(values()).chain(&core.having);
        let rows = rows.chain(&within);
        let parts = rows.filter_map(|e| self.probe_expr(e, at)).collect();
        if let Some(text) = self.probe_used_rows(parts, core, at) {
            if core.from.is_empty() && lone {
                emit(self, text);
            } else {
                for from in self.rows.write_from_variants(core, &open, core.from_end, &[]) {
                    let rows = format!("{from} WHERE {}", open.condition);
                    emit(self, probe_rows_sql(&text, &rows));
                }
            }
        }
        if std::mem::replace(&mut self.has_group_calls, before) {
            at = EvalPosition { per_group: true, exact_aggregates: open.exact, ..at };
            let exprs = values().chain(&core.having).collect::<Vec<_>>();
            self.probe_groups(core, &open, at, &exprs, emit);
        }
    }

    /// Evaluates the join conditions that cannot move to WHERE, which come first. Returns the others.
    fn probe_join_conditions<'c>(
        &mut self,
        core: &'c SelectCore,
        open: &PossibleFrom<'_>,
        at: EvalPosition<'_>,
        outer: bool,
        emit: &mut dyn FnMut(&mut Self, String),
    ) -> Vec<&'c Expr> {
        let mut kept: Vec<(&Expr, usize)> = Vec::new();
        let mut moved: Vec<&Expr> = Vec::new();
        for item in &core.from {
            let movable = item.join == JoinKind::Inner && !outer;
            visit_join_conditions(item, 0, &mut |on, depth| {
                if movable && depth == 0 { moved.push(on) } else { kept.push((on, depth)) }
            });
        }
        for (on, depth) in kept {
            let aliases = Self::find_aliased_results(on, open);
            let mut parts: Vec<String> =
                aliases.iter().filter_map(|e| self.probe_expr(e, at)).collect();
            parts.extend(self.probe_expr(on, at));
            if let Some(text) = sum_terms(parts) {
                for from in self.rows.write_from_variants(core, open, on.span.end, &[]) {
                    emit(self, probe_rows_sql(&text, &format!("{from}{}", ")".repeat(depth))));
                }
            }
        }
        moved
    }

    /// Evaluates the conditions that do not read the SELECT's own tables. Without a column to wait
    /// for, `SQLite` evaluates them first.
    fn probe_conditions_without_columns(
        &mut self,
        core: &SelectCore,
        moved: &[&Expr],
        at: EvalPosition<'_>,
        emit: &mut dyn FnMut(&mut Self, String),
    ) {
        let scope = &at.frame.scope;
        if core.from.is_empty() || !build_join_barrier(scope).is_empty() {
            return;
        }
        let all = core.filter.iter().chain(moved.iter().copied()).flat_map(split_conjuncts);
        let first: Vec<&Expr> = all
            .filter(|e| e.has_call() && !self.rows.analysis.references_own_rows(e, scope))
            .collect();
        let parts = first.into_iter().filter_map(|e| self.probe_expr(e, at)).collect();
        if let Some(text) = sum_terms(parts) {
            emit(self, text);
        }
    }

    /// Returns SQL that evaluates the calls of a SELECT for the rows whose results are used.
    fn probe_used_rows(
        &self,
        parts: Vec<String>,
        core: &SelectCore,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        let text = sum_terms(parts)?;
        let select = self.plan.find_select(core.span.start).filter(|_| at.exact_aggregates);
        let Some(guard) = select.and_then(|s| s.value_guard.as_ref()) else { return Some(text) };
        let number = &self.rows.sql[guard.number.clone()];
        Some(sql::probe_of_first_rows_sql(number, guard.last, &text))
    }

    /// Marks the calls of a FROM clause as unbounded if the clause contains a join by name. Such a
    /// join compares answers before any inner condition has excluded a row.
    fn mark_joins_by_name_unbounded(&mut self, core: &SelectCore) {
        if core.from.iter().any(joins_by_name) {
            for item in &core.from {
                item.visit_exprs(&mut |e| self.mark_all_unbounded(e, INNER_TABLES));
            }
        }
    }

    /// Calls `emit` with the SQL that evaluates the calls about groups.
    fn probe_groups(
        &mut self,
        core: &SelectCore,
        open: &PossibleFrom<'_>,
        at: EvalPosition<'_>,
        exprs: &[&Expr],
        emit: &mut dyn FnMut(&mut Self, String),
    ) {
        let parts = exprs.iter().filter_map(|e| self.probe_expr(e, at)).collect();
        let Some(text) = sum_terms(parts) else { return };
        let group: Vec<String> =
            core.group.iter().map(|g| self.group_term_sql(g, core, open)).collect();
        let by = if group.is_empty() {
            String::new()
        } else {
            format!(" GROUP BY {}", group.join(", "))
        };
        for from in self.rows.write_from_variants(core, open, core.from_end, &[]) {
            let rows = format!("{from} WHERE {}{by}", open.condition);
            emit(self, probe_rows_sql(&text, &rows));
        }
    }

    /// Returns the SQL of the expression that a GROUP BY term refers to.
    fn group_term_sql(&self, term: &Expr, core: &SelectCore, open: &PossibleFrom<'_>) -> String {
        match resolve_term(term, Clause::Group, core, self.rows.sql) {
            ResolvedTerm::Result(n) => match core.columns.get(n).and_then(|c| c.expr.as_ref()) {
                Some(expr) => format!("({})", self.rows.expr_sql(expr, &open.frame)),
                None => self.rows.expr_sql(term, &open.frame),
            },
            _ => self.rows.expr_sql(term, &open.frame),
        }
    }

    /// Calls `emit` with the SQL that evaluates the calls in the subqueries of a FROM item.
    fn probe_source(
        &mut self,
        item: &FromItem,
        around: &Frame<'_>,
        emit: &mut dyn FnMut(&mut Self, String),
    ) {
        match &item.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.mark_all_unbounded(a, ROWS_FROM_ANSWERS));
            }
            FromSource::Query(query) => {
                if let Some(text) = self.probe_query(query, around) {
                    emit(self, text);
                }
            }
            FromSource::Join(items) => {
                items.iter().for_each(|i| self.probe_source(i, around, emit));
            }
        }
    }

    /// Returns the result columns that contain calls and that a condition references by alias.
    fn find_aliased_results(condition: &Expr, open: &PossibleFrom<'_>) -> Vec<Expr> {
        let mut named = Vec::new();
        visit_own_exprs(condition, &mut |e| {
            if let ExprKind::Column { table: None, column } = &e.kind
                && open.frame.scope.find_column(None, column).is_none()
            {
                named.extend(open.frame.find_alias(column).filter(|e| e.has_call()).cloned());
            }
        });
        named
    }

    /// Returns true if an ORDER BY term depends on an answer or is random, directly or through an
    /// alias or a position.
    fn is_undetermined_term(
        &self,
        term: &Expr,
        core: &SelectCore,
        open: &PossibleFrom<'_>,
    ) -> bool {
        let live = |e: &Expr| {
            let mut drawn = false;
            visit_own_exprs(e, &mut |e| {
                drawn |=
                    matches!(&e.kind, ExprKind::Function { name, .. } if is_random_function(name));
            });
            drawn || self.rows.analysis.depends_on_call(e, &open.frame.scope)
        };
        let Some(expr) = resolve_term_expr(term, Clause::Order, core, self.rows.sql) else {
            return true;
        };
        let mut named = false;
        visit_own_exprs(expr, &mut |e| {
            if let ExprKind::Column { table: None, column } = &e.kind {
                named |= open.frame.find_alias(column).is_some_and(live);
            }
        });
        live(expr) || named
    }

    /// Returns the tables that conditions with calls do not wait for: all columns of such a table
    /// are answers, and no condition references it.
    fn find_unawaited_tables<'s>(
        &self,
        conditions: &[&Expr],
        scope: &'s Scope<'_>,
    ) -> Vec<&'s Table> {
        let mut named = Vec::new();
        for condition in conditions.iter().flat_map(|c| split_conjuncts(c)).filter(|c| c.has_call())
        {
            self.rows.resolver().visit_expr(condition, scope, true, &mut |e, at, _| {
                if let ExprKind::Column { table, column } = &e.kind
                    && let Some(hit) = at.find_column(table.as_deref(), column)
                {
                    named.push(std::ptr::from_ref(hit.table));
                }
            });
        }
        let waits = |t: &&Table| {
            named.contains(&std::ptr::from_ref(*t))
                || !build_table_barrier(std::slice::from_ref(*t), scope).is_empty()
        };
        let has_calls = conditions.iter().any(|c| c.has_call());
        let tables = scope.tables.iter().filter(|_| has_calls && scope.tables.len() > 1);
        tables.filter(|t| !waits(t)).collect()
    }

    /// Clears `is_single_pass` if a part of a SELECT waits for an answer of the same SELECT.
    fn update_single_pass(&mut self, query: &Query, core: &SelectCore, open: &PossibleFrom<'_>) {
        let count = |e: &Expr| self.rows.analysis.count_predicates(e, &open.frame.scope);
        let mut filters: usize = core.filter.iter().map(count).sum();
        core.from
            .iter()
            .for_each(|i| visit_join_conditions(i, 0, &mut |on, _| filters += count(on)));
        let having: usize = core.having.iter().map(count).sum();
        let live = |e: &Expr| self.rows.analysis.depends_on_call(e, &open.frame.scope);
        let mut values = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let values = values.any(live)
            || core.group.iter().chain(&core.windows).any(live)
            || query.order.iter().any(|o| live(&o.expr));
        let stages = usize::from(!open.exact_tables) + filters + having + usize::from(values);
        // The answers can change which rows a LIMIT keeps, and the row from which a SELECT with
        // `min` or `max` takes its other columns. Later passes then reach new values.
        let chosen = query.limit.is_some()
            && query.order.iter().any(|o| self.is_undetermined_term(&o.expr, core, open));
        // An outer join counts a row as unmatched while its matches are undecided.
        let mut partners = 0;
        let outer = core.from.iter().filter(|i| i.join != JoinKind::Inner);
        outer.for_each(|i| visit_join_conditions(i, 0, &mut |on, _| partners += count(on)));
        let chosen = chosen || query.limit.is_some() && partners > 0;
        let mut of_rows = query.limit.is_some()
            && (core.distinct && values || core.windows.iter().chain(&core.group).any(live));
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let order = query.order.iter().map(|o| &o.expr);
        let mut on: Vec<&Expr> = Vec::new();
        core.from
            .iter()
            .for_each(|i| visit_join_conditions(i, 0, &mut |condition, _| on.push(condition)));
        let rows = columns.chain(&core.filter).chain(&core.having).chain(order);
        for expr in rows.chain(&core.group).chain(&core.windows).chain(on) {
            visit_own_exprs(expr, &mut |e| match &e.kind {
                ExprKind::Function { name, args, filter, window, .. } => {
                    let first = matches!(name.as_str(), "min" | "max") && window.is_none();
                    of_rows |= first && args.iter().any(live);
                    of_rows |= window.is_some() && query.limit.is_some() && live(e);
                    // The calls in a FILTER are answered before the aggregate's arguments are
                    // evaluated.
                    of_rows |= filter.as_deref().is_some_and(live) && args.iter().any(live);
                    let some = matches!(name.as_str(), "iif" | "if" | "coalesce" | "ifnull");
                    of_rows |= some && args.iter().filter(|a| live(a)).count() > 1;
                }
                // `SQLite` stops comparing rows, lists and ranges once the result is known.
                ExprKind::Operation(ExprOperator::Row | ExprOperator::Between, parts)
                | ExprKind::In { list: parts, .. } => {
                    of_rows |= parts.iter().skip(1).any(live);
                }
                ExprKind::Case { .. } | ExprKind::And(_) | ExprKind::Or(_) => {
                    of_rows |= e.children().0.into_iter().filter(|part| live(part)).count() > 1;
                }
                _ => {}
            });
        }
        if stages > 1 || chosen || of_rows {
            self.is_single_pass = false;
        }
    }
}

/// Returns true if `SQLite` can flatten a source that the query treats as one table: parenthesized
/// tables with an alias, or a view whose text is not part of the query.
fn can_be_flattened(item: &FromItem) -> bool {
    match &item.source {
        FromSource::Join(items) => item.name.is_some() || items.iter().any(can_be_flattened),
        FromSource::Table { span, .. } => span.is_empty(),
        _ => false,
    }
}

/// Returns a row of NULLs that replaces a table of the FROM clause, with the byte range to replace.
/// Returns `None` if the table cannot be replaced.
fn build_null_row(table: &Table, core: &SelectCore) -> Option<(Span, String)> {
    let nulls = |f: &Field| format!("NULL AS {}", quote_name(&f.name));
    let row: Vec<String> = table.fields.as_ref()?.iter().map(nulls).collect();
    let row = format!("SELECT {}", row.join(", "));
    let name = table.name.as_deref()?;
    let item = core.from.iter().find(|i| i.name.as_deref() == Some(name))?;
    match &item.source {
        FromSource::Table { span, .. } if !span.is_empty() => {
            Some((span.clone(), format!("({row}) AS {}", quote_name(name))))
        }
        FromSource::Query(query) => Some((query.span.clone(), row)),
        _ => None,
    }
}

/// Returns true if a source is joined by USING or NATURAL.
fn joins_by_name(item: &FromItem) -> bool {
    let inner = match &item.source {
        FromSource::Join(items) => items.as_slice(),
        _ => &[],
    };
    item.natural || !item.using.is_empty() || inner.iter().any(joins_by_name)
}

/// Returns SQL that evaluates an expression for all rows of a FROM and WHERE clause.
fn probe_rows_sql(text: &str, rows: &str) -> String {
    // The aggregate's argument is a column of the inner query, so the aggregate belongs to this
    // SELECT.
    format!("(SELECT total(hq_p) FROM (SELECT {text} AS hq_p{rows}))")
}

/// Returns the sum of all parts as SQL, with as little nesting as possible; `None` if there are no
/// parts.
pub(in crate::blendsql::emit) fn sum_terms(mut parts: Vec<String>) -> Option<String> {
    while parts.len() > 1 {
        parts = parts
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => format!("({a} + {b})"),
                one => one.concat(),
            })
            .collect();
    }
    parts.pop()
}

/// Visits the join conditions of a FROM item with the number of parentheses around each.
fn visit_join_conditions<'e>(
    item: &'e FromItem,
    depth: usize,
    see: &mut dyn FnMut(&'e Expr, usize),
) {
    if let FromSource::Join(items) = &item.source {
        items.iter().for_each(|i| visit_join_conditions(i, depth + 1, see));
    }
    if let Some(on) = &item.on {
        see(on, depth);
    }
}
