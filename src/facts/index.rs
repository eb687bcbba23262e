//! The index: the facts of an entity, found by the entity. One sled record an
//! entity; every record can be made again from the journal.

mod follow;

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::FactsError;
use super::borrow::Borrowed;
use super::checksum::Damage;
use super::history::{Answers, Integrity};
use super::journal::Journal;
use super::wire::{Ask, Say};
use crate::cell::{Answer, State};
use crate::key::Entity;

/// Bytes that sled may keep in memory. Past this it reads the disk.
const CACHE_BYTES: u64 = 48 << 20;
/// Bytes of records that are read at once.
const PAGE: usize = 256 << 10;
/// How far the index has followed the journal. No entity begins with a NUL.
const HEAD: &[u8] = b"\0head";
/// Layout of the records; another number means: make them again.
const VERSION: i64 = 2;

/// A fact: an answer, what it answers, and where it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// The column's meaning, by its id in the journal.
    pub meaning: u32,
    /// The model, by its id in the journal.
    pub model: u32,
    /// The value list it was asked with, by its id in the journal.
    pub list: Option<u32>,
    /// The completion it came from, by its id in the journal.
    pub completion: i64,
    /// The last completion that was asked for it; a later one than it came from
    /// when that brought nothing better.
    pub asked: i64,
    /// State, value, raw words and repairs.
    pub answer: Answer,
}

/// All facts about an entity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// At most one for each meaning and model.
    pub facts: Vec<Fact>,
}

impl Record {
    /// Whether a later fact puts something else in the place of a value, of
    /// whichever model.
    #[must_use]
    pub fn is_changed_by(&self, fact: &Fact) -> bool {
        fact.answer.state != State::Error
            && self.facts.iter().any(|kept| {
                kept.meaning == fact.meaning
                    && kept.answer.state.shows()
                    && (kept.answer.value != fact.answer.value || kept.list != fact.list)
            })
    }

    /// Takes a later fact in. What is no answer (an error, a refusal, words
    /// that cannot be read) never replaces an answer that still holds; the
    /// model's own "unknown" is one.
    pub fn merge(&mut self, fact: Fact) {
        let same = |f: &&mut Fact| f.meaning == fact.meaning && f.model == fact.model;
        let Some(kept) = self.facts.iter_mut().find(same) else {
            self.facts.push(fact);
            return;
        };
        let (old, new) = (kept.answer.state, fact.answer.state);
        let answers = |state: State| state.shows() || state == State::Unknown;
        let worse = answers(old) && !answers(new) && kept.list == fact.list;
        let error = new == State::Error && old != State::Error;
        if !worse && !error {
            *kept = fact;
        } else if !error {
            kept.asked = fact.completion;
        }
    }
}

/// The index: sled, where this process owns the cache; else what its owner says.
#[derive(Clone)]
pub struct Index {
    way: Way,
    path: PathBuf,
}

#[derive(Clone)]
enum Way {
    Own(Sled),
    Lent(Arc<Borrowed>),
}

/// The sled database.
#[derive(Debug, Clone)]
struct Sled {
    db: sled::Db,
    /// The journal it is made from.
    journal: String,
    /// Held for writing while the records are made again: who looks waits, and
    /// never finds less than there is.
    whole: Arc<RwLock<()>>,
    /// The journal as the writing thread has it; whoever has it changes the records.
    writing: Arc<Journal>,
    /// The journal, to see how far it is: nobody has this for long.
    looks: Arc<Journal>,
    /// What of the journal was found damaged.
    damage: Arc<Mutex<Damage>>,
}

/// Records, by entity or in its order, as they are kept.
pub type Found = Option<(Record, sled::IVec)>;

impl Index {
    /// The index that the owner of the cache has.
    pub(super) fn lent(path: PathBuf, owner: Arc<Borrowed>) -> Self {
        Self { way: Way::Lent(owner), path }
    }

