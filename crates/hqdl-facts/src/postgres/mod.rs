//! The store on a database server, through which any number of machines share their answers. Its
//! tables replace the journal and the index of a local cache. Processes coordinate claims, the
//! daily budget and rate limits through rows that the server locks.
//!
//! * A process is a *session*. It owns its claims and reservations until it ends or its lease
//!   expires by the server's clock. If a process cannot renew the lease in time, it continues in a
//!   new session without them.
//! * The server numbers completions and answer rows in the transaction that inserts them, one
//!   transaction after the other. So a reader that has seen a number never sees a lower one appear
//!   later.
//! * Every statement may be sent again if its reply was lost, and takes effect once.
//! * While the server is unreachable, hqdl retries for less than the duration of a lease.

mod answers;
mod claims;
mod read_cache;
mod batch_jobs;
mod commit;
mod key;
mod limits;
mod connection;
mod questions;
mod records;
mod endpoint_features;
mod requests;
mod reserve;
mod runs;
mod schema;
mod sessions;
mod spool;
mod permits;
mod dictionary;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::debug;

use self::claims::Claims;
use self::connection::ConnectionPool;
use self::limits::ServerLimits;
use self::read_cache::ReadCache;
use self::sessions::SessionLease;
use crate::FactsError;
use crate::checksum::Damage;
use crate::claim_key::ClaimKey;
use crate::history::History;
use crate::ids::{ReservationId, RunId};
use crate::record::{Record, RecordBytes};
use crate::store::{
    ClaimedCells, CommitUnit, FactStore, ReserveOutcome, StatusCallback, StoreFuture,
};
use crate::throttle::{LimiterKey, RateLimits};

use hqdl_database::postgres::address::{ANSWER_TIMEOUT, AddressError, ServerAddress};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// Default duration of a session's lease after its last renewal.
const LEASE: Duration = Duration::from_secs(90);
/// Environment variable that overrides [`LEASE`], in seconds.
const LEASE_VARIABLE: &str = "HQDL_LEASE";
/// Maximum number of commit units in the queue. Senders block while the queue is full.
const QUEUE: usize = 1024;

/// Fact store on a database server.
pub struct PostgresStore {
    server: Arc<Server>,
    units: Option<mpsc::Sender<commit::QueuedUnit>>,
    commits: Option<JoinHandle<()>>,
    limits: Arc<ServerLimits>,
}

/// Client state for a server, one per process.
pub(super) struct Server {
    link: ConnectionPool,
    /// Directory of this process's local files.
    dir: PathBuf,
    /// Id of the cache.
    cache: String,
    presence: SessionLease,
    claims: Claims,
    copy: ReadCache,
    /// Reference to itself, for tasks that outlive the call that starts them.
    weak_self: Weak<Self>,
}

/// Returns the lease that [`LEASE_VARIABLE`] sets, at least one second, or the default.
fn read_lease() -> Result<Duration, String> {
    let Some(text) = std::env::var_os(LEASE_VARIABLE) else { return Ok(LEASE) };
    let text = text.to_string_lossy();
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds.max(1.0)).ok())
        .ok_or_else(|| format!("{LEASE_VARIABLE} is not a number of seconds above 0: `{text}`"))
}

impl PostgresStore {
    /// Connects to a server. Returns the connections and the length of the lease.
    fn connect(
        url: &str,
        on_status: StatusCallback,
    ) -> Result<(ConnectionPool, Duration), FactsError> {
        let address = ServerAddress::parse(url)?;
        if address.schema.is_some() {
            return Err(FactsError::Refused {
                url: address.display_url,
                message: "a cache is always in the schema `hqdl`".to_owned(),
                hint: "remove `schema` from its URL",
            });
        }
        let lease = read_lease().map_err(|message| FactsError::Refused {
            url: address.display_url.clone(),
            message,
            hint: "set HQDL_LEASE to a number of seconds, such as 90, or unset it",
        })?;
        // A process must stop retrying while it still owns its lease.
        Ok((ConnectionPool::new(address, on_status, lease * 5 / 6)?, lease))
    }

