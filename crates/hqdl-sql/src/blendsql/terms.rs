//! Resolves ORDER BY and GROUP BY terms as `SQLite` does: a term can be the position or the alias
//! of a result column instead of an expression.
//!
//! `SQLite` removes parentheses and COLLATE from a term before it looks for a position or an alias.
//! A position may also have signs and be hexadecimal. An alias inside an operator or a function,
//! including `likely()`, is an ordinary name, so a column of the FROM clause has priority.
//! `likely(2)` is a constant.

use super::scope::strip_expr_parens;
use super::tree::{Expr, ExprKind, ExprOperator, SelectCore};

/// Clause that contains a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clause {
    /// ORDER BY, where an alias hides a column of the same name.
    Order,
    /// GROUP BY, where a column hides an alias of the same name.
    Group,
}

/// Resolved meaning of a term of ORDER BY or GROUP BY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResolvedTerm {
    /// The result column at this index, from 0.
    Result(usize),
    /// A position that cannot be resolved, because a star precedes it or there is no such column.
    Unresolved,
    /// The term is an ordinary expression.
    Expression,
}

/// Resolves a term of a SELECT's clause.
pub(super) fn resolve_term(
    term: &Expr,
    clause: Clause,
    core: &SelectCore,
    sql: &str,
) -> ResolvedTerm {
    let term = strip_collation(term);
    if let ExprKind::Column { table: None, column } = &term.kind
        && clause == Clause::Order
    {
        let alias = |a: &String| a.eq_ignore_ascii_case(column);
        let found = core.columns.iter().position(|c| c.alias.as_ref().is_some_and(alias));
        return found.map_or(ResolvedTerm::Expression, ResolvedTerm::Result);
    }
    let Some(position) = read_integer(term, sql) else { return ResolvedTerm::Expression };
    let at = usize::try_from(position).ok().and_then(|n| n.checked_sub(1));
    match at {
        // A star expands to all columns of its tables.
        Some(n) if core.columns.iter().take(n + 1).all(|c| c.expr.is_some()) => {
            if n < core.columns.len() { ResolvedTerm::Result(n) } else { ResolvedTerm::Unresolved }
        }
        _ => ResolvedTerm::Unresolved,
    }
}

/// Returns the expression of a term: the referenced result column's expression, or the term itself.
/// Returns `None` if a position cannot be resolved.
pub(super) fn resolve_term_expr<'c>(
    term: &'c Expr,
    clause: Clause,
    core: &'c SelectCore,
    sql: &str,
) -> Option<&'c Expr> {
    match resolve_term(term, clause, core, sql) {
        ResolvedTerm::Result(n) => core.columns.get(n)?.expr.as_ref(),
        ResolvedTerm::Unresolved => None,
        ResolvedTerm::Expression => Some(term),
    }
}

/// Returns the value of an integer literal, including its signs; `None` for any other expression.
pub(super) fn read_integer(expr: &Expr, sql: &str) -> Option<i64> {
    let expr = strip_expr_parens(expr);
    let text = sql[expr.span.clone()].trim();
    match &expr.kind {
        ExprKind::Literal => {
            let digits = text.replace('_', "");
            match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
                Some(hex) => i64::from_str_radix(hex, 16).ok(),
                None => digits.parse().ok(),
            }
        }
        ExprKind::Operation(ExprOperator::Prefix("+"), parts) => read_integer(parts.first()?, sql),
        ExprKind::Operation(ExprOperator::Prefix("-"), parts) => {
            read_integer(parts.first()?, sql)?.checked_neg()
        }
        _ => None,
    }
}

/// Removes the outer parentheses and COLLATE of an expression.
fn strip_collation(expr: &Expr) -> &Expr {
    let expr = strip_expr_parens(expr);
    match &expr.kind {
        ExprKind::Operation(ExprOperator::Collate(_), parts) => {
            parts.first().map_or(expr, strip_collation)
        }
        _ => expr,
    }
}
