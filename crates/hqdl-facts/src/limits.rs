//! Limits the requests and tokens per minute, as the spec and the endpoint require. The stricter
//! limit wins, and the endpoint's latest limits replace its earlier ones.
//!
//! Permits are granted one by one, in order of arrival, under the limits that apply at that moment.
//! A request waits until the pace allows it, until a pause that the endpoint asked for is over, and
//! until it fits within the per-minute limit. No minute ever contains more than the limit: a
//! request counts from its permit until a minute after the latest time at which the endpoint may
//! have counted it. It counts at its maximum until its answer reports the actual tokens.

mod rates;
mod window;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::info;

pub use self::rates::Rates;
pub use self::window::{MAX_COUNTING_DELAY, MINUTE, Need};
pub(crate) use self::window::{REQUEST_BURST, TOKEN_BURST};

/// Longest pause that hqdl accepts from an endpoint.
pub const MAX_PAUSE: Duration = Duration::from_secs(15 * 60);

/// Grants permits to requests at the allowed rate.
#[derive(Debug, Default)]
pub struct Limiter {
    turn: tokio::sync::Mutex<()>,
    rates: Mutex<Rates>,
    /// Notified when the limits change, so that the waiting request checks them again.
    limits_changed: Notify,
    /// Earliest time at which the first waiting request can be sent.
    next_permit_at: Mutex<Option<Instant>>,
}

/// Limits per minute; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerMinute {
    /// Requests per minute.
    pub requests: Option<u32>,
    /// Tokens per minute.
    pub tokens: Option<u32>,
}

impl PerMinute {
    /// Returns the stricter of two limits, separately for requests and tokens.
    #[must_use]
    pub fn stricter_limits(self, other: Self) -> Self {
        let min_limit = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Self {
            requests: min_limit(self.requests, other.requests),
            tokens: min_limit(self.tokens, other.tokens),
        }
    }
}

/// Rate limits that an endpoint reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimitHint {
    /// The endpoint's limits.
    pub limits: PerMinute,
    /// Time until the limit resets, if the limit is used up.
    pub wait: Option<Duration>,
}

impl Limiter {
    /// Creates a limiter with the limits of a spec; `None` is unlimited until the endpoint reports
    /// a limit.
    #[must_use]
    pub fn new(requests_per_minute: Option<u32>, tokens_per_minute: Option<u32>) -> Self {
        let limiter = Self::default();
        let limits = PerMinute { requests: requests_per_minute, tokens: tokens_per_minute };
        limiter.add_member(0, limits);
        limiter
    }

    /// Adds a member with its own limits. The strictest limits of all members apply.
    pub fn add_member(&self, member: u64, limits: PerMinute) {
        self.update_rates(|rates| rates.add_member(member, limits, Instant::now()));
    }

    /// Removes a member and its limits.
    pub fn remove_member(&self, member: u64) {
        self.update_rates(|rates| rates.remove_member(member, Instant::now()));
    }

    /// Returns true if the limiter has no members and no state that a later member would need.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lock_rates().is_idle(Instant::now())
    }

    /// Waits for a permit for the request with the unique number `id`. Once granted, the request
    /// counts against the limits.
    pub async fn acquire_permit(&self, id: u64, need: Need) {
        let _turn = self.turn.lock().await;
        loop {
            let limits_changed = self.limits_changed.notified();
            let result = self.lock_rates().try_acquire(id, need, Instant::now());
            *self.lock_next_permit() = result.err();
            let Err(until) = result else { return };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = limits_changed => {}
            }
        }
    }

    /// Returns the time until the first waiting request can be sent.
    #[must_use]
    pub fn time_to_next_permit(&self) -> Option<Duration> {
        self.lock_next_permit().map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn lock_next_permit(&self) -> MutexGuard<'_, Option<Instant>> {
        self.next_permit_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels the permit of a request that will not be sent.
    pub fn cancel_request(&self, id: u64) {
        self.update_rates(|rates| rates.cancel_request(id));
    }

    /// Records that a request was sent. Until then, the request counts without expiring.
    pub fn mark_sent(&self, id: u64) {
        self.lock_rates().mark_sent(id, Instant::now());
    }

    /// Records the tokens that an answered request used.
    pub fn reconcile_usage(&self, id: u64, used: u64) {
        self.update_rates(|rates| rates.reconcile_usage(id, used, Instant::now()));
    }

    /// Adds a request sent by an earlier process, under the unique number `id`, with its tokens and
    /// the time for which it still counts.
    pub fn restore_request(&self, id: u64, tokens: u64, counts_for: Duration) {
        self.update_rates(|rates| rates.restore_request(id, tokens, counts_for, Instant::now()));
    }

    /// Grants no permits until `wait` has passed.
    pub fn pause_for(&self, wait: Duration) {
        self.apply_hint(RateLimitHint { wait: Some(wait), ..RateLimitHint::default() });
    }

    /// Applies a rate-limit hint. Its limits replace the endpoint's earlier ones. Returns true if
    /// something changed.
    pub fn apply_hint(&self, hint: RateLimitHint) -> bool {
        let is_new = self.update_rates(|rates| rates.apply_hint(hint, Instant::now()));
        if let Some(wait) = hint.wait {
            info!(?wait, "the limiter pauses");
        }
        if is_new && hint.limits != PerMinute::default() {
            let reported_limits = self.observed_limits().limits;
            info!(?reported_limits, "the limiter takes the endpoint's limits");
        }
        is_new
    }

    /// Returns the limits that the endpoint reported, and the remaining pause.
    #[must_use]
    pub fn observed_limits(&self) -> RateLimitHint {
        self.lock_rates().observed_limits(Instant::now())
    }

    fn update_rates<T>(&self, change: impl FnOnce(&mut Rates) -> T) -> T {
        let result = change(&mut self.lock_rates());
        self.limits_changed.notify_waiters();
        result
    }

    fn lock_rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
