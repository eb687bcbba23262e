//! The index: the facts of an entity, looked up by entity. It has one sled record per entity, and
//! can be rebuilt from the journal.

mod follow;

use crate::record::{Fact, Record, parse_record};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;

use crate::FactsError;
use crate::checksum::Damage;
use crate::history::{Answers, Integrity};
use crate::journal::Journal;
use hqdl_values::key::Entity;

/// Size of sled's memory cache, in bytes.
const CACHE_BYTES: u64 = 48 << 20;
/// Key of the last journal row that the index contains. No entity begins with a NUL.
const HEAD_KEY: &[u8] = b"\0head";
/// Version of the record layout. A different version rebuilds the index.
const LAYOUT_VERSION: i64 = 2;

/// The index, in the process that owns the cache.
#[derive(Debug, Clone)]
pub(super) struct Index {
    path: PathBuf,
    db: sled::Db,
    /// Id of the journal that the index is built from.
    journal_id: String,
    /// Locked for writing during a rebuild, so that lookups wait instead of seeing a partial index.
    rebuild_lock: Arc<RwLock<()>>,
    /// The journal of the commit thread. Holding its connection gives the right to change the
    /// records.
    writer_journal: Arc<Journal>,
    /// A journal connection for reading its last row id. It is never held for long.
    reader_journal: Arc<Journal>,
    /// Damage found in the journal.
    damage: Arc<Mutex<Damage>>,
}

impl Index {
    /// Opens the index and updates it from the journal.
    ///
    /// # Errors
    /// [`FactsError`] if it cannot be built at all.
    pub(super) fn open(
        path: &Path,
        writer_journal: Arc<Journal>,
        reader_journal: Journal,
    ) -> Result<Self, FactsError> {
        let error = |error| FactsError::File { path: path.to_owned(), error };
        if path.exists() && !path.is_dir() {
            // Do not delete a file that the user may need.
            let problem = "expected the directory of the index, found a file; move the file away";
            return Err(error(std::io::Error::other(problem)));
        }
        let db = match open_db(path) {
            Ok(db) => db,
            // The index is damaged. The journal has everything, so rebuild it.
            Err(_) => {
                std::fs::remove_dir_all(path).map_err(error)?;
                open_db(path)
                    .map_err(|message| FactsError::Index { path: path.to_owned(), message })?
            }
        };
        let (id, reader_journal, journal) =
            (reader_journal.journal_id()?, Arc::new(reader_journal), Arc::clone(&writer_journal));
        let (path, rebuild_lock, damage) = (path.to_owned(), Arc::default(), Arc::default());
        let index =
            Self { path, db, journal_id: id, rebuild_lock, writer_journal, reader_journal, damage };
        let valid_head = index.head().filter(|head| journal.head().is_ok_and(|last| *head <= last));
        match valid_head {
            Some(head) => index.apply_rows_after(&journal, head)?,
            None => {
                index.rebuild_records(&journal)?;
            }
        }
        Ok(index)
    }

    /// Returns the facts about an entity; `None` if there are none.
    ///
    /// # Errors
    /// [`FactsError::Index`] if the record is damaged.
    pub(super) fn get(&self, entity: &Entity) -> Result<Option<Record>, FactsError> {
        Ok(self.get_many(&[entity])?.pop().flatten())
    }

    /// Returns the facts about each entity.
    ///
    /// # Errors
    /// [`FactsError::Index`] if a record is damaged.
    pub(super) fn get_many(&self, entities: &[&Entity]) -> Result<Vec<Option<Record>>, FactsError> {
        let _rebuild_lock = self.rebuild_lock.read().unwrap_or_else(PoisonError::into_inner);
        let read = |entity: &&Entity| {
            let bytes = self.db.get(entity.as_str()).map_err(|e| self.sled_error(&e))?;
            bytes.map(|b| self.decode_record(&b)).transpose()
        };
        entities.iter().map(read).collect()
    }

