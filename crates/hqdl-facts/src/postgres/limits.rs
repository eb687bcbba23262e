//! Rate limits that all machines enforce together. The waiting requests of a process ask for
//! admission in one transaction, which locks the limits of their endpoint and model. The server
//! counts the requests of the last minute, one row each, and decides how many may be sent, and
//! when. It admits requests slightly ahead of their time, so that a slow connection to the server
//! does not delay them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::FactsError;
use crate::limits::{MAX_COUNTING_DELAY, MAX_PAUSE, MINUTE, Need, PerMinute, RateLimitHint};
use crate::postgres::dictionary::Parameter;
use crate::postgres::{Server, ignore_missing_permission};
use crate::throttle::{LimiterKey, RateLimits, RemainingWait, TicketFuture, WaitFuture};

/// Maximum delay after the admission time with which a request still counts as sent on time.
pub(super) const MAX_SENDING_DELAY: Duration = Duration::from_millis(500);
/// Maximum time after which requests that were not admitted ask again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The server's clock, in seconds since 1970.
const CLOCK_SQL: &str = "extract(epoch FROM clock_timestamp())::double precision";

/// Messages that a background task sends to the server.
enum LimiterMessage {
    /// The request of a ticket was sent later than planned, so it counts for longer.
    SentLate(i64),
    /// The request was answered and used this many tokens. `paces` contains, for each limit, the
    /// seconds by which its next admission moves.
    Used {
        ticket: i64,
        used: u64,
        paces: Vec<(String, f64)>,
    },
    /// The request was not sent.
    Cancelled(i64),
    /// An endpoint's response contained rate-limit headers.
    Hint(LimiterKey, RateLimitHint),
    MemberLeft(i64),
    /// This is the last message.
    End(oneshot::Sender<()>),
}

type WaiterQueue = mpsc::UnboundedSender<(Need, oneshot::Sender<u64>)>;

pub(super) struct ServerLimits {
    server: Arc<Server>,
    state: Arc<Mutex<LimitState>>,
    members: AtomicU64,
    messages: mpsc::UnboundedSender<LimiterMessage>,
}

#[derive(Default)]
struct LimitState {
    tickets: HashMap<u64, ServerTicket>,
    queues: BTreeMap<LimiterKey, WaiterQueue>,
    /// Time until which each endpoint asked this process to wait.
    paused: HashMap<String, Instant>,
    /// Earliest time at which the first waiting request of each limiter can be sent.
    next_permits: BTreeMap<LimiterKey, Instant>,
    reported: BTreeMap<LimiterKey, PerMinute>,
    /// Limits of this process's members, each with its endpoint.
    members: HashMap<u64, (String, PerMinute)>,
}

impl LimitState {
    /// Returns the strictest limits that this process's members set for an endpoint.
    fn find_local_limits(&self, endpoint: &str) -> PerMinute {
        let here = self.members.values().filter(|(of, _)| of == endpoint);
        here.fold(PerMinute::default(), |all, (_, one)| all.stricter_limits(*one))
    }

    /// Returns the seconds by which each limit's next admission moves if a request used `tokens`
    /// more (or fewer) tokens than planned.
    fn compute_pace_shifts(&self, limiter_key: &LimiterKey, tokens: f64) -> Vec<(String, f64)> {
        let reported = self.reported.get(limiter_key).and_then(|limits| limits.tokens);
        let limits = [
            (&limiter_key.endpoint, self.find_local_limits(&limiter_key.endpoint).tokens),
            (&limiter_key.limiter_name(), reported),
        ];
        let seconds = |n: u32| tokens * MINUTE.as_secs_f64() / f64::from(n.max(1));
        limits.into_iter().filter_map(|(name, n)| Some((name.clone(), seconds(n?)))).collect()
    }
}

/// A request that the server has admitted.
struct ServerTicket {
    id: i64,
    limiter_key: LimiterKey,
    likely: u64,
    turn: Instant,
}

