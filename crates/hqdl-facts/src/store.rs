//! The interface of a fact store. [`super::LocalStore`] keeps the facts in a directory, and
//! [`super::PostgresStore`] on a server. Callers use [`super::Facts`] and do not depend on the
//! implementation.
//!
//! A store keeps two things: *records* (the facts about an entity, looked up by entity) and the
//! [`History`] that they were read from. Every store guarantees:
//!
//! * **Durability.** When [`FactStore::commit_unit`] returns, its unit is on disk, in the history
//!   and in the records. A process that is killed loses at most the requests without an answer.
//! * **One request per cell.** A key is granted to one session at a time, among all users of the
//!   store. It is released when that session ends, for whatever reason.
//! * **One daily budget, one set of rate limits.** Reservations and permits of all users of the
//!   store are counted together.

use crate::record::{Fact, Record, RecordBytes};
use std::io::BufRead;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::FactsError;
use crate::checksum::Damage;
use crate::claim_key::ClaimKey;
use crate::completion::Completion;
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::throttle::{LimiterKey, RateLimits};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// Future of a store operation that may wait for other sessions. If the future is dropped early,
/// the operation has either completed or changed nothing.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FactsError>> + Send + 'a>>;

/// Callback for messages about a server's outage: when it begins and when it ends.
pub type StatusCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// A completion and the facts that were read from it. Both are committed together.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CommitUnit {
    /// The request and its reply.
    pub completion: Completion,
    /// The facts by entity. [`FactStore::commit_unit`] fills in their completion id.
    pub facts: Vec<(Entity, Vec<Fact>)>,
    /// The reservation of the request, if there is one. Committing the unit settles it.
    #[serde(rename = "settles")]
    pub reservation: Option<ReservationId>,
    /// The batch request that this completion answers. It is settled in the same transaction, so
    /// that an answer is never stored twice.
    pub answers: Option<i64>,
}

/// Result of reserving the cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum ReserveOutcome {
    /// The worst-case cost is reserved under this id.
    Reserved(ReservationId),
    /// Rejected: the daily budget is exhausted. Contains the USD spent or reserved today.
    BudgetExceeded(f64),
    /// The request waited for the daily budget, which may cover it now. The caller must acquire a
    /// new permit and ask again.
    Retry,
    /// The run has ended in the meantime.
    RunEnded,
}

/// Result of claiming cells.
#[derive(Debug, Clone, Default)]
pub struct ClaimedCells {
    /// For each key, whether this session owns it now.
    pub granted: Vec<bool>,
    /// For each entity, the history ids of the column identities that open batch jobs request.
    /// Empty if there are no open batch jobs.
    pub batched_columns: Vec<Vec<u32>>,
    /// The known facts about each entity.
    pub known: Vec<Option<Record>>,
}

/// Claims that the caller has not received yet. Dropping the guard releases them.
struct ClaimGuard<'a> {
    keys: Vec<ClaimKey>,
    release: &'a (dyn Fn(&[ClaimKey]) + Sync),
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        if !self.keys.is_empty() {
            (self.release)(&self.keys);
        }
    }
}

/// A store of facts. Methods that return directly wait only for the disk or the server, never for
/// other sessions. Methods that may wait for other sessions return a [`StoreFuture`].
///
/// Every method fails with [`FactsError`] if the store cannot be reached, read or written. Unless
/// documented otherwise, a failed method has changed nothing.
pub trait FactStore: Send + Sync {
    /// Returns the directory for this process's other files, such as the files of batch jobs.
    fn dir(&self) -> &Path;

    /// Returns the location of the facts as the user named it: a directory or a server.
    fn location(&self) -> String {
        self.dir().display().to_string()
    }

    /// Returns the history of all requests and answers.
    fn history(&self) -> &dyn History;

    /// Returns the rate limits of endpoints, shared by all users of the store.
    fn rate_limits(&self) -> Arc<dyn RateLimits>;

    // ── records ──

