//! Reading ahead: who looks up one entity after another, in whatever order, in a
//! store that is not in this process, soon has its neighbours at hand.

use std::collections::HashMap;

use crate::record::{Record, RecordBytes};
use crate::{Facts, FactsError};
use hqdl_values::key::{Entity, KeyColumns};

/// Look-ups one by one before anything is read ahead.
const FIRST: u64 = 32;
/// Records that are read ahead for each look-up so far: what is read in vain
/// stays in proportion.
const EACH: u64 = 16;
/// Bytes of records that are kept at hand.
const MOST: usize = 64 << 20;

/// Look-ups of entities that share the columns of their key.
#[derive(Debug)]
pub struct Prefetch {
    /// What all of their texts begin with.
    prefix: String,
    looked: u64,
    read: u64,
    bytes: usize,
    /// Everything up to this entity is at hand.
    up_to: String,
    /// And so is everything beyond.
    all: bool,
    at_hand: HashMap<String, RecordBytes>,
}

impl Prefetch {
    /// Nothing is at hand.
    #[must_use]
    pub fn new(key: &KeyColumns) -> Self {
        let prefix = key.entity_prefix();
        let up_to = prefix.clone();
        let at_hand = HashMap::new();
        Self { prefix, looked: 0, read: 0, bytes: 0, up_to, all: false, at_hand }
    }

    /// The facts about an entity; `None` when there are none.
    ///
    /// # Errors
    /// [`FactsError`] when they cannot be read.
    pub fn get(&mut self, facts: &Facts, entity: &Entity) -> Result<Option<Record>, FactsError> {
        if !facts.is_remote() {
            return facts.get(entity);
        }
        let text = entity.as_str();
        if text.starts_with(&self.prefix) && (self.all || text <= self.up_to.as_str()) {
            return self.at_hand.get(text).map(|bytes| bytes.decode(facts.dir())).transpose();
        }
        self.looked += 1;
        if self.looked >= FIRST && self.looked.is_power_of_two() {
            self.read_on(facts)?;
        }
        facts.get(entity)
    }

    fn read_on(&mut self, facts: &Facts) -> Result<(), FactsError> {
        while !self.all && self.read < EACH * self.looked && self.bytes < MOST {
            let page = facts.read_page(&self.up_to)?;
            let length = page.len();
            let ours = page.into_iter().take_while(|(entity, _)| entity.starts_with(&self.prefix));
            let before = self.read;
            for (entity, bytes) in ours {
                self.read += 1;
                self.bytes += entity.len() + bytes.len();
                self.up_to.clone_from(&entity);
                self.at_hand.insert(entity, bytes);
            }
            self.all = self.read - before < length as u64 || length == 0;
        }
        Ok(())
    }
}
