//! The copy: what this process has read of the server, kept at hand for plain reads.
//!
//! Lines are only ever added, in the order of their numbers, and what an entity is known
//! to be changes with its lines alone. So all that is at hand has *every line up to one*
//! in it, and a look at the server takes that one forward: the lines that came since say
//! whose records are read again. Nothing at hand is told unless such a look began less
//! than [`FRESH`] ago, and after all that this process has seen of the server in any
//! other way: a copy may be behind by that much, never by more, and nobody sees less than
//! they have seen already. Whoever is to ask looks at the server itself, under a claim.

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

/// How old a look at the server may be for what is at hand to be told.
const FRESH: Duration = Duration::from_millis(500);
/// Bytes of keys and records at hand; past this all are let go of.
const MOST: usize = 64 << 20;
/// Entities with new lines that a look may name; past this all are let go of.
const NEWS: i64 = 4000;
/// Whoever looks up more at once is not helped by a copy.
pub(super) const FEW: usize = 64;

/// The cache that there is now, its last line, and whose lines came after one.
const LOOK: &str = "SELECT h.cache, h.line, ARRAY(SELECT a.key FROM hqdl.answer AS a
    WHERE a.line > $1 ORDER BY a.line LIMIT $2) FROM hqdl.head AS h";

/// What is at hand, and how far.
#[derive(Default)]
pub(super) struct LocalCopy {
    at_hand: Mutex<AtHand>,
    /// One looks; who waits is told by that look, too.
    looking: Mutex<()>,
    /// What this process has seen of the server otherwise, or done there.
    seen: AtomicU64,
}

#[derive(Default)]
struct AtHand {
    /// The cache, and the line up to which all here has every line.
    up_to: Option<(String, i64)>,
    /// When the last look began, and what had been seen by then.
    looked: Option<(Instant, u64)>,
    /// How often something here was let go of.
    turns: u64,
    /// Ids in the dictionaries: they stay.
    ids: HashMap<(DictionaryTable, String), u32>,
    meanings_named: HashMap<String, Vec<u32>>,
    changed: HashMap<u32, i64>,
    records: HashMap<String, Option<RecordBytes>>,
    bytes: usize,
}

/// A dictionary of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum DictionaryTable {
    Model,
    Meaning,
    ValueList,
}

impl AtHand {
    /// Lets go of what may have changed since the last look.
    fn forward(&mut self, cache: String, line: i64, news: &[String]) {
        let same = self.up_to.as_ref().is_some_and(|(id, last)| *id == cache && *last <= line);
        if !same {
            // Another cache in its place, or an earlier state of it.
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

    /// This process has seen more of the server than a look has told, or done more
    /// there: nothing is told before the next look.
    pub(super) fn seen(&self) {
        self.seen.fetch_add(1, Ordering::SeqCst);
    }

    fn is_fresh(&self) -> bool {
        let seen = self.seen.load(Ordering::SeqCst);
        self.at_hand().looked.is_some_and(|(at, then)| then == seen && at.elapsed() < FRESH)
    }
}

impl Server {
    /// Sees to it that what is at hand may be told.
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

    /// What is at hand, or what the server says, which is at hand from then on unless
    /// news came meanwhile.
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

    /// An id in a dictionary.
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

    /// The meanings of a name: one that is entered meanwhile is of no record up to the
    /// last line.
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

    /// The line that last changed a value of a meaning.
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

    /// The records of a few entities, in their order.
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
