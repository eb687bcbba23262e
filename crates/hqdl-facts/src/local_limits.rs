//! The rate limits of endpoints in the process that owns the cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::FactsError;
use crate::commit_thread::WriterCommand;
use crate::journal::Journal;
use crate::limits::{Limiter, Need, PerMinute, RateLimitHint};
use crate::throttle::{LimiterKey, PauseFuture, RateLimits, Throttle, TicketFuture};

/// One limiter per endpoint and key, and one per model. A limiter is kept while a member uses it or
/// a request would have to wait for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Limiters(Arc<LimiterTable>);

#[derive(Debug, Default)]
struct LimiterTable {
    limiters: Mutex<HashMap<String, Arc<Limiter>>>,
    /// The last number that was assigned.
    last_number: AtomicU64,
    /// Queue of the commit thread, which stores the limits that endpoints report.
    commands: Option<mpsc::Sender<WriterCommand>>,
}

/// The limiters that a request must pass.
struct LimiterPair {
    /// Limiter of the endpoint with the limits of its members, for all models.
    endpoint: Arc<Limiter>,
    /// Limiter of the model with the limits that the endpoint reports, which apply per model.
    model: Arc<Limiter>,
}

impl Limiters {
    /// Creates limiters that store the limits that endpoints report.
    pub(super) fn with_commit_queue(commands: mpsc::Sender<WriterCommand>) -> Self {
        Self(Arc::new(LimiterTable { commands: Some(commands), ..LimiterTable::default() }))
    }

    /// Adds a member with its own limits to an endpoint's limiters, and returns the member's
    /// number. New limiters start with the limits and requests that the journal knows.
    pub(super) fn add_member(
        &self,
        limiter_key: &LimiterKey,
        limits: PerMinute,
        journal: Option<&Journal>,
    ) -> Result<u64, FactsError> {
        let number = self.next_number();
        let mut limiters = self.lock_limiters();
        limiters.retain(|_, limiter| !limiter.is_idle());
        for (name, limits) in [
            (limiter_key.endpoint.clone(), limits),
            (limiter_key.limiter_name(), PerMinute::default()),
        ] {
            if let Some(limiter) = limiters.get(&name) {
                limiter.add_member(number, limits);
                continue;
            }
            let limiter = Limiter::default();
            if let Some(journal) = journal {
                limiter.apply_hint(journal.stored_limits(&name)?);
                let model_filter =
                    (name != limiter_key.endpoint).then_some(limiter_key.model.as_str());
                for (tokens, counts_for) in
                    journal.recent_requests(&limiter_key.endpoint, model_filter)?
                {
                    limiter.restore_request(self.next_number(), tokens, counts_for);
                }
            }
            limiter.add_member(number, limits);
            limiters.insert(name, Arc::new(limiter));
        }
        Ok(number)
    }

    /// Removes a member from an endpoint's limiters.
    pub(super) fn remove_member(&self, limiter_key: &LimiterKey, number: u64) {
        let mut limiters = self.lock_limiters();
        for name in [&limiter_key.endpoint, &limiter_key.limiter_name()] {
            limiters.get(name).into_iter().for_each(|limiter| limiter.remove_member(number));
        }
        limiters.retain(|_, limiter| !limiter.is_idle());
    }

    /// Waits for a permit; `None` if the endpoint has no members.
    pub(super) async fn acquire_ticket(
        &self,
        limiter_key: &LimiterKey,
        need: Need,
    ) -> Option<Ticket> {
        let pair = self.limiter_pair(limiter_key)?;
        let ticket = Ticket { number: self.next_number(), pair };
        ticket.pair.endpoint.acquire_permit(ticket.number, need).await;
        // Acquire the model's permit last, so that the latest limits of the endpoint apply.
        ticket.pair.model.acquire_permit(ticket.number, need).await;
        Some(ticket)
    }

    /// Applies the endpoint's rate-limit headers: its limits to the model, a pause to all models.
    pub(super) fn apply_hint(&self, limiter_key: &LimiterKey, hint: RateLimitHint) {
        let Some(pair) = self.limiter_pair(limiter_key) else { return };
        let wait = RateLimitHint { wait: hint.wait, ..RateLimitHint::default() };
        let hints = [
            (pair.endpoint, limiter_key.endpoint.clone(), wait),
            (pair.model, limiter_key.limiter_name(), hint),
        ];
        for (limiter, name, hint) in hints {
            if limiter.apply_hint(hint)
                && let Some(commands) = &self.0.commands
            {
                // Store the limits before the answer that reported them. If the queue is full, skip
                // it: the next answer reports them again.
                let _ =
                    commands.try_send(WriterCommand::StoreLimits(name, limiter.observed_limits()));
            }
        }
    }

