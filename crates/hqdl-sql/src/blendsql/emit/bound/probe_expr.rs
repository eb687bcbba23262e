//! Builds SQL that evaluates the calls of an expression, for the [upper bound](super) on the number
//! of values that a query asks about.

use super::{ANSWER_ARGUMENT, BoundWriter, CALL_IN_CONTEXT, EvalPosition, sum_terms};
use crate::blendsql::aggregates::{is_aggregate_call, visit_own_exprs};
use crate::blendsql::emit::{sql, write_arguments};
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::analysis::find_decisive_select_by_syntax;
use crate::blendsql::plan::condition::may_fail;
use crate::blendsql::tree::{Expr, ExprKind, Query};

/// Part of an expression that is evaluated in steps until one of them decides the value.
struct EvaluationStep<'e> {
    /// SQL of the test, from WHEN on; `None` if the test depends on an answer.
    test: Option<String>,
    /// Expression that is tested.
    tested: &'e Expr,
    /// Value if the test holds.
    then: Option<&'e Expr>,
}

impl BoundWriter<'_> {
    /// Returns the sum of [`Self::probe_expr`] of several expressions.
    pub fn probe_exprs<'e>(
        &mut self,
        exprs: impl IntoIterator<Item = &'e Expr>,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        sum_terms(exprs.into_iter().filter_map(|e| self.probe_expr(e, at)).collect())
    }

    /// Returns SQL that evaluates the calls of an expression; its value is a number, never NULL.
    /// Returns `None` if no call is evaluated in this context.
    pub fn probe_expr(&mut self, expr: &Expr, at: EvalPosition<'_>) -> Option<String> {
        if !expr.has_call() {
            return None;
        }
        match &expr.kind {
            ExprKind::Call(n, args) => return self.probe_call(*n, args, at),
            ExprKind::And(parts) => return self.probe_logical(expr, parts, "IS NOT FALSE", at),
            ExprKind::Or(parts) => return self.probe_logical(expr, parts, "IS NOT TRUE", at),
            _ => {}
        }
        if let Some((steps, otherwise)) = self.list_steps(expr, at) {
            self.update_single_pass_of_parts(expr);
            let otherwise = otherwise.and_then(|e| self.probe_expr(e, at));
            return steps
                .into_iter()
                .rev()
                .fold(otherwise, |rest, step| self.probe_step(step, rest, at));
        }
        let (exprs, query) = expr.children();
        let mut parts: Vec<String> =
            exprs.into_iter().filter_map(|e| self.probe_expr(e, at)).collect();
        parts.extend(query.and_then(|query| self.probe_subquery(expr, query, at)));
        sum_terms(parts)
    }

    /// Returns the steps of a CASE, `iif` or `coalesce`, and the value if no test holds.
    fn list_steps<'e>(
        &self,
        expr: &'e Expr,
        at: EvalPosition<'_>,
    ) -> Option<(Vec<EvaluationStep<'e>>, Option<&'e Expr>)> {
        let certain_sql = |e: &Expr| {
            let is_certain = self.is_certain(e, at.frame, at.exact_aggregates);
            is_certain.then(|| self.expr_sql(e, at.frame))
        };
        match &expr.kind {
            ExprKind::Case { operand, whens, otherwise } => {
                let mut steps: Vec<EvaluationStep<'e>> = operand
                    .iter()
                    .map(|o| EvaluationStep { test: None, tested: o, then: None })
                    .collect();
                let operand = match operand {
                    Some(operand) => certain_sql(operand).map(|sql| format!(" {sql}")),
                    None => Some(String::new()),
                };
                steps.extend(whens.iter().map(|(tested, then)| {
                    let when = operand.as_ref().zip(certain_sql(tested));
                    let test = when.map(|(operand, when)| format!("{operand} WHEN {when}"));
                    EvaluationStep { test, tested, then: Some(then) }
                }));
                Some((steps, otherwise.as_deref()))
            }
            ExprKind::Function { name, args, filter: None, window: None, .. } => {
                match (name.as_str(), args.as_slice()) {
                    ("iif" | "if", [tested, then, otherwise]) => {
                        let test = certain_sql(tested).map(|sql| format!(" WHEN {sql}"));
                        Some((
                            vec![EvaluationStep { test, tested, then: Some(then) }],
                            Some(otherwise),
                        ))
                    }
                    ("coalesce" | "ifnull", args) => {
                        let step = |tested| {
                            let sql = certain_sql(tested);
                            let test = sql.map(|sql| format!(" WHEN ({sql}) IS NOT NULL"));
                            EvaluationStep { test, tested, then: None }
                        };
                        Some((args.iter().map(step).collect(), None))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns SQL that evaluates the calls of a step, and those of the steps after it (`rest`)
    /// unless the step decides the value.
    fn probe_step(
        &mut self,
        step: EvaluationStep<'_>,
        rest: Option<String>,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        let then = step.then.and_then(|e| self.probe_expr(e, at));
        match step.test {
            Some(_) if then.is_none() && rest.is_none() => None,
            Some(test) => {
                let zero = || "0".to_owned();
                let (then, rest) = (then.unwrap_or_else(zero), rest.unwrap_or_else(zero));
                Some(format!("(CASE{test} THEN {then} ELSE {rest} END)"))
            }
            None => {
                let tested = self.probe_expr(step.tested, at);
                sum_terms(tested.into_iter().chain(then).chain(rest).collect())
            }
        }
    }

    /// Returns SQL that evaluates the parts of an AND or OR unless its plain parts decide it.
    fn probe_logical(
        &mut self,
        expr: &Expr,
        parts: &[Expr],
        open: &str,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        self.update_single_pass_of_parts(expr);
        let text = self.probe_exprs(parts, at)?;
        let certain = |p: &&Expr| self.is_certain(p, at.frame, at.exact_aggregates);
        let first = parts.iter().find(|p| !certain(p)).map_or(0, |p| p.span.start);
        let guards = parts.iter().filter(|p| certain(p) && !(may_fail(p) && p.span.start > first));
        let guards: Vec<String> =
            guards.map(|p| format!("(({}) {open})", self.expr_sql(p, at.frame))).collect();
        if guards.is_empty() {
            return Some(text);
        }
        Some(format!("(CASE WHEN {} THEN {text} ELSE 0 END)", guards.join(" AND ")))
    }

    /// Clears `is_single_pass` if several parts of an expression have calls, because one part can
    /// wait for another.
    fn update_single_pass_of_parts(&mut self, expr: &Expr) {
        let (exprs, _) = expr.children();
        self.is_single_pass &= exprs.into_iter().filter(|e| e.has_call()).count() < 2;
    }

    fn probe_subquery(
        &mut self,
        expr: &Expr,
        query: &Query,
        at: EvalPosition<'_>,
    ) -> Option<String> {
        // If a single row decides a subquery, hqdl asks about its rows in batches, so a single pass
        // does not ask about all rows.
        self.is_single_pass &= find_decisive_select_by_syntax(expr).is_err();
        if at.per_group || !query.has_call() {
            return None;
        }
        let outer = std::mem::take(&mut self.probes);
        self.write_query(query, at.frame);
        self.take_probes(outer)
    }

    fn probe_call(&mut self, n: usize, args: &[Expr], at: EvalPosition<'_>) -> Option<String> {
        let site = self.analysis.sites.get(n)?;
        let is_context = site.subject == Subject::Rows;
        let why = if is_context { CALL_IN_CONTEXT } else { ANSWER_ARGUMENT };
        if args.iter().any(Expr::has_call) {
            self.is_single_pass = false;
            self.mark_unbounded(n, why);
            return self.probe_exprs(args, at);
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
        let is_keyed = site.argument_sql.is_some() && is_context;
        let is_certain = |a: &Expr| self.is_certain(a, at.frame, at.exact_aggregates);
        if !is_keyed && !args.iter().all(is_certain) {
            self.mark_unbounded(n, why);
            return None;
        }
        let arguments =
            write_arguments(self.sql, self.plan, site, args, &mut |arg| match &arg.kind {
                ExprKind::Scalar(query) => self.sql[query.span.clone()].to_owned(),
                _ => self.expr_sql(arg, at.frame),
            });
        self.calls.push(n);
        let answer = sql::call_answer_sql(n, false, &arguments);
        Some(match site.row_width {
            Some(_) => format!("(({answer}) IS NULL)"),
            None => format!("(({}{answer}{}) IS NULL)", site.sql_before, site.sql_after),
        })
    }
}
