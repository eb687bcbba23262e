//! Output of a spec: the database itself, or a copy of it.
//!
//! If a copy is older than its database, the publishing transaction also updates the rows that
//! differ (`sqlite_file`). If that is not possible, hqdl creates a new copy with the new tables
//! beside the old copy, and then replaces the old copy atomically. Until then, the old copy is
//! unchanged, even if the run is slow, fails or crashes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use tracing::info;

use super::target::OutputState;
use super::{BUSY_TIMEOUT, Database, StoreError, find_write_only_output, migrate};
use hqdl_spec::Spec;

/// Name of the file with the bookkeeping of a folder of Parquet files.
pub(super) const FOLDER_MANIFEST: &str = "hqdl.json";

/// Row of `hqdl_object` with the fingerprint of a copy's source.
pub(super) const COPY_SOURCE_KEY: &str = "hqdl:copied_from";

/// State of a spec's output before a run.
#[derive(Debug)]
pub enum OutputTarget {
    /// The database itself.
    InPlace(PathBuf),
    /// A copy that is up to date.
    Current(Database),
    /// A copy that is older than its database and can be updated in place.
    Outdated(Database),
    /// A copy that must be created or recreated.
    Stale(PathBuf),
}

impl OutputTarget {
    /// Inspects the output of a database, or the database itself if `output` is `None`.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database has an object with a reserved name, or if recreating
    /// `output` would destroy other data.
    pub fn inspect(source: &Database, output: Option<&Path>) -> Result<Self, StoreError> {
        if !source.has_bookkeeping()
            && let Some(name) = find_reserved_name(source).map_err(|e| source.to_store_error(&e))?
        {
            return Err(StoreError::Reserved { path: source.path.clone(), name });
        }
        let Some(output) = output else { return Ok(Self::InPlace(source.path.clone())) };
        if find_write_only_output(output).is_none() && !output.exists() {
            return Ok(Self::Stale(output.to_owned()));
        }
        let copy = Database::open_output(output)?;
        Ok(match copy.target.compare_with_source(&copy, source)? {
            OutputState::Current => Self::Current(copy),
            OutputState::Outdated => Self::Outdated(copy),
            OutputState::Stale => Self::Stale(output.to_owned()),
        })
    }

    /// Returns the database with the current published tables, if it exists.
    #[must_use]
    pub fn published_database<'d>(&'d self, source: &'d Database) -> Option<&'d Database> {
        match self {
            Self::InPlace(_) => Some(source),
            Self::Current(copy) => Some(copy),
            Self::Outdated(_) | Self::Stale(_) => None,
        }
    }

    /// Returns the database that contains the tables of the previous run: an outdated copy, or
    /// otherwise the result of [`Self::published_database`].
    #[must_use]
    pub fn previous_database<'d>(&'d self, source: &'d Database) -> Option<&'d Database> {
        match self {
            Self::Outdated(copy) => Some(copy),
            _ => self.published_database(source),
        }
    }

