//! Plans a query: walks the tree with its scopes, adds each SELECT with calls to the plan, and
//! applies the [rules](crate::blendsql::rules) to it.

use crate::blendsql::parse::ParsedQuery;
use crate::blendsql::plan::analysis::{
    Analysis, VisibleCte, find_compared_count, has_field, needs_rewrite,
};
use crate::blendsql::plan::condition::{Condition, split_conjuncts};
use crate::blendsql::plan::numbered_rows::find_numbered_rows;
use crate::blendsql::plan::select_scope::{RowUse, SelectScope};
use crate::blendsql::plan::{
    ConditionClause, ConditionStage, Conjunct, DemandPlan, ValueCondition,
};
use crate::blendsql::rules::condition_order::order_conditions_outside_selects;
use crate::blendsql::rules::{AFTER_SOURCES, BEFORE_SOURCES, Rule};
use crate::blendsql::runtime::Function;
use crate::blendsql::scope::Scope;
use crate::blendsql::tree::{
    Body, CompoundOperator, Cte, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore,
};

/// State while a query is planned.
struct Planner<'q> {
    analysis: Analysis<'q>,
    plan: DemandPlan,
    /// Offset of the innermost SELECT that is being planned.
    current_select: usize,
}

pub(crate) fn plan_query(mut analysis: Analysis<'_>, parsed: &ParsedQuery) -> DemandPlan {
    analysis.collect_query_facts(parsed);
    let mut planner = Planner { analysis, plan: DemandPlan::default(), current_select: usize::MAX };
    planner.plan_query(&parsed.query, &Scope::new(None), RowUse::All);
    let Planner { analysis, mut plan, .. } = planner;
    order_conditions_outside_selects(&mut plan, &analysis);
    plan.cte_calls = analysis.cte_calls;
    plan.sort_selects();
    plan
}

