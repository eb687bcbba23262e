//! The in-flight set: the claimed cells and names, so that no two runs do the same work. It is kept
//! in the memory of the process that owns the cache, for its own runs and for its clients.
//!
//! A run claims all cells of a request in one step before it sends the request, and never waits
//! while it holds a claim. It skips cells that others hold, and checks them again when they are
//! released. So claims cannot deadlock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use hqdl_values::key::Entity;

/// Key of a claim: a cell or a name that one session at a time may work on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ClaimKey {
    /// The right to ask for a cell.
    Cell {
        /// The entity of the cell.
        entity: Entity,
        /// The id of the column's identity in the journal.
        meaning: u32,
        /// The id of the model in the journal; 0 if an answer of any model counts.
        model: u32,
    },
    /// A named right, such as publishing to a database.
    Name(String),
}

/// All current claims.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    held: Mutex<HashMap<ClaimKey, HeldClaims>>,
}

#[derive(Debug)]
struct HeldClaims {
    /// The session that holds the claim.
    by: Arc<str>,
    /// Notified when the claim is released.
    waiting: Vec<oneshot::Sender<()>>,
}

impl InFlight {
    /// Claims the keys that no session holds. Returns for each key whether it was claimed.
    pub(super) fn claim(&self, by: &Arc<str>, things: &[ClaimKey]) -> Vec<bool> {
        let mut held = self.held();
        let take = |thing: &ClaimKey| {
            if held.contains_key(thing) {
                return false;
            }
            held.insert(thing.clone(), HeldClaims { by: Arc::clone(by), waiting: Vec::new() });
            true
        };
        things.iter().map(take).collect()
    }

    /// Releases those of the keys that a session holds.
    pub(super) fn release(&self, by: &str, things: &[ClaimKey]) {
        let mut held = self.held();
        for thing in things {
            if held.get(thing).is_some_and(|h| *h.by == *by)
                && let Some(gone) = held.remove(thing)
            {
                gone.tell();
            }
        }
    }

    /// Releases all claims of a session that has ended.
    pub(super) fn forget(&self, by: &str) {
        self.held().extract_if(|_, held| *held.by == *by).for_each(|(_, gone)| gone.tell());
    }

    /// Returns a receiver that completes, with a value or an error, when the key is released; at
    /// once if no session holds it.
    pub(super) fn wait(&self, thing: &ClaimKey) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        if let Some(held) = self.held().get_mut(thing) {
            held.waiting.retain(|w| !w.is_closed());
            held.waiting.push(tell);
        }
        told
    }

    fn held(&self) -> MutexGuard<'_, HashMap<ClaimKey, HeldClaims>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldClaims {
    fn tell(self) {
        for waiting in self.waiting {
            let _ = waiting.send(());
        }
    }
}
