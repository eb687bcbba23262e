//! Facts: what is known, and where from. Two stores, one truth.
//!
//! The [`journal`] (`SQLite`, in the data directory) is the record: every
//! completion and the facts read from it, committed before anything else
//! happens. The [`index`] (sled) finds the facts of an entity quickly; it is
//! brought up to date from the journal whenever it is missing, behind or
//! damaged, and may be deleted at any time.
//!
//! ```text
//! <data directory>/journal.sqlite   the record
//! <data directory>/index.sled/      its index: entity -> facts
//! <data directory>/lock             held by the one process that owns them
//! <data directory>/socket           where that process lends them to others
//! ```
//!
//! sled is opened by one process. That one *owns* the cache: the index, the thread
//! that writes, what is being asked ([`claims`]), the limits of endpoints and the
//! budget of the day. Others *borrow* it ([`lend`]): they do their work
//! themselves, behind the same methods, and only what one process can have is
//! the owner's. The journal they read, and write what is small, by themselves.

mod ahead;
mod answers;
mod borrow;
mod checksum;
pub mod claims;
mod desk;
mod dictionary;
mod history;
pub mod index;
mod journal;
#[cfg(unix)]
pub mod lend;
pub mod lookup;
pub mod parcels;
pub mod questions;
mod rates;
pub mod requests;
mod reservations;
pub mod rounds;
mod sessions;
mod spending;
mod throttle;
pub mod transfer;
mod turns;
mod wire;
mod writer;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::warn;

use self::borrow::{Borrowed, Refusal};
use self::claims::Claims;
use self::desk::Job;
use self::journal::Journal;
use self::sessions::Session;
use self::throttle::Limiters;
use self::wire::{Ask, Say};
pub use ahead::Ahead;
pub use borrow::status;
pub use checksum::Damage;
pub use claims::Thing;
pub use history::History;
pub use index::{Fact, Index, Record};
pub use journal::{Completion, Outcome};
pub use lookup::{Found, Reason, Wanted};
pub use parcels::{Packed, Parcel, Stage};
pub use questions::{Learned, LiveQuestion, Origin};
pub use requests::{Known, Request};
pub use spending::{Hour, Totals};
pub use throttle::{Admitted, Place, Throttle};
pub use turns::Turn;
pub use writer::{Batch, Claim, Noted, Writer};

/// How long a process that owns the cache and is to lend it may take to begin.
const BEGINNING: Duration = Duration::from_secs(10);
/// How often the lock is tried while somebody waits for it.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Why facts cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// Another process uses the cache.
    #[error("the cache {} is in use by {holder}", dir.display())]
    Held {
        /// The cache.
        dir: PathBuf,
        /// The process, as it describes itself.
        holder: String,
    },
    /// The process that owns the cache has ended, in the midst of something.
    #[error("{owner}, which owns the cache {}, has ended", dir.display())]
    Lost {
        /// The cache.
        dir: PathBuf,
        /// The process.
        owner: String,
    },
    /// The process that owns the cache speaks another protocol.
    #[error("the cache {} is owned by another version of hqdl", dir.display())]
    Stranger {
        /// The cache.
        dir: PathBuf,
    },
    /// The journal failed.
    #[error("the journal {}: {message}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// What `SQLite` said.
        message: String,
    },
    /// The journal is not whole any more.
    #[error("the journal {} is damaged: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first thing that is wrong.
        message: String,
    },
    /// The index failed.
    #[error("the index {}: {message}", path.display())]
    Index {
        /// The directory.
        path: PathBuf,
        /// What sled said.
        message: String,
    },
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A line of an import cannot be used.
    #[error("line {line}: {message}")]
    Import {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
}

impl FactsError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Held { .. } => "wait for it to end, or use another cache with --cache",
            Self::Lost { .. } => "everything answered is kept; run this again to go on",
            Self::Stranger { .. } => "end it, such as the daemon, and start it with this version",
            Self::Journal { .. } => {
                "the journal holds what was paid for; check the disk and the file's permissions"
            }
            Self::Damaged { .. } => {
                "put a backup of it in its place, or what `sqlite3 journal.sqlite .recover` brings out"
            }
            Self::Index { .. } => "run `hqdl cache rebuild`; the journal has every fact",
            Self::File { .. } => {
                "check the directory and its permissions, or choose another with --cache"
            }
            Self::Import { .. } => "nothing was imported; mend the line and run this again",
        }
    }
}

