//! Optimization rules that reduce the number of requests, one file each; each file begins with the
//! rule's precondition. If a precondition is not met, hqdl makes all requests that evaluation
//! reaches. The [plan](super::plan) lists the applied rules and the reasons why the others were not
//! applied.

pub mod conditions_last;
pub mod conditions_of_groups;
pub mod first_rows;
pub mod likeness;
pub mod one_witness;
pub mod order;
pub mod stored_columns;

use super::plan::{Refused, RuleOutcome};
use super::rewrite::Rewriter;
use super::tree::Core;

/// Name of the rule [`conditions_last`].
pub const CONDITIONS_LAST: &str = "conditions last";
/// Name of the rule [`conditions_of_groups`].
pub const CONDITIONS_OF_GROUPS: &str = "conditions on groups";
/// Name of the rule [`first_rows`].
pub const FIRST_ROWS: &str = "first rows";
/// Name of the rule [`likeness`].
pub const LIKENESS: &str = "most like first";
/// Name of the rule [`one_witness`].
pub const ONE_WITNESS: &str = "one witness";
/// Name of the rule [`order`].
pub const ORDER: &str = "order of conditions";
/// Name of the rule [`stored_columns`].
pub const STORED_COLUMNS: &str = "stored columns";

impl Rewriter<'_> {
    /// Records the outcome of a rule for a SELECT in the plan.
    pub(super) fn note(&mut self, core: &Core, rule: &'static str, came: Result<String, Refused>) {
        self.out.plan.select(core.span.start).rules.push(RuleOutcome::of(rule, came));
    }

    /// Records the outcome of a rule for the SELECT that is being rewritten.
    pub(super) fn note_here(&mut self, rule: &'static str, came: Result<String, Refused>) {
        self.out.plan.select(self.here).rules.push(RuleOutcome::of(rule, came));
    }
}
