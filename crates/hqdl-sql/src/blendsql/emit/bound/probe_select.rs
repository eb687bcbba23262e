//! Writes the statements that evaluate the calls of a SELECT for all its possible rows.

use super::possible_from::PossibleFrom;
use super::{
    ANSWER_TABLE, BoundWriter, EvalPosition, INNER_TABLES, JoinCondition, OUTER_JOIN_ROWS,
    list_join_conditions,
};
use crate::blendsql::aggregates::visit_own_exprs;
use crate::blendsql::emit::sql;
use crate::blendsql::plan::barrier::{build_join_barrier, build_table_barrier};
use crate::blendsql::plan::condition::split_conjuncts;
use crate::blendsql::scope::{Field, Scope, Table};
use crate::blendsql::terms::{Clause, ResolvedTerm, resolve_term};
use crate::blendsql::tree::{
    Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore, Span,
};
use hqdl_values::sql::quote_name;

impl BoundWriter<'_> {
    /// Adds probes of the calls of a SELECT outside of its sources.
    pub fn probe_select(&mut self, query: &Query, core: &SelectCore, open: &PossibleFrom<'_>) {
        let outer = core.from.iter().any(|i| i.join == JoinKind::Outer);
        let joins = list_join_conditions(core);
        let early: Vec<&Expr> = core.filter.iter().chain(joins.iter().map(|j| j.on)).collect();
        let unnamed = self.find_unawaited_tables(&early, &open.frame.scope);
        let replacements: Option<Vec<(Span, String)>> =
            unnamed.iter().map(|t| build_null_row(t, core)).collect();
        let why = match (outer, &replacements) {
            (true, _) => Some(OUTER_JOIN_ROWS),
            (false, None) => Some(ANSWER_TABLE),
            (false, Some(_)) => core.from.iter().any(can_be_flattened).then_some(INNER_TABLES),
        };
        if let Some(why) = why {
            early.iter().for_each(|e| self.mark_all_unbounded(e, why));
        }
        let is_grouped = self.is_grouped(query, core, &open.frame);
        let exact_aggregates = open.exact && core.windows.is_empty() && !is_grouped;
        let at =
            EvalPosition { frame: &open.frame, per_group: false, exact_aggregates, is_grouped };
        let outer_group_calls = std::mem::take(&mut self.has_group_calls);
        let (moved, kept): (Vec<JoinCondition<'_>>, Vec<JoinCondition<'_>>) =
            joins.into_iter().partition(|j| j.join == JoinKind::Inner && !outer && j.depth == 0);
        self.probe_join_conditions(core, open, at, &kept);
        let clauses = format!(" WHERE {}", open.condition);
        // `SQLite` can evaluate the conditions before it reads a table that the conditions do not
        // reference.
        if let Some(replacements) = replacements.filter(|all| !all.is_empty())
            && let Some(text) = self.probe_exprs(early.iter().copied(), at)
        {
            let from = self.write_from_variants(core, open, core.from_end, &replacements);
            self.push_row_probes(&text, &from, &clauses);
        }
        let conditions: Vec<&Expr> =
            core.filter.iter().chain(moved.iter().map(|join| join.on)).collect();
        self.probe_conditions_without_columns(core, &conditions, at);
        // An aggregate in a subquery can belong to this SELECT.
        let within = self.analysis.find_outer_aggregates(core, query, &open.frame.scope);
        let values = list_values(query, core);
        let rows = conditions.iter().chain(&values).copied().chain(&core.having).chain(&within);
        let from = self.write_from_variants(core, open, core.from_end, &[]);
        if let Some(text) = self.probe_exprs(rows, at) {
            self.push_row_probes(&self.guard_values(text, core, at), &from, &clauses);
        }
        if std::mem::replace(&mut self.has_group_calls, outer_group_calls) {
            let at = EvalPosition { per_group: true, exact_aggregates: open.exact, ..at };
            let rows = values.iter().copied().chain(&core.having);
            if let Some(text) = self.probe_exprs(rows, at) {
                let clauses = format!("{clauses}{}", self.group_clause_sql(core, open));
                self.push_row_probes(&text, &from, &clauses);
            }
        }
    }

    /// Marks the calls of a SELECT outside of its sources as unbounded.
    pub fn mark_select_unbounded(&mut self, query: &Query, core: &SelectCore, why: &'static str) {
        let values = list_values(query, core).into_iter().chain(&core.filter).chain(&core.having);
        let joins = list_join_conditions(core);
        for expr in values.chain(joins.iter().map(|join| join.on)) {
            self.mark_all_unbounded(expr, why);
        }
        // A join by name compares answers before any inner condition has excluded a row.
        if core.from.iter().any(joins_by_name) {
            core.from.iter().for_each(|item| {
                item.visit_exprs(&mut |e| self.mark_all_unbounded(e, INNER_TABLES));
            });
        }
    }

    /// Adds probes of the join conditions that cannot move to WHERE; they come first.
    fn probe_join_conditions(
        &mut self,
        core: &SelectCore,
        open: &PossibleFrom<'_>,
        at: EvalPosition<'_>,
        joins: &[JoinCondition<'_>],
    ) {
        for JoinCondition { on, depth, .. } in joins {
            let aliased = Self::find_aliased_results(on, open);
            if let Some(text) = self.probe_exprs(aliased.iter().chain(std::iter::once(*on)), at) {
                let from = self.write_from_variants(core, open, on.span.end, &[]);
                self.push_row_probes(&text, &from, &")".repeat(*depth));
            }
        }
    }

    /// Adds a probe of the conditions that do not read the SELECT's own tables. Without a column to
    /// wait for, `SQLite` evaluates them first.
    fn probe_conditions_without_columns(
        &mut self,
        core: &SelectCore,
        conditions: &[&Expr],
        at: EvalPosition<'_>,
    ) {
        let scope = &at.frame.scope;
        if core.from.is_empty() || !build_join_barrier(scope).is_empty() {
            return;
        }
        let first: Vec<&Expr> = (conditions.iter().flat_map(|c| split_conjuncts(c)))
            .filter(|e| e.has_call() && !self.analysis.references_own_rows(e, scope))
            .collect();
        if let Some(text) = self.probe_exprs(first, at) {
            self.push_probe(text);
        }
    }

    /// Restricts a probe of a SELECT's calls to the rows whose results are used.
    fn guard_values(&self, text: String, core: &SelectCore, at: EvalPosition<'_>) -> String {
        let select = self.plan.find_select(core.span.start).filter(|_| at.exact_aggregates);
        match select.and_then(|s| s.value_guard.as_ref()) {
            Some(guard) => {
                sql::probe_of_first_rows_sql(&self.sql[guard.number.clone()], guard.last, &text)
            }
            None => text,
        }
    }

    fn group_clause_sql(&self, core: &SelectCore, open: &PossibleFrom<'_>) -> String {
        let group: Vec<String> =
            core.group.iter().map(|g| self.group_term_sql(g, core, open)).collect();
        if group.is_empty() { String::new() } else { format!(" GROUP BY {}", group.join(", ")) }
    }

    /// Returns the SQL of the expression that a GROUP BY term refers to.
    fn group_term_sql(&self, term: &Expr, core: &SelectCore, open: &PossibleFrom<'_>) -> String {
        match resolve_term(term, Clause::Group, core, self.sql) {
            ResolvedTerm::Result(n) => match core.columns.get(n).and_then(|c| c.expr.as_ref()) {
                Some(expr) => format!("({})", self.expr_sql(expr, &open.frame)),
                None => self.expr_sql(term, &open.frame),
            },
            _ => self.expr_sql(term, &open.frame),
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
            self.analysis.resolver().visit_expr(condition, scope, true, &mut |e, at, _| {
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
}

/// Returns the expressions of a SELECT whose values matter.
pub(super) fn list_values<'c>(query: &'c Query, core: &'c SelectCore) -> Vec<&'c Expr> {
    let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
    let order = query.order.iter().map(|o| &o.expr);
    columns.chain(&core.group).chain(&core.windows).chain(order).collect()
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
