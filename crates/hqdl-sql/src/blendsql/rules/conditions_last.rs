//! The rule of conditions last: conditions with calls are evaluated for the rows that
//! plain conditions and joins leave.
//!
//! Precondition: the condition is one of WHERE, or of an inner join where nothing is
//! joined by RIGHT or FULL, for there it means the same in WHERE. A plain condition
//! that may fail stays behind the calls that it stands behind: where they exclude the
//! row, it is not evaluated.
//!
//! `SQLite` evaluates a condition as soon as all that it names is there, so it names
//! every table. What a view or a subquery joins beneath it cannot name: that is read
//! as `SELECT … LIMIT -1`, which `SQLite` keeps apart, with the plain conditions that
//! are about it alone inside. The condition of a LEFT JOIN stays there, and names every
//! table up to it: where WHERE makes the join an inner one, `SQLite` reads it in any order.

use super::Rewriter;
use crate::blendsql::aggregates::is_aggregate;
use crate::blendsql::frame::is_random;
use crate::blendsql::rewrite::{Declared, has_field};
use crate::blendsql::scope::{Scope, Table};
use crate::blendsql::tree::{Body, Core, Expr, ExprKind, FromItem, FromSource, JoinKind, Query};
use crate::blendsql::truth;
use hqdl_values::sql;

impl Rewriter<'_> {
    /// Whether a query joins tables, and `SQLite` may make these part of the SELECT
    /// around it; those of an EXISTS, too, and one that a result of it
    /// names no column of.
    pub(in crate::blendsql) fn joins(&self, query: &Query) -> bool {
        if !query.with.is_empty() {
            return true;
        }
        match &query.body {
            Body::Core(core) => {
                let whole = core.distinct
                    || !core.group.is_empty()
                    || query.limit.is_some()
                    || is_aggregate(core, query);
                let mut exists = false;
                core.filter.iter().for_each(|f| {
                    f.each(&mut |e| exists |= matches!(e.kind, ExprKind::Exists(_)));
                });
                !whole
                    && (core.from.len() > 1
                        || exists
                        || core.computes_of_no_row()
                        || core.from.iter().any(|i| self.reads_join(i)))
            }
            Body::Compound(_, left, right) => self.joins(left) || self.joins(right),
            Body::Values(..) => false,
        }
    }

    /// Whether what a FROM clause reads there joins tables beneath it.
    pub(in crate::blendsql) fn reads_join(&self, item: &FromItem) -> bool {
        match &item.source {
            FromSource::Table { schema, name, .. } => {
                let named = |cte: &&Declared| cte.name.eq_ignore_ascii_case(name);
                match self.ctes.iter().rev().find(named).filter(|_| schema.is_none()) {
                    Some(cte) => cte.joins,
                    None => self.schema.joins(name),
                }
            }
            FromSource::Query(query) => self.joins(query),
            FromSource::Join(inner) => {
                item.name.is_some() || inner.iter().any(|i| self.reads_join(i))
            }
            FromSource::Function { .. } => false,
        }
    }

    /// Whether what a FROM clause reads there is limited to some rows. `SQLite` may make it
    /// part of the SELECT around it, and evaluate the results of that for rows which the
    /// limit leaves out.
    pub(in crate::blendsql) fn reads_limit(&self, item: &FromItem) -> bool {
        match &item.source {
            FromSource::Table { schema, name, .. } => {
                let named = |cte: &&Declared| cte.name.eq_ignore_ascii_case(name);
                match self.ctes.iter().rev().find(named).filter(|_| schema.is_none()) {
                    Some(cte) => cte.limits,
                    None => self.schema.limits(name),
                }
            }
            FromSource::Query(query) => self.is_limited(query),
            FromSource::Join(inner) => inner.iter().any(|i| self.reads_limit(i)),
            FromSource::Function { .. } => false,
        }
    }

    /// Whether a query is limited to some rows, or reads what is.
    pub(in crate::blendsql) fn is_limited(&self, query: &Query) -> bool {
        query.limit.is_some()
            || match &query.body {
                Body::Core(core) => core.from.iter().any(|i| self.reads_limit(i)),
                Body::Compound(_, left, right) => self.is_limited(left) || self.is_limited(right),
                Body::Values(..) => false,
            }
    }

    /// The plain conditions of WHERE that are about one table alone, for each table
    /// that has the rows which are joined.
    pub(in crate::blendsql) fn of_one_table(
        &self,
        core: &Core,
        plain: &[Expr],
        scope: &Scope<'_>,
    ) -> Vec<(String, String)> {
        let mut of: Vec<(String, String)> = Vec::new();
        if core.from.iter().any(|i| i.join == JoinKind::Outer) {
            return of;
        }
        let tables = core.from.iter().filter(|i| i.join == JoinKind::Inner);
        let names: Vec<&String> = tables.filter_map(|i| i.name.as_ref()).collect();
        for condition in plain.iter().filter(|e| !truth::may_fail(e)) {
            let (mut one, mut fine) = (None, true);
            self.resolver().each_in(condition, scope, true, &mut |e, at, _| match &e.kind {
                ExprKind::Column { table, column } => match at.find(table.as_deref(), column) {
                    Some(hit) if hit.depth == scope.depth => {
                        fine &= one.as_ref().is_none_or(|known| *known == hit.table.name);
                        one = Some(hit.table.name.clone());
                    }
                    Some(_) => {}
                    None => fine = false,
                },
                ExprKind::Function { name, .. } => fine &= !is_random(name),
                _ => {}
            });
            let Some(Some(name)) = one.filter(|_| fine) else { continue };
            if names.iter().filter(|n| n.eq_ignore_ascii_case(&name)).count() != 1 {
                continue;
            }
            let text = format!("({})", &self.sql[condition.span.clone()]);
            match of.iter_mut().find(|(known, _)| *known == name) {
                Some((_, all)) => all.push_str(&format!(" AND {text}")),
                None => of.push((name, text)),
            }
        }
        of
    }

    /// What a FROM clause reads, as `SQLite` keeps it apart.
    pub(in crate::blendsql) fn apart(
        text: &str,
        name: Option<&str>,
        plain: &[(String, String)],
    ) -> String {
        let of = name.and_then(|n| plain.iter().find(|(known, _)| known.eq_ignore_ascii_case(n)));
        let filter = of.map_or(String::new(), |(_, all)| format!(" WHERE {all}"));
        format!("SELECT * FROM {text}{filter} LIMIT -1")
    }

    /// Whether a condition has a subquery that runs for each row.
    pub(in crate::blendsql) fn hangs_on_rows(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().each_in(expr, scope, true, &mut |e, at, _| match &e.kind {
            ExprKind::Exists(_) => found = true,
            ExprKind::Column { table, column } if at.depth > scope.depth => {
                found |=
                    at.find(table.as_deref(), column).is_none_or(|hit| hit.depth <= scope.depth);
            }
            _ => {}
        });
        found
    }
}

