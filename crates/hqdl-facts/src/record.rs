//! The facts about an entity, and how they are written.

use bytes::Bytes;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::FactsError;
use hqdl_values::cell::{Answer, State};
use hqdl_values::key::Entity;

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

/// A record of the index of a data directory.
pub(super) fn decode(bytes: &[u8], dir: &Path) -> Result<Record, FactsError> {
    read(bytes, &dir.join("index.sled"))
}

/// An entity with its record.
pub(super) fn entry(
    entity: &str,
    bytes: &RecordBytes,
    dir: &Path,
) -> Result<(Entity, Record), FactsError> {
    let entity = Entity::parse(entity).map_err(|_| FactsError::Index {
        path: dir.join("index.sled"),
        message: "a key that is no entity".to_owned(),
    })?;
    Ok((entity, bytes.decode(dir)?))
}

pub(crate) fn read(bytes: &[u8], path: &Path) -> Result<Record, FactsError> {
    postcard::from_bytes(bytes).map_err(|e| FactsError::Index {
        path: path.to_owned(),
        message: format!("a record is damaged: {e}"),
    })
}

/// A record as it is kept: read when it is needed.
#[derive(Debug, Clone)]
pub struct RecordBytes(pub(super) Bytes);

impl RecordBytes {
    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The record.
    ///
    /// # Errors
    /// [`FactsError::Index`] when it is damaged.
    pub fn decode(&self, dir: &Path) -> Result<Record, FactsError> {
        decode(&self.0, dir)
    }
}
