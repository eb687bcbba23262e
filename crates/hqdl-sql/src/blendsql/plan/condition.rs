//! Conditions of a plan: trees of predicates with NOT pushed down, in source order and in the order
//! of evaluation.

use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::scope::{Scope, strip_expr_parens};
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator, MatchOperator};

/// A condition with NOT pushed down to the predicates.
#[derive(Debug, Clone)]
pub enum Condition {
    /// All parts must hold.
    All(Parts),
    /// At least one part must hold.
    Any(Parts),
    /// A comparison, call or other expression whose truth matters, but not its value.
    Predicate(Predicate),
}

/// Operands of AND or OR.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// Operands in source order.
    pub parts: Vec<Condition>,
    /// Indices into `parts` in the order of evaluation.
    pub order: Vec<usize>,
}

/// A predicate of a condition.
#[derive(Debug, Clone)]
pub struct Predicate {
    /// Expression whose truth value matters.
    pub expr: Expr,
    /// Whether the predicate must be true; otherwise, it must be false.
    pub wanted: bool,
    /// Indices of the calls in the predicate, including calls in its subqueries.
    pub calls: Vec<usize>,
    /// Whether the predicate's value depends on a call.
    pub depends_on_call: bool,
    /// Whether calls are hidden in a subquery or behind an alias, so that the predicate cannot be
    /// looked up without making requests.
    pub has_hidden_calls: bool,
    /// Whether evaluating the predicate may fail.
    pub may_fail: bool,
    /// Indices of the calls in the predicate's subqueries that `SQLite` may run once for many rows.
    pub shared_calls: Vec<usize>,
}

impl Parts {
    fn new(parts: Vec<Condition>) -> Self {
        let order = (0..parts.len()).collect();
        Self { parts, order }
    }

    /// Returns the operands in the order of evaluation.
    pub fn ordered_parts(&self) -> impl Iterator<Item = &Condition> {
        self.order.iter().filter_map(|n| self.parts.get(*n))
    }
}

impl Condition {
    /// Returns the condition that all expressions are true.
    pub(crate) fn all_of(exprs: &[&Expr], analysis: &Analysis<'_>, scope: &Scope<'_>) -> Self {
        let parts = exprs.iter().map(|e| Self::from_expr(e, true, analysis, scope)).collect();
        Self::All(Parts::new(parts))
    }

    /// Returns the condition that an expression is true or, if `wanted` is false, that it is false.
    pub(crate) fn from_expr(
        expr: &Expr,
        wanted: bool,
        analysis: &Analysis<'_>,
        scope: &Scope<'_>,
    ) -> Self {
        match &expr.kind {
            ExprKind::Paren(inner) => Self::from_expr(inner, wanted, analysis, scope),
            ExprKind::Not(inner) => Self::from_expr(inner, !wanted, analysis, scope),
            ExprKind::And(parts) | ExprKind::Or(parts) => {
                let parts =
                    parts.iter().map(|p| Self::from_expr(p, wanted, analysis, scope)).collect();
                if matches!(expr.kind, ExprKind::And(_)) == wanted {
                    Self::All(Parts::new(parts))
                } else {
                    Self::Any(Parts::new(parts))
                }
            }
            _ => Self::Predicate(Predicate::new(expr, wanted, analysis, scope)),
        }
    }

    /// Visits the predicates in source order.
    pub fn visit_predicates<'c>(&'c self, visit: &mut dyn FnMut(&'c Predicate)) {
        match self {
            Self::Predicate(predicate) => visit(predicate),
            Self::All(parts) | Self::Any(parts) => {
                parts.parts.iter().for_each(|p| p.visit_predicates(visit));
            }
        }
    }

    /// Returns the number of predicates that depend on a call.
    #[must_use]
    pub fn call_count(&self) -> usize {
        let mut count = 0;
        self.visit_predicates(&mut |p| count += usize::from(p.depends_on_call));
        count
    }

    /// Returns true if a predicate cannot be looked up without making requests.
    #[must_use]
    pub fn has_hidden_calls(&self) -> bool {
        let mut found = false;
        self.visit_predicates(&mut |p| found |= p.has_hidden_calls);
        found
    }

    /// Returns true if evaluating the condition may fail with an error.
    #[must_use]
    pub fn may_fail(&self) -> bool {
        let mut found = false;
        self.visit_predicates(&mut |p| found |= p.may_fail);
        found
    }
}

impl Predicate {
    pub(crate) fn new(
        expr: &Expr,
        wanted: bool,
        analysis: &Analysis<'_>,
        scope: &Scope<'_>,
    ) -> Self {
        let mut calls = Vec::new();
        expr.visit_exprs(&mut |e| {
            if let ExprKind::Call(n, _) = &e.kind {
                calls.push(*n);
            }
        });
        let depends_on_call = analysis.depends_on_call(expr, scope);
        let mut shared_calls = Vec::new();
        if depends_on_call {
            analysis.collect_shared_calls(expr, scope, &mut shared_calls);
        }
        Self {
            expr: expr.clone(),
            wanted,
            calls,
            depends_on_call,
            has_hidden_calls: analysis.subquery_has_calls(expr)
                || analysis.references_hidden_calls(expr, scope),
            may_fail: may_fail(expr),
            shared_calls,
        }
    }
}

/// Splits a condition into the operands of its top-level ANDs.
pub(crate) fn split_conjuncts(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        ExprKind::And(all) => all.iter().flat_map(split_conjuncts).collect(),
        ExprKind::Paren(inner) if matches!(strip_expr_parens(inner).kind, ExprKind::And(_)) => {
            split_conjuncts(inner)
        }
        _ => vec![expr],
    }
}

/// Functions that never fail, regardless of their arguments.
const INFALLIBLE_FUNCTIONS: [&str; 31] = [
    "char",
    "coalesce",
    "date",
    "datetime",
    "hex",
    "ifnull",
    "iif",
    "instr",
    "julianday",
    "length",
    "lower",
    "ltrim",
    "max",
    "min",
    "nullif",
    "quote",
    "replace",
    "round",
    "rtrim",
    "sign",
    "strftime",
    "substr",
    "substring",
    "time",
    "trim",
    "typeof",
    "unicode",
    "upper",
    "count",
    "total",
    "avg",
];

/// Returns true if evaluating an expression may fail with an error.
pub(crate) fn may_fail(expr: &Expr) -> bool {
    let mut found = false;
    expr.visit_exprs(&mut |e| match &e.kind {
        // SUQL's functions fail for arguments of the wrong type. They count as infallible, because
        // `PostgreSQL` does not guarantee an evaluation order of conditions either.
        ExprKind::Function { name, .. } => {
            found |= !INFALLIBLE_FUNCTIONS.contains(&name.as_str()) && !name.starts_with("suql_");
        }
        ExprKind::Operation(operator, parts) => {
            found |= match operator {
                ExprOperator::Infix(sign) => matches!(*sign, "->" | "->>"),
                ExprOperator::Match(pattern_operator) => {
                    matches!(pattern_operator, MatchOperator::Match | MatchOperator::Regexp)
                }
                // A parameter has no operands.
                ExprOperator::Unknown => !parts.is_empty(),
                _ => false,
            };
        }
        _ => {}
    });
    found
}
