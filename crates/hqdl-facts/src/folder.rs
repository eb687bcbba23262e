//! A cache's directory: its files, readable only by the owner, and their locks.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use crate::FactsError;

/// Prefixes of the file names in a cache directory.
const CACHE_FILE_PREFIXES: [&str; 6] =
    ["journal.sqlite", "index.", "lock", "sessions", "socket", "daemon"];

/// Creates the directory of a cache, or makes an existing one private. A directory that also
/// contains other files keeps its mode, because it may be shared on purpose.
///
/// # Errors
/// [`FactsError::UnknownUrl`] if `dir` is a URL, [`FactsError::NotAFolder`] if it is a file, and
/// [`FactsError::File`] if it cannot be read or created.
pub(super) fn create_cache_dir(dir: &Path) -> Result<(), FactsError> {
    let io_error = |error| FactsError::File { path: dir.to_owned(), error };
    if has_scheme(&dir.to_string_lossy()) {
        return Err(FactsError::UnknownUrl(dir.to_owned()));
    }
    if dir.is_file() {
        return Err(FactsError::NotAFolder(dir.to_owned()));
    }
    if dir.is_dir() {
        let is_ours = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.map(|entry| entry.file_name().into_string());
            name.is_ok_and(|name| {
                name.is_ok_and(|name| {
                    CACHE_FILE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                })
            })
        };
        if std::fs::read_dir(dir).map_err(io_error)?.all(is_ours) {
            restrict_access_or_warn(dir, 0o700);
        }
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).map_err(io_error)?;
    }
    match create_private_dir(dir) {
        Err(error) if !dir.is_dir() => Err(io_error(error)),
        _ => Ok(()),
    }
}

/// Returns true if a path starts with a URL scheme, for example `postgres:/x`. A single letter is a
/// Windows drive, not a scheme.
fn has_scheme(path: &str) -> bool {
    path.contains("://")
        || path.split_once(":/").is_some_and(|(scheme, _)| {
            scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_lowercase())
        })
}

/// Removes other users' access to a file or directory. Returns true if they had access.
///
/// # Errors
/// Fails with the operating system's error if the permissions cannot be changed, for example
/// because another user owns the file.
pub fn restrict_access(path: &Path, mode: u32) -> std::io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if std::fs::metadata(path)?.permissions().mode().trailing_zeros() >= 6 {
            return Ok(false);
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(true)
    }
    #[cfg(not(unix))]
    {
        let _ = (path, mode);
        Ok(false)
    }
}

/// Removes other users' access to a file or directory, or logs a warning if that fails.
pub(super) fn restrict_access_or_warn(path: &Path, mode: u32) {
    if let Err(error) = restrict_access(path, mode) {
        tracing::warn!(path = %path.display(), %error, "other users may read this");
    }
}

/// Makes the files of a cache private before anything is written to them. `SQLite` gives its side
/// files the mode of the database.
pub(super) fn restrict_cache_files(dir: &Path) -> Result<(), FactsError> {
    let index = dir.join("index.sled");
    if index.exists() {
        restrict_access_or_warn(&index, 0o700);
    }
    for name in ["journal.sqlite", "index.sqlite", "lock"] {
        let path = dir.join(name);
        // Never open an existing database file here: closing it would release the locks that this
        // process's SQLite connections hold on it.
        if !path.exists() {
            open_lock_file(&path)?;
        }
        for suffix in ["", "-wal", "-shm"] {
            let path = dir.join(format!("{name}{suffix}"));
            if path.exists() {
                restrict_access_or_warn(&path, 0o600);
            }
        }
    }
    Ok(())
}

/// Creates a directory and any missing parents, accessible only to the owner. The directory may
/// already exist.
pub(super) fn create_private_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(dir)
}

/// Takes the lock that all processes of a cache share.
///
/// # Errors
/// [`FactsError::Held`] if a process of an earlier version uses the cache exclusively.
pub(super) fn acquire_shared_lock(dir: &Path) -> Result<File, FactsError> {
    let mut file = open_lock_file(&dir.join("lock"))?;
    if file.try_lock_shared().is_err() {
        let owner_description = read_description(&mut file);
        return Err(FactsError::Held { dir: dir.to_owned(), owner_description });
    }
    Ok(file)
}

/// Locks the cache for opening. Waits for another process that is opening it.
pub(super) fn acquire_opening_lock(dir: &Path) -> Result<File, FactsError> {
    let path = dir.join("sessions").join(".opening");
    let file = open_lock_file(&path)?;
    file.lock().map_err(|error| FactsError::File { path, error })?;
    Ok(file)
}

/// Result of trying to take the index lock.
pub(super) enum LockOutcome {
    Acquired(File),
    /// Description of the process that holds the lock.
    HeldBy(String),
}

/// Tries to take the index lock. If another process holds it, returns that process's description.
pub(super) fn acquire_index_lock(dir: &Path, description: &str) -> Result<LockOutcome, FactsError> {
    let path = dir.join("index.lock");
    let mut file = open_lock_file(&path)?;
    if file.try_lock().is_err() {
        return Ok(LockOutcome::HeldBy(read_description(&mut file)));
    }
    restrict_access_or_warn(&path, 0o600);
    let mut write_description = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "process {} ({description})", std::process::id())
    };
    write_description().map_err(|error| FactsError::File { path: path.clone(), error })?;
    Ok(LockOutcome::Acquired(file))
}

fn open_lock_file(path: &Path) -> Result<File, FactsError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| FactsError::File { path: path.to_owned(), error })
}

fn read_description(file: &mut File) -> String {
    let mut description = String::new();
    let _ = file.read_to_string(&mut description);
    match description.trim() {
        "" => "another process".to_owned(),
        description => description.to_owned(),
    }
}
