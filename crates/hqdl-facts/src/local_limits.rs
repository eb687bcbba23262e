//! The rate limits of endpoints in the process that owns the cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::FactsError;
use crate::commit_thread::Job;
use crate::journal::Journal;
use crate::limits::{Limiter, Need, PerMinute, RateLimitHint};
use crate::throttle::{Admission, EndpointPlace, RateLimits, RemainingPause, Throttle};

/// One limiter per endpoint and key, and one per model. A limiter is kept while a member uses it or
/// a request would have to wait for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Limiters(Arc<All>);

#[derive(Debug, Default)]
struct All {
    limiters: Mutex<HashMap<String, Arc<Limiter>>>,
    /// The last number that was assigned.
    last: AtomicU64,
    /// Queue of the commit thread, which stores the limits that endpoints report.
    jobs: Option<mpsc::Sender<Job>>,
}

/// The limiters that a request must pass.
struct Pair {
    /// Limiter of the endpoint with the limits of its members, for all models.
    all: Arc<Limiter>,
    /// Limiter of the model with the limits that the endpoint reports, which apply per model.
    model: Arc<Limiter>,
}

impl Limiters {
    /// Creates limiters that store the limits that endpoints report.
    pub(super) fn kept_by(jobs: mpsc::Sender<Job>) -> Self {
        Self(Arc::new(All { jobs: Some(jobs), ..All::default() }))
    }

    /// Adds a member with its own limits to an endpoint's limiters, and returns the member's
    /// number. New limiters start with the limits and requests that the journal knows.
    pub(super) fn join(
        &self,
        place: &EndpointPlace,
        limits: PerMinute,
        journal: Option<&Journal>,
    ) -> Result<u64, FactsError> {
        let number = self.number();
        let mut all = self.all();
        all.retain(|_, limiter| !limiter.is_idle());
        for (name, limits) in
            [(place.endpoint.clone(), limits), (place.name(), PerMinute::default())]
        {
            if let Some(limiter) = all.get(&name) {
                limiter.join(number, limits);
                continue;
            }
            let limiter = Limiter::default();
            if let Some(journal) = journal {
                limiter.hear(journal.heard_of(&name)?);
                let of_model = (name != place.endpoint).then_some(place.model.as_str());
                for (tokens, counts) in journal.sent_lately(&place.endpoint, of_model)? {
                    limiter.remember(self.number(), tokens, counts);
                }
            }
            limiter.join(number, limits);
            all.insert(name, Arc::new(limiter));
        }
        Ok(number)
    }

    /// Removes a member from an endpoint's limiters.
    pub(super) fn leave(&self, place: &EndpointPlace, number: u64) {
        let mut all = self.all();
        for name in [&place.endpoint, &place.name()] {
            all.get(name).into_iter().for_each(|limiter| limiter.leave(number));
        }
        all.retain(|_, limiter| !limiter.is_idle());
    }

    /// Waits for a permit; `None` if the endpoint has no members.
    pub(super) async fn admit(&self, place: &EndpointPlace, need: Need) -> Option<Ticket> {
        let pair = self.pair(place)?;
        let ticket = Ticket { number: self.number(), pair };
        ticket.pair.all.admit(ticket.number, need).await;
        // Acquire the model's permit last, so that the latest limits of the endpoint apply.
        ticket.pair.model.admit(ticket.number, need).await;
        Some(ticket)
    }

    /// Applies the endpoint's rate-limit headers: its limits to the model, a pause to all models.
    pub(super) fn observe(&self, place: &EndpointPlace, hint: RateLimitHint) {
        let Some(pair) = self.pair(place) else { return };
        let wait = RateLimitHint { wait: hint.wait, ..RateLimitHint::default() };
        let heard = [(pair.all, place.endpoint.clone(), wait), (pair.model, place.name(), hint)];
        for (limiter, name, hint) in heard {
            if limiter.hear(hint)
                && let Some(jobs) = &self.0.jobs
            {
                // Store the limits before the answer that reported them. If the queue is full, skip
                // it: the next answer reports them again.
                let _ = jobs.try_send(Job::Heard(name, limiter.heard()));
            }
        }
    }

    /// Returns how long the endpoint still rejects requests.
    pub(super) fn remaining_pause(&self, place: &EndpointPlace) -> Option<Duration> {
        let pair = self.pair(place)?;
        pair.all.heard().wait.max(pair.model.heard().wait)
    }

