//! Rewrites a query with calls into SQL that `SQLite` can run. Each call becomes a scalar function,
//! and the surrounding SQL keeps the number of requests small. Only the bytes of calls and of the
//! conditions that contain them are replaced; the rest of the text is unchanged.
//!
//! # SQL around calls
//!
//! * Conditions with calls are evaluated last, for the rows of the innermost loop. They move into a
//!   scalar subquery at the end of WHERE that references every table of the FROM clause. `SQLite`
//!   evaluates terms without subqueries first, and each term as soon as all referenced tables are
//!   available.
//! * AND, OR, NOT become CASE expressions, ordered by [`Costs`]: first the parts without calls,
//!   then the calls, each only if the parts before it do not decide the row. A truth is 1, 0, or 2
//!   if a call in it is pending.
//! * A condition records its pending calls per row (`hq_close`), EXISTS and IN record those of all
//!   their rows together (`hq_run`).
//! * If the query needs only its first rows, a different statement returns the rows one by one
//!   ([`FirstRows`]).

use std::collections::HashMap;

use super::emit;
use super::frame::draws;
use super::ingredients::Subject;
use super::parse::Parsed;
use super::plan::{FirstRows, InnerRows, QueryPlan};
use super::runtime::Function;
use super::scope::{CalledRows, Resolver, Schema, Scope, bare};
use super::tree::{Body, Expr, ExprKind, Query, Span};

/// SQL for a call in the rewritten query.
#[derive(Debug, Clone, Default)]
pub struct CallSite {
    /// SQL before the answer.
    pub before: String,
    /// Arguments as SQL; `None` for the arguments in the query.
    pub keys: Option<Vec<String>>,
    /// SQL after the answer.
    pub after: String,
    /// Subject of the call.
    pub subject: Subject,
    /// Number of columns if the answer is a list that becomes a row value.
    pub row: Option<u32>,
}

impl CallSite {
    /// Returns all values of a column as a single argument: the rows of a context.
    #[must_use]
    pub fn all_of(table: &str, column: &str) -> String {
        let (of, titles) = (hqdl_values::sql::name(table), hqdl_values::sql::text(column));
        // Qualify the column: `SQLite` reads an unknown quoted name as a string.
        let rows = format!("SELECT {of}.{} FROM {of}", hqdl_values::sql::name(column));
        emit::context(Function::Rows, &context_name(table), &[titles], &rows)
    }

    /// Returns the aggregate that converts the query in argument `n` to one value. Returns `None`
    /// if the argument is a scalar subquery.
    pub(super) fn context(&self, n: usize) -> Option<Function> {
        match self.subject {
            Subject::Rows => Some(Function::Rows),
            // Arguments after the value asked about are context.
            Subject::Value if n > 0 => Some(Function::Values),
            _ => None,
        }
    }
}

/// Statistics of conditions and calls, from earlier answers.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// Outcomes of each condition, by its offset in the text.
    pub seen: HashMap<usize, Seen>,
    /// Distinct values per row, by the call's number.
    pub spread: HashMap<usize, f64>,
}

/// Outcomes of a condition.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Rows for which it was true.
    pub held: u64,
    /// Rows for which it was not true.
    pub failed: u64,
}

impl Seen {
    /// Returns the estimated share of rows for which the condition is true; 0.5 without
    /// observations.
    #[must_use]
    pub fn share(self) -> f64 {
        (self.held as f64 + 0.5) / (self.held as f64 + self.failed as f64 + 1.0)
    }
}

/// A SELECT whose conditions contain calls. Its rows are recorded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Offset in the text, which identifies the SELECT: a different rewriting can number the units
    /// differently.
    pub at: usize,
    /// Number of conditions with calls.
    pub conditions: usize,
}

/// A condition with calls.
#[derive(Debug, Clone, Default)]
pub struct Leaf {
    /// Calls in its subqueries that `SQLite` may run once for many rows.
    pub inner_calls: Vec<usize>,
}

