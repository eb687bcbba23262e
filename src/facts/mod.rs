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
//! <data directory>/lock             held by the one process that uses them
//! ```

mod changes;
pub mod index;
pub mod journal;
pub mod lookup;
pub mod parcels;
pub mod questions;
pub mod requests;
mod reservations;
pub mod rounds;
pub mod transfer;
mod writer;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use index::{Fact, Index, Record};
pub use journal::{Completion, Journal, Outcome};
pub use lookup::{Found, Reason, Wanted};
pub use parcels::{Packed, Parcel, Stage};
pub use questions::{Learned, LiveQuestion, Origin};
pub use requests::{Known, Request};
pub use writer::{Batch, Writer};

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
    /// The journal failed.
    #[error("the journal {}: {message}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// What `SQLite` said.
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
            Self::Journal { .. } => {
                "the journal holds what was paid for; check the disk and the file's permissions"
            }
            Self::Index { .. } => "run `hqdl cache rebuild`; the journal has every fact",
            Self::File { .. } => {
                "check the directory and its permissions, or choose another with --cache"
            }
            Self::Import { .. } => "nothing was imported; mend the line and run this again",
        }
    }
}

/// The facts of one data directory, open to this process alone.
pub struct Facts {
    dir: PathBuf,
    journal: Arc<Mutex<Journal>>,
    index: Index,
    /// Held as long as this lives; the system lets go of it when we die.
    lock: File,
    temporary: bool,
}

impl Facts {
    /// Opens (and makes, when missing) the facts of a data directory.
    /// `holder` describes this process to others that find it locked.
    ///
    /// # Errors
    /// [`FactsError::Held`] when another process has it; others when the disk fails.
    pub fn open(dir: &Path, holder: &str) -> Result<Self, FactsError> {
        let file = |path: &Path| {
            let path = path.to_owned();
            move |error| FactsError::File { path, error }
        };
        std::fs::create_dir_all(dir).map_err(file(dir))?;
        let lock_path = dir.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(file(&lock_path))?;
        if lock.try_lock().is_err() {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() {
                "another process".to_owned()
            } else {
                holder.trim().to_owned()
            };
            return Err(FactsError::Held { dir: dir.to_owned(), holder });
        }
        let describe = (|| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "process {} ({holder})", std::process::id())
        })();
        describe.map_err(file(&lock_path))?;
        let journal = Journal::open(&dir.join("journal.sqlite"))?;
        let index = Index::open(&dir.join("index.sled"), &journal)?;
        Ok(Self {
            dir: dir.to_owned(),
            journal: Arc::new(Mutex::new(journal)),
            index,
            lock,
            temporary: false,
        })
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
        let mut make = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut make, 0o700);
        make.create(&dir).map_err(|error| FactsError::File { path: dir.clone(), error })?;
        let mut facts = Self::open(&dir, "hqdl --no-cache")?;
        facts.temporary = true;
        Ok(facts)
    }

    /// The data directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The index, for looking facts up.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The journal.
    pub fn journal(&self) -> MutexGuard<'_, Journal> {
        // A panic elsewhere left no half-done statement: SQLite rolls back.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that keeps what is answered.
    pub fn writer(&self) -> Writer {
        Writer::start(Arc::clone(&self.journal), self.index.clone())
    }

    /// Throws the index away and makes it again from the journal; returns how
    /// many entities it holds.
    ///
    /// # Errors
    /// [`FactsError`] when the journal cannot be read or the index not written.
    pub fn rebuild(&self) -> Result<u64, FactsError> {
        self.index.rebuild(&self.journal())
    }
}

impl Drop for Facts {
    fn drop(&mut self) {
        let _ = self.lock.set_len(0);
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
