//! How a run asks for facts and keeps them: its handle of the writing thread
//! ([`super::desk`]) and of the claims, in this process or in the one that owns
//! the cache.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::FactsError;
use super::borrow::Borrowed;
use super::claims::{Claims, Thing};
use super::desk::{Job, Reply, Wish, keep_alone};
use super::history::{BatchJobs, BatchRequests};
use super::index::{Fact, Index, Record};
use super::journal::{Completion, Journal};
use super::throttle::Place;
use super::wire::{Ask, Say};
use crate::key::Entity;
use crate::usage::Spent;

/// A completion and the facts that were read from it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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

/// What became of the wish to send a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Noted {
    /// What it may cost is noted, by this id.
    Note(i64),
    /// The budget of the day does not cover it: so much, in USD, is gone today.
    Beyond(f64),
    /// It waited for the budget of the day, which may cover it now: whoever admits
    /// it is to be asked again.
    Again,
    /// Its run has ended meanwhile.
    Ended,
}

/// Handle of the writing thread, and of the claims: how a run asks for facts.
#[derive(Clone)]
pub struct Writer {
    way: Way,
    index: Index,
    journal: Arc<Journal>,
}

#[derive(Clone)]
enum Way {
    /// In the process that owns the cache.
    Own { jobs: mpsc::Sender<Job>, claims: Arc<Claims>, session: Arc<str> },
    /// In a process that borrows it.
    Lent(Arc<Borrowed>),
}

impl Writer {
    pub(super) fn own(
        jobs: mpsc::Sender<Job>,
        claims: Arc<Claims>,
        session: Arc<str>,
        (index, journal): (Index, Arc<Journal>),
    ) -> Self {
        Self { way: Way::Own { jobs, claims, session }, index, journal }
    }

    pub(super) fn lent(owner: Arc<Borrowed>, index: Index, journal: Arc<Journal>) -> Self {
        Self { way: Way::Lent(owner), index, journal }
    }

    /// Keeps a batch; returns when it is safe on the disk.
    ///
    /// # Errors
    /// [`FactsError`] when it could not be kept.
    pub async fn keep(&self, batch: Batch) -> Result<(), FactsError> {
        match &self.way {
            Way::Own { jobs, .. } => ask(jobs, |reply| Job::Keep(Box::new(batch), reply)).await,
            Way::Lent(owner) => {
                let ask = Ask::Keep(Box::new(batch));
                match (owner.ask(&ask).await, ask) {
                    // It is paid for, and whoever owns the cache next finds it.
                    (Err(lost @ FactsError::Lost { .. }), Ask::Keep(batch)) => {
                        keep_alone(&self.journal, &batch)?;
                        Err(lost)
                    }
                    (kept, _) => kept.map(drop),
                }
            }
        }
    }

    /// Notes what a request may cost at the worst, before it leaves. The note
    /// outlives a process that is killed (of a power cut it is not safe: it is
    /// not worth a disk's flush). Where the budget of the day (`of_day`, in USD)
    /// is held by requests on their way, this waits for them. `place` is where the
    /// request was admitted to.
    ///
    /// # Errors
    /// [`FactsError`] when it could not be noted.
    pub async fn reserve(
        &self,
        run: i64,
        worst: Spent,
        of_day: Option<f64>,
        place: Option<Place>,
    ) -> Result<Noted, FactsError> {
        match &self.way {
            Way::Own { jobs, session, .. } => {
                let session = Arc::clone(session);
                let wish = Wish { session, run, worst, of_day, place, waited: false };
                ask(jobs, |reply| Job::Reserve(wish, reply)).await
            }
            Way::Lent(owner) => match owner.ask(&Ask::Reserve { run, worst, of_day, place }).await?
            {
                Say::Noted(noted) => Ok(noted),
                _ => Err(owner.misunderstood()),
            },
        }
    }

