//! Decides whether a single pass can ask about all values of a query.

use super::possible_from::PossibleFrom;
use super::probe_select::list_values;
use super::{BoundWriter, list_join_conditions};
use crate::blendsql::aggregates::visit_own_exprs;
use crate::blendsql::frame::is_random_function;
use crate::blendsql::terms::{Clause, resolve_term_expr};
use crate::blendsql::tree::{Body, Expr, ExprKind, ExprOperator, JoinKind, Query, SelectCore};

/// Returns true if every call is evaluated for every row of the query, because calls occur only in
/// result columns and in positions that are always evaluated.
pub(super) fn asks_about_every_row(query: &Query) -> bool {
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

impl BoundWriter<'_> {
    /// Clears `is_single_pass` if a part of a SELECT waits for an answer of the same SELECT.
    pub fn update_single_pass(
        &mut self,
        query: &Query,
        core: &SelectCore,
        open: &PossibleFrom<'_>,
    ) {
        let live = |e: &Expr| self.analysis.depends_on_call(e, &open.frame.scope);
        let count = |e: &Expr| self.analysis.count_predicates(e, &open.frame.scope);
        let (values, joins) = (list_values(query, core), list_join_conditions(core));
        let conditions = core.filter.iter().chain(&core.having).chain(joins.iter().map(|j| j.on));
        let has_live_values = values.iter().any(|e| live(e));
        let stages = usize::from(!open.exact_tables)
            + conditions.clone().map(count).sum::<usize>()
            + usize::from(has_live_values);
        // The answers can change which rows a LIMIT keeps: an outer join counts a row as unmatched
        // while its matches are undecided.
        let changes_limit = query.limit.is_some()
            && (query.order.iter().any(|o| self.is_undetermined_term(&o.expr, core, open))
                || joins.iter().any(|j| j.join != JoinKind::Inner && count(j.on) > 0)
                || core.distinct && has_live_values
                || core.windows.iter().chain(&core.group).any(live));
        let mut waits = stages > 1 || changes_limit;
        for expr in values.iter().copied().chain(conditions) {
            visit_own_exprs(expr, &mut |e| match &e.kind {
                ExprKind::Function { name, args, filter, window, .. } => {
                    // The answers can change the row from which a SELECT with `min` or `max` takes
                    // its other columns. Later passes then reach new values.
                    let first = matches!(name.as_str(), "min" | "max") && window.is_none();
                    waits |= first && args.iter().any(live);
                    waits |= window.is_some() && query.limit.is_some() && live(e);
                    // The calls in a FILTER are answered before the aggregate's arguments are
                    // evaluated.
                    waits |= filter.as_deref().is_some_and(live) && args.iter().any(live);
                    let some = matches!(name.as_str(), "iif" | "if" | "coalesce" | "ifnull");
                    waits |= some && args.iter().filter(|a| live(a)).count() > 1;
                }
                // `SQLite` stops comparing rows, lists and ranges once the result is known.
                ExprKind::Operation(ExprOperator::Row | ExprOperator::Between, parts)
                | ExprKind::In { list: parts, .. } => {
                    waits |= parts.iter().skip(1).any(live);
                }
                ExprKind::Case { .. } | ExprKind::And(_) | ExprKind::Or(_) => {
                    waits |= e.children().0.into_iter().filter(|part| live(part)).count() > 1;
                }
                _ => {}
            });
        }
        self.is_single_pass &= !waits;
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
            drawn || self.analysis.depends_on_call(e, &open.frame.scope)
        };
        let Some(expr) = resolve_term_expr(term, Clause::Order, core, self.sql) else {
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
}
