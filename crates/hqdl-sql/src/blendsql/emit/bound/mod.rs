//! The most that a query asks, over all its passes: statements that reach every
//! value which it may reach, whatever the answers are.
//!
//! For each SELECT with calls a statement evaluates these over its
//! possible rows ([`possible`]): a subquery in an expression where it stands,
//! for the rows around it; AND, OR, CASE, `iif` and `coalesce` only as far as
//! plain parts leave them open, which the passes evaluate first, too. LIMIT, EXISTS
//! and IN stop nothing here. What has an answer for its argument cannot be counted,
//! and is told.

use std::collections::BTreeMap;

mod joined;
mod possible;
mod reach;

use crate::blendsql::aggregates::visit_own_exprs;
use crate::blendsql::emit::result_column_of;
use crate::blendsql::frame::{Frame, is_random, reads_table};
use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::condition::split_conjuncts;
use crate::blendsql::rewrite::{CallSite, Statistics};
use crate::blendsql::rules::conditions_last::{join_barrier, join_barrier_of};
use crate::blendsql::scope::{Field, Schema, Scope, Table};
use crate::blendsql::terms::{Clause, ResolvedTerm, resolve_term, term_expr};
use crate::blendsql::tree::{
    Body, Expr, ExprKind, ExprOperator, FromItem, FromSource, JoinKind, Query, SelectCore, Span,
};
use hqdl_values::sql::quote_name;
use joined::OpenFrom;
use possible::Possible;

/// The most that a query may ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestBound {
    /// What reaches it.
    pub probes: Vec<Probe>,
    /// Calls that cannot be bounded, by number, and why.
    pub unknown: BTreeMap<usize, &'static str>,
    /// Whether what is counted is asked together.
    pub batching: Batching,
}

/// Whether what may be asked is asked together, as many as share a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Batching {
    /// In one pass, each of it.
    All,
    /// In one pass, or a part of it: rows that want other columns share no request.
    Partial,
    /// In several passes: something waits for an answer.
    #[default]
    Never,
}

/// A statement that evaluates calls for all rows that may reach them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// As SQL.
    pub sql: String,
    /// These calls.
    pub calls: Vec<usize>,
}

/// Bytes of a statement, at most.
const LONG: usize = 8 << 20;

pub(in crate::blendsql::emit) const ANSWER: &str = "its argument is an answer";
pub(in crate::blendsql::emit) const CONTEXT: &str = "its context contains calls";
const RECURSION: &str = "it is in a recursive query";
const ROWS: &str = "its rows come from answers";
const BENEATH: &str = "it may be evaluated before tables in parentheses are joined";
// SQLite looks for rows of the right table without partners by their conditions first.
const PARTNERS: &str = "a RIGHT or FULL JOIN can evaluate it before the join has matched its rows";
// Nothing that a condition could name makes it wait for such a table.
const UNNAMED: &str = "it can be evaluated before a table whose columns are all answers";
const LENGTH: &str = "the query is too long to count its rows";

/// Finds the most that a query may ask.
#[must_use]
pub fn request_bound(
    sql: &str,
    query: &Query,
    lone: bool,
    sites: &[CallSite],
    schema: &dyn Schema,
) -> RequestBound {
    let costs = Statistics::default();
    let analysis = Analysis::new(sql, sites, schema, &costs);
    let rows = Possible { sql, sites, analysis };
    let mut out = RequestBound::default();
    let mut probing =
        Probing { rows, out: &mut out, once: true, calls: Vec::new(), of_groups: false };
    let root = Frame::root();
    let frame = probing.rows.ctes(query, &root);
    let with = frame.with();
    probing.tables(query, &frame, lone, &mut |probing, text| {
        let calls = std::mem::take(&mut probing.calls);
        if with.len() + text.len() > LONG {
            calls.iter().for_each(|n| probing.unknown(*n, LENGTH));
        } else {
            probing.out.probes.push(Probe { sql: format!("{with}SELECT {text}"), calls });
        }
    });
    out.batching = match probing.once {
        false => Batching::Never,
        true if is_all_asked(query) => Batching::All,
        true => Batching::Partial,
    };
    out
}

