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
//! * AND, OR, NOT become CASE expressions, ordered by [`Statistics`]: first the parts without calls,
//!   then the calls, each only if the parts before it do not decide the row. A truth is 1, 0, or 2
//!   if a call in it is pending.
//! * A condition records its pending calls per row (`hq_close`), EXISTS and IN record those of all
//!   their rows together (`hq_run`).
//! * If the query needs only its first rows, a different statement returns the rows one by one
//!   ([`LimitPushdown`]).

use std::collections::HashMap;

use super::emit;
use super::frame::is_volatile;
use super::ingredients::Subject;
use super::parse::ParsedQuery;
use super::plan::{LimitPushdown, QueryPlan, SubqueryLimit};
use super::runtime::Function;
use super::scope::{CteCalls, Resolver, Schema, Scope, without_parens};
use super::tree::{Body, Expr, ExprKind, Query, Span};

/// SQL for a call in the rewritten query.
#[derive(Debug, Clone, Default)]
pub struct CallSite {
    /// SQL before the answer.
    pub sql_before: String,
    /// Arguments as SQL; `None` for the arguments in the query.
    pub argument_sql: Option<Vec<String>>,
    /// SQL after the answer.
    pub sql_after: String,
    /// Subject of the call.
    pub subject: Subject,
    /// Number of columns if the answer is a list that becomes a row value.
    pub row_width: Option<u32>,
}

impl CallSite {
    /// Returns all values of a column as a single argument: the rows of a context.
    #[must_use]
    pub fn column_values(table: &str, column: &str) -> String {
        let (table_sql, titles) =
            (hqdl_values::sql::quote_name(table), hqdl_values::sql::quote_text(column));
        // Qualify the column: `SQLite` reads an unknown quoted name as a string.
        let rows =
            format!("SELECT {table_sql}.{} FROM {table_sql}", hqdl_values::sql::quote_name(column));
        emit::rows_as_value(Function::Rows, &unused_cte_name(table), &[titles], &rows)
    }

    /// Returns the aggregate that converts the query in argument `n` to one value. Returns `None`
    /// if the argument is a scalar subquery.
    pub(super) fn context_function(&self, n: usize) -> Option<Function> {
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
pub struct Statistics {
    /// Outcomes of each condition, by its offset in the text.
    pub selectivities: HashMap<usize, Selectivity>,
    /// Distinct values per row, by the call's number.
    pub values_per_row: HashMap<usize, f64>,
}

/// Outcomes of a condition.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selectivity {
    /// Rows for which it was true.
    pub passed: u64,
    /// Rows for which it was not true.
    pub failed: u64,
}

impl Selectivity {
    /// Returns the estimated share of rows for which the condition is true; 0.5 without
    /// observations.
    #[must_use]
    pub fn estimated_share(self) -> f64 {
        (self.passed as f64 + 0.5) / (self.passed as f64 + self.failed as f64 + 1.0)
    }
}

/// A SELECT whose conditions contain calls. Its rows are recorded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionGroup {
    /// Offset in the text, which identifies the SELECT: a different rewriting can number the units
    /// differently.
    pub offset: usize,
    /// Number of conditions with calls.
    pub conditions: usize,
}

/// A condition with calls.
#[derive(Debug, Clone, Default)]
pub struct Predicate {
    /// Calls in its subqueries that `SQLite` may run once for many rows.
    pub shared_calls: Vec<usize>,
}

