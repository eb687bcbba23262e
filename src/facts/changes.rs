//! What of the facts has changed since a table was published from them.

use rusqlite::params;

use super::{FactsError, Journal};

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

    /// Notes that a line put something else in the place of a value.
    pub(super) fn note_changed(&self, meaning: u32, line: i64) -> rusqlite::Result<()> {
        self.connection()
            .prepare_cached("UPDATE meaning SET changed = max(changed, ?2) WHERE id = ?1")?
            .execute(params![meaning, line])
            .map(|_| ())
    }
}