impl ServerLimits {
    pub(super) fn new(server: Arc<Server>) -> Self {
        let (messages, received) = mpsc::unbounded_channel();
        server.link.handle.spawn(send_messages(Arc::clone(&server), received));
        Self { server, state: Arc::default(), members: AtomicU64::default(), messages }
    }

    fn lock_state(&self) -> MutexGuard<'_, LimitState> {
        lock_limits(&self.state)
    }

    /// Registers a member and its limits on the server.
    fn register_member(
        &self,
        limiter_key: &LimiterKey,
        limits: PerMinute,
        member: u64,
    ) -> Result<(), FactsError> {
        let session = self.server.link.block_on(self.server.keep_session_alive())?.to_string();
        let names = vec![limiter_key.endpoint.clone(), limiter_key.limiter_name()];
        self.server.execute_sql(
            "INSERT INTO hqdl.rate (name) SELECT n FROM unnest($1::text[]) AS u (n) ORDER BY n
             ON CONFLICT (name) DO NOTHING",
            &[&names],
        )?;
        let (requests, tokens) = (limits.requests.map(i64::from), limits.tokens.map(i64::from));
        self.server.execute_sql(
            "INSERT INTO hqdl.rate_member (session, member, endpoint, requests, tokens)
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (session, member) DO NOTHING",
            &[&session, &member.cast_signed(), &limiter_key.endpoint, &requests, &tokens],
        )
    }

    /// Stops the sender after it has sent the remaining messages; waits at most two seconds for it.
    pub(super) fn stop_sender(&self) {
        let (done, delivered) = oneshot::channel();
        self.lock_state().queues.clear();
        if self.messages.send(LimiterMessage::End(done)).is_ok() {
            let patience = Duration::from_secs(2);
            self.server
                .link
                .block_on(async { drop(tokio::time::timeout(patience, delivered).await) });
        }
    }
}

fn lock_limits(state: &Mutex<LimitState>) -> MutexGuard<'_, LimitState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RateLimits for ServerLimits {
    fn add_member(&self, limiter_key: &LimiterKey, limits: PerMinute) -> Result<u64, FactsError> {
        let member = self.members.fetch_add(1, Ordering::Relaxed) + 1;
        // A role with read access can run queries that send no requests. If the role does send one,
        // reserving its cost fails.
        ignore_missing_permission(self.register_member(limiter_key, limits, member))?;
        self.lock_state().members.insert(member, (limiter_key.endpoint.clone(), limits));
        Ok(member)
    }

    fn remove_member(&self, _: &LimiterKey, member: u64) {
        self.lock_state().members.remove(&member);
        let _ = self.messages.send(LimiterMessage::MemberLeft(member.cast_signed()));
    }

    fn acquire_ticket<'a>(&'a self, limiter_key: &'a LimiterKey, need: Need) -> TicketFuture<'a> {
        let (reply, turn) = oneshot::channel();
        let mut state = self.lock_state();
        let queue = state.queues.entry(limiter_key.clone()).or_insert_with(|| {
            let (waiters_queue, waiting) = mpsc::unbounded_channel();
            let (server, state) = (Arc::clone(&self.server), Arc::clone(&self.state));
            let waiters = Waiters {
                server,
                state,
                messages: self.messages.clone(),
                limiter_key: limiter_key.clone(),
            };
            self.server.link.handle.spawn(waiters.grant_waiting_permits(waiting));
            waiters_queue
        });
        let _ = queue.send((need, reply));
        // If the server is unreachable, the caller gets its error when it reserves the request's
        // cost.
        Box::pin(async { turn.await.unwrap_or_default() })
    }

    fn mark_sent(&self, ticket: u64) {
        let late = {
            let state = self.lock_state();
            let ticket = state.tickets.get(&ticket);
            ticket.filter(|t| Instant::now() > t.turn + MAX_SENDING_DELAY).map(|t| t.id)
        };
        late.map(|id| self.messages.send(LimiterMessage::SentLate(id)));
    }

    fn finish_ticket(&self, ticket: u64, used: Option<u64>) {
        let mut state = self.lock_state();
        let Some(ServerTicket { id, limiter_key, likely, .. }) = state.tickets.remove(&ticket)
        else {
            return;
        };
        let _ = self.messages.send(match used {
            Some(used) => {
                let paces = state.compute_pace_shifts(&limiter_key, used as f64 - likely as f64);
                LimiterMessage::Used { ticket: id, used, paces }
            }
            None => LimiterMessage::Cancelled(id),
        });
    }

    fn apply_hint(&self, limiter_key: &LimiterKey, hint: RateLimitHint) {
        let new = {
            let mut state = self.lock_state();
            if let Some(wait) = hint.wait {
                info!(?wait, "the limiter pauses");
                let until = Instant::now() + wait.min(MAX_PAUSE);
                let paused = state.paused.entry(limiter_key.endpoint.clone()).or_insert(until);
                *paused = until.max(*paused);
            }
            let previous = state.reported.insert(limiter_key.clone(), hint.limits);
            hint.limits != PerMinute::default() && previous != Some(hint.limits)
        };
        if new || hint.wait.is_some() {
            let _ = self.messages.send(LimiterMessage::Hint(limiter_key.clone(), hint));
        }
    }

    fn remaining_wait<'a>(&'a self, limiter_key: &'a LimiterKey) -> WaitFuture<'a> {
        let state = self.lock_state();
        let remaining =
            |until: Option<&Instant>| until.map(|at| at.saturating_duration_since(Instant::now()));
        let pause = remaining(state.paused.get(&limiter_key.endpoint));
        let next_permit = remaining(state.next_permits.get(limiter_key));
        Box::pin(std::future::ready(RemainingWait::new(pause, next_permit)))
    }
}

