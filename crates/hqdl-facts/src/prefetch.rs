//! Prefetching of records from a remote store. After enough single lookups, the neighbouring
//! records are read in pages, so that later lookups need no round trip.

use std::collections::HashMap;

use crate::record::{Record, RecordBytes};
use crate::{Facts, FactsError};
use hqdl_values::key::{Entity, KeyColumns};

/// Number of single lookups before the first prefetch.
const FIRST: u64 = 32;
/// Number of prefetched records per lookup so far, so that unused records stay in proportion to the
/// used ones.
const EACH: u64 = 16;
/// Size in bytes of the prefetched records after which prefetching stops.
const MOST: usize = 64 << 20;

/// Lookups of entities that share the columns of their key.
#[derive(Debug)]
pub struct Prefetch {
    /// Prefix that all of their texts share.
    prefix: String,
    looked: u64,
    read: u64,
    bytes: usize,
    /// All entities up to this one are prefetched.
    up_to: String,
    /// Whether the last entity has been reached.
    all: bool,
    at_hand: HashMap<String, RecordBytes>,
}

impl Prefetch {
    /// Creates an empty prefetch for entities with this key.
    #[must_use]
    pub fn new(key: &KeyColumns) -> Self {
        let prefix = key.entity_prefix();
        let up_to = prefix.clone();
        let at_hand = HashMap::new();
        Self { prefix, looked: 0, read: 0, bytes: 0, up_to, all: false, at_hand }
    }

    /// Returns the facts about an entity; `None` if there are none.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be read.
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
