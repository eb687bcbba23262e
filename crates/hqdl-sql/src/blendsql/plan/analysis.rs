//! Facts about the expressions of a query that the rules and the bound look up: which expressions
//! depend on a call, which rows they reference, and which sources `SQLite` may flatten.

use crate::blendsql::aggregates::{has_window, is_aggregate, is_aggregate_call};
use crate::blendsql::frame::is_volatile;
use crate::blendsql::parse::ParsedQuery;
use crate::blendsql::plan::RejectionReason;
use crate::blendsql::plan::call_site::CallSite;
use crate::blendsql::plan::statistics::Statistics;
use crate::blendsql::scope::{CteCalls, Resolver, Schema, Scope, strip_expr_parens};
use crate::blendsql::terms::read_integer;
use crate::blendsql::tree::{Body, Expr, ExprKind, FromItem, FromSource, Query, SelectCore, Span};

/// A visible common table expression.
pub(crate) struct VisibleCte {
    pub name: String,
    /// Whether the CTE joins tables and `SQLite` may flatten it.
    pub may_join_tables: bool,
    /// Whether the CTE has a LIMIT, or reads a source with a LIMIT.
    pub may_have_limit: bool,
    /// Whether the CTE computes a volatile result or reads a volatile source.
    pub is_volatile: bool,
}

/// Facts about a query, relative to the planner's current position.
pub(crate) struct Analysis<'q> {
    pub sql: &'q str,
    pub sites: &'q [CallSite],
    pub schema: &'q dyn Schema,
    pub statistics: &'q Statistics,
    /// Whether an unordered LIMIT is evaluated in similarity order.
    pub similarity_ordering: bool,
    /// Whether the LIMIT rule applies to the outermost SELECT.
    pub limit_pushdown_enabled: bool,
    /// Offset of the only SELECT that runs, instead of the whole query.
    pub standalone: Option<usize>,
    /// Aliases of the current SELECT's result columns that have calls.
    pub aliases: Vec<String>,
    /// Common table expressions visible to the current query.
    pub visible_ctes: Vec<VisibleCte>,
    /// Calls on which the rows of each common table expression depend.
    pub cte_calls: Vec<(String, Vec<usize>)>,
    /// Indices of calls in subqueries of expressions inside a FROM clause. `SQLite` may compute
    /// their values once, for the first row that needs them.
    pub shared_source_calls: Vec<usize>,
    /// Offset of the outermost SELECT.
    pub root: usize,
    /// Byte range of the whole query.
    pub whole_span: Span,
    /// Offsets of the current and enclosing queries that declare common table expressions.
    pub cte_scopes: Vec<usize>,
    /// Whether each call is in a recursive common table expression.
    pub is_recursive_call: Vec<bool>,
}

impl<'q> Analysis<'q> {
    pub fn new(
        sql: &'q str,
        sites: &'q [CallSite],
        schema: &'q dyn Schema,
        statistics: &'q Statistics,
    ) -> Self {
        Self {
            sql,
            sites,
            schema,
            statistics,
            similarity_ordering: true,
            limit_pushdown_enabled: false,
            standalone: None,
            aliases: Vec::new(),
            visible_ctes: Vec::new(),
            cte_calls: Vec::new(),
            shared_source_calls: Vec::new(),
            root: usize::MAX,
            whole_span: 0..0,
            cte_scopes: Vec::new(),
            is_recursive_call: Vec::new(),
        }
    }

    /// Collects the facts that concern the whole query.
    pub fn collect_query_facts(&mut self, parsed: &ParsedQuery) {
        let query = &parsed.query;
        self.whole_span = query.span.clone();
        self.is_recursive_call = parsed.mark_calls_in_recursive_ctes();
        if let (Body::Core(core), false) = (&query.body, parsed.is_single_call) {
            self.root = core.span.start;
        }
        self.root = self.standalone.unwrap_or(self.root);
        self.cte_calls = collect_cte_calls(query);
        let mut shared = Vec::new();
        query.visit_source_exprs(&mut |e| {
            shared.extend(e.children().1.iter().flat_map(|q| self.list_reachable_calls(q)));
        });
        shared.sort_unstable();
        shared.dedup();
        self.shared_source_calls = shared;
    }

