//! Edits a spec on disk.

use std::fs::{self, TryLockError};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::failure::Failure;
use crate::spec::UncheckedSpec;
use crate::suggest::edit::EditError;

/// Time limit for locking a directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of attempts if another program saves the spec at the same time.
const MAX_ATTEMPTS: u32 = 3;

/// Edits the text of a spec on disk. Writes nothing if the result would fail `hqdl check`. Repeats
/// the edit if the file was changed in the meantime.
pub fn edit_spec(
    path: &Path,
    database: &Database,
    mut edit: impl FnMut(&str) -> std::result::Result<String, EditError>,
) -> std::result::Result<(), Failure> {
    let failed = |e: &Error| {
        let message = format!(
            "cannot read or write {}: {}",
            path.display(),
            crate::format::describe_io_error(e)
        );
        Failure::wrong_input(message, "nothing was added; check the path and its permissions")
    };
    // Resolve links first, because the file is replaced.
    let file = path.canonicalize().map_err(|e| failed(&e))?;
    let _lock = lock_directory(&file).map_err(|e| failed(&e))?;
    for _ in 0..MAX_ATTEMPTS {
        let text = fs::read_to_string(&file).map_err(|e| failed(&e))?;
        let edited = edit(&text).map_err(|e| {
            let hint = "nothing was added; add the TOML to the spec with an editor";
            Failure::wrong_input(e.to_string(), hint)
        })?;
        if edited == text {
            return Ok(());
        }
        UncheckedSpec::parse(path, edited.clone())?.allow_no_expansions().check(database)?;
        if replace_text(&file, &text, &edited).map_err(|e| failed(&e))? {
            return Ok(());
        }
    }
    let message = format!("{} is being changed by other programs", path.display());
    Err(Failure::wrong_input(message, "nothing was added; try again"))
}

/// Replaces the text of a spec if its current text has this hash. Otherwise writes nothing and
/// returns false. The caller has checked the new text.
pub fn save_spec(
    path: &Path,
    expected: blake3::Hash,
    text: &str,
) -> std::result::Result<bool, Failure> {
    let save = || {
        // Resolve links first, because the file is replaced.
        let file = path.canonicalize()?;
        let _lock = lock_directory(&file)?;
        let present = fs::read_to_string(&file)?;
        Ok(blake3::hash(present.as_bytes()) == expected && replace_text(&file, &present, text)?)
    };
    save().map_err(|e: Error| {
        let message =
            format!("cannot write {}: {}", path.display(), crate::format::describe_io_error(&e));
        Failure::wrong_input(message, "nothing was saved; check the path and its permissions")
    })
}

/// Locks the directory of a file against other hqdl processes, until the result is dropped. The
/// file itself cannot be locked, because it is replaced. Where directories cannot be locked, the
/// comparison before the replacement is the only protection.
///
/// # Errors
/// Returns [`ErrorKind::TimedOut`] if another program keeps the lock.
fn lock_directory(file: &Path) -> Result<Option<fs::File>> {
    let Some(Ok(directory)) = file.parent().map(fs::File::open) else { return Ok(None) };
    let began = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(Some(directory)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let message = "another program has locked its directory";
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
        }
    }
}

/// Replaces the text of a file in one step. Returns false if its text is no longer `expected`.
fn replace_text(file: &Path, expected: &str, text: &str) -> Result<bool> {
    let permissions = fs::metadata(file)?.permissions();
    if permissions.readonly() {
        return Err(Error::new(ErrorKind::PermissionDenied, "the file is read-only"));
    }
    // Each process uses its own temporary file, so that a file left by a killed process does no
    // harm.
    let part = file.with_extension(format!("toml.{}.part", std::process::id()));
    let replace = || {
        let mut written = fs::File::create_new(&part)?;
        written.write_all(text.as_bytes())?;
        written.set_permissions(permissions)?;
        if fs::read_to_string(file)? != expected {
            return Ok(false);
        }
        fs::rename(&part, file).map(|()| true)
    };
    let replaced = replace();
    if !matches!(replaced, Ok(true)) {
        // Ignore an error here, because the caller reports the error of the replacement.
        let _ = fs::remove_file(&part);
    }
    replaced
}
