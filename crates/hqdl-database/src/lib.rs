//! Databases that hqdl reads and expands: `SQLite` files, and databases on a server.
//!
//! [`Database`] opens a database, [`schema`] describes it, [`keys`] lists the semantic keys of an
//! expansion, [`row_contexts`] the contexts of its rows, and [`entity_rows`] the rows of one entity. [`publish`] writes the published tables
//! and views, and [`rows`] writes the rows whose [`versions`] have changed. [`buckets`] finds the
//! keys that have changed since a publication. [`published_state`] describes the published state and
//! its inputs, [`provenance`] returns the origin of a cell, and [`migrate`] updates hqdl's own
//! tables. [`postgres`] implements the operations for databases on a server.

pub mod buckets;
pub mod clean;
pub mod entity_rows;
pub mod keys;
pub mod migrate;
pub mod output;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
pub mod parquet_file;
pub mod postgres;
pub mod provenance;
pub mod publish;
mod refresh;
pub mod row_contexts;
pub mod rows;
pub mod schema;
mod source_sql;
mod sqlite_file;
mod target;
pub mod tls;
pub mod published_state;
pub mod versions;
mod view;
pub use view::ExpandedSelect;

/// Reader of the published files, for tests.
#[cfg(feature = "parquet")]
#[doc(hidden)]
pub use ::parquet as parquet_format;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

use self::postgres::DatabaseServer;
use self::sqlite_file::SqliteFile;
use self::target::PublishTarget;
pub use self::target::WriteOnlyOutput;
use hqdl_spec::{Expansion, is_server};
use hqdl_values::format::hide_secrets;
use hqdl_values::sql::quote_name;

/// Outputs that hqdl writes but does not read.
static WRITE_ONLY_OUTPUTS: [&WriteOnlyOutput; 1] = [&PARQUET_FOLDER];

static PARQUET_FOLDER: WriteOnlyOutput = WriteOnlyOutput {
    noun: "a folder of Parquet files",
    matches: |path| path.to_string_lossy().ends_with(std::path::is_separator) || path.is_dir(),
    is_written: |path| path.join(output::FOLDER_MANIFEST).is_file(),
    #[cfg(feature = "parquet")]
    open: Some(parquet::open_folder),
    #[cfg(not(feature = "parquet"))]
    open: None,
    is_file_of_folder: Some(|name| name == output::FOLDER_MANIFEST || name.ends_with(".parquet")),
    build_hint: "use a released program or the Python module, or build hqdl with `--features parquet`",
    read_hint: "read the files with DuckDB, Spark, pandas or polars, or pass --output FILE.db: publishing into a database requests no answer again",
};

/// Returns the kind of an output that hqdl writes but does not read; `None` for a database.
#[must_use]
pub fn find_write_only_output(output: &Path) -> Option<&'static WriteOnlyOutput> {
    WRITE_ONLY_OUTPUTS.into_iter().find(|kind| (kind.matches)(output))
}

