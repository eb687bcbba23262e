//! `SQLite`: the databases that are read and expanded, and the journal's file.
//!
//! [`Database`] opens; [`schema`] answers what is there; [`keys`] lists the
//! semantic keys of an expansion; [`publish`] writes the materialized views;
//! [`provenance`] reads back where a cell came from; [`migrate`] keeps hqdl's
//! own tables up to date.

pub mod keys;
pub mod migrate;
pub mod provenance;
pub mod publish;

pub mod schema;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

/// How long a lock of another process is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no file.
    #[error("no database at {}", .0.display())]
    Missing(PathBuf),
    /// There is a file, but `SQLite` cannot read it as a database.
    #[error("{} is not a SQLite database", .0.display())]
    NotADatabase(PathBuf),
    /// Another process holds a lock.
    #[error("{} is locked by another process", .0.display())]
    Locked(PathBuf),
    /// It cannot be written.
    #[error("{} cannot be written", .0.display())]
    ReadOnly(PathBuf),
    /// It is damaged, or its directory cannot be used, or the disk is full.
    #[error("{}: {message}", path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What `SQLite` said.
        message: String,
    },
    /// The output exists and was not made by hqdl.
    #[error("{} exists and is no copy that hqdl made", .0.display())]
    ForeignOutput(PathBuf),
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl StoreError {
    /// Gives an error of `SQLite` its meaning.
    #[must_use]
    pub fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase(path),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked(path),
            Some(ErrorCode::ReadOnly) => Self::ReadOnly(path),
            _ => Self::Sqlite { path, message: message(error) },
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing(_) => "check `path` in [database], or pass --db",
            Self::NotADatabase(_) => "it must be a SQLite 3 database file",
            Self::Locked(_) => {
                "close the program that is writing to it, then run this again; nothing was lost"
            }
            Self::ReadOnly(_) => "set `output` in [database], or pass --output, to write to a copy",
            Self::ForeignOutput(_) => "choose another `output`, or move that file away",
            Self::Sqlite { .. } | Self::File { .. } => {
                "look at the file and its directory, then run this again"
            }
        }
    }
}

/// `SQLite`'s message, without the code in front.
#[must_use]
pub fn message(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        rusqlite::Error::MultipleStatement => "more than one statement".to_owned(),
        other => other.to_string(),
    }
}

/// This moment, RFC 3339.
#[must_use]
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now).to_string()
}

/// An open database, and the path that messages name.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    connection: Connection,
}

impl Database {
    /// Opens an existing database for reading.
    ///
    /// # Errors
    /// [`StoreError`] when it is missing, locked or no database.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    /// Opens an existing database for reading and writing.
    ///
    /// # Errors
    /// [`StoreError`] when it is missing, locked, read-only or no database.
    pub fn open_writable(path: &Path) -> Result<Self, StoreError> {
        let db = Self::open_with(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        if db.connection.is_readonly("main").map_err(|e| db.error(&e))? {
            return Err(StoreError::ReadOnly(db.path));
        }
        // A directory in which SQLite cannot put its journal, or a lock, shows
        // only when something is written: better now than after paying.
        let version: i64 = db
            .connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(|e| db.error(&e))?;
        let tried = db
            .connection
            .execute_batch(&format!("BEGIN IMMEDIATE; PRAGMA user_version = {version}"));
        let undone = if db.connection.is_autocommit() {
            Ok(())
        } else {
            db.connection.execute_batch("ROLLBACK")
        };
        tried.and(undone).map_err(|e| db.error(&e))?;
        Ok(db)
    }

    fn open_with(path: &Path, mode: OpenFlags) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::Missing(path.to_owned()));
        }
        if path.is_dir() {
            return Err(StoreError::NotADatabase(path.to_owned()));
        }
        let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
        let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(error)?;
        connection.busy_timeout(BUSY).map_err(error)?;
        // The first read is where a file shows that it is no database.
        connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
            .map_err(error)?;
        Ok(Self { path: path.to_owned(), connection })
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Gives an error of `SQLite` its meaning and this path.
    #[must_use]
    pub fn error(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::from_sqlite(&self.path, error)
    }

    /// Opens the copy at `output` that expanded tables go to, made afresh from
    /// this database when it is missing or older than the database is.
    ///
    /// # Errors
    /// [`StoreError`] when there is something else at `output`, or copying fails.
    pub fn copy_to(&self, output: &Path) -> Result<Self, StoreError> {
        let stamp = stamp(&self.path)?;
        if output.exists() {
            let copy = Self::open_writable(output)?;
            match copy.copied_from()? {
                None => return Err(StoreError::ForeignOutput(output.to_owned())),
                Some(before) if before == stamp => return Ok(copy),
                Some(_) => {}
            }
        }
        let file = |error| StoreError::File { path: output.to_owned(), error };
        if let Some(parent) = output.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(file)?;
        }
        // Beside the output, so that the rename stays on one file system.
        let mut part = output.as_os_str().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        let made = (|| {
            let mut target =
                Connection::open(&part).map_err(|e| StoreError::from_sqlite(&part, &e))?;
            let backup = rusqlite::backup::Backup::new(&self.connection, &mut target)
                .map_err(|e| self.error(&e))?;
            backup.run_to_completion(4096, Duration::ZERO, None).map_err(|e| self.error(&e))?;
            drop(backup);
            migrate::database(&target).map_err(|e| StoreError::from_sqlite(&part, &e))?;
            target
                .execute(
                    "INSERT OR REPLACE INTO hqdl_object VALUES ('hqdl:copied_from', ?1, NULL)",
                    [&stamp],
                )
                .map_err(|e| StoreError::from_sqlite(&part, &e))?;
            target.close().map_err(|(_, e)| StoreError::from_sqlite(&part, &e))?;
            std::fs::rename(&part, output).map_err(file)
        })();
        if made.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        made?;
        Self::open_writable(output)
    }

    /// What this copy was made from; `None` when it is no copy of ours.
    fn copied_from(&self) -> Result<Option<String>, StoreError> {
        if !self.has_bookkeeping() {
            return Ok(None);
        }
        let found = self.connection.query_row(
            "SELECT type FROM hqdl_object WHERE name = 'hqdl:copied_from'",
            [],
            |row| row.get(0),
        );
        match found {
            Ok(stamp) => Ok(Some(stamp)),
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// Whether hqdl's tables are here.
    #[must_use]
    pub fn has_bookkeeping(&self) -> bool {
        self.connection
            .query_row("SELECT 1 FROM sqlite_schema WHERE name = 'hqdl_object'", [], |_| Ok(()))
            .is_ok()
    }
}

/// What tells one version of a database file from another, cheaply: path,
/// size and time of the last change, of the file and of its write-ahead log.
fn stamp(path: &Path) -> Result<String, StoreError> {
    let file = |error| StoreError::File { path: path.to_owned(), error };
    let full = path.canonicalize().map_err(file)?;
    let part = |path: &Path| -> std::io::Result<String> {
        let meta = std::fs::metadata(path)?;
        let changed = meta.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{} bytes, {}.{:09}", meta.len(), changed.as_secs(), changed.subsec_nanos()))
    };
    let mut wal = full.as_os_str().to_owned();
    wal.push("-wal");
    let wal = part(Path::new(&wal)).unwrap_or_default();
    Ok(format!("{} ({}; {wal})", full.display(), part(&full).map_err(file)?))
}
