//! Output of a spec: the database itself, or a copy of it.
//!
//! A copy that is older than its database gets the rows that differ, in the transaction
//! that publishes ([`refresh`](super::refresh)). Where that is not possible, it is made
//! again, beside the old one, and takes its place whole, with the new tables in it. Until
//! then the old one stands as it was, through a slow run, a failed one or a crash.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use tracing::info;

use super::{BUSY, Database, StoreError, migrate, refresh};

/// Row of `hqdl_object` with the fingerprint of a copy's source.
const COPIED_FROM: &str = "hqdl:copied_from";

/// State of a spec's output before a run.
#[derive(Debug)]
pub enum OutputTarget {
    /// The database itself.
    Itself(PathBuf),
    /// A copy that is up to date with its database.
    Current(Database),
    /// A copy that is older than its database, and has the same tables.
    Outdated(Database),
    /// A copy that must be created, or recreated.
    Stale(PathBuf),
}

impl OutputTarget {
    /// Inspects the output of a database, or the database itself.
    ///
    /// # Errors
    /// Returns [`StoreError`] if recreating `output` would destroy other data.
    pub fn look(source: &Database, output: Option<&Path>) -> Result<Self, StoreError> {
        if !source.has_bookkeeping()
            && let Some(name) = reserved(source).map_err(|e| source.error(&e))?
        {
            return Err(StoreError::Reserved { path: source.path.clone(), name });
        }
        let Some(output) = output else { return Ok(Self::Itself(source.path.clone())) };
        if !output.exists() {
            return Ok(Self::Stale(output.to_owned()));
        }
        let copy = Database::open(output)?;
        let Some(before) = copied_from(&copy)? else {
            return Err(StoreError::ForeignOutput(output.to_owned()));
        };
        let now = stamp(&source.path, output)?;
        if before == now {
            return Ok(Self::Current(copy));
        }
        let other = path_of(&before) != path_of(&now);
        if other && output.with_file_name(path_of(&before)).exists() {
            return Err(StoreError::OtherCopy {
                path: output.to_owned(),
                of: path_of(&before).to_owned(),
            });
        }
        let own = own_objects(source, &copy).map_err(|e| copy.error(&e))?;
        if !own.is_empty() {
            return Err(StoreError::OwnObjects { path: output.to_owned(), names: own.join(", ") });
        }
        if refresh::is_possible(source, &copy).map_err(|e| copy.error(&e))? {
            return Ok(Self::Outdated(copy));
        }
        Ok(Self::Stale(output.to_owned()))
    }

    /// Returns the database with the present published tables, if there is one.
    #[must_use]
    pub fn standing<'d>(&'d self, source: &'d Database) -> Option<&'d Database> {
        match self {
            Self::Itself(_) => Some(source),
            Self::Current(copy) => Some(copy),
            Self::Outdated(_) | Self::Stale(_) => None,
        }
    }

    /// The database that is published into, and has the tables of before: as
    /// [`standing`](Self::standing), or a copy that is older than its database.
    #[must_use]
    pub fn before<'d>(&'d self, source: &'d Database) -> Option<&'d Database> {
        match self {
            Self::Outdated(copy) => Some(copy),
            _ => self.standing(source),
        }
    }

    /// Checks that the output can be written, before any request is paid for.
    ///
    /// # Errors
    /// Returns [`StoreError`] if it is read-only or locked.
    pub fn try_writing(&self) -> Result<(), StoreError> {
        match self {
            Self::Itself(path) => Database::open_writable(path).map(|_| ()),
            Self::Current(copy) | Self::Outdated(copy) => {
                Database::open_writable(&copy.path).map(|_| ())
            }
            Self::Stale(path) if path.exists() => Database::open_writable(path).map(|_| ()),
            Self::Stale(path) => {
                let file = |error| StoreError::File { path: path.clone(), error };
                if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                    std::fs::create_dir_all(parent).map_err(file)?;
                }
                let part = part(path);
                File::create(&part).map_err(file)?;
                std::fs::remove_file(&part).map_err(file)
            }
        }
    }

    /// Opens the database to publish into.
    ///
    /// # Errors
    /// Returns [`StoreError`] if it cannot be opened or created, or if the source file was
    /// replaced.
    pub fn prepare(&self, source: &Database) -> Result<Place, StoreError> {
        let place = self.open(source)?;
        // The data read so far is from the old file.
        if source.is_replaced() {
            place.abandon();
            return Err(StoreError::Replaced(source.path.clone()));
        }
        Ok(place)
    }

    fn open(&self, source: &Database) -> Result<Place, StoreError> {
        match self {
            Self::Itself(path) | Self::Current(Database { path, .. }) => {
                let database = Database::open_writable(path)?;
                Ok(Place { database, output: None, held: None, stamp: None })
            }
            Self::Outdated(Database { path, .. }) => {
                let stamp = stamp(&source.path, path)?;
                let database = Database::open_writable(path)?;
                refresh::attach(&database, source)?;
                Ok(Place { database, output: None, held: None, stamp: Some(stamp) })
            }
            Self::Stale(output) => {
                let part = part(output);
                let _ = std::fs::remove_file(&part);
                let held = hold(&part)?;
                match copy(source, &part) {
                    Ok(database) => Ok(Place {
                        database,
                        output: Some(output.clone()),
                        held: Some(held),
                        stamp: None,
                    }),
                    Err(error) => {
                        let _ = std::fs::remove_file(&part);
                        Err(error)
                    }
                }
            }
        }
    }
}

