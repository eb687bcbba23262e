//! What of the facts has changed since a table was published from them.

use std::collections::HashSet;

use rusqlite::params;
use serde_json::Value as Json;

use super::{FactsError, Journal};
use crate::key::Entity;

impl Journal {
    /// Which journal this is, and its last line.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn place(&self) -> Result<(String, i64), FactsError> {
        Ok((self.id()?, self.head()?))
    }

    /// The last line that put something else in the place of a value of a
    /// meaning; 0 when there is none.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn changed(&self, meaning: u32) -> Result<i64, FactsError> {
        let read = || {
            self.connection()
                .prepare_cached("SELECT changed FROM meaning WHERE id = ?1")?
                .query_row([meaning], |r| r.get(0))
        };
        read().map_err(|e| self.error(&e))
    }

    /// The entities of which something of these meanings was answered after a line.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn answered_since(
        &self,
        line: i64,
        meanings: &[u32],
    ) -> Result<HashSet<Entity>, FactsError> {
        self.run(|c| {
            let mut found = HashSet::new();
            let mut lines = c.prepare("SELECT entity, cells FROM answer WHERE id > ?1")?;
            let mut rows = lines.query([line])?;
            while let Some(row) = rows.next()? {
                let cells: Vec<Json> =
                    serde_json::from_str(row.get_ref(1)?.as_str()?).unwrap_or_default();
                let of = |cell: &Json| cell.get(0)?.as_u64();
                let is_one = |of: u64| meanings.iter().any(|m| u64::from(*m) == of);
                if cells.iter().any(|cell| of(cell).is_none_or(is_one))
                    && let Ok(entity) = Entity::parse(row.get_ref(0)?.as_str()?)
                {
                    found.insert(entity);
                }
            }
            Ok(found)
        })
    }

    /// Notes that a line put something else in the place of a value.
    pub(super) fn note_changed(&self, meaning: u32, line: i64) -> rusqlite::Result<()> {
        self.connection()
            .prepare_cached("UPDATE meaning SET changed = max(changed, ?2) WHERE id = ?1")?
            .execute(params![meaning, line])
            .map(|_| ())
    }
}
