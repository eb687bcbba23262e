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
//! * A condition notes what it waits for row by row (`hq_close`), EXISTS and IN
//!   for all their rows together (`hq_run`).
//! * Where the query needs only its first rows, another statement yields them
//!   one by one ([`FirstRows`]).

use std::collections::HashMap;

use super::emit;
use super::frame::draws;
use super::ingredients::Subject;
use super::parse::Parsed;
use super::plan::{FirstRows, InnerRows, QueryPlan};
use super::runtime::Function;
use super::scope::{CalledRows, Resolver, Schema, Scope, bare};
use super::tree::{Body, Expr, ExprKind, Query, Span};

/// How a call is written in the SQL that is run.
#[derive(Debug, Clone, Default)]
pub struct CallSite {
    /// What stands before its answer.
    pub before: String,
    /// Its arguments, when they are not those of the call.
    pub keys: Option<Vec<String>>,
    /// What stands after it.
    pub after: String,
    /// What it is asked about.
    pub subject: Subject,
    /// The list it gives is a row of so many values.
    pub row: Option<u32>,
}

impl CallSite {
    /// All values of a column, as one argument: the rows of a context.
    #[must_use]
    pub fn all_of(table: &str, column: &str) -> String {
        let (of, titles) = (hqdl_values::sql::name(table), hqdl_values::sql::text(column));
        // With its table, or a name that is none would be a text.
        let rows = format!("SELECT {of}.{} FROM {of}", hqdl_values::sql::name(column));
        emit::context(Function::Rows, &context_name(table), &[titles], &rows)
    }

    /// What makes one value of a query that is its `n`th argument; `None` where that is
    /// the value of its first row.
    pub(super) fn context(&self, n: usize) -> Option<Function> {
        match self.subject {
            Subject::Rows => Some(Function::Rows),
            // What stands behind the value that is asked about is context.
            Subject::Value if n > 0 => Some(Function::Values),
            _ => None,
        }
    }
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

/// A SELECT whose conditions have calls: its rows are noted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Where it stands: rewritings may write units in another order.
    pub at: usize,
    /// Conditions with calls.
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
    /// Its SELECTs with conditions that have calls.
    pub units: Vec<Unit>,
    /// Its conditions with calls, by where they stand.
    pub leaves: HashMap<usize, Leaf>,
    /// How many of its first rows are the answer, when not all need be known.
    pub first: Option<FirstRows>,
    /// SELECTs within, whose first rows can be found by themselves.
    pub inner: Vec<InnerRows>,
    /// Calls whose documents say in which order rows come.
    pub likened: Vec<usize>,
    /// What each SELECT with calls is made to be, and by which rules.
    pub plan: QueryPlan,
    /// Names of result columns: what `SQLite` calls them, and what the query does.
    pub names: HashMap<String, String>,
}

/// The state of one rewriting.
pub struct Rewriter<'q> {
    /// The query's text.
    pub sql: &'q str,
    /// How each call is written.
    pub sites: &'q [CallSite],
    /// The database.
    pub schema: &'q dyn Schema,
    /// What is known of conditions.
    pub costs: &'q Costs,
    /// Whether rows that any few do of come in an order of ours.
    pub retrieves: bool,
    /// Whether the rule [`FirstRows`] is tried.
    pub firsts: bool,
    /// SELECTs within whose first rows are known, by where they begin.
    pub settled: &'q [usize],
    /// The one of [`Rewritten::inner`] that is written, alone, and not the query.
    pub alone: Option<usize>,
    /// Aliases of result columns with calls, in the SELECT at hand.
    pub(super) aliases: Vec<String>,
    /// Common table expressions at hand.
    pub(super) ctes: Vec<Declared>,
    /// Calls that the rows of each common table expression come from.
    pub(super) called: Vec<(String, Vec<usize>)>,
    /// Calls in subqueries of expressions beneath a FROM clause: their values may be
    /// computed once, for the first row that needs them.
    pub(super) once_below: Vec<usize>,
    pub(super) questions: Vec<String>,
    /// Where the outermost SELECT stands.
    pub(super) root: usize,
    /// The whole query.
    pub(super) whole: Span,
    /// Queries around, the one at hand among them, that declare common table expressions.
    pub(super) declaring: Vec<usize>,
    /// Whether each call stands in a recursive common table expression.
    pub(super) recursing: Vec<bool>,
    /// Calls that are written wait for nothing: they are only looked up.
    pub(super) known_only: bool,
    /// What was written alone.
    written_alone: Option<(String, Rewritten)>,
    /// Where the SELECT stands that is being written.
    pub(super) here: usize,
    pub(super) out: Rewritten,
}