    /// Checks that the output can be written, before any request is paid for.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the output is read-only or locked.
    pub fn check_writable(&self, spec: &Spec) -> Result<(), StoreError> {
        let check = |path: &Path| {
            let db = Database::open_writable_output(path)?;
            db.target.check_names(&db, spec)
        };
        match self {
            Self::InPlace(path) => Database::open_writable(path).map(drop),
            Self::Current(copy) | Self::Outdated(copy) => check(&copy.path),
            Self::Stale(path) if path.exists() => check(path),
            Self::Stale(path) => {
                let file = |error| StoreError::File { path: path.clone(), error };
                if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                    std::fs::create_dir_all(parent).map_err(file)?;
                }
                let temporary = temporary_path(path);
                File::create(&temporary).map_err(file)?;
                std::fs::remove_file(&temporary).map_err(file)
            }
        }
    }

    /// Opens the database to publish into.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the target cannot be opened or created, or if the source file was
    /// replaced.
    pub fn open_target(&self, source: &Database) -> Result<OutputDatabase, StoreError> {
        let target = self.open_database(source)?;
        // The data read so far comes from the old file.
        if source.is_replaced() {
            target.abandon();
            return Err(StoreError::Replaced(source.path.clone()));
        }
        Ok(target)
    }

    fn open_database(&self, source: &Database) -> Result<OutputDatabase, StoreError> {
        match self {
            Self::InPlace(path) => {
                let database = Database::open_writable(path)?;
                Ok(OutputDatabase { database, output: None, lock: None, stamp: None })
            }
            Self::Current(Database { path, .. }) | Self::Outdated(Database { path, .. }) => {
                let database = Database::open_writable_output(path)?;
                let is_outdated = matches!(self, Self::Outdated(_));
                let stamp = database.target.attach_source(&database, source, is_outdated)?;
                Ok(OutputDatabase { database, output: None, lock: None, stamp })
            }
            Self::Stale(output) => {
                let temporary = temporary_path(output);
                let _ = std::fs::remove_file(&temporary);
                let lock = create_locked_file(&temporary)?;
                match copy_database(source, &temporary) {
                    Ok(database) => Ok(OutputDatabase {
                        database,
                        output: Some(output.clone()),
                        lock: Some(lock),
                        stamp: None,
                    }),
                    Err(error) => {
                        let _ = std::fs::remove_file(&temporary);
                        Err(error)
                    }
                }
            }
        }
    }
}

/// Checks that this build can publish into an output.
///
/// # Errors
/// Returns [`StoreError::UnsupportedOutput`] if hqdl was built without support for the output.
pub fn check_support(output: Option<&Path>) -> Result<(), StoreError> {
    match output.and_then(|output| Some((output, find_write_only_output(output)?))) {
        Some((output, kind)) if kind.open.is_none() => {
            Err(StoreError::UnsupportedOutput(output.to_owned(), kind))
        }
        _ => Ok(()),
    }
}

/// Returns the path of the database with the expanded tables (the copy, if there is one), and
/// whether the copy is older than its database. If hqdl does not read the output, returns the source.
///
/// # Errors
/// Returns [`StoreError`] if `output` is not a copy of this database.
pub fn find_expanded_database(
    source: &Database,
    output: Option<&Path>,
) -> Result<(PathBuf, bool), StoreError> {
    let Some(output) = output.filter(|o| o.exists() && find_write_only_output(o).is_none()) else {
        return Ok((source.path.clone(), false));
    };
    match OutputTarget::inspect(source, Some(output)) {
        Ok(OutputTarget::Stale(_) | OutputTarget::Outdated(_)) => Ok((output.to_owned(), true)),
        Ok(_) => Ok((output.to_owned(), false)),
        Err(
            error @ (StoreError::ForeignOutput(_)
            | StoreError::OtherCopy { .. }
            | StoreError::NotADatabase(_)
            | StoreError::Locked(_)),
        ) => Err(error),
        // These errors prevent recreating the copy, but not reading it.
        Err(_) => Ok((output.to_owned(), true)),
    }
}

/// Database that a run publishes into.
#[derive(Debug)]
pub struct OutputDatabase {
    database: Database,
    /// Output that the new copy will replace; `None` if the target is written in place.
    output: Option<PathBuf>,
    /// Lock on the temporary copy, which shows that a process is using the copy.
    lock: Option<File>,
    /// Fingerprint of the source version to which the copy is updated.
    stamp: Option<String>,
}

impl OutputDatabase {
    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Updates the rows of a copy to match its database, in the current transaction.
    ///
    /// # Errors
    /// Returns [`StoreError`] if rows cannot be read or written.
    pub fn refresh(&self) -> Result<(), StoreError> {
        let Some(stamp) = &self.stamp else { return Ok(()) };
        let connection = &self.database.connection;
        self.database.target.refresh_rows(&self.database)?;
        let sql = "INSERT OR REPLACE INTO hqdl_object (name, type) VALUES (?1, ?2)";
        let recorded = connection.execute(sql, [COPY_SOURCE_KEY, stamp]).map(drop);
        recorded.map_err(|e| self.database.to_store_error(&e))
    }