    pub fn resolver(&self) -> Resolver<'_> {
        Resolver { schema: self.schema, cte_calls: &self.cte_calls }
    }

    /// Returns true if an expression's value depends on a call. The call can be in the expression
    /// itself, in a result column referenced by alias, in a subquery that yields a column, or in
    /// the source of a subquery's rows.
    pub fn depends_on_call(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = needs_rewrite(expr, &self.cte_calls);
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
    pub fn references_hidden_calls(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().visit_expr(expr, scope, true, &mut |e, at, _| {
            if matches!(e.kind, ExprKind::Column { .. }) {
                found |= self.depends_on_call(e, at);
            }
        });
        found
    }

    /// Returns true if a subquery of an expression has a call, or reads rows that depend on a call.
    pub fn subquery_has_calls(&self, expr: &Expr) -> bool {
        let (exprs, query) = expr.children();
        query.is_some_and(|q| !self.list_reachable_calls(q).is_empty())
            || exprs.into_iter().any(|e| self.subquery_has_calls(e))
    }

    /// Returns true if an expression references a column of the SELECT's own tables.
    pub fn references_own_rows(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().visit_expr(expr, scope, true, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                let depth = match at.find_column(table.as_deref(), column) {
                    Some(hit) => Some(hit.depth),
                    None => at.find_row_scope_depth(table.as_deref(), column),
                };
                found |= depth.is_some_and(|depth| depth == scope.depth);
            }
        });
        found
    }

    /// Returns true if a name in a query can be resolved to a row of an enclosing query.
    pub fn is_correlated(&self, query: &Query, outer_scope: &Scope<'_>) -> bool {
        let mut is_correlated = false;
        self.resolver().visit_exprs(query, outer_scope, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                is_correlated |= match at.find_column(table.as_deref(), column) {
                    Some(found) => found.depth <= outer_scope.depth,
                    None => at
                        .find_row_scope_depth(table.as_deref(), column)
                        .is_some_and(|depth| depth <= outer_scope.depth),
                };
            }
        });
        is_correlated
    }

    /// Returns true if a query references outer rows, or if this cannot be determined.
    pub fn may_be_correlated(&self, query: &Query, outer_scope: &Scope<'_>) -> bool {
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

    /// Returns true if a query is volatile: it has a volatile function, or reads a volatile view or
    /// common table expression.
    pub fn is_volatile(&self, query: &Query) -> bool {
        let mut found = is_volatile(query, self.schema);
        query.visit_tables(&mut |name| {
            let cte = self.visible_ctes.iter().rev().find(|c| c.name.eq_ignore_ascii_case(name));
            found |= cte.is_some_and(|c| c.is_volatile);
        });
        found
    }

    /// Returns the calls in a query and in the common table expressions that it reads.
    pub fn list_reachable_calls(&self, query: &Query) -> Vec<usize> {
        list_reachable_calls(query, &self.cte_calls)
    }

    /// Returns the number of predicates with calls in a condition.
    pub fn count_predicates(&self, expr: &Expr, scope: &Scope<'_>) -> usize {
        count_predicates(expr, &|e| self.depends_on_call(e, scope))
    }

    /// Returns true if a query joins tables and `SQLite`'s flattener may merge it into the
    /// enclosing SELECT. This includes joins inside EXISTS, and a query with a result that
    /// references no column.
    pub fn may_join_tables(&self, query: &Query) -> bool {
        if !query.with.is_empty() {
            return true;
        }
        match &query.body {
            Body::Core(core) => {
                let is_unflattenable = core.distinct
                    || !core.group.is_empty()
                    || query.limit.is_some()
                    || is_aggregate(core, query);
                let mut has_exists = false;
                core.filter.iter().for_each(|f| {
                    f.visit_exprs(&mut |e| has_exists |= matches!(e.kind, ExprKind::Exists(_)));
                });
                !is_unflattenable
                    && (core.from.len() > 1
                        || has_exists
                        || core.has_row_independent_result()
                        || core.from.iter().any(|i| self.source_joins_tables(i)))
            }
            Body::Compound(_, left, right) => {
                self.may_join_tables(left) || self.may_join_tables(right)
            }
            Body::Values(..) => false,
        }
    }

    /// Returns true if a FROM entry joins tables internally.
    pub fn source_joins_tables(&self, item: &FromItem) -> bool {
        match &item.source {
            FromSource::Table { schema, name, .. } => {
                let named = |cte: &&VisibleCte| cte.name.eq_ignore_ascii_case(name);
                match self.visible_ctes.iter().rev().find(named).filter(|_| schema.is_none()) {
                    Some(cte) => cte.may_join_tables,
                    None => self.schema.may_join_tables(name),
                }
            }
            FromSource::Query(query) => self.may_join_tables(query),
            FromSource::Join(inner) => {
                item.name.is_some() || inner.iter().any(|i| self.source_joins_tables(i))
            }
            FromSource::Function { .. } => false,
        }
    }

    /// Returns true if a FROM entry has a LIMIT. `SQLite` may flatten it into the enclosing SELECT
    /// and evaluate that SELECT's results for rows beyond the limit.
    pub fn source_has_limit(&self, item: &FromItem) -> bool {
        match &item.source {
            FromSource::Table { schema, name, .. } => {
                let named = |cte: &&VisibleCte| cte.name.eq_ignore_ascii_case(name);
                match self.visible_ctes.iter().rev().find(named).filter(|_| schema.is_none()) {
                    Some(cte) => cte.may_have_limit,
                    None => self.schema.may_have_limit(name),
                }
            }
            FromSource::Query(query) => self.has_limit(query),
            FromSource::Join(inner) => inner.iter().any(|i| self.source_has_limit(i)),
            FromSource::Function { .. } => false,
        }
    }

    /// Returns true if a query has a LIMIT, or reads a source with a LIMIT.
    pub fn has_limit(&self, query: &Query) -> bool {
        query.limit.is_some()
            || match &query.body {
                Body::Core(core) => core.from.iter().any(|i| self.source_has_limit(i)),
                Body::Compound(_, left, right) => self.has_limit(left) || self.has_limit(right),
                Body::Values(..) => false,
            }
    }

    /// Returns true if a condition has a correlated subquery or an EXISTS.
    pub fn has_correlated_subquery(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().visit_expr(expr, scope, true, &mut |e, at, _| match &e.kind {
            ExprKind::Exists(_) => found = true,
            ExprKind::Column { table, column } if at.depth > scope.depth => {
                found |= at
                    .find_column(table.as_deref(), column)
                    .is_none_or(|hit| hit.depth <= scope.depth);
            }
            _ => {}
        });
        found
    }

    /// Returns the aggregates that are in subqueries but belong to this SELECT, because all columns
    /// in their arguments, ORDER BY and FILTER are columns of this SELECT or an outer SELECT.
    pub fn find_outer_aggregates(
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

    /// Collects the calls in an expression's subqueries that do not report for every row whether
    /// they are pending, because `SQLite` runs an uncorrelated subquery only once.
    pub fn collect_shared_calls(&self, expr: &Expr, scope: &Scope<'_>, found: &mut Vec<usize>) {
        if !self.shared_source_calls.is_empty()
            && self.depends_on_call(expr, scope)
            && self.references_hidden_calls(expr, scope)
        {
            found.extend(&self.shared_source_calls);
        }
        let (exprs, query) = expr.children();
        exprs.into_iter().for_each(|e| self.collect_shared_calls(e, scope, found));
        let Some(query) = query else { return };
        found.extend(self.list_from_calls(query));
        if !query.has_call() || find_decisive_select(self, expr, scope).is_ok() {
            return;
        }
        let mut nested = !query.with.is_empty();
        query.visit_exprs(&mut |e| nested |= e.children().1.is_some_and(Query::has_call));
        if let Body::Core(core) = &query.body {
            nested |= core.from.iter().any(|i| !matches!(i.source, FromSource::Table { .. }));
        } else {
            nested = true;
        }
        if nested || !self.is_correlated(query, scope) {
            query.visit_exprs(&mut |e| {
                if let ExprKind::Call(n, _) = &e.kind {
                    found.push(*n);
                }
            });
        }
    }

    /// Returns the calls that the rows of a query's FROM clause depend on. `SQLite` may compute
    /// these rows once, for the first row that needs them. Calls in the query's conditions are
    /// excluded, because they report for each row whether they are pending.
    fn list_from_calls(&self, query: &Query) -> Vec<usize> {
        match &query.body {
            Body::Core(core) => core.from.iter().flat_map(|i| self.list_source_calls(i)).collect(),
            _ => self.list_reachable_calls(query),
        }
    }

    pub fn list_source_calls(&self, item: &FromItem) -> Vec<usize> {
        let mut calls = match &item.source {
            FromSource::Table { schema: None, name, .. } => {
                find_cte_calls(name, &self.cte_calls).to_vec()
            }
            FromSource::Table { .. } => Vec::new(),
            FromSource::Query(query) => self.list_reachable_calls(query),
            FromSource::Join(items) => {
                items.iter().flat_map(|i| self.list_source_calls(i)).collect()
            }
            FromSource::Function { args, .. } => {
                let mut calls = Vec::new();
                args.iter().for_each(|a| visit_own_calls(a, &mut |n| calls.push(n)));
                calls
            }
        };
        item.on.iter().for_each(|on| visit_own_calls(on, &mut |n| calls.push(n)));
        calls
    }

    /// Returns the text of a byte range on one line, with runs of whitespace collapsed.
    pub fn format_on_one_line(&self, span: &Span) -> String {
        let text = self.sql.get(span.clone()).unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Returns the calls that the rows of each common table expression depend on.
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
    // A CTE can read another CTE that is declared later, so iterate until nothing changes.
    let mut changed = true;
    while changed {
        changed = false;
        for (n, (_, queries)) in all.iter().enumerate() {
            let mut calls: Vec<usize> =
                queries.iter().flat_map(|q| list_reachable_calls(q, &cte_calls)).collect();
            calls.sort_unstable();
            calls.dedup();
            changed |= calls.len() > cte_calls[n].1.len();
            cte_calls[n].1 = calls;
        }
    }
    cte_calls.retain(|(_, calls)| !calls.is_empty());
    cte_calls
}

/// Returns the calls in a query and in the common table expressions that it reads.
pub(crate) fn list_reachable_calls(query: &Query, cte_calls: &CteCalls) -> Vec<usize> {
    let mut calls = Vec::new();
    query.visit_exprs(&mut |e| {
        if let ExprKind::Call(n, _) = &e.kind {
            calls.push(*n);
        }
    });
    if !cte_calls.is_empty() {
        query.visit_tables(&mut |table| calls.extend(find_cte_calls(table, cte_calls)));
        calls.sort_unstable();
        calls.dedup();
    }
    calls
}

/// Returns true if an expression must be rewritten: it has a call, or a subquery that reads a
/// common table expression with calls.
pub(crate) fn needs_rewrite(expr: &Expr, cte_calls: &CteCalls) -> bool {
    let mut found = expr.has_call();
    if !cte_calls.is_empty() {
        expr.visit_exprs(&mut |e| {
            found |= e.children().1.is_some_and(|q| !list_reachable_calls(q, cte_calls).is_empty());
        });
    }
    found
}

fn find_cte_calls<'c>(table: &str, cte_calls: &'c CteCalls) -> &'c [usize] {
    let named = |(name, _): &&(String, _)| name.eq_ignore_ascii_case(table);
    cte_calls.iter().find(named).map_or(&[], |(_, calls)| calls)
}

