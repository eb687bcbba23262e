//! The only thread of this process that writes answers. It takes all waiting units and commits them
//! to the journal together (one fsync for many answers), and only then reports success to the
//! senders.
//!
//! It also writes, without a flush to disk, what other processes must see immediately: the outcomes
//! of permits, and the worst-case cost of requests before they are sent. It sums the spending and
//! the reservations of all processes, so that together they never exceed the daily budget. While a
//! caller waits for another process, this thread polls the journal for changes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use crate::FactsError;
use crate::claim_key::ClaimKey;
use crate::ids::{ReservationId, RunId};
use crate::journal::Journal;
use crate::journal::rates::{PermitRequest, current_millis};
use crate::journal::reservations::DailySpending;
use crate::record::Record;
use crate::store::{CommitUnit, ReserveOutcome};
use hqdl_database::postgres::thread::ThreadWaker;
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// Interval at which the thread checks the journal for other processes' changes while a caller
/// waits.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the thread looks for killed processes and rechecks all waiting callers.
const SWEEP_INTERVAL: Duration = Duration::from_millis(200);
/// How long a commit waits for further units. Requests that were just granted a claim or a
/// reservation may be answered almost at once, so one flush to disk can cover all of them.
const GROUPING_PAUSE: Duration = Duration::from_micros(200);
/// Maximum time that a commit waits for further units.
const MAX_GROUPING: Duration = Duration::from_millis(2);
/// Maximum number of units that are committed together.
const MAX_UNITS: usize = 256;

pub(super) type CommandReply<T> = oneshot::Sender<Result<T, FactsError>>;

/// A command to the commit thread.
pub(super) enum WriterCommand {
    Commit(Box<CommitUnit>, CommandReply<()>),
    /// Reserve the worst-case cost of a request.
    Reserve(ReserveCommand, CommandReply<ReserveOutcome>),
    /// End a reservation whose request got no answer. `in_doubt` states whether it may have been
    /// billed.
    FinishReservation {
        reservation: ReservationId,
        in_doubt: bool,
        reply: CommandReply<()>,
    },
    /// Check the waiting callers, because this process has released keys.
    CheckWaiting,
    /// Reply once no session holds the key.
    WaitForRelease(ClaimKey, CommandReply<()>),
    /// Record that a request was sent later than its permit allowed.
    MarkSentLate(PermitRequest),
    /// Record the tokens that a request used.
    ReconcileUsage(PermitRequest, u64),
    /// Delete the permit of a request that will not be sent.
    CancelRequest(i64),
    /// Remove a member from an endpoint's limiter.
    RemoveMember(u64),
    /// Finish the queued commands, then stop the thread.
    Stop,
}

/// Parameters of [`WriterCommand::Reserve`]: the request to be sent and its worst-case cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReserveCommand {
    pub(super) run: RunId,
    pub(super) worst_case: SpentAmount,
    pub(super) daily_budget: Option<f64>,
    pub(super) has_permit: bool,
    /// Whether the request has waited for the daily budget. If so, its permit may be out of date.
    pub(super) has_waited: bool,
}

/// Sends a command and waits for the reply.
pub(super) async fn send_command<T>(
    commands: &mpsc::UnboundedSender<WriterCommand>,
    new_command: impl FnOnce(CommandReply<T>) -> WriterCommand,
) -> Result<T, FactsError> {
    let ended = || FactsError::Journal {
        path: "journal.sqlite".into(),
        message: "its writer has ended".to_owned(),
    };
    let (reply, receiver) = oneshot::channel();
    commands.send(new_command(reply)).map_err(|_| ended())?;
    receiver.await.map_err(|_| ended())?
}

pub(super) fn spawn_thread(
    journal: Arc<Journal>,
) -> (mpsc::UnboundedSender<WriterCommand>, JoinHandle<()>) {
    let (commands, mut queue) = mpsc::unbounded_channel::<WriterCommand>();
    let thread = std::thread::spawn(move || {
        let mut state = CommitThread {
            journal,
            units: Vec::new(),
            daily_spending: DailySpending::default(),
            reservations: Vec::new(),
            claims: Vec::new(),
            has_changed: false,
            seen_version: 0,
            last_polled: Instant::now(),
            last_swept: Instant::now(),
        };
        loop {
            let stop = match state.next_command(&mut queue) {
                ReceivedCommand::Command(command) => {
                    state.execute_with_queued_commands(command, &mut queue)
                }
                ReceivedCommand::Timeout => false,
                ReceivedCommand::Closed => return,
            };
            state.finish_command_group();
            if stop {
                return;
            }
        }
    });
    (commands, thread)
}

