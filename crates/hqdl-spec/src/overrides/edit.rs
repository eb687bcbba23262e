//! Edits an overrides file one cell at a time. An edit is kept only if the resulting file can be
//! parsed.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{
    NO_VALUE, OverrideLine, Overrides, OverridesError, explain_rejection, find_entities,
    means_no_value, read_lines, write_lines,
};
use crate::checker::{Checker, EMPTY_TEXT};
use crate::{Column, Expansion, Spec};
use hqdl_values::cell::{CellValue, State};
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Reason why an override cannot be set or removed.
#[derive(Debug, thiserror::Error)]
pub enum OverrideEditError {
    /// No expansion creates the table.
    #[error("no expansion publishes a table `{table}`")]
    NoTable {
        /// Table name that the user passed.
        table: String,
        /// Names of the existing tables.
        existing: Vec<String>,
    },
    /// The number of values differs from the number of key columns.
    #[error("the key of `{expansion}` has {}, not {given}", hqdl_values::format::format_count(names.len() as u64, "part"))]
    Key {
        /// Name of the expansion.
        expansion: String,
        /// Names of the key columns.
        names: Vec<String>,
        /// Number of values that the user passed.
        given: usize,
    },
    /// The expansion has no such column.
    #[error("`{expansion}` has no column `{column}`")]
    NoColumn {
        /// Name of the expansion.
        expansion: String,
        /// Column name that the user passed.
        column: String,
        /// Names of the existing columns.
        existing: Vec<String>,
    },
    /// No source has the key.
    #[error("no source of `{expansion}` has the key ({key})")]
    NoKey {
        /// Name of the expansion.
        expansion: String,
        /// Key that the user passed.
        key: String,
        /// The most similar key of the sources; `None` if none is similar.
        similar: Option<String>,
    },
    /// The column does not allow the value.
    #[error("{value:?} is not a valid value for `{column}`: {why}")]
    Value {
        /// Value that the user passed.
        value: String,
        /// Name of the column.
        column: String,
        /// Reason why the column does not allow the value.
        why: String,
        /// Candidate values, for the error message.
        suggestion: String,
    },
    /// No override can set the column to no value.
    #[error("`{column}` cannot be set to no value: its value list contains `{NO_VALUE}`")]
    NoValue {
        /// Name of the column.
        column: String,
    },
    /// The override does not exist.
    #[error("{} has no override of {cell}", path.display())]
    NotFound {
        /// Path of the overrides file.
        path: PathBuf,
        /// The cell.
        cell: String,
    },
    /// The file cannot be read or written, or the value cannot be parsed.
    #[error(transparent)]
    File(#[from] OverridesError),
}

impl OverrideEditError {
    /// Returns a hint for fixing the problem.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoTable { existing, .. } => {
                format!("the expansions are: {}", existing.join(", "))
            }
            Self::Key { names, .. } => format!("its key is: {}", names.join(", ")),
            Self::NoColumn { existing: all, .. } => format!("its columns are: {}", all.join(", ")),
            Self::NoKey { similar: Some(similar), .. } => {
                format!("did you mean ({similar})? For a row that does not exist yet pass --force")
            }
            Self::NoKey { similar: None, .. } => {
                "check the key; for a row that does not exist yet pass --force".to_owned()
            }
            Self::Value { suggestion, .. } => suggestion.clone(),
            Self::NoValue { .. } => format!(
                "remove `{NO_VALUE}` from the list; to set the value `{NO_VALUE}`, pass it instead of --unknown"
            ),
            Self::NotFound { .. } => "`hqdl override list SPEC` lists them".to_owned(),
            Self::File(error) => error.hint().to_owned(),
        }
    }
}

/// Overrides a cell, and returns the value that it stores. `key` has the order of the key columns;
/// `NULL` means NULL. A value of a list is stored in the list's spelling. An override without a note
/// keeps the note of the override that it replaces. If the value changes, the line contains the
/// replaced one.
///
/// # Errors
/// [`OverrideEditError`] if the spec does not have the table, the key columns or the column, if the
/// value cannot be parsed, or if the file cannot be read or written. The overrides are then
/// unchanged.
pub fn set_override(
    spec: &Spec,
    table: &str,
    key: &[String],
    column: &str,
    value: &str,
    note: &str,
) -> Result<String, OverrideEditError> {
    let cell = build_override_line(spec, table, key, column)?;
    let value = find_listed_spelling(spec, table, column, value);
    let mut line = OverrideLine { value: value.clone(), note: note.to_owned(), ..cell };
    let path = spec.overrides_path();
    let _lock = lock_file(&path)?;
    let before: Vec<OverrideLine> = read_lines(&path)?.into_iter().map(|(_, l)| l).collect();
    if let Some(replaced) = before.iter().find(|l| is_same_cell(l, &line)) {
        if line.note.is_empty() {
            line.note.clone_from(&replaced.note);
        }
        let is_new_value = replaced.value != line.value;
        let replaced = if is_new_value { &replaced.value } else { &replaced.replaced };
        line.replaced.clone_from(replaced);
    }
    let mut lines: Vec<OverrideLine> =
        before.iter().filter(|l| !is_same_cell(l, &line)).cloned().collect();
    lines.push(line);
    write_lines(&path, &lines)?;
    // Restore the file if the new line cannot be parsed.
    if let Err(error) = Overrides::read(spec) {
        write_lines(&path, &before)?;
        return Err(error.into());
    }
    Ok(value)
}