pub(crate) fn has_field(table: &crate::blendsql::scope::Table, name: &str) -> bool {
    table.fields.as_ref().is_none_or(|f| f.iter().any(|f| f.name.eq_ignore_ascii_case(name)))
}

/// Visits the calls of an expression that are not in a subquery.
pub(crate) fn visit_own_calls(expr: &Expr, visit: &mut dyn FnMut(usize)) {
    if let ExprKind::Call(n, _) = &expr.kind {
        visit(*n);
    }
    let (exprs, _) = expr.children();
    exprs.into_iter().for_each(|e| visit_own_calls(e, visit));
}

/// Returns true if a column is written in the legacy syntax `'t::c'`.
pub(crate) fn is_legacy_column(column: &Expr, sql: &str) -> bool {
    sql[column.span.clone()].contains("::")
}

/// Returns the number of predicates of a condition for which `depends_on_call` is true.
fn count_predicates(expr: &Expr, depends_on_call: &dyn Fn(&Expr) -> bool) -> usize {
    match &strip_expr_parens(expr).kind {
        ExprKind::And(all) | ExprKind::Or(all) => {
            all.iter().map(|e| count_predicates(e, depends_on_call)).sum()
        }
        ExprKind::Not(inner) => count_predicates(inner, depends_on_call),
        _ => usize::from(depends_on_call(expr)),
    }
}