/// Maximum time to wait for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file does not exist.
    #[error("no database at {}", hide_secrets(&.0.to_string_lossy()))]
    Missing(PathBuf),
    /// The file exists, but is not a `SQLite` database.
    #[error("{} is not a SQLite database", .0.display())]
    NotADatabase(PathBuf),
    /// The path is a directory.
    #[error("{} is a directory, not a SQLite database", .0.display())]
    Directory(PathBuf),
    /// The file is damaged.
    #[error("{} is damaged, or only a part of a database", .0.display())]
    Damaged(PathBuf),
    /// Another process has locked the database.
    #[error("{} is locked by another process", .0.display())]
    Locked(PathBuf),
    /// The database cannot be written.
    #[error("{} cannot be written", .0.display())]
    ReadOnly(PathBuf),
    /// The disk with the database is full.
    #[error("the disk with {} is full", output::published_path(_0).display())]
    DiskFull(PathBuf),
    /// `SQLite` reported another error.
    #[error("{}: {message}", path.display())]
    Sqlite {
        /// Path of the database.
        path: PathBuf,
        /// `SQLite`'s message.
        message: String,
    },
    /// The output exists, and hqdl did not create it.
    #[error("{} exists and is not a copy that hqdl made", .0.display())]
    ForeignOutput(PathBuf),
    /// The database has an object of the user with a name that hqdl reserves.
    #[error("{} has a table or index `{name}`, but names that begin with hqdl_ are reserved for hqdl", path.display())]
    Reserved {
        /// Path of the database.
        path: PathBuf,
        /// Name of the user's object.
        name: String,
    },
    /// The output is a copy of a different database.
    #[error("{} is a copy of another database, {of}", path.display())]
    OtherCopy {
        /// Path of the output.
        path: PathBuf,
        /// Database from which the output was copied.
        of: String,
    },
    /// The output is older than its database, and contains objects that hqdl did not create.
    #[error("{} must be copied again from its database, which would delete these tables: {names}", path.display())]
    OwnObjects {
        /// Path of the output.
        path: PathBuf,
        /// Tables and views of the user.
        names: String,
    },
    /// The output is a folder of another spec.
    #[error("{} has the tables of another spec, {of}", path.display())]
    OtherSpec {
        /// Path of the folder.
        path: PathBuf,
        /// Path of the other spec.
        of: String,
    },
    /// This program was built without support for the output.
    #[error("{} is {}, which this build of hqdl cannot write", .0.display(), .1.noun)]
    UnsupportedOutput(PathBuf, &'static WriteOnlyOutput),
    /// The operation reads published tables, but hqdl does not read the output.
    #[error("{} is {}, which hqdl writes but does not read", .0.display(), .1.noun)]
    UnreadableOutput(PathBuf, &'static WriteOnlyOutput),
    /// A newer version of hqdl wrote the folder.
    #[error("{} has format {format}, which this version of hqdl does not support", path.display())]
    NewerFolder {
        /// Path of the manifest.
        path: PathBuf,
        /// Version of the manifest's format.
        format: u32,
    },
    /// The database file was replaced by another file after it was read.
    #[error("{} was replaced by another file during the run", .0.display())]
    Replaced(PathBuf),
    /// A server is unreachable, or denies the connection or the operation.
    #[error("the database {url}: {message}")]
    Server {
        /// URL without the password.
        url: String,
        /// The server's message.
        message: String,
        /// Hint for the user.
        hint: &'static str,
    },
    /// A server rejects a statement as invalid.
    #[error("the database {url}: {message}")]
    Statement {
        /// URL without the password.
        url: String,
        /// The server's message.
        message: String,
    },
    /// The operation requires a file, but the database is on a server.
    #[error("the database {url} is on a server: {what}")]
    NotOnServer {
        /// URL without the password.
        url: String,
        /// Operation that requires a file.
        what: &'static str,
        /// Alternative that the user can choose.
        hint: &'static str,
    },
    /// A file operation failed.
    #[error("cannot use {}: {}", path.display(), hqdl_values::format::describe_write_error(path, error))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
}

impl StoreError {
    /// Classifies a `SQLite` error.
    #[must_use]
    pub fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase(path),
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged(path),
            Some(ErrorCode::CannotOpen) if let Err(error) = std::fs::File::open(&path) => {
                Self::File { path, error }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked(path),
            Some(ErrorCode::ReadOnly) => Self::ReadOnly(path),
            Some(ErrorCode::DiskFull) => Self::DiskFull(path),
            _ => Self::Sqlite { path, message: describe_sqlite_error(error) },
        }
    }

    /// Returns the error message without the name of the database, if possible.
    fn message_text(&self) -> String {
        match self {
            Self::Sqlite { message, .. }
            | Self::Server { message, .. }
            | Self::Statement { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// Returns a hint for the user.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing(path) if path.to_string_lossy().contains("://") => {
                "name a file, or a server as postgres://user@host/database"
            }
            Self::Missing(path) if path.iter().any(|part| part == "~") => {
                "hqdl does not expand `~`: write the full path, such as /home/me/c.sqlite"
            }
            Self::Missing(_) => "check `path` in [database], which is relative to the spec",
            Self::NotADatabase(_) => {
                "name a SQLite 3 database; `hqdl init FILE.csv` makes one from a CSV file"
            }
            Self::Directory(_) => "name the database file in it",
            Self::Damaged(_) => "restore a backup, or use the output of `sqlite3 FILE .recover`",
            Self::Locked(_) => {
                "close the program that writes to it, then run this again; nothing was lost"
            }
            Self::DiskFull(_) => "free some space and run this again; all answers are kept",
            Self::ReadOnly(_) => "set `output` in [database], or pass --output, to write to a copy",
            Self::Reserved { .. } => "rename it, then run this again",
            Self::OtherCopy { .. } => {
                "choose another `output` for this database, or delete that file"
            }
            Self::OtherSpec { .. } => "choose another `output` for this spec",
            Self::UnsupportedOutput(_, kind) => kind.build_hint,
            Self::UnreadableOutput(_, kind) => kind.read_hint,
            Self::NewerFolder { .. } => "use the hqdl that wrote it, or a newer one",
            Self::OwnObjects { .. } => "move these tables to another database, then run this again",
            Self::Replaced(_) => "run this again; all answers are kept",
            Self::Server { hint, .. } | Self::NotOnServer { hint, .. } => hint,
            Self::Statement { .. } => {
                "check the spec against the database: `hqdl check SPEC`; all answers are kept"
            }
            Self::ForeignOutput(_) => "choose another `output`, or move that file away",
            Self::Sqlite { .. } | Self::File { .. } => {
                "check that the file and its directory can be read and written, then run this again"
            }
        }
    }
}