/// Result of a rewriting.
#[derive(Debug, Clone, Default)]
pub struct Rewritten {
    /// SQL to run.
    pub sql: String,
    /// SELECTs that have conditions with calls.
    pub units: Vec<Unit>,
    /// Conditions with calls, by their offset in the text.
    pub leaves: HashMap<usize, Leaf>,
    /// LIMIT rule for the outermost SELECT; `None` if all rows are needed.
    pub first: Option<FirstRows>,
    /// Nested SELECTs to which the LIMIT rule applies.
    pub inner: Vec<InnerRows>,
    /// Calls whose documents determine the similarity order of the rows.
    pub likened: Vec<usize>,
    /// Plan: each SELECT with calls and the outcome of the rules.
    pub plan: QueryPlan,
    /// Names of result columns: `SQLite`'s name in the rewritten query, mapped to the name in the
    /// original query.
    pub names: HashMap<String, String>,
}

/// State of a rewriting.
pub struct Rewriter<'q> {
    /// Text of the query.
    pub sql: &'q str,
    /// SQL for each call.
    pub sites: &'q [CallSite],
    /// Schema of the database.
    pub schema: &'q dyn Schema,
    /// Statistics of conditions.
    pub costs: &'q Costs,
    /// Whether an unordered LIMIT is evaluated in similarity order.
    pub retrieves: bool,
    /// Whether to try the rule [`FirstRows`] for the outermost SELECT.
    pub firsts: bool,
    /// Offsets of the nested SELECTs whose first rows are already known.
    pub settled: &'q [usize],
    /// Offset of the only SELECT of [`Rewritten::inner`] to rewrite, instead of the whole query.
    pub alone: Option<usize>,
    /// Aliases of the current SELECT's result columns that have calls.
    pub(super) aliases: Vec<String>,
    /// Common table expressions visible to the current query.
    pub(super) ctes: Vec<Declared>,
    /// Calls on which the rows of each common table expression depend.
    pub(super) called: Vec<(String, Vec<usize>)>,
    /// Calls in subqueries of expressions inside a FROM clause. `SQLite` may compute their values
    /// once, for the first row that needs them.
    pub(super) once_below: Vec<usize>,
    pub(super) questions: Vec<String>,
    /// Offset of the outermost SELECT.
    pub(super) root: usize,
    /// Byte range of the whole query.
    pub(super) whole: Span,
    /// Offsets of the current and enclosing queries that declare common table expressions.
    pub(super) declaring: Vec<usize>,
    /// Whether each call is in a recursive common table expression.
    pub(super) recursing: Vec<bool>,
    /// Whether calls are only looked up in the cache, without waiting for missing answers.
    pub(super) known_only: bool,
    /// Result of rewriting the standalone SELECT.
    written_alone: Option<(String, Rewritten)>,
    /// Offset of the SELECT that is being rewritten.
    pub(super) here: usize,
    pub(super) out: Rewritten,
}

/// A visible common table expression.
pub(super) struct Declared {
    pub(super) name: String,
    /// Whether it joins tables and `SQLite` may flatten it.
    pub(super) joins: bool,
    /// Whether it has a LIMIT, or reads a source that has one.
    pub(super) limits: bool,
    /// Whether its results are volatile, or it reads a volatile source.
    pub(super) draws: bool,
}

/// Context of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// All rows are read.
    Rows,
    /// Only the existence of a row matters.
    Exists,
    /// Only the set of values matters.
    Set,
}

impl<'q> Rewriter<'q> {
    /// Creates a rewriter with default options.
    #[must_use]
    pub fn new(
        sql: &'q str,
        sites: &'q [CallSite],
        schema: &'q dyn Schema,
        costs: &'q Costs,
    ) -> Self {
        let out = Rewritten::default();
        Self {
            sql,
            sites,
            schema,
            costs,
            retrieves: true,
            firsts: false,
            settled: &[],
            alone: None,
            aliases: Vec::new(),
            ctes: Vec::new(),
            called: Vec::new(),
            once_below: Vec::new(),
            questions: Vec::new(),
            root: usize::MAX,
            whole: 0..0,
            declaring: Vec::new(),
            recursing: Vec::new(),
            known_only: false,
            written_alone: None,
            here: usize::MAX,
            out,
        }
    }

