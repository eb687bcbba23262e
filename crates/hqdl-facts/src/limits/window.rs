//! What was sent lately, as an endpoint counts it: a window of a minute that
//! slides, and the pace at which it fills.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::limits::PerMinute;

/// What limits are of.
pub const MINUTE: Duration = Duration::from_secs(60);
/// How long a request may be on its way before the endpoint counts it. It counts
/// here until a minute after its answer, or after this: whichever comes first.
pub const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// The part of a minute's requests that may go at once, to make up for late
/// wake-ups.
pub(super) const REQUEST_BURST: u32 = 1000;
/// The same for tokens, which come in larger pieces.
pub(super) const TOKEN_BURST: u32 = 200;

/// Tokens that a request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// What it likely takes: it waits until the pace allows so many.
    pub likely: u64,
    /// The most it may take: so many must have a place in its minute.
    pub most: u64,
}

impl Need {
    /// A request that takes exactly so many.
    #[must_use]
    pub fn exactly(tokens: u64) -> Self {
        Self { likely: tokens, most: tokens }
    }
}

/// A request that counts.
#[derive(Debug, Clone, Copy)]
struct CountedRequest {
    /// What it was paced for.
    likely: u64,
    /// What it counts for.
    tokens: u64,
    /// When it counts no more; `None` while it has not left.
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
    /// When there is a place for a request, as far as is known now: at once
    /// (`None`), or not before some moment. A request that is larger than the
    /// limit goes alone, when nothing else counts.
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

    /// A request is admitted; it counts from now on.
    pub(super) fn enter(&mut self, id: u64, need: Need) {
        self.put(id, CountedRequest { likely: need.likely, tokens: need.most, leaves: None });
    }

    /// A request that an earlier process sent; it counts until `leaves`.
    pub(super) fn remember(&mut self, id: u64, tokens: u64, leaves: Instant) {
        self.put(id, CountedRequest { likely: tokens, tokens, leaves: Some(leaves) });
    }

    fn put(&mut self, id: u64, entry: CountedRequest) {
        self.take(id);
        self.tokens += entry.tokens;
        self.leaving.extend(entry.leaves.map(|at| (at, id)));
        self.entries.insert(id, entry);
    }

    /// A request is not sent after all.
    pub(super) fn cancel(&mut self, id: u64) {
        if self.entries.get(&id).is_some_and(|e| e.leaves.is_none()) {
            self.take(id);
        }
    }

    /// A request leaves.
    pub(super) fn sent(&mut self, id: u64, now: Instant) {
        if let Some(entry) = self.take(id) {
            self.put(id, CountedRequest { leaves: Some(now + ON_ITS_WAY + MINUTE), ..entry });
        }
    }

    /// A request was answered, and used so many tokens; gives what it was paced
    /// for.
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

    /// Whether nothing counts.
    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.forget(now);
        self.entries.is_empty()
    }
}

/// A rate kept by spreading what is admitted evenly, with a little at once.
#[derive(Debug, Default)]
pub(super) struct WindowPace {
    per_minute: Option<u32>,
    parts: u32,
    /// When the next one is due.
    due: Option<Instant>,
}

impl WindowPace {
    pub(super) fn new(parts: u32) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Goes at another rate from now on: what is owed takes as much longer.
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

    /// When the next one may go.
    pub(super) fn next(&self) -> Option<Instant> {
        let per_minute = self.per_minute?;
        let burst = u64::from((per_minute / self.parts).max(1)) - 1;
        self.due?.checked_sub(self.takes(burst))
    }

    /// So much goes.
    pub(super) fn go(&mut self, n: u64, now: Instant) {
        if self.per_minute.is_some() {
            self.due = Some(self.due.map_or(now, |due| due.max(now)) + self.takes(n));
        }
    }

    /// It turned out to be more, or less.
    pub(super) fn settle(&mut self, likely: u64, used: u64) {
        let Some(due) = self.due else { return };
        self.due = if used >= likely {
            Some(due + self.takes(used - likely))
        } else {
            due.checked_sub(self.takes(likely - used))
        };
    }

    /// How long so much takes: never more than a minute.
    fn takes(&self, n: u64) -> Duration {
        let part = self.per_minute.map_or(0.0, |p| n as f64 / f64::from(p.max(1)));
        MINUTE.mul_f64(part.min(1.0))
    }
}