    /// Returns how long the endpoint still rejects requests.
    pub(super) fn remaining_pause(&self, limiter_key: &LimiterKey) -> Option<Duration> {
        let pair = self.limiter_pair(limiter_key)?;
        pair.endpoint.observed_limits().wait.max(pair.model.observed_limits().wait)
    }

    fn limiter_pair(&self, limiter_key: &LimiterKey) -> Option<LimiterPair> {
        let limiters = self.lock_limiters();
        let limiter_of = |name: &str| limiters.get(name).map(Arc::clone);
        Some(LimiterPair {
            endpoint: limiter_of(&limiter_key.endpoint)?,
            model: limiter_of(&limiter_key.limiter_name())?,
        })
    }

    fn next_number(&self) -> u64 {
        self.0.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn lock_limiters(&self) -> MutexGuard<'_, HashMap<String, Arc<Limiter>>> {
        self.0.limiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit for one request. Dropping it before the request is sent returns it.
pub(super) struct Ticket {
    number: u64,
    pair: LimiterPair,
}

impl Ticket {
    /// Marks the request as sent.
    pub(super) fn mark_sent(&self) {
        self.pair.endpoint.mark_sent(self.number);
        self.pair.model.mark_sent(self.number);
    }

    /// Records the number of tokens that the answered request used.
    pub(super) fn reconcile_usage(self, used: u64) {
        self.pair.endpoint.reconcile_usage(self.number, used);
        self.pair.model.reconcile_usage(self.number, used);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.pair.endpoint.cancel_request(self.number);
        self.pair.model.cancel_request(self.number);
    }
}

/// Unsettled permits of one session, by number.
#[derive(Clone, Default)]
pub(super) struct Tickets(Arc<Mutex<HashMap<u64, Ticket>>>);

impl Tickets {
    /// Stores a ticket and returns its number; 0 for `None`.
    pub(super) fn add_ticket(&self, ticket: Option<Ticket>) -> u64 {
        let Some(ticket) = ticket else { return 0 };
        let number = ticket.number;
        self.lock_tickets().insert(number, ticket);
        number
    }

    /// Marks a request as sent.
    pub(super) fn mark_sent(&self, number: u64) {
        self.lock_tickets().get(&number).into_iter().for_each(Ticket::mark_sent);
    }

    /// Records the tokens of an answered request; `None` cancels the request.
    pub(super) fn settle_ticket(&self, number: u64, used: Option<u64>) {
        let ticket = self.lock_tickets().remove(&number);
        if let (Some(ticket), Some(used)) = (ticket, used) {
            ticket.reconcile_usage(used);
        }
    }

    /// The session has ended. Mark its requests as sent, because they may have been sent just
    /// before.
    pub(super) fn mark_all_sent(&self) {
        std::mem::take(&mut *self.lock_tickets()).values().for_each(Ticket::mark_sent);
    }

    fn lock_tickets(&self) -> MutexGuard<'_, HashMap<u64, Ticket>> {
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
    pub(super) fn end_session(&self) {
        self.tickets.mark_all_sent();
    }
}

impl RateLimits for LocalLimits {
    fn add_member(&self, limiter_key: &LimiterKey, limits: PerMinute) -> Result<u64, FactsError> {
        self.limiters.add_member(limiter_key, limits, self.journal.as_deref())
    }

    fn remove_member(&self, limiter_key: &LimiterKey, member: u64) {
        self.limiters.remove_member(limiter_key, member);
    }

    fn acquire_ticket<'a>(&'a self, limiter_key: &'a LimiterKey, need: Need) -> TicketFuture<'a> {
        Box::pin(async move {
            self.tickets.add_ticket(self.limiters.acquire_ticket(limiter_key, need).await)
        })
    }

    fn mark_sent(&self, ticket: u64) {
        self.tickets.mark_sent(ticket);
    }

    fn settle_ticket(&self, ticket: u64, used: Option<u64>) {
        self.tickets.settle_ticket(ticket, used);
    }

    fn apply_hint(&self, limiter_key: &LimiterKey, hint: RateLimitHint) {
        self.limiters.apply_hint(limiter_key, hint);
    }

    fn remaining_pause<'a>(&'a self, limiter_key: &'a LimiterKey) -> PauseFuture<'a> {
        Box::pin(std::future::ready(self.limiters.remaining_pause(limiter_key)))
    }
}

impl Throttle {
    /// Creates a throttle with limits that are not shared.
    #[must_use]
    pub fn standalone(limits: PerMinute) -> Self {
        let (standalone, limiter_key) =
            (LocalLimits::new(Limiters::default(), None), LimiterKey::default());
        let member = standalone.add_member(&limiter_key, limits).unwrap_or_default();
        Self { limits: Arc::new(standalone), limiter_key, member }
    }
}