/// Returns the query of an EXISTS or IN if a single row can decide the result, because further rows
/// never change it. For IN, the value of the rows must be known before any call is evaluated.
pub(crate) fn find_decisive_select<'e>(
    analysis: &Analysis<'_>,
    expr: &'e Expr,
    outer_scope: &Scope<'_>,
) -> Result<&'e Query, RejectionReason> {
    let (query, core) = find_decisive_select_by_syntax(expr)?;
    if matches!(expr.kind, ExprKind::In { .. }) {
        let resolver = analysis.resolver();
        let cte_scope = resolver.build_cte_scope(query, Some(outer_scope));
        let scope = resolver.build_select_scope(core, &cte_scope);
        find_candidate_value(analysis, core, &scope)
            .ok_or("the value of its rows is not a column of a table")?;
    }
    Ok(query)
}

/// Returns the value column of an IN's SELECT, if it is a plain column that depends on no call.
pub(crate) fn find_candidate_value<'e>(
    analysis: &Analysis<'_>,
    core: &'e SelectCore,
    scope: &Scope<'_>,
) -> Option<&'e Expr> {
    let [only] = core.columns.as_slice() else { return None };
    let column = |e: &&Expr| matches!(strip_expr_parens(e).kind, ExprKind::Column { .. });
    only.expr.as_ref().filter(column).filter(|e| !analysis.depends_on_call(e, scope))
}

