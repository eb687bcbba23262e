//! Facts: the known values with their provenance, in a journal and an index over it.
//!
//! The `journal` (`SQLite`, in the data directory) is the source of truth: every completion and the
//! facts read from it are committed there first. The records of the entities (`SQLite`) are written
//! with it, and are updated from it whenever they are missing, outdated or damaged. They may be
//! deleted at any time.
//!
//! ```text
//! <data directory>/journal.sqlite   the source of truth
//! <data directory>/index.sqlite     its records: entity -> facts
//! <data directory>/index.sled/      the same for the daemon, which holds index.lock
//! <data directory>/sessions/        a locked file per process that uses the cache
//! <data directory>/lock             shared by these processes
//! ```
//!
//! Callers use a [`Facts`] and do not depend on the store behind it: a [`FactStore`], whose
//! documentation lists the guarantees of every store. Any number of processes can open a directory
//! ([`LocalStore`]) or a server ([`PostgresStore`]). They coordinate through rows of the store
//! (claims, requests under rate limits, reservations of the daily budget), which are valid while
//! the session of their process is alive.

pub mod batch_jobs;
mod checksum;
mod claim_key;
mod commit_thread;
mod completion;
mod folder;
mod history;
mod ids;
mod index;
mod journal;
pub mod limits;
mod local;
mod local_limits;
mod locks;
pub mod lookup;
mod network;
mod postgres;
mod prefetch;
pub mod questions;
mod record;
pub mod refresh;
pub mod requests;
mod second_answer;
mod session_file;
mod sessions;
mod spending;
mod store;
mod throttle;
pub mod transfer;
pub mod unify;

pub use folder::restrict_access;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

pub use batch_jobs::{BatchJob, BatchRequest, Stage};
pub use checksum::Damage;
pub use claim_key::ClaimKey;
pub use completion::{Completion, Outcome};
pub use history::History;
use hqdl_values::key::Entity;
pub use ids::{ReservationId, RunId};
pub use local::LocalStore;
pub use locks::NamedLock;
pub use lookup::{CellLookup, CellRequirements, Reason};
pub use postgres::PostgresStore;
pub use prefetch::Prefetch;
pub use questions::{LiveQuestion, QuestionBinding, QuestionOrigin};
pub use record::{Fact, Record, RecordBytes};
pub use requests::{BatchedRequest, KnownRequest};
pub use second_answer::{
    CascadeCell, CascadeDecision, ColumnModels, ExpansionRequirements, PROBABILITY_LEVELS,
    SecondAnswerRule,
};
pub use spending::{ColumnDailyCost, HourlySpending, Totals};
pub use store::{ClaimedCells, CommitUnit, FactStore, ReserveOutcome, StatusCallback, StoreFuture};
pub use throttle::{
    LimiterKey, Permit, RateLimits, RemainingWait, Throttle, TicketFuture, WaitFuture,
};

