//! Requests and tokens per minute, never above what the spec and the endpoint
//! allow; the stricter of the two wins.
//!
//! governor keeps the rates. Around it: a first-in-first-out turn, so that a
//! large request is not starved by small ones; a debt for tokens that turned
//! out more (or fewer) than was admitted, since governor takes nothing back;
//! and one moment before which nobody is admitted, from `Retry-After` and
//! `x-ratelimit-reset-*`.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use reqwest::header::HeaderMap;
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
#[derive(Debug)]
pub struct Limiter {
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: Option<Rate>,
    tokens: Option<Rate>,
    not_before: Option<Instant>,
    /// Tokens used beyond those admitted; below zero, admitted and not used.
    debt: i64,
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
        let state = State {
            requests: requests_per_minute.map(|n| Rate::new(n, REQUEST_BURST)),
            tokens: tokens_per_minute.map(|n| Rate::new(n, TOKEN_BURST)),
            ..State::default()
        };
        Self { turn: tokio::sync::Mutex::default(), state: Mutex::new(state) }
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

    /// Takes the endpoint's word: `x-ratelimit-limit/remaining/reset-*`.
    pub fn observe(&self, headers: &HeaderMap) {
        let text = |name: String| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
        let number = |name: String| text(name).and_then(|t| t.parse::<u32>().ok());
        for (what, parts) in [("requests", REQUEST_BURST), ("tokens", TOKEN_BURST)] {
            if let Some(limit) = number(format!("x-ratelimit-limit-{what}")).filter(|l| *l > 0) {
                let mut state = self.state();
                let rate = if what == "requests" { &mut state.requests } else { &mut state.tokens };
                if rate.as_ref().is_none_or(|r| limit < r.per_minute) {
                    info!(what, per_minute = limit, "the limiter takes the endpoint's limit");
                    *rate = Some(Rate::new(limit, parts));
                }
            }
            if number(format!("x-ratelimit-remaining-{what}")) == Some(0)
                && let Some(reset) = text(format!("x-ratelimit-reset-{what}")).and_then(duration)
            {
                self.pause(reset);
            }
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
