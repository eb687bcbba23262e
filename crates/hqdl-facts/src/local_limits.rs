//! Rate limits of endpoints, shared by all processes on a machine. The journal counts the requests
//! of all processes; each process queues its own requests in order of arrival.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::FactsError;
use crate::commit_thread::WriterCommand;
use crate::journal::Journal;
use crate::journal::rates::{MAX_SENDING_DELAY, PermitRequest, current_millis};
use crate::limits::{Need, PerMinute, RateLimitHint};
use crate::throttle::{LimiterKey, RateLimits, RemainingWait, TicketFuture, WaitFuture};

/// Longest wait before a request tries again, because another process may cancel a permit early.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The rate limits, with this process's queues.
pub(super) struct LocalLimits {
    journal: Arc<Journal>,
    /// Queue of commands to the commit thread.
    commands: mpsc::UnboundedSender<WriterCommand>,
    last_member: AtomicU64,
    state: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    /// Lock of each queue, held by its first waiting request so that requests are admitted in
    /// order.
    queues: BTreeMap<LimiterKey, Arc<tokio::sync::Mutex<()>>>,
    tickets: HashMap<u64, Ticket>,
    /// Limits that endpoints last reported to this process.
    reported: BTreeMap<LimiterKey, PerMinute>,
    /// Earliest time at which the first waiting request of each queue can be sent.
    next_permits: BTreeMap<LimiterKey, Instant>,
}

/// State of a granted permit.
struct Ticket {
    request: PermitRequest,
    granted_at: Instant,
    is_sent: bool,
}

impl LocalLimits {
    pub(super) fn new(
        journal: Arc<Journal>,
        commands: mpsc::UnboundedSender<WriterCommand>,
    ) -> Self {
        Self { journal, commands, last_member: AtomicU64::default(), state: Mutex::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command without waiting for its result. If the store is closed, the command has no
    /// effect.
    fn send_command(&self, command: WriterCommand) {
        let _ = self.commands.send(command);
    }

    /// Waits for a permit; fails if the store is closed or cannot be written.
    async fn acquire_permit(
        &self,
        limiter_key: &LimiterKey,
        need: Need,
    ) -> Result<u64, FactsError> {
        let queue = Arc::clone(self.lock_state().queues.entry(limiter_key.clone()).or_default());
        let _turn = queue.lock().await;
        loop {
            let (limiter_key, ticket) = (limiter_key.clone(), fastrand::i64(1..));
            let request = PermitRequest { limiter_key, need, ticket };
            let journal = &self.journal;
            match journal.transact_unflushed(|| journal.try_acquire(&request, current_millis()))? {
                None => {
                    let id = ticket.cast_unsigned();
                    let ticket = Ticket { request, granted_at: Instant::now(), is_sent: false };
                    self.lock_state().tickets.insert(id, ticket);
                    return Ok(id);
                }
                Some(wait) => {
                    let key = request.limiter_key;
                    self.lock_state().next_permits.insert(key, Instant::now() + wait);
                    tokio::time::sleep(wait.min(RETRY_INTERVAL)).await;
                }
            }
        }
    }
}

impl RateLimits for LocalLimits {
    fn add_member(&self, limiter_key: &LimiterKey, limits: PerMinute) -> Result<u64, FactsError> {
        let member = self.last_member.fetch_add(1, Ordering::Relaxed) + 1;
        if limits != PerMinute::default() {
            self.journal.add_member(member, &limiter_key.endpoint, limits)?;
        }
        Ok(member)
    }

    fn remove_member(&self, _: &LimiterKey, member: u64) {
        self.send_command(WriterCommand::RemoveMember(member));
    }

    fn acquire_ticket<'a>(&'a self, limiter_key: &'a LimiterKey, need: Need) -> TicketFuture<'a> {
        // A caller that receives no permit fails when it reserves the cost of its request.
        Box::pin(async move { self.acquire_permit(limiter_key, need).await.unwrap_or_default() })
    }

    fn mark_sent(&self, ticket: u64) {
        let mut state = self.lock_state();
        let Some(ticket) = state.tickets.get_mut(&ticket) else { return };
        ticket.is_sent = true;
        if ticket.granted_at.elapsed() > MAX_SENDING_DELAY {
            self.send_command(WriterCommand::MarkSentLate(ticket.request.clone()));
        }
    }

    fn finish_ticket(&self, ticket: u64, used: Option<u64>) {
        let Some(ticket) = self.lock_state().tickets.remove(&ticket) else { return };
        match used {
            Some(used) => self.send_command(WriterCommand::ReconcileUsage(ticket.request, used)),
            None if ticket.is_sent => {}
            None => self.send_command(WriterCommand::CancelRequest(ticket.request.ticket)),
        }
    }

    fn apply_hint(&self, limiter_key: &LimiterKey, hint: RateLimitHint) {
        let is_new = {
            let mut state = self.lock_state();
            let before = state.reported.insert(limiter_key.clone(), hint.limits);
            hint.limits != PerMinute::default() && before != Some(hint.limits)
        };
        if is_new {
            let reported_limits = hint.limits;
            tracing::info!(?reported_limits, "the limiter takes the endpoint's limits");
        }
        if let Some(wait) = hint.wait {
            tracing::info!(?wait, "the limiter pauses");
        }
        if !is_new && hint.wait.is_none() {
            return;
        }
        // Store the limits on this thread, so that they apply to the next permit.
        let stored = self.journal.transact_unflushed(|| {
            let now = current_millis();
            // A pause applies to all models and API keys.
            let pause = RateLimitHint { wait: hint.wait, ..RateLimitHint::default() };
            self.journal.store_limits(&limiter_key.endpoint, pause, now)?;
            self.journal.store_limits(&limiter_key.reported_limits_name(), hint, now)
        });
        if let Err(error) = stored {
            tracing::debug!(%error, "cannot store the endpoint's limits");
        }
    }

    fn remaining_wait<'a>(&'a self, limiter_key: &'a LimiterKey) -> WaitFuture<'a> {
        let pause = self.journal.find_remaining_pause(limiter_key).unwrap_or_default();
        let next_permit = self.lock_state().next_permits.get(limiter_key).copied();
        let next_permit = next_permit.map(|at| at.saturating_duration_since(Instant::now()));
        Box::pin(std::future::ready(RemainingWait::new(pause, next_permit)))
    }
}
