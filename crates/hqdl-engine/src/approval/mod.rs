//! Approval of what an assistant wants to spend. A [`PlanStore`] keeps the plans that wait for a
//! person's approval, and the approvals. A [`SpendingLedger`] limits what one server spends.
//!
//! An approval is for one plan, is used once, and expires after [`APPROVAL_MINUTES`]. Any program
//! that can write the user's files can also approve plans.

mod ledger;
mod store;

pub use self::ledger::{LimitReached, SpendingLedger, SpendingLimits, SpendingReservation};
pub use self::store::{
    APPROVAL_MINUTES, ApprovalError, CellOverride, FillRequest, OpenPlan, OpenState, PlanRecord,
    PlanStore, PlannedQuery, PlannedWork, is_plan_id,
};
