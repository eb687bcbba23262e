//! Rule: hqdl asks about the rows of an EXISTS or IN in batches, until one row is known to decide
//! it.
//!
//! Precondition: the query is a single SELECT with a condition that has calls. It has no LIMIT,
//! OFFSET, WITH, groups, aggregate or window function. Then its rows are independent. A single row
//! that is known to pass decides an EXISTS, or an IN for the row's value, whatever the other rows
//! are.

use super::{ONE_WITNESS, Refused, Rewriter};
use crate::blendsql::aggregates::{has_window, is_aggregate};
use crate::blendsql::emit;
use crate::blendsql::scope::{Scope, bare};
use crate::blendsql::tree::{Body, Core, Expr, ExprKind, Query};

impl Rewriter<'_> {
    /// Wraps an EXISTS or IN whose rows are recorded one by one, so that one row that passes can
    /// decide it.
    pub(in crate::blendsql) fn run_of(
        &mut self,
        expr: &Expr,
        text: String,
        scope: &Scope<'_>,
    ) -> String {
        let (query, core) = match self.witnessed(expr, scope) {
            Ok(found) => found,
            Err((query, why)) => {
                if let Some(Body::Core(core)) = query.filter(|q| q.has_call()).map(|q| &q.body) {
                    self.note(core, ONE_WITNESS, Err(why));
                }
                return text;
            }
        };
        self.note(core, ONE_WITNESS, Ok("a few of its rows at a time".to_owned()));
        let unit = self.unit(core.span.start, 0);
        let settles = !matches!(expr.kind, ExprKind::In { negated: true, .. });
        let once = !self.is_correlated(query, scope);
        emit::noted_rows(settles, once, unit, &text)
    }

    /// Returns the SELECT of an EXISTS or IN that a single row decides, because more rows never
    /// change the result. For IN, the value of the rows must be known before any call.
    pub(in crate::blendsql) fn witnessed<'e>(
        &self,
        expr: &'e Expr,
        around: &Scope<'_>,
    ) -> SettledByARow<'e> {
        let (query, core) = settled_by_a_row(expr)?;
        if matches!(expr.kind, ExprKind::In { .. }) {
            let within = self.resolver().ctes(query, Some(around));
            if self.witness(core, &self.resolver().core(core, &within)).is_none() {
                return Err((Some(query), "the value of its rows is not a column of a table"));
            }
        }
        Ok((query, core))
    }

    /// Returns the value column of an IN's SELECT, if it is a plain column that depends on no call.
    pub(in crate::blendsql) fn witness<'e>(
        &self,
        core: &'e Core,
        scope: &Scope<'_>,
    ) -> Option<&'e Expr> {
        let [only] = core.columns.as_slice() else { return None };
        let column = |e: &&Expr| matches!(bare(e).kind, ExprKind::Column { .. });
        only.expr.as_ref().filter(column).filter(|e| !self.bears(e, scope))
    }
}

/// A SELECT whose result a single row decides, or the reason why there is none.
type SettledByARow<'e> = Result<(&'e Query, &'e Core), (Option<&'e Query>, Refused)>;

/// Same as [`Rewriter::witnessed`], but checks only the syntax.
pub(in crate::blendsql) fn settled_by_a_row(expr: &Expr) -> SettledByARow<'_> {
    let query = match &expr.kind {
        ExprKind::Exists(query) | ExprKind::In { query: Some(query), .. } => query.as_ref(),
        _ => return Err((None, "it is neither EXISTS nor IN")),
    };
    let refused = |why| Err((Some(query), why));
    let Body::Core(core) = &query.body else { return refused("it is more than one SELECT") };
    if query.limit.is_some() || query.offset.is_some() {
        return refused("it has a LIMIT");
    }
    if !query.with.is_empty() {
        return refused("it has a WITH");
    }
    if !core.group.is_empty() || is_aggregate(core, query) || has_window(core, query) {
        return refused("it has a GROUP BY, an aggregate or a window function");
    }
    if !core.filter.as_ref().is_some_and(Expr::has_call) {
        return refused("none of its conditions has a call");
    }
    Ok((query, core))
}
