//! Limits the spending of a server over its lifetime.

use std::sync::{Arc, Mutex, PoisonError};

use hqdl_values::format::format_usd;

/// Limits in USD, over the lifetime of a server.
#[derive(Debug, Clone, Copy)]
pub struct SpendingLimits {
    /// Maximum spending without approval.
    pub allow_usd: f64,
    /// Maximum total spending.
    pub max_usd: f64,
}

/// Tolerance for rounding errors in a sum, in USD.
const ROUNDING_USD: f64 = 1e-9;

/// A limit that a plan would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// The plan needs approval.
    #[error("the plan costs more than may be spent without approval")]
    Unapproved,
    /// The plan would exceed the total limit, even if it is approved.
    #[error("the plan costs more than what is left of --max-usd")]
    Total,
}

/// Spent and reserved amounts, in USD.
#[derive(Debug, Clone, Copy, Default)]
struct SpendingTotals {
    unapproved: f64,
    total: f64,
}

/// Tracks the spending of a server. A plan counts with its maximum cost until its actual cost is
/// known.
#[derive(Debug, Clone)]
pub struct SpendingLedger {
    limits: SpendingLimits,
    spent: Arc<Mutex<SpendingTotals>>,
}

impl SpendingLedger {
    /// Returns a ledger with no spending yet.
    #[must_use]
    pub fn new(limits: SpendingLimits) -> Self {
        Self { limits, spent: Arc::default() }
    }

    /// Reserves USD for a plan.
    ///
    /// # Errors
    /// [`LimitReached`] if the plan would exceed a limit. Nothing is reserved in that case.
    pub fn reserve(
        &self,
        usd: f64,
        is_approved: bool,
    ) -> Result<SpendingReservation, LimitReached> {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if spent.total + usd > self.limits.max_usd + ROUNDING_USD {
            return Err(LimitReached::Total);
        }
        if !is_approved {
            if spent.unapproved + usd > self.limits.allow_usd + ROUNDING_USD {
                return Err(LimitReached::Unapproved);
            }
            spent.unapproved += usd;
        }
        spent.total += usd;
        Ok(SpendingReservation { ledger: self.clone(), usd, is_approved })
    }

    /// Returns whether `usd` may be spent without approval.
    #[must_use]
    pub fn allows(&self, usd: f64) -> bool {
        let spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.total + usd <= self.limits.max_usd + ROUNDING_USD
            && spent.unapproved + usd <= self.limits.allow_usd + ROUNDING_USD
    }

    /// Returns the USD that approved plans may still spend.
    #[must_use]
    pub fn remaining_usd(&self) -> f64 {
        let spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        (self.limits.max_usd - spent.total).max(0.0)
    }

    /// Describes the spending so far, and the limits.
    #[must_use]
    pub fn describe(&self) -> String {
        let spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        format!(
            "{} of {} spent, {} of {} without approval",
            format_usd(spent.total),
            format_usd(self.limits.max_usd),
            format_usd(spent.unapproved),
            format_usd(self.limits.allow_usd)
        )
    }
}

/// USD reserved for a plan. If the reservation is dropped without a call to [`Self::settle`], the
/// whole amount counts as spent.
#[must_use]
#[derive(Debug)]
pub struct SpendingReservation {
    ledger: SpendingLedger,
    usd: f64,
    is_approved: bool,
}

impl SpendingReservation {
    /// Returns the reserved USD.
    #[must_use]
    pub fn usd(&self) -> f64 {
        self.usd
    }

    /// Replaces the reserved USD with the actual cost.
    pub fn settle(self, cost_usd: f64) {
        let mut spent = self.ledger.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.total += cost_usd - self.usd;
        if !self.is_approved {
            spent.unapproved += cost_usd - self.usd;
        }
    }
}
