//! Approval of an assistant's spending. A [`PlanStore`] stores approvals and the plans that wait
//! for approval. A [`SpendingLedger`] limits the spending of one server.
//!
//! An approval is valid for one plan, can be used once, and expires after [`APPROVAL_MINUTES`]. Any
//! program that can write the user's files can also approve plans.

mod ledger;
mod store;

pub use self::ledger::{LimitReached, SpendingLedger, SpendingLimits, SpendingReservation};
pub use self::store::{
    APPROVAL_MINUTES, ApprovalError, CellOverride, FillRequest, OpenPlan, OpenState, PlanRecord,
    PlanStore, PlannedQuery, PlannedWork, is_plan_id,
};