impl Planner<'_> {
    /// Plans a query in its scope.
    fn plan_query(&mut self, query: &Query, parent: &Scope<'_>, row_use: RowUse<'_>) {
        if self.analysis.list_reachable_calls(query).is_empty() {
            return;
        }
        let scope = self.analysis.resolver().build_cte_scope(query, Some(parent));
        let outer_ctes = self.analysis.visible_ctes.len();
        self.analysis.cte_scopes.extend((!query.with.is_empty()).then_some(query.span.start));
        for cte in &query.with {
            // A recursive CTE is visible within its own query.
            let name = cte.name.clone();
            self.analysis.visible_ctes.push(VisibleCte {
                name,
                may_join_tables: false,
                may_have_limit: false,
                is_volatile: false,
            });
            let row_use = self.find_cte_row_use(query, cte, &scope);
            self.plan_query(&cte.query, &scope, row_use);
            self.analysis.visible_ctes.push(VisibleCte {
                name: cte.name.clone(),
                may_join_tables: self.analysis.may_join_tables(&cte.query),
                may_have_limit: self.analysis.has_limit(&cte.query),
                is_volatile: self.analysis.is_volatile(&cte.query),
            });
        }
        match &query.body {
            Body::Core(core) => self.plan_select(query, core, &scope, row_use),
            Body::Compound(operator, left, right) => {
                let of_left = self.find_side_row_use(query, (*operator, right, true), row_use);
                let of_right = self.find_side_row_use(query, (*operator, left, false), row_use);
                self.plan_query(left, &scope, of_left);
                self.plan_query(right, &scope, of_right);
            }
            Body::Values(exprs, _) => exprs.iter().for_each(|e| self.plan_value(e, &scope)),
        }
        if !matches!(query.body, Body::Core(_)) {
            let tail = query.order.iter().map(|o| &o.expr).chain(&query.limit).chain(&query.offset);
            tail.for_each(|e| self.plan_value(e, &scope));
        }
        self.analysis.visible_ctes.truncate(outer_ctes);
        if !query.with.is_empty() {
            self.analysis.cte_scopes.pop();
        }
    }

    /// Returns how the rows of a common table expression are used.
    fn find_cte_row_use<'s>(&self, query: &Query, cte: &'s Cte, scope: &Scope<'_>) -> RowUse<'s> {
        let is_cte = |name: &str| name.eq_ignore_ascii_case(&cte.name);
        let mut reads = 0;
        query.visit_tables(&mut |name| reads += usize::from(is_cte(name)));
        let Body::Core(core) = &query.body else { return RowUse::All };
        let mut items = core.from.iter();
        let item = items.find(|item| {
            matches!(&item.source, FromSource::Table { schema: None, name, .. } if is_cte(name))
        });
        match item {
            Some(item) if reads == 1 && cte.columns.is_empty() => {
                let scope = self.analysis.resolver().build_select_scope(core, scope);
                self.find_source_row_use((core, item), &cte.query, &scope)
            }
            _ => RowUse::All,
        }
    }

    /// Returns how the rows of a query in FROM are used.
    fn find_source_row_use<'s>(
        &self,
        item: (&SelectCore, &FromItem),
        source: &'s Query,
        scope: &Scope<'_>,
    ) -> RowUse<'s> {
        find_numbered_rows(item, source, scope, &self.analysis)
            .map_or(RowUse::All, RowUse::Numbered)
    }

    /// Returns how the rows of one side of a compound are used, given the other side.
    fn find_side_row_use<'s>(
        &self,
        compound: &'s Query,
        (operator, other, is_left): (CompoundOperator, &'s Query, bool),
        row_use: RowUse<'s>,
    ) -> RowUse<'s> {
        match row_use {
            RowUse::Arm(_) if operator == CompoundOperator::UnionAll => row_use,
            _ if self.has_limited_selects(compound) => RowUse::Arm(compound),
            _ => RowUse::Side { operator, other, is_left },
        }
    }

    /// Returns true if the whole query is a UNION ALL with a LIMIT whose arms all have conditions
    /// with calls, so that the rows of all arms are recorded.
    fn has_limited_selects(&self, query: &Query) -> bool {
        fn selects_have_calls(query: &Query) -> bool {
            match &query.body {
                Body::Core(core) => core.filter.as_ref().is_some_and(Expr::has_call),
                Body::Compound(CompoundOperator::UnionAll, left, right) => {
                    selects_have_calls(left) && selects_have_calls(right)
                }
                _ => false,
            }
        }
        query.limit.is_some() && query.span == self.analysis.whole_span && selects_have_calls(query)
    }

    fn plan_select(
        &mut self,
        query: &Query,
        core: &SelectCore,
        outer_scope: &Scope<'_>,
        row_use: RowUse<'_>,
    ) {
        let scope = self.analysis.resolver().build_select_scope(core, outer_scope);
        let aliases: Vec<String> = core
            .columns
            .iter()
            .filter(|c| c.expr.as_ref().is_some_and(|e| self.analysis.depends_on_call(e, &scope)))
            .filter_map(|c| c.alias.as_ref())
            .filter(|a| scope.tables.iter().all(|t| !has_field(t, a)))
            .cloned()
            .collect();
        let outer_aliases = std::mem::replace(&mut self.analysis.aliases, aliases);
        let outer_select = std::mem::replace(&mut self.current_select, core.span.start);
        self.add_select(core, &scope);
        self.apply_rules(BEFORE_SOURCES, query, core, &scope, row_use);
        let aliases = std::mem::replace(&mut self.analysis.aliases, outer_aliases);
        for item in &core.from {
            let row_use = match &item.source {
                FromSource::Query(source) => self.find_source_row_use((core, item), source, &scope),
                _ => RowUse::All,
            };
            self.plan_source(item, row_use, outer_scope, &scope);
        }
        let outer_aliases = std::mem::replace(&mut self.analysis.aliases, aliases);
        let conditions = core.filter.iter().chain(core.from.iter().filter_map(|i| i.on.as_ref()));
        for condition in conditions.chain(&core.having) {
            self.plan_condition_parts(condition, Some(true), &scope);
        }
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let order = query.order.iter().map(|o| &o.expr);
        let values = columns.chain(&core.group).chain(&core.windows).chain(order);
        for expr in values.chain(&query.limit).chain(&query.offset) {
            self.plan_value(expr, &scope);
        }
        self.apply_rules(AFTER_SOURCES, query, core, &scope, row_use);
        self.analysis.aliases = outer_aliases;
        self.current_select = outer_select;
    }

    fn apply_rules(
        &mut self,
        rules: &[Rule],
        query: &Query,
        core: &SelectCore,
        scope: &Scope<'_>,
        row_use: RowUse<'_>,
    ) {
        let select = SelectScope { analysis: &self.analysis, query, core, scope, row_use };
        for rule in rules {
            let outcome = (rule.apply)(&mut self.plan, &select);
            self.plan.record_outcome(core.span.start, rule.name, outcome);
        }
    }

    /// Adds a SELECT to the plan, with its conditions split at AND.
    fn add_select(&mut self, core: &SelectCore, scope: &Scope<'_>) {
        let analysis = &self.analysis;
        let conjuncts_of = |clause, expr: &Expr| -> Vec<Conjunct> {
            let conjunct = |e: &Expr| Conjunct {
                expr: e.clone(),
                text: analysis.format_on_one_line(&e.span),
                clause,
                stage: if analysis.depends_on_call(e, scope) {
                    ConditionStage::Last
                } else {
                    ConditionStage::InPlace
                },
            };
            split_conjuncts(expr).into_iter().map(conjunct).collect()
        };
        let mut conjuncts: Vec<Conjunct> = Vec::new();
        conjuncts.extend(core.filter.iter().flat_map(|e| conjuncts_of(ConditionClause::Where, e)));
        // Inner join conditions have the same meaning in WHERE, unless a join is RIGHT or FULL.
        let is_movable = core.from.iter().all(|i| i.join != JoinKind::Outer);
        for (n, item) in core.from.iter().enumerate() {
            if let Some(on) = item.on.as_ref().filter(|on| {
                is_movable && item.join == JoinKind::Inner && analysis.depends_on_call(on, scope)
            }) {
                conjuncts.extend(conjuncts_of(ConditionClause::Join(n), on));
            }
        }
        let mut calls = Vec::new();
        let mut collect_calls = |e: &Expr| collect_own_calls(e, &mut calls);
        core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut collect_calls);
        core.filter.iter().chain(&core.having).chain(&core.group).for_each(&mut collect_calls);
        core.from.iter().filter_map(|i| i.on.as_ref()).for_each(&mut collect_calls);
        calls.sort_unstable();
        calls.dedup();
        let text = analysis.format_on_one_line(&core.span);
        let select = self.plan.find_or_add_select(core.span.start);
        (select.text, select.calls, select.conjuncts) = (text, calls, conjuncts);
    }

    fn plan_source(
        &mut self,
        item: &FromItem,
        row_use: RowUse<'_>,
        outer_scope: &Scope<'_>,
        scope: &Scope<'_>,
    ) {
        match &item.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.plan_value(a, scope));
            }
            FromSource::Query(query) => self.plan_query(query, outer_scope, row_use),
            FromSource::Join(items) => {
                for inner in items {
                    self.plan_source(inner, RowUse::All, outer_scope, scope);
                    if let Some(on) = inner.on.as_ref().filter(|on| on.has_call()) {
                        self.plan_condition(on, scope);
                    }
                }
            }
        }
    }

    /// Plans an expression as a condition: only its truth matters, not its value.
    fn plan_condition(&mut self, expr: &Expr, scope: &Scope<'_>) {
        let holds = Condition::all_of(&[expr], &self.analysis, scope);
        self.plan_condition_parts(expr, Some(true), scope);
        let (key, select) = ((expr.span.start, expr.span.end), self.current_select);
        self.plan.value_conditions.insert(key, ValueCondition { select, holds, fails: None });
    }

    /// Plans the predicates of a condition. `wanted` is the truth value that the condition must
    /// have; `None` if its exact value matters.
    fn plan_condition_parts(&mut self, expr: &Expr, wanted: Option<bool>, scope: &Scope<'_>) {
        match &expr.kind {
            ExprKind::And(parts) | ExprKind::Or(parts) => {
                parts.iter().for_each(|p| self.plan_condition_parts(p, wanted, scope));
            }
            ExprKind::Not(inner) => {
                self.plan_condition_parts(inner, wanted.map(|w| !w), scope);
            }
            ExprKind::Paren(inner) => self.plan_condition_parts(inner, wanted, scope),
            ExprKind::In { negated: false, operand, query: Some(query), .. }
                if wanted == Some(true) =>
            {
                self.plan_value(operand, scope);
                self.plan_query(query, scope, RowUse::Truth(expr, scope));
            }
            _ => self.plan_value(expr, scope),
        }
    }

    /// Plans the conditions and queries inside an expression whose value matters.
    fn plan_value(&mut self, expr: &Expr, scope: &Scope<'_>) {
        if !needs_rewrite(expr, &self.analysis.cte_calls) {
            return;
        }
        match &expr.kind {
            ExprKind::Call(n, args) => return self.plan_arguments(*n, args, scope),
            ExprKind::And(_) | ExprKind::Or(_) => {
                let holds = Condition::from_expr(expr, true, &self.analysis, scope);
                let fails = Some(Condition::from_expr(expr, false, &self.analysis, scope));
                self.plan_condition_parts(expr, None, scope);
                let (key, select) = ((expr.span.start, expr.span.end), self.current_select);
                self.plan.value_conditions.insert(key, ValueCondition { select, holds, fails });
                return;
            }
            _ => {}
        }
        if let ExprKind::Compare(operator, left, right) = &expr.kind
            && let Some((count, rows)) =
                find_compared_count(operator, left, right, self.analysis.sql)
            && let ExprKind::Scalar(query) = &count.kind
        {
            return self.plan_query(query, scope, RowUse::Counted(rows));
        }
        let conditions = list_conditions_in_value(expr);
        let (exprs, query) = expr.children();
        for inner in exprs {
            if conditions.iter().any(|c| std::ptr::eq(*c, inner)) {
                self.plan_condition(inner, scope);
            } else {
                self.plan_value(inner, scope);
            }
        }
        if let Some(query) = query {
            self.plan_query(query, scope, RowUse::Expr(expr, scope));
        }
    }

    fn plan_arguments(&mut self, n: usize, args: &[Expr], scope: &Scope<'_>) {
        let site = &self.analysis.sites[n];
        if site.argument_sql.is_some() {
            return;
        }
        let contexts: Vec<Option<Function>> =
            (0..args.len()).map(|n| site.find_context_function(n)).collect();
        for (arg, context) in args.iter().zip(contexts) {
            let ExprKind::Scalar(query) = &arg.kind else {
                self.plan_value(arg, scope);
                continue;
            };
            if context.is_some() {
                let fields = self.analysis.resolver().resolve_output_fields(query, scope);
                let titles = fields.map(|all| all.into_iter().map(|f| f.name).collect());
                self.plan.context_titles.insert(query.span.start, titles);
            }
            self.plan_query(query, scope, RowUse::All);
        }
    }
}

/// Returns the direct children of a value that have calls and are used as conditions: only their
/// truth matters, not their value.
fn list_conditions_in_value(expr: &Expr) -> Vec<&Expr> {
    let conditions: Vec<&Expr> = match &expr.kind {
        ExprKind::Case { operand: None, whens, .. } => whens.iter().map(|(when, _)| when).collect(),
        ExprKind::Function { filter: Some(filter), .. } => vec![filter],
        ExprKind::Function { name, args, window: None, .. }
            if matches!(name.as_str(), "iif" | "if") && args.len() == 3 =>
        {
            vec![&args[0]]
        }
        _ => Vec::new(),
    };
    conditions.into_iter().filter(|c| c.has_call()).collect()
}

/// Collects the calls in an expression, including calls in the arguments of other calls but not
/// calls in subqueries.
fn collect_own_calls(expr: &Expr, found: &mut Vec<usize>) {
    if let ExprKind::Call(n, _) = &expr.kind {
        found.push(*n);
    }
    let (exprs, _) = expr.children();
    exprs.into_iter().for_each(|e| collect_own_calls(e, found));
}
