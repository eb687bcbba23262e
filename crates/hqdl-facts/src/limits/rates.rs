//! Decides when a request may be sent. This module never reads a clock: the caller passes the
//! current time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::window::{Need, REQUEST_BURST, TOKEN_BURST, Window, WindowPace};
use crate::limits::{MAX_COUNTING_DELAY, MAX_PAUSE, MINUTE, PerMinute, RateLimitHint};

/// The limits, and the requests that count against them.
#[derive(Debug)]
pub struct Rates {
    member_limits: BTreeMap<u64, PerMinute>,
    /// The limits that the endpoint last reported.
    server_limits: PerMinute,
    /// End of the pause that the endpoint requested.
    not_before: Option<Instant>,
    /// The strictest of the members' and the endpoint's limits.
    limits: PerMinute,
    window: Window,
    requests: WindowPace,
    tokens: WindowPace,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            member_limits: BTreeMap::new(),
            server_limits: PerMinute::default(),
            not_before: None,
            limits: PerMinute::default(),
            window: Window::default(),
            requests: WindowPace::new(REQUEST_BURST),
            tokens: WindowPace::new(TOKEN_BURST),
        }
    }
}

impl Rates {
    /// Adds a member. From now on, its limits apply to all requests.
    pub fn add_member(&mut self, member: u64, limits: PerMinute, now: Instant) {
        self.member_limits.insert(member, limits);
        self.apply_limits(now);
    }

    /// Removes a member and its limits.
    pub fn remove_member(&mut self, member: u64, now: Instant) {
        self.member_limits.remove(&member);
        self.apply_limits(now);
    }

    fn apply_limits(&mut self, now: Instant) {
        self.limits = self
            .member_limits
            .values()
            .fold(self.server_limits, |all, one| all.stricter_limits(*one));
        self.requests.set_rate(self.limits.requests, now);
        self.tokens.set_rate(self.limits.tokens, now);
    }

    /// Returns true if there are no members, no reported limits and no requests that count.
    pub fn is_idle(&mut self, now: Instant) -> bool {
        self.member_limits.is_empty()
            && self.server_limits == PerMinute::default()
            && self.not_before.is_none_or(|until| until <= now)
            && self.window.is_empty(now)
    }

    /// Grants a permit to the request with the unique number `id`. The request counts from now on.
    ///
    /// # Errors
    /// If the request must wait, returns the earliest time at which another attempt could succeed.
    pub fn try_acquire(&mut self, id: u64, need: Need, now: Instant) -> Result<(), Instant> {
        let window_full_until = self.window.compute_next_free_time(now, self.limits, need.max);
        let earliest_times = [
            self.not_before,
            window_full_until,
            self.requests.next_request_time(),
            self.tokens.next_request_time(),
        ];
        if let Some(until) = earliest_times.into_iter().flatten().max().filter(|until| *until > now)
        {
            return Err(until);
        }
        self.window.add_request(id, need);
        self.requests.advance_by(1, now);
        self.tokens.advance_by(need.likely, now);
        Ok(())
    }

    /// Cancels the permit of a request that will not be sent. The request no longer counts.
    pub fn cancel_request(&mut self, id: u64) {
        self.window.cancel_request(id);
    }

    /// Records that a request was sent, which starts its expiry.
    pub fn mark_sent(&mut self, id: u64, now: Instant) {
        self.window.mark_sent(id, now);
    }

    /// Records the tokens that an answered request used.
    pub fn reconcile_usage(&mut self, id: u64, used: u64, now: Instant) {
        if let Some(likely) = self.window.reconcile_usage(id, used, now) {
            self.tokens.reconcile_usage(likely, used);
        }
    }

    /// Adds a request sent by an earlier process, which counts for another `counts_for`.
    pub fn restore_request(&mut self, id: u64, tokens: u64, counts_for: Duration, now: Instant) {
        self.window.restore_request(id, tokens, now + counts_for.min(MINUTE + MAX_COUNTING_DELAY));
    }

    /// Applies a rate-limit hint from the endpoint. Returns true if something changed.
    pub fn apply_hint(&mut self, hint: RateLimitHint, now: Instant) -> bool {
        let reported_limits = PerMinute {
            requests: hint.limits.requests.or(self.server_limits.requests),
            tokens: hint.limits.tokens.or(self.server_limits.tokens),
        };
        let is_new = reported_limits != self.server_limits || hint.wait.is_some();
        if reported_limits != self.server_limits {
            self.server_limits = reported_limits;
            self.apply_limits(now);
        }
        let until = hint.wait.map(|wait| now + wait.min(MAX_PAUSE));
        self.not_before = self.not_before.max(until);
        is_new
    }

    /// Returns the limits that the endpoint reported, and the remaining pause.
    #[must_use]
    pub fn observed_limits(&self, now: Instant) -> RateLimitHint {
        let wait = self.not_before.map(|until| until.saturating_duration_since(now));
        RateLimitHint { limits: self.server_limits, wait: wait.filter(|w| !w.is_zero()) }
    }
}
