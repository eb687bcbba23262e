//! A sliding window over the last minute, counted as an endpoint counts it, and the pace at which
//! it fills.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::limits::PerMinute;

/// The period of rate limits.
pub const MINUTE: Duration = Duration::from_secs(60);
/// Longest time between sending a request and the endpoint counting it. A request counts until a
/// minute after its answer, or until a minute after this time, whichever comes first.
pub const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// A burst of 1/1000 of a minute's requests is allowed, to make up for late wake-ups.
pub(super) const REQUEST_BURST: u32 = 1000;
/// The same divisor for tokens, which come in larger units.
pub(super) const TOKEN_BURST: u32 = 200;

/// Tokens of a request, for a permit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Expected tokens; the request waits until the pace allows them.
    pub likely: u64,
    /// Maximum tokens, which must fit into the request's minute.
    pub most: u64,
}

impl Need {
    /// Creates a need of exactly this many tokens.
    #[must_use]
    pub fn exactly(tokens: u64) -> Self {
        Self { likely: tokens, most: tokens }
    }
}

/// A request that counts against the limits.
#[derive(Debug, Clone, Copy)]
struct CountedRequest {
    /// The tokens that the pace was advanced by.
    likely: u64,
    /// The tokens that it counts for.
    tokens: u64,
    /// When it stops counting; `None` until it is sent.
    leaves: Option<Instant>,
}

/// The requests that count now.
#[derive(Debug, Default)]
pub(super) struct Window {
    entries: HashMap<u64, CountedRequest>,
    leaving: BTreeSet<(Instant, u64)>,
    tokens: u64,
}

impl Window {
    /// Returns the earliest time at which a request fits, as far as known: `None` if it fits now. A
    /// request larger than the limit is sent alone, when nothing else counts.
    pub(super) fn full_until(
        &mut self,
        now: Instant,
        limits: PerMinute,
        most: u64,
    ) -> Option<Instant> {
        self.forget(now);
        let no_place = limits.requests.is_some_and(|n| self.entries.len() >= n.max(1) as usize);
        let no_tokens = limits
            .tokens
            .is_some_and(|n| self.tokens > 0 && self.tokens.saturating_add(most) > u64::from(n));
        let first = || self.leaving.first().map_or(now + MINUTE, |(at, _)| *at);
        (no_place || no_tokens).then(first)
    }

    /// Adds a request; it counts from now on.
    pub(super) fn enter(&mut self, id: u64, need: Need) {
        self.put(id, CountedRequest { likely: need.likely, tokens: need.most, leaves: None });
    }

    /// Adds a request of an earlier process; it counts until `expires_at`.
    pub(super) fn remember(&mut self, id: u64, tokens: u64, leaves: Instant) {
        self.put(id, CountedRequest { likely: tokens, tokens, leaves: Some(leaves) });
    }

    fn put(&mut self, id: u64, entry: CountedRequest) {
        self.take(id);
        self.tokens += entry.tokens;
        self.leaving.extend(entry.leaves.map(|at| (at, id)));
        self.entries.insert(id, entry);
    }

    /// Removes a request that is not sent.
    pub(super) fn cancel(&mut self, id: u64) {
        if self.entries.get(&id).is_some_and(|e| e.leaves.is_none()) {
            self.take(id);
        }
    }

    /// Marks a request as sent.
    pub(super) fn sent(&mut self, id: u64, now: Instant) {
        if let Some(entry) = self.take(id) {
            self.put(id, CountedRequest { leaves: Some(now + ON_ITS_WAY + MINUTE), ..entry });
        }
    }

    /// Records the tokens that an answered request used. Returns the tokens that it was paced for.
    pub(super) fn settle(&mut self, id: u64, used: u64, now: Instant) -> Option<u64> {
        let entry = self.take(id)?;
        let latest = now + MINUTE;
        let leaves = entry.leaves.map_or(latest, |at| at.min(latest));
        self.put(id, CountedRequest { tokens: used, leaves: Some(leaves), ..entry });
        Some(entry.likely)
    }

    fn take(&mut self, id: u64) -> Option<CountedRequest> {
        let entry = self.entries.remove(&id)?;
        self.tokens -= entry.tokens;
        if let Some(at) = entry.leaves {
            self.leaving.remove(&(at, id));
        }
        Some(entry)
    }

    fn forget(&mut self, now: Instant) {
        while let Some((_, id)) = self.leaving.first().filter(|(at, _)| *at <= now).copied() {
            self.take(id);
        }
    }

    /// Returns whether no requests count.
    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.forget(now);
        self.entries.is_empty()
    }
}

/// Spreads requests evenly over the minute, with a small burst.
#[derive(Debug, Default)]
pub(super) struct WindowPace {
    per_minute: Option<u32>,
    parts: u32,
    /// When the next request is due.
    due: Option<Instant>,
}

impl WindowPace {
    pub(super) fn new(parts: u32) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Changes the rate. The remaining wait is scaled accordingly.
    pub(super) fn set(&mut self, per_minute: Option<u32>, now: Instant) {
        let (Some(before), Some(after)) = (self.per_minute, per_minute) else {
            self.per_minute = per_minute;
            self.due = None;
            return;
        };
        if before != after {
            let owed = self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
            self.due = Some(now + owed.mul_f64(f64::from(before) / f64::from(after)));
            self.per_minute = per_minute;
        }
    }

    /// Returns the earliest time of the next request.
    pub(super) fn next(&self) -> Option<Instant> {
        let per_minute = self.per_minute?;
        let burst = u64::from((per_minute / self.parts).max(1)) - 1;
        self.due?.checked_sub(self.takes(burst))
    }

    /// Advances the pace by `n` requests or tokens.
    pub(super) fn go(&mut self, n: u64, now: Instant) {
        if self.per_minute.is_some() {
            self.due = Some(self.due.map_or(now, |due| due.max(now)) + self.takes(n));
        }
    }

    /// Corrects the pace when a request used more or fewer tokens than expected.
    pub(super) fn settle(&mut self, likely: u64, used: u64) {
        let Some(due) = self.due else { return };
        self.due = if used >= likely {
            Some(due + self.takes(used - likely))
        } else {
            due.checked_sub(self.takes(likely - used))
        };
    }

    /// Returns the time that `n` requests or tokens take at this rate, at most a minute.
    fn takes(&self, n: u64) -> Duration {
        let part = self.per_minute.map_or(0.0, |p| n as f64 / f64::from(p.max(1)));
        MINUTE.mul_f64(part.min(1.0))
    }
}
