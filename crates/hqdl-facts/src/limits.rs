//! Limits the requests and tokens per minute, as the spec and the endpoint require. The stricter
//! limit wins, and the endpoint's latest limits replace its earlier ones.
//!
//! The store grants the permits. A request waits until the pace allows it, until a pause that the
//! endpoint asked for is over, and until it fits within the per-minute limit. No minute ever
//! contains more than the limit: a request counts from its permit until a minute after the latest
//! time at which the endpoint may have counted it. It counts at its maximum until its answer
//! reports the actual tokens.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The period of rate limits.
pub const MINUTE: Duration = Duration::from_secs(60);
/// Maximum delay between sending a request and the endpoint counting it. A request counts until one
/// minute after its answer, or until one minute after this delay has passed, whichever is first.
pub const MAX_COUNTING_DELAY: Duration = Duration::from_secs(1);
/// Longest pause that hqdl accepts from an endpoint.
pub const MAX_PAUSE: Duration = Duration::from_secs(15 * 60);
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

/// Limits per minute; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerMinute {
    /// Requests per minute.
    pub requests: Option<u32>,
    /// Tokens per minute.
    pub tokens: Option<u32>,
}

impl PerMinute {
    /// Returns the stricter of two limits, separately for requests and tokens.
    #[must_use]
    pub fn stricter_limits(self, other: Self) -> Self {
        let min_limit = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Self {
            requests: min_limit(self.requests, other.requests),
            tokens: min_limit(self.tokens, other.tokens),
        }
    }
}

/// Rate limits that an endpoint reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimitHint {
    /// The endpoint's limits.
    pub limits: PerMinute,
    /// Time until the limit resets, if the limit is used up.
    pub wait: Option<Duration>,
}
