//! Prefetching of records from a remote store. After enough single lookups, the neighbouring
//! records are read in pages, so that later lookups need no round trip.

use std::collections::HashMap;

use crate::record::{Record, RecordBytes};
use crate::{Facts, FactsError};
use hqdl_values::key::{Entity, KeyColumns};

/// Number of single lookups before the first prefetch.
const LOOKUPS_BEFORE_PREFETCH: u64 = 32;
/// Maximum number of prefetched records per lookup, so that few of them remain unused.
const RECORDS_PER_LOOKUP: u64 = 16;
/// Total size in bytes of prefetched records at which prefetching stops.
const MAX_BYTES: usize = 64 << 20;

/// Prefetches the records of entities with the same key columns.
#[derive(Debug)]
pub struct Prefetch {
    /// Prefix shared by the texts of all these entities.
    prefix: String,
    lookups: u64,
    prefetched: u64,
    bytes: usize,
    /// Last prefetched entity, in text order.
    up_to: String,
    /// Whether the last entity has been reached.
    is_complete: bool,
    records: HashMap<String, RecordBytes>,
}

impl Prefetch {
    /// Creates an empty prefetch for entities with these key columns.
    #[must_use]
    pub fn new(key: &KeyColumns) -> Self {
        let prefix = key.entity_prefix();
        let up_to = prefix.clone();
        let records = HashMap::new();
        Self { prefix, lookups: 0, prefetched: 0, bytes: 0, up_to, is_complete: false, records }
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
        if text.starts_with(&self.prefix) && (self.is_complete || text <= self.up_to.as_str()) {
            return self.records.get(text).map(|bytes| bytes.decode(facts.dir())).transpose();
        }
        self.lookups += 1;
        if self.lookups >= LOOKUPS_BEFORE_PREFETCH && self.lookups.is_power_of_two() {
            self.prefetch_pages(facts)?;
        }
        facts.get(entity)
    }

    fn prefetch_pages(&mut self, facts: &Facts) -> Result<(), FactsError> {
        while !self.is_complete
            && self.prefetched < RECORDS_PER_LOOKUP * self.lookups
            && self.bytes < MAX_BYTES
        {
            let page = facts.read_page(&self.up_to)?;
            let length = page.len();
            let entries =
                page.into_iter().take_while(|(entity, _)| entity.starts_with(&self.prefix));
            let before = self.prefetched;
            for (entity, bytes) in entries {
                self.prefetched += 1;
                self.bytes += entity.len() + bytes.len();
                self.up_to.clone_from(&entity);
                self.records.insert(entity, bytes);
            }
            self.is_complete = self.prefetched - before < length as u64 || length == 0;
        }
        Ok(())
    }
}