/// Returns the path of the expanded tables (the copy, if there is one) and whether the copy is
/// older than its database.
///
/// # Errors
/// Returns [`StoreError`] if `output` is not a copy of this database.
pub fn readable(source: &Database, output: Option<&Path>) -> Result<(PathBuf, bool), StoreError> {
    let Some(output) = output.filter(|o| o.exists()) else {
        return Ok((source.path.clone(), false));
    };
    match OutputTarget::look(source, Some(output)) {
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

/// Database that is being published into.
#[derive(Debug)]
pub struct Place {
    database: Database,
    /// Output that the database will replace.
    output: Option<PathBuf>,
    /// Lock of the temporary copy, which shows that a process is using it.
    held: Option<File>,
    /// The version of the source that a copy is to be brought to.
    stamp: Option<String>,
}

impl Place {
    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Brings the rows of a copy to those of its database, in the transaction under way.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn refresh(&self) -> Result<(), StoreError> {
        let Some(stamp) = &self.stamp else { return Ok(()) };
        let connection = &self.database.connection;
        let refreshed = refresh::run(connection).and_then(|()| {
            let sql = "INSERT OR REPLACE INTO hqdl_object VALUES (?1, ?2, NULL)";
            connection.execute(sql, [COPIED_FROM, stamp]).map(|_| ())
        });
        refreshed.map_err(|e| self.database.error(&e))
    }

    /// Atomically replaces the old copy with the new one.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the old copy is locked; it is unchanged then.
    pub fn finish(self) -> Result<(), StoreError> {
        let Some(output) = self.output.clone() else { return Ok(()) };
        let part = self.database.path.clone();
        if !output.exists() {
            drop(self.database);
            drop(self.held);
            return std::fs::rename(&part, &output)
                .map_err(|error| StoreError::File { path: output, error });
        }
        // Use the SQLite backup API and not a rename, because SQLite coordinates with readers of
        // the old copy and its write-ahead log.
        let put = Database::open_writable(&output)
            .and_then(|mut old| run(&self.database.connection, &mut old.connection, &output));
        self.abandon();
        put
    }

    /// Leaves the old output unchanged, and removes an unfinished copy.
    pub fn abandon(self) {
        let part = self.output.is_some().then(|| self.database.path.clone());
        drop(self.database);
        if let Some(part) = part {
            let _ = std::fs::remove_file(part);
        }
    }
}

/// Creates a new copy of a database, with hqdl's bookkeeping.
fn copy(source: &Database, path: &Path) -> Result<Database, StoreError> {
    let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
    let stamp = stamp(&source.path, path)?;
    let mut target = Connection::open(path).map_err(error)?;
    run(&source.connection, &mut target, &source.path)?;
    // A copy of a database in WAL mode would need a write-ahead log of its own.
    target.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).map_err(error)?;
    migrate::database(&target).map_err(error)?;
    target
        .execute("INSERT OR REPLACE INTO hqdl_object VALUES (?1, ?2, NULL)", [COPIED_FROM, &stamp])
        .map_err(error)?;
    target.close().map_err(|(_, e)| error(e))?;
    Database::open_writable(path)
}

/// Copies all pages in one step, so that the copy is consistent and overwrites its target
/// atomically. Waits for a lock for a limited time.
fn run(from: &Connection, to: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
    let backup = Backup::new(from, to).map_err(error)?;
    let began = Instant::now();
    loop {
        match backup.step(-1).map_err(error)? {
            StepResult::Done => return Ok(()),
            _ if began.elapsed() > BUSY => return Err(StoreError::Locked(path.to_owned())),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Returns the fingerprint of a copy's source; `None` if hqdl did not create the copy.
pub(super) fn copied_from(copy: &Database) -> Result<Option<String>, StoreError> {
    if !copy.has_bookkeeping() {
        return Ok(None);
    }
    let sql = "SELECT type FROM hqdl_object WHERE name = ?1";
    match copy.connection.query_row(sql, [COPIED_FROM], |row| row.get(0)) {
        Ok(stamp) => Ok(Some(stamp)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(copy.error(&error)),
    }
}

/// Returns tables and views of a copy that are neither in its database nor created by hqdl.
pub(super) fn own_objects(source: &Database, copy: &Database) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\'";
    let names = |sql: &str, db: &Database| -> rusqlite::Result<Vec<String>> {
        db.connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
    };
    let known = names(sql, source)?;
    let made = names("SELECT name FROM hqdl_object", copy)?;
    let known = |name: &String| known.iter().chain(&made).any(|k| k.eq_ignore_ascii_case(name));
    Ok(names(sql, copy)?.into_iter().filter(|name| !known(name)).collect())
}

/// Returns a table or index of the user with a reserved name.
fn reserved(db: &Database) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT min(name) FROM sqlite_schema WHERE name LIKE 'hqdl\\_%' ESCAPE '\\'";
    db.connection.query_row(sql, [], |row| row.get(0))
}

/// Returns the temporary path beside an output.
fn part(output: &Path) -> PathBuf {
    let mut part = output.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    PathBuf::from(part)
}

/// Creates an empty file and locks it until the result is dropped. `SQLite` treats it as an empty
/// database; its own locks are independent.
fn hold(part: &Path) -> Result<File, StoreError> {
    let made = File::create_new(part).inspect(|file| {
        // If the system has no locks, the process ID in the name must suffice.
        let _ = file.try_lock();
    });
    made.map_err(|error| StoreError::File { path: part.to_owned(), error })
}

/// Removes temporary copies of killed processes beside an output. A copy is removed if it is not
/// locked and its process no longer exists.
pub fn sweep(output: &Path) {
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = output.file_name().and_then(|name| name.to_str()) else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let id = file.to_str().and_then(|file| {
            let id = file.strip_prefix(name)?.strip_prefix('.')?;
            // The journals of a copy are removed with it.
            let id =
                ["-journal", "-wal", "-shm", ""].iter().find_map(|end| id.strip_suffix(end))?;
            id.strip_suffix(".part").and_then(|id| id.parse::<u32>().ok())
        });
        let Some(id) = id.filter(|id| *id != std::process::id() && is_gone(*id)) else { continue };
        let path = entry.path();
        // A process that is not visible here may have locked it.
        let held = File::open(&path).map_or(true, |file| file.try_lock().is_err());
        if !held && std::fs::remove_file(&path).is_ok() {
            info!(path = %path.display(), process = id, "removes what a killed run left");
        }
    }
}

/// Returns true if no process with this ID is visible.
fn is_gone(id: u32) -> bool {
    let processes = Path::new("/proc");
    !processes.join("self").exists() || !processes.join(id.to_string()).exists()
}

/// Returns a cheap fingerprint of a database file's version: path, size and modification time of
/// the file and of its write-ahead log. The path is relative to the copy, so that both can be moved
/// together.
fn stamp(path: &Path, copy: &Path) -> Result<String, StoreError> {
    let file = |error| StoreError::File { path: path.to_owned(), error };
    let full = path.canonicalize().map_err(file)?;
    let folder = copy.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.canonicalize().unwrap_or_default();
    let seen = full.strip_prefix(&folder).unwrap_or(&full);
    let part = |path: &Path| -> std::io::Result<String> {
        let meta = std::fs::metadata(path)?;
        let changed = meta.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{} bytes, {}.{:09}", meta.len(), changed.as_secs(), changed.subsec_nanos()))
    };
    let mut wal = full.as_os_str().to_owned();
    wal.push("-wal");
    // Readers may create or remove an empty log.
    let wal = Path::new(&wal);
    let wal = if std::fs::metadata(wal).is_ok_and(|m| m.len() > 0) {
        part(wal).unwrap_or_default()
    } else {
        String::new()
    };
    Ok(format!("{} ({}; {wal})", seen.display(), part(&full).map_err(file)?))
}

/// Returns the path in a fingerprint.
fn path_of(stamp: &str) -> &str {
    stamp.rfind(" (").map_or(stamp, |end| &stamp[..end])
}
