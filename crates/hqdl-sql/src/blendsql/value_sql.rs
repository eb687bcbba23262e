//! Rewrites expressions whose value matters: calls become functions, and operands after a pending
//! call are not evaluated.

use super::emit;
use super::rewrite::{Rewriter, Role};
use super::scope::{Scope, without_parens};
use super::tree::{Body, Expr, ExprKind, Query, Span};
use super::truth;

impl Rewriter<'_> {
    /// Returns the index of the result column of a compound that has the same text as an
    /// expression.
    pub(super) fn result_column_of(&self, expr: &Expr, query: &Query) -> Option<usize> {
        match &query.body {
            Body::Compound(_, left, right) => {
                self.result_column_of(expr, left).or_else(|| self.result_column_of(expr, right))
            }
            Body::Core(core) => core.columns.iter().position(|c| {
                let text =
                    |e: &Expr| self.sql[e.span.clone()].split_whitespace().collect::<String>();
                c.expr
                    .as_ref()
                    .is_some_and(|e| text(without_parens(e)) == text(without_parens(expr)))
            }),
            Body::Values(..) => None,
        }
    }

    /// Rewrites LIMIT and OFFSET, which cannot be NULL: no row is needed while a call in them is
    /// pending.
    pub(super) fn rewrite_limits(
        &mut self,
        query: &Query,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        for expr in query.limit.iter().chain(&query.offset).filter(|e| e.has_call()) {
            let text = self.rewrite_value(expr, scope);
            parts.push((expr.span.clone(), emit::limit_value(&text)));
        }
    }

    /// Returns true if a query references rows of an enclosing query, as far as names can be
    /// resolved.
    pub(super) fn is_correlated(&self, query: &Query, outer_scope: &Scope<'_>) -> bool {
        let mut is_correlated = false;
        self.resolver().visit_exprs(query, outer_scope, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                is_correlated |= match at.find_column(table.as_deref(), column) {
                    Some(found) => found.depth <= outer_scope.depth,
                    None => at
                        .row_scope_depth(table.as_deref(), column)
                        .is_some_and(|depth| depth <= outer_scope.depth),
                };
            }
        });
        is_correlated
    }

    /// Rewrites an expression whose value matters.
    pub(super) fn rewrite_value(&mut self, expr: &Expr, scope: &Scope<'_>) -> String {
        if !self.needs_rewrite(expr) {
            return self.sql[expr.span.clone()].to_owned();
        }
        match &expr.kind {
            ExprKind::Call(n, args) => self.rewrite_call(*n, args, scope),
            ExprKind::And(_) | ExprKind::Or(_) => truth::condition_value(self, expr, scope),
            ExprKind::Exists(query) => {
                let text = self.rewrite_subquery(expr, query, scope, Role::Exists);
                self.rewrite_exists(expr, text, scope)
            }
            ExprKind::Scalar(query) => self.rewrite_subquery(expr, query, scope, Role::Rows),
            ExprKind::In { operand, list, query, .. } => {
                let mut parts = Vec::new();
                for part in std::iter::once(operand.as_ref()).chain(list) {
                    self.push_value(part, scope, &mut parts);
                }
                if let Some(query) = query {
                    let text = self.rewrite_query(query, scope, Role::Set);
                    parts.push((query.span.clone(), text));
                }
                let text = self.replace_parts(&expr.span, parts);
                self.rewrite_exists(expr, text, scope)
            }
            ExprKind::Case { operand: None, whens, otherwise } => {
                let mut parts = Vec::new();
                for (when, then) in whens {
                    if when.has_call() {
                        let text = truth::all_hold(self, &[when], scope);
                        parts.push((when.span.clone(), emit::when_true(&text)));
                        let then_text = self.rewrite_value(then, scope);
                        parts.push((then.span.clone(), emit::or_pending(&then_text)));
                    } else {
                        self.push_value(then, scope, &mut parts);
                    }
                }
                if let Some(otherwise) = otherwise {
                    self.push_value(otherwise, scope, &mut parts);
                }
                self.replace_parts(&expr.span, parts)
            }
            ExprKind::Case { operand: Some(operand), whens, otherwise: Some(otherwise) }
                if otherwise.has_call()
                    && matches!(without_parens(operand).kind, ExprKind::Call(..))
                    && !whens.iter().any(|(when, _)| when.has_call()) =>
            {
                let mut parts = Vec::new();
                let text = self.rewrite_value(operand, scope);
                parts.push((operand.span.clone(), emit::remember_pending(&text)));
                whens.iter().for_each(|(_, then)| self.push_value(then, scope, &mut parts));
                let text = self.rewrite_value(otherwise, scope);
                parts.push((otherwise.span.clone(), emit::unless_pending(&text)));
                self.replace_parts(&expr.span, parts)
            }
            ExprKind::Function { name, args, filter: None, window: false }
                if matches!(name.as_str(), "iif" | "if")
                    && args.len() == 3
                    && args[0].has_call() =>
            {
                let truth = truth::all_hold(self, &[&args[0]], scope);
                let (then, otherwise) =
                    (self.rewrite_value(&args[1], scope), self.rewrite_value(&args[2], scope));
                let (when, then) = (emit::when_true(&truth), emit::or_pending(&then));
                format!("CASE WHEN {when} THEN {then} ELSE {otherwise} END")
            }
            ExprKind::Function { name, args, filter: None, window: false }
                if matches!(name.as_str(), "coalesce" | "ifnull")
                    && args.len() > 1
                    && args[0].has_call()
                    && args[1..].iter().any(Expr::has_call) =>
            {
                // Evaluate an argument only if those before it are NULL and not pending.
                let mut texts = Vec::new();
                for arg in args {
                    let text = emit::remember_pending(&self.rewrite_value(arg, scope));
                    let first = texts.is_empty();
                    texts.push(if first { text } else { emit::unless_pending(&text) });
                }
                format!("{name}({})", texts.join(", "))
            }
            ExprKind::Function { filter: Some(filter), args, .. } => {
                let mut parts = Vec::new();
                args.iter().for_each(|a| self.push_value(a, scope, &mut parts));
                if filter.has_call() {
                    let text = truth::all_hold(self, &[filter], scope);
                    parts.push((filter.span.clone(), format!("{text} = 1")));
                }
                self.replace_parts(&expr.span, parts)
            }
            _ => {
                let (exprs, _) = expr.children();
                let mut parts = Vec::new();
                for inner in exprs {
                    self.push_value(inner, scope, &mut parts);
                }
                self.replace_parts(&expr.span, parts)
            }
        }
    }
}