/// Same as [`find_decisive_select`], but checks only the syntax.
pub(crate) fn find_decisive_select_by_syntax(
    expr: &Expr,
) -> Result<(&Query, &SelectCore), RejectionReason> {
    let (ExprKind::Exists(query) | ExprKind::In { query: Some(query), .. }) = &expr.kind else {
        return Err("it is neither EXISTS nor IN");
    };
    let Body::Core(core) = &query.body else { return Err("it is more than one SELECT") };
    if query.limit.is_some() || query.offset.is_some() {
        return Err("it has a LIMIT");
    }
    if !query.with.is_empty() {
        return Err("it has a WITH");
    }
    if !core.group.is_empty() || is_aggregate(core, query) || has_window(core, query) {
        return Err("it has a GROUP BY, an aggregate or a window function");
    }
    if core.has_outer_join() {
        return Err("it has a RIGHT or FULL JOIN");
    }
    if !core.filter.as_ref().is_some_and(Expr::has_call) {
        return Err("none of its conditions has a call");
    }
    Ok((query, core))
}

/// If an expression compares a count with a number, returns the count and the number of counted
/// rows that decide the comparison. The count can be a function or a scalar subquery.
pub(crate) fn find_compared_count<'e>(
    operator: &str,
    left: &'e Expr,
    right: &'e Expr,
    sql: &str,
) -> Option<(&'e Expr, u64)> {
    let (left, right) = (strip_expr_parens(left), strip_expr_parens(right));
    let is_count = |e: &Expr| match &e.kind {
        ExprKind::Function { name, window: None, .. } => name == "count",
        ExprKind::Scalar(_) => true,
        _ => false,
    };
    let (count, number, is_swapped) = match (is_count(left), is_count(right)) {
        (true, false) => (left, read_integer(right, sql)?, false),
        (false, true) => (right, read_integer(left, sql)?, true),
        _ => return None,
    };
    let number = u64::try_from(number).ok()?;
    let is_reached_by_number =
        matches!((operator, is_swapped), (">=" | "<", false) | ("<=" | ">", true));
    Some((count, number.saturating_add(u64::from(!is_reached_by_number)).max(1)))
}

/// Returns true if an expression is `count(*)`.
pub(crate) fn is_row_count(expr: &Expr) -> bool {
    matches!(&strip_expr_parens(expr).kind, ExprKind::Function { name, args, filter: None, window: None, .. }
        if name == "count" && args.is_empty())
}
