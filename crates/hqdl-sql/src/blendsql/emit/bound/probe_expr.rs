//! Builds SQL that evaluates the calls of an expression, for the [upper bound](super) on the number
//! of values that a query asks about.

use super::super::{column_sql, context_sql, sql};
use super::{ANSWER_ARGUMENT, CALL_IN_CONTEXT, EvalPosition, ProbeBuilder, sum_terms};
use crate::blendsql::aggregates::{is_aggregate_call, visit_own_exprs};
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::condition::may_fail;
use crate::blendsql::runtime::Function;
use crate::blendsql::tree::{Expr, ExprKind, Query};

impl ProbeBuilder<'_, '_> {
    /// Returns SQL that evaluates the calls of an expression; its value is a number, never NULL.
    /// Returns `None` if no call is evaluated in this context.
    pub(in crate::blendsql::emit) fn probe_expr(
        &mut self,
        expr: &Expr,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        if !expr.has_call() {
            return None;
        }
        match &expr.kind {
            ExprKind::Call(n, args) => self.probe_call(*n, args, at),
            ExprKind::And(parts) => self.probe_logical(parts, "IS NOT FALSE", at),
            ExprKind::Or(parts) => self.probe_logical(parts, "IS NOT TRUE", at),
            ExprKind::Exists(query) | ExprKind::Scalar(query) => {
                self.probe_subquery(expr, query, at)
            }
            ExprKind::In { operand, list, query, .. } => {
                let mut parts: Vec<String> = std::iter::once(operand.as_ref())
                    .chain(list)
                    .filter_map(|e| self.probe_expr(e, at))
                    .collect();
                if let Some(query) = query {
                    parts.extend(self.probe_subquery(expr, query, at));
                }
                sum_terms(parts)
            }
            ExprKind::Case { .. } => self.probe_case(expr, at),
            ExprKind::Function { name, args, filter: None, window: None, .. }
                if matches!(name.as_str(), "iif" | "if")
                    && args.len() == 3
                    && self.rows.is_certain(&args[0], at.frame, at.exact_aggregates) =>
            {
                let (then, otherwise) =
                    (self.probe_expr(&args[1], at), self.probe_expr(&args[2], at));
                let zero = || "0".to_owned();
                Some(format!(
                    "(CASE WHEN {} THEN {} ELSE {} END)",
                    self.rows.expr_sql(&args[0], at.frame),
                    then.unwrap_or_else(zero),
                    otherwise.unwrap_or_else(zero)
                ))
            }
            ExprKind::Function { name, args, filter: None, window: None, .. }
                if matches!(name.as_str(), "coalesce" | "ifnull") =>
            {
                self.update_single_pass_of_parts(expr);
                self.probe_coalesce(args, at)
            }
            _ => {
                let (exprs, _) = expr.children();
                sum_terms(exprs.into_iter().filter_map(|e| self.probe_expr(e, at)).collect())
            }
        }
    }

    /// Returns SQL that evaluates each branch of a CASE unless plain conditions before it decide
    /// the CASE.
    fn probe_case(&mut self, expr: &Expr, at: EvalPosition<'_>) -> Option<String> {
        let ExprKind::Case { operand, whens, otherwise } = &expr.kind else { return None };
        self.update_single_pass_of_parts(expr);
        let certain = |me: &Self, e: &Expr| me.rows.is_certain(e, at.frame, at.exact_aggregates);
        let none = || "0".to_owned();
        if let Some(operand) = operand {
            if !(certain(self, operand) && whens.iter().all(|(when, _)| certain(self, when))) {
                let (exprs, _) = expr.children();
                return sum_terms(
                    exprs.into_iter().filter_map(|e| self.probe_expr(e, at)).collect(),
                );
            }
            let mut text = format!("(CASE {}", self.rows.expr_sql(operand, at.frame));
            for (when, then) in whens {
                let then = self.probe_expr(then, at).unwrap_or_else(none);
                text.push_str(&format!(" WHEN {} THEN {then}", self.rows.expr_sql(when, at.frame)));
            }
            let otherwise = otherwise.as_ref().and_then(|e| self.probe_expr(e, at));
            text.push_str(&format!(" ELSE {} END)", otherwise.unwrap_or_else(none)));
            return Some(text);
        }
        let mut text = otherwise.as_ref().and_then(|e| self.probe_expr(e, at));
        for (when, then) in whens.iter().rev() {
            let then = self.probe_expr(then, at);
            text = if certain(self, when) {
                let (then, rest) = (then.unwrap_or_else(none), text.unwrap_or_else(none));
                let when = self.rows.expr_sql(when, at.frame);
                Some(format!("(CASE WHEN {when} THEN {then} ELSE {rest} END)"))
            } else {
                let when = self.probe_expr(when, at);
                sum_terms(when.into_iter().chain(then).chain(text).collect())
            };
        }
        text
    }

