//! The seam: what a store of facts must do. [`super::LocalStore`] does it where this
//! process owns the cache, [`super::RemoteStore`] asks the process that owns it, and
//! a store on a server would be a third, in a file of its own; whoever uses facts
//! holds a [`super::Facts`] and knows none of them.
//!
//! A store keeps two things: *records* (the facts about an entity, found by the
//! entity) and the [`History`] they were read from. What of both must hold in
//! every store:
//!
//! * **Kept is kept.** What [`FactStore::keep`] was given is on the disk, in
//!   history and records, before it returns; a process killed at any moment loses
//!   at most what was not answered yet.
//! * **One asker a cell.** A key is granted to one session at a time, among all
//!   who share the store, and is released when that session ends, however it ends.
//! * **One budget of the day, one set of rate limits.** Reservations and
//!   admissions of all who share the store are counted together.

use crate::record::{Fact, Record, RecordBytes};
use std::io::BufRead;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::checksum::Damage;
use crate::completion::Completion;
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::in_flight::ClaimKey;
use crate::throttle::{EndpointPlace, RateLimits};
use crate::{FactsError, LocalStore};
use hqdl_values::key::Entity;
use hqdl_values::usage::Spent;

/// What a store does that may wait for others. Dropped before its end, it has
/// done all of it or nothing.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FactsError>> + Send + 'a>>;

/// A completion and the facts that were read from it: committed together.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CommitUnit {
    /// The request.
    pub completion: Completion,
    /// The facts, by entity; their completion is filled in here.
    pub facts: Vec<(Entity, Vec<Fact>)>,
    /// What was reserved for the request, if it was noted; settled by this.
    pub settles: Option<ReservationId>,
    /// The request of a parcel that this answers: settled in the same
    /// transaction, so that no answer is ever taken twice.
    pub answers: Option<i64>,
}

/// What became of the wish to send a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Noted {
    /// What it may cost is noted, by this id.
    Note(ReservationId),
    /// The budget of the day does not cover it: so much, in USD, is gone today.
    Beyond(f64),
    /// It waited for the budget of the day, which may cover it now: whoever admits
    /// it is to be asked again.
    Again,
    /// Its run has ended meanwhile.
    Ended,
}

/// What is found of cells that were to be claimed.
#[derive(Debug, Clone, Default)]
pub struct ClaimedCells {
    /// For each key, whether it is this session's now.
    pub granted: Vec<bool>,
    /// For each entity, what batches under way ask about it, by the ids of meanings in
    /// the history; empty where there are none.
    pub under_way: Vec<Vec<u32>>,
    /// The facts about each entity.
    pub known: Vec<Option<Record>>,
}

/// Claims that nobody has taken over yet; given back when this is dropped.
struct Unclaim<'a> {
    held: Vec<ClaimKey>,
    release: &'a (dyn Fn(&[ClaimKey]) + Sync),
}

impl Drop for Unclaim<'_> {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            (self.release)(&self.held);
        }
    }
}

/// What keeps facts. Methods that return at once do not wait for other sessions,
/// only for the disk or the server; those that wait return a [`StoreFuture`].
///
/// Every method fails with [`FactsError`] when the store cannot be reached, read or
/// written, and, unless its words say otherwise, has changed nothing then.
pub trait FactStore: Send + Sync {
    /// Where this process keeps files of its own beside the facts, such as those of
    /// batch jobs.
    fn dir(&self) -> &Path;

    /// Where the facts are, as it is told: a directory, or a server.
    fn place(&self) -> String {
        self.dir().display().to_string()
    }

    /// The process that owns the facts, when that is not this one.
    fn owner(&self) -> Option<&str>;

    /// All that was ever asked.
    fn history(&self) -> &dyn History;

    /// The rate limits of endpoints, shared by all who share the store.
    fn rate_limits(&self) -> Arc<dyn RateLimits>;

    /// The store that a cache server serves to others; `None` unless this process
    /// owns the cache.
    fn local(self: Arc<Self>) -> Option<Arc<LocalStore>> {
        None
    }

    // ── records ──

