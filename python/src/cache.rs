//! The caches that this process has open: one handle each, for all sessions, lent to
//! other processes while this one owns it. The child of a fork may open none where its
//! parent had one: sled's threads do not survive a fork, and `SQLite`'s locks would be taken
//! for the child's own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hqdl::facts::{Facts, FactsError, is_server};
use hqdl::key::Entity;
use hqdl::session::Cache;
use tokio::sync::watch;

use crate::errors::{Failed, input, lock};

/// How long those who borrow a cache may take to end, when its owner does.
const PATIENCE: Duration = Duration::from_secs(5);

/// A cache that is open.
pub struct Opened {
    pub facts: Facts,
    #[cfg(unix)]
    lending: Option<hqdl::facts::server::CacheServer>,
}

impl Opened {
    #[cfg(unix)]
    fn open(dir: &Path, holder: &str) -> Result<Self, Failed> {
        use hqdl::facts::server::serve;
        if let Some(facts) = of_server(dir, holder) {
            return Ok(Self { facts: facts?, lending: None });
        }
        if Registry::is_child() {
            return Err(orphan());
        }
        USED.fetch_min(Registry::generation(), Ordering::Relaxed);
        match Facts::own(dir, holder, Duration::ZERO) {
            Ok(facts) => {
                let status = status(dir);
                let lending = Some(serve(&facts, Arc::new(move || status.clone()))?);
                Ok(Self { facts, lending })
            }
            Err(FactsError::Held { .. }) => {
                Ok(Self { facts: Facts::open(dir, holder)?, lending: None })
            }
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(not(unix))]
    fn open(dir: &Path, holder: &str) -> Result<Self, Failed> {
        if let Some(facts) = of_server(dir, holder) {
            return Ok(Self { facts: facts? });
        }
        Ok(Self { facts: Facts::open(dir, holder)? })
    }

    /// Facts that nobody keeps.
    pub fn temporary() -> Result<Self, Failed> {
        if Registry::is_child() {
            return Err(orphan());
        }
        USED.fetch_min(Registry::generation(), Ordering::Relaxed);
        Ok(Self {
            facts: Facts::temporary()?,
            #[cfg(unix)]
            lending: None,
        })
    }

    /// Whether it can be used still: its owner, another process, may have ended.
    fn stands(&self) -> bool {
        self.facts.owner().is_none() || self.answers()
    }

    fn answers(&self) -> bool {
        Entity::parse("{}").is_ok_and(|nobody| self.facts.get(&nobody).is_ok())
    }

    fn close(self) {
        #[cfg(unix)]
        if let Some(lending) = self.lending {
            lending.end(PATIENCE);
        }
    }
}

/// The facts of a server, where a cache is its URL.
fn of_server(cache: &Path, holder: &str) -> Option<Result<Facts, FactsError>> {
    let url = cache.to_str().filter(|_| is_server(cache))?.to_owned();
    let say: hqdl::facts::Say = Arc::new(|_| {});
    Some(Cache::Server { url, holder: holder.to_owned(), say }.open())
}

/// What `hqdl status` is told.
#[cfg(unix)]
fn status(dir: &Path) -> serde_json::Value {
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "url": "a Python process",
        "cache": dir, "specs": [], "runs": [],
    })
}

/// What this process has open and under way.
#[derive(Default)]
pub struct Registry {
    opened: Mutex<HashMap<PathBuf, Arc<Opened>>>,
    /// Interrupts of the runs under way, by number.
    runs: Mutex<(u64, HashMap<u64, watch::Sender<bool>>)>,
}

/// A registry for each generation of forks: what a parent had, locked or not, is never
/// touched by its child.
static REGISTRIES: [OnceLock<Registry>; 64] = [const { OnceLock::new() }; 64];
static GENERATION: AtomicUsize = AtomicUsize::new(0);
/// The first generation that opened a cache.
static USED: AtomicUsize = AtomicUsize::new(usize::MAX);

fn orphan() -> Failed {
    input(
        "this process was forked from one that had a cache open, and cannot open one",
        "start processes with multiprocessing's `spawn` or `forkserver`, or fork before you use hqdl",
    )
}

impl Registry {
    /// That of this process.
    pub fn own() -> &'static Self {
        let generation = GENERATION.load(Ordering::Relaxed).min(REGISTRIES.len() - 1);
        REGISTRIES[generation].get_or_init(Self::default)
    }

    /// Begins anew, in the child of a fork.
    pub fn forked() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }

    /// How often this process and those it comes from were forked.
    pub fn generation() -> usize {
        GENERATION.load(Ordering::Relaxed)
    }

    /// Whether this is the child of a process that had a cache open.
    fn is_child() -> bool {
        USED.load(Ordering::Relaxed) < Self::generation()
    }

    /// The caches that were opened, as far as nobody is opening one just now.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.opened.try_lock().map_or_else(|_| Vec::new(), |all| all.keys().cloned().collect())
    }

    /// The facts of a directory, opened when they are not.
    pub fn open(&self, dir: &Path, holder: &str) -> Result<Arc<Opened>, Failed> {
        let mut opened = lock(&self.opened);
        if let Some(open) = opened.get(dir) {
            if open.stands() {
                return Ok(Arc::clone(open));
            }
            opened.remove(dir);
        }
        let open = Arc::new(Opened::open(dir, holder)?);
        opened.insert(dir.to_owned(), Arc::clone(&open));
        Ok(open)
    }

    /// Closes what nobody uses now.
    pub fn close_idle(&self) {
        let mut opened = lock(&self.opened);
        let idle: Vec<PathBuf> = (opened.iter())
            .filter(|(_, open)| Arc::strong_count(open) == 1)
            .map(|(dir, _)| dir.clone())
            .collect();
        for dir in idle {
            if let Some(open) = opened.remove(&dir).and_then(Arc::into_inner) {
                open.close();
            }
        }
    }

    /// Notes a run; its number.
    pub fn begin(&self, interrupt: watch::Sender<bool>) -> u64 {
        let mut runs = lock(&self.runs);
        runs.0 += 1;
        let number = runs.0;
        runs.1.insert(number, interrupt);
        number
    }

    /// Forgets a run.
    pub fn end(&self, run: u64) {
        lock(&self.runs).1.remove(&run);
    }

    /// Interrupts all runs under way; whether there are any.
    pub fn interrupt_all(&self) -> bool {
        let runs = lock(&self.runs);
        for run in runs.1.values() {
            run.send_replace(true);
        }
        !runs.1.is_empty()
    }
}