    /// Opens the index and brings it up to date with the journal.
    ///
    /// # Errors
    /// [`FactsError`] when it cannot be made at all.
    pub(super) fn open(
        path: &Path,
        writing: Arc<Journal>,
        looks: Journal,
    ) -> Result<Self, FactsError> {
        let error = |error| FactsError::File { path: path.to_owned(), error };
        if path.exists() && !path.is_dir() {
            // Whoever put it there may want it.
            let what = "a file stands where the index, a directory, belongs; move it away";
            return Err(error(std::io::Error::other(what)));
        }
        let db = match open(path) {
            Ok(db) => db,
            // Damaged: the journal has everything, so begin again.
            Err(_) => {
                std::fs::remove_dir_all(path).map_err(error)?;
                open(path)
                    .map_err(|message| FactsError::Index { path: path.to_owned(), message })?
            }
        };
        let (journal, looks) = (looks.id()?, Arc::new(looks));
        let (whole, damage) = (Arc::default(), Arc::default());
        let sled = Sled { db, journal, whole, writing, looks, damage };
        let journal = Arc::clone(&sled.writing);
        let behind = sled.head().filter(|head| journal.head().is_ok_and(|last| *head <= last));
        let index = Self { way: Way::Own(sled), path: path.to_owned() };
        match behind {
            Some(head) => index.follow(&journal, head)?,
            None => {
                index.rebuild(&journal)?;
            }
        }
        Ok(index)
    }

    /// The facts about an entity; `None` when there are none.
    ///
    /// # Errors
    /// [`FactsError::Index`] when the record is damaged.
    pub fn get(&self, entity: &Entity) -> Result<Option<Record>, FactsError> {
        Ok(self.get_many(&[entity])?.pop().flatten().map(|(record, _)| record))
    }