/// The facts of one data directory: owned by this process, or borrowed from the
/// one that owns them. Any number of runs may use them at once.
pub struct Facts {
    dir: PathBuf,
    journal: Arc<Journal>,
    index: Index,
    session: Session,
    hold: Hold,
}

/// Who has what only one process can have.
enum Hold {
    Owned(Owned),
    Borrowed(Arc<Borrowed>),
}

/// What the owner of a cache has.
struct Owned {
    /// Held as long as this lives; the system lets go of it when we die.
    lock: File,
    /// The journal as the writing thread has it; whoever has it changes the index.
    writing: Arc<Journal>,
    jobs: mpsc::Sender<Job>,
    thread: Option<JoinHandle<()>>,
    claims: Arc<Claims>,
    limiters: Limiters,
    temporary: bool,
}

/// Who has the lock of a cache.
enum Lock {
    Ours(File),
    /// Another process, as it describes itself.
    Theirs(String),
}

impl Facts {
    /// Opens (and makes, when missing) the facts of a data directory: as their
    /// owner, or through the process that owns and lends them. `holder` describes
    /// this process to others.
    ///
    /// # Errors
    /// [`FactsError::Held`] when another process has them and does not lend them;
    /// others when the disk fails.
    pub fn open(dir: &Path, holder: &str) -> Result<Self, FactsError> {
        make(dir)?;
        let began = Instant::now();
        loop {
            let other = match lock(dir, holder)? {
                Lock::Ours(lock) => return Self::owned(dir, holder, lock, false),
                Lock::Theirs(other) => other,
            };
            match Borrowed::begin(dir, holder) {
                Ok(owner) => return Self::borrowed(dir, holder, Arc::new(owner)),
                Err(Refusal::Stranger) => return Err(FactsError::Stranger { dir: dir.to_owned() }),
                // It is about to lend, or has just ended.
                Err(Refusal::Nobody)
                    if began.elapsed() < TRY_EVERY
                        || (other.contains(LENDER) && began.elapsed() < BEGINNING) =>
                {
                    std::thread::sleep(TRY_EVERY);
                }
                Err(Refusal::Nobody) => {
                    return Err(FactsError::Held { dir: dir.to_owned(), holder: other });
                }
            }
        }
    }

    /// Opens the facts of a data directory as their owner, to lend them; waits up
    /// to `patience` for another owner to end.
    ///
    /// # Errors
    /// [`FactsError::Held`] when another process has them still.
    pub fn own(dir: &Path, holder: &str, patience: Duration) -> Result<Self, FactsError> {
        make(dir)?;
        let began = Instant::now();
        loop {
            match lock(dir, &format!("{holder}, {LENDER}"))? {
                Lock::Ours(lock) => return Self::owned(dir, holder, lock, false),
                Lock::Theirs(_) if began.elapsed() < patience => std::thread::sleep(TRY_EVERY),
                Lock::Theirs(holder) => {
                    return Err(FactsError::Held { dir: dir.to_owned(), holder });
                }
            }
        }
    }

    fn owned(dir: &Path, holder: &str, lock: File, temporary: bool) -> Result<Self, FactsError> {
        // Of an owner that was killed; nobody answers there.
        let _ = std::fs::remove_file(borrow::socket(dir));
        let session = Session::of_owner(holder);
        let open = || Journal::open(&dir.join("journal.sqlite"), session.clone());
        let journal = open()?;
        journal.begin_alone()?;
        // Of their own, so that who reads long holds up nobody.
        let (writing, looks) = (Arc::new(open()?), open()?);
        let index = Index::open(&dir.join("index.sled"), Arc::clone(&writing), looks)?;
        let journal = Arc::new(journal);
        let (jobs, thread) = desk::start(Arc::clone(&writing), index.clone());
        let owned = Owned {
            lock,
            writing,
            limiters: Limiters::kept_by(jobs.clone()),
            jobs,
            thread: Some(thread),
            claims: Arc::default(),
            temporary,
        };
        Ok(Self { dir: dir.to_owned(), journal, index, session, hold: Hold::Owned(owned) })
    }

    fn borrowed(dir: &Path, holder: &str, owner: Arc<Borrowed>) -> Result<Self, FactsError> {
        let session =
            Session { id: owner.session.as_str().into(), holder: holder.into(), owns: false };
        let journal = Journal::open(&dir.join("journal.sqlite"), session.clone())?;
        let index = Index::lent(dir.join("index.sled"), Arc::clone(&owner));
        let journal = Arc::new(journal);
        Ok(Self { dir: dir.to_owned(), journal, index, session, hold: Hold::Borrowed(owner) })
    }

