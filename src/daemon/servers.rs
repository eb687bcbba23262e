//! Databases on servers, of whose changes no system tells: each is asked every so often
//! how much has been written to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::debug;

use crate::database::{Database, StoreError};

/// What each server said last; `None` where it could not be asked.
static SAID: Mutex<BTreeMap<PathBuf, Option<i64>>> = Mutex::new(BTreeMap::new());

fn all_said() -> MutexGuard<'static, BTreeMap<PathBuf, Option<i64>>> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a server said last: another number when somebody has written there.
pub(super) fn said(url: &Path) -> Option<i64> {
    all_said().get(url).copied().flatten()
}

/// Asks a server, and again every so often from now on.
pub(super) fn ask(url: &Path) {
    let said = Database::open(url).and_then(|database| database.changes());
    keep(url, said);
}

/// Asks a server no more.
pub(super) fn forget(url: &Path) {
    all_said().remove(url);
}

/// Keeps what a server said; whether that is something else than before.
fn keep(url: &Path, said: Result<i64, StoreError>) -> bool {
    let said = said.inspect_err(|error| debug!(%error, "a server cannot be asked")).ok();
    all_said().insert(url.to_owned(), said) != Some(said)
}

/// The servers that are asked, each with its connection.
#[derive(Default)]
pub(super) struct Servers(BTreeMap<PathBuf, Database>);

impl Servers {
    /// Asks all of them once; those that say something else than before.
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
            // One that was forgotten meanwhile stays so.
            let known = all_said().contains_key(&url);
            if known && keep(&url, told) {
                changed.push(url);
            }
        }
        changed
    }
}