/// A column, of each table that a scope reads, that hangs on no answer: a condition that
/// names them waits for a row of these tables.
pub(in crate::blendsql) fn fence(scope: &Scope<'_>) -> Vec<String> {
    fence_of(&scope.tables, scope)
}

/// The same, of some of these tables.
pub(in crate::blendsql) fn fence_of(tables: &[Table], scope: &Scope<'_>) -> Vec<String> {
    let of = |table: &Table| {
        if table.name.is_some() {
            return table.any_column();
        }
        // A name that no other table has means this one's.
        let fields = table.fields.as_ref()?;
        let alone = |name: &str| {
            let having = |t: &&Table| has_field(t, name);
            scope.tables.iter().filter(having).count() == 1
        };
        let own = fields.iter().find(|f| !f.live && !f.name.is_empty() && alone(&f.name))?;
        Some(sql::name(&own.name))
    };
    tables.iter().filter_map(of).collect()
}

/// Takes those of some plain conditions that may fail and stand behind a call.
pub(in crate::blendsql) fn held_back(plain: &mut Vec<Expr>, calls: &[Expr]) -> Vec<Expr> {
    let Some(call) = calls.iter().map(|c| c.span.start).min() else { return Vec::new() };
    let held = |e: &Expr| e.span.start > call && truth::may_fail(e);
    let (held, rest) = std::mem::take(plain).into_iter().partition(|e| held(e));
    *plain = rest;
    held
}
