//! From a query with calls to SQL that `SQLite` runs: each call becomes a scalar
//! function, and around the calls stands what keeps demand small. Only the
//! bytes of calls, and of the conditions they stand in, are replaced; the rest
//! of the text passes through as it was written.
//!
//! # What stands around calls
//!
//! * Conditions with calls are evaluated last, for the rows of the innermost
//!   loop: they go into a scalar subquery at the end of WHERE that names every
//!   table of the FROM clause (`SQLite` runs plain terms first, and a term as
//!   soon as all it names is there).
//! * AND, OR, NOT become CASE in the order of [`Costs`]: plain parts first, then
//!   calls, each only when those before leave the row open. `truth` gives 1, 0
//!   or 2: a call in it is pending.
//! * A *gate* stands before the calls of a SELECT that needs only some rows:
//!   LIMIT without ORDER BY, EXISTS, DISTINCT, ORDER BY … LIMIT. The functions
//!   behind it decide which rows are asked about now.

use std::collections::HashMap;

use super::parse::Parsed;
use super::scope::{Resolver, Schema, Scope, bare};
use super::tree::{Body, Core, Expr, ExprKind, FromItem, Join, Query, Source, Span};
use super::truth;

/// How a call is written in the SQL that is run.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// What stands before the function.
    pub before: String,
    /// The function's name.
    pub function: &'static str,
    /// Its arguments, when they are not those of the call.
    pub keys: Option<Vec<String>>,
    /// What stands after the function.
    pub after: String,
    /// A query among its arguments stands for its rows, not for its value.
    pub rows: bool,
    /// It is asked about pairs: every row must be there before it is.
    pub pairs: bool,
    /// The list it gives is a row of so many values.
    pub row: Option<u32>,
}

/// What was learnt of conditions and calls.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// Of a condition, by where it stands: how often it held.
    pub seen: HashMap<usize, Seen>,
    /// Of a call, by its number: different values for each row.
    pub spread: HashMap<usize, f64>,
}

/// What was seen of a condition.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Rows where it held.
    pub held: u64,
    /// Rows where it did not.
    pub failed: u64,
}

impl Seen {
    /// The share of rows where it holds, guessed at one half before anything is seen.
    #[must_use]
    pub fn share(self) -> f64 {
        (self.held as f64 + 0.5) / (self.held as f64 + self.failed as f64 + 1.0)
    }
}

/// Which rows of a SELECT its calls are needed for.
#[derive(Debug, Clone, PartialEq)]
pub enum Need {
    /// All that its plain conditions leave.
    All,
    /// The first so many that pass.
    First(u64),
    /// The first so many by an order: for each term, whether descending and
    /// whether NULLs come first.
    /// Of the first so many, values are not needed for as many as OFFSET skips.
    Ranked(u64, u64, Vec<(bool, bool)>),
}

/// What decides which rows of one SELECT are asked about.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// What is needed.
    pub need: Need,
    /// How many values of the rows around it tell its runs apart.
    pub outer: usize,
    /// How many values are DISTINCT: a row whose values have passed is not needed.
    pub distinct: Option<usize>,
    /// Conditions with calls behind it.
    pub conditions: usize,
}

/// A condition with calls.
#[derive(Debug, Clone, Default)]
pub struct Leaf {
    /// Calls in subqueries of it, which run once for many rows.
    pub inner_calls: Vec<usize>,
}

/// A rewritten query.
#[derive(Debug, Clone, Default)]
pub struct Rewritten {
    /// What is run.
    pub sql: String,
    /// Its gates.
    pub gates: Vec<Gate>,
    /// Its conditions with calls, by where they stand.
    pub leaves: HashMap<usize, Leaf>,
    /// The gate each call stands behind.
    pub gate_of: HashMap<usize, usize>,
    /// Names of result columns: what `SQLite` calls them, and what the query does.
    pub names: HashMap<String, String>,
}

