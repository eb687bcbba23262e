//! Edits a spec on disk.

use std::fs;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

use super::failure::Failure;
use crate::database::Database;
use crate::spec::UncheckedSpec;
use crate::suggest::edit::EditError;

/// Number of attempts if other programs change the spec at the same time.
const MAX_ATTEMPTS: u32 = 100;

/// Replaces the text of a spec by an edited one. Writes nothing if the result would fail
/// `hqdl check`, and repeats the edit if the spec has changed meanwhile.
pub fn edit_spec(
    path: &Path,
    database: &Database,
    mut edit: impl FnMut(&str) -> std::result::Result<String, EditError>,
) -> std::result::Result<(), Failure> {
    let failed = |e: &Error| {
        let message =
            format!("cannot read or write {}: {}", path.display(), crate::format::io_reason(e));
        Failure::wrong_input(message, "nothing was added; check the path and its permissions")
    };
    // Resolve links first, because the file is replaced.
    let file = path.canonicalize().map_err(|e| failed(&e))?;
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

/// Replaces the text of a file in one step. Returns false if its text is not `expected` any more.
fn replace_text(file: &Path, expected: &str, text: &str) -> Result<bool> {
    let permissions = fs::metadata(file)?.permissions();
    if permissions.readonly() {
        return Err(Error::new(ErrorKind::PermissionDenied, "the file is read-only"));
    }
    // While the part file exists, other hqdl processes do not replace the spec.
    let part = file.with_extension("toml.part");
    let mut written = match fs::File::create_new(&part) {
        Ok(written) => written,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            std::thread::sleep(std::time::Duration::from_millis(50));
            return Ok(false);
        }
        Err(e) => return Err(e),
    };
    let mut replace = || {
        written.write_all(text.as_bytes())?;
        fs::set_permissions(&part, permissions.clone())?;
        if fs::read_to_string(file)? != expected {
            return Ok(false);
        }
        fs::rename(&part, file).map(|()| true)
    };
    let replaced = replace();
    if !matches!(replaced, Ok(true)) {
        // The error of the replacement is the one to report.
        let _ = fs::remove_file(&part);
    }
    replaced
}
