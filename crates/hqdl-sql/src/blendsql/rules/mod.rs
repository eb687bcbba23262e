//! The rules by which a query asks less, a file each, with its precondition at its
//! head. Where a precondition does not hold, all that is reached is asked; the
//! [plan](super::plan) tells which rules fired where, and what kept the others.

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

/// See [`conditions_last`].
pub const CONDITIONS_LAST: &str = "conditions last";
/// See [`conditions_of_groups`].
pub const CONDITIONS_OF_GROUPS: &str = "conditions on groups";
/// See [`first_rows`].
pub const FIRST_ROWS: &str = "first rows";
/// See [`likeness`].
pub const LIKENESS: &str = "most like first";
/// See [`one_witness`].
pub const ONE_WITNESS: &str = "one witness";
/// See [`order`].
pub const ORDER: &str = "order of conditions";
/// See [`stored_columns`].
pub const STORED_COLUMNS: &str = "stored columns";

impl Rewriter<'_> {
    /// Notes in the plan what a rule came to in a SELECT.
    pub(super) fn note(&mut self, core: &Core, rule: &'static str, came: Result<String, Refused>) {
        self.out.plan.select(core.span.start).rules.push(RuleOutcome::of(rule, came));
    }

    /// The same of the SELECT that is being written.
    pub(super) fn note_here(&mut self, rule: &'static str, came: Result<String, Refused>) {
        self.out.plan.select(self.here).rules.push(RuleOutcome::of(rule, came));
    }
}
