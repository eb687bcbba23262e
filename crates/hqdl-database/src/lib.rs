//! The databases that are read and expanded: `SQLite`'s, and those of a server.
//!
//! [`Database`] opens; [`schema`] answers what is there; [`keys`] lists the
//! semantic keys of an expansion; [`publish`] writes the materialized views, [`rows`]
//! their rows, by their [`versions`]; [`standing`] is what stands and what that was
//! made from, [`provenance`] reads back where a cell came from; [`migrate`] keeps
//! hqdl's own tables up to date. Where a database is on a server, [`postgres`] does what
//! is done there.

pub mod clean;
pub mod keys;
pub mod migrate;
pub mod output;
pub mod postgres;
pub mod provenance;
pub mod publish;
mod refresh;
pub mod rows;
pub mod schema;
pub mod standing;
pub mod versions;
mod view;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

use self::postgres::DatabaseServer;
use hqdl_spec::{Expansion, is_server};

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
    #[error("{} exists and is not a copy that hqdl made", .0.display())]
    ForeignOutput(PathBuf),
    /// The database has a table with a name that hqdl needs.
    #[error("{} has a table or index `{name}`, but names that begin with hqdl_ are reserved for hqdl", path.display())]
    Reserved {
        /// The database.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The output is a copy of another database.
    #[error("{} is a copy of another database, {of}", path.display())]
    OtherCopy {
        /// The output.
        path: PathBuf,
        /// The other database.
        of: String,
    },
    /// The output is older than its database, and holds more than hqdl made.
    #[error("{} must be copied again from its database, which would delete these tables: {names}", path.display())]
    OwnObjects {
        /// The output.
        path: PathBuf,
        /// Tables and views of the user's.
        names: String,
    },
    /// Another file stands where the database was when it was read.
    #[error("{} was replaced by another file during the run", .0.display())]
    Replaced(PathBuf),
    /// A server cannot be reached, lets nobody in, or not to do this.
    #[error("the database {url}: {message}")]
    Server {
        /// Its URL, without a password.
        url: String,
        /// What it said.
        message: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// A server takes a statement for wrong.
    #[error("the database {url}: {message}")]
    Statement {
        /// Its URL, without a password.
        url: String,
        /// What it said.
        message: String,
    },
    /// What only a file has is asked of a server.
    #[error("the database {url} is on a server: {what}")]
    NotOnServer {
        /// Its URL, without a password.
        url: String,
        /// What cannot be done there.
        what: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
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

    /// What the database said, without its name in front.
    fn said(&self) -> String {
        match self {
            Self::Sqlite { message, .. }
            | Self::Server { message, .. }
            | Self::Statement { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing(_) => "check `path` in [database], or pass --db",
            Self::NotADatabase(_) => "it must be a SQLite 3 database file",
            Self::Locked(_) => {
                "close the program that writes to it, then run this again; nothing was lost"
            }
            Self::ReadOnly(_) => "set `output` in [database], or pass --output, to write to a copy",
            Self::Reserved { .. } => "rename it, then run this again",
            Self::OtherCopy { .. } => {
                "choose another `output` for this database, or delete that file"
            }
            Self::OwnObjects { .. } => "move these tables to another database, then run this again",
            Self::Replaced(_) => "run this again; everything answered is kept",
            Self::Server { hint, .. } | Self::NotOnServer { hint, .. } => hint,
            Self::Statement { .. } => {
                "check the spec against the database: `hqdl check SPEC`; everything answered is kept"
            }
            Self::ForeignOutput(_) => "choose another `output`, or move that file away",
            Self::Sqlite { .. } | Self::File { .. } => {
                "check that the file and its directory can be read and written, then run this again"
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
        rusqlite::Error::MultipleStatement => {
            "the text contains more than one statement".to_owned()
        }
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
    /// What the file is to the system, where it says so.
    file: Option<(u64, u64)>,
    /// The server that it is on, when the connection is to a database of this process
    /// alone, beside it.
    server: Option<Box<DatabaseServer>>,
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
        if let Some(server) = &db.server {
            server.try_publishing()?;
            return Ok(db);
        }
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

    /// Opens a database on a server, by its URL.
    fn connect(url: &Path) -> Result<Self, StoreError> {
        let server = DatabaseServer::connect(url)?;
        let error = |e: rusqlite::Error| StoreError::from_sqlite(server.shown().as_ref(), &e);
        // A temporary file, which nobody else sees.
        let connection = Connection::open("").map_err(error)?;
        server.read_bookkeeping(&connection)?;
        Ok(Self { path: url.to_owned(), connection, file: None, server: Some(Box::new(server)) })
    }

    fn open_with(path: &Path, mode: OpenFlags) -> Result<Self, StoreError> {
        if is_server(path) {
            return Self::connect(path);
        }
        if !path.exists() {
            return Err(StoreError::Missing(path.to_owned()));
        }
        if path.is_dir() {
            return Err(StoreError::NotADatabase(path.to_owned()));
        }
        let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
        // Before it is opened: a file that takes its place between is one too many.
        let file = file_at(path);
        let mut mode = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // So that another database can be attached for reading alone.
        if !path.to_string_lossy().starts_with("file:") {
            mode |= OpenFlags::SQLITE_OPEN_URI;
        }
        let connection = Connection::open_with_flags(path, mode).map_err(error)?;
        connection.busy_timeout(BUSY).map_err(error)?;
        // The first read is where a file shows that it is no database.
        let read =
            |c: &Connection| c.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
        match read(&connection) {
            // Somebody was killed while they wrote: what they had not finished is
            // undone first, which takes a connection that may write.
            Err(e) if is_left_behind(&e) => {
                let undone = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
                    .and_then(|c| c.busy_timeout(BUSY).and_then(|()| read(&c)));
                undone.and_then(|()| read(&connection)).map_err(error)?;
            }
            first => first.map_err(error)?,
        }
        Ok(Self { path: path.to_owned(), connection, file, server: None })
    }

    /// A number that is another one when somebody else has written to it.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn version(&self) -> Result<i64, StoreError> {
        if let Some(server) = &self.server {
            return server.version();
        }
        self.connection
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(|e| self.error(&e))
    }

    /// A number that is another one, sooner or later, when somebody has written to tables
    /// of a server that are not hqdl's; 0 for a file, of which the system tells.
    ///
    /// # Errors
    /// [`StoreError`] when the server cannot be asked.
    pub fn changes(&self) -> Result<i64, StoreError> {
        self.server().map_or(Ok(0), DatabaseServer::changes)
    }

    /// Puts what was published of an expansion within reach of the connection, cell by
    /// cell, where the database is on a server.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    pub fn read_cells(&self, expansion: &str) -> Result<(), StoreError> {
        match self.server().filter(|_| self.has_bookkeeping()) {
            Some(server) => server.fetch_all(expansion, &self.connection),
            None => Ok(()),
        }
    }

    /// Whether another file stands at its path by now, or none.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.file.is_some() && self.file != file_at(&self.path)
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The server that it is on.
    fn server(&self) -> Option<&DatabaseServer> {
        self.server.as_deref()
    }

    /// The URL of its server, as it may be shown; `None` where it is a file.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.server().map(DatabaseServer::shown)
    }

    /// The connection; to a database of this process beside it, where it is on a server.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Refuses what only a file takes, where this is on a server.
    ///
    /// # Errors
    /// [`StoreError::NotOnServer`], which says what is not done, and what to do instead.
    pub fn only_a_file(&self, what: &'static str, hint: &'static str) -> Result<(), StoreError> {
        match self.url() {
            Some(url) => Err(StoreError::NotOnServer { url: url.to_owned(), what, hint }),
            None => Ok(()),
        }
    }

    /// Puts the first rows of each table within reach of the connection, where the database
    /// is on a server; a file's all are.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn sample(&self, most: u64) -> Result<(), StoreError> {
        match self.server() {
            Some(server) => server.sample(most, &self.connection),
            None => Ok(()),
        }
    }

    /// Makes tables that are named like those of the server, with their columns and no
    /// rows, within reach of the connection; a file has its own.
    ///
    /// # Errors
    /// [`StoreError`] when the server cannot be read.
    pub fn outline(&self) -> Result<(), StoreError> {
        self.server().map_or(Ok(()), |server| server.outline(&self.connection))
    }

    /// Looks at a query that the server would run.
    ///
    /// # Errors
    /// [`StoreError`] when it refuses it, or there is no server.
    pub fn describe(&self, sql: &str) -> Result<(), StoreError> {
        self.there()?.prepare(sql.trim_end().trim_end_matches(';')).map(drop)
    }

    /// Keys of an expansion's sources that are not published on the server, or of which one
    /// of these columns is missing or failed.
    ///
    /// # Errors
    /// [`StoreError`] when the server cannot be read, or there is none.
    pub fn unanswered(&self, of: &Expansion, columns: &[String]) -> Result<i64, StoreError> {
        self.there()?.unanswered(of, columns)
    }

    /// Has the server run a query that only reads: the names of its columns are given to
    /// the reader first, then its rows one by one.
    ///
    /// # Errors
    /// [`QueryStop`](postgres::query::QueryStop).
    pub fn run_there<E>(
        &self,
        sql: &str,
        timeout: Option<Duration>,
        columns: &mut dyn FnMut(&[String]) -> Result<(), E>,
        row: &mut dyn FnMut(&[ValueRef<'_>]) -> Result<(), E>,
    ) -> Result<(), postgres::query::QueryStop<E>> {
        self.there()?.query(sql, timeout, columns, row)
    }

    /// The server, where something can be run on none but one.
    fn there(&self) -> Result<&DatabaseServer, StoreError> {
        self.server().ok_or_else(|| StoreError::Missing(self.path.clone()))
    }

    /// The connection, to set its hooks.
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Gives an error of `SQLite` its meaning and this path.
    #[must_use]
    pub fn error(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::from_sqlite(&self.path, error)
    }

    /// Whether hqdl's tables are here.
    #[must_use]
    pub fn has_bookkeeping(&self) -> bool {
        self.connection
            .query_row("SELECT 1 FROM sqlite_schema WHERE name = 'hqdl_object'", [], |_| Ok(()))
            .is_ok()
    }
}

/// Whether a database cannot be read before what a killed process left is undone.
fn is_left_behind(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|e| e.extended_code);
    code.is_some_and(|c| {
        [ffi::SQLITE_READONLY_ROLLBACK, ffi::SQLITE_READONLY_RECOVERY].contains(&c)
    })
}

/// What tells a file from another one with the same path.
#[cfg(unix)]
fn file_at(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Where an open file cannot be replaced, nothing needs to be told apart.
#[cfg(not(unix))]
fn file_at(_: &Path) -> Option<(u64, u64)> {
    None
}