/// Whether each call of a query is evaluated for each of its rows: they stand in its
/// results alone, and there where nothing decides whether they are evaluated.
fn is_all_asked(query: &Query) -> bool {
    fn always(expr: &Expr) -> bool {
        let known = match &expr.kind {
            ExprKind::Function { name, filter, window, .. } => {
                let chooses = ["iif", "if", "coalesce", "ifnull", "nullif", "min", "max"];
                filter.is_none() && !window && !chooses.contains(&name.as_str())
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
        !expr.has_call() || known && expr.children().0.into_iter().all(always)
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
        && columns.into_iter().all(always)
}

/// Where an expression is evaluated.
#[derive(Clone, Copy)]
pub(in crate::blendsql::emit) struct At<'f> {
    pub(in crate::blendsql::emit) frame: &'f Frame<'f>,
    /// Over groups, not over the rows that they are made of.
    pub(in crate::blendsql::emit) groups: bool,
    /// Functions of many rows can be told here.
    pub(in crate::blendsql::emit) of_rows: bool,
    /// The SELECT makes groups.
    pub(in crate::blendsql::emit) grouped: bool,
}

pub(in crate::blendsql::emit) struct Probing<'q, 'o> {
    pub(in crate::blendsql::emit) rows: Possible<'q>,
    pub(in crate::blendsql::emit) out: &'o mut RequestBound,
    /// Nothing waits for the answer to anything so far.
    pub(in crate::blendsql::emit) once: bool,
    /// Calls that the statement at hand evaluates.
    pub(in crate::blendsql::emit) calls: Vec<usize>,
    /// The SELECT at hand has calls that are asked about groups.
    pub(in crate::blendsql::emit) of_groups: bool,
}

impl Probing<'_, '_> {
    pub(in crate::blendsql::emit) fn unknown(&mut self, call: usize, why: &'static str) {
        self.out.unknown.entry(call).or_insert(why);
    }

    fn all_unknown(&mut self, expr: &Expr, why: &'static str) {
        expr.visit_exprs(&mut |e| {
            if let ExprKind::Call(n, _) = &e.kind {
                self.unknown(*n, why);
            }
        });
    }

    /// Gives what reaches the calls of a query to `give`, piece by piece: values
    /// where its common table expressions are declared.
    fn tables(
        &mut self,
        query: &Query,
        frame: &Frame<'_>,
        lone: bool,
        give: &mut dyn FnMut(&mut Self, String),
    ) {
        for cte in query.with.iter().filter(|cte| cte.query.has_call()) {
            if reads_table(&cte.query, &cte.name) {
                cte.query.visit_exprs(&mut |e| {
                    if let ExprKind::Call(n, _) = &e.kind {
                        self.unknown(*n, RECURSION);
                    }
                });
                continue;
            }
            if let Some(text) = self.query(&cte.query, frame) {
                give(self, text);
            }
        }
        match &query.body {
            Body::Core(core) => self.core(query, core, frame, lone, give),
            Body::Compound(operator, left, right) => {
                // Which rows LIMIT leaves may be another thing once answers are there.
                self.once &= query.limit.is_none();
                // EXCEPT and INTERSECT may end before the right side where the left has no rows.
                self.once &= operator.is_union() || !left.has_call();
                for side in [left, right] {
                    if let Some(text) = self.query(side, frame) {
                        give(self, text);
                    }
                }
                for term in query.order.iter().filter(|o| o.expr.has_call()) {
                    if result_column_of(self.rows.sql, &term.expr, query).is_none() {
                        self.all_unknown(&term.expr, ROWS);
                    }
                }
            }
            Body::Values(exprs, _) => {
                let at = At { frame, groups: false, of_rows: false, grouped: false };
                let parts = exprs.iter().filter_map(|e| self.reach(e, at)).collect();
                if let Some(text) = sum(parts) {
                    give(self, text);
                }
            }
        }
        for limit in query.limit.iter().chain(&query.offset).filter(|e| e.has_call()) {
            self.once = false;
            let at = At { frame, groups: false, of_rows: false, grouped: false };
            if let Some(text) = self.reach(limit, at) {
                give(self, text);
            }
        }
    }

    /// What reaches the calls of a query, as a value where it stands.
    pub(in crate::blendsql::emit) fn query(
        &mut self,
        query: &Query,
        around: &Frame<'_>,
    ) -> Option<String> {
        if !query.has_call() {
            return None;
        }
        let frame = self.rows.ctes(query, around);
        let mut parts = Vec::new();
        self.tables(query, &frame, false, &mut |_, text| parts.push(text));
        let text = sum(parts)?;
        let with = frame.with();
        Some(if with.is_empty() { text } else { format!("({with}SELECT {text})") })
    }

    fn core(
        &mut self,
        query: &Query,
        core: &SelectCore,
        around: &Frame<'_>,
        lone: bool,
        give: &mut dyn FnMut(&mut Self, String),
    ) {
        for item in &core.from {
            self.beneath(item, around, give);
        }
        let values = || {
            let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
            let order = query.order.iter().map(|o| &o.expr);
            columns.chain(&core.group).chain(&core.windows).chain(order)
        };
        let Some(open) = self.rows.open(core, around) else {
            let mut all: Vec<&Expr> = values().chain(&core.filter).chain(&core.having).collect();
            core.from.iter().for_each(|i| conditions(i, 0, &mut |on, _| all.push(on)));
            all.into_iter().for_each(|e| self.all_unknown(e, ROWS));
            // Answers are compared for rows that conditions beneath have not been held to.
            if core.from.iter().any(joins_by_name) {
                core.from.iter().for_each(|i| i.visit_exprs(&mut |e| self.all_unknown(e, BENEATH)));
            }
            return;
        };
        self.waits(query, core, &open);
        let outer = core.from.iter().any(|i| i.join == JoinKind::Outer);
        let mut early: Vec<&Expr> = core.filter.iter().collect();
        core.from.iter().for_each(|i| conditions(i, 0, &mut |on, _| early.push(on)));
        let unnamed = self.waits_not_for(&early, &open.frame.scope);
        let instead: Option<Vec<(Span, String)>> = unnamed.iter().map(|t| a_row(t, core)).collect();
        if outer || core.from.iter().any(is_taken_apart) || instead.is_none() {
            let why = match (outer, &instead) {
                (true, _) => PARTNERS,
                (false, None) => UNNAMED,
                (false, Some(_)) => BENEATH,
            };
            early.iter().for_each(|e| self.all_unknown(e, why));
        }
        let grouped = self.rows.is_grouped(query, core, &open.frame);
        let windows = open.exact && core.windows.is_empty();
        let mut at =
            At { frame: &open.frame, groups: false, of_rows: windows && !grouped, grouped };
        let before = std::mem::take(&mut self.of_groups);
        // Conditions of joins that stay there are evaluated before all else.
        let mut kept: Vec<(&Expr, usize)> = Vec::new();
        let mut moved: Vec<&Expr> = Vec::new();
        for item in &core.from {
            let movable = item.join == JoinKind::Inner && !outer;
            conditions(item, 0, &mut |on, depth| {
                if movable && depth == 0 { moved.push(on) } else { kept.push((on, depth)) }
            });
        }
        for (on, depth) in kept {
            let aliases = Self::aliases(on, &open);
            let mut parts: Vec<String> = aliases.iter().filter_map(|e| self.reach(e, at)).collect();
            parts.extend(self.reach(on, at));
            if let Some(text) = sum(parts) {
                for from in self.rows.from(core, &open, on.span.end, &[]) {
                    give(self, over(&text, &format!("{from}{}", ")".repeat(depth))));
                }
            }
        }
        // Whether there is a row of what no condition can name may be looked at later.
        if let Some(instead) = instead.filter(|i| !i.is_empty()) {
            let parts = early.iter().filter_map(|e| self.reach(e, at)).collect();
            for from in self.rows.from(core, &open, core.from_end, &instead) {
                let rows = format!("{from} WHERE {}", open.condition);
                sum(Vec::clone(&parts)).into_iter().for_each(|p| give(self, over(&p, &rows)));
            }
        }
        // What names no table is evaluated first, where no column can tell it to wait.
        if !core.from.is_empty() && join_barrier(&open.frame.scope).is_empty() {
            let all = core.filter.iter().chain(moved.iter().copied()).flat_map(split_conjuncts);
            let scope = &open.frame.scope;
            let first: Vec<&Expr> = all
                .filter(|e| e.has_call() && !self.rows.analysis.references_own_rows(e, scope))
                .collect();
            if let Some(text) = sum(first.into_iter().filter_map(|e| self.reach(e, at)).collect()) {
                give(self, text);
            }
        }
        // An aggregate in a subquery may be one of this SELECT, of all its rows.
        let analysis = &self.rows.analysis;
        let within = analysis.outer_aggregates(core, query, &open.frame.scope);
        let rows = core.filter.iter().chain(moved).chain(values()).chain(&core.having);
        let rows = rows.chain(&within);
        let parts = rows.filter_map(|e| self.reach(e, at)).collect();
        if let Some(text) = sum(parts) {
            if core.from.is_empty() && lone {
                give(self, text);
            } else {
                for from in self.rows.from(core, &open, core.from_end, &[]) {
                    give(self, over(&text, &format!("{from} WHERE {}", open.condition)));
                }
            }
        }
        if std::mem::replace(&mut self.of_groups, before) {
            at = At { groups: true, of_rows: open.exact, ..at };
            let parts = values().chain(&core.having).filter_map(|e| self.reach(e, at)).collect();
            let Some(text) = sum(parts) else { return };
            let group: Vec<String> =
                core.group.iter().map(|g| self.group(g, core, &open)).collect();
            let by = if group.is_empty() {
                String::new()
            } else {
                format!(" GROUP BY {}", group.join(", "))
            };
            for from in self.rows.from(core, &open, core.from_end, &[]) {
                give(self, over(&text, &format!("{from} WHERE {}{by}", open.condition)));
            }
        }
    }

    /// What a term of GROUP BY stands for.
    fn group(&self, term: &Expr, core: &SelectCore, open: &OpenFrom<'_>) -> String {
        match resolve_term(term, Clause::Group, core, self.rows.sql) {
            ResolvedTerm::Result(n) => match core.columns.get(n).and_then(|c| c.expr.as_ref()) {
                Some(expr) => format!("({})", self.rows.text(expr, &open.frame)),
                None => self.rows.text(term, &open.frame),
            },
            _ => self.rows.text(term, &open.frame),
        }
    }

    /// Queries that a FROM clause reads.
    fn beneath(
        &mut self,
        item: &FromItem,
        around: &Frame<'_>,
        give: &mut dyn FnMut(&mut Self, String),
    ) {
        match &item.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.all_unknown(a, ROWS));
            }
            FromSource::Query(query) => {
                if let Some(text) = self.query(query, around) {
                    give(self, text);
                }
            }
            FromSource::Join(items) => items.iter().for_each(|i| self.beneath(i, around, give)),
        }
    }

    /// Result columns with calls that a condition names.
    fn aliases(condition: &Expr, open: &OpenFrom<'_>) -> Vec<Expr> {
        let mut named = Vec::new();
        visit_own_exprs(condition, &mut |e| {
            if let ExprKind::Column { table: None, column } = &e.kind
                && open.frame.scope.find_column(None, column).is_none()
            {
                named.extend(open.frame.alias(column).filter(|e| e.has_call()).cloned());
            }
        });
        named
    }

    /// Whether a term of ORDER BY hangs on an answer or is drawn by lot, by what it is the
    /// name or the number of, too.
    fn lives(&self, term: &Expr, core: &SelectCore, open: &OpenFrom<'_>) -> bool {
        let live = |e: &Expr| {
            let mut drawn = false;
            visit_own_exprs(e, &mut |e| {
                drawn |= matches!(&e.kind, ExprKind::Function { name, .. } if is_random(name));
            });
            drawn || self.rows.analysis.depends_on_call(e, &open.frame.scope)
        };
        let Some(expr) = term_expr(term, Clause::Order, core, self.rows.sql) else { return true };
        let mut named = false;
        visit_own_exprs(expr, &mut |e| {
            if let ExprKind::Column { table: None, column } = &e.kind {
                named |= open.frame.alias(column).is_some_and(live);
            }
        });
        live(expr) || named
    }

    /// Tables whose rows conditions with calls do not wait for: these have no column
    /// without answers, and no condition is about them.
    fn waits_not_for<'s>(&self, conditions: &[&Expr], scope: &'s Scope<'_>) -> Vec<&'s Table> {
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
                || !join_barrier_of(std::slice::from_ref(*t), scope).is_empty()
        };
        let has_calls = conditions.iter().any(|c| c.has_call());
        let tables = scope.tables.iter().filter(|_| has_calls && scope.tables.len() > 1);
        tables.filter(|t| !waits(t)).collect()
    }

    /// Whether anything of a SELECT waits for an answer of it.
    fn waits(&mut self, query: &Query, core: &SelectCore, open: &OpenFrom<'_>) {
        let count = |e: &Expr| self.rows.analysis.count_predicates(e, &open.frame.scope);
        let mut filters: usize = core.filter.iter().map(count).sum();
        core.from.iter().for_each(|i| conditions(i, 0, &mut |on, _| filters += count(on)));
        let having: usize = core.having.iter().map(count).sum();
        let live = |e: &Expr| self.rows.analysis.depends_on_call(e, &open.frame.scope);
        let mut values = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let values = values.any(live)
            || core.group.iter().chain(&core.windows).any(live)
            || query.order.iter().any(|o| live(&o.expr));
        let stages = usize::from(!open.exact_tables) + filters + having + usize::from(values);
        // Which rows LIMIT leaves, or which row min and max take the other columns of,
        // is another thing once the answers are there: what is reached then is new.
        let chosen =
            query.limit.is_some() && query.order.iter().any(|o| self.lives(&o.expr, core, open));
        // A row without its partners stands for itself while these are open, and counts.
        let mut partners = 0;
        let outer = core.from.iter().filter(|i| i.join != JoinKind::Inner);
        outer.for_each(|i| conditions(i, 0, &mut |on, _| partners += count(on)));
        let chosen = chosen || query.limit.is_some() && partners > 0;
        let mut of_rows = query.limit.is_some()
            && (core.distinct && values || core.windows.iter().chain(&core.group).any(live));
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let order = query.order.iter().map(|o| &o.expr);
        let mut on: Vec<&Expr> = Vec::new();
        core.from.iter().for_each(|i| conditions(i, 0, &mut |condition, _| on.push(condition)));
        let rows = columns.chain(&core.filter).chain(&core.having).chain(order);
        for expr in rows.chain(&core.group).chain(&core.windows).chain(on) {
            visit_own_exprs(expr, &mut |e| match &e.kind {
                ExprKind::Function { name, args, filter, window } => {
                    let first = matches!(name.as_str(), "min" | "max") && !window;
                    of_rows |= first && args.iter().any(live);
                    of_rows |= *window && query.limit.is_some() && live(e);
                    // What a FILTER leaves is reached when its answers are there.
                    of_rows |= filter.as_deref().is_some_and(live) && args.iter().any(live);
                    let some = matches!(name.as_str(), "iif" | "if" | "coalesce" | "ifnull");
                    of_rows |= some && args.iter().filter(|a| live(a)).count() > 1;
                }
                // SQLite compares rows, lists and both ends of a range as far as it must.
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
            self.once = false;
        }
    }
}

/// Whether `SQLite` may take apart what a FROM clause reads there: tables in
/// parentheses that go by one name, or a view that was not found in the text.
fn is_taken_apart(item: &FromItem) -> bool {
    match &item.source {
        FromSource::Join(items) => item.name.is_some() || items.iter().any(is_taken_apart),
        FromSource::Table { span, .. } => span.is_empty(),
        _ => false,
    }
}

/// A row of NULLs in the place of a table, where it stands by itself in a FROM clause.
fn a_row(table: &Table, core: &SelectCore) -> Option<(Span, String)> {
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

/// Whether a FROM clause joins there by USING or NATURAL.
fn joins_by_name(item: &FromItem) -> bool {
    let inner = match &item.source {
        FromSource::Join(items) => items.as_slice(),
        _ => &[],
    };
    item.natural || !item.using.is_empty() || inner.iter().any(joins_by_name)
}

/// Evaluates something for all rows of a FROM clause and what follows it.
fn over(text: &str, rows: &str) -> String {
    // The aggregate is of a column, so that it is of this SELECT.
    format!("(SELECT total(hq_p) FROM (SELECT {text} AS hq_p{rows}))")
}

/// All of some numbers are evaluated; no deeper than it must be.
pub(in crate::blendsql::emit) fn sum(mut parts: Vec<String>) -> Option<String> {
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

/// Shows the conditions of joins, and how many parentheses are around each.
fn conditions<'e>(item: &'e FromItem, depth: usize, see: &mut dyn FnMut(&'e Expr, usize)) {
    if let FromSource::Join(items) = &item.source {
        items.iter().for_each(|i| conditions(i, depth + 1, see));
    }
    if let Some(on) = &item.on {
        see(on, depth);
    }
}
