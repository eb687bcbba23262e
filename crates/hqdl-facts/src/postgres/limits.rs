//! Rate limits that all machines enforce together. The waiting requests of a process ask for
//! admission in one transaction, which locks the limits of their endpoint and model. The server
//! counts the requests of the last minute, one row each, and decides how many may be sent, and
//! when. It admits requests a moment ahead of their time, so that a slow connection to the server
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
use crate::postgres::words::Parameter;
use crate::postgres::{Server, unless_refused};
use crate::throttle::{LimiterKey, PauseFuture, RateLimits, TicketFuture};

/// Longest delay after its admission time for which a request still counts as planned.
pub(super) const LATE: Duration = Duration::from_millis(500);
/// The server's clock, in seconds since 1970.
const CLOCK: &str = "extract(epoch FROM clock_timestamp())::double precision";

/// Messages that a background task sends to the server.
enum Messages {
    /// The request of a ticket was sent later than planned, so it counts for longer.
    Leaves(i64),
    /// The request was answered and used this many tokens. `paces` has the seconds by which each
    /// limit's next admission moves.
    Used {
        ticket: i64,
        used: u64,
        paces: Vec<(String, f64)>,
    },
    /// The request was not sent.
    Cancelled(i64),
    /// An endpoint's response contained rate-limit headers.
    Heard(LimiterKey, RateLimitHint),
    Left(i64),
    /// No messages follow.
    End(oneshot::Sender<()>),
}

type LimitTurns = mpsc::UnboundedSender<(Need, oneshot::Sender<u64>)>;

pub(super) struct ServerLimits {
    server: Arc<Server>,
    state: Arc<Mutex<LimitState>>,
    members: AtomicU64,
    said: mpsc::UnboundedSender<Messages>,
}

#[derive(Default)]
struct LimitState {
    tickets: HashMap<u64, ServerTicket>,
    queues: BTreeMap<LimiterKey, LimitTurns>,
    /// Time until which each endpoint asked this process to wait.
    paused: HashMap<String, Instant>,
    told: BTreeMap<LimiterKey, PerMinute>,
    /// Limits of this process's members, each with its endpoint.
    members: HashMap<u64, (String, PerMinute)>,
}

impl LimitState {
    /// Returns the strictest limits that this process sets for an endpoint.
    fn own(&self, endpoint: &str) -> PerMinute {
        let here = self.members.values().filter(|(of, _)| of == endpoint);
        here.fold(PerMinute::default(), |all, (_, one)| all.stricter_limits(*one))
    }

    /// Returns the seconds by which each limit's next admission moves if a request used `tokens`
    /// more (or fewer) tokens than planned.
    fn paces(&self, place: &LimiterKey, tokens: f64) -> Vec<(String, f64)> {
        let told = self.told.get(place).and_then(|told| told.tokens);
        let limits =
            [(&place.endpoint, self.own(&place.endpoint).tokens), (&place.limiter_name(), told)];
        let seconds = |n: u32| tokens * MINUTE.as_secs_f64() / f64::from(n.max(1));
        limits.into_iter().filter_map(|(name, n)| Some((name.clone(), seconds(n?)))).collect()
    }
}

/// An admitted request.
struct ServerTicket {
    id: i64,
    place: LimiterKey,
    likely: u64,
    turn: Instant,
}

impl ServerLimits {
    pub(super) fn new(server: Arc<Server>) -> Self {
        let (said, hears) = mpsc::unbounded_channel();
        server.link.handle.spawn(tell(Arc::clone(&server), hears));
        Self { server, state: Arc::default(), members: AtomicU64::default(), said }
    }

    fn state(&self) -> MutexGuard<'_, LimitState> {
        lock(&self.state)
    }

    /// Registers a member and its limits on the server.
    fn register(
        &self,
        place: &LimiterKey,
        limits: PerMinute,
        member: u64,
    ) -> Result<(), FactsError> {
        let session = self.server.link.here(self.server.enter())?.to_string();
        let names = vec![place.endpoint.clone(), place.limiter_name()];
        self.server.write(
            "INSERT INTO hqdl.rate (name) SELECT n FROM unnest($1::text[]) AS u (n) ORDER BY n
             ON CONFLICT (name) DO NOTHING",
            &[&names],
        )?;
        let (requests, tokens) = (limits.requests.map(i64::from), limits.tokens.map(i64::from));
        self.server.write(
            "INSERT INTO hqdl.rate_member (session, member, endpoint, requests, tokens)
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (session, member) DO NOTHING",
            &[&session, &member.cast_signed(), &place.endpoint, &requests, &tokens],
        )
    }

    /// Sends the remaining messages and waits briefly for their delivery.
    pub(super) fn end(&self) {
        let (over, told) = oneshot::channel();
        self.state().queues.clear();
        if self.said.send(Messages::End(over)).is_ok() {
            let patience = Duration::from_secs(2);
            self.server.link.here(async { drop(tokio::time::timeout(patience, told).await) });
        }
    }
}

