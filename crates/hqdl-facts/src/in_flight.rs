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
        identity_id: u32,
        /// The id of the model in the journal; 0 if an answer of any model counts.
        model: u32,
    },
    /// A named right, such as publishing to a database.
    Name(String),
}

/// All current claims.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    claims: Mutex<HashMap<ClaimKey, ClaimState>>,
}

#[derive(Debug)]
struct ClaimState {
    /// The session that holds the claim.
    session: Arc<str>,
    /// Notified when the claim is released.
    waiters: Vec<oneshot::Sender<()>>,
}

impl InFlight {
    /// Claims the keys that no session holds. Returns for each key whether it was claimed.
    pub(super) fn claim(&self, session: &Arc<str>, keys: &[ClaimKey]) -> Vec<bool> {
        let mut claims = self.lock_claims();
        let try_claim = |key: &ClaimKey| {
            if claims.contains_key(key) {
                return false;
            }
            claims.insert(
                key.clone(),
                ClaimState { session: Arc::clone(session), waiters: Vec::new() },
            );
            true
        };
        keys.iter().map(try_claim).collect()
    }

    /// Releases those of the keys that a session holds.
    pub(super) fn release(&self, session: &str, keys: &[ClaimKey]) {
        let mut claims = self.lock_claims();
        for key in keys {
            if claims.get(key).is_some_and(|h| *h.session == *session)
                && let Some(claim) = claims.remove(key)
            {
                claim.notify_waiters();
            }
        }
    }

    /// Releases all claims of a session that has ended.
    pub(super) fn release_session(&self, session: &str) {
        self.lock_claims()
            .extract_if(|_, held| *held.session == *session)
            .for_each(|(_, claim)| claim.notify_waiters());
    }

    /// Returns a receiver that completes, with a value or an error, when the key is released; at
    /// once if no session holds it.
    pub(super) fn wait_for_release(&self, key: &ClaimKey) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        if let Some(claim) = self.lock_claims().get_mut(key) {
            claim.waiters.retain(|w| !w.is_closed());
            claim.waiters.push(sender);
        }
        receiver
    }

    fn lock_claims(&self) -> MutexGuard<'_, HashMap<ClaimKey, ClaimState>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClaimState {
    fn notify_waiters(self) {
        for waiter in self.waiters {
            let _ = waiter.send(());
        }
    }
}