struct CommitThread {
    journal: Arc<Journal>,
    units: Vec<(CommitUnit, CommandReply<()>)>,
    daily_spending: DailySpending,
    /// Reservations that do not fit into the daily budget unless a request in flight costs less
    /// than its worst case.
    reservations: Vec<(ReserveCommand, CommandReply<ReserveOutcome>)>,
    /// Callers waiting for a key to be released.
    claims: Vec<(ClaimKey, CommandReply<()>)>,
    /// Whether this round may have unblocked a waiting caller.
    has_changed: bool,
    /// Version of the journal at the last check.
    seen_version: i64,
    last_polled: Instant,
    last_swept: Instant,
}

/// Result of waiting for a command.
enum ReceivedCommand {
    Command(WriterCommand),
    Timeout,
    Closed,
}

/// Waits up to `time` for a command.
fn receive_within(
    queue: &mut mpsc::UnboundedReceiver<WriterCommand>,
    time: Duration,
) -> ReceivedCommand {
    let began = Instant::now();
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(command) = queue.poll_recv(&mut context) {
            return command.map_or(ReceivedCommand::Closed, ReceivedCommand::Command);
        }
        match time.checked_sub(began.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::park_timeout(left),
            _ => return ReceivedCommand::Timeout,
        }
    }
}

/// Replies to send once a transaction has ended.
type Replies = Vec<Box<dyn FnOnce(&Journal, Result<(), &FactsError>)>>;

impl CommitThread {
    /// Waits for the next command, or until the waiting callers are due for a check.
    fn next_command(&self, queue: &mut mpsc::UnboundedReceiver<WriterCommand>) -> ReceivedCommand {
        if self.reservations.is_empty() && self.claims.is_empty() {
            return queue.blocking_recv().map_or(ReceivedCommand::Closed, ReceivedCommand::Command);
        }
        receive_within(queue, POLL_INTERVAL.saturating_sub(self.last_polled.elapsed()))
    }

    /// Executes a command and those that arrive in the meantime, until the group of units is
    /// complete. Returns true if the thread must stop.
    fn execute_with_queued_commands(
        &mut self,
        command: WriterCommand,
        queue: &mut mpsc::UnboundedReceiver<WriterCommand>,
    ) -> bool {
        let mut commands = vec![command];
        let (began, mut stop, mut has_others) = (Instant::now(), false, false);
        loop {
            while let Ok(command) = queue.try_recv() {
                commands.push(command);
            }
            stop |= commands.iter().any(|command| matches!(command, WriterCommand::Stop));
            has_others |= self.execute_urgent_commands(std::mem::take(&mut commands));
            // Do not delay the commit of a single request.
            let is_complete = self.units.is_empty()
                || (self.units.len() == 1 && !has_others)
                || self.units.len() >= MAX_UNITS
                || began.elapsed() >= MAX_GROUPING;
            if stop || is_complete {
                return stop;
            }
            match receive_within(queue, GROUPING_PAUSE) {
                ReceivedCommand::Command(command) => commands.push(command),
                ReceivedCommand::Timeout | ReceivedCommand::Closed => return stop,
            }
        }
    }

    /// Executes the commands that block requests, and keeps the others for the end of the round.
    /// Returns true if there were any others.
    fn execute_urgent_commands(&mut self, commands: Vec<WriterCommand>) -> bool {
        let mut urgent = Vec::new();
        for command in commands {
            match command {
                WriterCommand::Commit(unit, reply) => self.units.push((*unit, reply)),
                WriterCommand::CheckWaiting => self.has_changed = true,
                WriterCommand::WaitForRelease(key, reply) => {
                    self.claims.push((key, reply));
                    self.has_changed = true;
                }
                WriterCommand::Stop => {}
                command => {
                    self.has_changed |= matches!(command, WriterCommand::FinishReservation { .. });
                    urgent.push(command);
                }
            }
        }
        let has_urgent = !urgent.is_empty();
        self.write_unflushed(urgent);
        has_urgent
    }