/// Returns `SQLite`'s message without the error code.
#[must_use]
pub fn describe_sqlite_error(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        rusqlite::Error::MultipleStatement => {
            "the text contains more than one statement".to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns the current time in RFC 3339 format.
#[must_use]
pub fn current_timestamp() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now).to_string()
}

/// An open database, with its path for messages.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    connection: Connection,
    /// Device and inode of the file; `None` if the system has none.
    file_identity: Option<(u64, u64)>,
    /// Server of the database; `None` for a file. With a server, `connection` is a private local
    /// database.
    server: Option<Arc<DatabaseServer>>,
    /// Target that contains the published tables.
    target: Arc<dyn PublishTarget>,
}

impl Database {
    /// Opens an existing database for reading.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database is missing, locked or not a database.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    /// Opens an existing database for reading and writing.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the file is missing, locked, read-only or not a database.
    pub fn open_writable(path: &Path) -> Result<Self, StoreError> {
        let db = Self::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        db.target.check_writable(&db)?;
        Ok(db)
    }

    /// Opens an `output` for a publication. A write-only output is created if it does not exist.
    pub(crate) fn open_writable_output(path: &Path) -> Result<Self, StoreError> {
        let Some(kind) = find_write_only_output(path) else {
            return Self::open_writable(path);
        };
        let db = kind.open(path)?;
        db.target.check_writable(&db)?;
        Ok(db)
    }

    /// Opens the copy that a spec names as its `output`. A write-only output need not exist.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the copy is missing, locked or not a database.
    pub(crate) fn open_output(path: &Path) -> Result<Self, StoreError> {
        find_write_only_output(path).map_or_else(|| Self::open(path), |kind| kind.open(path))
    }

    /// Opens a database on a server, by its URL.
    fn connect(url: &Path) -> Result<Self, StoreError> {
        let server = DatabaseServer::connect(url)?;
        let error = |e: rusqlite::Error| StoreError::from_sqlite(server.display_url().as_ref(), &e);
        // An empty path opens a private temporary database.
        let connection = Connection::open("").map_err(error)?;
        server.read_bookkeeping(&connection)?;
        let server = Arc::new(server);
        Ok(Self {
            path: url.to_owned(),
            connection,
            file_identity: None,
            target: server.clone(),
            server: Some(server),
        })
    }

