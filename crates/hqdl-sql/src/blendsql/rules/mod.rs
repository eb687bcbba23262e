//! Optimization rules that reduce the number of requests, one file each; each file begins with the
//! rule's precondition. If a precondition is not met, hqdl makes all requests that evaluation
//! reaches. The [plan](super::plan) lists the applied rules and the reasons why the others were not
//! applied.

pub mod conditions_last;
pub mod group_conditions;
pub mod limit_pushdown;
pub mod similarity;
pub mod exists_candidates;
pub mod condition_order;
pub mod stored_columns;

use super::plan::{RefusalReason, RuleOutcome};
use super::rewrite::Rewriter;
use super::tree::SelectCore;

/// Name of the rule [`conditions_last`].
pub const CONDITIONS_LAST: &str = "conditions last";
/// Name of the rule [`group_conditions`].
pub const GROUP_CONDITIONS: &str = "conditions on groups";
/// Name of the rule `first_rows`.
pub const LIMIT_PUSHDOWN: &str = "first rows";
/// Name of the rule `likeness`.
pub const SIMILARITY: &str = "most like first";
/// Name of the rule [`exists_candidates`].
pub const EXISTS_CANDIDATES: &str = "one witness";
/// Name of the rule `order`.
pub const CONDITION_ORDER: &str = "order of conditions";
/// Name of the rule [`stored_columns`].
pub const STORED_COLUMNS: &str = "stored columns";

impl Rewriter<'_> {
    /// Records the outcome of a rule for a SELECT in the plan.
    pub(super) fn record_outcome(
        &mut self,
        core: &SelectCore,
        rule: &'static str,
        result: Result<String, RefusalReason>,
    ) {
        self.out
            .plan
            .select_mut(core.span.start)
            .rules
            .push(RuleOutcome::from_result(rule, result));
    }

    /// Records the outcome of a rule for the SELECT that is being rewritten.
    pub(super) fn record_outcome_here(
        &mut self,
        rule: &'static str,
        result: Result<String, RefusalReason>,
    ) {
        self.out
            .plan
            .select_mut(self.current_select)
            .rules
            .push(RuleOutcome::from_result(rule, result));
    }
}
