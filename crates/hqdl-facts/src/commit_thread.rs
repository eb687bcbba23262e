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
use crate::journal::reservations::Day;
use crate::limits::RateLimitHint;
use crate::record::Record;
use crate::sessions::FactsSession;
use crate::store::{CommitUnit, Noted};
use crate::throttle::EndpointPlace;
use hqdl_database::postgres::thread::Unpark;
use hqdl_values::cell::State;
use hqdl_values::key::Entity;
use hqdl_values::usage::Spent;

/// How often waiting requests are checked while no command arrives. The daily budget may also be
/// freed elsewhere: by the end of a run, or by another process.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Capacity of the command queue; a sender waits if it is full.
const QUEUE: usize = 256;

pub(super) type OwnerReply<T> = oneshot::Sender<Result<T, FactsError>>;

/// A command to the commit thread.
pub(super) enum Job {
    /// Commit a unit.
    Keep(Box<CommitUnit>, OwnerReply<()>),
    /// Reserve the worst-case cost of a request.
    Reserve(LeavingRequest, OwnerReply<Noted>),
    /// End a reservation whose request got no answer. `in_doubt` states whether it may have been
    /// billed.
    End { reservation: ReservationId, in_doubt: bool, reply: OwnerReply<()> },
    /// Store the limits that an endpoint reported, for the limiter of this name.
    Heard(String, RateLimitHint),
    /// Start a session.
    Enter(FactsSession, OwnerReply<()>),
    /// End a session. Its requests in flight count at their worst-case cost.
    Over(Arc<str>, OwnerReply<()>),
    /// Finish the commands so far, then stop.
    Stop,
}

/// A request that is about to be sent.
pub(super) struct LeavingRequest {
    pub(super) session: Arc<str>,
    pub(super) run: RunId,
    pub(super) worst: Spent,
    pub(super) of_day: Option<f64>,
    /// The endpoint that granted its permit, if it has one.
    pub(super) place: Option<EndpointPlace>,
    /// Whether it has waited for the daily budget, so that its permit may be out of date.
    pub(super) waited: bool,
}

/// Starts the commit thread.
pub(super) fn start(journal: Arc<Journal>, index: Index) -> (mpsc::Sender<Job>, JoinHandle<()>) {
    let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
    let thread = std::thread::spawn(move || {
        let mut desk = CommitThread {
            index,
            day: Day::default(),
            waiting: Vec::new(),
            looked: Instant::now(),
        };
        while let Some(mut jobs) = next(&mut queue, &desk) {
            while jobs.len() < QUEUE {
                match queue.try_recv() {
                    Ok(job) => jobs.push(job),
                    Err(_) => break,
                }
            }
            let stop = jobs.iter().any(|j| matches!(j, Job::Stop));
            desk.work(&journal, jobs);
            if stop {
                return;
            }
        }
    });
    (jobs, thread)
}

/// Waits for the next command. Returns an empty list when it is time to check the waiting requests,
/// and `None` at the end.
fn next(queue: &mut mpsc::Receiver<Job>, desk: &CommitThread) -> Option<Vec<Job>> {
    if desk.waiting.is_empty() {
        return queue.blocking_recv().map(|job| vec![job]);
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(job) = queue.poll_recv(&mut context) {
            return job.map(|job| vec![job]);
        }
        match LOOK_EVERY.checked_sub(desk.looked.elapsed()) {
            Some(left) => std::thread::park_timeout(left),
            None => return Some(Vec::new()),
        }
    }
}

/// State of the commit thread.
struct CommitThread {
    index: Index,
    day: Day,
    /// Requests that can be sent once requests in flight cost less than their worst case.
    waiting: Vec<(LeavingRequest, OwnerReply<Noted>)>,
    /// When the waiting requests were last checked.
    looked: Instant,
}

