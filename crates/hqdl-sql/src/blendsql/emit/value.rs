//! Writes expressions whose value matters: calls become functions, and operands after a pending
//! call are not evaluated.

use super::{Emitter, sql};
use crate::blendsql::plan::{CountCondition, CountedCalls, ValueCondition};
use crate::blendsql::scope::strip_expr_parens;
use crate::blendsql::tree::{Body, Expr, ExprKind, Query, Span};

impl<'q> Emitter<'q> {
    /// Rewrites LIMIT and OFFSET. They cannot be NULL, so 0 replaces a value that is pending.
    pub(super) fn write_limits(&mut self, query: &Query, parts: &mut Vec<(Span, String)>) {
        for expr in query.limit.iter().chain(&query.offset).filter(|e| e.has_call()) {
            let text = self.write_value(expr);
            parts.push((expr.span.clone(), sql::limit_value_sql(&text)));
        }
    }

    /// Adds the SQL of an expression that must be rewritten.
    pub(super) fn push_value(&mut self, expr: &Expr, parts: &mut Vec<(Span, String)>) {
        if self.needs_rewrite(expr) {
            let text = self.write_value(expr);
            parts.push((expr.span.clone(), text));
        }
    }

    pub(super) fn find_planned_condition(&self, expr: &Expr) -> Option<&'q ValueCondition> {
        self.plan.value_conditions.get(&(expr.span.start, expr.span.end))
    }

    fn find_counted_calls(&self, expr: &Expr) -> Option<&'q CountedCalls> {
        self.plan.selects.iter().flat_map(|s| &s.counted).find(|c| c.span == expr.span)
    }

    /// Writes an aggregate that counts calls. It records each row until enough rows have been
    /// counted.
    fn write_call_count(&mut self, expr: &Expr) -> String {
        let Some(counted) = self.find_counted_calls(expr) else {
            return self.source_text(expr).to_owned();
        };
        let truth = match &counted.condition {
            CountCondition::Holds(condition) => self.write_truth(condition),
            CountCondition::NotNull(predicate) => self.write_not_null(predicate),
        };
        let condition_group = self.find_or_add_condition_group(expr.span.start, 1);
        self.out.needed_rows.insert(condition_group, counted.needed.clone());
        let groups: Vec<&str> =
            counted.needed.groups.iter().map(|span| &self.text[span.clone()]).collect();
        sql::count_rows_sql(&sql::record_row_sql(condition_group, &truth, &groups))
    }

    /// Wraps an EXISTS or IN whose rows are recorded one by one, so that a single passing row can
    /// decide the result.
    fn wrap_exists(&mut self, query: &Query, text: String) -> String {
        let Body::Core(core) = &query.body else { return text };
        let select = self.plan.find_select(core.span.start);
        let Some(rows) = select.and_then(|s| s.decisive.as_ref()) else {
            return text;
        };
        let condition_group = self.find_or_add_condition_group(core.span.start, 0);
        let operand = rows.operand.as_ref().map(|span| &self.text[span.clone()]);
        sql::record_subquery_sql(rows.makes_true, rows.runs_once, condition_group, (&text, operand))
    }

    /// Writes a CASE without an operand. A result is evaluated only if no condition before it is
    /// pending.
    fn write_searched_case(
        &mut self,
        expr: &Expr,
        whens: &[(Expr, Expr)],
        otherwise: Option<&Expr>,
    ) -> String {
        let mut parts = Vec::new();
        for (when, then) in whens {
            if when.has_call() {
                let text = self.write_nested_condition(when);
                parts.push((when.span.clone(), sql::when_condition_sql(&text)));
                let then_text = self.write_value(then);
                parts.push((then.span.clone(), sql::then_or_pending_sql(&then_text)));
            } else {
                self.push_value(then, &mut parts);
            }
        }
        otherwise.into_iter().for_each(|otherwise| self.push_value(otherwise, &mut parts));
        self.replace_parts(&expr.span, parts)
    }

    /// Writes a `coalesce` that evaluates an argument only if all earlier arguments are NULL and not
    /// pending.
    fn write_coalesce(&mut self, name: &str, args: &[Expr]) -> String {
        let mut texts = Vec::new();
        for arg in args {
            let text = sql::record_pending_sql(&self.write_value(arg));
            let first = texts.is_empty();
            texts.push(if first { text } else { sql::unless_pending_sql(&text) });
        }
        format!("{name}({})", texts.join(", "))
    }

    /// Rewrites an expression whose value matters.
    pub(super) fn write_value(&mut self, expr: &Expr) -> String {
        if !self.needs_rewrite(expr) {
            return self.source_text(expr).to_owned();
        }
        match &expr.kind {
            ExprKind::Call(n, args) => self.write_call(*n, args),
            ExprKind::And(_) | ExprKind::Or(_) => self.write_condition_value(expr),
            ExprKind::Case { operand: None, whens, otherwise } => {
                self.write_searched_case(expr, whens, otherwise.as_deref())
            }
            ExprKind::Case { operand: Some(operand), whens, otherwise: Some(otherwise) }
                if otherwise.has_call()
                    && matches!(strip_expr_parens(operand).kind, ExprKind::Call(..))
                    && !whens.iter().any(|(when, _)| when.has_call()) =>
            {
                let mut parts = Vec::new();
                let text = self.write_value(operand);
                parts.push((operand.span.clone(), sql::record_pending_sql(&text)));
                whens.iter().for_each(|(_, then)| self.push_value(then, &mut parts));
                let text = self.write_value(otherwise);
                parts.push((otherwise.span.clone(), sql::unless_pending_sql(&text)));
                self.replace_parts(&expr.span, parts)
            }
            ExprKind::Function { name, args, filter: None, window: None, .. }
                if matches!(name.as_str(), "iif" | "if")
                    && args.len() == 3
                    && args[0].has_call() =>
            {
                let truth = self.write_nested_condition(&args[0]);
                let (then, otherwise) = (self.write_value(&args[1]), self.write_value(&args[2]));
                let (when, then) =
                    (sql::when_condition_sql(&truth), sql::then_or_pending_sql(&then));
                format!("CASE WHEN {when} THEN {then} ELSE {otherwise} END")
            }
            ExprKind::Function { name, args, filter: None, window: None, .. }
                if matches!(name.as_str(), "coalesce" | "ifnull")
                    && args.len() > 1
                    && args[0].has_call()
                    && args[1..].iter().any(Expr::has_call) =>
            {
                self.write_coalesce(name, args)
            }
            ExprKind::Function { .. } if self.find_counted_calls(expr).is_some() => {
                self.write_call_count(expr)
            }
            ExprKind::Function { filter: Some(filter), args, window, .. } => {
                let mut parts = Vec::new();
                let window = window.iter().flat_map(|w| w.exprs());
                args.iter().chain(window).for_each(|a| self.push_value(a, &mut parts));
                if filter.has_call() {
                    let text = self.write_nested_condition(filter);
                    parts.push((filter.span.clone(), format!("{text} = 1")));
                }
                self.replace_parts(&expr.span, parts)
            }
            _ => {
                let mut parts = Vec::new();
                let (exprs, query) = expr.children();
                exprs.into_iter().for_each(|inner| self.push_value(inner, &mut parts));
                let Some(query) = query else { return self.replace_parts(&expr.span, parts) };
                parts.push((query.span.clone(), self.write_query(query)));
                let text = self.replace_parts(&expr.span, parts);
                let is_scalar = matches!(expr.kind, ExprKind::Scalar(_));
                if is_scalar { text } else { self.wrap_exists(query, text) }
            }
        }
    }
}
