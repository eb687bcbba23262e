//! The rule of documents most like the question first: where a query needs any few
//! of its rows, those are asked about first whose documents are most like what is
//! asked of them.
//!
//! Precondition: the rule of the first rows fires, without an ORDER BY, DISTINCT or
//! groups; a condition asks a document that no other call makes. Any rows are the
//! answer there, so the order in which they are asked about decides nothing.

use super::{Refused, Rewriter};
use crate::blendsql::aggregates::own;
use crate::blendsql::emit;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::tree::{Core, Expr, ExprKind, Query};

impl Rewriter<'_> {
    /// The calls that say in which order, and that order as SQL.
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

    /// What puts the rows of a SELECT in the order of how much its documents are
    /// like what is asked of them; `None` when nothing is.
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
