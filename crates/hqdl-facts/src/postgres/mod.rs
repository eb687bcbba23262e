//! The store on a server: any number of machines share what was paid for. What the
//! journal and its index are on one machine are tables of `PostgreSQL` here, and
//! what only one process can have (claims, the budget of the day, rate limits) is
//! rows that the server locks.
//!
//! * A process is a *session*, which holds what it holds until it ends or its lease
//!   does, by the server's clock. It renews the lease; one that could not in time
//!   goes on under another session, without what it held.
//! * The server gives completions and lines their numbers in the commit that keeps
//!   them, one commit after the other: who has seen one sees none with a lower
//!   number later.
//! * Whatever is sent may be sent again when its answer was lost: it is done once.
//! * A server that cannot be reached is waited for, for less than a lease.

mod answers;
mod claims;
mod copy;
mod jobs;
mod keep;
mod key;
mod limits;
mod link;
mod questions;
mod records;
mod request_forms;
mod requests;
mod reserve;
mod runs;
mod schema;
mod sessions;
mod spool;
mod turns;
mod words;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::debug;

use self::claims::Claims;
use self::copy::LocalCopy;
use self::limits::ServerLimits;
use self::link::Link;
pub use self::link::StatusCallback;
use self::sessions::Presence;
use crate::FactsError;
use crate::checksum::Damage;
use crate::claim_key::ClaimKey;
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::record::{Record, RecordBytes};
use crate::store::{ClaimedCells, CommitUnit, FactStore, ReserveOutcome, StoreFuture};
use crate::throttle::{LimiterKey, RateLimits};

use hqdl_database::postgres::address::{ANSWER_TIMEOUT, AddressError, ServerAddress};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// How long what a process holds is its own after the server last heard of it.
const LEASE: Duration = Duration::from_secs(90);
/// The variable that says otherwise, in seconds.
const LEASE_VARIABLE: &str = "HQDL_LEASE";
/// Units that may wait for their commit; a sender waits when there are more.
const QUEUE: usize = 1024;

/// Facts that a server keeps.
pub struct PostgresStore {
    server: Arc<Server>,
    units: Option<mpsc::Sender<keep::Waiting>>,
    commits: Option<JoinHandle<()>>,
    limits: Arc<ServerLimits>,
}

/// A server, as one process uses it.
pub(super) struct Server {
    link: Link,
    /// Where this process keeps files of its own.
    dir: PathBuf,
    /// Which cache this is.
    cache: String,
    presence: Presence,
    claims: Claims,
    copy: LocalCopy,
    /// For what outlives the call that begins it.
    me: Weak<Self>,
}

impl PostgresStore {
    /// Opens the cache of a server, and makes it when it is missing. `dir` is where
    /// directories are kept for what stays on this machine; `holder` describes this
    /// process to others.
    pub(super) fn open(
        url: &str,
        dir: &Path,
        holder: &str,
        say: StatusCallback,
    ) -> Result<Self, FactsError> {
        let address = ServerAddress::parse(url)?;
        if address.schema.is_some() {
            return Err(FactsError::Refused {
                url: address.display_url,
                message: "a cache is always in the schema `hqdl`".to_owned(),
                hint: "remove `schema` from its URL",
            });
        }
        let lease = std::env::var(LEASE_VARIABLE).ok().and_then(|s| s.parse::<f64>().ok());
        let lease =
            lease.and_then(|s| Duration::try_from_secs_f64(s.max(1.0)).ok()).unwrap_or(LEASE);
        // Whoever gives up does so while what it holds is still its own.
        let link = Link::new(address, say, lease * 5 / 6)?;
        link.here(schema::migrate(&link))?;
        let cache = link.here(answers::cache(&link))?;
        let dir = dir.join(&cache);
        std::fs::create_dir_all(&dir)
            .map_err(|error| FactsError::File { path: dir.clone(), error })?;
        let presence = Presence::new(holder, lease);
        let server = Arc::new_cyclic(|me| {
            let (claims, copy, me) = (Claims::default(), LocalCopy::default(), Weak::clone(me));
            Server { link, dir, cache, presence, claims, copy, me }
        });
        server.link.here(server.keep_spooled())?;
        // Who may only read leaves it to the others.
        if let Err(error) = server.link.here(server.end_left_sessions()) {
            debug!(%error, "what killed processes held is not told to be free");
        }
        let (units, waiting) = mpsc::channel(QUEUE);
        let commits = server.link.handle.spawn(keep::commit_all(Arc::clone(&server), waiting));
        let limits = Arc::new(ServerLimits::new(Arc::clone(&server)));
        Ok(Self { server, units: Some(units), commits: Some(commits), limits })
    }

    /// Does something to its end, whatever becomes of who waits for it.
    fn on_server<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, FactsError>> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        // Boxed: a task is compiled once for what it gives, not for what it does.
        let work: StoreFuture<'static, T> = Box::pin(work);
        let working = self.server.link.handle.spawn(work);
        Box::pin(async { working.await.map_err(|e| self.server.failed(&e.to_string()))? })
    }
}

impl Server {
    pub(super) fn failed(&self, message: &str) -> FactsError {
        FactsError::Journal { path: self.link.shown.clone().into(), message: message.to_owned() }
    }
}

impl From<AddressError> for FactsError {
    fn from(bad: AddressError) -> Self {
        Self::Refused { url: bad.display_url, message: bad.message, hint: bad.hint }
    }
}

/// Ignores that this role may not write what is not needed to read.
fn unless_refused(written: Result<(), FactsError>) -> Result<(), FactsError> {
    match written {
        Err(FactsError::Refused { message, .. }) => {
            debug!(message, "this role does not write it");
            Ok(())
        }
        other => other,
    }
}

