//! What may be sent when. It knows no clock: whoever asks says what time it is.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::window::{Need, REQUEST_BURST, TOKEN_BURST, Window, WindowPace};
use crate::limits::{LONGEST_WAIT, MINUTE, ON_ITS_WAY, PerMinute, RateLimitHint};

/// Limits, and what counts against them.
#[derive(Debug)]
pub struct Rates {
    /// What those who use it ask for now.
    asked: BTreeMap<u64, PerMinute>,
    /// What the endpoint said last.
    told: PerMinute,
    /// Until when it asked to wait.
    not_before: Option<Instant>,
    /// The strictest of all.
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
    /// One more asks for limits.
    pub fn join(&mut self, member: u64, limits: PerMinute, now: Instant) {
        self.asked.insert(member, limits);
        self.apply(now);
    }

    /// Who joined with this number asks for none any more.
    pub fn leave(&mut self, member: u64, now: Instant) {
        self.asked.remove(&member);
        self.apply(now);
    }

    fn apply(&mut self, now: Instant) {
        self.limits = self.asked.values().fold(self.told, |all, one| all.stricter(*one));
        self.requests.set(self.limits.requests, now);
        self.tokens.set(self.limits.tokens, now);
    }

    /// Whether nobody asks for limits, none are known, and nothing counts.
    pub fn is_idle(&mut self, now: Instant) -> bool {
        self.asked.is_empty()
            && self.told == PerMinute::default()
            && self.not_before.is_none_or(|until| until <= now)
            && self.window.is_empty(now)
    }

    /// Admits a request, by a number that no other one has: from now on it counts.
    ///
    /// # Errors
    /// When it must wait: until when, as far as is known now.
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

    /// A request that was admitted is not sent: it counts no more.
    pub fn cancel(&mut self, id: u64) {
        self.window.cancel(id);
    }

    /// A request that was admitted leaves.
    pub fn sent(&mut self, id: u64, now: Instant) {
        self.window.sent(id, now);
    }

    /// A request was answered: what it used.
    pub fn settle(&mut self, id: u64, used: u64, now: Instant) {
        if let Some(likely) = self.window.settle(id, used, now) {
            self.tokens.settle(likely, used);
        }
    }

    /// A request that an earlier process sent counts, and for how long.
    pub fn remember(&mut self, id: u64, tokens: u64, counts: Duration, now: Instant) {
        self.window.remember(id, tokens, now + counts.min(MINUTE + ON_ITS_WAY));
    }

    /// Takes the endpoint's word; whether there is something new in it.
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

    /// What it has heard: the endpoint's limits, and how long nobody is admitted.
    #[must_use]
    pub fn heard(&self, now: Instant) -> RateLimitHint {
        let wait = self.not_before.map(|until| until.saturating_duration_since(now));
        RateLimitHint { limits: self.told, wait: wait.filter(|w| !w.is_zero()) }
    }
}