fn lock(state: &Mutex<LimitState>) -> MutexGuard<'_, LimitState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RateLimits for ServerLimits {
    fn add_member(&self, place: &LimiterKey, limits: PerMinute) -> Result<u64, FactsError> {
        let member = self.members.fetch_add(1, Ordering::Relaxed) + 1;
        // A role with read access can run queries that need no request. If the role does send one,
        // reserving its cost fails.
        unless_refused(self.register(place, limits, member))?;
        self.state().members.insert(member, (place.endpoint.clone(), limits));
        Ok(member)
    }

    fn remove_member(&self, _: &LimiterKey, member: u64) {
        self.state().members.remove(&member);
        let _ = self.said.send(Messages::Left(member.cast_signed()));
    }

    fn acquire_ticket<'a>(&'a self, place: &'a LimiterKey, need: Need) -> TicketFuture<'a> {
        let (reply, turn) = oneshot::channel();
        let mut state = self.state();
        let queue = state.queues.entry(place.clone()).or_insert_with(|| {
            let (turns, waiting) = mpsc::unbounded_channel();
            let (server, state) = (Arc::clone(&self.server), Arc::clone(&self.state));
            let line = Waiters { server, state, said: self.said.clone(), place: place.clone() };
            self.server.link.handle.spawn(line.serve(waiting));
            turns
        });
        let _ = queue.send((need, reply));
        // If the server is unreachable, the caller gets its error when it reserves the request's
        // cost.
        Box::pin(async { turn.await.unwrap_or_default() })
    }

    fn mark_sent(&self, ticket: u64) {
        let late = {
            let state = self.state();
            let ticket = state.tickets.get(&ticket);
            ticket.filter(|t| Instant::now() > t.turn + LATE).map(|t| t.id)
        };
        late.map(|id| self.said.send(Messages::Leaves(id)));
    }

    fn settle_ticket(&self, ticket: u64, used: Option<u64>) {
        let mut state = self.state();
        let Some(ServerTicket { id, place, likely, .. }) = state.tickets.remove(&ticket) else {
            return;
        };
        let _ = self.said.send(match used {
            Some(used) => {
                let paces = state.paces(&place, used as f64 - likely as f64);
                Messages::Used { ticket: id, used, paces }
            }
            None => Messages::Cancelled(id),
        });
    }

    fn apply_hint(&self, place: &LimiterKey, hint: RateLimitHint) {
        let new = {
            let mut state = self.state();
            if let Some(wait) = hint.wait {
                info!(?wait, "the limiter pauses");
                let until = Instant::now() + wait.min(MAX_PAUSE);
                let paused = state.paused.entry(place.endpoint.clone()).or_insert(until);
                *paused = until.max(*paused);
            }
            let told = state.told.insert(place.clone(), hint.limits);
            hint.limits != PerMinute::default() && told != Some(hint.limits)
        };
        if new || hint.wait.is_some() {
            let _ = self.said.send(Messages::Heard(place.clone(), hint));
        }
    }

    fn remaining_pause<'a>(&'a self, place: &'a LimiterKey) -> PauseFuture<'a> {
        let until = self.state().paused.get(&place.endpoint).copied();
        let pause = until.map(|until| until.saturating_duration_since(Instant::now()));
        Box::pin(std::future::ready(pause.filter(|pause| !pause.is_zero())))
    }
}

/// Requests of this process that wait for admission to one endpoint and model.
struct Waiters {
    server: Arc<Server>,
    state: Arc<Mutex<LimitState>>,
    said: mpsc::UnboundedSender<Messages>,
    place: LimiterKey,
}

type Turn = (Need, oneshot::Sender<u64>);

impl Waiters {
    async fn serve(self, mut queue: mpsc::UnboundedReceiver<Turn>) {
        let mut waiting: Vec<Turn> = Vec::new();
        let mut limited = false;
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
                let (state, endpoint) = (lock(&self.state), &self.place.endpoint);
                (state.paused.get(endpoint).copied(), state.own(endpoint))
            };
            if let Some(until) = until.filter(|until| *until > Instant::now()) {
                tokio::time::sleep_until(until).await;
                continue;
            }
            let needs: Vec<Need> = waiting.iter().map(|(need, _)| *need).collect();
            limited |= own != PerMinute::default();
            let turns = match self.server.turns(&self.place, own, &needs, limited).await {
                Ok(turns) => turns,
                Err(error) => {
                    // The waiting requests get the error when they reserve their cost.
                    warn!(%error, "nobody is admitted");
                    waiting.clear();
                    continue;
                }
            };
            limited = turns.limited;
            let rest = waiting.split_off(turns.given.len());
            for ((id, turn), (need, reply)) in
                turns.given.into_iter().zip(std::mem::replace(&mut waiting, rest))
            {
                self.give(id, turn, need, reply);
            }
            if !waiting.is_empty() {
                tokio::time::sleep(turns.again).await;
            }
        }
    }

    /// Hands out an admission when its time comes.
    fn give(&self, id: i64, turn: Instant, need: Need, reply: oneshot::Sender<u64>) {
        let (state, said, place) = (Arc::clone(&self.state), self.said.clone(), self.place.clone());
        tokio::spawn(async move {
            tokio::time::sleep_until(turn).await;
            let ticket = id.cast_unsigned();
            {
                let mut state = lock(&state);
                let (turn, likely) = (Instant::now(), need.likely);
                let paused = state.paused.get(&place.endpoint).is_some_and(|until| *until > turn);
                let again = state.queues.get(&place).filter(|_| paused).cloned();
                let Some(again) = again else {
                    state.tickets.insert(ticket, ServerTicket { id, place, likely, turn });
                    if reply.send(ticket).is_err() {
                        // The waiter was dropped.
                        state.tickets.remove(&ticket);
                        let _ = said.send(Messages::Cancelled(id));
                    }
                    return;
                };
                // The endpoint has asked for a pause in the meantime.
                let _ = again.send((need, reply));
            }
            let _ = said.send(Messages::Cancelled(id));
        });
    }
}

