//! Rewrites a single SELECT: evaluates its conditions with calls last and records them per row.

use super::emit;
use super::frame::is_random;
use super::rewrite::{Rewriter, Role, has_field, split_conjuncts};
use super::rules::conditions_last::{join_barrier, join_barrier_of, take_deferred_conditions};
use super::rules::{CONDITIONS_LAST, GROUP_CONDITIONS};
use super::scope::{Scope, without_parens};
use super::tree::{Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore, Span};
use super::truth;
use hqdl_values::sql;

/// The conditions of a SELECT, split by whether they have calls.
struct SelectConditions<'c> {
    /// Whether inner join conditions can move to WHERE, i.e. no join is RIGHT or FULL.
    movable: bool,
    /// Conditions of WHERE without calls.
    plain: Vec<Expr>,
    /// Conditions of WHERE with calls.
    calls: Vec<Expr>,
    /// Inner joins that have calls: their conditions without calls, and those with calls.
    join_conditions: Vec<(&'c FromItem, Vec<Expr>, Vec<Expr>)>,
    /// Inner join conditions without calls that `SQLite` might evaluate after the calls.
    late_join_conditions: Vec<Expr>,
}

impl Rewriter<'_> {
    /// Rewrites a SELECT.
    #[expect(clippy::too_many_lines, reason = "the clauses of a SELECT in their order")]
    pub(super) fn rewrite_select(
        &mut self,
        query: &Query,
        core: &SelectCore,
        outer_scope: &Scope<'_>,
        role: Role,
        parts: &mut Vec<(Span, String)>,
    ) {
        let scope = self.resolver().select_scope(core, outer_scope);
        let outer_select = std::mem::replace(&mut self.current_select, core.span.start);
        let aliases: Vec<&str> = core
            .columns
            .iter()
            .filter(|c| c.expr.as_ref().is_some_and(|e| self.depends_on_call(e, &scope)))
            .filter_map(|c| c.alias.as_deref())
            .filter(|a| scope.tables.iter().all(|t| !has_field(t, a)))
            .collect();
        let outer_aliases =
            std::mem::replace(&mut self.aliases, aliases.iter().map(|a| (*a).to_owned()).collect());
        let SelectConditions {
            movable,
            mut plain,
            calls: where_calls,
            join_conditions,
            late_join_conditions,
        } = self.split_conditions(core, &scope);
        let join_calls = join_conditions.iter().flat_map(|(_, _, calls)| calls);
        let calls: Vec<&Expr> = where_calls.iter().chain(join_calls).collect();
        self.record_conditions(core, &calls, movable);
        let mut limit_pushdown = self.plan_limit_pushdown(query, core, &scope, &calls);
        // Conditions that must wait for whole source rows; with a LIMIT plan, the rows are already
        // whole.
        let waits_for_rows = !calls.is_empty()
            && limit_pushdown.as_ref().is_none_or(|f| f.is_grouped)
            || core.from.iter().any(|i| self.join_depends_on_call(i, &scope));
        let fenced_conditions =
            waits_for_rows.then(|| self.single_table_conditions(core, &plain, &scope));
        let aliases = std::mem::replace(&mut self.aliases, outer_aliases);
        for item in &core.from {
            let materialization_fence = self.materialization_fence(
                item,
                has_own_call(query, core),
                fenced_conditions.as_deref(),
            );
            self.rewrite_source(item, outer_scope, &scope, materialization_fence, parts);
        }
        let outer_aliases = std::mem::replace(&mut self.aliases, aliases);
        let join_barrier = join_barrier(&scope);
        // Conditions on grouping columns wait for the HAVING conditions without calls.
        let (group_conditions, calls): (Vec<&Expr>, Vec<&Expr>) = match &core.having {
            Some(having)
                if split_conjuncts(having).iter().any(|h| !self.depends_on_call(h, &scope)) =>
            {
                calls.into_iter().partition(|c| self.depends_only_on_group(c, core, &scope))
            }
            _ => (Vec::new(), calls),
        };
        if !core.group.is_empty() {
            self.record_outcome(core, GROUP_CONDITIONS, match group_conditions.len() {
                0 => Err("no condition with calls is on grouping columns alone, or HAVING has no plain part"),
                n => Ok(format!("{n} after the plain part of HAVING")),
            });
        }
        let mut combined = None;
        let mut guards: Vec<Expr> = Vec::new();
        // A condition that may fail must stay after the calls that precede it in the text.
        let deferred = take_deferred_conditions(&mut plain, &where_calls);
        let mut text =
            if calls.is_empty() { "1".to_owned() } else { truth::all_hold(self, &calls, &scope) };
        for deferred in &deferred {
            text =
                emit::and_then(&text, &emit::plain_truth(&self.sql[deferred.span.clone()], true));
        }
        if let Some(limit_pushdown) = limit_pushdown.as_mut().filter(|f| !f.is_grouped) {
            limit_pushdown.truth = text;
        } else if !calls.is_empty() {
            if self.complete_selects.contains(&core.span.start) {
                text = emit::is_known_true(&text);
            }
            // SQLite evaluates a condition that references no table before it reads a row.
            let references_rows = calls.iter().any(|c| self.references_own_rows(c, &scope));
            if join_barrier.len() > 1 || (!join_barrier.is_empty() && !references_rows) {
                text = emit::after_row_barrier(&join_barrier, &text);
            }
            // Put conditions that SQLite would evaluate later, or convert to a join, before the
            // calls.
            (guards, plain) =
                plain.into_iter().partition(|e| self.has_correlated_subquery(e, &scope));
            for guard in
                guards.iter().chain(if movable { &late_join_conditions } else { &[][..] }).rev()
            {
                let guard = &self.sql[guard.span.clone()];
                text = emit::guard_truth(&format!("({guard})"), &text);
            }
            let conditions = calls.iter().map(|c| truth::count_predicates(self, c, &scope)).sum();
            let condition_group = self.condition_group_index(core.span.start, conditions);
            // Rows with the same value are equivalent candidates.
            let candidate =
                if role == Role::Set { self.candidate_value(core, &scope) } else { None };
            let value = candidate.map(|e| &self.sql[e.span.clone()]);
            combined =
                Some(format!("(SELECT {})", emit::record_row(condition_group, &text, value)));
        }
        if calls.is_empty() {
            plain.extend(deferred);
        }
        let is_rewritten = !where_calls.is_empty() || combined.is_some() || !guards.is_empty();
        let plain = is_rewritten.then_some(plain.as_slice());
        self.write_conditions(core, plain, &join_conditions, combined, parts);
        self.rewrite_outer_joins(core, &scope, movable, parts);
        if let Some(having) = &core.having
            && (self.depends_on_call(having, &scope) || !group_conditions.is_empty())
        {
            let mut all = split_conjuncts(having);
            all.extend(&group_conditions);
            let text = truth::all_hold(self, &all, &scope);
            let condition_group = self.condition_group_index(having.span.start, 1);
            parts.push((having.span.clone(), emit::record_row(condition_group, &text, None)));
        }
        if let Some(limit_pushdown) = limit_pushdown {
            self.rewrite_limited_select(limit_pushdown, query, core, &scope, parts);
        }
        self.rewrite_values(query, core, &scope, parts);
        self.rewrite_limits(query, &scope, parts);
        self.name_results(core, parts);
        self.aliases = outer_aliases;
        self.current_select = outer_select;
    }

    /// Rewrites all expressions of a SELECT except its conditions.
    fn rewrite_values(
        &mut self,
        query: &Query,
        core: &SelectCore,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        let outer_lookup_only = self.lookup_only;
        self.lookup_only |= self.complete_selects.contains(&core.span.start);
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let order = query.order.iter().map(|o| &o.expr);
        for expr in columns.chain(&core.group).chain(&core.windows).chain(order) {
            if !parts.iter().any(|(span, _)| *span == expr.span) {
                self.push_value(expr, scope, parts);
            }
        }
        self.lookup_only = outer_lookup_only;
    }

    /// Splits the conditions of a SELECT, including join conditions that can move to WHERE.
    fn split_conditions<'c>(
        &self,
        core: &'c SelectCore,
        scope: &Scope<'_>,
    ) -> SelectConditions<'c> {
        // Inner join conditions have the same meaning in WHERE.
        let movable = core.from.iter().all(|i| i.join != JoinKind::Outer);
        let split_by_calls = |expr: &Expr| -> (Vec<Expr>, Vec<Expr>) {
            split_conjuncts(expr)
                .into_iter()
                .cloned()
                .partition(|e| !self.depends_on_call(e, scope))
        };
        let (plain, calls) = core.filter.as_ref().map(split_by_calls).unwrap_or_default();
        let mut join_conditions: Vec<(&FromItem, Vec<Expr>, Vec<Expr>)> = Vec::new();
        for item in core.from.iter().filter(|i| i.join == JoinKind::Inner && movable) {
            if let Some(on) = item.on.as_ref().filter(|on| self.depends_on_call(on, scope)) {
                let (plain, calls) = split_by_calls(on);
                join_conditions.push((item, plain, calls));
            }
        }
        // Evaluate join conditions after those of WHERE unless something else determines the order.
        let after_left = core.from.iter().any(|i| i.join == JoinKind::Left);
        let late_join_conditions: Vec<Expr> =
            (core.from.iter().filter(|i| i.join == JoinKind::Inner))
                .filter_map(|i| i.on.as_ref())
                .flat_map(|on| split_by_calls(on).0)
                .filter(|e| after_left || self.has_correlated_subquery(e, scope))
                .collect();
        SelectConditions { movable, plain, calls, join_conditions, late_join_conditions }
    }

    /// Records in the plan the conditions with calls and whether they are evaluated last.
    fn record_conditions(&mut self, core: &SelectCore, calls: &[&Expr], movable: bool) {
        for call in calls {
            let text: Vec<&str> = self.sql[call.span.clone()].split_whitespace().collect();
            self.out.plan.select_mut(core.span.start).conditions.push(text.join(" "));
        }
        self.record_outcome(
            core,
            CONDITIONS_LAST,
            match (calls.is_empty(), movable) {
                (false, true) => {
                    Ok("only for rows that pass the plain conditions and joins".to_owned())
                }
                (false, false) => {
                    Ok("only those of WHERE, because of a RIGHT or FULL JOIN".to_owned())
                }
                (true, _) => Err("no condition of WHERE or of an inner join has a call"),
            },
        );
    }

    /// Writes the conditions without calls, if WHERE must be rewritten, followed by the conditions
    /// with calls. Without a WHERE, these follow the conditions of the first join that has calls.
    fn write_conditions(
        &self,
        core: &SelectCore,
        plain: Option<&[Expr]>,
        join_conditions: &[(&FromItem, Vec<Expr>, Vec<Expr>)],
        mut combined: Option<String>,
        parts: &mut Vec<(Span, String)>,
    ) {
        if let (Some(filter), Some(plain)) = (&core.filter, plain) {
            parts.push((filter.span.clone(), self.and_conditions(plain, combined.take())));
        }
        if core.filter.is_none()
            && join_conditions.is_empty()
            && let Some(text) = combined.take()
        {
            parts.push((core.from_end..core.from_end, format!(" WHERE {text}")));
        }
        for (item, plain, _) in join_conditions {
            if let Some(on) = &item.on {
                parts.push((on.span.clone(), self.and_conditions(plain, combined.take())));
            }
        }
    }

    /// Joins unchanged conditions and an optional rewritten one with AND.
    fn and_conditions(&self, plain: &[Expr], more: Option<String>) -> String {
        let mut all: Vec<String> =
            plain.iter().map(|e| format!("({})", &self.sql[e.span.clone()])).collect();
        all.extend(more);
        if all.is_empty() { "1".to_owned() } else { all.join(" AND ") }
    }

    /// Rewrites the join conditions with calls that cannot move to WHERE.
    fn rewrite_outer_joins(
        &mut self,
        core: &SelectCore,
        scope: &Scope<'_>,
        movable: bool,
        parts: &mut Vec<(Span, String)>,
    ) {
        let mut tables = 0;
        for item in &core.from {
            tables += table_count(item);
            let stays_in_join = item.join != JoinKind::Inner || !movable;
            if let Some(on) =
                item.on.as_ref().filter(|on| stays_in_join && self.depends_on_call(on, scope))
            {
                let (plain, calls): (Vec<Expr>, Vec<Expr>) = split_conjuncts(on)
                    .into_iter()
                    .cloned()
                    .partition(|e| !self.depends_on_call(e, scope));
                let calls: Vec<&Expr> = calls.iter().collect();
                let mut text = truth::all_hold(self, &calls, scope);
                // `SQLite` can convert a LEFT JOIN to an inner join because of WHERE and then
                // reorder it. Therefore the condition waits for a row of all preceding tables and
                // for its own parts without calls.
                if movable {
                    let before = scope.tables.get(..tables).unwrap_or_default();
                    text = emit::after_row_barrier(&join_barrier_of(before, scope), &text);
                }
                for plain in plain.iter().rev().filter(|e| is_cheap_and_stable(e)) {
                    let plain = &self.sql[plain.span.clone()];
                    text = emit::guard_truth(&format!("({plain})"), &text);
                }
                let text = self.and_conditions(&plain, Some(format!("(SELECT {text}) = 1")));
                parts.push((on.span.clone(), text));
            }
        }
    }

    /// Records the original names of the result columns whose text has changed.
    fn name_results(&mut self, core: &SelectCore, parts: &[(Span, String)]) {
        for expr in
            core.columns.iter().filter(|c| c.alias.is_none()).filter_map(|c| c.expr.as_ref())
        {
            if let Some((_, text)) = parts.iter().find(|(span, _)| *span == expr.span) {
                let name = match &without_parens(expr).kind {
                    ExprKind::Call(n, _) => self.questions.get(*n).cloned().unwrap_or_default(),
                    _ => self.sql[expr.span.clone()].to_owned(),
                };
                self.out.result_names.insert(text.clone(), name);
            }
        }
    }

    /// Returns true if an expression references a column of the SELECT's own tables.
    pub(super) fn references_own_rows(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().visit_expr(expr, scope, true, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                let depth = match at.find_column(table.as_deref(), column) {
                    Some(hit) => Some(hit.depth),
                    None => at.row_scope_depth(table.as_deref(), column),
                };
                found |= depth.is_some_and(|depth| depth == scope.depth);
            }
        });
        found
    }

    /// Returns true if a join condition has a call.
    fn join_depends_on_call(&self, item: &FromItem, scope: &Scope<'_>) -> bool {
        let inner = match &item.source {
            FromSource::Join(items) => items.as_slice(),
            _ => &[],
        };
        item.on.as_ref().is_some_and(|on| self.depends_on_call(on, scope))
            || inner.iter().any(|i| self.join_depends_on_call(i, scope))
    }

    /// Returns the conditions to evaluate inside a materialization fence around a table; `None` if
    /// it needs no fence. A fence makes `SQLite` evaluate inner joins and limits of the table
    /// before the calls.
    fn materialization_fence<'p>(
        &self,
        item: &FromItem,
        has_calls: bool,
        fenced_conditions: Option<&'p [(String, String)]>,
    ) -> Option<&'p [(String, String)]> {
        let limit_fence = (has_calls && self.reads_limit(item)).then_some(&[][..]);
        fenced_conditions.filter(|_| self.reads_join(item)).or(limit_fence)
    }

    fn rewrite_source(
        &mut self,
        item: &FromItem,
        outer_scope: &Scope<'_>,
        scope: &Scope<'_>,
        materialization_fence: Option<&[(String, String)]>,
        parts: &mut Vec<(Span, String)>,
    ) {
        let name = item.name.as_deref();
        match &item.source {
            FromSource::Table { span, .. } => {
                if let (Some(plain), Some(name), false) =
                    (materialization_fence, name, span.is_empty())
                {
                    let text =
                        Self::materialization_fence_sql(&self.sql[span.clone()], Some(name), plain);
                    parts.push((span.clone(), format!("({text}) AS {}", sql::quote_name(name))));
                }
            }
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.push_value(a, scope, parts));
            }
            FromSource::Query(query) => {
                if materialization_fence.is_some() || !self.reachable_calls(query).is_empty() {
                    let mut text = self.rewrite_query(query, outer_scope, Role::Rows);
                    if let Some(plain) = materialization_fence {
                        let name =
                            name.map_or(String::new(), |n| format!(" AS {}", sql::quote_name(n)));
                        text = Self::materialization_fence_sql(
                            &format!("({text}){name}"),
                            item.name.as_deref(),
                            plain,
                        );
                    }
                    parts.push((query.span.clone(), text));
                }
            }
            FromSource::Join(items) => {
                for inner in items {
                    let materialization_fence = materialization_fence
                        .filter(|_| self.reads_join(inner) || self.reads_limit(inner));
                    self.rewrite_source(inner, outer_scope, scope, materialization_fence, parts);
                    if let Some(on) = inner.on.as_ref().filter(|on| on.has_call()) {
                        let text = truth::all_hold(self, &[on], scope);
                        parts.push((on.span.clone(), format!("(SELECT {text}) = 1")));
                    }
                }
            }
        }
    }
}

/// Returns true if a SELECT has calls outside of its FROM clause.
fn has_own_call(query: &Query, core: &SelectCore) -> bool {
    let order = query.order.iter().map(|o| &o.expr);
    let exprs = core.columns.iter().filter_map(|c| c.expr.as_ref()).chain(&core.filter);
    exprs.chain(&core.group).chain(&core.having).chain(order).any(Expr::has_call)
}

/// Returns the number of scope tables of a FROM entry.
fn table_count(item: &FromItem) -> usize {
    match &item.source {
        FromSource::Join(items) if item.name.is_none() => items.iter().map(table_count).sum(),
        _ => 1,
    }
}

/// Returns true if an expression can be evaluated twice: it is deterministic and has no subquery.
fn is_cheap_and_stable(expr: &Expr) -> bool {
    let mut stable = true;
    expr.visit_exprs(&mut |e| {
        let random = matches!(&e.kind, ExprKind::Function { name, .. } if is_random(name));
        stable &= !random && e.children().1.is_none();
    });
    stable
}