/// The state of one rewriting.
pub struct Rewriter<'q> {
    /// The query's text.
    pub sql: &'q str,
    /// How each call is written.
    pub sites: &'q [Site],
    /// The database.
    pub schema: &'q dyn Schema,
    /// What is known of conditions.
    pub costs: &'q Costs,
    /// Whether an order by text is `SQLite`'s plain one everywhere.
    pub plain_order: bool,
    /// Aliases of result columns with calls, in the SELECT at hand.
    aliases: Vec<String>,
    questions: Vec<String>,
    out: Rewritten,
}

/// What a query stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// All rows are read.
    Rows,
    /// Whether there is a row.
    Exists,
    /// The first row.
    Scalar,
    /// Which values there are.
    Set,
}

/// Functions that make a SELECT one of groups.
const AGGREGATES: [&str; 17] = [
    "avg",
    "count",
    "group_concat",
    "string_agg",
    "sum",
    "total",
    "json_group_array",
    "json_group_object",
    "jsonb_group_array",
    "jsonb_group_object",
    "median",
    "percentile",
    "percentile_cont",
    "percentile_disc",
    "hq_rows",
    "max",
    "min",
];

impl<'q> Rewriter<'q> {
    /// Prepares a rewriting.
    #[must_use]
    pub fn new(sql: &'q str, sites: &'q [Site], schema: &'q dyn Schema, costs: &'q Costs) -> Self {
        let out = Rewritten::default();
        Self {
            sql,
            sites,
            schema,
            costs,
            plain_order: true,
            aliases: Vec::new(),
            questions: Vec::new(),
            out,
        }
    }

    /// Rewrites a query.
    #[must_use]
    pub fn run(mut self, parsed: &Parsed) -> Rewritten {
        let query = &parsed.query;
        self.questions = parsed.calls.iter().map(|c| c.question.clone()).collect();
        let root = Scope::within(None);
        let text = self.query(query, &root, Role::Rows, true);
        self.out.sql = if parsed.lone {
            format!("SELECT {text}")
        } else {
            format!("{}{text}{}", &self.sql[..query.span.start], &self.sql[query.span.end..])
        };
        self.out
    }

    pub(super) fn note_leaf(&mut self, at: usize, leaf: Leaf) {
        self.out.leaves.insert(at, leaf);
    }

    /// Whether an expression's value depends on a call: one in it, one that a
    /// result column's alias stands for, or one below that yields a column.
    pub(super) fn bears(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().each_in(expr, scope, true, &mut |e, at, _| match &e.kind {
            ExprKind::Call(..) => found = true,
            ExprKind::Column { table, column } => {
                found |= match at.find(table.as_deref(), column) {
                    Some(hit) => hit.field.live,
                    None => {
                        table.is_none()
                            && self.aliases.iter().any(|a| a.eq_ignore_ascii_case(column))
                    }
                };
            }
            _ => {}
        });
        found
    }