    /// Commits the units, then serves the waiting callers.
    fn finish_command_group(&mut self) {
        let (units, replies): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.units).into_iter().unzip();
        let has_changed = std::mem::take(&mut self.has_changed) || !units.is_empty();
        if !units.is_empty() {
            let result = commit_units(&self.journal, units);
            for reply in replies {
                let _ = reply
                    .send(result.as_ref().map_or_else(|e| Err(e.clone_for_waiter()), |()| Ok(())));
            }
        }
        self.serve_waiting_callers(has_changed);
    }

    /// Notifies the callers whose key is free, and retries the waiting reservations, if something
    /// has changed.
    fn serve_waiting_callers(&mut self, mut has_changed: bool) {
        self.reservations.retain(|(_, reply)| !reply.is_closed());
        self.claims.retain(|(_, reply)| !reply.is_closed());
        if self.reservations.is_empty() && self.claims.is_empty() {
            return;
        }
        if self.last_polled.elapsed() >= POLL_INTERVAL {
            self.last_polled = Instant::now();
            let version = self.journal.data_version().unwrap_or_default();
            has_changed |= std::mem::replace(&mut self.seen_version, version) != version;
        }
        if self.last_swept.elapsed() >= SWEEP_INTERVAL {
            self.last_swept = Instant::now();
            if let Err(error) = self.journal.end_dead_sessions() {
                debug!(%error, "cannot end the sessions of killed processes");
            }
            has_changed = true;
        }
        if !has_changed {
            return;
        }
        let waiting = std::mem::take(&mut self.claims);
        for (key, reply) in waiting {
            match self.journal.is_claimed(&key) {
                Ok(true) => self.claims.push((key, reply)),
                Ok(false) => drop(reply.send(Ok(()))),
                Err(error) => drop(reply.send(Err(self.journal.error(&error)))),
            }
        }
        let waiting = std::mem::take(&mut self.reservations);
        if !waiting.is_empty() {
            let retry = |(request, reply)| {
                WriterCommand::Reserve(ReserveCommand { has_waited: true, ..request }, reply)
            };
            self.write_unflushed(waiting.into_iter().map(retry).collect());
        }
    }

    /// Executes commands in one transaction, without a flush to disk.
    fn write_unflushed(&mut self, commands: Vec<WriterCommand>) {
        if commands.is_empty() {
            return;
        }
        let journal = Arc::clone(&self.journal);
        let mut replies = Replies::new();
        let result = journal.transact_unflushed(|| {
            commands.into_iter().try_for_each(|command| self.execute_command(command, &mut replies))
        });
        debug!(replies = replies.len(), "the journal stores reservations");
        for reply in replies {
            reply(&journal, result.as_ref().copied());
        }
    }

    fn execute_command(
        &mut self,
        command: WriterCommand,
        replies: &mut Replies,
    ) -> rusqlite::Result<()> {
        let journal = Arc::clone(&self.journal);
        match command {
            WriterCommand::Reserve(request, reply) => match self.try_reserve(&request)? {
                None => self.reservations.push((request, reply)),
                Some(outcome) => replies.push(Box::new(move |journal, result| {
                    let unwanted = reply_with(reply, outcome, result);
                    if let Some(ReserveOutcome::Reserved(id)) = unwanted {
                        // The caller was dropped, so its request will not be sent.
                        let _ = journal.release_reservation(id);
                    }
                })),
            },
            WriterCommand::FinishReservation { reservation, in_doubt, reply } => {
                if in_doubt {
                    journal.mark_reservation_in_doubt(reservation)?;
                } else {
                    journal.release_reservation(reservation)?;
                }
                replies.push(Box::new(move |_, result| {
                    let _ = reply_with(reply, (), result);
                }));
            }
            WriterCommand::MarkSentLate(request) => {
                journal.mark_sent_late(&request, current_millis())?;
            }
            WriterCommand::ReconcileUsage(request, used) => {
                journal.reconcile_usage(&request, used, current_millis())?;
            }
            WriterCommand::CancelRequest(ticket) => journal.cancel_request(ticket)?,
            WriterCommand::RemoveMember(member) => journal.remove_member(member)?,
            WriterCommand::Commit(..)
            | WriterCommand::WaitForRelease(..)
            | WriterCommand::CheckWaiting
            | WriterCommand::Stop => {}
        }
        Ok(())
    }

    /// Tries to reserve the cost of a request. Returns `None` if the daily budget does not cover it
    /// yet, but requests in flight may still free enough budget.
    fn try_reserve(
        &mut self,
        request: &ReserveCommand,
    ) -> rusqlite::Result<Option<ReserveOutcome>> {
        let journal = &self.journal;
        if let Some(limit) = request.daily_budget {
            let spent_usd = self.daily_spending.sum_cost_today(journal)?;
            if spent_usd + request.worst_case.usd > limit {
                let must_wait = journal.has_reservations_in_flight()?;
                return Ok((!must_wait).then_some(ReserveOutcome::BudgetExceeded(spent_usd)));
            }
        }
        if !journal.is_run_open(request.run)? {
            return Ok(Some(ReserveOutcome::RunEnded));
        }
        if request.has_waited && request.has_permit {
            return Ok(Some(ReserveOutcome::Retry));
        }
        let reservation_id = journal.insert_reservation(request.run, request.worst_case)?;
        Ok(Some(ReserveOutcome::Reserved(reservation_id)))
    }
}

