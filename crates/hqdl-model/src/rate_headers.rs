//! Rate limits and pauses in the headers of a response.

use std::time::Duration;

use reqwest::header::HeaderMap;

use super::limits::{PerMinute, RateLimitHint};

pub(super) fn read_header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

pub(super) fn parse_header_number(headers: &HeaderMap, name: &str) -> Option<u32> {
    read_header_text(headers, name)?.parse().ok()
}

/// Parses the headers `x-ratelimit-limit/remaining/reset-*`, which most endpoints send.
#[must_use]
pub fn parse_openai_limits(headers: &HeaderMap) -> RateLimitHint {
    let limit = |what: &str| {
        parse_header_number(headers, &format!("x-ratelimit-limit-{what}"))
            .filter(|limit| *limit > 0)
    };
    let wait = |what: &str| {
        let none_left =
            parse_header_number(headers, &format!("x-ratelimit-remaining-{what}")) == Some(0);
        let reset = read_header_text(headers, &format!("x-ratelimit-reset-{what}"));
        reset.filter(|_| none_left).and_then(parse_duration)
    };
    RateLimitHint {
        limits: PerMinute { requests: limit("requests"), tokens: limit("tokens") },
        wait: wait("requests").into_iter().chain(wait("tokens")).max(),
    }
}

/// Returns how long the endpoint asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as
/// a date.
#[must_use]
pub fn parse_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|t| t.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let after = text("retry-after")?;
    parse_duration(after).or_else(|| {
        let date = jiff::fmt::rfc2822::parse(after).ok()?;
        let left = date.timestamp().duration_since(jiff::Timestamp::now());
        // A date in the past asks for no wait.
        Some(Duration::try_from(left).unwrap_or_default())
    })
}

/// Parses a duration: `20`, `0.5`, `1s`, `120ms`, `6m0s`, `1h2m3s`.
fn parse_duration(text: &str) -> Option<Duration> {
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
