//! Rule: hqdl asks about the rows of an EXISTS or IN in batches, until one row is known to decide
//! it.
//!
//! Precondition: the query is a single SELECT with a condition that has calls. It has no LIMIT,
//! OFFSET, WITH, groups, aggregate or window function. Then its rows are independent. A single row
//! that is known to pass decides an EXISTS, or an IN for the row's value, whatever the other rows
//! are.

use super::{EXISTS_CANDIDATES, RefusalReason, Rewriter};
use crate::blendsql::aggregates::{has_window, is_aggregate};
use crate::blendsql::emit;
use crate::blendsql::scope::{Scope, without_parens};
use crate::blendsql::tree::{Body, Expr, ExprKind, Query, SelectCore};

impl Rewriter<'_> {
    /// Wraps an EXISTS or IN whose rows are recorded one by one, so that one row that passes can
    /// decide it.
    pub(in crate::blendsql) fn rewrite_exists(
        &mut self,
        expr: &Expr,
        text: String,
        scope: &Scope<'_>,
    ) -> String {
        let (query, core) = match self.find_decisive_select(expr, scope) {
            Ok(found) => found,
            Err((query, why)) => {
                if let Some(Body::Core(core)) = query.filter(|q| q.has_call()).map(|q| &q.body) {
                    self.record_outcome(core, EXISTS_CANDIDATES, Err(why));
                }
                return text;
            }
        };
        self.record_outcome(core, EXISTS_CANDIDATES, Ok("a few of its rows at a time".to_owned()));
        let condition_group = self.condition_group_index(core.span.start, 0);
        let is_decisive = !matches!(expr.kind, ExprKind::In { negated: true, .. });
        let once = !self.is_correlated(query, scope);
        emit::record_subquery(is_decisive, once, condition_group, &text)
    }

    /// Returns the SELECT of an EXISTS or IN that a single row decides, because more rows never
    /// change the result. For IN, the value of the rows must be known before any call.
    pub(in crate::blendsql) fn find_decisive_select<'e>(
        &self,
        expr: &'e Expr,
        outer_scope: &Scope<'_>,
    ) -> DecisiveSelect<'e> {
        let (query, core) = syntactic_decisive_select(expr)?;
        if matches!(expr.kind, ExprKind::In { .. }) {
            let cte_scope = self.resolver().cte_scope(query, Some(outer_scope));
            if self.candidate_value(core, &self.resolver().select_scope(core, &cte_scope)).is_none()
            {
                return Err((Some(query), "the value of its rows is not a column of a table"));
            }
        }
        Ok((query, core))
    }

    /// Returns the value column of an IN's SELECT, if it is a plain column that depends on no call.
    pub(in crate::blendsql) fn candidate_value<'e>(
        &self,
        core: &'e SelectCore,
        scope: &Scope<'_>,
    ) -> Option<&'e Expr> {
        let [only] = core.columns.as_slice() else { return None };
        let column = |e: &&Expr| matches!(without_parens(e).kind, ExprKind::Column { .. });
        only.expr.as_ref().filter(column).filter(|e| !self.depends_on_call(e, scope))
    }
}

/// A SELECT whose result a single row decides, or the reason why there is none.
type DecisiveSelect<'e> = Result<(&'e Query, &'e SelectCore), (Option<&'e Query>, RefusalReason)>;

/// Same as [`Rewriter::witnessed`], but checks only the syntax.
pub(in crate::blendsql) fn syntactic_decisive_select(expr: &Expr) -> DecisiveSelect<'_> {
    let query = match &expr.kind {
        ExprKind::Exists(query) | ExprKind::In { query: Some(query), .. } => query.as_ref(),
        _ => return Err((None, "it is neither EXISTS nor IN")),
    };
    let refuse = |why| Err((Some(query), why));
    let Body::Core(core) = &query.body else { return refuse("it is more than one SELECT") };
    if query.limit.is_some() || query.offset.is_some() {
        return refuse("it has a LIMIT");
    }
    if !query.with.is_empty() {
        return refuse("it has a WITH");
    }
    if !core.group.is_empty() || is_aggregate(core, query) || has_window(core, query) {
        return refuse("it has a GROUP BY, an aggregate or a window function");
    }
    if !core.filter.as_ref().is_some_and(Expr::has_call) {
        return refuse("none of its conditions has a call");
    }
    Ok((query, core))
}
