//! The only thread that writes facts. It takes all waiting units and commits them to the journal
//! together (one fsync for many answers). Then it updates the index, and only then reports success
//! to the senders.
//!
//! It also reserves the worst-case cost of requests before they are sent. It sums the spending and
//! the reservations of all processes, so that together they never exceed the daily budget.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::{Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use crate::FactsError;
use crate::ids::{ReservationId, RunId};
use crate::index::Index;
use crate::journal::Journal;
use crate::journal::reservations::DailySpending;
use crate::limits::RateLimitHint;
use crate::record::Record;
use crate::sessions::FactsSession;
use crate::store::{CommitUnit, ReserveOutcome};
use crate::throttle::LimiterKey;
use hqdl_database::postgres::thread::ThreadWaker;
use hqdl_values::cell::State;
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// How often waiting requests are checked while no command arrives. The daily budget may also be
/// freed elsewhere: by the end of a run, or by another process.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Capacity of the command queue; a sender waits if it is full.
const QUEUE_CAPACITY: usize = 256;

pub(super) type CommandReply<T> = oneshot::Sender<Result<T, FactsError>>;

/// A command to the commit thread.
pub(super) enum WriterCommand {
    /// Commit a unit.
    Commit(Box<CommitUnit>, CommandReply<()>),
    /// Reserve the worst-case cost of a request.
    Reserve(ReserveCommand, CommandReply<ReserveOutcome>),
    /// End a reservation whose request got no answer. `in_doubt` states whether it may have been
    /// billed.
    FinishReservation { reservation: ReservationId, in_doubt: bool, reply: CommandReply<()> },
    /// Store the limits that an endpoint reported, for the limiter of this name.
    StoreLimits(String, RateLimitHint),
    /// Start a session.
    StartSession(FactsSession, CommandReply<()>),
    /// End a session. Its requests in flight count at their worst-case cost.
    EndSession(Arc<str>, CommandReply<()>),
    /// Finish the commands so far, then stop.
    Stop,
}

/// A request that is about to be sent.
pub(super) struct ReserveCommand {
    pub(super) session: Arc<str>,
    pub(super) run: RunId,
    pub(super) worst_case: SpentAmount,
    pub(super) daily_budget: Option<f64>,
    /// The endpoint that granted its permit, if it has one.
    pub(super) limiter_key: Option<LimiterKey>,
    /// Whether it has waited for the daily budget, so that its permit may be out of date.
    pub(super) has_waited: bool,
}

/// Starts the commit thread.
pub(super) fn spawn_thread(
    journal: Arc<Journal>,
    index: Index,
) -> (mpsc::Sender<WriterCommand>, JoinHandle<()>) {
    let (commands, mut queue) = mpsc::channel::<WriterCommand>(QUEUE_CAPACITY);
    let thread = std::thread::spawn(move || {
        let mut state = CommitThread {
            index,
            daily_spending: DailySpending::default(),
            waiting: Vec::new(),
            last_checked: Instant::now(),
        };
        while let Some(mut commands) = next_commands(&mut queue, &state) {
            while commands.len() < QUEUE_CAPACITY {
                match queue.try_recv() {
                    Ok(command) => commands.push(command),
                    Err(_) => break,
                }
            }
            let stop = commands.iter().any(|j| matches!(j, WriterCommand::Stop));
            state.execute_commands(&journal, commands);
            if stop {
                return;
            }
        }
    });
    (commands, thread)
}

/// Waits for the next command. Returns an empty list when it is time to check the waiting requests,
/// and `None` at the end.
fn next_commands(
    queue: &mut mpsc::Receiver<WriterCommand>,
    state: &CommitThread,
) -> Option<Vec<WriterCommand>> {
    if state.waiting.is_empty() {
        return queue.blocking_recv().map(|command| vec![command]);
    }
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(command) = queue.poll_recv(&mut context) {
            return command.map(|job| vec![job]);
        }
        match CHECK_INTERVAL.checked_sub(state.last_checked.elapsed()) {
            Some(left) => std::thread::park_timeout(left),
            None => return Some(Vec::new()),
        }
    }
}

/// State of the commit thread.
struct CommitThread {
    index: Index,
    daily_spending: DailySpending,
    /// Requests that can be sent once requests in flight cost less than their worst case.
    waiting: Vec<(ReserveCommand, CommandReply<ReserveOutcome>)>,
    /// When the waiting requests were last checked.
    last_checked: Instant,
}

