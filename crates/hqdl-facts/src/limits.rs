//! Requests and tokens per minute, within the limits of the spec and of the endpoint. The stricter
//! limit wins, and the endpoint's latest limits replace its earlier ones.
//!
//! Permits are granted one by one, in order of arrival, under the limits of that moment. A request
//! waits until the pace allows it, until a pause that the endpoint asked for (`Retry-After`,
//! `x-ratelimit-reset-*`) is over, and until it fits into the minute before it. No minute ever
//! contains more than the limit: a request counts from its permit until a minute after the endpoint
//! can have counted it. It counts at its maximum until its answer reports the actual tokens.

mod rates;
mod window;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::info;

pub use self::rates::Rates;
pub use self::window::{MINUTE, Need, ON_ITS_WAY};

/// The longest pause that is accepted from an endpoint.
pub const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Grants permits to requests at the allowed rate.
#[derive(Debug, Default)]
pub struct Limiter {
    turn: tokio::sync::Mutex<()>,
    rates: Mutex<Rates>,
    /// Notified when the limits change, so that the waiting request checks them again.
    changed: Notify,
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
    /// Returns the stricter of two limits, for requests and tokens separately.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Self {
            requests: least(self.requests, other.requests),
            tokens: least(self.tokens, other.tokens),
        }
    }
}

/// Rate limits that an endpoint reports in `x-ratelimit-limit/remaining/reset-*` headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimitHint {
    /// The limits of the endpoint.
    pub limits: PerMinute,
    /// Time until the limit resets, if nothing remains of it.
    pub wait: Option<Duration>,
}

impl RateLimitHint {
    /// Parses the rate-limit headers of a response.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name: String| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
        let number = |name: String| text(name).and_then(|t| t.parse::<u32>().ok());
        let limit = |what: &str| number(format!("x-ratelimit-limit-{what}")).filter(|l| *l > 0);
        let wait = |what: &str| {
            let none_left = number(format!("x-ratelimit-remaining-{what}")) == Some(0);
            text(format!("x-ratelimit-reset-{what}")).filter(|_| none_left).and_then(duration)
        };
        Self {
            limits: PerMinute { requests: limit("requests"), tokens: limit("tokens") },
            wait: wait("requests").into_iter().chain(wait("tokens")).max(),
        }
    }
}

impl Limiter {
    /// Creates a limiter with the limits of a spec; `None` is unlimited until the endpoint reports
    /// a limit.
    #[must_use]
    pub fn new(requests_per_minute: Option<u32>, tokens_per_minute: Option<u32>) -> Self {
        let limiter = Self::default();
        let limits = PerMinute { requests: requests_per_minute, tokens: tokens_per_minute };
        limiter.join(0, limits);
        limiter
    }

    /// Adds a member with its own limits. The strictest limits of all members apply until it
    /// leaves.
    pub fn join(&self, member: u64, limits: PerMinute) {
        self.change(|rates| rates.join(member, limits, Instant::now()));
    }

    /// Removes a member.
    pub fn leave(&self, member: u64) {
        self.change(|rates| rates.leave(member, Instant::now()));
    }

    /// Returns whether the limiter has no members and no state that a later member would need.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.rates().is_idle(Instant::now())
    }

    /// Waits for a permit for a request, under a unique number. The request counts from then on.
    pub async fn admit(&self, id: u64, need: Need) {
        let _turn = self.turn.lock().await;
        loop {
            let changed = self.changed.notified();
            let tried = self.rates().admit(id, need, Instant::now());
            let Err(until) = tried else { return };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = changed => {}
            }
        }
    }

    /// Returns the permit of a request that is not sent.
    pub fn cancel(&self, id: u64) {
        self.change(|rates| rates.cancel(id));
    }

    /// Marks a request as sent.
    pub fn sent(&self, id: u64) {
        self.rates().sent(id, Instant::now());
    }

    /// Records the tokens that an answered request used.
    pub fn settle(&self, id: u64, used: u64) {
        self.change(|rates| rates.settle(id, used, Instant::now()));
    }

    /// Adds a request of an earlier process, under a unique number, with its tokens and how long it
    /// still counts.
    pub fn remember(&self, id: u64, tokens: u64, counts: Duration) {
        self.change(|rates| rates.remember(id, tokens, counts, Instant::now()));
    }

    /// Grants no permits until `wait` has passed.
    pub fn pause(&self, wait: Duration) {
        self.hear(RateLimitHint { wait: Some(wait), ..RateLimitHint::default() });
    }

    /// Applies the rate-limit headers of a response.
    pub fn observe(&self, headers: &HeaderMap) {
        self.hear(RateLimitHint::of(headers));
    }

    /// Applies a rate-limit hint. A limit in it replaces the endpoint's earlier one. Returns
    /// whether something changed.
    pub fn hear(&self, hint: RateLimitHint) -> bool {
        let new = self.change(|rates| rates.hear(hint, Instant::now()));
        if let Some(wait) = hint.wait {
            info!(?wait, "the limiter pauses");
        }
        if new && hint.limits != PerMinute::default() {
            let told = self.heard().limits;
            info!(?told, "the limiter takes the endpoint's limits");
        }
        new
    }

    /// Returns the limits that the endpoint reported, and the remaining pause.
    #[must_use]
    pub fn heard(&self) -> RateLimitHint {
        self.rates().heard(Instant::now())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Rates) -> T) -> T {
        let changed = change(&mut self.rates());
        self.changed.notify_waiters();
        changed
    }

    fn rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how long the endpoint asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as
/// a date.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|t| t.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let after = text("retry-after")?;
    duration(after).or_else(|| {
        let date = jiff::fmt::rfc2822::parse(after).ok()?;
        let left = date.timestamp().duration_since(jiff::Timestamp::now());
        // A date in the past asks for no wait.
        Some(Duration::try_from(left).unwrap_or_default())
    })
}

/// Parses a duration: `20`, `0.5`, `1s`, `120ms`, `6m0s`, `1h2m3s`.
fn duration(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end =
            rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |n| digits + n);
        total += number
            * match &rest[digits..unit_end] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86400.0,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(total).ok()
}
