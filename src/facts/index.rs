//! The index: the facts of an entity, found by the entity. One sled record an
//! entity; every record can be made again from the journal.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::FactsError;
use super::journal::Journal;
use crate::cell::{Answer, State};
use crate::key::Entity;

/// Bytes that sled may keep in memory. Past this it reads the disk.
const CACHE_BYTES: u64 = 48 << 20;
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
    /// that cannot be read) never replaces a value that still holds; the
    /// model's own "unknown" does.
    pub fn merge(&mut self, fact: Fact) {
        let same = |f: &&mut Fact| f.meaning == fact.meaning && f.model == fact.model;
        let Some(kept) = self.facts.iter_mut().find(same) else {
            self.facts.push(fact);
            return;
        };
        let (old, new) = (kept.answer.state, fact.answer.state);
        let no_answer = !new.shows() && new != State::Unknown;
        let worse = old.shows() && no_answer && kept.list == fact.list;
        let error = new == State::Error && old != State::Error;
        if !worse && !error {
            *kept = fact;
        } else if !error {
            kept.asked = fact.completion;
        }
    }
}

/// The sled database.
#[derive(Debug, Clone)]
pub struct Index {
    db: sled::Db,
    path: PathBuf,
    /// The journal it is made from.
    journal: String,
}

impl Index {
    /// Opens the index and brings it up to date with the journal.
    ///
    /// # Errors
    /// [`FactsError`] when it cannot be made at all.
    pub fn open(path: &Path, journal: &Journal) -> Result<Self, FactsError> {
        let index = match open(path) {
            Ok(db) => Self { db, path: path.to_owned(), journal: journal.id()? },
            // Damaged: the journal has everything, so begin again.
            Err(_) => {
                std::fs::remove_dir_all(path)
                    .map_err(|error| FactsError::File { path: path.to_owned(), error })?;
                let db = open(path)
                    .map_err(|message| FactsError::Index { path: path.to_owned(), message })?;
                Self { db, path: path.to_owned(), journal: journal.id()? }
            }
        };
        let behind = index.head().filter(|head| journal.head().is_ok_and(|last| *head <= last));
        match behind {
            Some(head) => index.follow(journal, head)?,
            None => {
                index.rebuild(journal)?;
            }
        }
        Ok(index)
    }

    /// The facts about an entity; `None` when there are none.
    ///
    /// # Errors
    /// [`FactsError::Index`] when the record is damaged.
    pub fn get(&self, entity: &Entity) -> Result<Option<Record>, FactsError> {
        Ok(self.get_raw(entity)?.map(|(record, _)| record))
    }

    /// The facts about an entity with the bytes that hold them, which change
    /// exactly when the facts do.
    ///
    /// # Errors
    /// [`FactsError::Index`] when the record is damaged.
    pub fn get_raw(&self, entity: &Entity) -> Result<Option<(Record, sled::IVec)>, FactsError> {
        let Some(bytes) = self.db.get(entity.as_str()).map_err(|e| self.error(&e))? else {
            return Ok(None);
        };
        Ok(Some((self.decode(&bytes)?, bytes)))
    }

    /// Takes facts in, in the order of the journal, up to its line `head`.
    ///
    /// # Errors
    /// [`FactsError::Index`].
    pub fn merge(
        &self,
        batch: impl IntoIterator<Item = (Entity, Vec<Fact>)>,
        head: i64,
    ) -> Result<(), FactsError> {
        for (entity, facts) in batch {
            let mut record = self.get(&entity)?.unwrap_or_default();
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
        self.db.insert(entity.as_str(), bytes).map(|_| ()).map_err(|e| self.error(&e))
    }

    /// Every entity with its facts, in the order of the entities.
    pub fn iter(&self) -> impl Iterator<Item = Result<(Entity, Record), FactsError>> + '_ {
        self.db.iter().filter_map(|entry| {
            let (key, value) = match entry {
                Ok(entry) => entry,
                Err(error) => return Some(Err(self.error(&error))),
            };
            if key.starts_with(b"\0") {
                return None;
            }
            let entity = std::str::from_utf8(&key).ok().and_then(|text| Entity::parse(text).ok());
            Some(match entity {
                Some(entity) => self.decode(&value).map(|record| (entity, record)),
                None => Err(self.failed("a key that is no entity")),
            })
        })
    }

    /// Makes every record again from the journal; returns how many.
    ///
    /// # Errors
    /// [`FactsError`].
    pub fn rebuild(&self, journal: &Journal) -> Result<u64, FactsError> {
        self.db.clear().map_err(|e| self.error(&e))?;
        self.follow(journal, 0)?;
        Ok(self.iter().flatten().count() as u64)
    }

    /// Writes what is in memory to the disk.
    ///
    /// # Errors
    /// [`FactsError::Index`].
    pub fn flush(&self) -> Result<(), FactsError> {
        self.db.flush().map(|_| ()).map_err(|e| self.error(&e))
    }

    fn follow(&self, journal: &Journal, head: i64) -> Result<(), FactsError> {
        let mut last = head;
        let mut batch = Vec::new();
        journal.after(head, &mut |line, entity, facts| {
            last = line;
            batch.push((entity, facts));
            if batch.len() >= 1000 {
                self.merge(std::mem::take(&mut batch), last)?;
            }
            Ok(())
        })?;
        self.merge(batch, last)
    }

    fn head(&self) -> Option<i64> {
        let bytes = self.db.get(HEAD).ok().flatten()?;
        let (version, journal, head): (i64, String, i64) = postcard::from_bytes(&bytes).ok()?;
        (version == VERSION && journal == self.journal).then_some(head)
    }

    fn set_head(&self, head: i64) -> Result<(), FactsError> {
        let bytes = postcard::to_stdvec(&(VERSION, &self.journal, head))
            .map_err(|e| self.failed(&e.to_string()))?;
        self.db.insert(HEAD, bytes).map(|_| ()).map_err(|e| self.error(&e))
    }

    fn decode(&self, bytes: &[u8]) -> Result<Record, FactsError> {
        postcard::from_bytes(bytes).map_err(|e| self.failed(&format!("a record is damaged: {e}")))
    }

    fn error(&self, error: &sled::Error) -> FactsError {
        self.failed(&error.to_string())
    }

    fn failed(&self, message: &str) -> FactsError {
        FactsError::Index { path: self.path.clone(), message: message.to_owned() }
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