/// A text as the server takes it: without NUL, which no name has a use for.
/// Whatever must come back as it was is bytes there, or JSON.
fn text(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// A number of things as the server takes it.
fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl FactStore for PostgresStore {
    fn dir(&self) -> &Path {
        &self.server.dir
    }

    fn location(&self) -> String {
        self.server.link.shown.clone()
    }

    fn history(&self) -> &dyn History {
        &*self.server
    }

    fn rate_limits(&self) -> Arc<dyn RateLimits> {
        Arc::clone(&self.limits) as _
    }

    fn get_many(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError> {
        let entities: Vec<Entity> = entities.iter().map(|e| (*e).clone()).collect();
        if entities.len() <= copy::FEW {
            return self.server.known_records(&entities);
        }
        let found = self.server.link.here(self.server.records(&entities));
        self.server.copy.seen();
        found
    }

    fn get_latest<'a>(
        &'a self,
        entities: &'a [&'a Entity],
    ) -> StoreFuture<'a, Vec<Option<Record>>> {
        let entities: Vec<Entity> = entities.iter().map(|e| (*e).clone()).collect();
        let server = Arc::clone(&self.server);
        self.on_server(async move {
            let found = server.records(&entities).await;
            server.copy.seen();
            found
        })
    }

    fn read_page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        let page = self.server.link.here(self.server.page_after(after));
        self.server.copy.seen();
        page
    }

    fn is_high_latency(&self) -> bool {
        self.server.link.is_far()
    }

    fn held_since(&self, moment: Instant) -> bool {
        self.server.held_since(moment)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn catch_up(&self) -> Result<(), FactsError> {
        self.server.copy.seen();
        Ok(())
    }

    fn known_damage(&self) -> Damage {
        Damage::default()
    }

    fn flush(&self) -> Result<(), FactsError> {
        Ok(())
    }

    fn rebuild_records(&self) -> Result<u64, FactsError> {
        // There is no index beside the table; what is worth a look is whether it is whole.
        self.server.copy.seen();
        self.history().check_file()?;
        self.server.link.here(self.server.entities())
    }

    fn import_facts(&self, input: &mut dyn BufRead) -> Result<u64, FactsError> {
        let read = |entities: &[Entity]| self.server.link.here(self.server.records(entities));
        let (run, units, count) = super::transfer::prepare_import(self.history(), &read, input)?;
        let units: Vec<_> =
            units.into_iter().map(|unit| Arc::new(keep::KeptUnit::new(unit))).collect();
        let kept = self.server.link.here(self.server.commit(&units));
        self.server.copy.seen();
        kept?;
        self.history().finish_run(run, super::Outcome::Complete)?;
        Ok(count)
    }

    fn commit_unit(&self, unit: CommitUnit) -> StoreFuture<'_, ()> {
        let (server, units) = (Arc::clone(&self.server), self.units.clone());
        self.on_server(async move {
            let kept = server.keep_safely(units, unit).await;
            server.copy.seen();
            kept
        })
    }

    fn reserve_cost(
        &self,
        run: RunId,
        worst: SpentAmount,
        of_day: Option<f64>,
        place: Option<LimiterKey>,
    ) -> StoreFuture<'_, ReserveOutcome> {
        let server = Arc::clone(&self.server);
        let (reply, noted) = oneshot::channel();
        self.server.link.handle.spawn(async move {
            server.reserve(run, worst, of_day, place.is_some(), reply).await;
        });
        Box::pin(async { noted.await.map_err(|_| self.server.failed("its thread has ended"))? })
    }

    fn finish_reservation(
        &self,
        reservation: ReservationId,
        in_doubt: bool,
    ) -> StoreFuture<'_, ()> {
        let server = Arc::clone(&self.server);
        self.on_server(async move { server.settle(reservation, in_doubt).await })
    }

    fn claim_keys<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>> {
        Box::pin(async { Ok(self.claim_cells(keys, &[], None).await?.granted) })
    }

    fn claim_cells<'a>(
        &'a self,
        keys: &'a [ClaimKey],
        entities: &'a [&'a Entity],
        beside: Option<u32>,
    ) -> StoreFuture<'a, ClaimedCells> {
        let (server, keys) = (Arc::clone(&self.server), keys.to_vec());
        let entities: Vec<Entity> = entities.iter().map(|e| (*e).clone()).collect();
        let (reply, claimed) = oneshot::channel();
        self.server.link.handle.spawn(async move {
            let claimed = server.claim_cells(&keys, &entities, beside).await;
            server.copy.seen();
            if let Err(Ok(claimed)) = reply.send(claimed) {
                // Nobody wants them any more.
                let held = keys.into_iter().zip(claimed.granted).filter(|(_, held)| *held);
                server.release(&held.map(|(key, _)| key).collect::<Vec<_>>());
            }
        });
        Box::pin(async { claimed.await.map_err(|_| self.server.failed("its thread has ended"))? })
    }

    fn release_keys(&self, keys: &[ClaimKey]) {
        self.server.release(keys);
    }

    fn wait_for_release<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()> {
        let (server, key) = (Arc::clone(&self.server), key.clone());
        self.on_server(async move { server.released(&key).await })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // No more commits than those that wait, which are in files at the least when the
        // server does not take them; then what was only to be said is said, and all is
        // let go of.
        drop(self.units.take());
        if let Some(commits) = self.commits.take() {
            let patience = ANSWER_TIMEOUT * 2;
            self.server.link.here(async { drop(tokio::time::timeout(patience, commits).await) });
        }
        self.limits.end();
        self.server.link.here(self.server.leave());
    }
}
