//! Requests and tokens per minute, never above what the spec and the endpoint
//! allow; the stricter of the two wins. Of the endpoint, its last word counts.
//!
//! Requests are admitted one by one, in the order they come, each under the
//! limits as they are at that moment: when the pace allows it, when nobody asked
//! to wait (`Retry-After`, `x-ratelimit-reset-*`), and when it has a place in the
//! minute before it. No minute ever holds more than the limit: a request counts
//! from when it is admitted to a minute after the endpoint can have counted it,
//! and for the most it may take until its answer says what it took.

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

/// The longest an endpoint's word is believed when it says to wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Admits requests at the rate that is allowed.
#[derive(Debug, Default)]
pub struct Limiter {
    turn: tokio::sync::Mutex<()>,
    rates: Mutex<Rates>,
    /// Whoever has the turn looks again: something is allowed that was not, or
    /// is not that was.
    changed: Notify,
}

/// Limits; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerMinute {
    /// Requests a minute.
    pub requests: Option<u32>,
    /// Tokens a minute.
    pub tokens: Option<u32>,
}

impl PerMinute {
    /// The stricter of two, each by itself.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Self {
            requests: least(self.requests, other.requests),
            tokens: least(self.tokens, other.tokens),
        }
    }
}

/// What an endpoint says of its limits: `x-ratelimit-limit/remaining/reset-*`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimitHint {
    /// Its limits.
    pub limits: PerMinute,
    /// How long until there is room again, when there is none.
    pub wait: Option<Duration>,
}

impl RateLimitHint {
    /// What the headers of a response say.
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
    /// The limits of a spec; `None` is unlimited until the endpoint says otherwise.
    #[must_use]
    pub fn new(requests_per_minute: Option<u32>, tokens_per_minute: Option<u32>) -> Self {
        let limiter = Self::default();
        let limits = PerMinute { requests: requests_per_minute, tokens: tokens_per_minute };
        limiter.join(0, limits);
        limiter
    }

    /// One more uses it, by a number of its own and with limits of its own: the
    /// strictest of all hold, until that one leaves.
    pub fn join(&self, member: u64, limits: PerMinute) {
        self.change(|rates| rates.join(member, limits, Instant::now()));
    }

    /// Who joined with this number uses it no more.
    pub fn leave(&self, member: u64) {
        self.change(|rates| rates.leave(member, Instant::now()));
    }

    /// Whether nobody uses it, and it knows nothing of use to who will.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.rates().is_idle(Instant::now())
    }

    /// Waits for the turn of a request, which gets a number that no other one has;
    /// from then on it counts.
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

    /// A request that was admitted is not sent.
    pub fn cancel(&self, id: u64) {
        self.change(|rates| rates.cancel(id));
    }

    /// A request leaves.
    pub fn sent(&self, id: u64) {
        self.rates().sent(id, Instant::now());
    }

    /// A request was answered: what it used.
    pub fn settle(&self, id: u64, used: u64) {
        self.change(|rates| rates.settle(id, used, Instant::now()));
    }

    /// What counts still of an earlier process: a request, by a number of its own,
    /// with its tokens and how long it counts.
    pub fn remember(&self, id: u64, tokens: u64, counts: Duration) {
        self.change(|rates| rates.remember(id, tokens, counts, Instant::now()));
    }

    /// Nobody is admitted before `wait` has passed.
    pub fn pause(&self, wait: Duration) {
        self.hear(RateLimitHint { wait: Some(wait), ..RateLimitHint::default() });
    }

    /// Takes the endpoint's word.
    pub fn observe(&self, headers: &HeaderMap) {
        self.hear(RateLimitHint::of(headers));
    }

    /// Takes the endpoint's word, as it was read: a limit that it names takes the
    /// place of what it said before. Whether there is something new in it.
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

    /// What it has heard: the endpoint's limits, and how long nobody is admitted.
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

/// How long the endpoint asks to wait: `retry-after-ms`, or `Retry-After` in
/// seconds or as a date.
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
        // A date that has passed asks for no wait.
        Some(Duration::try_from(left).unwrap_or_default())
    })
}

/// `20`, `0.5`, `1s`, `120ms`, `6m0s`, `1h2m3s`.
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
