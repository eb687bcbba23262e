//! Rate limits per endpoint, shared by all users of a store. The store contains the requests of the
//! last minute and the limits reported by the endpoint, so both survive a restart.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{Need, PerMinute, RateLimitHint};
use crate::{Facts, FactsError};

/// Key of a limiter: an endpoint, one of its models, and the API key that a process uses there. The
/// endpoint and the API key are hashed, so that the key does not reveal them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LimiterKey {
    /// Hash of the endpoint. It includes the API key if each API key has its own limits.
    pub endpoint: String,
    /// Name of the model.
    pub model: String,
    /// Hash of the API key.
    pub api_key: String,
}

impl LimiterKey {
    /// Returns the name of the model's limiter.
    pub(super) fn limiter_name(&self) -> String {
        format!("{} {}", self.endpoint, self.model)
    }

    /// Returns the name under which the limits reported to this API key are stored.
    pub(super) fn reported_limits_name(&self) -> String {
        format!("{}\n{}", self.limiter_name(), self.api_key)
    }
}

/// Future of [`RateLimits::acquire_ticket`]: a ticket number, or 0 if no permit was granted.
pub type TicketFuture<'a> = Pin<Box<dyn Future<Output = u64> + Send + 'a>>;

/// Reason why a request cannot be sent yet, and the remaining time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemainingWait {
    /// The endpoint asked for a pause.
    Pause(Duration),
    /// The per-minute limit of requests or tokens is used up for this long.
    MinuteLimit(Duration),
}

impl RemainingWait {
    /// Returns the remaining pause or, without a pause, the time until the next permit; `None` if
    /// there is neither.
    pub(crate) fn new(pause: Option<Duration>, next_permit: Option<Duration>) -> Option<Self> {
        let pause = pause.filter(|wait| !wait.is_zero()).map(Self::Pause);
        pause.or(next_permit.filter(|wait| !wait.is_zero()).map(Self::MinuteLimit))
    }
}

/// Future of [`RateLimits::remaining_wait`].
pub type WaitFuture<'a> = Pin<Box<dyn Future<Output = Option<RemainingWait>> + Send + 'a>>;

/// The rate limits of endpoints, shared by all users of a store. The strictest limits of the
/// members apply to all models of an endpoint. A model is also subject to the strictest of the
/// limits that the endpoint last reported to each API key. Both the requests of the last minute and
/// the reported limits outlive the process. Apart from [`RateLimits::add_member`], no method
/// reports an error: a caller that loses the store gets the error when it reserves the cost of its
/// request.
pub trait RateLimits: Send + Sync {
    /// Adds a member with its own limits to an endpoint's limiters, and returns the member's
    /// number.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be reached or read.
    fn add_member(&self, limiter_key: &LimiterKey, limits: PerMinute) -> Result<u64, FactsError>;

    /// Removes a member from an endpoint's limiters.
    fn remove_member(&self, limiter_key: &LimiterKey, member: u64);

    /// Waits for a permit for a request.
    fn acquire_ticket<'a>(&'a self, limiter_key: &'a LimiterKey, need: Need) -> TicketFuture<'a>;

    /// Marks the request of a ticket as sent.
    fn mark_sent(&self, ticket: u64);

    /// Records the tokens of an answered request; `None` cancels a request that is not sent. Called
    /// once per ticket.
    fn finish_ticket(&self, ticket: u64, used: Option<u64>);

    /// Applies the rate limits that the endpoint reported.
    fn apply_hint(&self, limiter_key: &LimiterKey, hint: RateLimitHint);

    /// Returns why the first waiting request cannot be sent yet; `None` if nothing delays it.
    fn remaining_wait<'a>(&'a self, limiter_key: &'a LimiterKey) -> WaitFuture<'a>;
}

/// Grants permits for requests to one model of an endpoint, under limits shared with other users.
pub struct Throttle {
    pub(crate) limits: Arc<dyn RateLimits>,
    pub(crate) limiter_key: LimiterKey,
    pub(crate) member: u64,
}

/// A permit for one request. If the request is never sent, dropping the permit cancels it.
pub struct Permit {
    limits: Arc<dyn RateLimits>,
    limiter_key: LimiterKey,
    ticket: u64,
    is_settled: bool,
}

impl Throttle {
    /// Sets the hash of the API key that the requests are sent with.
    #[must_use]
    pub fn with_api_key(mut self, api_key: &str) -> Self {
        api_key.clone_into(&mut self.limiter_key.api_key);
        self
    }

    /// Waits for a permit for a request.
    pub async fn acquire_permit(&self, need: Need) -> Permit {
        let ticket = self.limits.acquire_ticket(&self.limiter_key, need).await;
        let (limits, limiter_key) = (Arc::clone(&self.limits), self.limiter_key.clone());
        Permit { limits, limiter_key, ticket, is_settled: false }
    }

    /// Returns why the first waiting request cannot be sent yet; `None` if nothing delays it.
    pub async fn remaining_wait(&self) -> Option<RemainingWait> {
        self.limits.remaining_wait(&self.limiter_key).await
    }

    /// Grants no permits until `wait` has passed.
    pub fn pause_for(&self, wait: Duration) {
        self.apply_hint(RateLimitHint { wait: Some(wait), ..RateLimitHint::default() });
    }

    /// Applies the rate limits that a response reports.
    pub fn apply_hint(&self, hint: RateLimitHint) {
        if hint != RateLimitHint::default() {
            self.limits.apply_hint(&self.limiter_key, hint);
        }
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.limits.remove_member(&self.limiter_key, self.member);
    }
}

impl Permit {
    /// Returns the limiter key of the endpoint that the request goes to.
    #[must_use]
    pub fn limiter_key(&self) -> &LimiterKey {
        &self.limiter_key
    }

    /// Marks the request as sent.
    pub fn mark_sent(&self) {
        self.limits.mark_sent(self.ticket);
    }

    /// Records the number of tokens that the answered request used.
    pub fn reconcile_usage(mut self, used: u64) {
        self.is_settled = true;
        self.limits.finish_ticket(self.ticket, Some(used));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_settled {
            self.limits.finish_ticket(self.ticket, None);
        }
    }
}

impl Facts {
    /// Returns the throttle of a model of an endpoint, shared by all users of these facts.
    /// `endpoint` is a hash that identifies the endpoint and its API key without revealing either.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be written.
    pub fn open_throttle(
        &self,
        endpoint: &str,
        model: &str,
        limits: PerMinute,
    ) -> Result<Throttle, FactsError> {
        let (endpoint, model) = (endpoint.to_owned(), model.to_owned());
        let limiter_key = LimiterKey { endpoint, model, api_key: String::new() };
        let shared = self.rate_limits();
        let member = shared.add_member(&limiter_key, limits)?;
        Ok(Throttle { limits: shared, limiter_key, member })
    }
}
