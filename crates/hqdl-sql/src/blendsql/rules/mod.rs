//! Optimization rules that reduce the number of requests. Each rule has its own file, which begins
//! with the rule's precondition. A rule changes the [plan](super::plan) of one SELECT. If its
//! precondition is not met, it leaves the plan unchanged, so that hqdl makes all requests that
//! evaluation reaches. The plan lists the applied rules and the reasons why the others were not
//! applied.

pub mod compound_members;
pub mod condition_order;
pub mod conditions_last;
pub mod counted_calls;
pub mod exists_candidates;
pub mod first_of_group;
pub mod group_conditions;
pub mod group_members;
pub mod largest_groups;
pub mod limit_pushdown;
pub mod numbered_values;
pub mod similarity;

use super::plan::select_scope::SelectScope;
use super::plan::{DemandPlan, RuleResult};

/// An optimization rule.
pub(crate) struct Rule {
    pub name: &'static str,
    pub apply: fn(&mut DemandPlan, &SelectScope<'_>) -> RuleResult,
}

/// Rules that decide which rows of a SELECT are needed and when its conditions are evaluated, in
/// the order in which they are applied. They run before the SELECT's sources are planned.
pub(crate) const BEFORE_SOURCES: &[Rule] = &[
    Rule { name: "first rows", apply: limit_pushdown::push_down_limit },
    Rule { name: "most like first", apply: similarity::order_by_similarity },
    Rule { name: "conditions on groups", apply: group_conditions::move_group_conditions },
    Rule { name: "conditions last", apply: conditions_last::evaluate_conditions_last },
    Rule { name: "first of each group", apply: first_of_group::stop_at_first_rows },
    Rule { name: "largest groups", apply: largest_groups::stop_at_decided_groups },
    Rule { name: "values of first rows", apply: numbered_values::restrict_to_first_rows },
    Rule { name: "counted calls", apply: counted_calls::limit_counted_rows },
    Rule { name: "kept groups", apply: group_members::restrict_to_kept_groups },
    Rule { name: "kept by the other side", apply: compound_members::restrict_by_other_side },
    Rule { name: "one witness", apply: exists_candidates::find_decisive_rows },
];

/// Rules that order the conditions, once all conditions of the SELECT are known.
pub(crate) const AFTER_SOURCES: &[Rule] =
    &[Rule { name: "order of conditions", apply: condition_order::order_conditions }];

/// Name of the rule that reads published tables; it applies to the whole query.
pub const STORED_COLUMNS: &str = "stored columns";
