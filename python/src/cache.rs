//! Registry of this process's open caches. All sessions share one handle per cache. A forked child
//! cannot open a cache if its parent had a cache open: threads do not survive a fork, and the child
//! would release `SQLite`'s locks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use hqdl::facts::{Facts, FactsError};
use hqdl::session::Cache;
use hqdl::spec::is_server;
use tokio::sync::watch;

use crate::errors::{Failed, lock, wrong_input};

/// An open cache.
pub struct OpenCache {
    pub facts: Facts,
}

impl OpenCache {
    fn open(dir: &Path, description: &str) -> Result<Self, Failed> {
        if let Some(facts) = connect_to_server(dir, description) {
            return Ok(Self { facts: facts? });
        }
        Self::register_user()?;
        Ok(Self { facts: Facts::open(dir, description)? })
    }

    /// Opens a temporary cache, which is deleted with its last handle.
    pub fn open_temporary() -> Result<Self, Failed> {
        Self::register_user()?;
        Ok(Self { facts: Facts::open_temporary()? })
    }

    /// Records that this process has opened a cache. Fails if the parent had a cache open before
    /// the fork.
    fn register_user() -> Result<(), Failed> {
        if Registry::is_forked_user() {
            return Err(forked_error());
        }
        FIRST_USER.fetch_min(Registry::generation(), Ordering::Relaxed);
        Ok(())
    }
}

/// Connects to the server of a cache's URL; `None` if the cache is a directory.
fn connect_to_server(cache: &Path, description: &str) -> Option<Result<Facts, FactsError>> {
    let url = cache.to_str().filter(|_| is_server(cache))?.to_owned();
    let on_status: hqdl::facts::StatusCallback = Arc::new(|_| {});
    Some(Cache::Server { url, owner_description: description.to_owned(), on_status }.open())
}

/// Open caches and active runs of this process.
#[derive(Default)]
pub struct Registry {
    caches: Mutex<HashMap<PathBuf, Arc<OpenCache>>>,
    /// Last run number, and the senders that interrupt the active runs, by run number.
    runs: Mutex<(u64, HashMap<u64, watch::Sender<bool>>)>,
}

/// One registry per fork generation, because a lock on the parent's registry may never be released
/// in the child.
static REGISTRIES: [OnceLock<Registry>; 64] = [const { OnceLock::new() }; 64];
static GENERATION: AtomicUsize = AtomicUsize::new(0);
/// First generation that opened a cache.
static FIRST_USER: AtomicUsize = AtomicUsize::new(usize::MAX);

fn forked_error() -> Failed {
    wrong_input(
        "this process was forked from one that had a cache open, and cannot open one",
        "start processes with multiprocessing's `spawn` or `forkserver`, or fork before you use hqdl",
    )
}

impl Registry {
    /// Returns this process's registry.
    pub fn current() -> &'static Self {
        let generation = GENERATION.load(Ordering::Relaxed).min(REGISTRIES.len() - 1);
        REGISTRIES[generation].get_or_init(Self::default)
    }

    /// Starts an empty registry in the child of a fork.
    pub fn start_generation() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of forks between the first process and this one.
    pub fn generation() -> usize {
        GENERATION.load(Ordering::Relaxed)
    }

    /// Returns whether this process was forked from a process that had a cache open.
    fn is_forked_user() -> bool {
        FIRST_USER.load(Ordering::Relaxed) < Self::generation()
    }

    /// Returns the locations of the open caches. Returns no location while another thread is using
    /// the registry.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.caches.try_lock().map_or_else(|_| Vec::new(), |all| all.keys().cloned().collect())
    }

    /// Returns the cache at a location. Opens the cache on first use.
    pub fn open(&self, dir: &Path, description: &str) -> Result<Arc<OpenCache>, Failed> {
        let mut caches = lock(&self.caches);
        if let Some(cache) = caches.get(dir) {
            return Ok(Arc::clone(cache));
        }
        let cache = Arc::new(OpenCache::open(dir, description)?);
        caches.insert(dir.to_owned(), Arc::clone(&cache));
        Ok(cache)
    }

    /// Closes the caches that no session uses.
    pub fn close_idle(&self) {
        let mut caches = lock(&self.caches);
        let idle: Vec<PathBuf> = (caches.iter())
            .filter(|(_, cache)| Arc::strong_count(cache) == 1)
            .map(|(dir, _)| dir.clone())
            .collect();
        for dir in idle {
            caches.remove(&dir);
        }
    }

    /// Registers a run and returns its number.
    pub fn add_run(&self, interrupt: watch::Sender<bool>) -> u64 {
        let mut runs = lock(&self.runs);
        runs.0 += 1;
        let number = runs.0;
        runs.1.insert(number, interrupt);
        number
    }

    /// Removes a run.
    pub fn remove_run(&self, run: u64) {
        lock(&self.runs).1.remove(&run);
    }

    /// Interrupts all active runs and returns whether there are any.
    pub fn interrupt_all(&self) -> bool {
        let runs = lock(&self.runs);
        for run in runs.1.values() {
            run.send_replace(true);
        }
        !runs.1.is_empty()
    }
}
