//! Which rows of a SELECT its calls are needed for.

use super::rewrite::{Gate, Need, Rewriter, Role, name_text, own_calls};
use super::scope::{Scope, bare};
use super::tree::{Core, Expr, ExprKind, OrderTerm, Query};
use super::truth;

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

impl Rewriter<'_> {
    /// The gate of a SELECT, with the values it is given; `None` when every row
    /// is needed and there is nothing to learn.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn gate(
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
            query.order.iter().map(|o| self.order_key(&o.expr, core)).collect();
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
                let how = |o: &OrderTerm| (o.descending, o.nulls_first.unwrap_or(!o.descending));
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
            ends: self.last.as_ref() == Some(&core.span),
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
    fn order_key(&self, expr: &Expr, core: &Core) -> Option<String> {
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