    /// Rewrites a query.
    #[must_use]
    pub fn run(mut self, parsed: &Parsed) -> Rewritten {
        let query = &parsed.query;
        self.questions = parsed.calls.iter().map(|c| c.question.clone()).collect();
        self.whole = query.span.clone();
        self.recursing = parsed.recursing();
        if let (Body::Core(core), false) = (&query.body, parsed.lone) {
            self.root = core.span.start;
        }
        self.root = self.alone.unwrap_or(self.root);
        self.called = called_rows(query);
        let mut once = Vec::new();
        query
            .each_below(&mut |e| once.extend(e.inside().1.iter().flat_map(|q| self.calls_read(q))));
        once.sort_unstable();
        once.dedup();
        self.once_below = once;
        let root = Scope::within(None);
        let text = self.query(query, &root, Role::Rows);
        if let Some((text, mut alone)) = self.written_alone {
            alone.sql = text;
            return alone;
        }
        self.out.plan.settle(self.sql, query);
        self.out.sql = if parsed.lone {
            format!("SELECT {text}")
        } else {
            format!("{}{text}{}", &self.sql[..query.span.start], &self.sql[query.span.end..])
        };
        self.out
    }

    /// Returns the index of the SELECT's entry in [`Rewritten::units`] and adds it if needed.
    pub(super) fn unit(&mut self, at: usize, conditions: usize) -> usize {
        let units = &mut self.out.units;
        // A SELECT that is written twice has a single entry.
        units.iter().position(|u| u.at == at).unwrap_or_else(|| {
            units.push(Unit { at, conditions });
            units.len() - 1
        })
    }

    pub(super) fn note_leaf(&mut self, at: usize, leaf: Leaf) {
        self.out.leaves.insert(at, leaf);
    }

    /// Returns true if an expression's value depends on a call. The call can be in the expression
    /// itself or in a result column referenced by alias. It can also be in a subquery that yields a
    /// column, or in the source of a subquery's rows.
    pub(super) fn bears(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = self.is_written(expr);
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

    /// Returns true if a name in an expression refers to calls outside of the expression.
    pub(super) fn hides_calls(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().each_in(expr, scope, true, &mut |e, at, _| {
            if matches!(e.kind, ExprKind::Column { .. }) {
                found |= self.bears(e, at);
            }
        });
        found
    }

    pub(super) fn resolver(&self) -> Resolver<'_> {
        Resolver { schema: self.schema, called: &self.called }
    }

    /// Returns the text of a span with its parts replaced.
    pub(super) fn compose(&self, span: &Span, parts: Vec<(Span, String)>) -> String {
        compose(self.sql, span, parts)
    }

    pub(super) fn query(&mut self, query: &Query, parent: &Scope<'_>, role: Role) -> String {
        if self.calls_read(query).is_empty() {
            return self.sql[query.span.clone()].to_owned();
        }
        let alone = matches!(&query.body, Body::Core(c) if self.alone == Some(c.span.start));
        let written = alone.then(|| std::mem::take(&mut self.out));
        let scope = self.resolver().ctes(query, Some(parent));
        let mut parts = Vec::new();
        let around = self.ctes.len();
        self.declaring.extend((!query.with.is_empty()).then_some(query.span.start));
        for cte in &query.with {
            // Within its own query, a recursive CTE refers to itself.
            let name = cte.name.clone();
            self.ctes.push(Declared { name, joins: false, limits: false, draws: false });
            let text = self.query(&cte.query, &scope, Role::Rows);
            parts.push((cte.query.span.clone(), text));
            self.ctes.push(Declared {
                name: cte.name.clone(),
                joins: self.joins(&cte.query),
                limits: self.is_limited(&cte.query),
                draws: self.draws(&cte.query),
            });
        }
        match &query.body {
            Body::Core(core) => self.core(query, core, &scope, role, &mut parts),
            Body::Compound(_, left, right) => {
                for side in [left, right] {
                    let text = self.query(side, &scope, Role::Rows);
                    parts.push((side.span.clone(), text));
                }
            }
            Body::Values(exprs, _) => {
                for expr in exprs {
                    self.value_part(expr, &scope, &mut parts);
                }
            }
        }
        if !matches!(query.body, Body::Core(_)) {
            for expr in query.order.iter().map(|o| &o.expr) {
                // Two calls with the same text would be two different functions, so refer to the
                // result column by its number.
                match self.column_of(expr, query).filter(|_| expr.has_call()) {
                    Some(n) => parts.push((expr.span.clone(), (n + 1).to_string())),
                    None => self.value_part(expr, &scope, &mut parts),
                }
            }
            self.limits(query, &scope, &mut parts);
        }
        self.ctes.truncate(around);
        if !query.with.is_empty() {
            self.declaring.pop();
        }
        if let (Some((alone, _)), Some(last)) = (&mut self.written_alone, query.with.last())
            && query.span == self.whole
        {
            let declared = query.span.start..last.query.span.end;
            *alone = format!("{}) {alone}", compose(self.sql, &declared, parts.clone()));
        }
        let text = self.compose(&query.span, parts);
        if let Some(written) = written {
            let alone = std::mem::replace(&mut self.out, written);
            self.written_alone = Some((text.clone(), alone));
        }
        text
    }