/// Approximate size in bytes of the records that are read at once.
const PAGE_BYTES: usize = 256 << 10;
/// Reason why facts could not be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The data directory for the cache cannot be determined.
    #[error("cannot find a data directory for the cache: {0}")]
    NoDirectory(String),
    /// The cache has an unsupported URL.
    #[error(
        "`{}` is not a cache: name a folder, or `postgres://user@host/database`",
        hqdl_values::format::hide_secrets(&_0.to_string_lossy())
    )]
    UnknownUrl(PathBuf),
    /// The user's default directory cannot be used.
    #[error("cannot use the default cache {}: {}", path.display(), hqdl_values::format::describe_write_error(path, error))]
    DefaultDirectory {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error from the operating system.
        error: std::io::Error,
    },
    /// The path of the cache is a file.
    #[error("{} is a file, but a cache is a directory", _0.display())]
    NotAFolder(PathBuf),
    /// Another process is using the cache.
    #[error("the cache {} is in use by {owner_description}", dir.display())]
    Held {
        /// Path of the cache directory.
        dir: PathBuf,
        /// Description of that process.
        owner_description: String,
    },
    /// The cache's file system does not let processes share the cache.
    #[error(
        "the cache {} is {}, where processes cannot share it",
        dir.display(),
        file_system.as_deref().map_or_else(
            || "on a file system without locks".to_owned(),
            |name| format!("on a network file system ({name})")
        )
    )]
    Shared {
        /// Path of the cache directory.
        dir: PathBuf,
        /// Type of the directory's file system.
        file_system: Option<String>,
    },
    /// An operation on the journal failed.
    #[error("the journal {}: {message}", path.display())]
    Journal {
        /// Path of the journal.
        path: PathBuf,
        /// Message from `SQLite`.
        message: String,
    },
    /// The journal is damaged.
    #[error("the journal {} is damaged", path.display())]
    Damaged {
        /// Path of the journal.
        path: PathBuf,
        /// The first problem.
        message: String,
    },
    /// An operation on the index failed.
    #[error("the index {}: {message}", path.display())]
    Index {
        /// Path of the index.
        path: PathBuf,
        /// Message from sled.
        message: String,
    },
    /// The cache's disk is full.
    #[error("the disk with {} is full", path.display())]
    DiskFull {
        /// Path of the file that cannot grow.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot use {}: {}", path.display(), hqdl_values::format::describe_write_error(path, error))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        error: std::io::Error,
    },
    /// A server could not be reached, even after retries.
    #[error("the cache {url} cannot be reached or fails: {message}")]
    Unreachable {
        /// URL of the server, without the password.
        url: String,
        /// Reason why the server cannot be reached.
        message: String,
    },
    /// A server denied access, or rejected the operation.
    #[error("the cache {url}: {message}")]
    Refused {
        /// URL of the server, without the password.
        url: String,
        /// The server's message.
        message: String,
        /// Advice for the user.
        hint: &'static str,
    },
    /// A line of an import cannot be used.
    #[error("line {line}: {message}")]
    Import {
        /// Line number, from 1.
        line: usize,
        /// Reason why the line cannot be used.
        message: String,
    },
}

impl FactsError {
    /// Returns advice for the user.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoDirectory(_) => "name one with --cache or HQDL_CACHE",
            Self::DefaultDirectory { .. } => "name another directory with --cache or HQDL_CACHE",
            Self::Held { .. } => "wait until it ends, or use another cache with --cache",
            Self::Shared { .. } => {
                "use a directory of a local disk, or `--cache postgres://user@host/database` for many machines"
            }
            Self::Journal { message, .. } if message.contains("a newer hqdl wrote it") => {
                "update hqdl, or use another cache with --cache"
            }
            Self::Journal { .. } => {
                "the journal holds the answers you paid for; check the disk and the file's permissions"
            }
            Self::Damaged { .. } => {
                "restore a backup, or the output of `sqlite3 journal.sqlite .recover`"
            }
            Self::Index { .. } => "run `hqdl cache rebuild`; the journal still has every fact",
            Self::DiskFull { .. } => {
                "free some space and run this again; every answer that is in the journal is kept"
            }
            Self::File { error, .. } if error.kind() == std::io::ErrorKind::StorageFull => {
                "free some space on this disk, or choose another with --cache"
            }
            Self::File { error, .. }
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::UnexpectedEof
                        | std::io::ErrorKind::InvalidData
                        | std::io::ErrorKind::InvalidInput
                ) =>
            {
                "the file is incomplete, or has another format than its name says"
            }
            Self::File { .. } => {
                "check that the path is right, and that this user may read and write there"
            }
            Self::NotAFolder(_) => "name a directory with --cache or HQDL_CACHE",
            Self::Unreachable { .. } => {
                "all answers are kept; check the server, then run this again"
            }
            Self::Refused { hint, .. } => hint,
            Self::UnknownUrl(_) => "correct --cache or HQDL_CACHE",
            Self::Import { .. } => "hqdl imported nothing; correct the line and run this again",
        }
    }
}

