//! Rule: if several conditions have calls, the one expected to decide the most rows per request is
//! evaluated first. The estimate uses observed outcomes.
//!
//! Precondition: only the truth of the conditions in an AND or OR matters, so that any order has
//! the same meaning. A plain condition that may fail stays after the calls that precede it. A
//! condition with calls in a subquery cannot be checked without making requests. If there is such a
//! condition, all conditions keep the order of the text.

use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::condition::{Condition, Parts};
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{CountCondition, DemandPlan, RuleResult};

/// Estimated cost of a condition, and the probability that it is true.
#[derive(Clone, Copy)]
struct ConditionEstimate {
    /// Expected cost per row; see [`estimate_call_cost`].
    cost: f64,
    /// Probability that the condition is true.
    holds: f64,
}

/// Orders the parts of all conditions of a SELECT.
pub(crate) fn order_conditions(plan: &mut DemandPlan, select: &SelectScope<'_>) -> RuleResult {
    let (mut ordered, mut in_text_order, mut single) = (0, false, false);
    let mut order = |condition: &mut Condition| {
        order_condition(condition, select.analysis, &mut |asking, has_hidden| match asking {
            0 => {}
            1 => single = true,
            _ if has_hidden => in_text_order = true,
            n => ordered = ordered.max(n),
        });
    };
    let values = plan.value_conditions.values_mut().filter(|v| v.select == select.offset());
    for value in values {
        order(&mut value.holds);
        value.fails.iter_mut().for_each(&mut order);
    }
    let planned = plan.find_or_add_select(select.offset());
    planned.truth.iter_mut().chain(&mut planned.having).for_each(&mut order);
    planned.outer_joins.iter_mut().for_each(|join| order(&mut join.truth));
    for counted in &mut planned.counted {
        if let CountCondition::Holds(condition) = &mut counted.condition {
            order(condition);
        }
    }
    if ordered > 0 {
        RuleResult::Applied(format!("{ordered} conditions, by selectivity and number of requests"))
    } else if in_text_order {
        RuleResult::Refused(
            "a condition has calls in a subquery, so the conditions keep their order",
        )
    } else if single {
        RuleResult::Refused("there is only one condition with calls")
    } else {
        RuleResult::Irrelevant
    }
}

/// Orders the parts of conditions that are outside of all SELECTs.
pub(crate) fn order_conditions_outside_selects(plan: &mut DemandPlan, analysis: &Analysis<'_>) {
    let values = plan.value_conditions.values_mut().filter(|v| v.select == usize::MAX);
    for value in values {
        order_condition(&mut value.holds, analysis, &mut |_, _| {});
        value.fails.iter_mut().for_each(|c| order_condition(c, analysis, &mut |_, _| {}));
    }
}

fn order_condition(
    condition: &mut Condition,
    analysis: &Analysis<'_>,
    report: &mut dyn FnMut(usize, bool),
) {
    let is_all = matches!(condition, Condition::All(_));
    let (Condition::All(parts) | Condition::Any(parts)) = condition else { return };
    parts.parts.iter_mut().for_each(|p| order_condition(p, analysis, report));
    let has_hidden = parts.parts.iter().any(Condition::has_hidden_calls);
    let asking = parts.parts.iter().filter(|p| p.call_count() > 0).count();
    report(asking, has_hidden);
    parts.order = choose_evaluation_order(parts, is_all, has_hidden, analysis);
}

/// Returns the indices of the parts in the order of evaluation.
fn choose_evaluation_order(
    parts: &Parts,
    is_all: bool,
    has_hidden: bool,
    analysis: &Analysis<'_>,
) -> Vec<usize> {
    let parts = &parts.parts;
    let mut estimates: Vec<ConditionEstimate> =
        parts.iter().map(|p| estimate_condition(p, analysis)).collect();
    if has_hidden {
        // Conditions that cannot be checked in advance must have the same order in every run.
        // Otherwise a later run could make requests that the earlier run avoided.
        for estimate in estimates.iter_mut().filter(|o| o.cost > 0.0) {
            *estimate = ConditionEstimate { cost: 1.0, holds: 0.5 };
        }
    }
    // A plain condition that may fail stays after the call that precedes it.
    let first = estimates.iter().position(|o| o.cost > 0.0).unwrap_or(parts.len());
    let mut order: Vec<usize> = (0..parts.len()).collect();
    let rank = |n: usize| {
        if n > first && parts[n].may_fail() {
            -1.0
        } else {
            compute_decision_priority(&estimates[n], is_all)
        }
    };
    order.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)));
    order
}

/// Returns the probability that a condition decides the row, per unit of cost.
fn compute_decision_priority(estimate: &ConditionEstimate, is_all: bool) -> f64 {
    let decides = if is_all { 1.0 - estimate.holds } else { estimate.holds };
    if estimate.cost == 0.0 { f64::INFINITY } else { decides / estimate.cost }
}

/// Returns the relative cost of a call per row: the number of distinct values per row, weighted by
/// the call's subject.
fn estimate_call_cost(call: usize, analysis: &Analysis<'_>) -> f64 {
    let one = match analysis.sites[call].subject {
        Subject::Pair => 5.0,
        // An embedding costs a small fraction of an answer.
        Subject::Embedding => 0.01,
        _ => 1.0,
    };
    one * analysis.statistics.values_per_row.get(&call).copied().unwrap_or(1.0).max(0.001)
}

fn estimate_condition(condition: &Condition, analysis: &Analysis<'_>) -> ConditionEstimate {
    let is_all = matches!(condition, Condition::All(_));
    match condition {
        Condition::Predicate(predicate) => {
            if !predicate.depends_on_call {
                return ConditionEstimate { cost: 0.0, holds: 0.5 };
            }
            let cost: f64 = predicate.calls.iter().map(|n| estimate_call_cost(*n, analysis)).sum();
            let selectivities = &analysis.statistics.selectivities;
            let selectivity = selectivities.get(&predicate.expr.span.start);
            let share = selectivity.copied().unwrap_or_default().estimated_share();
            ConditionEstimate {
                cost: if cost == 0.0 { 1.0 } else { cost },
                holds: if predicate.wanted { share } else { 1.0 - share },
            }
        }
        Condition::All(parts) | Condition::Any(parts) => {
            let mut estimates: Vec<ConditionEstimate> =
                parts.parts.iter().map(|p| estimate_condition(p, analysis)).collect();
            estimates.sort_by(|a, b| {
                compute_decision_priority(b, is_all)
                    .total_cmp(&compute_decision_priority(a, is_all))
            });
            // Share of rows that reach each part.
            let (mut reached_share, mut cost) = (1.0, 0.0);
            for o in &estimates {
                cost += reached_share * o.cost;
                reached_share *= if is_all { o.holds } else { 1.0 - o.holds };
            }
            let holds = if is_all { reached_share } else { 1.0 - reached_share };
            ConditionEstimate { cost, holds }
        }
    }
}
