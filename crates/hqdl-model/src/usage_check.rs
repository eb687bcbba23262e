//! Checks the usage that an endpoint reports. Budgets depend on it, so an implausible report stops
//! the run.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use super::ModelError;
use hqdl_values::PriceTable;
use hqdl_values::format::{format_count, format_usd};
use hqdl_values::usage::{SpentAmount, Tokens};

/// Multiple of a request's maximum usage above which a report is not added to totals.
const MAX_FACTOR: u64 = 10;

/// An implausible usage report.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImplausibleUsage {
    /// The endpoint reports more tokens than the request can use.
    #[error(
        "the endpoint reports usage of {} for a request that can use at most {}",
        format_spending(used),
        format_spending(worst)
    )]
    Above {
        /// Reported usage.
        used: SpentAmount,
        /// Reserved worst-case cost.
        worst: SpentAmount,
    },
    /// The endpoint reports far fewer tokens than hqdl counts.
    #[error(
        "the endpoint reports {} input and {} output tokens for a request, but hqdl counted {} and {}",
        reported.input, reported.output, counted.input, counted.output
    )]
    Below {
        /// Reported tokens.
        reported: Tokens,
        /// Tokens that hqdl counted.
        counted: Tokens,
    },
}

impl ImplausibleUsage {
    /// Returns an error if the endpoint reported fewer tokens than hqdl charges for the request
    /// (`settled_tokens`), or more than were reserved for it.
    #[must_use]
    pub fn check_usage_report(
        reported: Tokens,
        settled_tokens: Tokens,
        worst_case: SpentAmount,
        price: Option<&PriceTable>,
    ) -> Option<ModelError> {
        if reported.input + reported.output < settled_tokens.input + settled_tokens.output {
            return Some(Self::Below { reported, counted: settled_tokens }.into());
        }
        Self::check_reservation(reported, worst_case, price)
    }

    /// Returns an error if a request cost more than was reserved for it.
    #[must_use]
    pub fn check_reservation(
        tokens: Tokens,
        worst_case: SpentAmount,
        price: Option<&PriceTable>,
    ) -> Option<ModelError> {
        let used = SpentAmount::from_tokens(tokens, price);
        let fits = used.tokens <= worst_case.tokens && used.usd <= worst_case.usd * (1.0 + 1e-9);
        (!fits && worst_case.tokens > 0).then(|| Self::Above { used, worst: worst_case }.into())
    }
}

fn format_spending(spent: &SpentAmount) -> String {
    let price =
        if spent.usd > 0.0 { format!(" ({})", format_usd(spent.usd)) } else { String::new() };
    format!("{}{price}", format_count(spent.tokens, "token"))
}

/// The plausible token range of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlausibleTokens {
    /// Minimum for a plausible report; 0 if nothing is billed.
    pub min: Tokens,
    /// Maximum input and output tokens, as reserved for the request; 0 if unknown.
    pub max: Tokens,
    /// Whether `max` was counted rather than estimated.
    pub is_counted: bool,
}

impl PlausibleTokens {
    /// Returns true if a report is below the minimum.
    #[must_use]
    pub fn is_below_minimum(&self, tokens: Tokens) -> bool {
        tokens.input < self.min.input || tokens.output < self.min.output
    }

    /// Returns true if a report is so far above the maximum that it must not be added to totals.
    #[must_use]
    pub fn is_far_above_maximum(&self, tokens: Tokens) -> bool {
        let max = self.max.input + self.max.output;
        max > 0 && tokens.input + tokens.output > max.saturating_mul(MAX_FACTOR)
    }
}

/// Sends requests to an endpoint one at a time until it has reported plausible usage once. A false
/// report then affects only one request instead of all requests in flight.
#[derive(Debug, Default)]
pub struct UsageGate {
    is_proven: AtomicBool,
    turn: Mutex<()>,
}

impl UsageGate {
    /// Creates the gate for an endpoint that has already reported plausible usage.
    #[must_use]
    pub fn with_proven_usage() -> Self {
        Self { is_proven: true.into(), turn: Mutex::default() }
    }

    /// Waits for a request's turn, which lasts until the request's usage is checked. Returns `None`
    /// once the endpoint has reported plausible usage.
    pub async fn wait_for_turn(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_proven.load(Ordering::Acquire) {
            return None;
        }
        let turn = self.turn.lock().await;
        (!self.is_proven.load(Ordering::Acquire)).then_some(turn)
    }

    /// Records whether a report was plausible. Returns true if that changed the state.
    pub fn record_report(&self, is_plausible: bool) -> bool {
        self.is_proven.swap(is_plausible, Ordering::AcqRel) != is_plausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_sent_alone_until_one_report_is_plausible() {
        let gate = UsageGate::default();
        let first = gate.wait_for_turn().await;
        assert!(first.is_some());
        let waits =
            tokio::time::timeout(std::time::Duration::from_millis(10), gate.wait_for_turn());
        assert!(waits.await.is_err());
        assert!(gate.record_report(true));
        drop(first);
        assert!(gate.wait_for_turn().await.is_none());
        assert!(gate.record_report(false));
        assert!(gate.wait_for_turn().await.is_some());
    }
}