    fn open_with_flags(path: &Path, mode: OpenFlags) -> Result<Self, StoreError> {
        if is_server(path) {
            return Self::connect(path);
        }
        if !path.exists() {
            return Err(StoreError::Missing(path.to_owned()));
        }
        if let Some(kind) = WRITE_ONLY_OUTPUTS.iter().find(|kind| (kind.is_written)(path)) {
            return kind.open(path);
        }
        if path.is_dir() {
            return Err(StoreError::Directory(path.to_owned()));
        }
        let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
        // Read the identity before opening the file, so that a later replacement is detected.
        let file_identity = read_file_identity(path);
        let mut mode = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // URIs allow attaching another database read-only.
        if !path.to_string_lossy().starts_with("file:") {
            mode |= OpenFlags::SQLITE_OPEN_URI;
        }
        let connection = Connection::open_with_flags(path, mode).map_err(error)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(error)?;
        // Only the first read shows that a file is not a database.
        let read_schema =
            |c: &Connection| c.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
        match read_schema(&connection) {
            // A writer was killed, so its unfinished changes must be rolled back first. This
            // requires a writable connection.
            Err(e) if needs_recovery(&e) => {
                let recovered =
                    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
                        .and_then(|c| c.busy_timeout(BUSY_TIMEOUT).and_then(|()| read_schema(&c)));
                recovered.and_then(|()| read_schema(&connection)).map_err(error)?;
            }
            result => result.map_err(error)?,
        }
        migrate::create_compatibility_view(&connection).map_err(error)?;
        let target = Arc::new(SqliteFile);
        Ok(Self { path: path.to_owned(), connection, file_identity, server: None, target })
    }

    /// Returns a number that changes when another connection writes to the database.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database cannot be read.
    pub fn data_version(&self) -> Result<i64, StoreError> {
        if let Some(server) = &self.server {
            return server.snapshot_version();
        }
        self.connection
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(|e| self.to_store_error(&e))
    }

    /// Returns a number that changes, possibly with a delay, when a client writes to a table on the
    /// server that hqdl did not create. Returns 0 for a file, because the operating system reports
    /// changes to files.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the server cannot be queried.
    pub fn change_counter(&self) -> Result<i64, StoreError> {
        self.server().map_or(Ok(0), DatabaseServer::change_counter)
    }

    /// Copies the published cells of an expansion to the local connection, unless they are already
    /// there.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the cells cannot be read.
    pub fn fetch_published_cells(&self, expansion: &str) -> Result<(), StoreError> {
        if self.has_bookkeeping() { self.target.fetch_all_cells(self, expansion) } else { Ok(()) }
    }

    /// Returns true if the file was replaced or removed.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.file_identity.is_some() && self.file_identity != read_file_identity(&self.path)
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn server(&self) -> Option<&DatabaseServer> {
        self.server.as_deref()
    }

    /// Returns the URL of the server without the password; `None` if the database is a file.
    #[must_use]
    pub fn server_url(&self) -> Option<&str> {
        self.server().map(DatabaseServer::display_url)
    }

    /// Returns the views of a database on a server, named as in the catalog; empty for a file.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the server cannot be read.
    pub fn list_server_views(&self) -> Result<Vec<String>, StoreError> {
        self.server().map_or_else(|| Ok(Vec::new()), DatabaseServer::list_views)
    }

    /// Returns a table's name of the catalog as SQL writes it. On a server, the name can include a
    /// schema.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the server cannot be read.
    pub fn write_table_name(&self, name: &str) -> Result<String, StoreError> {
        let server = self.server().filter(|_| name.contains('.'));
        let qualified = server.map(|server| server.find_table(name)).transpose()?;
        Ok(qualified.flatten().unwrap_or_else(|| quote_name(name)))
    }

    /// Returns the connection. If the database is on a server, this is a private local connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Checks that the database is a file, which `operation` requires.
    ///
    /// # Errors
    /// Returns [`StoreError::NotOnServer`], with the operation and an alternative, if the database
    /// is on a server.
    pub fn require_file(
        &self,
        operation: &'static str,
        hint: &'static str,
    ) -> Result<(), StoreError> {
        match self.server_url() {
            Some(url) => {
                Err(StoreError::NotOnServer { url: url.to_owned(), what: operation, hint })
            }
            None => Ok(()),
        }
    }

