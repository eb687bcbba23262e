//! Rule: conditions with calls are evaluated last, for the rows that all other conditions and joins
//! keep.
//!
//! Precondition: the condition is in WHERE, or in an inner join if no join is RIGHT or FULL,
//! because then it has the same meaning in WHERE. A condition without calls that may fail stays
//! after the calls that precede it, so that it is not evaluated for a row that these exclude.
//!
//! `SQLite` evaluates a condition as soon as all referenced columns are available, so the condition
//! references every table. It cannot reference the tables that a view or subquery joins internally.
//! Such a source is read as `SELECT … LIMIT -1`, which `SQLite` does not flatten, and the
//! conditions about that source alone move inside. The condition of a LEFT JOIN stays there and
//! references every table up to it, because `SQLite` reorders the join if WHERE makes it an inner
//! one.

use super::Rewriter;
use crate::blendsql::aggregates::is_aggregate;
use crate::blendsql::frame::is_random;
use crate::blendsql::rewrite::{VisibleCte, has_field};
use crate::blendsql::scope::{Scope, Table};
use crate::blendsql::tree::{
    Body, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore,
};
use crate::blendsql::truth;
use hqdl_values::sql;

impl Rewriter<'_> {
    /// Returns true if a query joins tables and `SQLite`'s flattener may merge it into the
    /// enclosing SELECT. Joins inside EXISTS count, and so does a result that references no column.
    pub(in crate::blendsql) fn may_join_tables(&self, query: &Query) -> bool {
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
                        || core.from.iter().any(|i| self.reads_join(i)))
            }
            Body::Compound(_, left, right) => {
                self.may_join_tables(left) || self.may_join_tables(right)
            }
            Body::Values(..) => false,
        }
    }

    /// Returns true if a FROM entry joins tables internally.
    pub(in crate::blendsql) fn reads_join(&self, item: &FromItem) -> bool {
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
                item.name.is_some() || inner.iter().any(|i| self.reads_join(i))
            }
            FromSource::Function { .. } => false,
        }
    }

    /// Returns true if a FROM entry has a LIMIT. `SQLite` may flatten it into the enclosing SELECT
    /// and evaluate that SELECT's results for rows beyond the limit.
    pub(in crate::blendsql) fn reads_limit(&self, item: &FromItem) -> bool {
        match &item.source {
            FromSource::Table { schema, name, .. } => {
                let named = |cte: &&VisibleCte| cte.name.eq_ignore_ascii_case(name);
                match self.visible_ctes.iter().rev().find(named).filter(|_| schema.is_none()) {
                    Some(cte) => cte.may_have_limit,
                    None => self.schema.may_have_limit(name),
                }
            }
            FromSource::Query(query) => self.has_limit(query),
            FromSource::Join(inner) => inner.iter().any(|i| self.reads_limit(i)),
            FromSource::Function { .. } => false,
        }
    }

    /// Returns true if a query has a LIMIT, or reads a source that has one.
    pub(in crate::blendsql) fn has_limit(&self, query: &Query) -> bool {
        query.limit.is_some()
            || match &query.body {
                Body::Core(core) => core.from.iter().any(|i| self.reads_limit(i)),
                Body::Compound(_, left, right) => self.has_limit(left) || self.has_limit(right),
                Body::Values(..) => false,
            }
    }

    /// Returns the conditions without calls that reference a single table, combined per table.
    /// Returns an empty list if a join is RIGHT or FULL.
    pub(in crate::blendsql) fn single_table_conditions(
        &self,
        core: &SelectCore,
        plain: &[Expr],
        scope: &Scope<'_>,
    ) -> Vec<(String, String)> {
        let mut conditions: Vec<(String, String)> = Vec::new();
        if core.from.iter().any(|i| i.join == JoinKind::Outer) {
            return conditions;
        }
        let tables = core.from.iter().filter(|i| i.join == JoinKind::Inner);
        let names: Vec<&String> = tables.filter_map(|i| i.name.as_ref()).collect();
        for condition in plain.iter().filter(|e| !truth::may_fail(e)) {
            let (mut table_name, mut is_single_table) = (None, true);
            self.resolver().visit_expr(condition, scope, true, &mut |e, at, _| match &e.kind {
                ExprKind::Column { table, column } => {
                    match at.find_column(table.as_deref(), column) {
                        Some(hit) if hit.depth == scope.depth => {
                            is_single_table &=
                                table_name.as_ref().is_none_or(|known| *known == hit.table.name);
                            table_name = Some(hit.table.name.clone());
                        }
                        Some(_) => {}
                        None => is_single_table = false,
                    }
                }
                ExprKind::Function { name, .. } => is_single_table &= !is_random(name),
                _ => {}
            });
            let Some(Some(name)) = table_name.filter(|_| is_single_table) else { continue };
            if names.iter().filter(|n| n.eq_ignore_ascii_case(&name)).count() != 1 {
                continue;
            }
            let text = format!("({})", &self.sql[condition.span.clone()]);
            match conditions.iter_mut().find(|(known, _)| *known == name) {
                Some((_, all)) => all.push_str(&format!(" AND {text}")),
                None => conditions.push((name, text)),
            }
        }
        conditions
    }

    /// Returns a FROM source as a subquery that `SQLite` does not flatten.
    pub(in crate::blendsql) fn materialization_fence_sql(
        text: &str,
        name: Option<&str>,
        conditions: &[(String, String)],
    ) -> String {
        let own_conditions =
            name.and_then(|n| conditions.iter().find(|(known, _)| known.eq_ignore_ascii_case(n)));
        let filter = own_conditions.map_or(String::new(), |(_, all)| format!(" WHERE {all}"));
        format!("SELECT * FROM {text}{filter} LIMIT -1")
    }

    /// Returns true if a condition has a correlated subquery or an EXISTS.
    pub(in crate::blendsql) fn has_correlated_subquery(
        &self,
        expr: &Expr,
        scope: &Scope<'_>,
    ) -> bool {
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
}

/// Returns a column of each table in the scope that depends on no answer. A condition that
/// references them all waits for complete rows of these tables.
pub(in crate::blendsql) fn join_barrier(scope: &Scope<'_>) -> Vec<String> {
    join_barrier_of(&scope.tables, scope)
}

/// Same as [`fence`] for some of the scope's tables.
pub(in crate::blendsql) fn join_barrier_of(tables: &[Table], scope: &Scope<'_>) -> Vec<String> {
    let column_of = |table: &Table| {
        if table.name.is_some() {
            return table.column_without_call();
        }
        // An unqualified name is unambiguous if no other table has it.
        let fields = table.fields.as_ref()?;
        let is_unambiguous = |name: &str| {
            let has_column = |t: &&Table| has_field(t, name);
            scope.tables.iter().filter(has_column).count() == 1
        };
        let own = fields
            .iter()
            .find(|f| !f.is_from_call && !f.name.is_empty() && is_unambiguous(&f.name))?;
        Some(sql::quote_name(&own.name))
    };
    tables.iter().filter_map(column_of).collect()
}

/// Removes from `plain` the conditions that may fail and follow a call, and returns them.
pub(in crate::blendsql) fn take_deferred_conditions(
    plain: &mut Vec<Expr>,
    calls: &[Expr],
) -> Vec<Expr> {
    let Some(call) = calls.iter().map(|c| c.span.start).min() else { return Vec::new() };
    let is_deferred = |e: &Expr| e.span.start > call && truth::may_fail(e);
    let (deferred, rest) = std::mem::take(plain).into_iter().partition(|e| is_deferred(e));
    *plain = rest;
    deferred
}
