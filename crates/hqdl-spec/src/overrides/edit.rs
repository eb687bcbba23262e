//! Changing an overrides file: one cell at a time, and only to what can be read
//! back.

use std::fs::File;
use std::path::Path;

use super::{OverrideLine, Overrides, OverridesError, entities, read_lines, write_lines};
use crate::checker::Checker;
use crate::{Column, Expansion, Spec};
use hqdl_values::cell::State;
use hqdl_values::key::Entity;

/// Why an override cannot be set or taken back.
#[derive(Debug, thiserror::Error)]
pub enum OverrideEditError {
    /// No expansion makes the table.
    #[error("no expansion publishes a table `{table}`")]
    NoTable {
        /// The table.
        table: String,
        /// Those that there are.
        all: Vec<String>,
    },
    /// The key has another number of parts.
    #[error("the key of `{expansion}` has {}, but the command has {given}", hqdl_values::format::count_noun(names.len() as u64, "part"))]
    Key {
        /// The expansion.
        expansion: String,
        /// The key's columns.
        names: Vec<String>,
        /// Parts that were given.
        given: usize,
    },
    /// The expansion has no such column.
    #[error("`{expansion}` has no column `{column}`")]
    NoColumn {
        /// The expansion.
        expansion: String,
        /// The column.
        column: String,
        /// Those that there are.
        all: Vec<String>,
    },
    /// No source has the key.
    #[error("no source of `{expansion}` has the key ({key})")]
    NoKey {
        /// The expansion.
        expansion: String,
        /// The key.
        key: String,
    },
    /// The value is none that the column can have.
    #[error("{value:?} is not a valid value for `{column}`: {why}")]
    Value {
        /// The value.
        value: String,
        /// The column.
        column: String,
        /// Why not.
        why: String,
        /// What it could be.
        instead: String,
    },
    /// There is nothing to take back.
    #[error("the overrides file has no such override")]
    None,
    /// The file cannot be read or written, or the value not be read back.
    #[error(transparent)]
    File(#[from] OverridesError),
}

impl OverrideEditError {
    /// What to do about it.
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

/// Says what a cell is, whatever the model says: `key` in the order of the key,
/// NULL for NULL.
///
/// # Errors
/// [`OverrideEditError`]; the file is as it was then.
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
    // A word that cannot be read back is taken back at once.
    if let Err(error) = Overrides::read(spec) {
        write_lines(&path, &before)?;
        return Err(error.into());
    }
    Ok(())
}

/// All that speaks against saying what a cell is; `has` tells whether a source of an
/// expansion has one of some entities.
///
/// # Errors
/// Whatever `has` fails with.
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

/// What is wrong with a value of a column.
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

/// Takes it back: the model's word counts again.
///
/// # Errors
/// [`OverrideEditError`]; the file is as it was then.
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

/// The turn to change an overrides file, from reading to writing, of all processes
/// that want to; waits for it. It ends when this is dropped, or with the process.
///
/// The lock is on the directory, since the file itself is replaced; where a
/// directory cannot be locked, on a file beside it.
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

/// The line of a cell, without a value.
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

/// Whether an expansion makes a table: its own, or one of a one-to-many column.
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

/// A part of a key as the file has it.
fn field(text: &String) -> String {
    if text == "NULL" { String::new() } else { text.clone() }
}

fn same(a: &OverrideLine, b: &OverrideLine) -> bool {
    // Fields of other expansions' keys are empty in this one's lines.
    let key = |l: &OverrideLine| {
        let mut key: Vec<(String, String)> =
            l.key.iter().filter(|(_, v)| !v.is_empty()).cloned().collect();
        key.sort();
        key
    };
    key(a) == key(b) && a.column == b.column
}
