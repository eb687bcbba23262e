//! The limits that an endpoint is asked under: of this process, or of all that
//! ask it through the owner of the cache. What was sent within the last minute,
//! and what the endpoint said of its limits, is in the journal
//! ([`super::rates`]), so that no restart forgets it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::limits::{Need, PerMinute, RateLimitHint};
use crate::{Facts, FactsError};

/// What limits are of: an endpoint with its key, and one of its models. It tells
/// them apart from others, and shows no key.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointPlace {
    /// The endpoint and its key.
    pub endpoint: String,
    /// The model.
    pub model: String,
}

impl EndpointPlace {
    /// The name of the model's limiter.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.endpoint, self.model)
    }
}

/// What [`RateLimits::admit`] gives: a ticket, or 0 for none.
pub type Admission<'a> = Pin<Box<dyn Future<Output = u64> + Send + 'a>>;

/// What [`RateLimits::remaining_pause`] gives.
pub type RemainingPause<'a> = Pin<Box<dyn Future<Output = Option<Duration>> + Send + 'a>>;

/// The limits that endpoints are asked under, shared by all who share a store. The
/// strictest of those who joined hold for all models of an endpoint, and what the
/// endpoint tells itself for each. What was sent within the last minute and what
/// endpoints told outlive the process. Nothing here fails for good: who cannot
/// reach a store any more is told when it notes what its request may cost.
pub trait RateLimits: Send + Sync {
    /// One more uses a place, with limits of its own: by the number that this gives.
    ///
    /// # Errors
    /// [`FactsError`] when the store cannot be reached or read.
    fn join(&self, place: &EndpointPlace, limits: PerMinute) -> Result<u64, FactsError>;

    /// Who has this number uses the place no more.
    fn leave(&self, place: &EndpointPlace, member: u64);

    /// Waits for the turn of a request.
    fn admit<'a>(&'a self, place: &'a EndpointPlace, need: Need) -> Admission<'a>;

    /// The request of a ticket leaves.
    fn sent(&self, ticket: u64);

    /// It was answered and used so many tokens, or (`None`) is not sent and counts
    /// no more. Once a ticket.
    fn settle(&self, ticket: u64, used: Option<u64>);

    /// Takes the endpoint's word of its limits.
    fn observe(&self, place: &EndpointPlace, hint: RateLimitHint);

    /// Returns for how long the endpoint still wants to be left alone.
    fn remaining_pause<'a>(&'a self, place: &'a EndpointPlace) -> RemainingPause<'a>;
}

/// Admits requests to a model of an endpoint, with others who ask it.
pub struct Throttle {
    pub(crate) limits: Arc<dyn RateLimits>,
    pub(crate) place: EndpointPlace,
    /// What joining gave.
    pub(crate) member: u64,
}

/// A request that was admitted. Dropped before it is sent, it counts no more.
pub struct Admitted {
    limits: Arc<dyn RateLimits>,
    place: EndpointPlace,
    ticket: u64,
    settled: bool,
}

impl Throttle {
    /// Waits for the turn of a request.
    pub async fn admit(&self, need: Need) -> Admitted {
        let ticket = self.limits.admit(&self.place, need).await;
        let (limits, place) = (Arc::clone(&self.limits), self.place.clone());
        Admitted { limits, place, ticket, settled: false }
    }

    /// Returns for how long the endpoint still wants to be left alone.
    pub async fn remaining_pause(&self) -> Option<Duration> {
        self.limits.remaining_pause(&self.place).await
    }

    /// Nobody is admitted before `wait` has passed.
    pub fn pause(&self, wait: Duration) {
        self.hear(RateLimitHint { wait: Some(wait), ..RateLimitHint::default() });
    }

    /// Takes the endpoint's word.
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
    /// Where the request goes.
    #[must_use]
    pub fn place(&self) -> &EndpointPlace {
        &self.place
    }

    /// The request leaves.
    pub fn sent(&self) {
        self.limits.sent(self.ticket);
    }

    /// The request was answered, and used so many tokens.
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
    /// The limits of a model of an endpoint, shared by all who ask it with these
    /// facts. `endpoint` tells the endpoint and its key apart from others, and shows
    /// neither.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
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