    /// Opens the cache on a server, and creates it if it does not exist. `dir` is the folder for
    /// local files; `holder` describes this process to other processes.
    pub(super) fn open(
        url: &str,
        dir: &Path,
        holder: &str,
        on_status: StatusCallback,
    ) -> Result<Self, FactsError> {
        let (link, lease) = Self::connect(url, on_status)?;
        link.block_on(schema::migrate(&link))?;
        let cache = link.block_on(answers::read_cache_id(&link))?;
        let dir = dir.join(&cache);
        std::fs::create_dir_all(&dir)
            .map_err(|error| FactsError::File { path: dir.clone(), error })?;
        let presence = SessionLease::new(holder, lease);
        let server = Arc::new_cyclic(|weak| {
            let (claims, copy, weak_self) =
                (Claims::default(), ReadCache::default(), Weak::clone(weak));
            Server { link, dir, cache, presence, claims, copy, weak_self }
        });
        server.link.block_on(server.commit_spooled_units())?;
        // A role with read access cannot do this; other processes will.
        if let Err(error) = server.link.block_on(server.end_abandoned_sessions()) {
            debug!(%error, "cannot end the sessions of killed processes");
        }
        let (units, waiting) = mpsc::channel(QUEUE);
        let commits =
            server.link.handle.spawn(commit::commit_queued_units(Arc::clone(&server), waiting));
        let limits = Arc::new(ServerLimits::new(Arc::clone(&server)));
        Ok(Self { server, units: Some(units), commits: Some(commits), limits })
    }

    /// Runs `work` to completion on the connections' thread, even if the caller is dropped.
    fn run_detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, FactsError>> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        // Boxed, so that the task is compiled once per output type and not once per caller.
        let work: StoreFuture<'static, T> = Box::pin(work);
        let working = self.server.link.handle.spawn(work);
        Box::pin(async { working.await.map_err(|e| self.server.server_error(&e.to_string()))? })
    }
}

impl Server {
    pub(super) fn server_error(&self, message: &str) -> FactsError {
        FactsError::Journal {
            path: self.link.display_url.clone().into(),
            message: message.to_owned(),
        }
    }
}

impl From<AddressError> for FactsError {
    fn from(bad: AddressError) -> Self {
        Self::Refused { url: bad.display_url, message: bad.message, hint: bad.hint }
    }
}

/// Ignores a missing permission for an optional write, on which reads do not depend.
fn ignore_missing_permission(written: Result<(), FactsError>) -> Result<(), FactsError> {
    match written {
        Err(FactsError::Refused { message, .. }) => {
            debug!(message, "the role has no permission for an optional write");
            Ok(())
        }
        other => other,
    }
}

