//! The facts about an entity, and their encoding.

use bytes::Bytes;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::FactsError;
use hqdl_values::cell::{Answer, State};
use hqdl_values::key::Entity;

/// A fact: an answer with its question and its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Id of the column's identity in the journal.
    #[serde(rename = "meaning")]
    pub identity_id: u32,
    /// Id of the model in the journal.
    pub model: u32,
    /// Id in the journal of the question's value list; `None` if it has none.
    pub list: Option<u32>,
    /// Id in the journal of the completion that contained the answer.
    pub completion: i64,
    /// Id of the last completion that asked for the cell. If a later answer was worse and did not
    /// replace this one, the id is later than `completion`.
    pub asked: i64,
    /// State, value, raw text and repairs.
    pub answer: Answer,
    /// Lowest log-probability among the tokens of the answer; `None` if the endpoint reported none.
    pub logprob: Option<f64>,
}

/// All facts about an entity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// At most one fact per column identity and model.
    pub facts: Vec<Fact>,
}

impl Record {
    /// Returns true if a later fact replaces a value, from any model, with a different one.
    #[must_use]
    pub fn is_changed_by(&self, fact: &Fact) -> bool {
        fact.answer.state != State::Error
            && self.facts.iter().any(|kept| {
                kept.identity_id == fact.identity_id
                    && kept.answer.state.has_value()
                    && (kept.answer.value != fact.answer.value || kept.list != fact.list)
            })
    }

    /// Adds the facts of a record up to the completion `until` for which this record has no later
    /// ones.
    pub(crate) fn add_earlier_facts(&mut self, earlier: Self, until: i64) {
        let own_count = self.facts.len();
        for fact in earlier.facts.into_iter().filter(|fact| fact.completion <= until) {
            let own = &self.facts[..own_count];
            if !own.iter().any(|f| f.identity_id == fact.identity_id && f.model == fact.model) {
                self.facts.push(fact);
            }
        }
    }

    /// Merges a later fact into the record. A fact without an answer (an error, a refusal,
    /// unreadable text) never replaces an answer that still counts. A model's own "unknown" is an
    /// answer.
    pub fn merge(&mut self, fact: Fact) {
        let same = |f: &&mut Fact| f.identity_id == fact.identity_id && f.model == fact.model;
        let Some(kept) = self.facts.iter_mut().find(same) else {
            self.facts.push(fact);
            return;
        };
        let (old, new) = (kept.answer.state, fact.answer.state);
        let answers = |state: State| state.has_value() || state == State::Unknown;
        let worse = answers(old) && !answers(new) && kept.list == fact.list;
        let error = new == State::Error && old != State::Error;
        if !worse && !error {
            *kept = fact;
        } else if !error {
            kept.asked = fact.completion;
        }
    }
}

/// Decodes a record of a data directory's index.
fn decode_record(bytes: &[u8], dir: &Path) -> Result<Record, FactsError> {
    parse_record(bytes, &dir.join("index.sqlite"))
}

/// Decodes an entity with its record.
pub(super) fn decode_entry(
    entity: &str,
    bytes: &RecordBytes,
    dir: &Path,
) -> Result<(Entity, Record), FactsError> {
    let entity = Entity::parse(entity).map_err(|_| FactsError::Index {
        path: dir.join("index.sqlite"),
        message: "a key that is not an entity".to_owned(),
    })?;
    Ok((entity, bytes.decode(dir)?))
}

pub(crate) fn parse_record(bytes: &[u8], path: &Path) -> Result<Record, FactsError> {
    postcard::from_bytes(bytes).map_err(|e| FactsError::Index {
        path: path.to_owned(),
        message: format!("a record is damaged: {e}"),
    })
}

/// An encoded record, decoded on demand.
#[derive(Debug, Clone)]
pub struct RecordBytes(pub(super) Bytes);

impl RecordBytes {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// [`FactsError::Index`] if the record is damaged.
    pub fn decode(&self, dir: &Path) -> Result<Record, FactsError> {
        decode_record(&self.0, dir)
    }
}
