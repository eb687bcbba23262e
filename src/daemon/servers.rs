//! Databases on servers. The system does not report their changes, so their change counters are
//! polled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::debug;

use crate::database::{Database, StoreError};

/// Last change counter of each server; `None` if it could not be queried.
static SAID: Mutex<BTreeMap<PathBuf, Option<i64>>> = Mutex::new(BTreeMap::new());

fn all_said() -> MutexGuard<'static, BTreeMap<PathBuf, Option<i64>>> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the server's last change counter, which differs after every write.
pub(super) fn said(url: &Path) -> Option<i64> {
    all_said().get(url).copied().flatten()
}

/// Queries a server now, and polls it from now on.
pub(super) fn ask(url: &Path) {
    let said = Database::open(url).and_then(|database| database.changes());
    keep(url, said);
}

/// Stops polling a server.
pub(super) fn forget(url: &Path) {
    all_said().remove(url);
}

/// Stores a change counter. Returns true if it differs from the stored one.
fn keep(url: &Path, said: Result<i64, StoreError>) -> bool {
    let said = said.inspect_err(|error| debug!(%error, "a server cannot be asked")).ok();
    all_said().insert(url.to_owned(), said) != Some(said)
}

/// Connections to the polled servers.
#[derive(Default)]
pub(super) struct Servers(BTreeMap<PathBuf, Database>);

impl Servers {
    /// Polls all servers. Returns those whose counter changed.
    pub(super) fn changed(&mut self) -> Vec<PathBuf> {
        let known: Vec<PathBuf> = all_said().keys().cloned().collect();
        self.0.retain(|url, _| known.contains(url));
        let mut changed = Vec::new();
        for url in known {
            let told = match self.0.get(&url) {
                Some(database) => database.changes(),
                None => Database::open(&url).and_then(|database| {
                    let told = database.changes();
                    self.0.insert(url.clone(), database);
                    told
                }),
            };
            // The server may have been removed in the meantime.
            let known = all_said().contains_key(&url);
            if known && keep(&url, told) {
                changed.push(url);
            }
        }
        changed
    }
}