    /// If the database is on a server, copies the first rows of each table to the local connection.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the rows cannot be read.
    pub fn load_samples(&self, max_rows: u64) -> Result<(), StoreError> {
        match self.server() {
            Some(server) => server.copy_samples(max_rows, &self.connection),
            None => Ok(()),
        }
    }

    /// Creates empty local tables with the names and columns of the server's tables. Does nothing
    /// if the database is a file.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the server cannot be read.
    pub fn create_empty_tables(&self) -> Result<(), StoreError> {
        self.server().map_or(Ok(()), |server| server.create_empty_tables(&self.connection))
    }

    /// Checks that the server accepts a query.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the server rejects the query, or if the database is a file.
    pub fn check_query(&self, sql: &str) -> Result<(), StoreError> {
        self.require_server()?.list_select_columns(sql.trim_end().trim_end_matches(';')).map(drop)
    }

    /// Returns the number of keys of an expansion's sources that are not published on the server,
    /// or that have a missing or failed cell in one of these columns.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the server cannot be read, or if the database is a file.
    pub fn count_unanswered_keys(
        &self,
        expansion: &Expansion,
        columns: &[String],
    ) -> Result<i64, StoreError> {
        self.require_server()?.count_unanswered_keys(expansion, columns)
    }

    /// Runs a read-only query on the server: calls `columns` with the column names first, then
    /// `row` with each row.
    ///
    /// # Errors
    /// Returns [`QueryStop`](postgres::query::QueryStop) if the query fails, the timeout expires,
    /// or a callback fails.
    pub fn run_query_on_server<E>(
        &self,
        sql: &str,
        timeout: Option<Duration>,
        columns: &mut dyn FnMut(&[String]) -> Result<(), E>,
        row: &mut dyn FnMut(&[ValueRef<'_>]) -> Result<(), E>,
    ) -> Result<(), postgres::query::QueryStop<E>> {
        self.require_server()?.run_query(sql, timeout, columns, row)
    }

    /// Returns the reason why the role of a server's URL cannot publish; `None` if it can, or if
    /// the database is a file.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the server cannot be read.
    pub fn find_missing_permission(&self) -> Result<Option<String>, StoreError> {
        self.server().map_or(Ok(None), DatabaseServer::find_missing_permission)
    }

    /// Returns the server; fails if the database is a file.
    fn require_server(&self) -> Result<&DatabaseServer, StoreError> {
        self.server().ok_or_else(|| StoreError::Missing(self.path.clone()))
    }

    /// Checks that SQL over this database can read the published tables.
    ///
    /// # Errors
    /// Returns [`StoreError::UnreadableOutput`] if hqdl does not read the tables.
    pub fn check_readable(&self) -> Result<(), StoreError> {
        self.target.check_readable()
    }

    /// Returns the connection mutably, which is needed to set its hooks.
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Converts a `SQLite` error into a [`StoreError`] with this database's path.
    #[must_use]
    pub fn to_store_error(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::from_sqlite(&self.path, error)
    }

    /// Returns true if the database has hqdl's tables.
    #[must_use]
    pub fn has_bookkeeping(&self) -> bool {
        self.connection
            .query_row("SELECT 1 FROM sqlite_schema WHERE name = 'hqdl_object'", [], |_| Ok(()))
            .is_ok()
    }
}

/// Returns true if a database cannot be read before the changes of a killed process are rolled
/// back.
fn needs_recovery(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|e| e.extended_code);
    code.is_some_and(|c| {
        [ffi::SQLITE_READONLY_ROLLBACK, ffi::SQLITE_READONLY_RECOVERY].contains(&c)
    })
}

/// Returns the device and inode of a file, which distinguish it from other files with the same
/// path.
#[cfg(unix)]
fn read_file_identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// On other systems an open file cannot be replaced, so no identity is needed.
#[cfg(not(unix))]
fn read_file_identity(_: &Path) -> Option<(u64, u64)> {
    None
}