    /// Returns true if a query is volatile: it has a volatile function, or reads a volatile view or
    /// common table expression.
    pub(super) fn draws(&self, query: &Query) -> bool {
        let mut found = draws(query, self.schema);
        query.each_table(&mut |name| {
            let declared = self.ctes.iter().rev().find(|c| c.name.eq_ignore_ascii_case(name));
            found |= declared.is_some_and(|c| c.draws);
        });
        found
    }

    /// Returns the calls in a query and in the common table expressions that it reads.
    pub(super) fn calls_read(&self, query: &Query) -> Vec<usize> {
        calls_read(query, &self.called)
    }

    /// Returns true if an expression must be rewritten: it has a call, or a subquery that reads a
    /// common table expression with calls.
    pub(super) fn is_written(&self, expr: &Expr) -> bool {
        let mut found = expr.has_call();
        if !self.called.is_empty() {
            expr.each(&mut |e| {
                found |= e.inside().1.is_some_and(|q| !self.calls_read(q).is_empty());
            });
        }
        found
    }

    /// Returns the calls in the common table expression of this name.
    pub(super) fn calls_named(&self, table: &str) -> Vec<usize> {
        calls_named(table, &self.called).to_vec()
    }

    pub(super) fn value_part(
        &mut self,
        expr: &Expr,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        if self.is_written(expr) {
            let text = self.value(expr, scope);
            parts.push((expr.span.clone(), text));
        }
    }

    pub(super) fn subquery(
        &mut self,
        expr: &Expr,
        query: &Query,
        scope: &Scope<'_>,
        role: Role,
    ) -> String {
        let text = self.query(query, scope, role);
        self.compose(&expr.span, vec![(query.span.clone(), text)])
    }

    pub(super) fn call(&mut self, n: usize, args: &[Expr], scope: &Scope<'_>) -> String {
        let site = &self.sites[n];
        let nested = args.iter().any(Expr::has_call);
        let keys: Vec<String> = match &site.keys {
            Some(keys) => keys.clone(),
            None => {
                let forms = args.iter().enumerate();
                forms.map(|(n, a)| self.argument(a, site.context(n), scope)).collect()
            }
        };
        let text = emit::call(n, nested, &keys);
        let text = if self.known_only { emit::known(&text) } else { text };
        if let Some(width) = site.row {
            return emit::row_of(&text, width);
        }
        format!("{}{text}{}", site.before, site.after)
    }

    pub(super) fn argument(
        &mut self,
        arg: &Expr,
        context: Option<Function>,
        scope: &Scope<'_>,
    ) -> String {
        match (&arg.kind, context) {
            (ExprKind::Column { .. }, _) => name_text(arg, self.sql),
            (ExprKind::Scalar(query), Some(form)) => self.context(form, query, scope),
            (ExprKind::Scalar(query), None) => {
                format!("({})", self.query(query, scope, Role::Rows))
            }
            _ => format!("({})", self.value(arg, scope)),
        }
    }

    /// Returns SQL that aggregates the rows of a query into one value.
    fn context(&mut self, form: Function, query: &Query, scope: &Scope<'_>) -> String {
        let outputs = self.resolver().outputs(query, scope);
        let text = self.query(query, scope, Role::Rows);
        match outputs {
            Some(fields) => {
                let titles: Vec<String> =
                    fields.iter().map(|f| hqdl_values::sql::text(&f.name)).collect();
                emit::context(form, &context_name(self.sql), &titles, &text)
            }
            None => format!("({text})"),
        }
    }
}