impl CommitThread {
    /// Executes commands: first the reservations, because requests wait for them, then the units.
    fn work(&mut self, journal: &Journal, jobs: Vec<Job>) {
        // Hold the connection throughout, because it also protects the index.
        let _connection = journal.connection();
        let (mut batches, mut kept_for, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        let mut settled = false;
        for job in jobs {
            match job {
                Job::Keep(batch, reply) => {
                    batches.push(*batch);
                    kept_for.push(reply);
                }
                Job::Stop => {}
                note => {
                    settled |= !matches!(note, Job::Reserve(..) | Job::Heard(..));
                    notes.push(note);
                }
            }
        }
        if !notes.is_empty() {
            settled |= self.note(journal, notes);
        }
        settled |= self.looked.elapsed() >= LOOK_EVERY;
        if !batches.is_empty() {
            settled = true;
            let kept = keep(journal, &self.index, batches);
            for reply in kept_for {
                let _ = reply.send(kept.as_ref().map_or_else(|e| Err(e.again()), |()| Ok(())));
            }
        }
        if settled && !self.waiting.is_empty() {
            self.looked = Instant::now();
            let waiting = std::mem::take(&mut self.waiting);
            let jobs = waiting.into_iter().filter(|(_, reply)| !reply.is_closed());
            let again =
                |(wish, reply)| Job::Reserve(LeavingRequest { waited: true, ..wish }, reply);
            self.note(journal, jobs.map(again).collect());
        }
    }

    /// Writes reservations in one transaction, without a flush to disk. Returns whether a
    /// reservation was released because its caller had gone.
    fn note(&mut self, journal: &Journal, notes: Vec<Job>) -> bool {
        let error = |e: rusqlite::Error| journal.error(&e);
        let (mut reserved, mut ended) = (Vec::new(), Vec::new());
        let connection = journal.connection();
        let write = || -> rusqlite::Result<()> {
            connection.execute_batch("PRAGMA synchronous = NORMAL")?;
            let transaction =
                Transaction::new_unchecked(&connection, TransactionBehavior::Immediate)?;
            for job in notes {
                match job {
                    Job::Reserve(wish, reply) => match self.reserve(journal, &wish) {
                        Ok(None) => self.waiting.push((wish, reply)),
                        Ok(Some(noted)) => reserved.push((Ok(noted), reply)),
                        Err(failed) => reserved.push((Err(failed), reply)),
                    },
                    Job::End { reservation, in_doubt, reply } => {
                        ended.push(reply);
                        if in_doubt {
                            journal.leave_in_doubt(reservation)?;
                        } else {
                            journal.release(reservation, None)?;
                        }
                    }
                    Job::Heard(name, hint) => journal.note_heard(&name, hint)?,
                    Job::Enter(session, reply) => {
                        ended.push(reply);
                        journal.enter(&session)?;
                    }
                    Job::Over(session, reply) => {
                        ended.push(reply);
                        journal.leave(&session)?;
                    }
                    Job::Keep(..) | Job::Stop => {}
                }
            }
            transaction.commit()
        };
        let written = write();
        let flushing = connection.execute_batch("PRAGMA synchronous = FULL");
        let written = written.and(flushing).map_err(error);
        debug!(reserved = reserved.len(), "the journal notes reservations");
        for reply in ended {
            let _ = reply.send(written.as_ref().map_or_else(|e| Err(e.again()), |()| Ok(())));
        }
        let mut unwanted = false;
        for (noted, reply) in reserved {
            let noted = match &written {
                Ok(()) => noted.map_err(error),
                Err(failed) => Err(failed.again()),
            };
            if let Err(Ok(Noted::Note(note))) = reply.send(noted) {
                // The caller was dropped and sends nothing.
                let _ = journal.release(note, Some(0));
                unwanted = true;
            }
        }
        unwanted
    }

    /// Reserves the cost of a request, or returns that the daily budget does not cover it. Returns
    /// `None` while requests in flight may still free enough of the budget.
    fn reserve(
        &mut self,
        journal: &Journal,
        wish: &LeavingRequest,
    ) -> rusqlite::Result<Option<Noted>> {
        if let Some(most) = wish.of_day {
            let gone = self.day.gone(journal)?;
            if gone + wish.worst.usd > most {
                let wait = journal.is_any_in_flight()?;
                return Ok((!wait).then_some(Noted::Beyond(gone)));
            }
        }
        if !journal.is_open(wish.run)? {
            return Ok(Some(Noted::Ended));
        }
        if wish.waited && wish.place.is_some() {
            return Ok(Some(Noted::Again));
        }
        let note = journal.reserve(&wish.session, wish.run, wish.worst)?;
        if let Some(place) = &wish.place {
            journal.note_sent(note, place, wish.worst.tokens)?;
        }
        Ok(Some(Noted::Note(note)))
    }
}

/// Commits units to the journal, then to the index.
pub(super) fn keep(
    journal: &Journal,
    index: &Index,
    batches: Vec<CommitUnit>,
) -> Result<(), FactsError> {
    let error = |e: rusqlite::Error| journal.error(&e);
    let connection = journal.connection();
    let transaction =
        Transaction::new_unchecked(&connection, TransactionBehavior::Immediate).map_err(error)?;
    // Catch up while no other process can write to the journal.
    index.catch_up(journal)?;
    let (began, completions) = (Instant::now(), batches.len());
    let mut head = None;
    let mut records: HashMap<Entity, Record> = HashMap::new();
    let mut changed: BTreeMap<u32, i64> = BTreeMap::new();
    for batch in batches {
        let completion = journal.insert_completion(&batch.completion).map_err(error)?;
        if let Some(reservation) = batch.settles {
            journal.release(reservation, Some(batch.completion.tokens())).map_err(error)?;
        }
        if let Some(request) = batch.answers {
            crate::journal::requests::settle(&connection, request, "answered").map_err(error)?;
        }
        for (entity, mut of_entity) in batch.facts {
            for fact in &mut of_entity {
                (fact.completion, fact.asked) = (completion, completion);
            }
            let by = (completion, batch.completion.model);
            let line = journal.insert_answer(by, &entity, &of_entity).map_err(error)?;
            head = Some(line);
            let record = match records.entry(entity) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let known = index.get(new.key())?.unwrap_or_default();
                    new.insert(known)
                }
            };
            for fact in of_entity {
                if record.is_changed_by(&fact) {
                    changed.insert(fact.meaning, line);
                }
                record.merge(fact);
            }
        }
    }
    // In the same transaction as the answers, so that tables published before them count as
    // outdated.
    for (meaning, line) in changed {
        journal.note_changed(meaning, line).map_err(error)?;
    }
    transaction.commit().map_err(error)?;
    debug!(completions, entities = records.len(), took = ?began.elapsed(), "the journal commits");
    match head {
        Some(head) => index.put(records, head),
        None => Ok(()),
    }
}

/// Commits a unit to the journal only, from a process whose cache owner has ended. The index
/// follows when a process owns the cache again. A unit that the owner committed before it ended is
/// not stored twice.
pub(super) fn keep_alone(journal: &Journal, batch: &CommitUnit) -> Result<(), FactsError> {
    journal.change(|c| {
        let done = &batch.completion;
        let kept = c
            .prepare(
                "SELECT 1 FROM completion WHERE run = ?1 AND prompt_hash = ?2 AND asked_at = ?3",
            )?
            .exists(params![done.run, done.prompt_hash, done.asked_at])?;
        if kept {
            return Ok(());
        }
        let completion = journal.insert_completion(done)?;
        if let Some(reservation) = batch.settles {
            journal.release(reservation, Some(done.tokens()))?;
        }
        if let Some(request) = batch.answers {
            crate::journal::requests::settle(c, request, "answered")?;
        }
        for (entity, facts) in &batch.facts {
            let line = journal.insert_answer((completion, done.model), entity, facts)?;
            // Without the index it is unknown which values these facts replace, so every column
            // counts as changed.
            for fact in facts.iter().filter(|f| f.answer.state != State::Error) {
                journal.note_changed(fact.meaning, line)?;
            }
        }
        Ok(())
    })
}
