//! Optimization rules that reduce the number of requests, one file each; each file begins with the
//! rule's precondition. A rule changes the [plan](super::plan) of one SELECT. If its precondition
//! is not met, it leaves the plan as it is, so that hqdl makes all requests that evaluation
//! reaches. The plan lists the applied rules and the reasons why the others were not applied.

pub mod condition_order;
pub mod conditions_last;
pub mod exists_candidates;
pub mod group_conditions;
pub mod limit_pushdown;
pub mod similarity;

use super::plan::planner::SelectScope;
use super::plan::{DemandPlan, Outcome};

/// A rule.
pub(crate) struct Rule {
    pub name: &'static str,
    pub apply: fn(&mut DemandPlan, &SelectScope<'_>) -> Outcome,
}

/// Rules that decide which rows of a SELECT are needed and when its conditions are evaluated, in
/// the order in which they are applied. The sources of the SELECT are not planned yet.
pub(crate) const BEFORE_SOURCES: &[Rule] = &[
    Rule { name: "first rows", apply: limit_pushdown::push_down_limit },
    Rule { name: "most like first", apply: similarity::order_by_similarity },
    Rule { name: "conditions on groups", apply: group_conditions::move_group_conditions },
    Rule { name: "conditions last", apply: conditions_last::evaluate_last },
    Rule { name: "one witness", apply: exists_candidates::find_decisive_rows },
];

/// Rules that decide the order of conditions, once all conditions of the SELECT are known.
pub(crate) const AFTER_SOURCES: &[Rule] =
    &[Rule { name: "order of conditions", apply: condition_order::order_conditions }];

/// Name of the rule that reads published tables, for the whole query.
pub const STORED_COLUMNS: &str = "stored columns";
