//! Checks the usage that an endpoint reports. Budgets depend on it, so an implausible report stops
//! the run.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use super::ModelError;
use hqdl_values::PriceTable;
use hqdl_values::format::{count_noun, usd};
use hqdl_values::usage::{Spent, Tokens};

/// A report up to this many times the maximum of a request is still added to totals.
const BELIEVED: u64 = 10;

/// An implausible usage report.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImplausibleUsage {
    /// The endpoint reports more tokens than the request can use.
    #[error(
        "the endpoint reports usage of {} for a request that can use at most {}",
        words(used),
        words(worst)
    )]
    Above {
        /// The reported usage.
        used: Spent,
        /// The reserved worst case.
        worst: Spent,
    },
    /// The endpoint reports much less than hqdl counts.
    #[error(
        "the endpoint reports {} in and {} out for a request that hqdl counts as {} in and {} out",
        said.input, said.output, counted.input, counted.output
    )]
    Below {
        /// The reported tokens.
        said: Tokens,
        /// The tokens that hqdl counts.
        counted: Tokens,
    },
}

impl ImplausibleUsage {
    /// Returns the error if the endpoint reported less than the settled tokens, or more than was
    /// reserved for the request.
    #[must_use]
    pub fn of(
        said: Tokens,
        settled: Tokens,
        worst: Spent,
        price: Option<&PriceTable>,
    ) -> Option<ModelError> {
        if said.input + said.output < settled.input + settled.output {
            return Some(Self::Below { said, counted: settled }.into());
        }
        Self::above(said, worst, price)
    }

    /// Returns the error if a request cost more than was reserved for it.
    #[must_use]
    pub fn above(tokens: Tokens, worst: Spent, price: Option<&PriceTable>) -> Option<ModelError> {
        let used = Spent::of(tokens, price);
        let fits = used.tokens <= worst.tokens && used.usd <= worst.usd * (1.0 + 1e-9);
        (!fits && worst.tokens > 0).then(|| Self::Above { used, worst }.into())
    }
}

fn words(spent: &Spent) -> String {
    let price = if spent.usd > 0.0 { format!(" ({})", usd(spent.usd)) } else { String::new() };
    format!("{}{price}", count_noun(spent.tokens, "token"))
}

/// The plausible token range of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlausibleTokens {
    /// Minimum of a plausible report; 0 if nothing is billed.
    pub least: Tokens,
    /// Maximum input and output tokens, which were reserved for the request; 0 if unknown.
    pub most: Tokens,
    /// Whether `max` was counted, instead of estimated.
    pub is_counted: bool,
}

impl PlausibleTokens {
    /// Returns whether a report is below the minimum.
    #[must_use]
    pub fn is_above(&self, tokens: Tokens) -> bool {
        tokens.input < self.least.input || tokens.output < self.least.output
    }

    /// Returns whether a report is so far above the maximum that it must not be added to totals.
    #[must_use]
    pub fn is_far_below(&self, tokens: Tokens) -> bool {
        let most = self.most.input + self.most.output;
        most > 0 && tokens.input + tokens.output > most.saturating_mul(BELIEVED)
    }
}

/// Sends requests to an endpoint one at a time until it has reported plausible usage once. So a
/// false report costs one request, instead of all that may be in flight.
#[derive(Debug, Default)]
pub struct UsageGate {
    is_proven: AtomicBool,
    turn: Mutex<()>,
}

impl UsageGate {
    /// Creates the gate of an endpoint with a proven usage report.
    #[must_use]
    pub fn proven() -> Self {
        Self { is_proven: true.into(), turn: Mutex::default() }
    }

    /// Waits for the turn of a request, which lasts until its usage is checked; `None` once the
    /// endpoint is proven.
    pub async fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_proven.load(Ordering::Acquire) {
            return None;
        }
        let turn = self.turn.lock().await;
        (!self.is_proven.load(Ordering::Acquire)).then_some(turn)
    }

    /// Records whether a report was plausible. Returns whether that changed the state.
    pub fn note(&self, is_plausible: bool) -> bool {
        self.is_proven.swap(is_plausible, Ordering::AcqRel) != is_plausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_leave_alone_until_one_report_is_plausible() {
        let gate = UsageGate::default();
        let first = gate.enter().await;
        assert!(first.is_some());
        let waits = tokio::time::timeout(std::time::Duration::from_millis(10), gate.enter());
        assert!(waits.await.is_err());
        assert!(gate.note(true));
        drop(first);
        assert!(gate.enter().await.is_none());
        assert!(gate.note(false));
        assert!(gate.enter().await.is_some());
    }
}
