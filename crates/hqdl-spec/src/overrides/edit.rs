//! Edits an overrides file: one cell at a time, and only if the result can be parsed again.

use std::fs::File;
use std::path::Path;

use super::{OverrideLine, Overrides, OverridesError, entities, read_lines, write_lines};
use crate::checker::Checker;
use crate::{Column, Expansion, Spec};
use hqdl_values::cell::State;
use hqdl_values::key::Entity;

/// Reason why an override cannot be set or removed.
#[derive(Debug, thiserror::Error)]
pub enum OverrideEditError {
    /// No expansion creates the table.
    #[error("no expansion publishes a table `{table}`")]
    NoTable {
        /// Table.
        table: String,
        /// Existing tables.
        all: Vec<String>,
    },
    /// The key has another number of columns.
    #[error("the key of `{expansion}` has {}, but the command has {given}", hqdl_values::format::count_noun(names.len() as u64, "part"))]
    Key {
        /// Expansion.
        expansion: String,
        /// Key columns.
        names: Vec<String>,
        /// Number of given values.
        given: usize,
    },
    /// The expansion has no such column.
    #[error("`{expansion}` has no column `{column}`")]
    NoColumn {
        /// Expansion.
        expansion: String,
        /// Column.
        column: String,
        /// Existing columns.
        all: Vec<String>,
    },
    /// No source has the key.
    #[error("no source of `{expansion}` has the key ({key})")]
    NoKey {
        /// Expansion.
        expansion: String,
        /// Key.
        key: String,
    },
    /// The column does not allow the value.
    #[error("{value:?} is not a valid value for `{column}`: {why}")]
    Value {
        /// Value.
        value: String,
        /// Column.
        column: String,
        /// Reason.
        why: String,
        /// Candidate values, for the error message.
        instead: String,
    },
    /// The override does not exist.
    #[error("the overrides file has no such override")]
    None,
    /// The file cannot be read or written, or the value cannot be parsed.
    #[error(transparent)]
    File(#[from] OverridesError),
}

impl OverrideEditError {
    /// Returns a hint for fixing the problem.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoTable { all, .. } => format!("there is {}", all.join(", ")),
            Self::Key { names, .. } => format!("its key is: {}", names.join(", ")),
            Self::NoColumn { all, .. } => format!("its columns are: {}", all.join(", ")),
            Self::NoKey { .. } => {
                "check the key; for a row that does not exist yet pass --force".to_owned()
            }
            Self::Value { instead, .. } => instead.clone(),
            Self::None => "`hqdl override list SPEC` lists them".to_owned(),
            Self::File(_) => {
                "correct the line; hqdl sent no request and changed nothing".to_owned()
            }
        }
    }
}

/// Overrides a cell. `key` has the order of the key columns; `NULL` means NULL.
///
/// # Errors
/// Returns [`OverrideEditError`] and leaves the file unchanged.
pub fn set(
    spec: &Spec,
    table: &str,
    key: &[String],
    column: &str,
    value: &str,
    note: &str,
) -> Result<(), OverrideEditError> {
    let cell = cell(spec, table, key, column)?;
    let line = OverrideLine { value: value.to_owned(), note: note.to_owned(), ..cell };
    let path = spec.overrides_path();
    let _turn = turn(&path)?;
    let before: Vec<OverrideLine> = read_lines(&path)?.into_iter().map(|(_, l)| l).collect();
    let mut lines: Vec<OverrideLine> = before.iter().filter(|l| !same(l, &line)).cloned().collect();
    lines.push(line);
    write_lines(&path, &lines)?;
    // Restore the file if the new line cannot be parsed.
    if let Err(error) = Overrides::read(spec) {
        write_lines(&path, &before)?;
        return Err(error.into());
    }
    Ok(())
}

/// Returns all objections to an override. `has_entity` returns whether a source of an expansion has
/// one of some entities.
///
/// # Errors
/// Fails if `has_entity` fails.
pub fn objections<E>(
    spec: &Spec,
    (table, key, column, value): (&str, &[String], &str, &str),
    has: impl FnOnce(&Expansion, &[Entity]) -> Result<bool, E>,
) -> Result<Vec<OverrideEditError>, E> {
    let Some(expansion) = spec.expansions.iter().find(|e| makes(e, table)) else {
        return Ok(cell(spec, table, key, column).err().into_iter().collect());
    };
    let mut all = Vec::new();
    let names = expansion.key.names();
    if key.len() == names.len() {
        let fields: Vec<_> = names.iter().cloned().zip(key.iter().map(field)).collect();
        if !has(expansion, &entities(expansion, &fields).unwrap_or_default())? {
            let (expansion, key) = (expansion.name.clone(), key.join(", "));
            all.push(OverrideEditError::NoKey { expansion, key });
        }
    } else {
        let (expansion, names) = (expansion.name.clone(), names.to_vec());
        all.push(OverrideEditError::Key { expansion, names, given: key.len() });
    }
    match expansion.column(column) {
        None => all.push(no_column(expansion, column)),
        Some(at) => all.extend(wrong_value(&expansion.columns[at], value)),
    }
    Ok(all)
}

