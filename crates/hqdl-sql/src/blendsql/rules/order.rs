//! The rule of the order of conditions: of several conditions with calls the one is
//! asked first that settles most rows for what it asks, by what was seen of them.
//!
//! Precondition: AND and OR of conditions whose value is their truth, which mean the
//! same in any order. A plain part that may fail stays behind the calls that it
//! stands behind; a condition with calls in a subquery cannot be looked at without
//! asking, so with one of these the order is that of the text.

use super::{ORDER, Rewriter};
use crate::blendsql::ingredients::Subject;
use crate::blendsql::scope::Scope;
use crate::blendsql::tree::{Expr, ExprKind};
use crate::blendsql::truth::{Node, may_fail};

/// What evaluating a condition is expected to bring.
#[derive(Clone, Copy)]
pub(in crate::blendsql) struct Odds {
    /// Values asked for.
    pub(in crate::blendsql) cost: f64,
    /// How likely it holds.
    pub(in crate::blendsql) holds: f64,
}

impl Rewriter<'_> {
    /// In which order conditions are evaluated.
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
            // What cannot be looked at beforehand must come in the same order in
            // every run, or a later run would ask what an earlier one did not.
            for o in odds.iter_mut().filter(|o| o.cost > 0.0) {
                *o = Odds { cost: 1.0, holds: 0.5 };
            }
        }
        // A plain part that may fail is not put before a call that it stands behind.
        let first = odds.iter().position(|o| o.cost > 0.0).unwrap_or(parts.len());
        let held: Vec<bool> =
            (0..parts.len()).map(|n| n > first && any_may_fail(&parts[n])).collect();
        let mut order: Vec<usize> = (0..parts.len()).collect();
        // The chance to settle it, for each value asked.
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

    /// Values that a call asks for, for each row: many rows may share one.
    fn cost(&self, call: usize) -> f64 {
        let one = if self.sites[call].subject == Subject::Pair { 5.0 } else { 1.0 };
        one * self.costs.spread.get(&call).copied().unwrap_or(1.0).max(0.001)
    }

    /// Whether a condition cannot be looked at without asking.
    pub(in crate::blendsql) fn hides(&self, node: &Node<'_>, scope: &Scope<'_>) -> bool {
        match node {
            Node::Leaf(expr, _) => self.reads_calls(expr) || self.hides_calls(expr, scope),
            Node::All(parts) | Node::Any(parts) => parts.iter().any(|p| self.hides(p, scope)),
        }
    }

    /// Whether a subquery of an expression has a call, or reads rows that come from one.
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
                // The share of rows that each part is still reached by.
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

/// Returns whether evaluating a condition may end in an error.
fn any_may_fail(node: &Node<'_>) -> bool {
    match node {
        Node::Leaf(expr, _) => may_fail(expr),
        Node::All(parts) | Node::Any(parts) => parts.iter().any(any_may_fail),
    }
}