/// Returns a value in the spelling of the column's list; the value itself if the column has no
/// list, or if the value is not in it.
fn find_listed_spelling(spec: &Spec, table: &str, column: &str, value: &str) -> String {
    let expansion = spec.expansions.iter().find(|e| creates_table(e, table));
    let column = expansion.and_then(|e| e.columns.get(e.find_column(column)?));
    let listed = column.filter(|c| c.values.is_some() && !means_no_value(c, value));
    match listed.map(|column| Checker::new(column).check_entry(value).value) {
        Some(CellValue::One(Value::Text(listed))) if listed.is_empty() => EMPTY_TEXT.to_owned(),
        Some(CellValue::One(Value::Text(listed))) => listed,
        _ => value.to_owned(),
    }
}

/// Returns all errors of an override. `has_entity` returns true if a source of the expansion
/// contains any of the given entities.
///
/// # Errors
/// Fails if `has_entity` cannot search the sources.
pub fn find_override_errors<E>(
    spec: &Spec,
    (table, key, column, value): (&str, &[String], &str, &str),
    has_entity: impl FnOnce(&Expansion, &[Entity]) -> Result<bool, E>,
) -> Result<Vec<OverrideEditError>, E> {
    let Some(expansion) = spec.expansions.iter().find(|e| creates_table(e, table)) else {
        return Ok(build_override_line(spec, table, key, column).err().into_iter().collect());
    };
    let mut errors = Vec::new();
    let names = expansion.key.names();
    if key.len() == names.len() {
        let fields: Vec<_> = names.iter().cloned().zip(key.iter().map(format_key_field)).collect();
        if !has_entity(expansion, &find_entities(expansion, &fields).unwrap_or_default())? {
            let (expansion, key) = (expansion.name.clone(), key.join(", "));
            errors.push(OverrideEditError::NoKey { expansion, key, similar: None });
        }
    } else {
        let (expansion, names) = (expansion.name.clone(), names.to_vec());
        errors.push(OverrideEditError::Key { expansion, names, given: key.len() });
    }
    match expansion.find_column(column) {
        None => errors.push(no_column_error(expansion, column)),
        Some(position) => errors.extend(check_value(&expansion.columns[position], value)),
    }
    Ok(errors)
}

/// Checks that an override can set a cell of a column to no value, if the spec has the column.
///
/// # Errors
/// [`OverrideEditError::NoValue`] if [`NO_VALUE`] is a value of the column.
pub fn check_no_value(spec: &Spec, table: &str, column: &str) -> Result<(), OverrideEditError> {
    let expansion = spec.expansions.iter().find(|e| creates_table(e, table));
    let found = expansion.and_then(|e| e.columns.get(e.find_column(column)?));
    match found {
        Some(column) if !means_no_value(column, NO_VALUE) => {
            Err(OverrideEditError::NoValue { column: column.name.clone() })
        }
        _ => Ok(()),
    }
}

/// Returns true if `words` contains a value after the key and the column of a table.
#[must_use]
pub fn has_value_after_column(spec: &Spec, table: &str, words: &[String]) -> bool {
    let Some(expansion) = spec.expansions.iter().find(|e| creates_table(e, table)) else {
        return false;
    };
    let key_parts = expansion.key.names().len();
    words.len() == key_parts + 2 && expansion.find_column(&words[key_parts]).is_some()
}

/// Returns true if `words` consists of a key and a column of a table, without a value.
#[must_use]
pub fn lacks_value(spec: &Spec, table: &str, words: &[String]) -> bool {
    let Some(expansion) = spec.expansions.iter().find(|e| creates_table(e, table)) else {
        return false;
    };
    let key_parts = expansion.key.names().len();
    words.len() == key_parts + 1 && expansion.find_column(&words[key_parts]).is_some()
}

