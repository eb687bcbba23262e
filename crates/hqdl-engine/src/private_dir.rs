//! Directories of small JSON files that only the user can read: plans that wait for approval, and
//! conversations.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hqdl_values::format::describe_io_error;
use serde::{Deserialize, Serialize};

use hqdl_facts::restrict_access;

/// Permissions of the directory: only the user has access.
const PRIVATE: u32 = 0o700;

/// Failure to read or write a file or directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {}", path.display(), describe_io_error(error))]
pub struct FileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Error from the operating system.
    pub error: io::Error,
}

/// Creates a private directory, or makes an existing directory private. Returns true if other users
/// had access to the directory and may have written its files.
///
/// # Errors
/// [`FileError`] if the directory cannot be created or made private.
pub fn create_private_dir(dir: &Path) -> Result<bool, FileError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, PRIVATE);
    let file_error = |error| FileError { path: dir.to_owned(), error };
    builder.create(dir).map_err(file_error)?;
    restrict_access(dir, PRIVATE).map_err(|error| {
        let why = "other users have access to it; run `chmod 700` on it as its owner";
        file_error(io::Error::other(format!("{why} ({})", describe_io_error(&error))))
    })
}

/// Writes a file atomically, so that no process reads an incomplete file, even after a power
/// failure.
///
/// # Errors
/// [`FileError`] if the file cannot be written.
pub fn write_json(path: &Path, content: &impl Serialize) -> Result<(), FileError> {
    let write = || {
        let text = serde_json::to_vec_pretty(content)?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    write().map_err(|error| FileError { path: path.to_owned(), error })
}

/// Reads a file. Returns `None` if the file does not exist or has another format.
///
/// # Errors
/// [`FileError`] if the file exists but cannot be read.
pub fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, FileError> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError { path: path.to_owned(), error }),
    }
}