    /// Facts that nobody keeps: an empty directory, gone when this is.
    ///
    /// # Errors
    /// When the system's directory for temporary files cannot be used.
    pub fn temporary() -> Result<Self, FactsError> {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        let dir = std::env::temp_dir().join(format!("hqdl-{}-{nanos}", std::process::id()));
        private(&dir).map_err(|error| FactsError::File { path: dir.clone(), error })?;
        let holder = "hqdl --no-cache";
        match lock(&dir, holder)? {
            Lock::Ours(lock) => Self::owned(&dir, holder, lock, true),
            Lock::Theirs(holder) => Err(FactsError::Held { dir, holder }),
        }
    }

    /// The data directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process that owns the facts, when that is not this one.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        match &self.hold {
            Hold::Owned(_) => None,
            Hold::Borrowed(owner) => Some(&owner.owner),
        }
    }

    /// The index, for looking facts up, with all that the journal has by now: a
    /// borrower whose owner has ended writes to the journal alone.
    #[must_use]
    pub fn index(&self) -> &Index {
        if let Err(error) = self.index.follow_on() {
            // Whoever is to ask looks again, and is told.
            warn!(%error, "the index is behind the journal");
        }
        &self.index
    }

    /// All that was ever asked.
    #[must_use]
    pub fn history(&self) -> &dyn History {
        &*self.journal
    }

    /// A handle of the thread that keeps what is answered.
    pub fn writer(&self) -> Writer {
        self.writer_of(&self.session.id)
    }

    fn writer_of(&self, session: &Arc<str>) -> Writer {
        let (index, journal) = (self.index.clone(), Arc::clone(&self.journal));
        match &self.hold {
            Hold::Owned(owned) => {
                let (jobs, claims) = (owned.jobs.clone(), Arc::clone(&owned.claims));
                Writer::own(jobs, claims, Arc::clone(session), (index, journal))
            }
            Hold::Borrowed(owner) => Writer::lent(Arc::clone(owner), index, journal),
        }
    }

    /// Throws the index away and makes it again from the journal; returns how
    /// many entities it holds.
    ///
    /// # Errors
    /// [`FactsError`] when the journal cannot be read or the index not written.
    pub fn rebuild(&self) -> Result<u64, FactsError> {
        match &self.hold {
            Hold::Owned(owned) => self.index.rebuild(&owned.writing),
            Hold::Borrowed(owner) => match owner.ask_here(&Ask::Rebuild)? {
                Say::Count(count) => Ok(count),
                _ => Err(owner.misunderstood()),
            },
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Whoever has a handle still is told that there is no writer any more.
        let jobs = self.jobs.clone();
        if let Some(thread) = self.thread.take() {
            let stopping = std::thread::spawn(move || drop(jobs.blocking_send(Job::Stop)));
            let _ = (stopping.join(), thread.join());
        }
        let _ = self.lock.set_len(0);
    }
}

impl Drop for Facts {
    fn drop(&mut self) {
        if let Hold::Owned(Owned { temporary: true, .. }) = &self.hold {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// What is said of a process that lends its cache, where others find it locked.
const LENDER: &str = "which lends it";

/// Makes a data directory that only its user can look into.
fn make(dir: &Path) -> Result<(), FactsError> {
    let file = |error| FactsError::File { path: dir.to_owned(), error };
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).map_err(file)?;
    }
    match private(dir) {
        Err(error) if !dir.is_dir() => Err(file(error)),
        _ => Ok(()),
    }
}

fn private(dir: &Path) -> std::io::Result<()> {
    let mut make = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut make, 0o700);
    make.create(dir)
}

/// Takes the lock of a cache, or tells who has it.
fn lock(dir: &Path, holder: &str) -> Result<Lock, FactsError> {
    let path = dir.join("lock");
    let file = |error| FactsError::File { path: path.clone(), error };
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(file)?;
    if lock.try_lock().is_err() {
        let mut holder = String::new();
        let _ = lock.read_to_string(&mut holder);
        let holder = match holder.trim() {
            "" => "another process".to_owned(),
            holder => holder.to_owned(),
        };
        return Ok(Lock::Theirs(holder));
    }
    let mut describe = || {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "process {} ({holder})", std::process::id())
    };
    describe().map_err(file)?;
    Ok(Lock::Ours(lock))
}
