//! Rule: of several conditions with calls, the one that decides most rows per request is evaluated
//! first, estimated from observed outcomes.
//!
//! Precondition: AND and OR of conditions of which only the truth matters, so that any order has
//! the same meaning. A condition without calls that may fail stays after the calls that precede it.
//! A condition with calls in a subquery cannot be checked without making requests. If there is one,
//! the order is that of the text.

use super::{ORDER, Rewriter};
use crate::blendsql::ingredients::Subject;
use crate::blendsql::scope::Scope;
use crate::blendsql::tree::{Expr, ExprKind};
use crate::blendsql::truth::{Node, may_fail};

/// Estimated cost and truth of a condition.
#[derive(Clone, Copy)]
pub(in crate::blendsql) struct Odds {
    /// Number of values to ask about.
    pub(in crate::blendsql) cost: f64,
    /// Probability that it is true.
    pub(in crate::blendsql) holds: f64,
}

impl Rewriter<'_> {
    /// Returns the indices of conditions in the order of evaluation.
    pub(in crate::blendsql) fn in_order(
        &mut self,
        parts: &[Node<'_>],
        all: bool,
        scope: &Scope<'_>,
    ) -> Vec<usize> {
        let mut odds: Vec<Odds> = parts.iter().map(|p| self.odds(p, scope)).collect();
        let asked = odds.iter().filter(|o| o.cost > 0.0).count();
        let hidden = parts.iter().any(|p| self.hides(p, scope));
        if asked > 1 {
            let told = if hidden {
                Err("a condition has calls in a subquery, so the conditions keep their order")
            } else {
                Ok(format!("{asked} conditions, by selectivity and number of requests"))
            };
            self.note_here(ORDER, told);
        } else if asked == 1 {
            self.note_here(ORDER, Err("there is only one condition with calls"));
        }
        if hidden {
            // Conditions that cannot be checked in advance must have the same order in every run.
            // Otherwise a later run would make requests that an earlier one did not make.
            for o in odds.iter_mut().filter(|o| o.cost > 0.0) {
                *o = Odds { cost: 1.0, holds: 0.5 };
            }
        }
        // A condition without calls that may fail stays after the call that precedes it.
        let first = odds.iter().position(|o| o.cost > 0.0).unwrap_or(parts.len());
        let held: Vec<bool> =
            (0..parts.len()).map(|n| n > first && any_may_fail(&parts[n])).collect();
        let mut order: Vec<usize> = (0..parts.len()).collect();
        // Probability of a decision per value asked about.
        let worth = |n: usize| {
            let settles = if all { 1.0 - odds[n].holds } else { odds[n].holds };
            match odds[n].cost {
                _ if held[n] => -1.0,
                0.0 => f64::INFINITY,
                cost => settles / cost,
            }
        };
        order.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
        order
    }

    /// Returns the number of values per row that a call asks about; several rows may share a value.
    fn cost(&self, call: usize) -> f64 {
        let one = if self.sites[call].subject == Subject::Pair { 5.0 } else { 1.0 };
        one * self.costs.spread.get(&call).copied().unwrap_or(1.0).max(0.001)
    }

    /// Returns true if a condition cannot be checked without making requests.
    pub(in crate::blendsql) fn hides(&self, node: &Node<'_>, scope: &Scope<'_>) -> bool {
        match node {
            Node::Leaf(expr, _) => self.reads_calls(expr) || self.hides_calls(expr, scope),
            Node::All(parts) | Node::Any(parts) => parts.iter().any(|p| self.hides(p, scope)),
        }
    }

    /// Returns true if a subquery of an expression has a call, or reads rows that depend on one.
    fn reads_calls(&self, expr: &Expr) -> bool {
        let (exprs, query) = expr.inside();
        query.is_some_and(|q| !self.calls_read(q).is_empty())
            || exprs.into_iter().any(|e| self.reads_calls(e))
    }

    pub(in crate::blendsql) fn odds(&self, node: &Node<'_>, scope: &Scope<'_>) -> Odds {
        match node {
            Node::Leaf(expr, wanted) => {
                let mut cost = 0.0;
                expr.each(&mut |e| {
                    if let ExprKind::Call(n, _) = &e.kind {
                        cost += self.cost(*n);
                    }
                });
                if cost == 0.0 && self.bears(expr, scope) {
                    cost = 1.0;
                }
                if cost == 0.0 {
                    return Odds { cost: 0.0, holds: 0.5 };
                }
                let seen = self.costs.seen.get(&expr.span.start).copied().unwrap_or_default();
                let holds = if *wanted { seen.share() } else { 1.0 - seen.share() };
                Odds { cost, holds }
            }
            Node::All(parts) | Node::Any(parts) => {
                let all = matches!(node, Node::All(_));
                let mut odds: Vec<Odds> = parts.iter().map(|p| self.odds(p, scope)).collect();
                let worth = |o: &Odds| {
                    let settles = if all { 1.0 - o.holds } else { o.holds };
                    if o.cost == 0.0 { f64::INFINITY } else { settles / o.cost }
                };
                odds.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
                // Share of rows that reach each part.
                let (mut open, mut cost) = (1.0, 0.0);
                for o in &odds {
                    cost += open * o.cost;
                    open *= if all { o.holds } else { 1.0 - o.holds };
                }
                Odds { cost, holds: if all { open } else { 1.0 - open } }
            }
        }
    }
}

/// Returns true if evaluating a condition may fail with an error.
fn any_may_fail(node: &Node<'_>) -> bool {
    match node {
        Node::Leaf(expr, _) => may_fail(expr),
        Node::All(parts) | Node::Any(parts) => parts.iter().any(any_may_fail),
    }
}
