//! Rule: of several conditions with calls, the one that decides most rows per request is evaluated
//! first, estimated from observed outcomes.
//!
//! Precondition: AND and OR of conditions of which only the truth matters, so that any order has
//! the same meaning. A condition without calls that may fail stays after the calls that precede it.
//! A condition with calls in a subquery cannot be checked without making requests. If there is one,
//! the order is that of the text.

use super::{CONDITION_ORDER, Rewriter};
use crate::blendsql::ingredients::Subject;
use crate::blendsql::scope::Scope;
use crate::blendsql::tree::{Expr, ExprKind};
use crate::blendsql::truth::{ConditionTree, may_fail};

/// Estimated cost and truth of a condition.
#[derive(Clone, Copy)]
pub(in crate::blendsql) struct ConditionEstimate {
    /// Number of values to ask about.
    pub(in crate::blendsql) cost: f64,
    /// Probability that it is true.
    pub(in crate::blendsql) holds: f64,
}

impl Rewriter<'_> {
    /// Returns the indices of conditions in the order of evaluation.
    pub(in crate::blendsql) fn evaluation_order(
        &mut self,
        parts: &[ConditionTree<'_>],
        all: bool,
        scope: &Scope<'_>,
    ) -> Vec<usize> {
        let mut estimates: Vec<ConditionEstimate> =
            parts.iter().map(|p| self.estimate(p, scope)).collect();
        let asking_count = estimates.iter().filter(|o| o.cost > 0.0).count();
        let has_hidden = parts.iter().any(|p| self.has_hidden_calls(p, scope));
        if asking_count > 1 {
            let outcome = if has_hidden {
                Err("a condition has calls in a subquery, so the conditions keep their order")
            } else {
                Ok(format!("{asking_count} conditions, by selectivity and number of requests"))
            };
            self.record_outcome_here(CONDITION_ORDER, outcome);
        } else if asking_count == 1 {
            self.record_outcome_here(
                CONDITION_ORDER,
                Err("there is only one condition with calls"),
            );
        }
        if has_hidden {
            // Conditions that cannot be checked in advance must have the same order in every run.
            // Otherwise a later run would make requests that an earlier one did not make.
            for estimate in estimates.iter_mut().filter(|o| o.cost > 0.0) {
                *estimate = ConditionEstimate { cost: 1.0, holds: 0.5 };
            }
        }
        // A condition without calls that may fail stays after the call that precedes it.
        let first = estimates.iter().position(|o| o.cost > 0.0).unwrap_or(parts.len());
        let is_deferred: Vec<bool> =
            (0..parts.len()).map(|n| n > first && may_any_fail(&parts[n])).collect();
        let mut order: Vec<usize> = (0..parts.len()).collect();
        // Probability of a decision per value asked about.
        let priority = |n: usize| {
            let decides = if all { 1.0 - estimates[n].holds } else { estimates[n].holds };
            match estimates[n].cost {
                _ if is_deferred[n] => -1.0,
                0.0 => f64::INFINITY,
                cost => decides / cost,
            }
        };
        order.sort_by(|a, b| priority(*b).total_cmp(&priority(*a)));
        order
    }

    /// Returns the number of values per row that a call asks about; several rows may share a value.
    fn call_cost(&self, call: usize) -> f64 {
        let one = if self.sites[call].subject == Subject::Pair { 5.0 } else { 1.0 };
        one * self.statistics.values_per_row.get(&call).copied().unwrap_or(1.0).max(0.001)
    }

    /// Returns true if a condition cannot be checked without making requests.
    pub(in crate::blendsql) fn has_hidden_calls(
        &self,
        node: &ConditionTree<'_>,
        scope: &Scope<'_>,
    ) -> bool {
        match node {
            ConditionTree::Predicate(expr, _) => {
                self.subquery_has_calls(expr) || self.references_hidden_calls(expr, scope)
            }
            ConditionTree::All(parts) | ConditionTree::Any(parts) => {
                parts.iter().any(|p| self.has_hidden_calls(p, scope))
            }
        }
    }

    /// Returns true if a subquery of an expression has a call, or reads rows that depend on one.
    fn subquery_has_calls(&self, expr: &Expr) -> bool {
        let (exprs, query) = expr.children();
        query.is_some_and(|q| !self.reachable_calls(q).is_empty())
            || exprs.into_iter().any(|e| self.subquery_has_calls(e))
    }

    pub(in crate::blendsql) fn estimate(
        &self,
        node: &ConditionTree<'_>,
        scope: &Scope<'_>,
    ) -> ConditionEstimate {
        match node {
            ConditionTree::Predicate(expr, wanted) => {
                let mut cost = 0.0;
                expr.visit_exprs(&mut |e| {
                    if let ExprKind::Call(n, _) = &e.kind {
                        cost += self.call_cost(*n);
                    }
                });
                if cost == 0.0 && self.depends_on_call(expr, scope) {
                    cost = 1.0;
                }
                if cost == 0.0 {
                    return ConditionEstimate { cost: 0.0, holds: 0.5 };
                }
                let selectivity = self
                    .statistics
                    .selectivities
                    .get(&expr.span.start)
                    .copied()
                    .unwrap_or_default();
                let holds = if *wanted {
                    selectivity.estimated_share()
                } else {
                    1.0 - selectivity.estimated_share()
                };
                ConditionEstimate { cost, holds }
            }
            ConditionTree::All(parts) | ConditionTree::Any(parts) => {
                let all = matches!(node, ConditionTree::All(_));
                let mut estimates: Vec<ConditionEstimate> =
                    parts.iter().map(|p| self.estimate(p, scope)).collect();
                let priority = |o: &ConditionEstimate| {
                    let decides = if all { 1.0 - o.holds } else { o.holds };
                    if o.cost == 0.0 { f64::INFINITY } else { decides / o.cost }
                };
                estimates.sort_by(|a, b| priority(b).total_cmp(&priority(a)));
                // Share of rows that reach each part.
                let (mut reached_share, mut cost) = (1.0, 0.0);
                for o in &estimates {
                    cost += reached_share * o.cost;
                    reached_share *= if all { o.holds } else { 1.0 - o.holds };
                }
                ConditionEstimate {
                    cost,
                    holds: if all { reached_share } else { 1.0 - reached_share },
                }
            }
        }
    }
}

/// Returns true if evaluating a condition may fail with an error.
fn may_any_fail(node: &ConditionTree<'_>) -> bool {
    match node {
        ConditionTree::Predicate(expr, _) => may_fail(expr),
        ConditionTree::All(parts) | ConditionTree::Any(parts) => parts.iter().any(may_any_fail),
    }
}
