//! Edits a spec on disk.

use std::path::Path;

use super::failure::Failure;
use crate::database::Database;
use crate::spec::UncheckedSpec;
use crate::suggest::edit::EditError;

/// Replaces the text of a spec by an edited one. Writes nothing if the result would fail
/// `hqdl check`.
pub fn edit_spec(
    path: &Path,
    database: &Database,
    edit: impl FnOnce(&str) -> Result<String, EditError>,
) -> Result<(), Failure> {
    let failed = |e: &std::io::Error| {
        let message =
            format!("cannot read or write {}: {}", path.display(), crate::format::io_reason(e));
        Failure::wrong_input(message, "nothing was added; check the path and its permissions")
    };
    let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
    let edited = edit(&text).map_err(|e| {
        let hint = "nothing was added; copy the TOML that is printed without --write";
        Failure::wrong_input(e.to_string(), hint)
    })?;
    if edited == text {
        return Ok(());
    }
    UncheckedSpec::parse(path, edited.clone())?.allow_no_expansions().check(database)?;
    // Resolve links first, and replace the file atomically.
    let file = path.canonicalize().map_err(|e| failed(&e))?;
    let part = file.with_extension("toml.part");
    let mode = std::fs::metadata(&file).map_err(|e| failed(&e))?.permissions();
    std::fs::write(&part, edited)
        .and_then(|()| std::fs::set_permissions(&part, mode))
        .and_then(|()| std::fs::rename(&part, &file))
        .map_err(|e| failed(&e))
}
