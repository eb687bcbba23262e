//! Rate limits per endpoint, local to this process or shared by every client of the cache server.
//! The requests of the last minute, and the limits that the endpoint reported, are stored in the
//! journal, so that they survive a restart.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::limits::{Need, PerMinute, RateLimitHint};
use crate::{Facts, FactsError};

/// Key of a limiter: an endpoint with its API key, and one of its models. It identifies them by a
/// hash and does not reveal the API key.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointPlace {
    /// Hash of the endpoint and its API key.
    pub endpoint: String,
    /// The model.
    pub model: String,
}

impl EndpointPlace {
    /// Returns the name of the model's limiter.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.endpoint, self.model)
    }
}

/// Future of [`RateLimits::admit`]: a ticket, or 0 for none.
pub type Admission<'a> = Pin<Box<dyn Future<Output = u64> + Send + 'a>>;

/// Future of [`RateLimits::remaining_pause`].
pub type RemainingPause<'a> = Pin<Box<dyn Future<Output = Option<Duration>> + Send + 'a>>;

/// The rate limits of endpoints, shared by all users of a store. The strictest limits of the
/// members apply to all models of an endpoint, and the limits that the endpoint reports to each
/// model. Both the requests of the last minute and the reported limits outlive the process. Nothing
/// here fails for good: a caller that loses the store gets the error when it reserves the cost of
/// its request.
pub trait RateLimits: Send + Sync {
    /// Adds a member with its own limits to an endpoint's limiters, and returns the member's
    /// number.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be reached or read.
    fn join(&self, place: &EndpointPlace, limits: PerMinute) -> Result<u64, FactsError>;

    /// Removes a member from an endpoint's limiters.
    fn leave(&self, place: &EndpointPlace, member: u64);

    /// Waits for a permit for a request.
    fn admit<'a>(&'a self, place: &'a EndpointPlace, need: Need) -> Admission<'a>;

    /// Marks the request of a ticket as sent.
    fn sent(&self, ticket: u64);

    /// Records the tokens of an answered request; `None` cancels a request that is not sent. Called
    /// once per ticket.
    fn settle(&self, ticket: u64, used: Option<u64>);

    /// Applies the rate limits that the endpoint reported.
    fn observe(&self, place: &EndpointPlace, hint: RateLimitHint);

    /// Returns how long the endpoint still rejects requests.
    fn remaining_pause<'a>(&'a self, place: &'a EndpointPlace) -> RemainingPause<'a>;
}

/// Grants permits for requests to one model of an endpoint, under limits shared with others.
pub struct Throttle {
    pub(crate) limits: Arc<dyn RateLimits>,
    pub(crate) place: EndpointPlace,
    /// The number of this member.
    pub(crate) member: u64,
}

/// A permit for one request. Dropping it before the request is sent returns it.
pub struct Admitted {
    limits: Arc<dyn RateLimits>,
    place: EndpointPlace,
    ticket: u64,
    settled: bool,
}

impl Throttle {
    /// Waits for a permit for a request.
    pub async fn admit(&self, need: Need) -> Admitted {
        let ticket = self.limits.admit(&self.place, need).await;
        let (limits, place) = (Arc::clone(&self.limits), self.place.clone());
        Admitted { limits, place, ticket, settled: false }
    }

    /// Returns how long the endpoint still rejects requests.
    pub async fn remaining_pause(&self) -> Option<Duration> {
        self.limits.remaining_pause(&self.place).await
    }

    /// Grants no permits until `wait` has passed.
    pub fn pause(&self, wait: Duration) {
        self.hear(RateLimitHint { wait: Some(wait), ..RateLimitHint::default() });
    }

    /// Applies the rate-limit headers of a response.
    pub fn observe(&self, headers: &HeaderMap) {
        self.hear(RateLimitHint::of(headers));
    }

    fn hear(&self, hint: RateLimitHint) {
        if hint != RateLimitHint::default() {
            self.limits.observe(&self.place, hint);
        }
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.limits.leave(&self.place, self.member);
    }
}

impl Admitted {
    /// Returns the limiter key of the endpoint that the request goes to.
    #[must_use]
    pub fn place(&self) -> &EndpointPlace {
        &self.place
    }

    /// Marks the request as sent.
    pub fn sent(&self) {
        self.limits.sent(self.ticket);
    }

    /// Records the number of tokens that the answered request used.
    pub fn settle(mut self, used: u64) {
        self.settled = true;
        self.limits.settle(self.ticket, Some(used));
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if !self.settled {
            self.limits.settle(self.ticket, None);
        }
    }
}

impl Facts {
    /// Returns the throttle of a model of an endpoint, shared by all users of these facts.
    /// `endpoint` is a hash that identifies the endpoint and its API key without revealing either.
    ///
    /// # Errors
    /// [`FactsError`] if the owner of the cache has ended.
    pub fn throttle(
        &self,
        endpoint: &str,
        model: &str,
        limits: PerMinute,
    ) -> Result<Throttle, FactsError> {
        let place = EndpointPlace { endpoint: endpoint.to_owned(), model: model.to_owned() };
        let shared = self.rate_limits();
        let member = shared.join(&place, limits)?;
        Ok(Throttle { limits: shared, place, member })
    }
}
