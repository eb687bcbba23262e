//! Local copy: what this process has read from the server, cached for plain reads.
//!
//! Answer rows are only ever appended, in the order of their ids, and an entity's record changes
//! only when a row about it is appended. The copy therefore reflects *every row up to one*. A
//! refresh asks the server for the rows appended since and drops the records that they change.
//!
//! The copy is used only if its last refresh began less than [`FRESH`] ago, and began after
//! everything else this process has read from the server or written to it. So it is never older
//! than [`FRESH`], and a process never sees an older state than one it has already seen. A caller
//! that is about to send a request reads the server itself, under a claim.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::FactsError;
use crate::postgres::Server;
use crate::postgres::key::key;
use crate::record::{Record, RecordBytes};
use hqdl_values::key::Entity;

/// Longest age of a refresh for which reads use the copy.
const FRESH: Duration = Duration::from_millis(500);
/// Limit of the records and their keys in the copy, in bytes. If a record does not fit, all records
/// are dropped.
const MOST: usize = 64 << 20;
/// Number of changed rows that a refresh can list. If there are as many, all records are dropped.
const NEWS: i64 = 4000;
/// Largest number of entities for which a lookup uses the copy.
pub(super) const FEW: usize = 64;

/// Selects the cache id, its last answer row, and the keys of rows that were appended after row
/// `$1`.
const LOOK: &str = "SELECT h.cache, h.line, ARRAY(SELECT a.key FROM hqdl.answer AS a
    WHERE a.line > $1 ORDER BY a.line LIMIT $2) FROM hqdl.head AS h";

/// The local copy and the state that decides whether it is fresh.
#[derive(Default)]
pub(super) struct LocalCopy {
    at_hand: Mutex<AtHand>,
    /// Held during a refresh, so that concurrent readers wait for it instead of starting another.
    looking: Mutex<()>,
    /// Counts the reads and writes of this process that went to the server directly.
    seen: AtomicU64,
}

#[derive(Default)]
struct AtHand {
    /// Cache id, and the last answer row that the copy reflects.
    up_to: Option<(String, i64)>,
    /// Start of the last refresh, and the value of `LocalCopy::seen` at that time.
    looked: Option<(Instant, u64)>,
    /// Number of times that entries were dropped.
    turns: u64,
    /// Ids of dictionary texts. An id never changes, so they are kept.
    ids: HashMap<(DictionaryTable, String), u32>,
    meanings_named: HashMap<String, Vec<u32>>,
    changed: HashMap<u32, i64>,
    records: HashMap<String, Option<RecordBytes>>,
    bytes: usize,
}

/// A dictionary table of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum DictionaryTable {
    Model,
    Meaning,
    ValueList,
}

impl AtHand {
    /// Drops the entries that the rows in `news` may have changed, and moves the copy forward to
    /// `line`.
    fn forward(&mut self, cache: String, line: i64, news: &[String]) {
        let same = self.up_to.as_ref().is_some_and(|(id, last)| *id == cache && *last <= line);
        if !same {
            // The URL now refers to another cache, or to a restored backup of this one.
            *self = Self { turns: self.turns, ..Self::default() };
        }
        if !same || !news.is_empty() {
            self.turns += 1;
            self.meanings_named.clear();
            self.changed.clear();
        }
        if super::count(news.len()) >= NEWS {
            self.forget_records();
        }
        for key in news {
            if let Some(old) = self.records.remove(key) {
                self.bytes -= size(key, old.as_ref());
            }
        }
        self.up_to = Some((cache, line));
    }

    fn forget_records(&mut self) {
        self.records.clear();
        self.bytes = 0;
    }

    fn keep_record(&mut self, key: String, record: Option<RecordBytes>) {
        let new = size(&key, record.as_ref());
        if self.bytes + new > MOST {
            self.forget_records();
        }
        let before = self.records.get(&key).map_or(0, |old| size(&key, old.as_ref()));
        self.bytes = self.bytes + new - before;
        self.records.insert(key, record);
    }
}

fn size(key: &str, record: Option<&RecordBytes>) -> usize {
    key.len() + record.map_or(0, RecordBytes::len)
}

