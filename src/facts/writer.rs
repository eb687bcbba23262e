//! The one thread that writes facts. It takes all batches that wait, commits
//! them to the journal together (one fsync for many answers), then brings the
//! index up to date, and only then tells the senders that their batch is safe.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use super::FactsError;
use super::index::{Fact, Index};
use super::journal::{Completion, Journal};
use crate::key::Entity;

/// Batches that may wait; a sender waits when there are more.
const QUEUE: usize = 256;

/// A completion and the facts that were read from it.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The request.
    pub completion: Completion,
    /// The facts, by entity; their completion is filled in here.
    pub facts: Vec<(Entity, Vec<Fact>)>,
    /// The request of a parcel that this answers: settled in the same
    /// transaction, so that no answer is ever taken twice.
    pub settles: Option<i64>,
}

type Job = (Batch, oneshot::Sender<Result<(), FactsError>>);

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
                let (batches, replies): (Vec<Batch>, Vec<_>) = waiting.into_iter().unzip();
                let journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
                let kept = keep(&journal, &index, batches);
                drop(journal);
                for reply in replies {
                    let _ = reply.send(match &kept {
                        Ok(()) => Ok(()),
                        Err(error) => Err(again(error)),
                    });
                }
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
        let gone = || FactsError::Journal {
            path: "journal.sqlite".into(),
            message: "its writer has ended".to_owned(),
        };
        self.jobs.as_ref().ok_or_else(gone)?.send((batch, reply)).await.map_err(|_| gone())?;
        kept.await.map_err(|_| gone())?
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

/// Commits batches to the journal, then to the index.
pub(super) fn keep(
    journal: &Journal,
    index: &Index,
    batches: Vec<Batch>,
) -> Result<(), FactsError> {
    let error = |e: rusqlite::Error| journal.error(&e);
    let transaction = journal.connection().unchecked_transaction().map_err(error)?;
    let mut head = None;
    let mut facts = Vec::new();
    for batch in batches {
        let completion = journal.insert_completion(&batch.completion).map_err(error)?;
        if let Some(request) = batch.settles {
            super::requests::settle(journal.connection(), request, "answered").map_err(error)?;
        }
        for (entity, mut of_entity) in batch.facts {
            of_entity.iter_mut().for_each(|f| f.completion = completion);
            head = Some(journal.insert_answer(completion, &entity, &of_entity).map_err(error)?);
            facts.push((entity, of_entity));
        }
    }
    transaction.commit().map_err(error)?;
    match head {
        Some(head) => index.merge(facts, head),
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