impl FactsError {
    /// Copies the error for another caller that waits for the same result.
    fn clone_for_waiter(&self) -> Self {
        match self {
            Self::Journal { path, message } => {
                Self::Journal { path: path.clone(), message: message.clone() }
            }
            Self::Damaged { path, message } => {
                Self::Damaged { path: path.clone(), message: message.clone() }
            }
            Self::DiskFull { path } => Self::DiskFull { path: path.clone() },
            Self::Unreachable { url, message } => {
                Self::Unreachable { url: url.clone(), message: message.clone() }
            }
            Self::Refused { url, message, hint } => {
                Self::Refused { url: url.clone(), message: message.clone(), hint }
            }
            owner_description => Self::Journal {
                path: "journal.sqlite".into(),
                message: owner_description.to_string(),
            },
        }
    }
}

/// A handle to the store of facts, cheap to clone. Any number of runs may use it concurrently.
#[derive(Clone)]
pub struct Facts {
    store: Arc<dyn FactStore>,
}

impl Deref for Facts {
    type Target = dyn FactStore;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl Facts {
    /// Opens the facts of a data directory, and creates them if they are missing. `description`
    /// describes this process to other processes.
    ///
    /// # Errors
    /// [`FactsError::Shared`] if the directory is on a network file system, [`FactsError::Held`] if
    /// an earlier version of hqdl has it open; other errors if the disk fails.
    pub fn open(dir: &Path, description: &str) -> Result<Self, FactsError> {
        folder::create_cache_dir(dir)?;
        LocalStore::open(dir, description).map(Self::from_store)
    }

    /// Opens the facts of a data directory with the daemon's index, which only one process can
    /// hold. If another process holds it, waits up to `timeout`.
    ///
    /// # Errors
    /// [`FactsError::Held`] if another process still holds the index; otherwise the errors of
    /// [`Facts::open`].
    pub fn open_with_index(
        dir: &Path,
        description: &str,
        timeout: Duration,
    ) -> Result<Self, FactsError> {
        folder::create_cache_dir(dir)?;
        LocalStore::open_with_index(dir, description, timeout).map(Self::from_store)
    }

    /// Creates temporary facts: an empty directory that is deleted with the last handle.
    ///
    /// # Errors
    /// Fails if the system's directory for temporary files cannot be used.
    pub fn open_temporary() -> Result<Self, FactsError> {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        let dir = std::env::temp_dir().join(format!("hqdl-{}-{nanos}", std::process::id()));
        folder::create_private_dir(&dir)
            .map_err(|error| FactsError::File { path: dir.clone(), error })?;
        let store = LocalStore::open(&dir, "hqdl --no-cache")?;
        Ok(Self::from_store(store.into_temporary()))
    }

    /// Opens the facts of a server (`postgres://user@host/database`), and creates them if they are
    /// missing. Local files of this machine are stored in a directory below `dir`. `on_status` is
    /// called when the server becomes unreachable, and when it is reachable again.
    ///
    /// # Errors
    /// [`FactsError::Unreachable`] if the server did not become reachable, [`FactsError::Refused`]
    /// if it denies access, or if a newer hqdl created the facts.
    pub fn connect_to_server(
        url: &str,
        dir: &Path,
        description: &str,
        on_status: StatusCallback,
    ) -> Result<Self, FactsError> {
        PostgresStore::open(url, dir, description, on_status).map(Self::from_store)
    }

    /// Creates a handle to a store.
    pub fn from_store(store: impl FactStore + 'static) -> Self {
        Self { store: Arc::new(store) }
    }

    /// Updates the facts with everything that other processes have stored, and returns `self`.
    #[must_use]
    pub fn sync(&self) -> &Self {
        if let Err(error) = self.catch_up() {
            // The caller gets the same error again before it sends any request.
            warn!(%error, "the index is behind the journal");
        }
        self
    }

    /// Returns the facts about rows. Each row is given by the entity of its facts and by the entity of
    /// its key, which differ if the row has a context. Facts that earlier versions stored under the
    /// key of such a row count for it, whatever its context was.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be read.
    pub fn get_rows(&self, rows: &[(&Entity, &Entity)]) -> Result<Vec<Option<Record>>, FactsError> {
        let entities: Vec<&Entity> = rows.iter().map(|(entity, _)| *entity).collect();
        let mut records = self.get_records(&entities)?;
        if rows.iter().all(|(entity, key)| entity == key) {
            return Ok(records);
        }
        let until = self.history().load_last_keyed_completion()?;
        if until > 0 {
            let keys: Vec<&Entity> = rows.iter().map(|(_, key)| *key).collect();
            for (record, earlier) in records.iter_mut().zip(self.get_records(&keys)?) {
                let mut found = record.take().unwrap_or_default();
                found.add_earlier_facts(earlier.unwrap_or_default(), until);
                *record = Some(found).filter(|found| !found.facts.is_empty());
            }
        }
        Ok(records)
    }

    /// Like [`Facts::sync`], for callers that only read. On a server, the facts may be half
    /// a second old.
    #[must_use]
    pub fn sync_for_read(&self) -> &Self {
        if self.is_remote() { self } else { self.sync() }
    }

    /// Returns the facts about an entity; `None` if there are none.
    ///
    /// # Errors
    /// [`FactsError::Index`] if the record is damaged.
    pub fn get(&self, entity: &Entity) -> Result<Option<Record>, FactsError> {
        Ok(self.get_records(&[entity])?.pop().flatten())
    }

    /// Returns every entity with its facts, in the order of the entities.
    pub fn iter(&self) -> impl Iterator<Item = Result<(Entity, Record), FactsError>> + '_ {
        let mut page = Vec::<(String, RecordBytes)>::new().into_iter();
        let (mut after, mut is_last_page) = (String::new(), false);
        std::iter::from_fn(move || {
            loop {
                if let Some((entity, bytes)) = page.next() {
                    return Some(record::decode_entry(&entity, &bytes, self.dir()));
                }
                if std::mem::replace(&mut is_last_page, true) {
                    return None;
                }
                match self.read_page(&after) {
                    Ok(next) => {
                        let last = next.last().map(|(entity, _)| entity.clone());
                        if let Some(last) = last {
                            (after, is_last_page) = (last, false);
                        }
                        page = next.into_iter();
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    /// Claims the keys that no other session holds, until the claim is dropped. Does not wait.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be written.
    pub async fn claim_keys(&self, keys: Vec<ClaimKey>) -> Result<Claim, FactsError> {
        let granted = self.store.claim_keys(&keys).await?;
        Ok(self.new_claim(keys, granted))
    }

    /// Like [`FactStore::claim_cells`], but holds the claim until it is dropped. Also returns, for
    /// each entity, the columns requested by open batch jobs, and the known facts.
    pub async fn claim_cells(
        &self,
        keys: Vec<ClaimKey>,
        entities: &[&Entity],
        batch_model: Option<u32>,
    ) -> Result<(Claim, Vec<Vec<u32>>, Vec<Option<Record>>), FactsError> {
        let found = self.store.claim_cells(&keys, entities, batch_model).await?;
        Ok((self.new_claim(keys, found.granted), found.batched_columns, found.known))
    }

    fn new_claim(&self, keys: Vec<ClaimKey>, granted: Vec<bool>) -> Claim {
        let held_keys =
            keys.into_iter().zip(&granted).filter(|(_, g)| **g).map(|(k, _)| k).collect();
        Claim { facts: self.clone(), keys: held_keys, granted }
    }
}

/// Claimed keys, which no other session may work on. Dropping the claim releases them.
pub struct Claim {
    facts: Facts,
    keys: Vec<ClaimKey>,
    granted: Vec<bool>,
}

impl Claim {
    /// Returns for each requested key whether this claim owns it.
    #[must_use]
    pub fn granted(&self) -> &[bool] {
        &self.granted
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.keys.is_empty() {
            self.facts.release_keys(&self.keys);
        }
    }
}