impl CommitThread {
    /// Executes commands: first the reservations, because requests wait for them, then the units.
    fn execute_commands(&mut self, journal: &Journal, commands: Vec<WriterCommand>) {
        // Hold the connection throughout, because it also protects the index.
        let _connection = journal.connection();
        let (mut units, mut commit_replies, mut other_commands) =
            (Vec::new(), Vec::new(), Vec::new());
        let mut budget_freed = false;
        for command in commands {
            match command {
                WriterCommand::Commit(unit, reply) => {
                    units.push(*unit);
                    commit_replies.push(reply);
                }
                WriterCommand::Stop => {}
                command => {
                    budget_freed |= !matches!(
                        command,
                        WriterCommand::Reserve(..) | WriterCommand::StoreLimits(..)
                    );
                    other_commands.push(command);
                }
            }
        }
        if !other_commands.is_empty() {
            budget_freed |= self.write_reservations(journal, other_commands);
        }
        budget_freed |= self.last_checked.elapsed() >= CHECK_INTERVAL;
        if !units.is_empty() {
            budget_freed = true;
            let result = commit_units(journal, &self.index, units);
            for reply in commit_replies {
                let _ = reply
                    .send(result.as_ref().map_or_else(|e| Err(e.clone_for_waiter()), |()| Ok(())));
            }
        }
        if budget_freed && !self.waiting.is_empty() {
            self.last_checked = Instant::now();
            let waiting = std::mem::take(&mut self.waiting);
            let commands = waiting.into_iter().filter(|(_, reply)| !reply.is_closed());
            let retry = |(request, reply)| {
                WriterCommand::Reserve(ReserveCommand { has_waited: true, ..request }, reply)
            };
            self.write_reservations(journal, commands.map(retry).collect());
        }
    }

    /// Writes reservations in one transaction, without a flush to disk. Returns whether a
    /// reservation was released because its caller had gone.
    fn write_reservations(&mut self, journal: &Journal, commands: Vec<WriterCommand>) -> bool {
        let error = |e: rusqlite::Error| journal.error(&e);
        let (mut outcomes, mut finished_replies) = (Vec::new(), Vec::new());
        let connection = journal.connection();
        let write = || -> rusqlite::Result<()> {
            connection.execute_batch("PRAGMA synchronous = NORMAL")?;
            let transaction =
                Transaction::new_unchecked(&connection, TransactionBehavior::Immediate)?;
            for command in commands {
                match command {
                    WriterCommand::Reserve(request, reply) => {
                        match self.try_reserve(journal, &request) {
                            Ok(None) => self.waiting.push((request, reply)),
                            Ok(Some(outcome)) => outcomes.push((Ok(outcome), reply)),
                            Err(failed) => outcomes.push((Err(failed), reply)),
                        }
                    }
                    WriterCommand::FinishReservation { reservation, in_doubt, reply } => {
                        finished_replies.push(reply);
                        if in_doubt {
                            journal.leave_in_doubt(reservation)?;
                        } else {
                            journal.release_reservation(reservation, None)?;
                        }
                    }
                    WriterCommand::StoreLimits(name, hint) => journal.store_limits(&name, hint)?,
                    WriterCommand::StartSession(session, reply) => {
                        finished_replies.push(reply);
                        journal.start_session(&session)?;
                    }
                    WriterCommand::EndSession(session, reply) => {
                        finished_replies.push(reply);
                        journal.end_session(&session)?;
                    }
                    WriterCommand::Commit(..) | WriterCommand::Stop => {}
                }
            }
            transaction.commit()
        };
        let result = write();
        let restored = connection.execute_batch("PRAGMA synchronous = FULL");
        let result = result.and(restored).map_err(error);
        debug!(reserved = outcomes.len(), "the journal notes reservations");
        for reply in finished_replies {
            let _ =
                reply.send(result.as_ref().map_or_else(|e| Err(e.clone_for_waiter()), |()| Ok(())));
        }
        let mut has_unwanted = false;
        for (outcome, reply) in outcomes {
            let outcome = match &result {
                Ok(()) => outcome.map_err(error),
                Err(failed) => Err(failed.clone_for_waiter()),
            };
            if let Err(Ok(ReserveOutcome::Reserved(reservation_id))) = reply.send(outcome) {
                // The caller was dropped and sends nothing.
                let _ = journal.release_reservation(reservation_id, Some(0));
                has_unwanted = true;
            }
        }
        has_unwanted
    }

