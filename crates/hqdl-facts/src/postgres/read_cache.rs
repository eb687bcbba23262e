//! Local copy of the data that this process has read from the server, for callers that only read.
//!
//! Answer rows are only ever appended, in the order of their ids, and an entity's record changes
//! only when a row about it is appended. The copy therefore reflects *every row up to a certain
//! one*. A refresh asks the server for the rows appended since and drops the records that they
//! change.
//!
//! The copy is used only if its last refresh began less than [`MAX_AGE`] ago, and began after
//! everything else this process has read from the server or written to it. So it is never older
//! than [`MAX_AGE`], and a process never sees an older state than one it has already seen. A caller
//! that is about to send a request reads the server itself, under a claim.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::FactsError;
use crate::postgres::Server;
use crate::postgres::key::entity_key;
use crate::record::{Record, RecordBytes};
use hqdl_values::key::Entity;

/// Maximum age of the last refresh at which reads still use the copy.
const MAX_AGE: Duration = Duration::from_millis(500);
/// Maximum size in bytes of the copied records with their keys. If a record does not fit, all
/// records are dropped.
const MAX_BYTES: usize = 64 << 20;
/// Maximum number of changed rows per refresh. If a refresh reaches this number, all records are
/// dropped.
const MAX_CHANGES: i64 = 4000;
/// Maximum number of entities for which a lookup uses the copy.
pub(super) const MAX_LOOKUP: usize = 64;

/// Selects the cache id, its last answer row, and the keys of rows that were appended after row
/// `$1`.
const REFRESH_SQL: &str = "SELECT h.cache, h.line, ARRAY(SELECT a.key FROM hqdl.answer AS a
    WHERE a.line > $1 ORDER BY a.line LIMIT $2) FROM hqdl.head AS h";

/// The local copy and the state that decides whether it is fresh.
#[derive(Default)]
pub(super) struct ReadCache {
    state: Mutex<ReadCacheState>,
    /// Held during a refresh, so that concurrent readers wait for it instead of starting another.
    refreshing: Mutex<()>,
    /// Number of reads and writes that this process sent to the server directly.
    direct_accesses: AtomicU64,
}

#[derive(Default)]
struct ReadCacheState {
    /// Cache id, and the last answer row that the copy reflects.
    up_to: Option<(String, i64)>,
    /// Start of the last refresh, and the value of `ReadCache::direct_accesses` at that time.
    refreshed: Option<(Instant, u64)>,
    /// Number of times that records were dropped.
    evictions: u64,
    /// Ids of dictionary texts. They never change, so they are never dropped.
    ids: HashMap<(DictionaryTable, String), u32>,
    identity_ids: HashMap<String, Vec<u32>>,
    changed: HashMap<u32, i64>,
    records: HashMap<String, Option<RecordBytes>>,
    bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum DictionaryTable {
    Model,
    ColumnIdentity,
    ValueList,
}

impl ReadCacheState {
    /// Drops the entries that the rows in `changed_keys` may have changed, and moves the copy
    /// forward to `line`.
    fn apply_changes(&mut self, cache: String, line: i64, changed_keys: &[String]) {
        let same = self.up_to.as_ref().is_some_and(|(id, last)| *id == cache && *last <= line);
        if !same {
            // The URL now refers to another cache, or to a restored backup of this one.
            *self = Self { evictions: self.evictions, ..Self::default() };
        }
        if !same || !changed_keys.is_empty() {
            self.evictions += 1;
            self.identity_ids.clear();
            self.changed.clear();
        }
        if super::to_bigint(changed_keys.len()) >= MAX_CHANGES {
            self.clear_records();
        }
        for key in changed_keys {
            if let Some(old) = self.records.remove(key) {
                self.bytes -= estimate_entry_size(key, old.as_ref());
            }
        }
        self.up_to = Some((cache, line));
    }

    fn clear_records(&mut self) {
        self.records.clear();
        self.bytes = 0;
    }

    fn cache_record(&mut self, key: String, record: Option<RecordBytes>) {
        let new = estimate_entry_size(&key, record.as_ref());
        if self.bytes + new > MAX_BYTES {
            self.clear_records();
        }
        let before =
            self.records.get(&key).map_or(0, |old| estimate_entry_size(&key, old.as_ref()));
        self.bytes = self.bytes + new - before;
        self.records.insert(key, record);
    }
}

fn estimate_entry_size(key: &str, record: Option<&RecordBytes>) -> usize {
    key.len() + record.map_or(0, RecordBytes::len)
}

impl ReadCache {
    fn lock_state(&self) -> MutexGuard<'_, ReadCacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this process has read or written something on the server directly. The copy
    /// must be refreshed before its next use.
    pub(super) fn mark_direct_access(&self) {
        self.direct_accesses.fetch_add(1, Ordering::SeqCst);
    }

