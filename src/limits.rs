//! Requests and tokens per minute, never above what the spec and the endpoint
//! allow; the stricter of the two wins. Of the endpoint, its last word counts.
//!
//! governor keeps the rates. Around it: a first-in-first-out turn, so that a
//! large request is not starved by small ones; a debt for tokens that turned
//! out more (or fewer) than was admitted, since governor takes nothing back;
//! and one moment before which nobody is admitted, from `Retry-After` and
//! `x-ratelimit-reset-*`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{debug, info};

/// The part of a minute's requests that may go at once, to make up for late
/// wake-ups.
const REQUEST_BURST: u32 = 1000;
/// The same for tokens, which come in larger pieces.
const TOKEN_BURST: u32 = 200;
/// The steady rate is lowered by this many bursts a minute, so that no window
/// of a third of a minute or more ever holds more than its part of the limit.
const BURSTS_LEFT_OUT: u32 = 3;
/// The longest an endpoint's word is believed when it says to wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Admits requests at the rate that is allowed.
#[derive(Debug, Default)]
pub struct Limiter {
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: Option<Rate>,
    tokens: Option<Rate>,
    /// What those who use it ask for now.
    asked: BTreeMap<u64, PerMinute>,
    /// How many have asked so far.
    joined: u64,
    /// What the endpoint said last.
    told: PerMinute,
    not_before: Option<Instant>,
    /// Tokens used beyond those admitted; below zero, admitted and not used.
    debt: i64,
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
pub struct Word {
    /// Its limits.
    pub limits: PerMinute,
    /// How long until there is room again, when there is none.
    pub wait: Option<Duration>,
}

impl Word {
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

impl State {
    /// Brings the rates in line with what is asked and told.
    fn apply(&mut self) {
        let all = self.asked.values().fold(self.told, |all, one| all.stricter(*one));
        for (rate, limit, parts) in [
            (&mut self.requests, all.requests, REQUEST_BURST),
            (&mut self.tokens, all.tokens, TOKEN_BURST),
        ] {
            if rate.as_ref().map(|r| r.per_minute) != limit {
                *rate = limit.map(|n| Rate::new(n, parts));
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Rate {
    per_minute: u32,
    burst: u32,
    limiter: Arc<DefaultDirectRateLimiter>,
}

impl Rate {
    fn new(per_minute: u32, parts: u32) -> Self {
        let burst = (per_minute / parts).max(1);
        let steady = if burst > 1 { per_minute - BURSTS_LEFT_OUT * burst } else { per_minute };
        let number = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_minute(number(steady)).allow_burst(number(burst));
        Self { per_minute, burst, limiter: Arc::new(RateLimiter::direct(quota)) }
    }

    async fn take(&self, mut n: u64) {
        while n > 0 {
            // Never more than the burst at once: that could never be admitted.
            let part = n.min(u64::from(self.burst));
            let part =
                u32::try_from(part).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
            if self.limiter.until_n_ready(part).await.is_err() {
                return;
            }
            n -= u64::from(part.get());
        }
    }
}

impl Limiter {
    /// The limits of a spec; `None` is unlimited until the endpoint says otherwise.
    #[must_use]
    pub fn new(requests_per_minute: Option<u32>, tokens_per_minute: Option<u32>) -> Self {
        let limiter = Self::default();
        limiter.join(PerMinute { requests: requests_per_minute, tokens: tokens_per_minute });
        limiter
    }

    /// One more uses it, with limits of its own: the strictest of all hold, until
    /// that one leaves.
    pub fn join(&self, limits: PerMinute) -> u64 {
        let mut state = self.state();
        state.joined += 1;
        let id = state.joined;
        state.asked.insert(id, limits);
        state.apply();
        id
    }

    /// Who joined with this id uses it no more.
    pub fn leave(&self, id: u64) {
        let mut state = self.state();
        state.asked.remove(&id);
        state.apply();
    }

    /// Whether nobody uses it, and nobody who is to use it would have to wait.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.asked.is_empty() && state.not_before.is_none_or(|until| until <= Instant::now())
    }

    /// Waits for the turn of a request of about so many tokens.
    pub async fn admit(&self, tokens: u64) {
        let _turn = self.turn.lock().await;
        self.pause_over().await;
        let (requests, rate, tokens) = {
            let mut state = self.state();
            let due = state.debt + i64::try_from(tokens).unwrap_or(i64::MAX);
            let has_rate = state.tokens.is_some();
            state.debt = if has_rate { due.min(0) } else { 0 };
            (state.requests.clone(), state.tokens.clone(), due.max(0).cast_unsigned())
        };
        if let Some(rate) = rate {
            rate.take(tokens).await;
        }
        if let Some(requests) = requests {
            requests.take(1).await;
        }
        // The endpoint may have asked to wait while we waited.
        self.pause_over().await;
    }

    /// Settles a request: what it was admitted for, what it used.
    pub fn settle(&self, admitted: u64, used: u64) {
        let difference =
            i64::try_from(used).unwrap_or(i64::MAX) - i64::try_from(admitted).unwrap_or(i64::MAX);
        let mut state = self.state();
        if state.tokens.is_some() {
            state.debt = state.debt.saturating_add(difference);
            debug!(admitted, used, debt = state.debt, "the limiter settles");
        }
    }

    /// Nobody is admitted before `wait` has passed.
    pub fn pause(&self, wait: Duration) {
        let until = Instant::now() + wait.min(LONGEST_WAIT);
        info!(?wait, "the limiter pauses");
        let mut state = self.state();
        state.not_before = Some(state.not_before.map_or(until, |before| before.max(until)));
    }

    /// Takes the endpoint's word.
    pub fn observe(&self, headers: &HeaderMap) {
        self.hear(Word::of(headers));
    }

    /// Takes the endpoint's word, as it was read: a limit that it names takes the
    /// place of what it said before.
    pub fn hear(&self, word: Word) {
        if word.limits != PerMinute::default() {
            let mut state = self.state();
            let told = PerMinute {
                requests: word.limits.requests.or(state.told.requests),
                tokens: word.limits.tokens.or(state.told.tokens),
            };
            if told != state.told {
                info!(?told, "the limiter takes the endpoint's limits");
                state.told = told;
                state.apply();
            }
        }
        if let Some(wait) = word.wait {
            self.pause(wait);
        }
    }

    async fn pause_over(&self) {
        loop {
            let until = self.state().not_before;
            match until.filter(|u| *u > Instant::now()) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