    /// Atomically replaces the old copy with the new one.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the old copy cannot be replaced, in which case it is unchanged.
    pub fn finish(self) -> Result<(), StoreError> {
        let Some(output) = self.output.clone() else { return Ok(()) };
        let temporary = self.database.path.clone();
        if !output.exists() {
            drop(self.database);
            drop(self.lock);
            return std::fs::rename(&temporary, &output)
                .map_err(|error| StoreError::File { path: output, error });
        }
        // Use SQLite's backup API instead of a rename, because SQLite coordinates the backup with
        // readers of the old copy and with its write-ahead log.
        let replaced = Database::open_writable(&output).and_then(|mut old| {
            copy_pages(&self.database.connection, &mut old.connection, &output)
        });
        self.abandon();
        replaced
    }

    /// Abandons the publication: leaves the old output unchanged and removes the unfinished copy.
    pub fn abandon(self) {
        let temporary = self.output.is_some().then(|| self.database.path.clone());
        drop(self.database);
        if let Some(temporary) = temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Creates a new copy of a database, and adds hqdl's bookkeeping to it.
fn copy_database(source: &Database, path: &Path) -> Result<Database, StoreError> {
    let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
    let fingerprint = compute_file_fingerprint(&source.path, path)?;
    let mut target = Connection::open(path).map_err(error)?;
    copy_pages(&source.connection, &mut target, &source.path).map_err(|e| match e {
        // Name the copy, because it is the only file that is written.
        StoreError::DiskFull(_) => StoreError::DiskFull(path.to_owned()),
        other => other,
    })?;
    // In WAL mode, the copy would need its own write-ahead log.
    target.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).map_err(error)?;
    migrate::migrate_database(&target).map_err(error)?;
    target
        .execute(
            "INSERT OR REPLACE INTO hqdl_object (name, type) VALUES (?1, ?2)",
            [COPY_SOURCE_KEY, &fingerprint],
        )
        .map_err(error)?;
    target.close().map_err(|(_, e)| error(e))?;
    Database::open_writable(path)
}

/// Copies all pages in one step, so that the copy is consistent and its target is overwritten
/// atomically. Waits for a lock for a limited time.
fn copy_pages(from: &Connection, to: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
    let backup = Backup::new(from, to).map_err(error)?;
    let started = Instant::now();
    loop {
        match backup.step(-1).map_err(error)? {
            StepResult::Done => return Ok(()),
            _ if started.elapsed() > BUSY_TIMEOUT => {
                return Err(StoreError::Locked(path.to_owned()));
            }
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Returns the fingerprint of a copy's source; `None` if hqdl did not create the copy.
pub(super) fn read_copy_source(copy: &Database) -> Result<Option<String>, StoreError> {
    if !copy.has_bookkeeping() {
        return Ok(None);
    }
    let sql = "SELECT type FROM hqdl_object WHERE name = ?1";
    match copy.connection.query_row(sql, [COPY_SOURCE_KEY], |row| row.get(0)) {
        Ok(fingerprint) => Ok(Some(fingerprint)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(copy.to_store_error(&error)),
    }
}

/// Returns the database that a copy was made from, if it is not the current database and still
/// exists.
pub(super) fn find_other_source(output: &Path, recorded: &str, current: &str) -> Option<String> {
    let of = extract_fingerprint_path(recorded);
    let is_other = of != extract_fingerprint_path(current) && output.with_file_name(of).exists();
    is_other.then(|| of.to_owned())
}

/// Returns a table or index of the user that has a reserved name; `None` if there is none.
fn find_reserved_name(db: &Database) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT min(name) FROM sqlite_schema WHERE name LIKE 'hqdl\\_%' ESCAPE '\\'";
    db.connection.query_row(sql, [], |row| row.get(0))
}

/// Returns the temporary path beside an output.
pub(super) fn temporary_path(output: &Path) -> PathBuf {
    let mut path = output.as_os_str().to_owned();
    path.push(format!(".{}.part", std::process::id()));
    PathBuf::from(path)
}

/// Returns the path of the output that a temporary file is for; any other path is unchanged.
pub(super) fn published_path(path: &Path) -> PathBuf {
    let published = path.to_str().and_then(|text| {
        let (output, id) = text.strip_suffix(".part")?.rsplit_once('.')?;
        id.parse::<u32>().is_ok().then(|| PathBuf::from(output))
    });
    published.unwrap_or_else(|| path.to_owned())
}

/// Creates an empty file and locks it until the result is dropped. `SQLite` treats the file as an
/// empty database; its own locks are independent of this one.
pub(super) fn create_locked_file(path: &Path) -> Result<File, StoreError> {
    let created = File::create_new(path).inspect(|file| {
        // If the system has no file locks, the process ID in the name must suffice.
        let _ = file.try_lock();
    });
    created.map_err(|error| StoreError::File { path: path.to_owned(), error })
}

/// Removes temporary files that killed processes left beside an output, or in the folder that is
/// the output. A file is removed if it is not locked and its process no longer exists.
pub fn remove_stale_files(output: &Path) {
    let parent = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_file_of_folder = find_write_only_output(output).and_then(|kind| kind.is_file_of_folder);
    let name = output.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let folder = if is_file_of_folder.is_some() { output } else { parent };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let parse = |file| parse_temporary_name(file, name, is_file_of_folder);
        let Some(id) = file.to_str().and_then(parse) else {
            continue;
        };
        if id == std::process::id() || !is_process_gone(id) {
            continue;
        }
        let path = entry.path();
        // The file may be locked by a process that is not visible here, for example in another
        // container.
        let is_locked = File::open(&path).map_or(true, |file| file.try_lock().is_err());
        if !is_locked && std::fs::remove_file(&path).is_ok() {
            info!(path = %path.display(), process = id, "deletes the files of a killed run");
        }
    }
}

/// Returns the process ID in the name of a temporary file. The file must belong to the output with
/// this name or, if the output is a folder, to its files.
fn parse_temporary_name(
    file: &str,
    output: &str,
    is_file_of_folder: Option<fn(&str) -> bool>,
) -> Option<u32> {
    if let Some(is_ours) = is_file_of_folder {
        let (name, id) = file.strip_suffix(".part")?.rsplit_once('.')?;
        return id.parse().ok().filter(|_| is_ours(name));
    }
    let id = file.strip_prefix(output).filter(|_| !output.is_empty())?.strip_prefix('.')?;
    // The journal files of a copy contain the copy's process ID, and are removed with it.
    let id = ["-journal", "-wal", "-shm", ""].iter().find_map(|end| id.strip_suffix(end))?;
    id.strip_suffix(".part")?.parse().ok()
}

/// Returns true if no process with this ID is visible.
fn is_process_gone(id: u32) -> bool {
    let processes = Path::new("/proc");
    !processes.join("self").exists() || !processes.join(id.to_string()).exists()
}

/// Returns a cheap fingerprint of a database file's version: path, size and modification time of
/// the file and of its write-ahead log. The path is relative to the copy, so that the database and
/// the copy can be moved together.
pub(super) fn compute_file_fingerprint(path: &Path, copy: &Path) -> Result<String, StoreError> {
    let file = |error| StoreError::File { path: path.to_owned(), error };
    let full_path = path.canonicalize().map_err(file)?;
    let folder = copy.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.canonicalize().unwrap_or_default();
    let relative = full_path.strip_prefix(&folder).unwrap_or(&full_path);
    let file_version = |path: &Path| -> std::io::Result<String> {
        let meta = std::fs::metadata(path)?;
        let modified = meta.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{} bytes, {}.{:09}", meta.len(), modified.as_secs(), modified.subsec_nanos()))
    };
    let mut wal = full_path.as_os_str().to_owned();
    wal.push("-wal");
    // Ignore an empty log, because readers may create or remove it.
    let wal = Path::new(&wal);
    let wal = if std::fs::metadata(wal).is_ok_and(|m| m.len() > 0) {
        file_version(wal).unwrap_or_default()
    } else {
        String::new()
    };
    Ok(format!("{} ({}; {wal})", relative.display(), file_version(&full_path).map_err(file)?))
}

fn extract_fingerprint_path(fingerprint: &str) -> &str {
    fingerprint.rfind(" (").map_or(fingerprint, |end| &fingerprint[..end])
}