    fn resolver(&self) -> Resolver<'q> {
        Resolver { schema: self.schema }
    }

    /// The text of a span, its parts replaced.
    pub(super) fn compose(&self, span: &Span, mut parts: Vec<(Span, String)>) -> String {
        parts.sort_by_key(|(s, _)| (s.start, s.end));
        let mut text = String::new();
        let mut at = span.start;
        for (part, new) in parts {
            if part.start < at || part.end > span.end {
                continue;
            }
            text.push_str(&self.sql[at..part.start]);
            text.push_str(&new);
            at = part.end;
        }
        text.push_str(&self.sql[at..span.end]);
        text
    }

    fn query(&mut self, query: &Query, parent: &Scope<'_>, role: Role, whole: bool) -> String {
        if !query.has_call() {
            return self.sql[query.span.clone()].to_owned();
        }
        let scope = self.resolver().ctes(query, Some(parent));
        let mut parts = Vec::new();
        for cte in &query.with {
            let text = self.query(&cte.query, &scope, Role::Rows, true);
            parts.push((cte.query.span.clone(), text));
        }
        match &query.body {
            Body::Core(core) => self.core(query, core, &scope, role, whole, &mut parts),
            Body::Compound(left, right) => {
                for side in [left, right] {
                    let text = self.query(side, &scope, Role::Rows, false);
                    parts.push((side.span.clone(), text));
                }
            }
            Body::Values(exprs) => {
                for expr in exprs {
                    self.value_part(expr, &scope, None, &mut parts);
                }
            }
        }
        if !matches!(query.body, Body::Core(_)) {
            for expr in query.order.iter().map(|o| &o.expr).chain(&query.limit).chain(&query.offset)
            {
                self.value_part(expr, &scope, None, &mut parts);
            }
        }
        self.compose(&query.span, parts)
    }

    fn value_part(
        &mut self,
        expr: &Expr,
        scope: &Scope<'_>,
        gate: Option<&str>,
        parts: &mut Vec<(Span, String)>,
    ) {
        if expr.has_call() {
            let text = self.value(expr, scope, gate);
            parts.push((expr.span.clone(), text));
        }
    }

    /// One SELECT.
    fn core(
        &mut self,
        query: &Query,
        core: &Core,
        around: &Scope<'_>,
        role: Role,
        whole: bool,
        parts: &mut Vec<(Span, String)>,
    ) {
        let scope = self.resolver().core(core, around);
        for item in &core.from {
            self.from_item(item, around, &scope, parts);
        }
        // Conditions of WHERE, and of inner joins, which mean the same there.
        let movable = core.from.iter().all(|i| i.join != Join::Outer);
        let aliases: Vec<&str> = core
            .columns
            .iter()
            .filter(|c| c.expr.as_ref().is_some_and(Expr::has_call))
            .filter_map(|c| c.alias.as_deref())
            .filter(|a| scope.tables.iter().all(|t| !has_field(t, a)))
            .collect();
        let (mut plain, mut calls): (Vec<&Expr>, Vec<&Expr>) = (Vec::new(), Vec::new());
        let outer_aliases =
            std::mem::replace(&mut self.aliases, aliases.iter().map(|a| (*a).to_owned()).collect());
        let me: &Self = self;
        let split = |expr: &'_ Expr| -> (Vec<Expr>, Vec<Expr>) {
            conjuncts(expr).into_iter().cloned().partition(|e| !me.bears(e, &scope))
        };
        let (where_plain, where_calls) = core.filter.as_ref().map(split).unwrap_or_default();
        plain.extend(&where_plain);
        calls.extend(&where_calls);
        let mut joined: Vec<(&FromItem, Vec<Expr>, Vec<Expr>)> = Vec::new();
        for item in core.from.iter().filter(|i| i.join == Join::Inner && movable) {
            if let Some(on) = item.on.as_ref().filter(|on| me.bears(on, &scope)) {
                let (p, c) = split(on);
                joined.push((item, p, c));
            }
        }
        for (_, _, c) in &joined {
            calls.extend(c);
        }
        let gate = self.gate(query, core, &scope, around, role, whole, &calls);
        let fence: Vec<String> =
            scope.tables.iter().filter_map(super::scope::Table::any_column).collect();
        let gate_text = gate.as_ref().map(|(n, values)| {
            let all: Vec<&str> = values.iter().chain(&fence).map(String::as_str).collect();
            let comma = if all.is_empty() { "" } else { ", " };
            format!("hq_gate({n}{comma}{})", all.join(", "))
        });
        // Conditions on grouping columns wait for the plain part of HAVING.
        let (late, calls): (Vec<&Expr>, Vec<&Expr>) = match &core.having {
            Some(having) if conjuncts(having).iter().any(|h| !self.bears(h, &scope)) => {
                calls.into_iter().partition(|c| self.is_of_group(c, core, &scope))
            }
            _ => (Vec::new(), calls),
        };
        let mut combined = None;
        let mut registered = None;
        if calls.is_empty()
            && let (Some((n, _)), Some(gate_text)) = (&gate, &gate_text)
        {
            // The rows themselves are counted; where there are groups, these.
            let text = format!("hq_done({n}, {gate_text})");
            if core.group.is_empty() { combined = Some(text) } else { registered = Some(text) }
        }
        if !calls.is_empty() {
            let text = truth::all(self, &calls, &scope);
            let text = match &gate_text {
                Some(gate_text) => {
                    let n = gate.as_ref().map_or(0, |(n, _)| *n);
                    format!("(SELECT hq_done({n}, CASE WHEN {gate_text} THEN {text} ELSE 0 END))")
                }
                None if fence.len() > 1 => {
                    let fence = fence.join(", ");
                    format!("(SELECT CASE WHEN hq_row({fence}) THEN {text} ELSE 0 END) = 1")
                }
                None => format!("(SELECT {text}) = 1"),
            };
            combined = Some(text);
        }
        let rest = |me: &Self, plain: &[Expr], more: Option<String>| {
            let mut all: Vec<String> =
                plain.iter().map(|e| format!("({})", &me.sql[e.span.clone()])).collect();
            all.extend(more);
            if all.is_empty() { "1".to_owned() } else { all.join(" AND ") }
        };
        if let Some(filter) = &core.filter
            && (!where_calls.is_empty() || combined.is_some())
        {
            let text = rest(self, &where_plain, combined.take());
            parts.push((filter.span.clone(), text));
        }
        if core.filter.is_none() && joined.is_empty() {
            if let Some(text) = combined.take() {
                parts.push((core.from_end..core.from_end, format!(" WHERE {text}")));
            }
        }
        for (item, plain, _) in &joined {
            if let Some(on) = &item.on {
                let text = rest(self, plain, combined.take());
                parts.push((on.span.clone(), text));
            }
        }
        for item in &core.from {
            let kept = item.join != Join::Inner || !movable;
            if let Some(on) = item.on.as_ref().filter(|on| kept && self.bears(on, &scope)) {
                let (plain, calls): (Vec<Expr>, Vec<Expr>) =
                    conjuncts(on).into_iter().cloned().partition(|e| !self.bears(e, &scope));
                let calls: Vec<&Expr> = calls.iter().collect();
                let text = format!("(SELECT {}) = 1", truth::all(self, &calls, &scope));
                let text = rest(self, &plain, Some(text));
                parts.push((on.span.clone(), text));
            }
        }
        if let Some(having) = &core.having
            && (self.bears(having, &scope) || !late.is_empty())
        {
            let mut all = conjuncts(having);
            all.extend(&late);
            let text = truth::all(self, &all, &scope);
            let more = registered.take().map(|r| format!(" AND {r}")).unwrap_or_default();
            parts.push((having.span.clone(), format!("{text} = 1{more}")));
        }
        if let Some(text) = registered {
            parts.push(match &core.having {
                Some(having) => (having.span.end..having.span.end, format!(" AND {text}")),
                None => (core.group_end..core.group_end, format!(" HAVING {text}")),
            });
        }
        // Where only some rows are needed, values of others are not asked for.
        let for_values = gate
            .as_ref()
            .filter(|(n, _)| self.out.gates[*n].need != Need::All)
            .map(|(n, _)| format!("hq_row({n})"));
        let values = core
            .columns
            .iter()
            .filter_map(|c| c.expr.as_ref())
            .chain(&core.group)
            .chain(query.order.iter().map(|o| &o.expr))
            .chain(&query.limit)
            .chain(&query.offset);
        for expr in values {
            self.value_part(expr, &scope, for_values.as_deref(), parts);
        }
        for expr in
            core.columns.iter().filter(|c| c.alias.is_none()).filter_map(|c| c.expr.as_ref())
        {
            if let Some((_, text)) = parts.iter().find(|(span, _)| *span == expr.span) {
                let name = match &bare(expr).kind {
                    ExprKind::Call(n, _) => self.questions.get(*n).cloned().unwrap_or_default(),
                    _ => self.sql[expr.span.clone()].to_owned(),
                };
                self.out.names.insert(text.clone(), name);
            }
        }
        self.aliases = outer_aliases;
    }

    fn from_item(
        &mut self,
        item: &FromItem,
        around: &Scope<'_>,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        match &item.source {
            Source::Table { .. } => {}
            Source::Function { args, .. } => {
                args.iter().for_each(|a| self.value_part(a, scope, None, parts));
            }
            Source::Query(query) => {
                if query.has_call() {
                    let text = self.query(query, around, Role::Rows, true);
                    parts.push((query.span.clone(), text));
                }
            }
            Source::Join(items) => {
                for inner in items {
                    self.from_item(inner, around, scope, parts);
                    if let Some(on) = inner.on.as_ref().filter(|on| on.has_call()) {
                        let text = truth::all(self, &[on], scope);
                        parts.push((on.span.clone(), format!("(SELECT {text}) = 1")));
                    }
                }
            }
        }
    }

    /// Whether a condition depends on nothing but grouping columns.
    fn is_of_group(&self, expr: &Expr, core: &Core, scope: &Scope<'_>) -> bool {
        if core.group.is_empty() {
            return false;
        }
        let place = |table: Option<&str>, column: &str, scope: &Scope<'_>| {
            scope.find(table, column).map(|f| (f.depth, f.table.name.clone(), f.field.name.clone()))
        };
        let grouped: Vec<_> = core
            .group
            .iter()
            .filter_map(|g| match &bare(g).kind {
                ExprKind::Column { table, column } => place(table.as_deref(), column, scope),
                _ => None,
            })
            .collect();
        let mut all = true;
        self.resolver().each_in(expr, scope, true, &mut |e, at, _| match &e.kind {
            ExprKind::Column { table, column } => {
                let found = place(table.as_deref(), column, at);
                all &= match found {
                    Some(found) => found.0 != scope.depth || grouped.contains(&found),
                    None => matches!(column.to_ascii_lowercase().as_str(), "true" | "false"),
                };
            }
            ExprKind::Exists(_) | ExprKind::Scalar(_) => all = false,
            ExprKind::In { query: Some(_), .. } => all = false,
            _ => {}
        });
        all
    }

    /// The gate of a SELECT, with the values it is given; `None` when every row
    /// is needed and there is nothing to learn.
    #[allow(clippy::too_many_arguments)]
    fn gate(
        &mut self,
        query: &Query,
        core: &Core,
        scope: &Scope<'_>,
        around: &Scope<'_>,
        role: Role,
        whole: bool,
        calls: &[&Expr],
    ) -> Option<(usize, Vec<String>)> {
        let value_calls = core.columns.iter().any(|c| c.expr.as_ref().is_some_and(Expr::has_call));
        let ordered_by_call = query.order.iter().any(|o| {
            self.bears(&o.expr, scope) || {
                position(&o.expr, self.sql).is_some_and(|n| {
                    core.columns.get(n).and_then(|c| c.expr.as_ref()).is_some_and(Expr::has_call)
                })
            }
        });
        // Pairs are made of all rows, so no row may wait.
        let mut pairs = false;
        calls.iter().for_each(|c| own_calls(c, &mut |n| pairs |= self.sites[n].pairs));
        if pairs {
            return None;
        }
        let conditions: usize = calls.iter().map(|c| truth::leaves(self, c, scope)).sum();
        let grouped = !core.group.is_empty() || is_aggregate(core, query);
        let windowed = has_window(core, query);
        let stops = !grouped && !windowed && whole;
        let rows = match (number(query.limit.as_ref(), self.sql), role) {
            (Some(limit), _) => Some(match &query.offset {
                None => limit,
                Some(offset) => limit + number(Some(offset), self.sql).unwrap_or(0),
            }),
            (None, Role::Exists | Role::Scalar) if query.limit.is_none() => Some(1),
            _ => None,
        }
        .filter(|_| query.offset.is_none() || number(query.offset.as_ref(), self.sql).is_some());
        let skipped = number(query.offset.as_ref(), self.sql).unwrap_or(0);
        let plain_results = !core.columns.is_empty()
            && !core.columns.iter().filter_map(|c| c.expr.as_ref()).any(|e| self.bears(e, scope));
        let order: Option<Vec<String>> =
            query.order.iter().map(|o| self.order_key(&o.expr, core, scope)).collect();
        let need = match rows {
            Some(k) if stops && query.order.is_empty() => Need::First(k),
            Some(k)
                if whole
                    && !windowed
                    && !query.order.is_empty()
                    && !ordered_by_call
                    && self.plain_order
                    && order.is_some()
                    && (!grouped || calls.is_empty())
                    && (!core.distinct || plain_results) =>
            {
                let how = |o: &super::tree::OrderTerm| {
                    (o.descending, o.nulls_first.unwrap_or(!o.descending))
                };
                Need::Ranked(k, skipped, query.order.iter().map(how).collect())
            }
            _ => Need::All,
        };
        let as_set = core.distinct || role == Role::Set;
        let distinct: Option<Vec<String>> = (as_set && stops && plain_results && !calls.is_empty()
            || core.distinct && matches!(need, Need::Ranked(..)))
        .then(|| self.result_values(core, scope))
        .flatten();
        if need == Need::All && distinct.is_none() && conditions < 2 {
            return None;
        }
        if matches!(need, Need::Ranked(..)) && core.distinct && distinct.is_none() {
            return None;
        }
        if calls.is_empty() && !value_calls || core.from.is_empty() {
            return None;
        }
        // Rows come one after another, and as many as are needed.
        if calls.is_empty() && matches!(need, Need::First(_)) && !core.distinct {
            return None;
        }
        // Without groups there is one row for all.
        if grouped && core.group.is_empty() && calls.is_empty() {
            return None;
        }
        // What tells the runs of a correlated query apart.
        let mut outer: Vec<String> = Vec::new();
        self.resolver().each(query, around, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind
                && let Some(found) = at.find(table.as_deref(), column)
                && found.depth < around.depth
            {
                let text = name_text(e, self.sql);
                if !outer.contains(&text) {
                    outer.push(text);
                }
            }
        });
        let order = match &need {
            Need::Ranked(..) => order.unwrap_or_default(),
            _ => Vec::new(),
        };
        let gate = Gate {
            need,
            outer: outer.len(),
            distinct: distinct.as_ref().map(Vec::len),
            conditions,
        };
        let values = outer.into_iter().chain(distinct.into_iter().flatten()).chain(order).collect();
        let n = self.out.gates.len();
        // Calls are told apart from those of subqueries, which have gates of their own.
        for call in calls.iter().copied().chain(core.columns.iter().filter_map(|c| c.expr.as_ref()))
        {
            own_calls(call, &mut |at| {
                self.out.gate_of.entry(at).or_insert(n);
            });
        }
        self.out.gates.push(gate);
        Some((n, values))
    }

    /// The text that an ORDER BY term means, where it stands in SELECT or WHERE.
    fn order_key(&self, expr: &Expr, core: &Core, scope: &Scope<'_>) -> Option<String> {
        let of = |n: usize| {
            let column = core.columns.get(n)?;
            column.expr.as_ref().map(|e| format!("({})", &self.sql[e.span.clone()]))
        };
        if let Some(n) = position(expr, self.sql) {
            return of(n);
        }
        if let ExprKind::Column { table: None, column } = &bare(expr).kind {
            let alias = core
                .columns
                .iter()
                .position(|c| c.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(column)));
            if let Some(n) = alias {
                return of(n);
            }
        }
        let _ = scope;
        Some(format!("({})", &self.sql[expr.span.clone()]))
    }

    /// The result columns of a SELECT as values; `None` when a star hides them.
    fn result_values(&self, core: &Core, scope: &Scope<'_>) -> Option<Vec<String>> {
        let mut values = Vec::new();
        for column in &core.columns {
            if let Some(expr) = &column.expr {
                values.push(format!("({})", &self.sql[expr.span.clone()]));
                continue;
            }
            for table in &scope.tables {
                let name = table.name.as_ref()?;
                if column.star_of.as_ref().is_some_and(|of| !of.eq_ignore_ascii_case(name)) {
                    continue;
                }
                for field in table.fields.as_ref()? {
                    values.push(format!(
                        "{}.{}",
                        crate::sql::name(name),
                        crate::sql::name(&field.name)
                    ));
                }
            }
        }
        Some(values)
    }

    /// An expression whose value counts.
    pub(super) fn value(&mut self, expr: &Expr, scope: &Scope<'_>, gate: Option<&str>) -> String {
        if !expr.has_call() {
            return self.sql[expr.span.clone()].to_owned();
        }
        match &expr.kind {
            ExprKind::Call(n, args) => self.call(*n, args, scope, gate),
            ExprKind::And(_) | ExprKind::Or(_) => truth::value(self, expr, scope),
            ExprKind::Exists(query) => self.subquery(expr, query, scope, Role::Exists),
            ExprKind::Scalar(query) => self.subquery(expr, query, scope, Role::Scalar),
            ExprKind::In { operand, list, query } => {
                let mut parts = Vec::new();
                for part in std::iter::once(operand.as_ref()).chain(list) {
                    self.value_part(part, scope, gate, &mut parts);
                }
                if let Some(query) = query {
                    let text = self.query(query, scope, Role::Set, true);
                    parts.push((query.span.clone(), text));
                }
                self.compose(&expr.span, parts)
            }
            ExprKind::Case { operand: None, whens, otherwise } => {
                let mut parts = Vec::new();
                for (when, then) in whens {
                    if when.has_call() {
                        let text = truth::all(self, &[when], scope);
                        parts.push((when.span.clone(), format!("hq_note({text}) = 1")));
                        let then_text = self.value(then, scope, gate);
                        parts.push((
                            then.span.clone(),
                            format!("{then_text} WHEN hq_noted() = 2 THEN NULL"),
                        ));
                    } else {
                        self.value_part(then, scope, gate, &mut parts);
                    }
                }
                if let Some(otherwise) = otherwise {
                    self.value_part(otherwise, scope, gate, &mut parts);
                }
                self.compose(&expr.span, parts)
            }
            ExprKind::Function { filter: Some(filter), args, .. } => {
                let mut parts = Vec::new();
                args.iter().for_each(|a| self.value_part(a, scope, gate, &mut parts));
                if filter.has_call() {
                    let text = truth::all(self, &[filter], scope);
                    parts.push((filter.span.clone(), format!("{text} = 1")));
                }
                self.compose(&expr.span, parts)
            }
            _ => {
                let (exprs, _) = expr.inside();
                let mut parts = Vec::new();
                for inner in exprs {
                    self.value_part(inner, scope, gate, &mut parts);
                }
                self.compose(&expr.span, parts)
            }
        }
    }

    fn subquery(&mut self, expr: &Expr, query: &Query, scope: &Scope<'_>, role: Role) -> String {
        let text = self.query(query, scope, role, true);
        self.compose(&expr.span, vec![(query.span.clone(), text)])
    }

    fn call(&mut self, n: usize, args: &[Expr], scope: &Scope<'_>, gate: Option<&str>) -> String {
        let site = &self.sites[n];
        let nested = args.iter().any(Expr::has_call);
        let keys: Vec<String> = match &site.keys {
            Some(keys) => keys.clone(),
            None => args.iter().map(|a| self.argument(a, site.rows, scope)).collect(),
        };
        let mark = if nested { "hq_mark()" } else { "0" };
        let gate = gate.unwrap_or("1");
        let comma = if keys.is_empty() { "" } else { ", " };
        let text = format!("{}({n}, {mark}, {gate}{comma}{})", site.function, keys.join(", "));
        if let Some(width) = site.row {
            let values: Vec<String> =
                (0..width).map(|at| format!("json_extract({text}, '$[{at}]')")).collect();
            return format!("({})", values.join(", "));
        }
        format!("{}{text}{}", site.before, site.after)
    }

    fn argument(&mut self, arg: &Expr, rows: bool, scope: &Scope<'_>) -> String {
        match &arg.kind {
            ExprKind::Column { .. } => name_text(arg, self.sql),
            ExprKind::Scalar(query) if rows => self.context(query, scope),
            ExprKind::Scalar(query) => {
                format!("({})", self.query(query, scope, Role::Scalar, true))
            }
            _ => format!("({})", self.value(arg, scope, None)),
        }
    }

    /// The rows of a query as one value.
    fn context(&mut self, query: &Query, scope: &Scope<'_>) -> String {
        let outputs = self.resolver().outputs(query, scope);
        let text = self.query(query, scope, Role::Rows, true);
        match outputs {
            Some(fields) => {
                let names: Vec<String> = (1..=fields.len()).map(|n| format!("c{n}")).collect();
                let titles: Vec<String> =
                    fields.iter().map(|f| crate::sql::text(&f.name)).collect();
                format!(
                    "(WITH hq_context({0}) AS ({text}) SELECT hq_rows(json_array({1}), {0}) FROM hq_context)",
                    names.join(", "),
                    titles.join(", ")
                )
            }
            None => format!("({text})"),
        }
    }
}