/// Returns the problem with a value of a column.
fn wrong_value(column: &Column, value: &str) -> Option<OverrideEditError> {
    let answer = Checker::new(column).text(value);
    let (why, instead) = match answer.state {
        State::Ok => return None,
        State::NotInList => {
            let all = column.values.as_ref().map_or(&[][..], |list| &list.values);
            let mut near: Vec<&String> = all.iter().collect();
            near.sort_by_cached_key(|v| {
                let likeness = strsim::jaro_winkler(&v.to_lowercase(), &value.to_lowercase());
                std::cmp::Reverse((likeness * 1e6) as u64)
            });
            let near: Vec<&str> = near.into_iter().take(5).map(String::as_str).collect();
            let more = if all.len() > near.len() { " …" } else { "" };
            let list = format!("the list contains {}{more}", near.join(", "));
            ("it is not in the value list", format!("{list}; pass --force to set it anyway"))
        }
        _ => {
            let kind = column.kind.name();
            ("it has another type", format!("expected a value of type {kind}"))
        }
    };
    let (value, column) = (value.to_owned(), column.name.clone());
    Some(OverrideEditError::Value { value, column, why: why.to_owned(), instead })
}

/// Removes an override, so that the model's answer is used again.
///
/// # Errors
/// Returns [`OverrideEditError`] and leaves the file unchanged.
pub fn unset(
    spec: &Spec,
    table: &str,
    key: &[String],
    column: &str,
) -> Result<(), OverrideEditError> {
    let line = cell(spec, table, key, column)?;
    let path = spec.overrides_path();
    let _turn = turn(&path)?;
    let before = read_lines(&path)?;
    let lines: Vec<OverrideLine> =
        before.iter().map(|(_, l)| l).filter(|l| !same(l, &line)).cloned().collect();
    if lines.len() == before.len() {
        return Err(OverrideEditError::None);
    }
    Ok(write_lines(&path, &lines)?)
}

/// Locks an overrides file for all processes, from reading to writing; blocks until the lock is
/// available. The lock is released if it is dropped, or if the process ends.
///
/// The lock is on the directory, because the file itself is replaced. If a directory cannot be
/// locked, a file beside it is locked.
fn turn(path: &Path) -> Result<File, OverridesError> {
    let lock = |file: File| file.lock().map(|()| file);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))
        .and_then(lock)
        .or_else(|_| File::create(path.with_extension("csv.lock")).and_then(lock))
        .map_err(|e| OverridesError {
            path: path.to_owned(),
            line: None,
            message: format!("cannot be locked: {e}"),
        })
}

/// Returns the line of a cell, without a value.
fn cell(
    spec: &Spec,
    table: &str,
    key: &[String],
    column: &str,
) -> Result<OverrideLine, OverrideEditError> {
    let Some(expansion) = spec.expansions.iter().find(|e| makes(e, table)) else {
        let all = spec.expansions.iter().map(|e| e.name.clone()).collect();
        return Err(OverrideEditError::NoTable { table: table.to_owned(), all });
    };
    let names = expansion.key.names();
    if key.len() != names.len() {
        let (expansion, names) = (expansion.name.clone(), names.to_vec());
        return Err(OverrideEditError::Key { expansion, names, given: key.len() });
    }
    let Some(at) = expansion.column(column) else {
        return Err(no_column(expansion, column));
    };
    Ok(OverrideLine {
        key: names.iter().cloned().zip(key.iter().map(field)).collect(),
        column: expansion.columns[at].name.clone(),
        value: String::new(),
        note: String::new(),
    })
}

/// Returns true if an expansion creates a table: its own, or one of a one-to-many column.
fn makes(expansion: &Expansion, table: &str) -> bool {
    let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| m.table.as_str()));
    std::iter::once(expansion.name.as_str()).chain(many).any(|t| t.eq_ignore_ascii_case(table))
}

fn no_column(expansion: &Expansion, column: &str) -> OverrideEditError {
    let all = expansion.columns.iter().map(|c| c.name.clone()).collect();
    OverrideEditError::NoColumn {
        expansion: expansion.name.clone(),
        column: column.to_owned(),
        all,
    }
}

/// Returns a key value as it is written in the file.
fn field(text: &String) -> String {
    if text == "NULL" { String::new() } else { text.clone() }
}

fn same(a: &OverrideLine, b: &OverrideLine) -> bool {
    // Fields of other expansions' keys are empty in this line.
    let key = |l: &OverrideLine| {
        let mut key: Vec<(String, String)> =
            l.key.iter().filter(|(_, v)| !v.is_empty()).cloned().collect();
        key.sort();
        key
    };
    key(a) == key(b) && a.column == b.column
}