/// Sends the outcomes of tickets and the rate-limit headers of endpoints to the server.
async fn tell(server: Arc<Server>, mut hears: mpsc::UnboundedReceiver<Messages>) {
    let mut heard = Vec::new();
    let mut swept = Instant::now();
    while hears.recv_many(&mut heard, 512).await > 0 {
        let mut end = None;
        let (mut leaves, mut cancelled, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let (mut used, mut paces) = ((Vec::new(), Vec::new()), HashMap::<String, f64>::new());
        let mut hints = Vec::new();
        for said in heard.drain(..) {
            match said {
                Messages::Leaves(id) => leaves.push(id),
                Messages::Cancelled(id) => cancelled.push(id),
                Messages::Left(member) => left.push(member),
                Messages::Heard(place, hint) => hints.push((place, hint)),
                Messages::End(over) => end = Some(over),
                Messages::Used { ticket, used: tokens, paces: seconds } => {
                    used.0.push(ticket);
                    used.1.push(tokens.cast_signed());
                    for (name, seconds) in seconds {
                        *paces.entry(name).or_default() += seconds;
                    }
                }
            }
        }
        let sweep = swept.elapsed() > Duration::from_secs(10);
        if sweep {
            swept = Instant::now();
        }
        let told = server.tell(&leaves, &cancelled, &left, &used, &paces, sweep).await;
        let told = match told {
            Ok(()) => server.tell_heard(&hints).await,
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            warn!(%error, "what came of requests is not told; they count for their minute");
        }
        if let Some(over) = end {
            let _ = over.send(());
            return;
        }
    }
}

impl Server {
    async fn tell(
        &self,
        leaves: &[i64],
        cancelled: &[i64],
        left: &[i64],
        used: &(Vec<i64>, Vec<i64>),
        paces: &HashMap<String, f64>,
        sweep: bool,
    ) -> Result<(), FactsError> {
        let session = self.session().await?;
        let session = &*session;
        let names: Vec<&str> = paces.keys().map(String::as_str).collect();
        let deltas: Vec<f64> = paces.values().copied().collect();
        let (names, deltas, minute) = (&names, &deltas, MINUTE.as_secs_f64());
        let late = (MINUTE + MAX_COUNTING_DELAY).as_secs_f64();
        self.link
            .run(|client| async move {
                if !leaves.is_empty() {
                    let sql = format!("UPDATE hqdl.sent SET leaves_at = {CLOCK} + $2 WHERE id = ANY($1)");
                    client.execute(&client.prepare_cached(&sql).await?, &[&leaves, &late]).await?;
                }
                if !used.0.is_empty() {
                    let sql = format!(
                        "UPDATE hqdl.sent AS s SET tokens = u.tokens, leaves_at = least(s.leaves_at, {CLOCK} + $3)
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
                    let sql = format!("DELETE FROM hqdl.sent WHERE leaves_at < {CLOCK}");
                    client.execute(&client.prepare_cached(&sql).await?, &[]).await?;
                }
                // This statement is the last one because it is the only one that is not idempotent.
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

    async fn tell_heard(&self, hints: &[(LimiterKey, RateLimitHint)]) -> Result<(), FactsError> {
        for (place, hint) in hints {
            let wait = hint.wait.map(|wait| wait.min(MAX_PAUSE).as_secs_f64());
            let limits = hint.limits;
            let (requests, tokens) = (limits.requests.map(i64::from), limits.tokens.map(i64::from));
            let (endpoint, name) = (&place.endpoint, &place.limiter_name());
            self.link
                .run(|client| async move {
                    let sql = format!(
                        "UPDATE hqdl.rate SET requests = coalesce($2, requests), tokens = coalesce($3, tokens),
                           heard_at = {CLOCK}, wait_until = greatest(wait_until, {CLOCK} + $4)
                         WHERE name = $1"
                    );
                    let heard = client.prepare_cached(&sql).await?;
                    client.execute(&heard, &[name, &requests, &tokens, &wait]).await?;
                    // A pause applies to all models of the endpoint.
                    client.execute(&heard, &[endpoint, &None::<i64>, &None::<i64>, &wait]).await?;
                    Ok(())
                })
                .await?;
        }
        Ok(())
    }
}