fn compose(sql: &str, span: &Span, mut parts: Vec<(Span, String)>) -> String {
    parts.sort_by_key(|(s, _)| (s.start, s.end));
    let mut text = String::new();
    let mut at = span.start;
    for (part, new) in parts {
        if part.start < at || part.end > span.end {
            continue;
        }
        text.push_str(&sql[at..part.start]);
        text.push_str(&new);
        at = part.end;
    }
    text.push_str(&sql[at..span.end]);
    text
}

/// Returns a CTE name for the context rows that does not occur in the query.
fn context_name(sql: &str) -> String {
    let (sql, mut own) = (sql.to_lowercase(), "hq_context".to_owned());
    while sql.contains(&own) {
        own.push('_');
    }
    own
}

/// Returns for each common table expression the calls on which its rows depend.
fn called_rows(query: &Query) -> Vec<(String, Vec<usize>)> {
    let mut all: Vec<(String, Vec<&Query>)> = Vec::new();
    query.each_cte(&mut |cte| match all
        .iter_mut()
        .find(|(name, _)| name.eq_ignore_ascii_case(&cte.name))
    {
        Some((_, queries)) => queries.push(&cte.query),
        None => all.push((cte.name.clone(), vec![&cte.query])),
    });
    let mut called: Vec<(String, Vec<usize>)> =
        all.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
    // A CTE can read another one that is declared later, so iterate until nothing changes.
    let mut more = true;
    while more {
        more = false;
        for (n, (_, queries)) in all.iter().enumerate() {
            let mut calls: Vec<usize> =
                queries.iter().flat_map(|q| calls_read(q, &called)).collect();
            calls.sort_unstable();
            calls.dedup();
            more |= calls.len() > called[n].1.len();
            called[n].1 = calls;
        }
    }
    called.retain(|(_, calls)| !calls.is_empty());
    called
}

fn calls_read(query: &Query, called: &CalledRows) -> Vec<usize> {
    let mut calls = Vec::new();
    query.each(&mut |e| {
        if let ExprKind::Call(n, _) = &e.kind {
            calls.push(*n);
        }
    });
    if !called.is_empty() {
        query.each_table(&mut |table| calls.extend(calls_named(table, called)));
        calls.sort_unstable();
        calls.dedup();
    }
    calls
}

fn calls_named<'c>(table: &str, called: &'c CalledRows) -> &'c [usize] {
    let named = |(name, _): &&(String, _)| name.eq_ignore_ascii_case(table);
    called.iter().find(named).map_or(&[], |(_, calls)| calls)
}

/// Returns a column reference as SQL. Keeps the source text except for the legacy syntax `'t::c'`.
#[must_use]
pub fn name_text(expr: &Expr, sql: &str) -> String {
    let text = &sql[expr.span.clone()];
    match &expr.kind {
        ExprKind::Column { table: Some(table), column } if text.contains("::") => {
            format!("{}.{}", hqdl_values::sql::name(table), hqdl_values::sql::name(column))
        }
        _ => text.to_owned(),
    }
}

pub(super) fn has_field(table: &super::scope::Table, name: &str) -> bool {
    table.fields.as_ref().is_none_or(|f| f.iter().any(|f| f.name.eq_ignore_ascii_case(name)))
}

/// Splits a condition into the operands of its top-level ANDs.
pub(super) fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        ExprKind::And(all) => all.iter().flat_map(conjuncts).collect(),
        ExprKind::Paren(inner) if matches!(bare(inner).kind, ExprKind::And(_)) => conjuncts(inner),
        _ => vec![expr],
    }
}

/// Visits the calls of an expression that are not in a subquery.
pub(super) fn own_calls(expr: &Expr, see: &mut dyn FnMut(usize)) {
    if let ExprKind::Call(n, _) = &expr.kind {
        see(*n);
    }
    let (exprs, _) = expr.inside();
    exprs.into_iter().for_each(|e| own_calls(e, see));
}
