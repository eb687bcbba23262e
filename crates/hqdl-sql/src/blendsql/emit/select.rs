//! Writes a single SELECT from its plan.

use super::{Emitter, sql};
use crate::blendsql::plan::analysis::list_reachable_calls;
use crate::blendsql::plan::{
    ConditionClause, ConditionStage, Conjunct, LimitPushdown, MemberRows, Membership, SelectPlan,
    SourceFence, ValueGuard,
};
use crate::blendsql::scope::strip_expr_parens;
use crate::blendsql::tree::{Expr, ExprKind, FromItem, FromSource, Query, SelectCore, Span};
use hqdl_values::sql::quote_name;

impl Emitter<'_> {
    /// Replaces the parts of a SELECT that must differ from its source text.
    pub(super) fn write_select(
        &mut self,
        query: &Query,
        core: &SelectCore,
        parts: &mut Vec<(Span, String)>,
    ) {
        let Some(select) = self.plan.find_select(core.span.start) else { return };
        core.from.iter().for_each(|item| self.write_source(item, select, parts));
        let mut text = match &select.truth {
            Some(truth) => self.write_truth(truth),
            None => "1".to_owned(),
        };
        for deferred in select.conjuncts_at_stage(ConditionStage::AfterCalls) {
            text =
                sql::and_then_sql(&text, &sql::plain_truth_sql(self.source_text(deferred), true));
        }
        let is_result = select.limit.as_ref().is_some_and(|limit| !limit.is_grouped);
        let truth =
            if is_result { std::mem::replace(&mut text, "1".to_owned()) } else { "1".to_owned() };
        let combined = match &select.truth {
            Some(condition) if !is_result => {
                let conditions = condition.call_count();
                Some(self.write_row_condition(select, core, conditions, &text))
            }
            _ => None,
        };
        self.write_conditions(core, select, combined, parts);
        self.write_outer_joins(select, parts);
        if let (Some(having), Some(condition)) = (&core.having, &select.having) {
            let text = self.write_truth(condition);
            let condition_group = self.find_or_add_condition_group(having.span.start, 1);
            parts.push((having.span.clone(), sql::record_row_sql(condition_group, &text, &[])));
        }
        if let Some(limit) = &select.limit {
            self.write_limited_select(limit, &truth, query, core, parts);
        }
        self.write_values(query, core, parts);
        self.write_limits(query, parts);
        self.record_result_names(core, parts);
    }

    /// Returns the WHERE condition that evaluates the conditions with calls for each row.
    fn write_row_condition(
        &mut self,
        select: &SelectPlan,
        core: &SelectCore,
        conditions: usize,
        truth: &str,
    ) -> String {
        let mut text = truth.to_owned();
        if self.complete_selects.contains(&core.span.start) {
            text = sql::known_true_sql(&text);
        }
        if !select.barrier.is_empty() {
            text = sql::after_row_barrier_sql(&select.barrier, &text);
        }
        for guard in select.guards.iter().rev() {
            text = sql::guard_truth_sql(&format!("({})", self.source_text(guard)), &text);
        }
        for membership in &select.memberships {
            text = sql::guard_truth_sql(&self.write_membership(membership), &text);
        }
        // Requests about a group's rows follow the order of the rows, so conditions are not
        // sampled.
        let conditions = if select.needed.is_some() { 1 } else { conditions };
        let condition_group = self.find_or_add_condition_group(core.span.start, conditions);
        let mut values = Vec::new();
        if let Some(needed) = &select.needed {
            self.out.needed_rows.insert(condition_group, needed.clone());
            values.extend(needed.groups.iter().chain(needed.order.iter().map(|key| &key.span)));
        } else {
            // Rows with the same value are equivalent candidates.
            values.extend(&select.candidate_value);
        }
        let values: Vec<&str> = values.into_iter().map(|s| &self.text[s.clone()]).collect();
        format!("(SELECT {})", sql::record_row_sql(condition_group, &text, &values))
    }

    fn write_membership(&self, membership: &Membership) -> String {
        let columns: Vec<&str> =
            membership.columns.iter().map(|span| &self.text[span.clone()]).collect();
        match &membership.rows {
            MemberRows::Query(span) => {
                sql::membership_condition_sql(&columns, &self.text[span.clone()], membership.keeps)
            }
            MemberRows::Groups { after } => {
                let rows = format!("SELECT {}{}", columns.join(", "), &self.text[after.clone()]);
                sql::membership_condition_sql(&columns, &rows, membership.keeps)
            }
        }
    }

    /// Writes the values of a SELECT that have calls: result columns, and terms of GROUP BY, WINDOW
    /// and ORDER BY.
    fn write_values(&mut self, query: &Query, core: &SelectCore, parts: &mut Vec<(Span, String)>) {
        let outer_lookup_only = self.lookup_only;
        self.lookup_only |= self.complete_selects.contains(&core.span.start);
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let order = query.order.iter().map(|o| &o.expr);
        let first = parts.len();
        columns.for_each(|expr| self.push_new_value(expr, parts));
        let guard = self.plan.find_select(core.span.start).and_then(|s| s.value_guard.as_ref());
        if let Some(ValueGuard { number, last }) = guard {
            for (_, text) in &mut parts[first..] {
                *text = sql::value_of_first_rows_sql(&self.text[number.clone()], *last, text);
            }
        }
        for expr in core.group.iter().chain(&core.windows).chain(order) {
            self.push_new_value(expr, parts);
        }
        self.lookup_only = outer_lookup_only;
    }

    /// Writes a value unless it has already been written.
    fn push_new_value(&mut self, expr: &Expr, parts: &mut Vec<(Span, String)>) {
        if !parts.iter().any(|(span, _)| *span == expr.span) {
            self.push_value(expr, parts);
        }
    }

    /// Writes the conditions without calls, if WHERE must be rewritten, followed by the conditions
    /// with calls. If there is no WHERE clause, the conditions with calls are appended to the ON
    /// clause of the first join with calls.
    fn write_conditions(
        &self,
        core: &SelectCore,
        select: &SelectPlan,
        combined: Option<String>,
        parts: &mut Vec<(Span, String)>,
    ) {
        let mut more: Vec<String> = match combined {
            Some(text) => vec![text],
            // Without conditions with calls, there is no CASE that contains the memberships, so
            // they become plain conditions.
            None => select.memberships.iter().map(|m| self.write_membership(m)).collect(),
        };
        let plain_of = |clause: ConditionClause| -> Vec<&Expr> {
            let stays = |c: &&Conjunct| c.clause == clause && c.stage == ConditionStage::InPlace;
            select.conjuncts.iter().filter(stays).map(|c| &c.expr).collect()
        };
        let moves =
            |c: &Conjunct| c.clause == ConditionClause::Where && c.stage != ConditionStage::InPlace;
        let is_rewritten = !more.is_empty() || select.conjuncts.iter().any(moves);
        if let Some(filter) = core.filter.as_ref().filter(|_| is_rewritten) {
            let text =
                self.join_with_and(&plain_of(ConditionClause::Where), std::mem::take(&mut more));
            parts.push((filter.span.clone(), text));
        }
        let mut joins: Vec<usize> = Vec::new();
        for conjunct in &select.conjuncts {
            if let ConditionClause::Join(n) = conjunct.clause
                && !joins.contains(&n)
            {
                joins.push(n);
            }
        }
        if core.filter.is_none() && joins.is_empty() && !more.is_empty() {
            let text = std::mem::take(&mut more).join(" AND ");
            parts.push((core.from_end..core.from_end, format!(" WHERE {text}")));
        }
        for n in joins {
            if let Some(on) = &core.from[n].on {
                let plain = plain_of(ConditionClause::Join(n));
                parts
                    .push((on.span.clone(), self.join_with_and(&plain, std::mem::take(&mut more))));
            }
        }
    }

    /// Joins unchanged conditions and optional rewritten conditions with AND.
    fn join_with_and(&self, plain: &[&Expr], more: Vec<String>) -> String {
        let mut all: Vec<String> =
            plain.iter().map(|e| format!("({})", self.source_text(e))).collect();
        all.extend(more);
        if all.is_empty() { "1".to_owned() } else { all.join(" AND ") }
    }

    /// Writes the join conditions with calls that cannot move to WHERE.
    fn write_outer_joins(&mut self, select: &SelectPlan, parts: &mut Vec<(Span, String)>) {
        for join in &select.outer_joins {
            let mut text = self.write_truth(&join.truth);
            if let Some(barrier) = &join.barrier {
                text = sql::after_row_barrier_sql(barrier, &text);
            }
            for guard in join.guards.iter().rev() {
                text = sql::guard_truth_sql(&format!("({})", self.source_text(guard)), &text);
            }
            let plain: Vec<&Expr> = join.plain.iter().collect();
            let text = self.join_with_and(&plain, vec![format!("(SELECT {text}) = 1")]);
            parts.push((join.on.clone(), text));
        }
    }

    /// Writes a SELECT as the statement that returns its rows with their state. It has no DISTINCT
    /// and no LIMIT. An extra last column contains the number of the recorded row, and only that
    /// column evaluates values with calls.
    fn write_limited_select(
        &mut self,
        limit: &LimitPushdown,
        truth: &str,
        query: &Query,
        core: &SelectCore,
        parts: &mut Vec<(Span, String)>,
    ) {
        let (Some(head), Some(last)) = (core.columns.first(), core.columns.last()) else { return };
        let mut values = Vec::new();
        for n in &limit.held_columns {
            let column = &core.columns[*n];
            let Some(expr) = &column.expr else { continue };
            values.push(format!("({})", self.write_value(expr)));
            let placeholder = format!("(NULL+{n})");
            if column.alias.is_none() {
                self.out.result_names.insert(placeholder.clone(), self.derive_result_name(expr));
            }
            parts.push((expr.span.clone(), placeholder));
        }
        let condition_group = self.find_or_add_condition_group(core.span.start, 0);
        let truth = if values.is_empty() {
            truth.to_owned()
        } else {
            sql::store_values_sql(truth, &limit.shared_calls, values)
        };
        let mut rank = String::new();
        if limit.is_ranked {
            let document =
                |(n, span): &(usize, Span)| format!("{n}, ({})", &self.text[span.clone()]);
            let documents: Vec<String> = limit.documents.iter().map(document).collect();
            rank = format!(", {}", sql::similarity_rank_sql(&documents));
            self.out.similarity_calls.extend(limit.documents.iter().map(|(n, _)| *n));
        }
        let extra_columns = format!("{rank}, {}", sql::number_row_sql(condition_group, &truth));
        parts.push((last.span.end..last.span.end, extra_columns));
        if core.distinct {
            parts.push((core.span.start..head.span.start, "SELECT ".to_owned()));
        }
        let tail_start = query.limit.iter().chain(&query.offset).map(|e| e.span.start).min();
        if let Some(at) = tail_start {
            let before = self.text[..at].trim_end();
            let at = before.len().saturating_sub("limit".len());
            parts.push((at..query.span.end, String::new()));
        }
        self.out.limit_pushdown = Some(limit.clone());
    }

    /// Records the original names of the result columns whose text has changed.
    fn record_result_names(&mut self, core: &SelectCore, parts: &[(Span, String)]) {
        for expr in
            core.columns.iter().filter(|c| c.alias.is_none()).filter_map(|c| c.expr.as_ref())
        {
            if let Some((_, text)) = parts.iter().find(|(span, _)| *span == expr.span) {
                self.out.result_names.insert(text.clone(), self.derive_result_name(expr));
            }
        }
    }

    /// Returns the name of a result column in the original query.
    fn derive_result_name(&self, expr: &Expr) -> String {
        match &strip_expr_parens(expr).kind {
            ExprKind::Call(n, _) => self.questions.get(*n).map_or("", |q| *q).to_owned(),
            _ => self.source_text(expr).to_owned(),
        }
    }

    fn write_source(
        &mut self,
        item: &FromItem,
        select: &SelectPlan,
        parts: &mut Vec<(Span, String)>,
    ) {
        let name = item.name.as_deref().map(quote_name);
        let fence_at = |at: usize| select.fences.iter().find(|fence| fence.at == at);
        match &item.source {
            FromSource::Table { span, .. } => {
                if let (Some(fence), Some(name)) = (fence_at(span.start), name) {
                    let text = self.write_fence(&self.text[span.clone()], fence);
                    parts.push((span.clone(), format!("({text}) AS {name}")));
                }
            }
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.push_value(a, parts));
            }
            FromSource::Query(query) => {
                let fence = fence_at(query.span.start);
                if fence.is_some() || !list_reachable_calls(query, &self.plan.cte_calls).is_empty()
                {
                    let mut text = self.write_query(query);
                    if let Some(fence) = fence {
                        let alias = name.map_or(String::new(), |n| format!(" AS {n}"));
                        text = self.write_fence(&format!("({text}){alias}"), fence);
                    }
                    parts.push((query.span.clone(), text));
                }
            }
            FromSource::Join(items) => {
                for inner in items {
                    self.write_source(inner, select, parts);
                    if let Some(on) = inner.on.as_ref().filter(|on| on.has_call()) {
                        let text = self.write_nested_condition(on);
                        parts.push((on.span.clone(), format!("(SELECT {text}) = 1")));
                    }
                }
            }
        }
    }

    fn write_fence(&self, source: &str, fence: &SourceFence) -> String {
        let conditions: Vec<String> =
            fence.conditions.iter().map(|e| format!("({})", self.source_text(e))).collect();
        sql::materialization_fence_sql(source, &conditions)
    }
}
