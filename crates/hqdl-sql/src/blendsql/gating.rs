//! Which rows of a SELECT its calls are needed for.

use super::rewrite::{Gate, Need, Rewriter, Role, name_text, own_calls};
use super::scope::{Scope, bare};
use super::select::fence;
use super::tree::{Core, Expr, ExprKind, FromItem, Join, OrderTerm, Query, ResultColumn, Source};
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
    // All that a SELECT stands in; a struct of it would be made for this one call.
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
            let result = self.result_of(&o.expr, core).and_then(|c| c.expr.as_ref());
            self.bears(result.unwrap_or(&o.expr), scope)
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
                Some(offset) => limit.saturating_add(number(Some(offset), self.sql).unwrap_or(0)),
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
        // What tells the runs of a correlated query apart.
        let once = core.span.start == self.root;
        let outer = if once { Some(Vec::new()) } else { self.outer_names(query, core, around) };
        // Rows are told apart only where every one that comes is one of the result.
        let steady = outer.is_some() && fence(scope).1 && self.is_steady(core, around);
        let retrieval = (self.retrieves
            && self.last.as_ref() == Some(&core.span)
            && role == Role::Rows
            && steady
            && !core.distinct)
            .then(|| self.retrieval(calls))
            .flatten();
        let need = match rows {
            Some(k) if stops && query.order.is_empty() && k > 0 && retrieval.is_some() => {
                Need::Ranked(k, skipped, vec![(false, false)])
            }
            Some(k) if stops && query.order.is_empty() => Need::First(k),
            Some(k)
                if whole
                    && steady
                    && !windowed
                    && !query.order.is_empty()
                    && !ordered_by_call
                    && self.plain_order
                    && order.is_some()
                    && (!grouped || calls.is_empty())
                    && (!core.distinct
                        || plain_results
                            && query
                                .order
                                .iter()
                                .all(|o| self.is_result(&o.expr, core, scope))) =>
            {
                let how = |o: &OrderTerm| (o.descending, o.nulls_first.unwrap_or(!o.descending));
                Need::Ranked(k, skipped, query.order.iter().map(how).collect())
            }
            _ => Need::All,
        };
        let as_set = core.distinct || role == Role::Set;
        let distinct: Option<Vec<String>> =
            (as_set && stops && steady && plain_results && !calls.is_empty()
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
        let outer = outer.unwrap_or_default();
        let retrieved = query.order.is_empty() && matches!(need, Need::Ranked(..));
        let order = match &need {
            Need::Ranked(..) if retrieved => {
                let (calls, rank) = retrieval.unzip();
                self.out.likened.extend(calls.into_iter().flatten());
                rank.into_iter().collect()
            }
            Need::Ranked(..) => order.unwrap_or_default(),
            _ => Vec::new(),
        };
        let ranked = matches!(need, Need::Ranked(..));
        let gate = Gate {
            at: core.span.start,
            once,
            need,
            outer: outer.len(),
            distinct: distinct.as_ref().map(Vec::len),
            conditions,
            ends: self.last.as_ref() == Some(&core.span),
            retrieved,
        };
        let values = outer.into_iter().chain(distinct.into_iter().flatten()).chain(order).collect();
        // A SELECT that is written twice has one gate.
        let known = self.out.gates.iter().position(|g| g.at == gate.at);
        let n = known.unwrap_or(self.out.gates.len());
        if known.is_none() {
            self.out.gates.push(gate);
        }
        // Calls are told apart from those of subqueries, which have gates of their own.
        let mut own_of_gate: Vec<usize> = Vec::new();
        calls.iter().for_each(|c| own_calls(c, &mut |at| own_of_gate.push(at)));
        for (at, column) in core.columns.iter().enumerate() {
            if let Some(expr) = &column.expr
                && !(ranked && is_early(column, at, core, self.sql))
            {
                values_of_row(expr, ranked && grouped, &mut |at| own_of_gate.push(at));
            }
        }
        for call in own_of_gate {
            self.out.gate_of.entry(call).or_insert(n);
        }
        Some((n, values))
    }

    /// What puts the rows of a SELECT in the order of how much its documents are
    /// like what is asked of them; `None` when nothing is.
    fn retrieval(&self, calls: &[&Expr]) -> Option<(Vec<usize>, String)> {
        let (mut of, mut numbers): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
        calls.iter().for_each(|c| {
            own(c, &mut |e| {
                if let ExprKind::Call(n, args) = &e.kind
                    && self.sites[*n].document
                    && let [document] = args.as_slice()
                    && !document.has_call()
                {
                    numbers.push(*n);
                    of.push(format!("{n}, ({})", &self.sql[document.span.clone()]));
                }
            });
        });
        (!of.is_empty()).then(|| (numbers, format!("hq_rank({})", of.join(", "))))
    }

    /// The names in a query that mean something of the rows around it; `None`
    /// when one cannot be told.
    fn outer_names(&self, query: &Query, core: &Core, around: &Scope<'_>) -> Option<Vec<String>> {
        let mut outer: Vec<String> = Vec::new();
        let mut sure = true;
        self.resolver().each(query, around, &mut |e, at, _| {
            let ExprKind::Column { table, column } = &e.kind else { return };
            let is_outer = match at.find(table.as_deref(), column) {
                Some(found) => Some(found.depth < around.depth),
                None => at.place(table.as_deref(), column).map(|depth| depth < around.depth),
            };
            let named = |name: &str| column.eq_ignore_ascii_case(name);
            match is_outer {
                Some(false) => {}
                Some(true) => {
                    let text = name_text(e, self.sql);
                    if !outer.contains(&text) {
                        outer.push(text);
                    }
                }
                None => {
                    sure &= table.is_none()
                        && (named("true")
                            || named("false")
                            || core.columns.iter().any(|c| c.alias.as_deref().is_some_and(named)));
                }
            }
        });
        sure.then_some(outer)
    }

    /// Whether rows come to the conditions of a SELECT once, after all that
    /// joins decide.
    fn is_steady(&self, core: &Core, around: &Scope<'_>) -> bool {
        let mut left = false;
        core.from.iter().all(|item| {
            let by_names = item.natural || !item.using.is_empty();
            let late = left && item.join == Join::Inner && by_names;
            left |= item.join == Join::Left;
            !late && self.is_steady_item(item, around)
        })
    }

    fn is_steady_item(&self, item: &FromItem, around: &Scope<'_>) -> bool {
        // The rows of RIGHT and FULL JOIN may come twice. An EXISTS in what is read
        // may be made a join of this SELECT, after its conditions.
        let plain = match &item.source {
            Source::Table { name, schema } => {
                let cte = schema.is_none() && around.knows_cte(name);
                !(cte && self.sql.to_lowercase().contains("exists"))
                    && (cte || !self.schema.hides_exists(name))
            }
            Source::Function { .. } => true,
            Source::Query(query) => {
                let mut exists = false;
                query.each(&mut |e| exists |= matches!(e.kind, ExprKind::Exists(_)));
                !exists
            }
            Source::Join(items) => items.iter().all(|i| self.is_steady_item(i, around)),
        };
        plain && item.join != Join::Outer
    }

    /// The result column that a term of ORDER BY names.
    fn result_of<'c>(&self, expr: &Expr, core: &'c Core) -> Option<&'c ResultColumn> {
        let n = match (position(expr, self.sql), &bare(expr).kind) {
            (Some(n), _) => n,
            (None, ExprKind::Column { table: None, column }) => {
                let named = |a: &String| a.eq_ignore_ascii_case(column);
                core.columns.iter().position(|c| c.alias.as_ref().is_some_and(named))?
            }
            _ => return None,
        };
        core.columns.get(n)
    }

    /// Whether equal result columns have an equal term of ORDER BY.
    fn is_result(&self, expr: &Expr, core: &Core, scope: &Scope<'_>) -> bool {
        if self.result_of(expr, core).is_some() {
            return true;
        }
        let place = |expr: &Expr| match &bare(expr).kind {
            ExprKind::Column { table, column } => scope
                .find(table.as_deref(), column)
                .map(|f| (f.depth, f.table.name.clone(), f.field.name.clone())),
            _ => None,
        };
        let own = place(expr);
        core.columns.iter().any(|c| match (&c.expr, &own) {
            (Some(result), _) if own.is_some() && place(result) == own => true,
            (Some(result), _) => {
                self.sql[bare(result).span.clone()] == self.sql[bare(expr).span.clone()]
            }
            (None, Some((depth, table, _))) => {
                let named =
                    |of: &String| table.as_ref().is_some_and(|t| t.eq_ignore_ascii_case(of));
                *depth == scope.depth && c.star_of.as_ref().is_none_or(named)
            }
            (None, None) => false,
        })
    }

    /// The text that an ORDER BY term means, where it stands in SELECT or WHERE.
    fn order_key(&self, expr: &Expr, core: &Core) -> Option<String> {
        if let Some(n) = position(expr, self.sql)
            && core.columns.iter().take(n + 1).any(|c| c.expr.is_none())
        {
            // A star stands for as many columns as its tables have.
            return None;
        }
        let meant = match self.result_of(expr, core) {
            Some(result) => result.expr.as_ref()?,
            None => expr,
        };
        Some(format!("({})", &self.sql[meant.span.clone()]))
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
                        hqdl_values::sql::name(name),
                        hqdl_values::sql::name(&field.name)
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

/// Whether a result column is evaluated before its row or group is counted: its
/// alias or its number stands in GROUP BY, HAVING or ON.
fn is_early(column: &ResultColumn, at: usize, core: &Core, sql: &str) -> bool {
    let mut found = core.group.iter().any(|g| position(g, sql) == Some(at));
    if let Some(alias) = &column.alias {
        let mut see = |e: &Expr| {
            found |= matches!(&e.kind, ExprKind::Column { table: None, column }
                if column.eq_ignore_ascii_case(alias));
        };
        core.group.iter().chain(&core.having).for_each(|e| e.each(&mut see));
        core.from.iter().for_each(|i| i.each(&mut see));
    }
    found
}

/// Calls in a value of a row; of a group's, those outside its aggregates.
fn values_of_row(expr: &Expr, group: bool, see: &mut dyn FnMut(usize)) {
    match &expr.kind {
        ExprKind::Call(n, _) => see(*n),
        ExprKind::Function { name, window: false, .. }
            if group && AGGREGATES.contains(&name.as_str()) =>
        {
            return;
        }
        _ => {}
    }
    let (exprs, _) = expr.inside();
    exprs.into_iter().for_each(|e| values_of_row(e, group, see));
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
    let mut found = !core.windows.is_empty();
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
