//! Named locks, such as the right to publish to a database. A lock is a claim on a name
//! ([`super::ClaimKey`]), so a second run waits for the first one even if the two are in different
//! processes.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::claim_key::ClaimKey;
use crate::{Facts, FactsError};
use hqdl_database::postgres::thread::block_on_current_thread;

/// Shortest and longest pause between two attempts to take a lock that another session holds.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];
/// How long an interrupted caller keeps waiting; most locks are held only briefly.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// A named lock, which excludes all other users of the facts. Dropping it releases the lock.
pub struct NamedLock<'f> {
    facts: &'f Facts,
    keys: [ClaimKey; 1],
}

impl Facts {
    /// Takes the lock with this name. Returns `None` if another session holds it.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be written.
    pub fn try_lock(&self, name: &str) -> Result<Option<NamedLock<'_>>, FactsError> {
        let keys = [ClaimKey::Name(name.to_owned())];
        let granted = block_on_current_thread(self.store.claim_keys(&keys))?;
        // Create the lock only if it is granted, because dropping a lock releases its claim.
        Ok((granted == [true]).then(|| NamedLock { facts: self, keys }))
    }

    /// Like [`Facts::try_lock`], but waits on this thread until the lock is free. Returns `None` if
    /// `interrupt` becomes true and the lock is not free within a short grace period.
    ///
    /// # Errors
    /// [`FactsError`] if the store cannot be written.
    pub fn lock(
        &self,
        name: &str,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Option<NamedLock<'_>>, FactsError> {
        let [mut wait, longest] = RETRY_PAUSES;
        let mut interrupted = None;
        loop {
            if let Some(lock) = self.try_lock(name)? {
                return Ok(Some(lock));
            }
            if *interrupt.borrow() {
                let since: &mut Instant = interrupted.get_or_insert_with(Instant::now);
                if since.elapsed() >= GRACE_PERIOD {
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
        self.facts.release_keys(&self.keys);
    }
}
