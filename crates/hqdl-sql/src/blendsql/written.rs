//! Rewrites expressions whose value matters: calls become functions, and operands after a pending
//! call are not evaluated.

use super::emit;
use super::rewrite::{Rewriter, Role};
use super::scope::{Scope, bare};
use super::tree::{Body, Expr, ExprKind, Query, Span};
use super::truth;

impl Rewriter<'_> {
    /// Returns the index of the result column of a compound that has the same text as an
    /// expression.
    pub(super) fn column_of(&self, expr: &Expr, query: &Query) -> Option<usize> {
        match &query.body {
            Body::Compound(_, left, right) => {
                self.column_of(expr, left).or_else(|| self.column_of(expr, right))
            }
            Body::Core(core) => core.columns.iter().position(|c| {
                let text =
                    |e: &Expr| self.sql[e.span.clone()].split_whitespace().collect::<String>();
                c.expr.as_ref().is_some_and(|e| text(bare(e)) == text(bare(expr)))
            }),
            Body::Values(..) => None,
        }
    }

    /// Rewrites LIMIT and OFFSET, which cannot be NULL: no row is needed while a call in them is
    /// pending.
    pub(super) fn limits(
        &mut self,
        query: &Query,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        for expr in query.limit.iter().chain(&query.offset).filter(|e| e.has_call()) {
            let text = self.value(expr, scope);
            parts.push((expr.span.clone(), emit::limit(&text)));
        }
    }

    /// Returns true if a query references rows of an enclosing query, as far as names can be
    /// resolved.
    pub(super) fn is_correlated(&self, query: &Query, around: &Scope<'_>) -> bool {
        let mut outer = false;
        self.resolver().each(query, around, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                outer |= match at.find(table.as_deref(), column) {
                    Some(found) => found.depth <= around.depth,
                    None => at
                        .place(table.as_deref(), column)
                        .is_some_and(|depth| depth <= around.depth),
                };
            }
        });
        outer
    }

    /// Rewrites an expression whose value matters.
    pub(super) fn value(&mut self, expr: &Expr, scope: &Scope<'_>) -> String {
        if !self.is_written(expr) {
            return self.sql[expr.span.clone()].to_owned();
        }
        match &expr.kind {
            ExprKind::Call(n, args) => self.call(*n, args, scope),
            ExprKind::And(_) | ExprKind::Or(_) => truth::value(self, expr, scope),
            ExprKind::Exists(query) => {
                let text = self.subquery(expr, query, scope, Role::Exists);
                self.run_of(expr, text, scope)
            }
            ExprKind::Scalar(query) => self.subquery(expr, query, scope, Role::Rows),
            ExprKind::In { operand, list, query, .. } => {
                let mut parts = Vec::new();
                for part in std::iter::once(operand.as_ref()).chain(list) {
                    self.value_part(part, scope, &mut parts);
                }
                if let Some(query) = query {
                    let text = self.query(query, scope, Role::Set);
                    parts.push((query.span.clone(), text));
                }
                let text = self.compose(&expr.span, parts);
                self.run_of(expr, text, scope)
            }
            ExprKind::Case { operand: None, whens, otherwise } => {
                let mut parts = Vec::new();
                for (when, then) in whens {
                    if when.has_call() {
                        let text = truth::all(self, &[when], scope);
                        parts.push((when.span.clone(), emit::when(&text)));
                        let then_text = self.value(then, scope);
                        parts.push((then.span.clone(), emit::or_pending(&then_text)));
                    } else {
                        self.value_part(then, scope, &mut parts);
                    }
                }
                if let Some(otherwise) = otherwise {
                    self.value_part(otherwise, scope, &mut parts);
                }
                self.compose(&expr.span, parts)
            }
            ExprKind::Case { operand: Some(operand), whens, otherwise: Some(otherwise) }
                if otherwise.has_call()
                    && matches!(bare(operand).kind, ExprKind::Call(..))
                    && !whens.iter().any(|(when, _)| when.has_call()) =>
            {
                let mut parts = Vec::new();
                let text = self.value(operand, scope);
                parts.push((operand.span.clone(), emit::remembered(&text)));
                whens.iter().for_each(|(_, then)| self.value_part(then, scope, &mut parts));
                let text = self.value(otherwise, scope);
                parts.push((otherwise.span.clone(), emit::unless_pending(&text)));
                self.compose(&expr.span, parts)
            }
            ExprKind::Function { name, args, filter: None, window: false }
                if matches!(name.as_str(), "iif" | "if")
                    && args.len() == 3
                    && args[0].has_call() =>
            {
                let truth = truth::all(self, &[&args[0]], scope);
                let (then, otherwise) = (self.value(&args[1], scope), self.value(&args[2], scope));
                let (when, then) = (emit::when(&truth), emit::or_pending(&then));
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
                    let text = emit::remembered(&self.value(arg, scope));
                    let first = texts.is_empty();
                    texts.push(if first { text } else { emit::unless_pending(&text) });
                }
                format!("{name}({})", texts.join(", "))
            }
            ExprKind::Function { filter: Some(filter), args, .. } => {
                let mut parts = Vec::new();
                args.iter().for_each(|a| self.value_part(a, scope, &mut parts));
                if filter.has_call() {
                    let text = truth::all(self, &[filter], scope);
                    parts.push((filter.span.clone(), format!("{text} = 1")));
                }
                self.compose(&expr.span, parts)
            }
            _ => {
                let (exprs, _) = expr.inside();
                let mut parts = Vec::new();
                for inner in exprs {
                    self.value_part(inner, scope, &mut parts);
                }
                self.compose(&expr.span, parts)
            }
        }
    }
}