/// Requests of this process that wait for admission to one endpoint and model.
struct Waiters {
    server: Arc<Server>,
    state: Arc<Mutex<LimitState>>,
    messages: mpsc::UnboundedSender<LimiterMessage>,
    limiter_key: LimiterKey,
}

type Waiter = (Need, oneshot::Sender<u64>);

impl Waiters {
    async fn grant_waiting_permits(self, mut queue: mpsc::UnboundedReceiver<Waiter>) {
        let mut waiting: Vec<Waiter> = Vec::new();
        let mut is_limited = false;
        loop {
            waiting.retain(|(_, reply)| !reply.is_closed());
            if waiting.is_empty() && queue.recv_many(&mut waiting, 256).await == 0 {
                return;
            }
            while waiting.len() < 256
                && let Ok(turn) = queue.try_recv()
            {
                waiting.push(turn);
            }
            let (until, own) = {
                let (state, endpoint) = (lock_limits(&self.state), &self.limiter_key.endpoint);
                (state.paused.get(endpoint).copied(), state.find_local_limits(endpoint))
            };
            if let Some(until) = until.filter(|until| *until > Instant::now()) {
                tokio::time::sleep_until(until).await;
                continue;
            }
            let needs: Vec<Need> = waiting.iter().map(|(need, _)| *need).collect();
            is_limited |= own != PerMinute::default();
            let admission =
                match self.server.grant_permits(&self.limiter_key, own, &needs, is_limited).await {
                    Ok(admission) => admission,
                    Err(error) => {
                        // The waiting requests get the error when they reserve their cost.
                        warn!(%error, "cannot admit the waiting requests");
                        waiting.clear();
                        continue;
                    }
                };
            is_limited = admission.is_limited;
            let next_turn = admission.admitted.iter().map(|(_, turn)| *turn);
            let next_turn = next_turn.min().unwrap_or(Instant::now() + admission.retry_after);
            lock_limits(&self.state).next_permits.insert(self.limiter_key.clone(), next_turn);
            let rest = waiting.split_off(admission.admitted.len());
            for ((id, turn), (need, reply)) in
                admission.admitted.into_iter().zip(std::mem::replace(&mut waiting, rest))
            {
                self.grant_permit(id, turn, need, reply);
            }
            if !waiting.is_empty() {
                // Other processes may cancel their permits before the next admission is due.
                tokio::time::sleep(admission.retry_after.min(MAX_RETRY_DELAY)).await;
            }
        }
    }