/// Replaces NUL characters, which the server does not accept in text. Values that must come back
/// unchanged are stored as bytes or JSON instead.
fn replace_nul_chars(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// Converts a count to the server's integer type.
fn to_bigint(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl FactStore for PostgresStore {
    fn dir(&self) -> &Path {
        &self.server.dir
    }

    fn location(&self) -> String {
        self.server.link.display_url.clone()
    }

    fn history(&self) -> &dyn History {
        &*self.server
    }

    fn rate_limits(&self) -> Arc<dyn RateLimits> {
        Arc::clone(&self.limits) as _
    }

    fn get_records(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError> {
        let entities: Vec<Entity> = entities.iter().map(|e| (*e).clone()).collect();
        if entities.len() <= read_cache::MAX_LOOKUP {
            return self.server.look_up_records(&entities);
        }
        let found = self.server.link.block_on(self.server.read_records(&entities));
        self.server.copy.mark_direct_access();
        found
    }

    fn get_latest_records<'a>(
        &'a self,
        entities: &'a [&'a Entity],
    ) -> StoreFuture<'a, Vec<Option<Record>>> {
        let entities: Vec<Entity> = entities.iter().map(|e| (*e).clone()).collect();
        let server = Arc::clone(&self.server);
        self.run_detached(async move {
            let found = server.read_records(&entities).await;
            server.copy.mark_direct_access();
            found
        })
    }

    fn read_page(&self, after: &str) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        let page = self.server.link.block_on(self.server.read_page(after));
        self.server.copy.mark_direct_access();
        page
    }

    fn is_high_latency(&self) -> bool {
        self.server.link.is_high_latency()
    }

    fn has_kept_session_since(&self, moment: Instant) -> bool {
        self.server.has_kept_session_since(moment)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn catch_up(&self) -> Result<(), FactsError> {
        self.server.copy.mark_direct_access();
        Ok(())
    }

    fn known_damage(&self) -> Damage {
        Damage::default()
    }

    fn flush(&self) -> Result<(), FactsError> {
        Ok(())
    }

    fn rebuild_records(&self) -> Result<u64, FactsError> {
        // The server has no index to rebuild, so only check the table for damage.
        self.server.copy.mark_direct_access();
        self.history().check_file()?;
        self.server.link.block_on(self.server.count_entities())
    }

    fn import_facts(&self, input: &mut dyn BufRead) -> Result<u64, FactsError> {
        let read =
            |entities: &[Entity]| self.server.link.block_on(self.server.read_records(entities));
        let lines = super::transfer::check_lines(input)?;
        super::transfer::import_checked_lines(self.history(), &lines, &read, &mut |units| {
            let units: Vec<_> =
                units.into_iter().map(|unit| Arc::new(commit::TaggedUnit::new(unit))).collect();
            let kept = self.server.link.block_on(self.server.commit_units(&units));
            self.server.copy.mark_direct_access();
            kept
        })
    }

    fn commit_unit(&self, unit: CommitUnit) -> StoreFuture<'_, ()> {
        let (server, units) = (Arc::clone(&self.server), self.units.clone());
        self.run_detached(async move {
            let kept = server.commit_or_spool(units, unit).await;
            server.copy.mark_direct_access();
            kept
        })
    }

    fn reserve_cost(
        &self,
        run: RunId,
        worst: SpentAmount,
        daily_budget: Option<f64>,
        limiter_key: Option<LimiterKey>,
    ) -> StoreFuture<'_, ReserveOutcome> {
        let server = Arc::clone(&self.server);
        let (reply, noted) = oneshot::channel();
        self.server.link.handle.spawn(async move {
            server.reserve_cost(run, worst, daily_budget, limiter_key.is_some(), reply).await;
        });
        Box::pin(async {
            noted.await.map_err(|_| self.server.server_error("its thread has ended"))?
        })
    }

    fn finish_reservation(
        &self,
        reservation: ReservationId,
        in_doubt: bool,
    ) -> StoreFuture<'_, ()> {
        let server = Arc::clone(&self.server);
        self.run_detached(async move { server.settle_reservation(reservation, in_doubt).await })
    }

    fn claim_keys<'a>(&'a self, keys: &'a [ClaimKey]) -> StoreFuture<'a, Vec<bool>> {
        Box::pin(async { Ok(self.claim_cells(keys, &[], None).await?.granted) })
    }

    fn claim_cells<'a>(
        &'a self,
        keys: &'a [ClaimKey],
        entities: &'a [&'a Entity],
        batch_model: Option<u32>,
    ) -> StoreFuture<'a, ClaimedCells> {
        let (server, keys) = (Arc::clone(&self.server), keys.to_vec());
        let entities: Vec<Entity> = entities.iter().map(|e| (*e).clone()).collect();
        let (reply, claimed) = oneshot::channel();
        self.server.link.handle.spawn(async move {
            let claimed = server.claim_cells(&keys, &entities, batch_model).await;
            server.copy.mark_direct_access();
            if let Err(Ok(claimed)) = reply.send(claimed) {
                // The caller was dropped, so release the claims.
                let held = keys.into_iter().zip(claimed.granted).filter(|(_, held)| *held);
                server.release_claims(&held.map(|(key, _)| key).collect::<Vec<_>>());
            }
        });
        Box::pin(async {
            claimed.await.map_err(|_| self.server.server_error("its thread has ended"))?
        })
    }

    fn release_keys(&self, keys: &[ClaimKey]) {
        self.server.release_claims(keys);
    }

    fn wait_for_release<'a>(&'a self, key: &'a ClaimKey) -> StoreFuture<'a, ()> {
        let (server, key) = (Arc::clone(&self.server), key.clone());
        self.run_detached(async move { server.wait_for_release(&key).await })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // First commit the queued units, or write them to files if the server does not accept them.
        // Then send the pending messages and end the session.
        drop(self.units.take());
        if let Some(commits) = self.commits.take() {
            let patience = ANSWER_TIMEOUT * 2;
            self.server
                .link
                .block_on(async { drop(tokio::time::timeout(patience, commits).await) });
        }
        self.limits.stop_sender();
        self.server.link.block_on(self.server.end_own_session());
    }
}