    /// Returns the facts about each entity, in the order of `entities`. Includes everything that
    /// this session committed, and everything that others committed before the last
    /// [`FactStore::catch_up`].
    fn get_records(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError>;

    /// Like [`FactStore::get_records`], but includes everything that any session has committed so
    /// far. A caller that has claimed cells must check this before it asks for them.
    fn get_latest_records<'a>(
        &'a self,
        entities: &'a [&'a Entity],
    ) -> StoreFuture<'a, Vec<Option<Record>>>;

    /// Returns a page of entities with their records, a few hundred kilobytes, in text order,
    /// starting after the entity `after` (`""` for the first page). Empty at the end.
    fn read_page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError>;

    /// Returns true if access to the store is slow enough that requests should be prepared in
    /// advance.
    fn is_high_latency(&self) -> bool {
        false
    }

    /// Returns true if this process has owned its claims, runs and reservations without
    /// interruption since `_moment`.
    fn has_kept_session_since(&self, _moment: Instant) -> bool {
        true
    }

    /// Returns true if lookups go to a server. Batched lookups are then faster.
    fn is_remote(&self) -> bool;

    /// Updates the records with everything that others have committed so far.
    fn catch_up(&self) -> Result<(), FactsError>;

    /// Returns the damage that was found when the records were last built from the history.
    fn known_damage(&self) -> Damage;

    /// Returns an id that changes when the records are rebuilt. A rebuild may leave out damaged
    /// answers.
    fn records_id(&self) -> Result<i64, FactsError> {
        Ok(0)
    }

    /// Flushes derived data to disk. [`FactStore::commit_unit`] leaves it in memory, because it can
    /// be rebuilt.
    fn flush(&self) -> Result<(), FactsError>;

    /// Rebuilds all records from the history and returns their number. Lookups wait for the end of
    /// the rebuild.
    fn rebuild_records(&self) -> Result<u64, FactsError>;

    /// Imports facts written by [`super::Facts::export`], and returns how many were new. If a line
    /// cannot be used, nothing is imported. Newer known facts are kept, so importing the same input
    /// twice changes nothing.
    ///
    /// # Errors
    /// [`FactsError::Import`] if a line cannot be used; the error contains its number.
    fn import_facts(&self, input: &mut dyn BufRead) -> Result<u64, FactsError>;

    // ── requests ──

    /// Stores an answer and settles its reservation. When the future completes, the answer is
    /// committed and visible to others.
    fn commit_unit(&self, unit: CommitUnit) -> StoreFuture<'_, ()>;

    /// Reserves the worst-case cost of a request before it is sent. The reservation survives if the
    /// process is killed. It may be lost in a power cut, because a flush to disk would cost too
    /// much. If the rest of the daily budget (`daily_budget`, in USD) is reserved by requests in
    /// flight, waits for them. `limiter_key` identifies the limiter that granted the request's
    /// permit; `None` if the request has no permit. If the future is dropped early, nothing is
    /// reserved.
    fn reserve_cost(
        &self,
        run: RunId,
        worst_case: SpentAmount,
        daily_budget: Option<f64>,
        limiter_key: Option<LimiterKey>,
    ) -> StoreFuture<'_, ReserveOutcome>;

    /// Ends a reservation whose request got no answer. The reserved cost is released, or kept if
    /// the request may have been billed (`in_doubt`).
    fn finish_reservation(&self, reservation: ReservationId, in_doubt: bool)
    -> StoreFuture<'_, ()>;

    /// Claims, in one step, every key that no other session holds. Returns for each key whether
    /// this session owns it now. Does not wait for keys that other sessions hold.
    fn claim_keys<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>>;

    /// Claims cells of some entities. Then reads which columns open batch jobs request from the
    /// model `batch_model`, and then everything that any session has committed about the entities.
    /// This order ensures that if a cell is granted, in no batch job and not known, no other
    /// session asks for it. If the future is dropped early, nothing is claimed.
    fn claim_cells<'a>(
        &'a self,
        keys: &'a [ClaimKey],
        entities: &'a [&'a Entity],
        batch_model: Option<u32>,
    ) -> StoreFuture<'a, ClaimedCells> {
        Box::pin(async move {
            let granted = self.claim_keys(keys).await?;
            let held_keys = keys.iter().zip(&granted).filter(|(_, granted)| **granted);
            let held_keys: Vec<ClaimKey> = held_keys.map(|(key, _)| key.clone()).collect();
            let mut guard = ClaimGuard {
                keys: held_keys,
                release: &|keys: &[ClaimKey]| self.release_keys(keys),
            };
            let batched_columns = match batch_model {
                Some(model) if self.history().has_batch_requests_in_flight()? => entities
                    .iter()
                    .map(|e| self.history().list_batched_columns(e, model))
                    .collect::<Result<_, _>>()?,
                _ => Vec::new(),
            };
            let known = self.get_latest_records(entities).await?;
            guard.keys.clear();
            Ok(ClaimedCells { granted, batched_columns, known })
        })
    }

    /// Releases those of the given keys that this session holds. Returns at once and never fails: a
    /// session that cannot reach the store has ended and holds nothing.
    fn release_keys(&self, keys: &[ClaimKey]);

    /// Waits until no session holds the key. The caller must hold no claims while it waits.
    fn wait_for_release<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()>;
}