/// Result of a rewriting.
#[derive(Debug, Clone, Default)]
pub struct RewrittenQuery {
    /// SQL to run.
    pub sql: String,
    /// SELECTs that have conditions with calls.
    pub condition_groups: Vec<ConditionGroup>,
    /// Conditions with calls, by their offset in the text.
    pub predicates: HashMap<usize, Predicate>,
    /// LIMIT rule for the outermost SELECT; `None` if all rows are needed.
    pub limit_pushdown: Option<LimitPushdown>,
    /// Nested SELECTs to which the LIMIT rule applies.
    pub subquery_limits: Vec<SubqueryLimit>,
    /// Calls whose documents determine the similarity order of the rows.
    pub similarity_calls: Vec<usize>,
    /// Plan: each SELECT with calls and the outcome of the rules.
    pub plan: QueryPlan,
    /// Names of result columns: `SQLite`'s name in the rewritten query, mapped to the name in the
    /// original query.
    pub result_names: HashMap<String, String>,
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
    pub statistics: &'q Statistics,
    /// Whether an unordered LIMIT is evaluated in similarity order.
    pub similarity_ordering: bool,
    /// Whether to try the rule [`LimitPushdown`] for the outermost SELECT.
    pub limit_pushdown_enabled: bool,
    /// Offsets of the nested SELECTs whose first rows are already known.
    pub complete_selects: &'q [usize],
    /// Offset of the only SELECT of `RewrittenQuery::inner` to rewrite, instead of the whole query.
    pub standalone: Option<usize>,
    /// Aliases of the current SELECT's result columns that have calls.
    pub(super) aliases: Vec<String>,
    /// Common table expressions visible to the current query.
    pub(super) visible_ctes: Vec<VisibleCte>,
    /// Calls on which the rows of each common table expression depend.
    pub(super) cte_calls: Vec<(String, Vec<usize>)>,
    /// Calls in subqueries of expressions inside a FROM clause. `SQLite` may compute their values
    /// once, for the first row that needs them.
    pub(super) shared_source_calls: Vec<usize>,
    pub(super) questions: Vec<String>,
    /// Offset of the outermost SELECT.
    pub(super) root: usize,
    /// Byte range of the whole query.
    pub(super) whole_span: Span,
    /// Offsets of the current and enclosing queries that declare common table expressions.
    pub(super) cte_scopes: Vec<usize>,
    /// Whether each call is in a recursive common table expression.
    pub(super) is_recursive_call: Vec<bool>,
    /// Whether calls are only looked up in the cache, without waiting for missing answers.
    pub(super) lookup_only: bool,
    /// Result of rewriting the standalone SELECT.
    standalone_query: Option<(String, RewrittenQuery)>,
    /// Offset of the SELECT that is being rewritten.
    pub(super) current_select: usize,
    pub(super) out: RewrittenQuery,
}

