//! Updates the index from the journal. The commit thread writes both. But a client whose cache
//! owner has ended writes to the journal only, and its answers must not be asked for again.

use std::sync::PoisonError;
use std::time::Duration;

use tracing::warn;

use crate::FactsError;
use crate::checksum::Damage;
use crate::history::{Answers, Integrity};
use crate::index::Index;
use crate::journal::Journal;

/// How often a caller checks whether it can update the index.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

impl Index {
    /// Returns whether the journal has rows that the index lacks.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub(crate) fn is_behind(&self) -> Result<bool, FactsError> {
        Ok(self.is_before(self.last_row()?))
    }

    /// Updates the index to the journal's current end. Waits on this thread while another thread
    /// changes the index, unless that thread gets there first.
    ///
    /// # Errors
    /// [`FactsError`].
    pub(crate) fn wait_until_current(&self) -> Result<(), FactsError> {
        let last = self.last_row()?;
        while self.is_before(last) {
            match self.writer_journal.try_connection() {
                Some(_connection) => return self.catch_up(&self.writer_journal),
                None => std::thread::sleep(RETRY_PAUSE),
            }
        }
        Ok(())
    }

    /// Adds the journal rows that the index lacks: a client without a cache owner wrote them.
    pub(crate) fn catch_up(&self, journal: &Journal) -> Result<(), FactsError> {
        let last = journal.head()?;
        match self.head() {
            Some(head) if head < last => self.apply_rows_after(journal, head),
            _ => Ok(()),
        }
    }

    /// Adds the rows after a row of the journal. If one of them is damaged, earlier records may be
    /// outdated, and the whole index is rebuilt.
    pub(super) fn apply_rows_after(&self, journal: &Journal, head: i64) -> Result<(), FactsError> {
        let damage = journal.find_damage(head)?;
        if head > 0 && !damage.is_none() {
            return self.rebuild_records(journal).map(drop);
        }
        let mut batch = Vec::new();
        let last = journal.answers_after(head, &damage, &mut |fact_row, entity, facts| {
            batch.push((entity, facts));
            if batch.len() >= 1000 {
                self.merge_facts(std::mem::take(&mut batch), fact_row)?;
            }
            Ok(())
        })?;
        self.merge_facts(batch, last)?;
        if let Some(warning) = damage.warning() {
            warn!(warning);
            *self.damage.lock().unwrap_or_else(PoisonError::into_inner) = damage;
        }
        Ok(())
    }

    /// Returns the damage that this process found when it last built the records.
    #[must_use]
    pub(crate) fn damage(&self) -> Damage {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_before(&self, fact_row: i64) -> bool {
        self.head().is_some_and(|head| head < fact_row)
    }

    /// Returns the last row id of the journal.
    fn last_row(&self) -> Result<i64, FactsError> {
        self.reader_journal.head()
    }
}