    /// The facts about each of some entities, in their order. All that this session
    /// kept is seen, and what others kept before the last [`FactStore::catch_up`].
    fn get_many(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError>;

    /// The same, with all that anybody has kept by now: what whoever has claimed
    /// cells must look at before asking for them.
    fn get_latest<'a>(&'a self, entities: &'a [&'a Entity])
    -> StoreFuture<'a, Vec<Option<Record>>>;

    /// Entities with their records, in the order of their texts, from after one on
    /// (`""` for the first): some hundred kilobytes of them; none at the end.
    fn page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError>;

    /// Whether the way to it is so long that requests are to be prepared ahead.
    fn is_far(&self) -> bool {
        false
    }

    /// Whether all that this process held at a moment (claims, its runs, what it noted)
    /// has been its own ever since, for certain.
    fn held_since(&self, _moment: Instant) -> bool {
        true
    }

    /// Whether a look-up goes to another process, so that it is better to look up
    /// many at once.
    fn is_remote(&self) -> bool;

    /// Brings records up to what others have kept by now.
    fn catch_up(&self) -> Result<(), FactsError>;

    /// What of the history was found damaged when records were last made from it.
    fn known_damage(&self) -> Damage;

    /// Writes to the disk what [`FactStore::keep`] has not: what need not be safe,
    /// since it can be made again.
    fn flush(&self) -> Result<(), FactsError>;

    /// Makes all records again from the history; returns how many. Who looks up
    /// meanwhile waits.
    fn rebuild(&self) -> Result<u64, FactsError>;

    /// Takes in facts written by [`super::Facts::export`], all or none; returns how
    /// many were news. What is known and newer stays, so the same input twice
    /// changes nothing.
    ///
    /// # Errors
    /// [`FactsError::Import`] with the number of a line that cannot be used.
    fn import(&self, input: &mut dyn BufRead) -> Result<u64, FactsError>;

    // ── asking ──

    /// Keeps what was answered, and settles what was reserved for it. Committed
    /// before it returns; others see it from then on. Where it fails because the
    /// owner of the cache is gone ([`FactsError::Lost`]), the unit is in the history
    /// all the same: it was paid for.
    fn keep(&self, unit: CommitUnit) -> StoreFuture<'_, ()>;

    /// Notes what a request may cost at the worst, before it leaves. The note
    /// outlives a process that is killed (of a power cut it need not be safe: it is
    /// not worth a disk's flush). Where the budget of the day (`of_day`, in USD)
    /// is held by requests on their way, this waits for them. `place` is where the
    /// request was admitted to. Dropped before its end, nothing is noted.
    fn reserve(
        &self,
        run: RunId,
        worst: Spent,
        of_day: Option<f64>,
        place: Option<EndpointPlace>,
    ) -> StoreFuture<'_, Noted>;

    /// Says that a request ended without an answer. Its note is taken out, or
    /// stands when the request may have been billed (`in_doubt`).
    fn settle(&self, reservation: ReservationId, in_doubt: bool) -> StoreFuture<'_, ()>;

    /// Claims what nobody else holds, in one step; says for each key whether it is
    /// this session's now. Does not wait for who holds the others.
    fn claim<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>>;

    /// Claims cells of some entities, then looks at what batches under way ask of a
    /// model about these (`beside`), then at what anybody has kept of them by now: in
    /// this order, so that what is granted, asked by no batch and not known is nobody
    /// else's. Dropped before its end, nothing is claimed.
    fn claim_cells<'a>(
        &'a self,
        keys: &'a [ClaimKey],
        entities: &'a [&'a Entity],
        beside: Option<u32>,
    ) -> StoreFuture<'a, ClaimedCells> {
        Box::pin(async move {
            let granted = self.claim(keys).await?;
            let held = keys.iter().zip(&granted).filter(|(_, granted)| **granted);
            let held: Vec<ClaimKey> = held.map(|(key, _)| key.clone()).collect();
            let mut guard = Unclaim { held, release: &|keys: &[ClaimKey]| self.release(keys) };
            let under_way = match beside {
                Some(model) if self.history().any_under_way()? => entities
                    .iter()
                    .map(|e| self.history().under_way(e, model))
                    .collect::<Result<_, _>>()?,
                _ => Vec::new(),
            };
            let known = self.get_latest(entities).await?;
            guard.held.clear();
            Ok(ClaimedCells { granted, under_way, known })
        })
    }

    /// Gives back what of these this session holds; returns at once, and never
    /// fails: who cannot say so is over, and holds nothing.
    fn release(&self, keys: &[ClaimKey]);

    /// Waits until nobody holds this; who waits must hold nothing.
    fn released<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()>;
}