/// A visible common table expression.
pub(super) struct VisibleCte {
    pub(super) name: String,
    /// Whether it joins tables and `SQLite` may flatten it.
    pub(super) may_join_tables: bool,
    /// Whether it has a LIMIT, or reads a source that has one.
    pub(super) may_have_limit: bool,
    /// Whether its results are volatile, or it reads a volatile source.
    pub(super) is_volatile: bool,
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
        statistics: &'q Statistics,
    ) -> Self {
        let out = RewrittenQuery::default();
        Self {
            sql,
            sites,
            schema,
            statistics,
            similarity_ordering: true,
            limit_pushdown_enabled: false,
            complete_selects: &[],
            standalone: None,
            aliases: Vec::new(),
            visible_ctes: Vec::new(),
            cte_calls: Vec::new(),
            shared_source_calls: Vec::new(),
            questions: Vec::new(),
            root: usize::MAX,
            whole_span: 0..0,
            cte_scopes: Vec::new(),
            is_recursive_call: Vec::new(),
            lookup_only: false,
            standalone_query: None,
            current_select: usize::MAX,
            out,
        }
    }

    /// Rewrites a query.
    #[must_use]
    pub fn rewrite(mut self, parsed: &ParsedQuery) -> RewrittenQuery {
        let query = &parsed.query;
        self.questions = parsed.calls.iter().map(|c| c.question.clone()).collect();
        self.whole_span = query.span.clone();
        self.is_recursive_call = parsed.calls_in_recursive_ctes();
        if let (Body::Core(core), false) = (&query.body, parsed.is_single_call) {
            self.root = core.span.start;
        }
        self.root = self.standalone.unwrap_or(self.root);
        self.cte_calls = collect_cte_calls(query);
        let mut shared = Vec::new();
        query.visit_source_exprs(&mut |e| {
            shared.extend(e.children().1.iter().flat_map(|q| self.reachable_calls(q)));
        });
        shared.sort_unstable();
        shared.dedup();
        self.shared_source_calls = shared;
        let root = Scope::new(None);
        let text = self.rewrite_query(query, &root, Role::Rows);
        if let Some((text, mut standalone)) = self.standalone_query {
            standalone.sql = text;
            return standalone;
        }
        self.out.plan.finish(self.sql, query);
        self.out.sql = if parsed.is_single_call {
            format!("SELECT {text}")
        } else {
            format!("{}{text}{}", &self.sql[..query.span.start], &self.sql[query.span.end..])
        };
        self.out
    }

    /// Returns the index of the SELECT's entry in [`Rewritten::units`] and adds it if needed.
    pub(super) fn condition_group_index(&mut self, offset: usize, conditions: usize) -> usize {
        let condition_groups = &mut self.out.condition_groups;
        // A SELECT that is written twice has a single entry.
        condition_groups.iter().position(|u| u.offset == offset).unwrap_or_else(|| {
            condition_groups.push(ConditionGroup { offset, conditions });
            condition_groups.len() - 1
        })
    }

    pub(super) fn record_predicate(&mut self, at: usize, predicate: Predicate) {
        self.out.predicates.insert(at, predicate);
    }

    /// Returns true if an expression's value depends on a call. The call can be in the expression
    /// itself or in a result column referenced by alias. It can also be in a subquery that yields a
    /// column, or in the source of a subquery's rows.
    pub(super) fn depends_on_call(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = self.needs_rewrite(expr);
        self.resolver().visit_expr(expr, scope, true, &mut |e, at, _| match &e.kind {
            ExprKind::Call(..) => found = true,
            ExprKind::Column { table, column } => {
                found |= match at.find_column(table.as_deref(), column) {
                    Some(hit) => hit.field.is_from_call,
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
    pub(super) fn references_hidden_calls(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().visit_expr(expr, scope, true, &mut |e, at, _| {
            if matches!(e.kind, ExprKind::Column { .. }) {
                found |= self.depends_on_call(e, at);
            }
        });
        found
    }

    pub(super) fn resolver(&self) -> Resolver<'_> {
        Resolver { schema: self.schema, cte_calls: &self.cte_calls }
    }

    /// Returns the text of a span with its parts replaced.
    pub(super) fn replace_parts(&self, span: &Span, parts: Vec<(Span, String)>) -> String {
        replace_parts(self.sql, span, parts)
    }

    pub(super) fn rewrite_query(
        &mut self,
        query: &Query,
        parent: &Scope<'_>,
        role: Role,
    ) -> String {
        if self.reachable_calls(query).is_empty() {
            return self.sql[query.span.clone()].to_owned();
        }
        let is_standalone =
            matches!(&query.body, Body::Core(c) if self.standalone == Some(c.span.start));
        let outer_output = is_standalone.then(|| std::mem::take(&mut self.out));
        let scope = self.resolver().cte_scope(query, Some(parent));
        let mut parts = Vec::new();
        let outer_ctes = self.visible_ctes.len();
        self.cte_scopes.extend((!query.with.is_empty()).then_some(query.span.start));
        for cte in &query.with {
            // Within its own query, a recursive CTE refers to itself.
            let name = cte.name.clone();
            self.visible_ctes.push(VisibleCte {
                name,
                may_join_tables: false,
                may_have_limit: false,
                is_volatile: false,
            });
            let text = self.rewrite_query(&cte.query, &scope, Role::Rows);
            parts.push((cte.query.span.clone(), text));
            self.visible_ctes.push(VisibleCte {
                name: cte.name.clone(),
                may_join_tables: self.may_join_tables(&cte.query),
                may_have_limit: self.has_limit(&cte.query),
                is_volatile: self.is_volatile(&cte.query),
            });
        }
        match &query.body {
            Body::Core(core) => self.rewrite_select(query, core, &scope, role, &mut parts),
            Body::Compound(_, left, right) => {
                for side in [left, right] {
                    let text = self.rewrite_query(side, &scope, Role::Rows);
                    parts.push((side.span.clone(), text));
                }
            }
            Body::Values(exprs, _) => {
                for expr in exprs {
                    self.push_value(expr, &scope, &mut parts);
                }
            }
        }
        if !matches!(query.body, Body::Core(_)) {
            for expr in query.order.iter().map(|o| &o.expr) {
                // Two calls with the same text would be two different functions, so refer to the
                // result column by its number.
                match self.result_column_of(expr, query).filter(|_| expr.has_call()) {
                    Some(n) => parts.push((expr.span.clone(), (n + 1).to_string())),
                    None => self.push_value(expr, &scope, &mut parts),
                }
            }
            self.rewrite_limits(query, &scope, &mut parts);
        }
        self.visible_ctes.truncate(outer_ctes);
        if !query.with.is_empty() {
            self.cte_scopes.pop();
        }
        if let (Some((standalone, _)), Some(last)) = (&mut self.standalone_query, query.with.last())
            && query.span == self.whole_span
        {
            let with_clause = query.span.start..last.query.span.end;
            *standalone =
                format!("{}) {standalone}", replace_parts(self.sql, &with_clause, parts.clone()));
        }
        let text = self.replace_parts(&query.span, parts);
        if let Some(outer_output) = outer_output {
            let standalone = std::mem::replace(&mut self.out, outer_output);
            self.standalone_query = Some((text.clone(), standalone));
        }
        text
    }

    /// Returns true if a query is volatile: it has a volatile function, or reads a volatile view or
    /// common table expression.
    pub(super) fn is_volatile(&self, query: &Query) -> bool {
        let mut found = is_volatile(query, self.schema);
        query.visit_tables(&mut |name| {
            let cte = self.visible_ctes.iter().rev().find(|c| c.name.eq_ignore_ascii_case(name));
            found |= cte.is_some_and(|c| c.is_volatile);
        });
        found
    }

    /// Returns the calls in a query and in the common table expressions that it reads.
    pub(super) fn reachable_calls(&self, query: &Query) -> Vec<usize> {
        reachable_calls(query, &self.cte_calls)
    }

    /// Returns true if an expression must be rewritten: it has a call, or a subquery that reads a
    /// common table expression with calls.
    pub(super) fn needs_rewrite(&self, expr: &Expr) -> bool {
        let mut found = expr.has_call();
        if !self.cte_calls.is_empty() {
            expr.visit_exprs(&mut |e| {
                found |= e.children().1.is_some_and(|q| !self.reachable_calls(q).is_empty());
            });
        }
        found
    }

    /// Returns the calls in the common table expression of this name.
    pub(super) fn calls_of_cte(&self, table: &str) -> Vec<usize> {
        calls_of_cte(table, &self.cte_calls).to_vec()
    }

    pub(super) fn push_value(
        &mut self,
        expr: &Expr,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        if self.needs_rewrite(expr) {
            let text = self.rewrite_value(expr, scope);
            parts.push((expr.span.clone(), text));
        }
    }

    pub(super) fn rewrite_subquery(
        &mut self,
        expr: &Expr,
        query: &Query,
        scope: &Scope<'_>,
        role: Role,
    ) -> String {
        let text = self.rewrite_query(query, scope, role);
        self.replace_parts(&expr.span, vec![(query.span.clone(), text)])
    }

    pub(super) fn rewrite_call(&mut self, n: usize, args: &[Expr], scope: &Scope<'_>) -> String {
        let site = &self.sites[n];
        let nested = args.iter().any(Expr::has_call);
        let arguments: Vec<String> = match &site.argument_sql {
            Some(arguments) => arguments.clone(),
            None => {
                let indexed = args.iter().enumerate();
                indexed
                    .map(|(n, a)| self.rewrite_argument(a, site.context_function(n), scope))
                    .collect()
            }
        };
        let text = emit::call_answer(n, nested, &arguments);
        let text = if self.lookup_only { emit::lookup_only(&text) } else { text };
        if let Some(width) = site.row_width {
            return emit::list_as_row(&text, width);
        }
        format!("{}{text}{}", site.sql_before, site.sql_after)
    }

    pub(super) fn rewrite_argument(
        &mut self,
        arg: &Expr,
        context: Option<Function>,
        scope: &Scope<'_>,
    ) -> String {
        match (&arg.kind, context) {
            (ExprKind::Column { .. }, _) => column_sql(arg, self.sql),
            (ExprKind::Scalar(query), Some(aggregate)) => self.context_sql(aggregate, query, scope),
            (ExprKind::Scalar(query), None) => {
                format!("({})", self.rewrite_query(query, scope, Role::Rows))
            }
            _ => format!("({})", self.rewrite_value(arg, scope)),
        }
    }

    /// Returns SQL that aggregates the rows of a query into one value.
    fn context_sql(&mut self, aggregate: Function, query: &Query, scope: &Scope<'_>) -> String {
        let outputs = self.resolver().output_fields(query, scope);
        let text = self.rewrite_query(query, scope, Role::Rows);
        match outputs {
            Some(fields) => {
                let titles: Vec<String> =
                    fields.iter().map(|f| hqdl_values::sql::quote_text(&f.name)).collect();
                emit::rows_as_value(aggregate, &unused_cte_name(self.sql), &titles, &text)
            }
            None => format!("({text})"),
        }
    }
}

fn replace_parts(sql: &str, span: &Span, mut parts: Vec<(Span, String)>) -> String {
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
fn unused_cte_name(sql: &str) -> String {
    let (sql, mut name) = (sql.to_lowercase(), "hq_context".to_owned());
    while sql.contains(&name) {
        name.push('_');
    }
    name
}

/// Returns for each common table expression the calls on which its rows depend.
fn collect_cte_calls(query: &Query) -> Vec<(String, Vec<usize>)> {
    let mut all: Vec<(String, Vec<&Query>)> = Vec::new();
    query.visit_ctes(&mut |cte| match all
        .iter_mut()
        .find(|(name, _)| name.eq_ignore_ascii_case(&cte.name))
    {
        Some((_, queries)) => queries.push(&cte.query),
        None => all.push((cte.name.clone(), vec![&cte.query])),
    });
    let mut cte_calls: Vec<(String, Vec<usize>)> =
        all.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
    // A CTE can read another one that is declared later, so iterate until nothing changes.
    let mut changed = true;
    while changed {
        changed = false;
        for (n, (_, queries)) in all.iter().enumerate() {
            let mut calls: Vec<usize> =
                queries.iter().flat_map(|q| reachable_calls(q, &cte_calls)).collect();
            calls.sort_unstable();
            calls.dedup();
            changed |= calls.len() > cte_calls[n].1.len();
            cte_calls[n].1 = calls;
        }
    }
    cte_calls.retain(|(_, calls)| !calls.is_empty());
    cte_calls
}

fn reachable_calls(query: &Query, cte_calls: &CteCalls) -> Vec<usize> {
    let mut calls = Vec::new();
    query.visit_exprs(&mut |e| {
        if let ExprKind::Call(n, _) = &e.kind {
            calls.push(*n);
        }
    });
    if !cte_calls.is_empty() {
        query.visit_tables(&mut |table| calls.extend(calls_of_cte(table, cte_calls)));
        calls.sort_unstable();
        calls.dedup();
    }
    calls
}

fn calls_of_cte<'c>(table: &str, cte_calls: &'c CteCalls) -> &'c [usize] {
    let named = |(name, _): &&(String, _)| name.eq_ignore_ascii_case(table);
    cte_calls.iter().find(named).map_or(&[], |(_, calls)| calls)
}

/// Returns a column reference as SQL. Keeps the source text except for the legacy syntax `'t::c'`.
#[must_use]
pub fn column_sql(expr: &Expr, sql: &str) -> String {
    let text = &sql[expr.span.clone()];
    match &expr.kind {
        ExprKind::Column { table: Some(table), column } if text.contains("::") => {
            format!(
                "{}.{}",
                hqdl_values::sql::quote_name(table),
                hqdl_values::sql::quote_name(column)
            )
        }
        _ => text.to_owned(),
    }
}

pub(super) fn has_field(table: &super::scope::Table, name: &str) -> bool {
    table.fields.as_ref().is_none_or(|f| f.iter().any(|f| f.name.eq_ignore_ascii_case(name)))
}

/// Splits a condition into the operands of its top-level ANDs.
pub(super) fn split_conjuncts(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        ExprKind::And(all) => all.iter().flat_map(split_conjuncts).collect(),
        ExprKind::Paren(inner) if matches!(without_parens(inner).kind, ExprKind::And(_)) => {
            split_conjuncts(inner)
        }
        _ => vec![expr],
    }
}

/// Visits the calls of an expression that are not in a subquery.
pub(super) fn visit_own_calls(expr: &Expr, visit: &mut dyn FnMut(usize)) {
    if let ExprKind::Call(n, _) = &expr.kind {
        visit(*n);
    }
    let (exprs, _) = expr.children();
    exprs.into_iter().for_each(|e| visit_own_calls(e, visit));
}
