//! Decides when a request may be sent. It reads no clock: the caller passes the current time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::window::{Need, REQUEST_BURST, TOKEN_BURST, Window, WindowPace};
use crate::limits::{LONGEST_WAIT, MINUTE, ON_ITS_WAY, PerMinute, RateLimitHint};

/// The limits, and the requests that count against them.
#[derive(Debug)]
pub struct Rates {
    /// The limits of the members.
    asked: BTreeMap<u64, PerMinute>,
    /// The limits that the endpoint last reported.
    told: PerMinute,
    /// End of the pause that the endpoint asked for.
    not_before: Option<Instant>,
    /// The strictest of all limits.
    limits: PerMinute,
    window: Window,
    requests: WindowPace,
    tokens: WindowPace,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            asked: BTreeMap::new(),
            told: PerMinute::default(),
            not_before: None,
            limits: PerMinute::default(),
            window: Window::default(),
            requests: WindowPace::new(REQUEST_BURST),
            tokens: WindowPace::new(TOKEN_BURST),
        }
    }
}

impl Rates {
    /// Adds a member with its limits.
    pub fn join(&mut self, member: u64, limits: PerMinute, now: Instant) {
        self.asked.insert(member, limits);
        self.apply(now);
    }

    /// Removes a member.
    pub fn leave(&mut self, member: u64, now: Instant) {
        self.asked.remove(&member);
        self.apply(now);
    }

    fn apply(&mut self, now: Instant) {
        self.limits = self.asked.values().fold(self.told, |all, one| all.stricter(*one));
        self.requests.set(self.limits.requests, now);
        self.tokens.set(self.limits.tokens, now);
    }

    /// Returns whether there are no members, no reported limits and no requests that count.
    pub fn is_idle(&mut self, now: Instant) -> bool {
        self.asked.is_empty()
            && self.told == PerMinute::default()
            && self.not_before.is_none_or(|until| until <= now)
            && self.window.is_empty(now)
    }

    /// Grants a permit to a request, under a unique number. The request counts from now on.
    ///
    /// # Errors
    /// When the request must wait: the earliest time known so far.
    pub fn admit(&mut self, id: u64, need: Need, now: Instant) -> Result<(), Instant> {
        let full = self.window.full_until(now, self.limits, need.most);
        let all = [self.not_before, full, self.requests.next(), self.tokens.next()];
        if let Some(until) = all.into_iter().flatten().max().filter(|until| *until > now) {
            return Err(until);
        }
        self.window.enter(id, need);
        self.requests.go(1, now);
        self.tokens.go(need.likely, now);
        Ok(())
    }

    /// Returns the permit of a request that is not sent; it no longer counts.
    pub fn cancel(&mut self, id: u64) {
        self.window.cancel(id);
    }

    /// Marks a request as sent.
    pub fn sent(&mut self, id: u64, now: Instant) {
        self.window.sent(id, now);
    }

    /// Records the tokens that an answered request used.
    pub fn settle(&mut self, id: u64, used: u64, now: Instant) {
        if let Some(likely) = self.window.settle(id, used, now) {
            self.tokens.settle(likely, used);
        }
    }

    /// Adds a request of an earlier process that counts for `counts_for`.
    pub fn remember(&mut self, id: u64, tokens: u64, counts: Duration, now: Instant) {
        self.window.remember(id, tokens, now + counts.min(MINUTE + ON_ITS_WAY));
    }

    /// Applies a rate-limit hint of the endpoint. Returns whether something changed.
    pub fn hear(&mut self, hint: RateLimitHint, now: Instant) -> bool {
        let told = PerMinute {
            requests: hint.limits.requests.or(self.told.requests),
            tokens: hint.limits.tokens.or(self.told.tokens),
        };
        let new = told != self.told || hint.wait.is_some();
        if told != self.told {
            self.told = told;
            self.apply(now);
        }
        let until = hint.wait.map(|wait| now + wait.min(LONGEST_WAIT));
        self.not_before = self.not_before.max(until);
        new
    }

    /// Returns the limits that the endpoint reported, and the remaining pause.
    #[must_use]
    pub fn heard(&self, now: Instant) -> RateLimitHint {
        let wait = self.not_before.map(|until| until.saturating_duration_since(now));
        RateLimitHint { limits: self.told, wait: wait.filter(|w| !w.is_zero()) }
    }
}