    /// Reserves the cost of a request, or returns that the daily budget does not cover it. Returns
    /// `None` while requests in flight may still free enough of the budget.
    fn try_reserve(
        &mut self,
        journal: &Journal,
        request: &ReserveCommand,
    ) -> rusqlite::Result<Option<ReserveOutcome>> {
        if let Some(limit) = request.daily_budget {
            let spent_usd = self.daily_spending.spent_today(journal)?;
            if spent_usd + request.worst_case.usd > limit {
                let must_wait = journal.is_any_in_flight()?;
                return Ok((!must_wait).then_some(ReserveOutcome::BudgetExceeded(spent_usd)));
            }
        }
        if !journal.is_open(request.run)? {
            return Ok(Some(ReserveOutcome::RunEnded));
        }
        if request.has_waited && request.limiter_key.is_some() {
            return Ok(Some(ReserveOutcome::Retry));
        }
        let reservation_id =
            journal.insert_reservation(&request.session, request.run, request.worst_case)?;
        if let Some(limiter_key) = &request.limiter_key {
            journal.store_sent_request(reservation_id, limiter_key, request.worst_case.tokens)?;
        }
        Ok(Some(ReserveOutcome::Reserved(reservation_id)))
    }
}

/// Commits units to the journal, then to the index.
pub(super) fn commit_units(
    journal: &Journal,
    index: &Index,
    units: Vec<CommitUnit>,
) -> Result<(), FactsError> {
    let error = |e: rusqlite::Error| journal.error(&e);
    let connection = journal.connection();
    let transaction =
        Transaction::new_unchecked(&connection, TransactionBehavior::Immediate).map_err(error)?;
    // Catch up while no other process can write to the journal.
    index.catch_up(journal)?;
    let (began, completions) = (Instant::now(), units.len());
    let mut head = None;
    let mut records: HashMap<Entity, Record> = HashMap::new();
    let mut changed_columns: BTreeMap<u32, i64> = BTreeMap::new();
    for unit in units {
        let completion_id = journal.insert_completion(&unit.completion).map_err(error)?;
        if let Some(reservation) = unit.settles {
            journal
                .release_reservation(reservation, Some(unit.completion.tokens()))
                .map_err(error)?;
        }
        if let Some(request) = unit.answers {
            crate::journal::requests::settle_request(&connection, request, "answered")
                .map_err(error)?;
        }
        for (entity, mut entity_facts) in unit.facts {
            for fact in &mut entity_facts {
                (fact.completion, fact.asked) = (completion_id, completion_id);
            }
            let source = (completion_id, unit.completion.model);
            let fact_row = journal.insert_answer(source, &entity, &entity_facts).map_err(error)?;
            head = Some(fact_row);
            let record = match records.entry(entity) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let known = index.get(new.key())?.unwrap_or_default();
                    new.insert(known)
                }
            };
            for fact in entity_facts {
                if record.is_changed_by(&fact) {
                    changed_columns.insert(fact.meaning, fact_row);
                }
                record.merge(fact);
            }
        }
    }
    // In the same transaction as the answers, so that tables published before them count as
    // outdated.
    for (identity_id, fact_row) in changed_columns {
        journal.store_last_change(identity_id, fact_row).map_err(error)?;
    }
    transaction.commit().map_err(error)?;
    debug!(completions, entities = records.len(), took = ?began.elapsed(), "the journal commits");
    match head {
        Some(head) => index.put_records(records, head),
        None => Ok(()),
    }
}

/// Commits a unit to the journal only, from a process whose cache owner has ended. The index
/// follows when a process owns the cache again. A unit that the owner committed before it ended is
/// not stored twice.
pub(super) fn commit_to_journal(journal: &Journal, unit: &CommitUnit) -> Result<(), FactsError> {
    journal.change(|c| {
        let completion = &unit.completion;
        let is_stored = c
            .prepare(
                "SELECT 1 FROM completion WHERE run = ?1 AND prompt_hash = ?2 AND asked_at = ?3",
            )?
            .exists(params![completion.run, completion.prompt_hash, completion.asked_at])?;
        if is_stored {
            return Ok(());
        }
        let completion_id = journal.insert_completion(completion)?;
        if let Some(reservation) = unit.settles {
            journal.release_reservation(reservation, Some(completion.tokens()))?;
        }
        if let Some(request) = unit.answers {
            crate::journal::requests::settle_request(c, request, "answered")?;
        }
        for (entity, facts) in &unit.facts {
            let fact_row =
                journal.insert_answer((completion_id, completion.model), entity, facts)?;
            // Without the index it is unknown which values these facts replace, so every column
            // counts as changed.
            for fact in facts.iter().filter(|f| f.answer.state != State::Error) {
                journal.store_last_change(fact.meaning, fact_row)?;
            }
        }
        Ok(())
    })
}
