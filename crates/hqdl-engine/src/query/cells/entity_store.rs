//! Entities of an expansion that a query has encountered. A query may encounter millions, so the
//! store keeps only the canonical bytes of their values in one buffer, and builds rows from them.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::HashMap;
use foldhash::fast::FixedState;

use crate::query::cells::canonical_bytes::decode_values;
use hqdl_spec::Expansion;
use hqdl_values::Row;
use hqdl_values::key::Entity;

/// Entities in the order in which the query encounters them.
pub struct EntityStore {
    expansion: Arc<Expansion>,
    /// Canonical bytes of all spellings. Several spellings can denote one entity (`1` and `1.0`).
    bytes: Vec<u8>,
    /// End offset of each spelling in `bytes`, and the spelling's entity.
    spellings: Vec<(u64, u32)>,
    /// First spelling of each entity.
    first_spellings: Vec<u32>,
    by_bytes: NumberIndex,
    by_entity: NumberIndex,
    /// Rows and entities that are stored instead of being rebuilt from the canonical bytes.
    explicit: HashMap<u32, (Row, Entity)>,
    /// The most recently added entity, because it is usually looked up next.
    latest: Option<(usize, Entity)>,
}

impl EntityStore {
    /// Returns a store without entities.
    pub fn new(expansion: Arc<Expansion>) -> Self {
        Self {
            expansion,
            bytes: Vec::new(),
            spellings: Vec::new(),
            first_spellings: Vec::new(),
            by_bytes: NumberIndex::default(),
            by_entity: NumberIndex::default(),
            explicit: HashMap::default(),
            latest: None,
        }
    }

    /// Returns the number of entities.
    pub fn len(&self) -> usize {
        self.first_spellings.len()
    }

    /// Returns the index of the entity that has a spelling with these bytes.
    pub fn find(&self, canonical_bytes: &[u8]) -> Option<usize> {
        let is_same = |spelling: u32| self.spelling(spelling) == canonical_bytes;
        let spelling = self.by_bytes.find(short_hash(canonical_bytes), is_same)?;
        Some(self.spellings[spelling as usize].1 as usize)
    }

    /// Adds the entity whose key consists of the values in these bytes, and returns its index.
    /// Returns `None` if a value cannot be shown to the model.
    pub fn add_values(&mut self, canonical_bytes: &[u8]) -> Option<usize> {
        let row = Row { key: decode_values(canonical_bytes)?, context: Vec::new() };
        // Store a row that may contain media, so that a medium's digest is computed only once.
        let is_explicit = self.expansion.has_media();
        Some(self.add_entity(canonical_bytes, row, is_explicit))
    }

    /// Adds an entity with its row and returns its index.
    pub fn add_row(&mut self, canonical_bytes: &[u8], row: Row) -> usize {
        self.add_entity(canonical_bytes, row, true)
    }

    fn add_entity(&mut self, canonical_bytes: &[u8], row: Row, is_explicit: bool) -> usize {
        let entity = self.expansion.build_entity(&row.key);
        let hash = short_hash(entity.as_str().as_bytes());
        let known = self.by_entity.find(hash, |n| self.entity(n as usize) == entity);
        let n = known.unwrap_or_else(|| {
            let n = self.first_spellings.len() as u32;
            self.first_spellings.push(self.spellings.len() as u32);
            self.by_entity.insert(hash, n);
            if is_explicit {
                self.explicit.insert(n, (row, entity.clone()));
            }
            n
        });
        self.by_bytes.insert(short_hash(canonical_bytes), self.spellings.len() as u32);
        self.bytes.extend_from_slice(canonical_bytes);
        self.spellings.push((self.bytes.len() as u64, n));
        self.latest = Some((n as usize, entity));
        n as usize
    }

    fn spelling(&self, spelling: u32) -> &[u8] {
        let at = spelling as usize;
        let begin = at.checked_sub(1).map_or(0, |before| self.spellings[before].0);
        &self.bytes[begin as usize..self.spellings[at].0 as usize]
    }