    /// Grants a permit to an admitted request when its time comes.
    fn grant_permit(&self, id: i64, turn: Instant, need: Need, reply: oneshot::Sender<u64>) {
        let (state, messages, limiter_key) =
            (Arc::clone(&self.state), self.messages.clone(), self.limiter_key.clone());
        tokio::spawn(async move {
            tokio::time::sleep_until(turn).await;
            let ticket = id.cast_unsigned();
            {
                let mut state = lock_limits(&state);
                let (turn, likely) = (Instant::now(), need.likely);
                let paused =
                    state.paused.get(&limiter_key.endpoint).is_some_and(|until| *until > turn);
                let again = state.queues.get(&limiter_key).filter(|_| paused).cloned();
                let Some(again) = again else {
                    state.tickets.insert(ticket, ServerTicket { id, limiter_key, likely, turn });
                    if reply.send(ticket).is_err() {
                        // The waiter was dropped, so its request will not be sent.
                        state.tickets.remove(&ticket);
                        let _ = messages.send(LimiterMessage::Cancelled(id));
                    }
                    return;
                };
                // The endpoint has since requested a pause, so the request must be admitted again.
                let _ = again.send((need, reply));
            }
            let _ = messages.send(LimiterMessage::Cancelled(id));
        });
    }
}