/// A common table expression at hand.
pub(super) struct Declared {
    pub(super) name: String,
    /// `SQLite` may take it apart.
    pub(super) joins: bool,
    /// It has a LIMIT, or reads what has one.
    pub(super) limits: bool,
    /// It draws something by lot, or reads what does.
    pub(super) draws: bool,
}

/// What a query stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// All rows are read.
    Rows,
    /// Whether there is a row.
    Exists,
    /// Which values there are.
    Set,
}

impl<'q> Rewriter<'q> {
    /// Prepares a rewriting.
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

    /// The number of a SELECT with conditions that have calls.
    pub(super) fn unit(&mut self, at: usize, conditions: usize) -> usize {
        let units = &mut self.out.units;
        // A SELECT that is written twice is one.
        units.iter().position(|u| u.at == at).unwrap_or_else(|| {
            units.push(Unit { at, conditions });
            units.len() - 1
        })
    }

    pub(super) fn note_leaf(&mut self, at: usize, leaf: Leaf) {
        self.out.leaves.insert(at, leaf);
    }

    /// Whether an expression's value depends on a call: one in it, one that a
    /// result column's alias stands for, one below that yields a column, or one that
    /// the rows of a subquery come from.
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

    /// Whether a name in an expression stands for calls that are written elsewhere.
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

    /// The text of a span, its parts replaced.
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
            // One that reads itself stands where it is, as it is.
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
                // Two calls of one text are two functions; the result column they
                // are is one.
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

    /// Returns whether a query draws something by lot, anew each time that it runs: it has a
    /// function that does, or reads a view or a common table expression that does.
    pub(super) fn draws(&self, query: &Query) -> bool {
        let mut found = draws(query, self.schema);
        query.each_table(&mut |name| {
            let declared = self.ctes.iter().rev().find(|c| c.name.eq_ignore_ascii_case(name));
            found |= declared.is_some_and(|c| c.draws);
        });
        found
    }

    /// Calls in a query, and in the common table expressions that it reads by name.
    pub(super) fn calls_read(&self, query: &Query) -> Vec<usize> {
        calls_read(query, &self.called)
    }

    /// Whether an expression has a call, or a subquery that reads one by the name of a
    /// common table expression: it is written anew.
    pub(super) fn is_written(&self, expr: &Expr) -> bool {
        let mut found = expr.has_call();
        if !self.called.is_empty() {
            expr.each(&mut |e| {
                found |= e.inside().1.is_some_and(|q| !self.calls_read(q).is_empty());
            });
        }
        found
    }

    /// Calls in a common table expression of this name.
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

    /// The rows of a query as one value.
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

/// What the rows of a context are called: a name that a text uses for none of its own.
fn context_name(sql: &str) -> String {
    let (sql, mut own) = (sql.to_lowercase(), "hq_context".to_owned());
    while sql.contains(&own) {
        own.push('_');
    }
    own
}

/// Calls that the rows of each common table expression of a query come from.
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
    // One may read another that is declared behind it.
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

/// A name as SQL: as it was written, but for the old spelling `'t::c'`.
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

/// The parts of a condition that must all hold.
pub(super) fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        ExprKind::And(all) => all.iter().flat_map(conjuncts).collect(),
        ExprKind::Paren(inner) if matches!(bare(inner).kind, ExprKind::And(_)) => conjuncts(inner),
        _ => vec![expr],
    }
}

/// Calls in an expression that are not in a subquery of it.
pub(super) fn own_calls(expr: &Expr, see: &mut dyn FnMut(usize)) {
    if let ExprKind::Call(n, _) = &expr.kind {
        see(*n);
    }
    let (exprs, _) = expr.inside();
    exprs.into_iter().for_each(|e| own_calls(e, see));
}
