//! Named locks: what one run at a time may do, such as to publish to a database.
//! They are claims with a name ([`super::in_flight`]), so the second waits for the first,
//! in whichever process that is.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::in_flight::ClaimKey;
use crate::{Facts, FactsError};
use hqdl_database::postgres::thread::wait_here;

/// How often a lock that somebody else has is tried, at first and at last.
const TRY_EVERY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];
/// How long one who is interrupted waits still: most locks are held shortly.
const MOMENT: Duration = Duration::from_secs(1);

/// A lock by name among all who share the facts; released when this is dropped.
pub struct NamedLock<'f> {
    facts: &'f Facts,
    keys: [ClaimKey; 1],
}

impl Facts {
    /// The lock of this name, unless somebody else has it.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub fn try_lock(&self, name: &str) -> Result<Option<NamedLock<'_>>, FactsError> {
        let keys = [ClaimKey::Name(name.to_owned())];
        let granted = wait_here(self.store.claim(&keys))?;
        // Made only when it is granted: what is dropped releases it.
        Ok((granted == [true]).then(|| NamedLock { facts: self, keys }))
    }

    /// The same, waiting for it on this thread, whatever becomes of who has it.
    /// `None` when `interrupt` becomes true, or is, and a moment more does not bring
    /// it.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub fn lock(
        &self,
        name: &str,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Option<NamedLock<'_>>, FactsError> {
        let [mut wait, longest] = TRY_EVERY;
        let mut interrupted = None;
        loop {
            if let Some(lock) = self.try_lock(name)? {
                return Ok(Some(lock));
            }
            if *interrupt.borrow() {
                let since: &mut Instant = interrupted.get_or_insert_with(Instant::now);
                if since.elapsed() >= MOMENT {
                    return Ok(None);
                }
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(longest);
        }
    }
}

impl Drop for NamedLock<'_> {
    fn drop(&mut self) {
        self.facts.release(&self.keys);
    }
}