    fn is_fresh(&self) -> bool {
        let direct_accesses = self.direct_accesses.load(Ordering::SeqCst);
        self.lock_state()
            .refreshed
            .is_some_and(|(at, then)| then == direct_accesses && at.elapsed() < MAX_AGE)
    }
}

impl Server {
    /// Refreshes the copy, unless it is fresh.
    fn refresh_copy(&self) -> Result<(), FactsError> {
        if self.copy.is_fresh() {
            return Ok(());
        }
        let _refreshing = self.copy.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.copy.is_fresh() {
            return Ok(());
        }
        let (began, direct_accesses) =
            (Instant::now(), self.copy.direct_accesses.load(Ordering::SeqCst));
        let from = self.copy.lock_state().up_to.as_ref().map_or(i64::MAX, |(_, line)| *line);
        let (cache, line, changed_keys) =
            self.query_one(REFRESH_SQL, &[&from, &MAX_CHANGES], |row| {
                Ok((row.try_get(0)?, row.try_get(1)?, row.try_get::<_, Vec<String>>(2)?))
            })?;
        let mut state = self.copy.lock_state();
        state.apply_changes(cache, line, &changed_keys);
        state.refreshed = Some((began, direct_accesses));
        Ok(())
    }

    /// Returns an entry from the copy, or reads it from the server. An entry read from the server
    /// is added to the copy unless entries were dropped in the meantime.
    fn get_or_read_entry<T: Clone>(
        &self,
        find: impl Fn(&ReadCacheState) -> Option<T>,
        read: impl FnOnce() -> Result<T, FactsError>,
        keep: impl FnOnce(&mut ReadCacheState, T),
    ) -> Result<T, FactsError> {
        self.refresh_copy()?;
        let evictions = {
            let state = self.copy.lock_state();
            if let Some(found) = find(&state) {
                return Ok(found);
            }
            state.evictions
        };
        let read = read()?;
        let mut state = self.copy.lock_state();
        if state.evictions == evictions {
            keep(&mut state, read.clone());
        }
        Ok(read)
    }

    /// Returns the id of `text` in a dictionary.
    pub(super) fn look_up_id(
        &self,
        of: DictionaryTable,
        text: &str,
        read: impl FnOnce() -> Result<u32, FactsError>,
    ) -> Result<u32, FactsError> {
        let key = (of, text.to_owned());
        let find = |state: &ReadCacheState| state.ids.get(&key).copied();
        self.get_or_read_entry(find, read, |state, id| {
            state.ids.insert(key.clone(), id);
        })
    }

    /// Returns the ids of the column identities with this name. The copy may lack an identity
    /// created since its refresh, but no record in the copy uses that identity.
    pub(super) fn look_up_identity_ids(
        &self,
        name: &str,
        read: impl FnOnce() -> Result<Vec<u32>, FactsError>,
    ) -> Result<Vec<u32>, FactsError> {
        let find = |state: &ReadCacheState| state.identity_ids.get(name).cloned();
        self.get_or_read_entry(find, read, |state, all| {
            state.identity_ids.insert(name.to_owned(), all);
        })
    }

    /// Returns the last answer row that changed a value of a column identity.
    pub(super) fn look_up_last_change(
        &self,
        identity_id: u32,
        read: impl FnOnce() -> Result<i64, FactsError>,
    ) -> Result<i64, FactsError> {
        let find = |state: &ReadCacheState| state.changed.get(&identity_id).copied();
        self.get_or_read_entry(find, read, |state, line| {
            state.changed.insert(identity_id, line);
        })
    }

    /// Returns the records of a few entities, in the order of `entities`.
    pub(super) fn look_up_records(
        &self,
        entities: &[Entity],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        self.refresh_copy()?;
        let keys: Vec<String> = entities.iter().map(entity_key).collect();
        let (found, evictions) = {
            let state = self.copy.lock_state();
            let found: Vec<_> = keys.iter().map(|key| state.records.get(key).cloned()).collect();
            (found, state.evictions)
        };
        let lacking = || (0..keys.len()).filter(|n| found[*n].is_none());
        let asked: Vec<Entity> = lacking().map(|n| entities[n].clone()).collect();
        let read = if asked.is_empty() {
            Vec::new()
        } else {
            self.link.block_on(self.read_records(&asked))?
        };
        let mut kept = Vec::with_capacity(read.len());
        for (n, record) in lacking().zip(&read) {
            let bytes = record.as_ref().map(postcard::to_stdvec).transpose();
            let bytes = bytes.map_err(|e| self.server_error(&e.to_string()))?;
            kept.push((keys[n].clone(), bytes.map(|b| RecordBytes(Bytes::from(b)))));
        }
        {
            let mut state = self.copy.lock_state();
            if state.evictions == evictions {
                kept.into_iter().for_each(|(key, record)| state.cache_record(key, record));
            }
        }
        let mut read = read.into_iter();
        let of = |found: Option<Option<RecordBytes>>| match found {
            Some(known) => known.map(|bytes| bytes.decode(&self.dir)).transpose(),
            None => Ok(read.next().flatten()),
        };
        found.into_iter().map(of).collect()
    }
}
