//! Following the journal: where the index is behind it. The thread that writes
//! brings both forward; but a borrower whose owner has ended writes to the journal
//! alone, and what it was answered is not to be asked again.

use std::sync::PoisonError;
use std::time::Duration;

use tracing::warn;

use crate::FactsError;
use crate::checksum::Damage;
use crate::history::{Answers, Integrity};
use crate::index::Index;
use crate::journal::Journal;

/// How often it is looked whether the journal can be followed.
const TRY_EVERY: Duration = Duration::from_millis(1);

impl Index {
    /// Whether the journal has more than this has followed.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub(crate) fn is_behind(&self) -> Result<bool, FactsError> {
        Ok(self.is_before(self.last()?))
    }

    /// Follows the journal to where it is now. It waits on this thread for whoever
    /// changes the index meanwhile, unless that one gets there first.
    ///
    /// # Errors
    /// [`FactsError`].
    pub(crate) fn follow_on(&self) -> Result<(), FactsError> {
        let last = self.last()?;
        while self.is_before(last) {
            match self.writing.try_connection() {
                Some(_connection) => return self.catch_up(&self.writing),
                None => std::thread::sleep(TRY_EVERY),
            }
        }
        Ok(())
    }

    /// Takes in what the journal has beyond what this has followed: a borrower
    /// whose owner was gone has written it there.
    pub(crate) fn catch_up(&self, journal: &Journal) -> Result<(), FactsError> {
        let last = journal.head()?;
        match self.head() {
            Some(head) if head < last => self.follow(journal, head),
            _ => Ok(()),
        }
    }

    /// Takes in what came after a line of the journal. Where something of that is
    /// damaged, what was known before it is in doubt, and all is made again.
    pub(super) fn follow(&self, journal: &Journal, head: i64) -> Result<(), FactsError> {
        let damage = journal.damage(head)?;
        if head > 0 && !damage.is_none() {
            return self.rebuild(journal).map(drop);
        }
        let mut batch = Vec::new();
        let last = journal.answers_after(head, &damage, &mut |line, entity, facts| {
            batch.push((entity, facts));
            if batch.len() >= 1000 {
                self.merge(std::mem::take(&mut batch), line)?;
            }
            Ok(())
        })?;
        self.merge(batch, last)?;
        if let Some(remark) = damage.remark() {
            warn!(remark);
            *self.damage.lock().unwrap_or_else(PoisonError::into_inner) = damage;
        }
        Ok(())
    }

    /// What was found damaged when the records were last made, if this process did.
    #[must_use]
    pub(crate) fn damage(&self) -> Damage {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_before(&self, line: i64) -> bool {
        self.head().is_some_and(|head| head < line)
    }

    /// The last line of the journal.
    fn last(&self) -> Result<i64, FactsError> {
        self.looks.head()
    }
}
