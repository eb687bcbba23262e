//! Sources from which a SELECT uses only the first rows in a window's order: `… FROM (SELECT …,
//! row_number() OVER (…) AS n FROM …) AS s WHERE s.n = 1`.

use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::condition::split_conjuncts;
use crate::blendsql::scope::{Scope, strip_expr_parens};
use crate::blendsql::terms::read_integer;
use crate::blendsql::tree::{
    Body, Expr, ExprKind, FromItem, JoinKind, Query, SelectCore, WindowSpec,
};

/// Rows of a source that a SELECT uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberedRows<'s> {
    /// Function that numbers the rows: `row_number` or `rank`.
    pub function: &'s Expr,
    /// Window of the function.
    pub window: &'s WindowSpec,
    /// Highest row number that the SELECT uses.
    pub last: u64,
    /// Whether the SELECT is the outermost one, which reads its sources only once.
    pub runs_once: bool,
}

/// Returns the rows of a source that a SELECT uses, if a WHERE condition restricts them to the
/// first rows in a window's order.
pub(crate) fn find_numbered_rows<'s>(
    (core, item): (&SelectCore, &FromItem),
    source: &'s Query,
    scope: &Scope<'_>,
    analysis: &Analysis<'_>,
) -> Option<NumberedRows<'s>> {
    let Body::Core(inner) = &source.body else { return None };
    if item.join != JoinKind::Inner || core.has_outer_join() {
        return None;
    }
    core.filter.iter().flat_map(split_conjuncts).find_map(|condition| {
        let (number, last) = find_limited_number(condition, analysis.sql)?;
        let ExprKind::Column { table, column } = &number.kind else { return None };
        let found = scope.find_column(table.as_deref(), column)?;
        let is_named = |name: &String| name.eq_ignore_ascii_case(&found.field.name);
        let is_source = found.depth == scope.depth
            && found.table.name == item.name
            && scope.tables.iter().filter(|t| t.name == item.name).count() == 1
            // A `*` before the number can expand to a column of the same name.
            && found.table.fields.iter().flatten().filter(|f| is_named(&f.name)).count() == 1;
        let number = inner.columns.iter().find(|c| c.alias.as_ref().is_some_and(is_named))?;
        let function = strip_expr_parens(number.expr.as_ref().filter(|_| is_source)?);
        let ExprKind::Function { name, window: Some(window), filter: None, .. } = &function.kind
        else {
            return None;
        };
        let is_numbering = matches!(name.as_str(), "row_number" | "rank") && !window.has_base;
        let runs_once = core.span.start == analysis.root;
        is_numbering.then_some(NumberedRows { function, window, last, runs_once })
    })
}

/// If a condition limits a value to at most a positive number, returns the value and the number.
fn find_limited_number<'e>(condition: &'e Expr, sql: &str) -> Option<(&'e Expr, u64)> {
    let ExprKind::Compare(operator, left, right) = &strip_expr_parens(condition).kind else {
        return None;
    };
    let (value, number, operator) = match (read_integer(left, sql), read_integer(right, sql)) {
        (None, Some(number)) => (left, number, *operator),
        (Some(number), None) => {
            let swapped = match *operator {
                ">" => "<",
                ">=" => "<=",
                "=" => "=",
                _ => return None,
            };
            (right, number, swapped)
        }
        _ => return None,
    };
    let last = match operator {
        "=" | "<=" => number,
        "<" => number.checked_sub(1)?,
        _ => return None,
    };
    Some((strip_expr_parens(value), u64::try_from(last).ok().filter(|last| *last > 0)?))
}
