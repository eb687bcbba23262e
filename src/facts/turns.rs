//! Turns: what one run at a time may do, such as to publish to a database. They
//! are claims with a name ([`super::claims`]), so the second waits for the first,
//! in whichever process that is.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::claims::Thing;
use super::wire::{Ask, Say};
use super::{Facts, FactsError, Hold};

/// How often a turn that somebody else has is tried, at first and at last.
const TRY_EVERY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];
/// How long one who is interrupted waits still: most turns are short.
const MOMENT: Duration = Duration::from_secs(1);

/// The turn to do something; it ends when this is dropped.
pub struct Turn<'f> {
    facts: &'f Facts,
    things: [Thing; 1],
}

impl Facts {
    /// The turn to do what this name is of, unless somebody else has it.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub fn try_turn(&self, name: &str) -> Result<Option<Turn<'_>>, FactsError> {
        let things = [Thing::Name(name.to_owned())];
        let granted = match &self.hold {
            Hold::Owned(owned) => owned.claims.claim(&self.session.id, &things),
            Hold::Borrowed(owner) => match owner.ask_here(&Ask::Claim(things.to_vec()))? {
                Say::Claimed(granted) => granted,
                _ => return Err(owner.misunderstood()),
            },
        };
        // Made only when it is granted: what is dropped ends the turn of this session.
        Ok((granted == [true]).then(|| Turn { facts: self, things }))
    }

    /// The same, waiting for it on this thread, whatever becomes of who has it.
    /// `None` when `interrupt` becomes true, or is, and a moment more does not bring
    /// it.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub fn turn(
        &self,
        name: &str,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Option<Turn<'_>>, FactsError> {
        let [mut wait, longest] = TRY_EVERY;
        let mut interrupted = None;
        loop {
            if let Some(turn) = self.try_turn(name)? {
                return Ok(Some(turn));
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

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match &self.facts.hold {
            Hold::Owned(owned) => owned.claims.release(&self.facts.session.id, &self.things),
            Hold::Borrowed(owner) => owner.tell(&Ask::Release(self.things.to_vec())),
        }
    }
}