    /// Says that a request ended without an answer. Its note is taken out, or
    /// stands when the request may have been billed.
    ///
    /// # Errors
    /// [`FactsError`] when that could not be noted.
    pub async fn end(&self, reservation: i64, in_doubt: bool) -> Result<(), FactsError> {
        match &self.way {
            Way::Own { jobs, .. } => {
                ask(jobs, |reply| Job::End { reservation, in_doubt, reply }).await
            }
            Way::Lent(owner) => owner.ask(&Ask::End { reservation, in_doubt }).await.map(drop),
        }
    }

    /// Claims what nobody else holds, in one step; does not wait.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub async fn claim(&self, things: Vec<Thing>) -> Result<Claim, FactsError> {
        let granted = match &self.way {
            Way::Own { claims, session, .. } => claims.claim(session, &things),
            Way::Lent(owner) => match owner.ask(&Ask::Claim(things.clone())).await? {
                Say::Claimed(granted) => granted,
                _ => return Err(owner.misunderstood()),
            },
        };
        let held = things.into_iter().zip(&granted).filter(|(_, g)| **g).map(|(t, _)| t).collect();
        Ok(Claim { way: self.way.clone(), held, granted })
    }

    /// Waits until this is released; who waits must hold nothing.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub async fn released(&self, thing: &Thing) -> Result<(), FactsError> {
        match &self.way {
            Way::Own { claims, .. } => {
                let _ = claims.wait(thing).await;
                Ok(())
            }
            Way::Lent(owner) => owner.ask(&Ask::Wait(thing.clone())).await.map(drop),
        }
    }

    /// The facts about some entities, as they are now.
    ///
    /// # Errors
    /// [`FactsError`] when they cannot be read.
    pub async fn known(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError> {
        match &self.way {
            Way::Own { .. } => {
                if self.index.is_behind()? {
                    let index = self.index.clone();
                    let followed = tokio::task::spawn_blocking(move || index.follow_on());
                    followed.await.map_err(|_| gone())??;
                }
                entities.iter().map(|e| self.index.get(e)).collect()
            }
            Way::Lent(owner) => {
                let mut found = Vec::with_capacity(entities.len());
                while found.len() < entities.len() {
                    let left = &entities[found.len()..];
                    let left = left.iter().map(|e| e.as_str().to_owned()).collect();
                    let Say::Records(records) = owner.ask(&Ask::Get(left)).await? else {
                        return Err(owner.misunderstood());
                    };
                    self.index.decode_all(&records, &mut found)?;
                }
                Ok(found)
            }
        }
    }
}

impl Writer {
    /// For each of some entities, what batches under way ask about it, or are to
    /// ask in a run that goes on: by the ids of meanings in the journal.
    ///
    /// # Errors
    /// [`FactsError`] when the journal cannot be read.
    pub fn under_way(&self, entities: &[&Entity], model: u32) -> Result<Vec<Vec<u32>>, FactsError> {
        let journal = &self.journal;
        if !journal.any_under_way()? {
            return Ok(Vec::new());
        }
        entities.iter().map(|e| journal.under_way(e, model)).collect()
    }
}

/// Things that nobody else may ask or do; given back when this is dropped.
pub struct Claim {
    way: Way,
    held: Vec<Thing>,
    granted: Vec<bool>,
}

impl Claim {
    /// For each thing that was asked for, whether it is held by this now.
    #[must_use]
    pub fn granted(&self) -> &[bool] {
        &self.granted
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.held.is_empty() {
            return;
        }
        match &self.way {
            Way::Own { claims, session, .. } => claims.release(session, &self.held),
            Way::Lent(owner) => owner.tell(&Ask::Release(std::mem::take(&mut self.held))),
        }
    }
}

async fn ask<T>(
    jobs: &mpsc::Sender<Job>,
    job: impl FnOnce(Reply<T>) -> Job,
) -> Result<T, FactsError> {
    let (reply, told) = oneshot::channel();
    jobs.send(job(reply)).await.map_err(|_| gone())?;
    told.await.map_err(|_| gone())?
}

fn gone() -> FactsError {
    FactsError::Journal {
        path: "journal.sqlite".into(),
        message: "its writer has ended".to_owned(),
    }
}
