//! Following the journal: where the index is behind it. The thread that writes
//! brings both forward; but a borrower whose owner has ended writes to the journal
//! alone, and what it was answered is not to be asked again.

use std::sync::PoisonError;
use std::time::Duration;

use tracing::warn;

use super::{Index, Sled, Way};
use crate::facts::FactsError;
use crate::facts::checksum::Damage;
use crate::facts::history::Integrity;
use crate::facts::journal::Journal;

/// How often it is looked whether the journal can be followed.
const TRY_EVERY: Duration = Duration::from_millis(1);

impl Index {
    /// Whether the journal has more than this has followed.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub(in crate::facts) fn is_behind(&self) -> Result<bool, FactsError> {
        match &self.way {
            Way::Own(sled) => Ok(sled.is_before(sled.last()?)),
            // Its owner sees to it.
            Way::Lent(_) => Ok(false),
        }
    }

    /// Follows the journal to where it is now. It waits on this thread for whoever
    /// changes the index meanwhile, unless that one gets there first.
    ///
    /// # Errors
    /// [`FactsError`].
    pub(in crate::facts) fn follow_on(&self) -> Result<(), FactsError> {
        let Way::Own(sled) = &self.way else { return Ok(()) };
        let last = sled.last()?;
        while sled.is_before(last) {
            match sled.writing.try_connection() {
                Some(_connection) => return self.catch_up(&sled.writing),
                None => std::thread::sleep(TRY_EVERY),
            }
        }
        Ok(())
    }

    /// Takes in what the journal has beyond what this has followed: a borrower
    /// whose owner was gone has written it there.
    pub(in crate::facts) fn catch_up(&self, journal: &Journal) -> Result<(), FactsError> {
        let last = journal.head()?;
        match self.sled()?.head() {
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
        let last = journal.after(head, &damage, &mut |line, entity, facts| {
            batch.push((entity, facts));
            if batch.len() >= 1000 {
                self.merge(std::mem::take(&mut batch), line)?;
            }
            Ok(())
        })?;
        self.merge(batch, last)?;
        if let Some(remark) = damage.remark() {
            warn!(remark);
            *self.sled()?.damage.lock().unwrap_or_else(PoisonError::into_inner) = damage;
        }
        Ok(())
    }

    /// What was found damaged when the records were last made, if this process did.
    #[must_use]
    pub fn damage(&self) -> Damage {
        match &self.way {
            Way::Own(sled) => sled.damage.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Way::Lent(_) => Damage::default(),
        }
    }
}

impl Sled {
    fn is_before(&self, line: i64) -> bool {
        self.head().is_some_and(|head| head < line)
    }

    /// The last line of the journal.
    fn last(&self) -> Result<i64, FactsError> {
        self.looks.head()
    }
}