    fn pair(&self, place: &EndpointPlace) -> Option<Pair> {
        let all = self.all();
        let of = |name: &str| all.get(name).map(Arc::clone);
        Some(Pair { all: of(&place.endpoint)?, model: of(&place.name())? })
    }

    fn number(&self) -> u64 {
        self.0.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Limiter>>> {
        self.0.limiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit for one request. Dropping it before the request is sent returns it.
pub(super) struct Ticket {
    number: u64,
    pair: Pair,
}

impl Ticket {
    /// Marks the request as sent.
    pub(super) fn sent(&self) {
        self.pair.all.sent(self.number);
        self.pair.model.sent(self.number);
    }

    /// Records the number of tokens that the answered request used.
    pub(super) fn settle(self, used: u64) {
        self.pair.all.settle(self.number, used);
        self.pair.model.settle(self.number, used);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.pair.all.cancel(self.number);
        self.pair.model.cancel(self.number);
    }
}

/// Unsettled permits of one session, by number.
#[derive(Clone, Default)]
pub(super) struct Tickets(Arc<Mutex<HashMap<u64, Ticket>>>);

impl Tickets {
    /// Stores a ticket and returns its number; 0 for `None`.
    pub(super) fn keep(&self, ticket: Option<Ticket>) -> u64 {
        let Some(ticket) = ticket else { return 0 };
        let number = ticket.number;
        self.all().insert(number, ticket);
        number
    }

    /// Marks a request as sent.
    pub(super) fn sent(&self, number: u64) {
        self.all().get(&number).into_iter().for_each(Ticket::sent);
    }

    /// Records the tokens of an answered request; `None` cancels the request.
    pub(super) fn settle(&self, number: u64, used: Option<u64>) {
        let ticket = self.all().remove(&number);
        if let (Some(ticket), Some(used)) = (ticket, used) {
            ticket.settle(used);
        }
    }

    /// The session has ended. Mark its requests as sent, because they may have been sent just
    /// before.
    pub(super) fn end(&self) {
        std::mem::take(&mut *self.all()).values().for_each(Ticket::sent);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rate limits in the process that owns them, as one session uses them.
pub(super) struct LocalLimits {
    limiters: Limiters,
    /// Journal with the earlier limits and requests; `None` if the limits are not shared.
    journal: Option<Arc<Journal>>,
    tickets: Tickets,
}

impl LocalLimits {
    pub(super) fn new(limiters: Limiters, journal: Option<Arc<Journal>>) -> Self {
        Self { limiters, journal, tickets: Tickets::default() }
    }

    /// The session has ended. Mark its requests as sent, because they may have been sent just
    /// before.
    pub(super) fn end(&self) {
        self.tickets.end();
    }
}

impl RateLimits for LocalLimits {
    fn join(&self, place: &EndpointPlace, limits: PerMinute) -> Result<u64, FactsError> {
        self.limiters.join(place, limits, self.journal.as_deref())
    }

    fn leave(&self, place: &EndpointPlace, member: u64) {
        self.limiters.leave(place, member);
    }

    fn admit<'a>(&'a self, place: &'a EndpointPlace, need: Need) -> Admission<'a> {
        Box::pin(async move { self.tickets.keep(self.limiters.admit(place, need).await) })
    }

    fn sent(&self, ticket: u64) {
        self.tickets.sent(ticket);
    }

    fn settle(&self, ticket: u64, used: Option<u64>) {
        self.tickets.settle(ticket, used);
    }

    fn observe(&self, place: &EndpointPlace, hint: RateLimitHint) {
        self.limiters.observe(place, hint);
    }

    fn remaining_pause<'a>(&'a self, place: &'a EndpointPlace) -> RemainingPause<'a> {
        Box::pin(std::future::ready(self.limiters.remaining_pause(place)))
    }
}

impl Throttle {
    /// Creates a throttle with limits that are not shared.
    #[must_use]
    pub fn alone(limits: PerMinute) -> Self {
        let (alone, place) =
            (LocalLimits::new(Limiters::default(), None), EndpointPlace::default());
        let member = alone.join(&place, limits).unwrap_or_default();
        Self { limits: Arc::new(alone), place, member }
    }
}