/// Sends the result of a command, or the error of its transaction. Returns the result if the caller
/// was dropped.
fn reply_with<T>(
    reply: CommandReply<T>,
    result: T,
    transaction: Result<(), &FactsError>,
) -> Option<T> {
    match transaction {
        Ok(()) => reply.send(Ok(result)).err().and_then(Result::ok),
        Err(error) => {
            let _ = reply.send(Err(error.clone_for_waiter()));
            None
        }
    }
}

/// Commits units to the journal and updates the records of their entities.
pub(super) fn commit_units(journal: &Journal, units: Vec<CommitUnit>) -> Result<(), FactsError> {
    let error = |e: rusqlite::Error| journal.error(&e);
    let (began, completions) = (Instant::now(), units.len());
    let mut records: HashMap<Entity, Record> = HashMap::new();
    journal.transact(|| {
        // Another process may have been killed between writing an answer and writing its record.
        journal.catch_up()?;
        let mut head = None;
        let mut changed_columns: BTreeMap<u32, i64> = BTreeMap::new();
        for unit in units {
            let completion_id = journal.insert_completion(&unit.completion).map_err(error)?;
            if let Some(reservation) = unit.reservation {
                journal.release_reservation(reservation).map_err(error)?;
            }
            if let Some(request) = unit.answers {
                crate::journal::requests::close_request(&journal.connection(), request, "answered")
                    .map_err(error)?;
            }
            for (entity, mut entity_facts) in unit.facts {
                for fact in &mut entity_facts {
                    (fact.completion, fact.asked) = (completion_id, completion_id);
                }
                let source = (completion_id, unit.completion.model);
                let fact_row =
                    journal.insert_answer(source, &entity, &entity_facts).map_err(error)?;
                head = Some(fact_row);
                let record = match records.entry(entity) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let known = journal.read_records(&[new.key()])?.pop().flatten();
                        new.insert(known.unwrap_or_default())
                    }
                };
                for fact in entity_facts {
                    if record.is_changed_by(&fact) {
                        changed_columns.insert(fact.identity_id, fact_row);
                    }
                    record.merge(fact);
                }
            }
        }
        // Record the change in the same transaction as the answers, so that tables published
        // earlier are recognized as outdated.
        for (identity_id, fact_row) in changed_columns {
            journal.store_last_change(identity_id, fact_row).map_err(error)?;
        }
        head.map_or(Ok(()), |head| journal.write_records(&records, head))
    })?;
    debug!(completions, entities = records.len(), took = ?began.elapsed(), "the journal commits");
    Ok(())
}
