//! The daemon's index: the facts of each entity in sled, which only one process can open. It has
//! one record per entity, catches up with the journal before every read, and can be rebuilt from
//! the journal.

use std::fs::File;
use std::path::{Path, PathBuf};

use parking_lot::RwLock;

use crate::FactsError;
use crate::checksum::Damage;
use crate::folder::{LockOutcome, acquire_index_lock, create_private_dir};
use crate::history::{Answers, Integrity};
use crate::journal::Journal;
use crate::record::{Record, parse_record};
use hqdl_values::key::Entity;

/// Size of sled's memory cache, in bytes.
const CACHE_BYTES: u64 = 48 << 20;
/// Key under which the index stores the id of the last journal row it contains. The key cannot
/// collide with an entity, because no entity begins with a NUL.
const HEAD_KEY: &[u8] = b"\0head";
/// Version of the record layout. The index is rebuilt if its version differs.
const LAYOUT_VERSION: i64 = 3;

/// The index, owned by the process that holds its lock.
#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    db: sled::Db,
    journal_id: String,
    /// Write-locked during a rebuild, so that lookups wait instead of seeing a partial index.
    rebuild_lock: RwLock<()>,
    _lock: File,
}

impl Index {
    /// Opens the index and updates it from the journal.
    pub(super) fn open(path: &Path, lock: File, journal: &Journal) -> Result<Self, FactsError> {
        let error = |error| FactsError::File { path: path.to_owned(), error };
        if path.exists() && !path.is_dir() {
            // Do not delete a file that the user may need.
            let problem = "expected the directory of the index, found a file; move the file away";
            return Err(error(std::io::Error::other(problem)));
        }
        if !path.exists() {
            create_private_dir(path).map_err(error)?;
        }
        let db = match open_sled_database(path) {
            Ok(db) => db,
            // The index is damaged. The journal contains all facts, so rebuild the index.
            Err(_) => {
                std::fs::remove_dir_all(path).map_err(error)?;
                create_private_dir(path).map_err(error)?;
                open_sled_database(path)
                    .map_err(|message| FactsError::Index { path: path.to_owned(), message })?
            }
        };
        let (path, journal_id) = (path.to_owned(), journal.load_journal_id()?);
        let index = Self { path, db, journal_id, rebuild_lock: RwLock::default(), _lock: lock };
        index.catch_up(journal)?;
        Ok(index)
    }

    /// Rebuilds the index in a directory, unless the index is missing or another process holds it.
    pub(super) fn rebuild_unless_held(dir: &Path, journal: &Journal) -> Result<(), FactsError> {
        let path = dir.join("index.sled");
        if !path.exists() {
            return Ok(());
        }
        match acquire_index_lock(dir, "hqdl cache rebuild")? {
            LockOutcome::Acquired(lock) => Self::open(&path, lock, journal)?.rebuild(journal),
            LockOutcome::HeldBy(_) => Ok(()),
        }
    }

    /// Returns the record of each entity.
    pub(super) fn get_records(
        &self,
        journal: &Journal,
        entities: &[&Entity],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        self.catch_up(journal)?;
        let _complete = self.rebuild_lock.read();
        let read = |entity: &&Entity| {
            let bytes = self.db.get(entity.as_str()).map_err(|e| self.sled_error(&e))?;
            bytes.map(|b| parse_record(&b, &self.path)).transpose()
        };
        entities.iter().map(read).collect()
    }

    /// Adds the journal rows that the index lacks. If one of them is damaged, earlier records may
    /// be outdated, so the whole index is rebuilt.
    fn catch_up(&self, journal: &Journal) -> Result<(), FactsError> {
        let last = journal.load_last_row_id()?;
        if self.load_last_row_id() == Some(last) {
            return Ok(());
        }
        // Allow only one thread at a time to change the records.
        let _connection = journal.connection();
        match self.load_last_row_id().filter(|head| *head <= last) {
            Some(head) if head == last => Ok(()),
            Some(head) if head > 0 && journal.find_damage(head)?.fact_rows.is_empty() => {
                self.merge_rows_after(journal, head, &Damage::default())
            }
            _ => self.rebuild(journal),
        }
    }

    fn merge_rows_after(
        &self,
        journal: &Journal,
        head: i64,
        damage: &Damage,
    ) -> Result<(), FactsError> {
        let last = journal.visit_answers_after(head, damage, &mut |_, entity, facts| {
            let known = self.db.get(entity.as_str()).map_err(|e| self.sled_error(&e))?;
            let known = known.map(|bytes| parse_record(&bytes, &self.path)).transpose()?;
            let mut record = known.unwrap_or_default();
            facts.into_iter().for_each(|fact| record.merge(fact));
            let bytes =
                postcard::to_stdvec(&record).map_err(|e| self.index_error(&e.to_string()))?;
            self.db.insert(entity.as_str(), bytes).map(drop).map_err(|e| self.sled_error(&e))
        })?;
        // Set the head last, so that the same rows are merged again after a crash.
        self.set_head(last)
    }

    /// Rebuilds every record from the journal.
    pub(super) fn rebuild(&self, journal: &Journal) -> Result<(), FactsError> {
        let _connection = journal.connection();
        let damage = journal.find_damage(0)?;
        let _rebuild_lock = self.rebuild_lock.write();
        self.db.clear().map_err(|e| self.sled_error(&e))?;
        self.merge_rows_after(journal, 0, &damage)
    }

    /// Writes buffered data to disk.
    pub(super) fn flush(&self) -> Result<(), FactsError> {
        self.db.flush().map(|_| ()).map_err(|e| self.sled_error(&e))
    }

    fn set_head(&self, head: i64) -> Result<(), FactsError> {
        let bytes = postcard::to_stdvec(&(LAYOUT_VERSION, &self.journal_id, head))
            .map_err(|e| self.index_error(&e.to_string()))?;
        self.db.insert(HEAD_KEY, bytes).map(|_| ()).map_err(|e| self.sled_error(&e))
    }

    fn load_last_row_id(&self) -> Option<i64> {
        let bytes = self.db.get(HEAD_KEY).ok().flatten()?;
        let (version, journal, head): (i64, String, i64) = postcard::from_bytes(&bytes).ok()?;
        (version == LAYOUT_VERSION && journal == self.journal_id).then_some(head)
    }

    fn sled_error(&self, error: &sled::Error) -> FactsError {
        match error {
            sled::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => {
                FactsError::DiskFull { path: self.path.clone() }
            }
            error => self.index_error(&error.to_string()),
        }
    }

    fn index_error(&self, message: &str) -> FactsError {
        FactsError::Index { path: self.path.clone(), message: message.to_owned() }
    }
}

fn open_sled_database(path: &Path) -> Result<sled::Db, String> {
    sled::Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(Some(1000))
        .open()
        .map_err(|e| e.to_string())
}