    /// Runs a read for a client on a runtime thread. If it must wait for a rebuild or catch up with
    /// the journal, it does not block other tasks.
    pub(super) fn read_for_client<T>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, FactsError>,
    ) -> Result<T, FactsError> {
        if self.rebuild_lock.try_read().is_ok() && !self.is_behind()? {
            return read(self);
        }
        tokio::task::block_in_place(|| {
            self.wait_until_current()?;
            read(self)
        })
    }

    /// Returns the encoded records of the first entities, up to about `max_bytes` bytes but at
    /// least one record. For clients.
    pub(super) fn encoded_records(
        &self,
        entities: &[String],
        max_bytes: usize,
    ) -> Result<Vec<Option<Bytes>>, FactsError> {
        let _rebuild_lock = self.rebuild_lock.read().unwrap_or_else(PoisonError::into_inner);
        let (mut found, mut size) = (Vec::new(), 0);
        for entity in entities {
            // No entity begins with a NUL, so reject such a key from a client.
            let key = Some(entity).filter(|e| !e.starts_with('\0'));
            let bytes = key.map(|e| self.db.get(e)).transpose().map_err(|e| self.sled_error(&e))?;
            let bytes = bytes.flatten().map(|b| Bytes::copy_from_slice(&b));
            size += bytes.as_ref().map_or(1, Bytes::len);
            found.push(bytes);
            if size >= max_bytes {
                break;
            }
        }
        Ok(found)
    }

    /// Returns entities with their encoded records, in order, starting after `after`, up to about
    /// `max_bytes` bytes.
    pub(super) fn read_page(
        &self,
        after: &str,
        max_bytes: usize,
    ) -> Result<Vec<(String, Bytes)>, FactsError> {
        let _rebuild_lock = self.rebuild_lock.read().unwrap_or_else(PoisonError::into_inner);
        let (mut page, mut size) = (Vec::new(), 0);
        let from = (Bound::Excluded(after.as_bytes()), Bound::Unbounded);
        for entry in self.db.range::<&[u8], _>(from) {
            let (key, value) = entry.map_err(|e| self.sled_error(&e))?;
            if key.starts_with(b"\0") {
                continue;
            }
            let entity = String::from_utf8(key.to_vec())
                .map_err(|_| self.index_error("a key that is no entity"))?;
            size += entity.len() + value.len();
            page.push((entity, Bytes::copy_from_slice(&value)));
            if size >= max_bytes {
                break;
            }
        }
        Ok(page)
    }

    /// Merges facts into the records, in the order of the journal, up to its row `head`.
    fn merge_facts(
        &self,
        batch: impl IntoIterator<Item = (Entity, Vec<Fact>)>,
        head: i64,
    ) -> Result<(), FactsError> {
        for (entity, facts) in batch {
            let known = self.db.get(entity.as_str()).map_err(|e| self.sled_error(&e))?;
            let known = known.map(|bytes| self.decode_record(&bytes)).transpose()?;
            let mut record = known.unwrap_or_default();
            facts.into_iter().for_each(|f| record.merge(f));
            self.insert_record(&entity, &record)?;
        }
        // Set the head last: after a crash, the same rows are merged again.
        self.set_head(head)
    }

    /// Replaces whole records that contain the facts up to the journal's row `head`.
    ///
    /// # Errors
    /// [`FactsError::Index`].
    pub(super) fn put_records(
        &self,
        records: impl IntoIterator<Item = (Entity, Record)>,
        head: i64,
    ) -> Result<(), FactsError> {
        for (entity, record) in records {
            self.insert_record(&entity, &record)?;
        }
        self.set_head(head)
    }

    fn insert_record(&self, entity: &Entity, record: &Record) -> Result<(), FactsError> {
        let bytes = postcard::to_stdvec(record).map_err(|e| self.index_error(&e.to_string()))?;
        self.db.insert(entity.as_str(), bytes).map(|_| ()).map_err(|e| self.sled_error(&e))
    }

    /// Rebuilds every record from the journal and returns their number. Lookups wait meanwhile.
    ///
    /// # Errors
    /// [`FactsError::Damaged`] if the journal is damaged, because its last rows may be missing.
    /// Other errors if it cannot be read or the index cannot be written.
    pub(super) fn rebuild_records(&self, journal: &Journal) -> Result<u64, FactsError> {
        // Hold the connection, so that no other thread changes the records.
        let _connection = journal.connection();
        journal.check_file()?;
        {
            let _rebuild_lock = self.rebuild_lock.write().unwrap_or_else(PoisonError::into_inner);
            self.db.clear().map_err(|e| self.sled_error(&e))?;
            self.apply_rows_after(journal, 0)?;
        }
        let records = self.db.iter().keys().flatten();
        Ok(records.filter(|key| !key.starts_with(b"\0")).count() as u64)
    }

    /// Writes buffered data to disk.
    ///
    /// # Errors
    /// [`FactsError::Index`].
    pub(super) fn flush(&self) -> Result<(), FactsError> {
        self.db.flush().map(|_| ()).map_err(|e| self.sled_error(&e))
    }

    fn set_head(&self, head: i64) -> Result<(), FactsError> {
        let bytes = postcard::to_stdvec(&(LAYOUT_VERSION, &self.journal_id, head))
            .map_err(|e| self.index_error(&e.to_string()))?;
        self.db.insert(HEAD_KEY, bytes).map(|_| ()).map_err(|e| self.sled_error(&e))
    }

    fn decode_record(&self, bytes: &[u8]) -> Result<Record, FactsError> {
        parse_record(bytes, &self.path)
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

impl Index {
    fn head(&self) -> Option<i64> {
        let bytes = self.db.get(HEAD_KEY).ok().flatten()?;
        let (version, journal, head): (i64, String, i64) = postcard::from_bytes(&bytes).ok()?;
        (version == LAYOUT_VERSION && journal == self.journal_id).then_some(head)
    }
}

fn open_db(path: &Path) -> Result<sled::Db, String> {
    sled::Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(Some(1000))
        .open()
        .map_err(|e| e.to_string())
}