    /// Returns SQL that evaluates each argument only if all plain arguments before it are NULL.
    fn probe_coalesce(&mut self, args: &[Expr], at: EvalPosition<'_>) -> Option<String> {
        let mut text: Option<String> = None;
        for arg in args.iter().rev() {
            text = if self.rows.is_certain(arg, at.frame, at.exact_aggregates) {
                let null = self.rows.expr_sql(arg, at.frame);
                text.map(|t| format!("(CASE WHEN ({null}) IS NULL THEN {t} ELSE 0 END)"))
            } else {
                let own = self.probe_expr(arg, at);
                sum_terms(own.into_iter().chain(text).collect())
            };
        }
        text
    }

    /// Returns SQL that evaluates the parts of an AND or OR unless its plain parts decide it.
    fn probe_logical(
        &mut self,
        parts: &[Expr],
        open: &str,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        if parts.iter().filter(|p| p.has_call()).count() > 1 {
            self.is_single_pass = false;
        }
        let of = parts.iter().filter_map(|p| self.probe_expr(p, at)).collect();
        let text = sum_terms(of)?;
        let first = parts.iter().find(|p| !self.rows.is_certain(p, at.frame, at.exact_aggregates));
        let first = first.map_or(0, |p| p.span.start);
        let guard = |p: &&Expr| {
            self.rows.is_certain(p, at.frame, at.exact_aggregates)
                && !(may_fail(p) && p.span.start > first)
        };
        let guards: Vec<String> = (parts.iter().filter(guard))
            .map(|p| format!("(({}) {open})", self.rows.expr_sql(p, at.frame)))
            .collect();
        if guards.is_empty() {
            return Some(text);
        }
        Some(format!("(CASE WHEN {} THEN {text} ELSE 0 END)", guards.join(" AND ")))
    }

    /// Clears `is_single_pass` if several parts of an expression have calls, because one part can
    /// wait for another.
    fn update_single_pass_of_parts(&mut self, expr: &Expr) {
        let (exprs, _) = expr.children();
        if exprs.into_iter().filter(|e| e.has_call()).count() > 1 {
            self.is_single_pass = false;
        }
    }

    fn probe_subquery(
        &mut self,
        expr: &Expr,
        query: &Query,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        if crate::blendsql::plan::analysis::find_decisive_select_by_syntax(expr).is_ok() {
            // If a single row decides a subquery, hqdl asks about its rows in batches, so a single
            // pass does not ask about all rows.
            self.is_single_pass = false;
        }
        if at.per_group {
            return None;
        }
        self.probe_query(query, at.frame)
    }

    fn probe_call(&mut self, n: usize, args: &[Expr], at: EvalPosition<'_>) -> Option<String> {
        let site = self.rows.sites.get(n)?.clone();
        let rows = site.subject == Subject::Rows;
        if args.iter().any(Expr::has_call) {
            self.is_single_pass = false;
            self.mark_unbounded(n, if rows { CALL_IN_CONTEXT } else { ANSWER_ARGUMENT });
            return sum_terms(args.iter().filter_map(|a| self.probe_expr(a, at)).collect());
        }
        let mut of_group = false;
        args.iter().for_each(|a| {
            visit_own_exprs(a, &mut |e| {
                let window = matches!(e.kind, ExprKind::Function { window: Some(_), .. });
                of_group |= at.is_grouped && (is_aggregate_call(e) || window);
            });
        });
        if of_group != at.per_group {
            self.has_group_calls |= of_group;
            return None;
        }
        let keyed = site.argument_sql.is_some() && rows;
        if !keyed && !args.iter().all(|a| self.rows.is_certain(a, at.frame, at.exact_aggregates)) {
            self.mark_unbounded(n, if rows { CALL_IN_CONTEXT } else { ANSWER_ARGUMENT });
            return None;
        }
        let keys: Vec<String> = match &site.argument_sql {
            Some(keys) => keys.clone(),
            None => {
                let forms = args.iter().enumerate();
                forms
                    .map(|(n, a)| self.argument_sql(a, site.find_context_function(n), at))
                    .collect()
            }
        };
        let text = sql::call_answer_sql(n, false, &keys);
        let text = if site.row_width.is_some() {
            text
        } else {
            format!("{}{text}{}", site.sql_before, site.sql_after)
        };
        self.calls.push(n);
        Some(format!("(({text}) IS NULL)"))
    }

    fn argument_sql(
        &mut self,
        arg: &Expr,
        context: Option<Function>,
        at: EvalPosition<'_>,
    ) -> String {
        match &arg.kind {
            ExprKind::Column { table, column } => {
                let found = at.frame.scope.find_column(table.as_deref(), column).is_some();
                match at.frame.find_alias(column).filter(|_| table.is_none() && !found) {
                    Some(_) => self.rows.expr_sql(arg, at.frame),
                    None => column_sql(arg, self.rows.sql),
                }
            }
            ExprKind::Scalar(query) => {
                let (fields, text) = (
                    self.rows.resolver().resolve_output_fields(query, &at.frame.scope),
                    &self.rows.sql[query.span.clone()],
                );
                let titles = fields.map(|all| all.into_iter().map(|f| f.name).collect::<Vec<_>>());
                match context {
                    Some(aggregate) => {
                        context_sql(self.rows.sql, aggregate, titles.as_deref(), text)
                    }
                    None => format!("({text})"),
                }
            }
            _ => format!("({})", self.rows.expr_sql(arg, at.frame)),
        }
    }
}