/// Checks a new value of a column. Returns the reason if the column does not allow it.
fn check_value(column: &Column, value: &str) -> Option<OverrideEditError> {
    let checker = Checker::new(column);
    let (reason, suggestion) = match checker.check_entry(value).state {
        _ if means_no_value(column, value) => return None,
        State::Ok => return None,
        State::NotInList => {
            let allowed = column.values.as_ref().map_or(&[][..], |list| &list.values);
            let mut nearest: Vec<&String> = allowed.iter().collect();
            nearest.sort_by_cached_key(|v| {
                let similarity = strsim::jaro_winkler(&v.to_lowercase(), &value.to_lowercase());
                std::cmp::Reverse((similarity * 1e6) as u64)
            });
            let nearest: Vec<&str> = nearest.into_iter().take(5).map(String::as_str).collect();
            let more = if allowed.len() > nearest.len() { " …" } else { "" };
            let list = format!("the list contains {}{more}", nearest.join(", "));
            ("it is not in the value list", format!("{list}; pass --force to set it anyway"))
        }
        _ if value.trim().is_empty() => {
            ("it is empty", format!("pass a value, or {EMPTY_TEXT} for the empty text"))
        }
        state => explain_rejection(&checker, state, value),
    };
    let (value, column) = (value.to_owned(), column.name.clone());
    Some(OverrideEditError::Value { value, column, why: reason.to_owned(), suggestion })
}

/// Removes an override, so that the model's answer is used again.
///
/// # Errors
/// [`OverrideEditError`] if the spec does not have the table, the key columns or the column, if the
/// cell is not overridden, or if the file cannot be read or written. The overrides are then
/// unchanged.
pub fn remove_override(
    spec: &Spec,
    table: &str,
    key: &[String],
    column: &str,
) -> Result<(), OverrideEditError> {
    let line = build_override_line(spec, table, key, column)?;
    let path = spec.overrides_path();
    let _lock = lock_file(&path)?;
    let before = read_lines(&path)?;
    let lines: Vec<OverrideLine> =
        before.iter().map(|(_, l)| l).filter(|l| !is_same_cell(l, &line)).cloned().collect();
    if lines.len() == before.len() {
        let cell = format!("{table} ({}), {column}", key.join(", "));
        return Err(OverrideEditError::NotFound { path, cell });
    }
    Ok(write_lines(&path, &lines)?)
}

/// Acquires an exclusive lock on an overrides file, and blocks until it is available. Callers hold
/// it while they read, edit and rewrite the file, so that no other process's edit is lost. The lock
/// is released when the returned file is dropped, or when the process ends.
///
/// The lock is on the directory, because the file itself is replaced. If a directory cannot be
/// locked, a file next to it is locked.
fn lock_file(path: &Path) -> Result<File, OverridesError> {
    let lock_exclusively = |file: File| file.lock().map(|()| file);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))
        .and_then(lock_exclusively)
        .or_else(|_| File::create(path.with_extension("csv.lock")).and_then(lock_exclusively))
        .map_err(|e| OverridesError {
            path: path.to_owned(),
            line: None,
            message: format!("cannot be locked: {}", hqdl_values::format::describe_io_error(&e)),
        })
}

/// Returns the override line that identifies a cell, with an empty value.
fn build_override_line(
    spec: &Spec,
    table: &str,
    key: &[String],
    column: &str,
) -> Result<OverrideLine, OverrideEditError> {
    let Some(expansion) = spec.expansions.iter().find(|e| creates_table(e, table)) else {
        let existing = spec.expansions.iter().map(|e| e.name.clone()).collect();
        return Err(OverrideEditError::NoTable { table: table.to_owned(), existing });
    };
    let names = expansion.key.names();
    if key.len() != names.len() {
        let (expansion, names) = (expansion.name.clone(), names.to_vec());
        return Err(OverrideEditError::Key { expansion, names, given: key.len() });
    }
    let Some(position) = expansion.find_column(column) else {
        return Err(no_column_error(expansion, column));
    };
    Ok(OverrideLine {
        key: names.iter().cloned().zip(key.iter().map(format_key_field)).collect(),
        column: expansion.columns[position].name.clone(),
        value: String::new(),
        note: String::new(),
        replaced: String::new(),
    })
}

/// Returns true if an expansion creates this table, either as its own table or for a one-to-many
/// column.
fn creates_table(expansion: &Expansion, table: &str) -> bool {
    let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| m.table.as_str()));
    std::iter::once(expansion.name.as_str()).chain(many).any(|t| t.eq_ignore_ascii_case(table))
}

fn no_column_error(expansion: &Expansion, column: &str) -> OverrideEditError {
    let existing = expansion.columns.iter().map(|c| c.name.clone()).collect();
    OverrideEditError::NoColumn {
        expansion: expansion.name.clone(),
        column: column.to_owned(),
        existing,
    }
}

/// Formats a key value for the file.
fn format_key_field(text: &String) -> String {
    if text == "NULL" { String::new() } else { text.clone() }
}

/// Returns the non-empty key fields and the column of a line, which identify its cell. A key field
/// is empty if it belongs only to other expansions.
pub(super) fn identify_cell(line: &OverrideLine) -> (Vec<(String, String)>, String) {
    let fields = line.key.iter().filter(|(_, value)| !value.is_empty());
    let mut key: Vec<(String, String)> =
        fields.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    key.sort();
    (key, line.column.to_ascii_lowercase())
}

/// Returns true if two lines set the same cell.
#[must_use]
pub fn is_same_cell(a: &OverrideLine, b: &OverrideLine) -> bool {
    identify_cell(a) == identify_cell(b)
}
