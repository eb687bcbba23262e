//! Polls the change counters of databases on servers, because the system does not report their
//! changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::debug;

use crate::database::{Database, StoreError};

/// Last change counter of each server; `None` if it could not be queried.
static LAST_COUNTERS: Mutex<BTreeMap<PathBuf, Option<i64>>> = Mutex::new(BTreeMap::new());

fn lock_counters() -> MutexGuard<'static, BTreeMap<PathBuf, Option<i64>>> {
    LAST_COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the server's last change counter, which differs after every write.
pub(super) fn find_last_counter(url: &Path) -> Option<i64> {
    lock_counters().get(url).copied().flatten()
}

/// Queries a server's change counter and starts polling it.
pub(super) fn start_polling(url: &Path) {
    let counter = Database::open(url).and_then(|database| database.change_counter());
    store_counter(url, counter);
}

/// Stops polling a server.
pub(super) fn stop_polling(url: &Path) {
    lock_counters().remove(url);
}

/// Stores a change counter. Returns true if it differs from the previous one.
fn store_counter(url: &Path, counter: Result<i64, StoreError>) -> bool {
    let counter = counter.inspect_err(|error| debug!(%error, "a server cannot be asked")).ok();
    lock_counters().insert(url.to_owned(), counter) != Some(counter)
}

/// Connections to the polled servers.
#[derive(Default)]
pub(super) struct Servers(BTreeMap<PathBuf, Database>);

impl Servers {
    /// Polls all servers. Returns the servers whose counter changed.
    pub(super) fn poll_for_changes(&mut self) -> Vec<PathBuf> {
        let known: Vec<PathBuf> = lock_counters().keys().cloned().collect();
        self.0.retain(|url, _| known.contains(url));
        let mut changed = Vec::new();
        for url in known {
            let counter = match self.0.get(&url) {
                Some(database) => database.change_counter(),
                None => Database::open(&url).and_then(|database| {
                    let counter = database.change_counter();
                    self.0.insert(url.clone(), database);
                    counter
                }),
            };
            // The server may have been removed in the meantime.
            let known = lock_counters().contains_key(&url);
            if known && store_counter(&url, counter) {
                changed.push(url);
            }
        }
        changed
    }
}