/// Sends ticket outcomes and rate-limit headers to the server.
async fn send_messages(server: Arc<Server>, mut received: mpsc::UnboundedReceiver<LimiterMessage>) {
    let mut messages = Vec::new();
    let mut last_sweep = Instant::now();
    while received.recv_many(&mut messages, 512).await > 0 {
        let mut end = None;
        let (mut sent_late, mut cancelled, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let (mut used, mut paces) = ((Vec::new(), Vec::new()), HashMap::<String, f64>::new());
        let mut hints = Vec::new();
        for message in messages.drain(..) {
            match message {
                LimiterMessage::SentLate(id) => sent_late.push(id),
                LimiterMessage::Cancelled(id) => cancelled.push(id),
                LimiterMessage::MemberLeft(member) => left.push(member),
                LimiterMessage::Hint(limiter_key, hint) => hints.push((limiter_key, hint)),
                LimiterMessage::End(over) => end = Some(over),
                LimiterMessage::Used { ticket, used: tokens, paces: seconds } => {
                    used.0.push(ticket);
                    used.1.push(tokens.cast_signed());
                    for (name, seconds) in seconds {
                        *paces.entry(name).or_default() += seconds;
                    }
                }
            }
        }
        let sweep = last_sweep.elapsed() > Duration::from_secs(10);
        if sweep {
            last_sweep = Instant::now();
        }
        let stored =
            server.store_outcomes(&sent_late, &cancelled, &left, &used, &paces, sweep).await;
        let stored = match stored {
            Ok(()) => server.store_hints(&hints).await,
            Err(error) => Err(error),
        };
        if let Err(error) = stored {
            warn!(%error, "cannot record the outcomes of requests; they count for their minute");
        }
        if let Some(over) = end {
            let _ = over.send(());
            return;
        }
    }
}

impl Server {
    async fn store_outcomes(
        &self,
        sent_late: &[i64],
        cancelled: &[i64],
        left: &[i64],
        used: &(Vec<i64>, Vec<i64>),
        paces: &HashMap<String, f64>,
        sweep: bool,
    ) -> Result<(), FactsError> {
        let session = self.ensure_session().await?;
        let session = &*session;
        let names: Vec<&str> = paces.keys().map(String::as_str).collect();
        let deltas: Vec<f64> = paces.values().copied().collect();
        let (names, deltas, minute) = (&names, &deltas, MINUTE.as_secs_f64());
        let late = (MINUTE + MAX_COUNTING_DELAY).as_secs_f64();
        self.link
            .with_client(|client| async move {
                if !sent_late.is_empty() {
                    let sql = format!("UPDATE hqdl.sent SET leaves_at = {CLOCK_SQL} + $2 WHERE id = ANY($1)");
                    client.execute(&client.prepare_cached(&sql).await?, &[&sent_late, &late]).await?;
                }
                if !used.0.is_empty() {
                    let sql = format!(
                        "UPDATE hqdl.sent AS s SET tokens = u.tokens, leaves_at = least(s.leaves_at, {CLOCK_SQL} + $3)
                         FROM unnest($1::bigint[], $2::bigint[]) AS u (id, tokens) WHERE s.id = u.id"
                    );
                    let values: [Parameter<'_>; 3] =
                        [&used.0, &used.1, &minute];
                    client.execute(&client.prepare_cached(&sql).await?, &values).await?;
                }
                if !cancelled.is_empty() {
                    let sql = "DELETE FROM hqdl.sent WHERE id = ANY($1)";
                    client.execute(&client.prepare_cached(sql).await?, &[&cancelled]).await?;
                }
                if !left.is_empty() {
                    let sql = "DELETE FROM hqdl.rate_member WHERE session = $1 AND member = ANY($2)";
                    client.execute(&client.prepare_cached(sql).await?, &[&session, &left]).await?;
                }
                if sweep {
                    let sql = format!("DELETE FROM hqdl.sent WHERE leaves_at < {CLOCK_SQL}");
                    client.execute(&client.prepare_cached(&sql).await?, &[]).await?;
                }
                // This statement comes last, because it is the only one that is not idempotent.
                if deltas.iter().any(|delta| *delta != 0.0) {
                    let sql = "UPDATE hqdl.rate AS r SET tokens_due = r.tokens_due + u.delta
                       FROM unnest($1::text[], $2::double precision[]) AS u (name, delta)
                       WHERE r.name = u.name";
                    let pace = client.prepare_cached(sql).await?;
                    client.execute(&pace, &[names, deltas]).await?;
                }
                Ok(())
            })
            .await
    }

    async fn store_hints(&self, hints: &[(LimiterKey, RateLimitHint)]) -> Result<(), FactsError> {
        for (limiter_key, hint) in hints {
            let wait = hint.wait.map(|wait| wait.min(MAX_PAUSE).as_secs_f64());
            let limits = hint.limits;
            let (requests, tokens) = (limits.requests.map(i64::from), limits.tokens.map(i64::from));
            let (endpoint, name) = (&limiter_key.endpoint, &limiter_key.reported_limits_name());
            self.link
                .with_client(|client| async move {
                    let sql = format!(
                        "INSERT INTO hqdl.rate AS r (name, requests, tokens, heard_at, wait_until)
                         VALUES ($1, $2, $3, {CLOCK_SQL}, coalesce({CLOCK_SQL} + $4, 0))
                         ON CONFLICT (name) DO UPDATE SET heard_at = excluded.heard_at,
                           requests = coalesce(excluded.requests, r.requests),
                           tokens = coalesce(excluded.tokens, r.tokens),
                           wait_until = greatest(excluded.wait_until, r.wait_until)"
                    );
                    let upsert = client.prepare_cached(&sql).await?;
                    client.execute(&upsert, &[name, &requests, &tokens, &wait]).await?;
                    // A pause applies to all models and API keys of the endpoint.
                    client.execute(&upsert, &[endpoint, &None::<i64>, &None::<i64>, &wait]).await?;
                    Ok(())
                })
                .await?;
        }
        Ok(())
    }
}
