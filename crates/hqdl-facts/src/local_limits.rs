//! The limits of endpoints in the process that owns the cache.

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

/// One limiter for each endpoint and key, and one for each of its models, as long
/// as somebody uses it or would have to wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Limiters(Arc<All>);

#[derive(Debug, Default)]
struct All {
    limiters: Mutex<HashMap<String, Arc<Limiter>>>,
    /// The last number that was given.
    last: AtomicU64,
    /// Who writes down what endpoints say.
    jobs: Option<mpsc::Sender<Job>>,
}

/// The limiters that a request must pass.
struct Pair {
    /// Of the endpoint, under the limits of those who ask, whichever model.
    all: Arc<Limiter>,
    /// Of the model, under those that the endpoint tells: it counts each model by
    /// itself.
    model: Arc<Limiter>,
}

impl Limiters {
    /// Limiters whose endpoints' words are kept.
    pub(super) fn kept_by(jobs: mpsc::Sender<Job>) -> Self {
        Self(Arc::new(All { jobs: Some(jobs), ..All::default() }))
    }

    /// One more uses a place, with limits of its own: by the number that this
    /// gives. What the journal knows of it counts.
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

    /// Who has this number uses the place no more.
    pub(super) fn leave(&self, place: &EndpointPlace, number: u64) {
        let mut all = self.all();
        for name in [&place.endpoint, &place.name()] {
            all.get(name).into_iter().for_each(|limiter| limiter.leave(number));
        }
        all.retain(|_, limiter| !limiter.is_idle());
    }

    /// Waits for the turn of a request; `None` where nobody uses the place.
    pub(super) async fn admit(&self, place: &EndpointPlace, need: Need) -> Option<Ticket> {
        let pair = self.pair(place)?;
        let ticket = Ticket { number: self.number(), pair };
        ticket.pair.all.admit(ticket.number, need).await;
        // Last, so that the endpoint's newest word counts.
        ticket.pair.model.admit(ticket.number, need).await;
        Some(ticket)
    }

    /// Takes the endpoint's word: its limits are the model's, to wait is for all.
    pub(super) fn observe(&self, place: &EndpointPlace, hint: RateLimitHint) {
        let Some(pair) = self.pair(place) else { return };
        let wait = RateLimitHint { wait: hint.wait, ..RateLimitHint::default() };
        let heard = [(pair.all, place.endpoint.clone(), wait), (pair.model, place.name(), hint)];
        for (limiter, name, hint) in heard {
            if limiter.hear(hint)
                && let Some(jobs) = &self.0.jobs
            {
                // Before an answer that comes with it is kept. Who has no room for
                // it hears the word again with the next answer.
                let _ = jobs.try_send(Job::Heard(name, limiter.heard()));
            }
        }
    }

    /// Returns for how long the endpoint still wants to be left alone.
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

/// A request that was admitted. Dropped before it is sent, it counts no more.
pub(super) struct Ticket {
    number: u64,
    pair: Pair,
}

impl Ticket {
    /// The request leaves.
    pub(super) fn sent(&self) {
        self.pair.all.sent(self.number);
        self.pair.model.sent(self.number);
    }

    /// The request was answered, and used so many tokens.
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

/// Requests of a borrower that were admitted and are not settled.
#[derive(Clone, Default)]
pub(super) struct Tickets(Arc<Mutex<HashMap<u64, Ticket>>>);

impl Tickets {
    /// Keeps a ticket; gives its number, which is 0 for none.
    pub(super) fn keep(&self, ticket: Option<Ticket>) -> u64 {
        let Some(ticket) = ticket else { return 0 };
        let number = ticket.number;
        self.all().insert(number, ticket);
        number
    }

    /// A request leaves.
    pub(super) fn sent(&self, number: u64) {
        self.all().get(&number).into_iter().for_each(Ticket::sent);
    }

    /// A request was answered, or (`None`) is not sent.
    pub(super) fn settle(&self, number: u64, used: Option<u64>) {
        let ticket = self.all().remove(&number);
        if let (Some(ticket), Some(used)) = (ticket, used) {
            ticket.settle(used);
        }
    }

    /// The borrower is gone: what it was admitted for may have left just before.
    pub(super) fn end(&self) {
        std::mem::take(&mut *self.all()).values().for_each(Ticket::sent);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits in the process that keeps them, as one session uses them.
pub(super) struct LocalLimits {
    limiters: Limiters,
    /// What is known from before; nothing where nobody shares them.
    journal: Option<Arc<Journal>>,
    tickets: Tickets,
}

impl LocalLimits {
    pub(super) fn new(limiters: Limiters, journal: Option<Arc<Journal>>) -> Self {
        Self { limiters, journal, tickets: Tickets::default() }
    }

    /// The session is over: what it was admitted for may have left just before.
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
    /// Limits that nobody shares.
    #[must_use]
    pub fn alone(limits: PerMinute) -> Self {
        let (alone, place) =
            (LocalLimits::new(Limiters::default(), None), EndpointPlace::default());
        let member = alone.join(&place, limits).unwrap_or_default();
        Self { limits: Arc::new(alone), place, member }
    }
}