    /// Returns the row of an entity.
    pub fn row(&self, n: usize) -> Row {
        match self.explicit.get(&(n as u32)) {
            Some((row, _)) => row.clone(),
            // Every entity that is not explicit was built from decodable bytes.
            None => {
                let key = decode_values(self.spelling(self.first_spellings[n]));
                Row { key: key.unwrap_or_default(), context: Vec::new() }
            }
        }
    }

    /// Returns the entity with this index.
    pub fn entity(&self, n: usize) -> Entity {
        if let Some((latest, entity)) = &self.latest
            && *latest == n
        {
            return entity.clone();
        }
        match self.explicit.get(&(n as u32)) {
            Some((_, entity)) => entity.clone(),
            None => self.expansion.build_entity(&self.row(n).key),
        }
    }
}

/// Index from short hashes to the numbers of spellings or entities, with linear probing.
#[derive(Default)]
struct NumberIndex(HashMap<u32, u32>);

impl NumberIndex {
    fn find(&self, hash: u32, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        let mut place = hash;
        while let Some(number) = self.0.get(&place) {
            if is_same(*number) {
                return Some(*number);
            }
            place = place.wrapping_add(1);
        }
        None
    }

    fn insert(&mut self, hash: u32, number: u32) {
        let mut place = hash;
        while self.0.contains_key(&place) {
            place = place.wrapping_add(1);
        }
        self.0.insert(place, number);
    }
}

fn short_hash(bytes: &[u8]) -> u32 {
    FixedState::with_seed(11).hash_one(bytes) as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rusqlite::types::ValueRef;

    use super::{EntityStore, NumberIndex};
    use crate::query::cells::canonical_bytes::write_canonical_bytes;
    use hqdl_spec::Expansion;
    use hqdl_values::Row;
    use hqdl_values::value::Value;

    fn encode_values(values: &[ValueRef<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_canonical_bytes(values, &mut bytes);
        bytes
    }

    fn create_store(key: &[&str]) -> EntityStore {
        let key = key.iter().map(|name| (*name).to_owned()).collect();
        EntityStore::new(Arc::new(Expansion::new_ad_hoc("values", key)))
    }

    #[test]
    fn spellings_of_an_entity_share_its_number() {
        let mut entities = create_store(&["value"]);
        let spellings = [
            ValueRef::Integer(1),
            ValueRef::Real(1.0),
            ValueRef::Text(b"1"),
            ValueRef::Text(b" 1 "),
        ];
        let other = entities.add_values(&encode_values(&[ValueRef::Text(b"two")])).unwrap();
        for spelling in spellings {
            let spelling = encode_values(&[spelling]);
            assert_eq!(entities.find(&spelling), None);
            assert_eq!(entities.add_values(&spelling), Some(1));
            assert_eq!(entities.find(&spelling), Some(1));
        }
        assert_eq!((other, entities.len()), (0, 2));
        // The row has the first spelling.
        assert_eq!(entities.row(1).key, [Value::Integer(1)]);
        assert_eq!(entities.entity(1), entities.expansion.build_entity(&[Value::Integer(1)]));
        assert_eq!(entities.entity(0), entities.expansion.build_entity(&entities.row(0).key));
    }

    #[test]
    fn row_with_additional_values_is_stored() {
        let mut entities = create_store(&["rows"]);
        let row = Row {
            key: vec![Value::Text("digest".to_owned())],
            context: vec![Value::Text("[[1]]".to_owned())],
        };
        let n = entities.add_row(b"any bytes", row.clone());
        entities.add_row(b"other bytes", Row { key: Vec::new(), context: Vec::new() });
        assert_eq!((entities.find(b"any bytes"), entities.row(n)), (Some(n), row));
    }

    #[test]
    fn numbers_with_equal_hashes_are_distinguished() {
        let mut index = NumberIndex::default();
        for number in [3, 4, 5] {
            index.insert(u32::MAX, number);
        }
        for number in [3, 4, 5] {
            assert_eq!(index.find(u32::MAX, |n| n == number), Some(number));
        }
        assert_eq!(index.find(u32::MAX, |n| n == 6), None);
    }
}
