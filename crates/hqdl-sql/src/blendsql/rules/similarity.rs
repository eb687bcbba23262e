//! Rule: if a query needs any few of its rows, hqdl first asks about the rows whose documents are
//! most similar to the question.
//!
//! Precondition: the LIMIT rule applies, without ORDER BY, DISTINCT or groups, and a condition asks
//! about a document that does not depend on another call. Any rows are a valid answer then, so the
//! order of the requests does not affect correctness.

use super::{RefusalReason, Rewriter};
use crate::blendsql::aggregates::visit_own_exprs;
use crate::blendsql::emit;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::tree::{Expr, ExprKind, Query, SelectCore};

impl Rewriter<'_> {
    /// Returns the calls that determine the similarity order, and the order as SQL.
    pub(super) fn similarity_order(
        &self,
        query: &Query,
        core: &SelectCore,
        is_grouped: bool,
        calls: &[&Expr],
    ) -> Result<(Vec<usize>, String), RefusalReason> {
        if !self.similarity_ordering {
            return Err("there are too many rows to sort");
        }
        if !query.order.is_empty() || core.distinct || is_grouped {
            return Err("an ORDER BY, DISTINCT or GROUP BY determines which rows are needed");
        }
        self.document_ranking(calls).ok_or("no condition asks about a document")
    }

    /// Returns the calls about documents and the SQL of the rows' rank by similarity; `None` if
    /// there are none.
    fn document_ranking(&self, calls: &[&Expr]) -> Option<(Vec<usize>, String)> {
        let (mut documents, mut numbers): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
        calls.iter().for_each(|c| {
            visit_own_exprs(c, &mut |e| {
                if let ExprKind::Call(n, args) = &e.kind
                    && self.sites[*n].subject == Subject::Document
                    && let [document] = args.as_slice()
                    && !document.has_call()
                {
                    numbers.push(*n);
                    documents.push(format!("{n}, ({})", &self.sql[document.span.clone()]));
                }
            });
        });
        (!documents.is_empty()).then(|| (numbers, emit::similarity_rank(&documents)))
    }
}