impl LocalCopy {
    fn at_hand(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this process has read or written something on the server directly. The copy
    /// must be refreshed before its next use.
    pub(super) fn seen(&self) {
        self.seen.fetch_add(1, Ordering::SeqCst);
    }

    fn is_fresh(&self) -> bool {
        let seen = self.seen.load(Ordering::SeqCst);
        self.at_hand().looked.is_some_and(|(at, then)| then == seen && at.elapsed() < FRESH)
    }
}

impl Server {
    /// Refreshes the copy, unless it is fresh.
    fn look(&self) -> Result<(), FactsError> {
        if self.copy.is_fresh() {
            return Ok(());
        }
        let _looking = self.copy.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.copy.is_fresh() {
            return Ok(());
        }
        let (began, seen) = (Instant::now(), self.copy.seen.load(Ordering::SeqCst));
        let from = self.copy.at_hand().up_to.as_ref().map_or(i64::MAX, |(_, line)| *line);
        let (cache, line, news) = self.one(LOOK, &[&from, &NEWS], |row| {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get::<_, Vec<String>>(2)?))
        })?;
        let mut at_hand = self.copy.at_hand();
        at_hand.forward(cache, line, &news);
        at_hand.looked = Some((began, seen));
        Ok(())
    }

    /// Returns an entry of the copy, or reads it from the server. The entry that was read is added
    /// to the copy unless entries were dropped in the meantime.
    fn at_hand_or<T: Clone>(
        &self,
        find: impl Fn(&AtHand) -> Option<T>,
        read: impl FnOnce() -> Result<T, FactsError>,
        keep: impl FnOnce(&mut AtHand, T),
    ) -> Result<T, FactsError> {
        self.look()?;
        let turns = {
            let at_hand = self.copy.at_hand();
            if let Some(found) = find(&at_hand) {
                return Ok(found);
            }
            at_hand.turns
        };
        let read = read()?;
        let mut at_hand = self.copy.at_hand();
        if at_hand.turns == turns {
            keep(&mut at_hand, read.clone());
        }
        Ok(read)
    }

    /// Returns the id of `text` in a dictionary.
    pub(super) fn known_id(
        &self,
        of: DictionaryTable,
        text: &str,
        read: impl FnOnce() -> Result<u32, FactsError>,
    ) -> Result<u32, FactsError> {
        let key = (of, text.to_owned());
        let find = |at_hand: &AtHand| at_hand.ids.get(&key).copied();
        self.at_hand_or(find, read, |at_hand, id| {
            at_hand.ids.insert(key.clone(), id);
        })
    }

    /// Returns the ids of the column identities with this name. An identity that is created in the
    /// meantime belongs to no record up to the copy's last row.
    pub(super) fn known_meanings(
        &self,
        name: &str,
        read: impl FnOnce() -> Result<Vec<u32>, FactsError>,
    ) -> Result<Vec<u32>, FactsError> {
        let find = |at_hand: &AtHand| at_hand.meanings_named.get(name).cloned();
        self.at_hand_or(find, read, |at_hand, all| {
            at_hand.meanings_named.insert(name.to_owned(), all);
        })
    }

    /// Returns the last answer row that changed a value of the column identity `meaning`.
    pub(super) fn known_change(
        &self,
        meaning: u32,
        read: impl FnOnce() -> Result<i64, FactsError>,
    ) -> Result<i64, FactsError> {
        let find = |at_hand: &AtHand| at_hand.changed.get(&meaning).copied();
        self.at_hand_or(find, read, |at_hand, line| {
            at_hand.changed.insert(meaning, line);
        })
    }

    /// Returns the records of a few entities, in the order of `entities`.
    pub(super) fn known_records(
        &self,
        entities: &[Entity],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        self.look()?;
        let keys: Vec<String> = entities.iter().map(key).collect();
        let (found, turns) = {
            let at_hand = self.copy.at_hand();
            let found: Vec<_> = keys.iter().map(|key| at_hand.records.get(key).cloned()).collect();
            (found, at_hand.turns)
        };
        let lacking = || (0..keys.len()).filter(|n| found[*n].is_none());
        let asked: Vec<Entity> = lacking().map(|n| entities[n].clone()).collect();
        let read =
            if asked.is_empty() { Vec::new() } else { self.link.here(self.records(&asked))? };
        let mut kept = Vec::with_capacity(read.len());
        for (n, record) in lacking().zip(&read) {
            let bytes = record.as_ref().map(postcard::to_stdvec).transpose();
            let bytes = bytes.map_err(|e| self.failed(&e.to_string()))?;
            kept.push((keys[n].clone(), bytes.map(|b| RecordBytes(Bytes::from(b)))));
        }
        {
            let mut at_hand = self.copy.at_hand();
            if at_hand.turns == turns {
                kept.into_iter().for_each(|(key, record)| at_hand.keep_record(key, record));
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
