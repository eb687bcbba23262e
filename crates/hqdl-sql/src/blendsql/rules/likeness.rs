//! Rule: if a query needs any few of its rows, hqdl first asks about the rows whose documents are
//! most similar to the question.
//!
//! Precondition: the LIMIT rule applies, without ORDER BY, DISTINCT or groups, and a condition asks
//! about a document that does not depend on another call. Any rows are a valid answer then, so the
//! order of the requests does not affect correctness.

use super::{Refused, Rewriter};
use crate::blendsql::aggregates::own;
use crate::blendsql::emit;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::tree::{Core, Expr, ExprKind, Query};

impl Rewriter<'_> {
    /// Returns the calls that determine the similarity order, and the order as SQL.
    pub(super) fn likeness(
        &self,
        query: &Query,
        core: &Core,
        grouped: bool,
        calls: &[&Expr],
    ) -> Result<(Vec<usize>, String), Refused> {
        if !self.retrieves {
            return Err("there are too many rows to sort");
        }
        if !query.order.is_empty() || core.distinct || grouped {
            return Err("an ORDER BY, DISTINCT or GROUP BY determines which rows are needed");
        }
        self.retrieval(calls).ok_or("no condition asks about a document")
    }

    /// Returns the calls about documents and the SQL of the rows' rank by similarity; `None` if
    /// there are none.
    fn retrieval(&self, calls: &[&Expr]) -> Option<(Vec<usize>, String)> {
        let (mut of, mut numbers): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
        calls.iter().for_each(|c| {
            own(c, &mut |e| {
                if let ExprKind::Call(n, args) = &e.kind
                    && self.sites[*n].subject == Subject::Document
                    && let [document] = args.as_slice()
                    && !document.has_call()
                {
                    numbers.push(*n);
                    of.push(format!("{n}, ({})", &self.sql[document.span.clone()]));
                }
            });
        });
        (!of.is_empty()).then(|| (numbers, emit::rank(&of)))
    }
}
