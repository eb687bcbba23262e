//! Turns: what one run at a time may do, such as to publish to a database. They
//! are claims with a name ([`super::claims`]), so the second waits for the first,
//! in whichever process that is.

use super::claims::Thing;
use super::wire::{Ask, Say};
use super::{Facts, FactsError, Hold};

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
        Ok((granted == [true]).then_some(Turn { facts: self, things }))
    }

    /// The same, waiting for it on this thread.
    ///
    /// # Errors
    /// [`FactsError`] when the owner of the cache is gone.
    pub fn turn(&self, name: &str) -> Result<Turn<'_>, FactsError> {
        loop {
            if let Some(turn) = self.try_turn(name)? {
                return Ok(turn);
            }
            let thing = Thing::Name(name.to_owned());
            match &self.hold {
                Hold::Owned(owned) => drop(owned.claims.wait(&thing).blocking_recv()),
                Hold::Borrowed(owner) => drop(owner.ask_here(&Ask::Wait(thing))?),
            }
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
