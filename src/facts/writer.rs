//! The one thread that writes facts. It takes all batches that wait, commits
//! them to the journal together (one fsync for many answers), then brings the
//! index up to date, and only then tells the senders that their batch is safe.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use super::FactsError;
use super::index::{Fact, Index, Record};
use super::journal::{Completion, Journal};
use crate::key::Entity;
use crate::usage::Spent;

/// Batches that may wait; a sender waits when there are more.
const QUEUE: usize = 256;

/// A completion and the facts that were read from it.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The request.
    pub completion: Completion,
    /// The facts, by entity; their completion is filled in here.
    pub facts: Vec<(Entity, Vec<Fact>)>,
    /// What was reserved for the request, if it was noted; settled by this.
    pub settles: Option<i64>,
    /// The request of a parcel that this answers: settled in the same
    /// transaction, so that no answer is ever taken twice.
    pub answers: Option<i64>,
}

type Reply<T> = oneshot::Sender<Result<T, FactsError>>;

/// What the thread is asked to do.
enum Job {
    /// Keep a batch.
    Keep(Box<Batch>, Reply<()>),
    /// Note what a request of a run may cost.
    Reserve(i64, Spent, Reply<i64>),
    /// A request ended without an answer; whether it may have been billed.
    End { reservation: i64, in_doubt: bool },
}

/// Handle of the writing thread.
pub struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(journal: Arc<Mutex<Journal>>, index: Index) -> Self {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        let thread = std::thread::spawn(move || {
            while let Some(first) = queue.blocking_recv() {
                let mut waiting = vec![first];
                while waiting.len() < QUEUE {
                    match queue.try_recv() {
                        Ok(job) => waiting.push(job),
                        Err(_) => break,
                    }
                }
                let journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
                work(&journal, &index, waiting);
            }
        });
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    /// Keeps a batch; returns when it is safe on the disk.
    ///
    /// # Errors
    /// [`FactsError`] when it could not be kept.
    pub async fn keep(&self, batch: Batch) -> Result<(), FactsError> {
        let (reply, kept) = oneshot::channel();
        self.send(Job::Keep(Box::new(batch), reply)).await?;
        kept.await.map_err(|_| gone())?
    }

    /// Notes what a request may cost at the worst, before it leaves; returns the
    /// note's id. The note outlives a process that is killed (of a power cut it
    /// is not safe: it is not worth a disk's flush).
    ///
    /// # Errors
    /// [`FactsError`] when it could not be noted.
    pub async fn reserve(&self, run: i64, worst: Spent) -> Result<i64, FactsError> {
        let (reply, noted) = oneshot::channel();
        self.send(Job::Reserve(run, worst, reply)).await?;
        noted.await.map_err(|_| gone())?
    }

    /// Says that a request ended without an answer. Its note is taken out, or
    /// stands when the request may have been billed.
    ///
    /// # Errors
    /// [`FactsError`] when nobody writes any more.
    pub async fn end(&self, reservation: i64, in_doubt: bool) -> Result<(), FactsError> {
        self.send(Job::End { reservation, in_doubt }).await
    }

    async fn send(&self, job: Job) -> Result<(), FactsError> {
        self.jobs.as_ref().ok_or_else(gone)?.send(job).await.map_err(|_| gone())
    }
}

fn gone() -> FactsError {
    FactsError::Journal {
        path: "journal.sqlite".into(),
        message: "its writer has ended".to_owned(),
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Does what is waiting: first the notes, for which requests wait that have not
/// left yet, then the batches.
fn work(journal: &Journal, index: &Index, waiting: Vec<Job>) {
    let (mut batches, mut kept_for, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for job in waiting {
        match job {
            Job::Keep(batch, reply) => {
                batches.push(*batch);
                kept_for.push(reply);
            }
            note => notes.push(note),
        }
    }
    if !notes.is_empty() {
        note(journal, notes);
    }
    if batches.is_empty() {
        return;
    }
    let kept = keep(journal, index, batches);
    for reply in kept_for {
        let _ = reply.send(match &kept {
            Ok(()) => Ok(()),
            Err(error) => Err(again(error)),
        });
    }
}

/// Writes notes of reservations in one transaction, without a flush.
fn note(journal: &Journal, notes: Vec<Job>) {
    let error = |e: rusqlite::Error| journal.error(&e);
    let mut reserved = Vec::new();
    let write = || -> rusqlite::Result<()> {
        journal.connection().execute_batch("PRAGMA synchronous = NORMAL")?;
        let transaction = journal.connection().unchecked_transaction()?;
        for job in notes {
            match job {
                Job::Reserve(run, worst, reply) => {
                    reserved.push((journal.reserve(run, worst), reply));
                }
                Job::End { reservation, in_doubt: true } => journal.leave_in_doubt(reservation)?,
                Job::End { reservation, in_doubt: false } => journal.release(reservation)?,
                Job::Keep(..) => {}
            }
        }
        transaction.commit()
    };
    let written = write();
    let flushing = journal.connection().execute_batch("PRAGMA synchronous = FULL");
    let written = written.and(flushing).map_err(error);
    debug!(reserved = reserved.len(), "the journal notes reservations");
    for (noted, reply) in reserved {
        let noted = match &written {
            Ok(()) => noted.map_err(error),
            Err(failed) => Err(again(failed)),
        };
        if let Err(Ok(unwanted)) = reply.send(noted) {
            // Whoever wanted to ask has gone meanwhile, and asks nothing.
            let _ = journal.release(unwanted);
        }
    }
}

/// Commits batches to the journal, then to the index.
pub(super) fn keep(
    journal: &Journal,
    index: &Index,
    batches: Vec<Batch>,
) -> Result<(), FactsError> {
    let error = |e: rusqlite::Error| journal.error(&e);
    let transaction = journal.connection().unchecked_transaction().map_err(error)?;
    let (began, completions) = (Instant::now(), batches.len());
    let mut head = None;
    let mut records: HashMap<Entity, Record> = HashMap::new();
    let mut changed: BTreeMap<u32, i64> = BTreeMap::new();
    for batch in batches {
        let completion = journal.insert_completion(&batch.completion).map_err(error)?;
        if let Some(reservation) = batch.settles {
            journal.release(reservation).map_err(error)?;
        }
        if let Some(request) = batch.answers {
            super::requests::settle(journal.connection(), request, "answered").map_err(error)?;
        }
        for (entity, mut of_entity) in batch.facts {
            for fact in &mut of_entity {
                (fact.completion, fact.asked) = (completion, completion);
            }
            let line = journal.insert_answer(completion, &entity, &of_entity).map_err(error)?;
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
    // With the answers themselves: tables published before are told apart.
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

/// The same error for another sender.
fn again(error: &FactsError) -> FactsError {
    match error {
        FactsError::Journal { path, message } => {
            FactsError::Journal { path: path.clone(), message: message.clone() }
        }
        other => FactsError::Journal { path: "journal.sqlite".into(), message: other.to_string() },
    }
}
