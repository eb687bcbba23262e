//! A sliding window that counts the requests of the last minute as the endpoint does, and the pace
//! at which requests are sent.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::limits::PerMinute;

/// The period of rate limits.
pub const MINUTE: Duration = Duration::from_secs(60);
/// Longest time between sending a request and the endpoint counting it. A request counts until a
/// minute after its answer, or until a minute after this time, whichever comes first.
pub const MAX_COUNTING_DELAY: Duration = Duration::from_secs(1);
/// Divisor for bursts of requests: 1/1000 of the requests per minute may be sent early, to make up
/// for late wake-ups.
pub(crate) const REQUEST_BURST: u32 = 1000;
/// Divisor for bursts of tokens. It is smaller, because each request uses many tokens.
pub(crate) const TOKEN_BURST: u32 = 200;

/// Number of tokens that a request needs a permit for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Expected number of tokens; the request waits until the pace allows for them.
    pub likely: u64,
    /// Maximum number of tokens, which must fit within the per-minute limit.
    pub max: u64,
}

impl Need {
    /// Creates a need of exactly this many tokens.
    #[must_use]
    pub fn from_tokens(tokens: u64) -> Self {
        Self { likely: tokens, max: tokens }
    }
}

/// A request that counts against the limits.
#[derive(Debug, Clone, Copy)]
struct CountedRequest {
    /// Number of tokens by which the pace was advanced.
    paced_tokens: u64,
    /// Number of tokens that count against the limit.
    tokens: u64,
    /// Time at which the request stops counting; `None` until the request is sent.
    expires_at: Option<Instant>,
}

/// The requests that currently count against the limits.
#[derive(Debug, Default)]
pub(super) struct Window {
    entries: HashMap<u64, CountedRequest>,
    expirations: BTreeSet<(Instant, u64)>,
    tokens: u64,
}

impl Window {
    /// Returns the earliest time at which a request may fit; `None` if it fits now. A request
    /// larger than the limit is sent alone, once no other request counts.
    pub(super) fn compute_next_free_time(
        &mut self,
        now: Instant,
        limits: PerMinute,
        max: u64,
    ) -> Option<Instant> {
        self.drop_expired_entries(now);
        let no_request_left =
            limits.requests.is_some_and(|n| self.entries.len() >= n.max(1) as usize);
        let no_tokens_left = limits
            .tokens
            .is_some_and(|n| self.tokens > 0 && self.tokens.saturating_add(max) > u64::from(n));
        let first_expiration = || self.expirations.first().map_or(now + MINUTE, |(at, _)| *at);
        (no_request_left || no_tokens_left).then(first_expiration)
    }

    /// Adds a request, which counts from now on.
    pub(super) fn add_request(&mut self, id: u64, need: Need) {
        self.insert_entry(
            id,
            CountedRequest { paced_tokens: need.likely, tokens: need.max, expires_at: None },
        );
    }

    /// Adds a request sent by an earlier process, which counts until `expires_at`.
    pub(super) fn restore_request(&mut self, id: u64, tokens: u64, expires_at: Instant) {
        self.insert_entry(
            id,
            CountedRequest { paced_tokens: tokens, tokens, expires_at: Some(expires_at) },
        );
    }

    fn insert_entry(&mut self, id: u64, entry: CountedRequest) {
        self.remove_entry(id);
        self.tokens += entry.tokens;
        self.expirations.extend(entry.expires_at.map(|at| (at, id)));
        self.entries.insert(id, entry);
    }

    /// Removes a request that will not be sent.
    pub(super) fn cancel_request(&mut self, id: u64) {
        if self.entries.get(&id).is_some_and(|e| e.expires_at.is_none()) {
            self.remove_entry(id);
        }
    }

    /// Records that a request was sent. The request expires a minute after the latest time at which
    /// the endpoint may have counted it.
    pub(super) fn mark_sent(&mut self, id: u64, now: Instant) {
        if let Some(entry) = self.remove_entry(id) {
            self.insert_entry(
                id,
                CountedRequest { expires_at: Some(now + MAX_COUNTING_DELAY + MINUTE), ..entry },
            );
        }
    }

    /// Records the tokens that an answered request used. Returns the number of tokens by which the
    /// request had advanced the pace.
    pub(super) fn reconcile_usage(&mut self, id: u64, used: u64, now: Instant) -> Option<u64> {
        let entry = self.remove_entry(id)?;
        let latest = now + MINUTE;
        let expires_at = entry.expires_at.map_or(latest, |at| at.min(latest));
        self.insert_entry(
            id,
            CountedRequest { tokens: used, expires_at: Some(expires_at), ..entry },
        );
        Some(entry.paced_tokens)
    }

    fn remove_entry(&mut self, id: u64) -> Option<CountedRequest> {
        let entry = self.entries.remove(&id)?;
        self.tokens -= entry.tokens;
        if let Some(at) = entry.expires_at {
            self.expirations.remove(&(at, id));
        }
        Some(entry)
    }

    fn drop_expired_entries(&mut self, now: Instant) {
        while let Some((_, id)) = self.expirations.first().filter(|(at, _)| *at <= now).copied() {
            self.remove_entry(id);
        }
    }

    /// Returns true if no request counts against the limits any more.
    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.drop_expired_entries(now);
        self.entries.is_empty()
    }
}

/// Spreads requests evenly over the minute, with a small burst.
#[derive(Debug, Default)]
pub(super) struct WindowPace {
    per_minute: Option<u32>,
    burst_divisor: u32,
    /// Time at which the next request is due.
    due_at: Option<Instant>,
}

impl WindowPace {
    pub(super) fn new(burst_divisor: u32) -> Self {
        Self { burst_divisor, ..Self::default() }
    }

    /// Changes the rate. The remaining wait is scaled accordingly.
    pub(super) fn set_rate(&mut self, per_minute: Option<u32>, now: Instant) {
        let (Some(before), Some(after)) = (self.per_minute, per_minute) else {
            self.per_minute = per_minute;
            self.due_at = None;
            return;
        };
        if before != after {
            let remaining =
                self.due_at.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
            self.due_at = Some(now + remaining.mul_f64(f64::from(before) / f64::from(after)));
            self.per_minute = per_minute;
        }
    }

    /// Returns the earliest time at which the next request may be sent.
    pub(super) fn next_request_time(&self) -> Option<Instant> {
        let per_minute = self.per_minute?;
        let burst = u64::from((per_minute / self.burst_divisor).max(1)) - 1;
        self.due_at?.checked_sub(self.compute_duration(burst))
    }

    /// Advances the pace by `n` requests or tokens.
    pub(super) fn advance_by(&mut self, n: u64, now: Instant) {
        if self.per_minute.is_some() {
            self.due_at =
                Some(self.due_at.map_or(now, |due| due.max(now)) + self.compute_duration(n));
        }
    }

    /// Corrects the pace when a request used more or fewer tokens than expected.
    pub(super) fn reconcile_usage(&mut self, likely: u64, used: u64) {
        let Some(due) = self.due_at else { return };
        self.due_at = if used >= likely {
            Some(due + self.compute_duration(used - likely))
        } else {
            due.checked_sub(self.compute_duration(likely - used))
        };
    }

    /// Returns the time that `n` requests or tokens take at this rate, at most a minute.
    fn compute_duration(&self, n: u64) -> Duration {
        let part = self.per_minute.map_or(0.0, |p| n as f64 / f64::from(p.max(1)));
        MINUTE.mul_f64(part.min(1.0))
    }
}