    /// Whether the records are with another process, so that it is better to look
    /// up many at once.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        matches!(self.way, Way::Lent(_))
    }

    /// The facts about each of some entities, with the bytes that hold them, which
    /// change exactly when the facts do.
    ///
    /// # Errors
    /// [`FactsError::Index`] when a record is damaged.
    pub fn get_many(&self, entities: &[&Entity]) -> Result<Vec<Found>, FactsError> {
        let mut found = Vec::with_capacity(entities.len());
        let take = |bytes: sled::IVec| Ok((self.decode(&bytes)?, bytes));
        match &self.way {
            Way::Own(sled) => {
                let _whole = sled.whole.read().unwrap_or_else(PoisonError::into_inner);
                for entity in entities {
                    let bytes = sled.db.get(entity.as_str()).map_err(|e| self.error(&e))?;
                    found.push(bytes.map(take).transpose()?);
                }
            }
            Way::Lent(owner) => {
                while found.len() < entities.len() {
                    let left = &entities[found.len()..];
                    let left = left.iter().map(|e| e.as_str().to_owned()).collect();
                    let Say::Records(records) = owner.look(&Ask::Get(left))? else {
                        return Err(owner.misunderstood());
                    };
                    if records.is_empty() {
                        return Err(owner.misunderstood());
                    }
                    for bytes in records {
                        found.push(bytes.map(|b| take((&*b).into())).transpose()?);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Reads records that the owner has sent.
    pub(super) fn decode_all(
        &self,
        records: &[Option<Bytes>],
        into: &mut Vec<Option<Record>>,
    ) -> Result<(), FactsError> {
        if records.is_empty() {
            return Err(self.failed("no record came"));
        }
        for bytes in records {
            into.push(bytes.as_ref().map(|b| self.decode(b)).transpose()?);
        }
        Ok(())
    }

    /// Reads for a borrower, on a thread of a runtime: one that must wait for the
    /// records to be made again, or to follow the journal, holds up no others.
    pub(super) fn served<T>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, FactsError>,
    ) -> Result<T, FactsError> {
        let at_once = match &self.way {
            Way::Own(sled) => sled.whole.try_read().is_ok() && !self.is_behind()?,
            Way::Lent(_) => true,
        };
        if at_once {
            return read(self);
        }
        tokio::task::block_in_place(|| {
            self.follow_on()?;
            read(self)
        })
    }

    /// The bytes of records, for a borrower: as many of the first ones as fit
    /// into `full` bytes, and one at least.
    pub(super) fn bytes_of(
        &self,
        entities: &[String],
        full: usize,
    ) -> Result<Vec<Option<Bytes>>, FactsError> {
        let sled = self.sled()?;
        let _whole = sled.whole.read().unwrap_or_else(PoisonError::into_inner);
        let (mut found, mut size) = (Vec::new(), 0);
        for entity in entities {
            // No entity begins with a NUL, whatever a borrower says.
            let asked = Some(entity).filter(|e| !e.starts_with('\0'));
            let bytes = asked.map(|e| sled.db.get(e)).transpose().map_err(|e| self.error(&e))?;
            let bytes = bytes.flatten().map(|b| Bytes::copy_from_slice(&b));
            size += bytes.as_ref().map_or(1, Bytes::len);
            found.push(bytes);
            if size >= full {
                break;
            }
        }
        Ok(found)
    }

    /// Entities and the bytes of their records, in order, from after one on, up to
    /// about `full` bytes.
    pub(super) fn page(
        &self,
        after: &str,
        full: usize,
    ) -> Result<Vec<(String, Bytes)>, FactsError> {
        let sled = self.sled()?;
        let _whole = sled.whole.read().unwrap_or_else(PoisonError::into_inner);
        let (mut page, mut size) = (Vec::new(), 0);
        let from = (Bound::Excluded(after.as_bytes()), Bound::Unbounded);
        for entry in sled.db.range::<&[u8], _>(from) {
            let (key, value) = entry.map_err(|e| self.error(&e))?;
            if key.starts_with(b"\0") {
                continue;
            }
            let entity = String::from_utf8(key.to_vec())
                .map_err(|_| self.failed("a key that is no entity"))?;
            size += entity.len() + value.len();
            page.push((entity, Bytes::copy_from_slice(&value)));
            if size >= full {
                break;
            }
        }
        Ok(page)
    }

    /// Takes facts in, in the order of the journal, up to its line `head`.
    fn merge(
        &self,
        batch: impl IntoIterator<Item = (Entity, Vec<Fact>)>,
        head: i64,
    ) -> Result<(), FactsError> {
        let sled = self.sled()?;
        for (entity, facts) in batch {
            let known = sled.db.get(entity.as_str()).map_err(|e| self.error(&e))?;
            let known = known.map(|bytes| self.decode(&bytes)).transpose()?;
            let mut record = known.unwrap_or_default();
            facts.into_iter().for_each(|f| record.merge(f));
            self.insert(&entity, &record)?;
        }
        // Last, so that whatever a crash cuts off is followed again.
        self.set_head(head)
    }

    /// Takes whole records in, that hold the facts up to the journal's line `head`.
    ///
    /// # Errors
    /// [`FactsError::Index`].
    pub(super) fn put(
        &self,
        records: impl IntoIterator<Item = (Entity, Record)>,
        head: i64,
    ) -> Result<(), FactsError> {
        for (entity, record) in records {
            self.insert(&entity, &record)?;
        }
        self.set_head(head)
    }

    fn insert(&self, entity: &Entity, record: &Record) -> Result<(), FactsError> {
        let bytes = postcard::to_stdvec(record).map_err(|e| self.failed(&e.to_string()))?;
        self.sled()?.db.insert(entity.as_str(), bytes).map(|_| ()).map_err(|e| self.error(&e))
    }

    /// Every entity with its facts, in the order of the entities.
    pub fn iter(&self) -> impl Iterator<Item = Result<(Entity, Record), FactsError>> + '_ {
        let mut page = Vec::<(String, Bytes)>::new().into_iter();
        let (mut after, mut over) = (String::new(), false);
        std::iter::from_fn(move || {
            loop {
                if let Some((entity, bytes)) = page.next() {
                    return Some(self.entry(&entity, &bytes));
                }
                if std::mem::replace(&mut over, true) {
                    return None;
                }
                match self.next_page(&after) {
                    Ok(next) => {
                        let last = next.last().map(|(entity, _)| entity.clone());
                        if let Some(last) = last {
                            (after, over) = (last, false);
                        }
                        page = next.into_iter();
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    pub(super) fn next_page(&self, after: &str) -> Result<Vec<(String, Bytes)>, FactsError> {
        match &self.way {
            Way::Own(_) => self.page(after, PAGE),
            Way::Lent(owner) => {
                match owner.look(&Ask::Page { after: after.to_owned(), full: PAGE })? {
                    Say::Page(page) => Ok(page),
                    _ => Err(owner.misunderstood()),
                }
            }
        }
    }

    fn entry(&self, entity: &str, bytes: &[u8]) -> Result<(Entity, Record), FactsError> {
        let entity = Entity::parse(entity).map_err(|_| self.failed("a key that is no entity"))?;
        Ok((entity, self.decode(bytes)?))
    }

    /// Makes every record again from the journal; returns how many. Who looks
    /// meanwhile waits.
    ///
    /// # Errors
    /// [`FactsError::Damaged`] when the journal is no longer whole: what it shows
    /// may lack what came last. Others when it cannot be read, or nothing written.
    pub(super) fn rebuild(&self, journal: &Journal) -> Result<u64, FactsError> {
        let sled = self.sled()?;
        // Nobody changes the records meanwhile.
        let _connection = journal.connection();
        journal.check()?;
        {
            let _whole = sled.whole.write().unwrap_or_else(PoisonError::into_inner);
            sled.db.clear().map_err(|e| self.error(&e))?;
            self.follow(journal, 0)?;
        }
        Ok(self.iter().flatten().count() as u64)
    }

    /// Writes what is in memory to the disk.
    ///
    /// # Errors
    /// [`FactsError::Index`].
    pub fn flush(&self) -> Result<(), FactsError> {
        match &self.way {
            Way::Own(sled) => sled.db.flush().map(|_| ()).map_err(|e| self.error(&e)),
            Way::Lent(owner) => owner.look(&Ask::Flush).map(drop),
        }
    }

    fn set_head(&self, head: i64) -> Result<(), FactsError> {
        let sled = self.sled()?;
        let bytes = postcard::to_stdvec(&(VERSION, &sled.journal, head))
            .map_err(|e| self.failed(&e.to_string()))?;
        sled.db.insert(HEAD, bytes).map(|_| ()).map_err(|e| self.error(&e))
    }

    fn sled(&self) -> Result<&Sled, FactsError> {
        match &self.way {
            Way::Own(sled) => Ok(sled),
            Way::Lent(owner) => Err(owner.misunderstood()),
        }
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Record, FactsError> {
        postcard::from_bytes(bytes).map_err(|e| self.failed(&format!("a record is damaged: {e}")))
    }

    fn error(&self, error: &sled::Error) -> FactsError {
        self.failed(&error.to_string())
    }

    fn failed(&self, message: &str) -> FactsError {
        FactsError::Index { path: self.path.clone(), message: message.to_owned() }
    }
}

impl Sled {
    fn head(&self) -> Option<i64> {
        let bytes = self.db.get(HEAD).ok().flatten()?;
        let (version, journal, head): (i64, String, i64) = postcard::from_bytes(&bytes).ok()?;
        (version == VERSION && journal == self.journal).then_some(head)
    }
}

fn open(path: &Path) -> Result<sled::Db, String> {
    sled::Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(Some(1000))
        .open()
        .map_err(|e| e.to_string())
}