/// A name as SQL: as it was written, but for the old spelling `'t::c'`.
#[must_use]
pub fn name_text(expr: &Expr, sql: &str) -> String {
    let text = &sql[expr.span.clone()];
    match &expr.kind {
        ExprKind::Column { table: Some(table), column } if text.contains("::") => {
            format!("{}.{}", crate::sql::name(table), crate::sql::name(column))
        }
        _ => text.to_owned(),
    }
}

fn has_field(table: &super::scope::Table, name: &str) -> bool {
    table.fields.as_ref().is_none_or(|f| f.iter().any(|f| f.name.eq_ignore_ascii_case(name)))
}

/// The parts of a condition that must all hold.
pub(super) fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        ExprKind::And(all) => all.iter().flat_map(conjuncts).collect(),
        ExprKind::Paren(inner) if matches!(bare(inner).kind, ExprKind::And(_)) => conjuncts(inner),
        _ => vec![expr],
    }
}

/// Calls in an expression that are not in a subquery of it.
fn own_calls(expr: &Expr, see: &mut dyn FnMut(usize)) {
    if let ExprKind::Call(n, _) = &expr.kind {
        see(*n);
    }
    let (exprs, _) = expr.inside();
    exprs.into_iter().for_each(|e| own_calls(e, see));
}

