//! Checks of what an endpoint reports as the usage of a request. A budget depends on it, so a
//! report that cannot be true stops the run.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use super::ModelError;
use hqdl_values::PriceTable;
use hqdl_values::format::{count_noun, usd};
use hqdl_values::usage::{Spent, Tokens};

/// How many times the most that a request can take a report may claim and still be added to totals.
const BELIEVED: u64 = 10;

/// A reported usage that cannot be true.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImplausibleUsage {
    /// The endpoint reports more than the request can take.
    #[error(
        "the endpoint reports usage of {} for a request that can use at most {}",
        words(used),
        words(worst)
    )]
    Above {
        /// What it bills.
        used: Spent,
        /// What was reserved for it.
        worst: Spent,
    },
    /// The endpoint reports much less than hqdl counts.
    #[error(
        "the endpoint reports {} in and {} out for a request that hqdl counts as {} in and {} out",
        said.input, said.output, counted.input, counted.output
    )]
    Below {
        /// What it reports.
        said: Tokens,
        /// What hqdl counts.
        counted: Tokens,
    },
}

impl ImplausibleUsage {
    /// Returns the error if an endpoint reported less than what the request was settled at, or more
    /// than was reserved for it.
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

/// The tokens that a request can plausibly take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlausibleTokens {
    /// A report below this is not believed; 0 where nothing is billed.
    pub least: Tokens,
    /// Input and output that were reserved for the request; 0 where that is not known.
    pub most: Tokens,
    /// Whether `most` was counted, and is not only an estimate.
    pub is_counted: bool,
}

impl PlausibleTokens {
    /// Whether a report is below what the request must have taken.
    #[must_use]
    pub fn is_above(&self, tokens: Tokens) -> bool {
        tokens.input < self.least.input || tokens.output < self.least.output
    }

    /// Whether a report is so far above what the request can take that totals must not have it.
    #[must_use]
    pub fn is_far_below(&self, tokens: Tokens) -> bool {
        let most = self.most.input + self.most.output;
        most > 0 && tokens.input + tokens.output > most.saturating_mul(BELIEVED)
    }
}

/// Lets requests to an endpoint leave one at a time until it has reported plausible usage once, so
/// that a false report costs one request and not as many as may be in flight.
#[derive(Debug, Default)]
pub struct UsageGate {
    is_proven: AtomicBool,
    turn: Mutex<()>,
}

impl UsageGate {
    /// Returns the gate of an endpoint that is known to report its usage.
    #[must_use]
    pub fn proven() -> Self {
        Self { is_proven: true.into(), turn: Mutex::default() }
    }

    /// Waits for the turn of a request. The request holds the turn until its usage is checked; `None`
    /// once the endpoint is proven.
    pub async fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_proven.load(Ordering::Acquire) {
            return None;
        }
        let turn = self.turn.lock().await;
        (!self.is_proven.load(Ordering::Acquire)).then_some(turn)
    }

    /// Notes whether a report was plausible. Returns whether that is news.
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
