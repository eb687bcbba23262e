//! The in-flight set: what is being asked or done now, so that nobody else asks or does it
//! too. It lives in the memory of the process that owns the cache, for its own
//! runs and for those it lends the cache to.
//!
//! A run claims the cells of a request in one step, before it is sent, and never
//! waits while it holds any: what others hold it leaves out, and looks again when
//! that is released. So claims cannot lock each other out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use hqdl_values::key::Entity;

/// What only one may ask or do at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ClaimKey {
    /// To ask for a cell.
    Cell {
        /// Whom it is about.
        entity: Entity,
        /// The column's meaning, by its id in the journal.
        meaning: u32,
        /// The model, by its id in the journal; 0 where any model's word will do.
        model: u32,
    },
    /// Something with a name, such as to publish to a database.
    Name(String),
}

/// Everything that is claimed.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    held: Mutex<HashMap<ClaimKey, HeldClaims>>,
}

#[derive(Debug)]
struct HeldClaims {
    /// The session.
    by: Arc<str>,
    /// Told when it is released.
    waiting: Vec<oneshot::Sender<()>>,
}

impl InFlight {
    /// Claims what nobody holds; says for each whether it was.
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

    /// Lets go of what a session holds of these.
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

    /// Lets go of all that a session holds: it is over.
    pub(super) fn forget(&self, by: &str) {
        self.held().extract_if(|_, held| *held.by == *by).for_each(|(_, gone)| gone.tell());
    }

    /// Told, or dropped, when this is released; at once when nobody holds it.
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
