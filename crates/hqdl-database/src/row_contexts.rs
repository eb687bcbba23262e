//! The contexts of an expansion's rows. Queries use them to find the facts that a run has stored,
//! and to show the model the same rows.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use super::keys::{KeyRow, Keys, hash_entity, read_context};
use super::{Database, StoreError};
use hqdl_spec::Expansion;
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Returns the entities under which the facts about some entities are stored. An entity that no row
/// has, or that has no context, is missing in the result. Reads only the contexts of these entities.
/// A server may spend `timeout` on each of its statements.
///
/// # Errors
/// Returns [`StoreError`] if a source cannot be read.
pub fn find_fact_entities(
    db: &Database,
    expansion: &Expansion,
    entities: impl IntoIterator<Item = Entity>,
    timeout: Duration,
) -> Result<HashMap<Entity, Entity>, StoreError> {
    let mut found = HashMap::new();
    if !expansion.has_row_context() {
        return Ok(found);
    }
    Keys::collect_entities(db, expansion, entities.into_iter().collect(), timeout)?
        .for_each(&mut |key: &KeyRow| {
            found.insert(key.entity.clone(), key.fact_entity().clone());
            Ok::<_, rusqlite::Error>(())
        })
        .map_err(|e| db.to_store_error(&e))?;
    Ok(found)
}

/// Contexts of an expansion's rows, by key. The contexts stay in a temporary table.
pub struct RowContexts {
    db: Database,
    table: String,
    part_count: usize,
    /// For each entity, the digest of its context, and the position of the row that contains it.
    rows: HashMap<u128, (u128, i64)>,
    context_count: usize,
}

impl RowContexts {
    /// Reads the contexts of an expansion's rows; `None` if the expansion has no context.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database or a source cannot be read.
    pub fn collect(path: &Path, expansion: &Expansion) -> Result<Option<Self>, StoreError> {
        if !expansion.has_row_context() {
            return Ok(None);
        }
        let db = Database::open(path)?;
        let mut rows = HashMap::new();
        let keys = Keys::collect(&db, expansion, None)?;
        keys.for_each(&mut |key: &KeyRow| {
            if key.is_first_spelling {
                let digest = expansion.compute_context_digest(&key.row.context);
                rows.insert(hash_entity(&key.entity), (digest, key.context_position));
            }
            Ok::<_, rusqlite::Error>(())
        })
        .map_err(|e| db.to_store_error(&e))?;
        let (table, part_count, context_count) = (keys.table, keys.part_count, keys.context_count);
        Ok(Some(Self { db, table, part_count, rows, context_count }))
    }

    /// Returns the entity under which the facts about an entity are stored. If no row has its key,
    /// this is the entity itself.
    #[must_use]
    pub fn build_fact_entity(&self, entity: &Entity) -> Entity {
        match self.rows.get(&hash_entity(entity)) {
            Some((digest, _)) => entity.with_context(*digest),
            None => entity.clone(),
        }
    }

    /// Reads the context of an entity; empty if no row has its key, or if the row cannot be read.
    #[must_use]
    pub fn read_context(&self, entity: &Entity) -> Vec<Value> {
        let Some((_, position)) = self.rows.get(&hash_entity(entity)) else { return Vec::new() };
        let select = format!("SELECT * FROM temp.{} WHERE rowid = ?1", self.table);
        let read = |row: &rusqlite::Row<'_>| {
            Ok(read_context(row, 1 + self.part_count, self.context_count))
        };
        self.db.connection().query_row(&select, [position], read).unwrap_or_default()
    }
}