/// The value of a whole number in the text.
fn number(expr: Option<&Expr>, sql: &str) -> Option<u64> {
    let expr = bare(expr?);
    matches!(expr.kind, ExprKind::Literal).then(|| sql[expr.span.clone()].trim().parse().ok())?
}

/// The result column, from 0, that a whole number in ORDER BY means.
fn position(expr: &Expr, sql: &str) -> Option<usize> {
    usize::try_from(number(Some(expr), sql)?).ok()?.checked_sub(1)
}

fn is_aggregate(core: &Core, query: &Query) -> bool {
    let mut found = core.having.is_some();
    let mut see = |e: &Expr| {
        own(e, &mut |e| {
            if let ExprKind::Function { name, window: false, args, .. } = &e.kind {
                let one = !matches!(name.as_str(), "max" | "min") || args.len() == 1;
                found |= one && AGGREGATES.contains(&name.as_str());
            }
        });
    };
    core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut see);
    query.order.iter().for_each(|o| see(&o.expr));
    found
}

fn has_window(core: &Core, query: &Query) -> bool {
    let mut found = false;
    let mut see = |e: &Expr| {
        own(e, &mut |e| found |= matches!(&e.kind, ExprKind::Function { window: true, .. }));
    };
    core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut see);
    query.order.iter().for_each(|o| see(&o.expr));
    found
}

/// Shows an expression and what is inside it, without subqueries, to `see`.
fn own(expr: &Expr, see: &mut dyn FnMut(&Expr)) {
    see(expr);
    let (exprs, _) = expr.inside();
    exprs.into_iter().for_each(|e| own(e, see));
}
