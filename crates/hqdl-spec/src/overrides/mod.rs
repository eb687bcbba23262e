//! Overrides: cells entered by a person, which always take precedence over the model's answers.
//!
//! They are stored next to the spec (`superhero.overrides.csv` next to `superhero.toml`), so that
//! they can be reviewed and versioned like code:
//!
//! ```csv
//! superhero_name,full_name,column,value,note
//! Spawn,Al Simmons,race,Demon,hellspawn is not in our list
//! Yoda,,powers,The Force|Telekinesis,
//! ```
//!
//! The header names the key columns, then `column`, `value` and optionally `note` and `replaced`,
//! the value of the previous override of the cell. The value `?` sets the cell to no value, and
//! `""` to the empty text. An empty key field means NULL and also the empty text. A row applies
//! to every expansion that has these key columns and that column.

mod edit;

use hqdl_values::csv::describe_csv_error;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use self::edit::identify_cell;
pub use self::edit::{
    OverrideEditError, check_no_value, find_override_errors, has_value_after_column, is_same_cell,
    lacks_value, remove_override, set_override,
};
use crate::checker::{Checker, EMPTY_TEXT};
use crate::{Expansion, Spec};
use hqdl_values::cell::{CellValue, State};
use hqdl_values::format::{describe_io_error, describe_write_error};
use hqdl_values::key::Entity;
use hqdl_values::problem::find_nearest;
use hqdl_values::value::Value;

/// Columns of the file that are not part of a key.
const VALUE_COLUMNS: [&str; 3] = ["column", "value", "note"];
/// Column after [`VALUE_COLUMNS`] with the replaced values, if a line has one.
const REPLACED_COLUMN: &str = "replaced";

/// Value of a line that sets a cell to no value, unless the column's value list contains it. An
/// audit uses the same sign for a truth that cannot be known.
pub const NO_VALUE: &str = "?";

/// Reason why an overrides file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {message}", path.display(), line.map(|l| format!(":{l}")).unwrap_or_default())]
pub struct OverridesError {
    /// Path of the file.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: Option<u64>,
    /// Error message.
    pub message: String,
}

impl OverridesError {
    /// Returns a hint for the user.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.line {
            Some(_) => "correct the line; hqdl sent no request and changed nothing",
            None => {
                "check that this user may read and write the file and its directory; hqdl sent no request and changed nothing"
            }
        }
    }
}

/// A cell that a person entered.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// Value that takes precedence over the model's answer; `Nothing` sets the cell to no value.
    pub value: CellValue,
    /// Reason for the override.
    pub note: Option<String>,
}

impl Override {
    /// Returns the state of the cell.
    #[must_use]
    pub fn state(&self) -> State {
        if self.value == CellValue::Nothing { State::Unknown } else { State::Overridden }
    }

    /// Returns the note to publish. Without a note, a cell without a value looks like a model's
    /// answer.
    #[must_use]
    pub fn published_note(&self) -> Option<&str> {
        let default =
            (self.value == CellValue::Nothing).then_some("set to no value by an override");
        self.note.as_deref().or(default)
    }
}

/// Line of an overrides file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideLine {
    /// Names and values of the key fields, in the order of the header.
    pub key: Vec<(String, String)>,
    /// Name of the overridden column.
    pub column: String,
    /// Value as written.
    pub value: String,
    /// Reason for the override.
    pub note: String,
    /// Value of the previous override of the cell; empty if there was none.
    pub replaced: String,
}

impl OverrideLine {
    /// Returns the note and the replaced value as one text; empty if the line has neither.
    #[must_use]
    pub fn describe_reason(&self) -> String {
        let separator = if self.note.is_empty() { "" } else { "; " };
        match self.replaced.as_str() {
            "" => self.note.clone(),
            replaced => format!("{}{separator}replaced {replaced}", self.note),
        }
    }
}

/// A line with its number and, for each expansion, the entities that the line may apply to.
#[derive(Debug)]
struct AppliedLine {
    number: u64,
    line: OverrideLine,
    entities: Vec<(usize, Entity)>,
}

/// Overrides of a spec, by expansion, entity and column.
#[derive(Debug, Default)]
pub struct Overrides {
    cells: HashMap<(usize, Entity), HashMap<usize, Override>>,
    /// Lines of the file, each with the entities that it may apply to.
    lines: Vec<AppliedLine>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl Overrides {
    /// Reads the overrides of a spec. If the file does not exist, there are none.
    ///
    /// # Errors
    /// [`OverridesError`] if the file cannot be read or a line cannot be used; the error names the
    /// line.
    pub fn read(spec: &Spec) -> Result<Self, OverridesError> {
        let path = spec.overrides_path();
        let mut overrides = Self::default();
        let lines = read_lines(&path)?;
        // Line number of each cell.
        let mut numbers = HashMap::new();
        let checkers: Vec<Vec<Checker>> =
            spec.expansions.iter().map(|e| e.columns.iter().map(Checker::new).collect()).collect();
        for (number, line) in lines {
            let line_error = |message: String| OverridesError {
                path: path.clone(),
                line: Some(number),
                message,
            };
            if let Some(earlier) = numbers.insert(identify_cell(&line), number) {
                let message = format!(
                    "line {earlier} sets the same cell already; delete one of the two lines"
                );
                return Err(line_error(message));
            }
            let mut applicable = Vec::new();
            for (n, expansion) in spec.expansions.iter().enumerate() {
                let Some(column) = expansion.find_column(&line.column) else { continue };
                let Some(line_entities) = find_entities(expansion, &line.key) else { continue };
                let checker = &checkers[n][column];
                let answer = checker.check_entry(&line.value);
                let value = match answer.state {
                    _ if means_no_value(&expansion.columns[column], &line.value) => {
                        CellValue::Nothing
                    }
                    State::Ok => answer.value,
                    State::NotInList => {
                        overrides.warnings.push(format!(
                            "{}:{number}: \"{}\" is not in the value list of `{}`; hqdl publishes it anyway",
                            path.display(),
                            line.value,
                            line.column
                        ));
                        parse_unlisted_value(expansion, column, &line.value)
                    }
                    state => {
                        let (reason, help) = explain_rejection(checker, state, &line.value);
                        return Err(line_error(format!(
                            "\"{}\" is not a valid value for `{}`: {reason}; {help}",
                            line.value, line.column,
                        )));
                    }
                };
                let note = Some(line.describe_reason()).filter(|n| !n.is_empty());
                for key in line_entities {
                    applicable.push((n, key.clone()));
                    let cell_override = Override { value: value.clone(), note: note.clone() };
                    overrides.cells.entry((n, key)).or_default().insert(column, cell_override);
                }
            }
            if applicable.is_empty() {
                let (number, message) = explain_inapplicable_line(spec, number, &line);
                return Err(OverridesError { line: Some(number), ..line_error(message) });
            }
            overrides.lines.push(AppliedLine { number, line, entities: applicable });
        }
        Ok(overrides)
    }

    /// Returns true if any cell of an entity is overridden.
    #[must_use]
    pub fn has_entity(&self, expansion: usize, entity: &Entity) -> bool {
        !self.cells.is_empty() && self.cells.contains_key(&(expansion, entity.clone()))
    }

    /// Returns a warning for each line whose entity no source contains. `known_entities` contains
    /// the entities of the sources, by expansion.
    #[must_use]
    pub fn list_unmatched_lines(
        &self,
        spec: &Spec,
        known_entities: &[HashSet<Entity>],
    ) -> Vec<String> {
        let path = spec.overrides_path();
        let is_known = |(n, entity): &(usize, Entity)| {
            known_entities.get(*n).is_some_and(|m| m.contains(entity))
        };
        let unmatched = self.lines.iter().filter(|applied| !applied.entities.iter().any(is_known));
        unmatched
            .map(|AppliedLine { number, line, .. }| {
                let key: Vec<&str> = line.key.iter().map(|(_, value)| value.as_str()).collect();
                format!(
                    "{}:{number}: no source has the key ({}), so this override has no effect",
                    path.display(),
                    key.join(", ")
                )
            })
            .collect()
    }

    /// Returns the override of a cell.
    #[must_use]
    pub fn get(&self, expansion: usize, entity: &Entity, column: usize) -> Option<&Override> {
        if self.cells.is_empty() {
            return None;
        }
        self.cells.get(&(expansion, entity.clone()))?.get(&column)
    }

    /// Returns the overridden entities with their overrides, ordered by the number of overridden
    /// columns (descending) and then by entity.
    #[must_use]
    pub fn list_overridden_rows(
        &self,
        expansion: usize,
    ) -> Vec<(&Entity, &HashMap<usize, Override>)> {
        let mut rows: Vec<_> = self
            .cells
            .iter()
            .filter(|((n, _), _)| *n == expansion)
            .map(|((_, entity), overrides)| (entity, overrides))
            .collect();
        rows.sort_by(|(a, x), (b, y)| y.len().cmp(&x.len()).then_with(|| a.cmp(b)));
        rows
    }

    /// Returns a hash of all overrides of an expansion.
    #[must_use]
    pub fn compute_expansion_digest(&self, expansion: usize) -> String {
        let mut marks: Vec<(&str, String)> = self
            .cells
            .keys()
            .filter(|(n, _)| *n == expansion)
            .filter_map(|(_, entity)| {
                Some((entity.as_str(), self.format_entity_overrides(expansion, entity)?))
            })
            .collect();
        if marks.is_empty() {
            return String::new();
        }
        marks.sort();
        blake3::hash(format!("{marks:?}").as_bytes()).to_hex().as_str()[..32].to_owned()
    }

    /// Returns all overrides of an entity as text, in a stable order.
    #[must_use]
    pub fn format_entity_overrides(&self, expansion: usize, entity: &Entity) -> Option<String> {
        if self.cells.is_empty() {
            return None;
        }
        let mut overrides: Vec<String> = self
            .cells
            .get(&(expansion, entity.clone()))?
            .iter()
            .map(|(column, cell_override)| {
                format!("{column} {} {:?}", cell_override.value.to_json(), cell_override.note)
            })
            .collect();
        overrides.sort();
        Some(overrides.join("\n"))
    }
}

/// Returns true if the value of a line sets the cell to no value.
fn means_no_value(column: &crate::Column, value: &str) -> bool {
    let is_listed = |list: &crate::ValueList| list.values.iter().any(|v| v == NO_VALUE);
    value.trim() == NO_VALUE && !column.values.as_ref().is_some_and(is_listed)
}

/// Returns the reason why a checker rejects the value of an override, and a hint.
fn explain_rejection(checker: &Checker, state: State, value: &str) -> (&'static str, String) {
    match state {
        State::Unknown if value.trim().is_empty() => {
            let help = format!(
                "write a value, {EMPTY_TEXT} for the empty text, or {NO_VALUE} for no value"
            );
            ("it is empty", help)
        }
        State::Unknown => (
            "it means that the value is not known",
            format!("write {NO_VALUE} (`hqdl override set … --unknown`) for no value"),
        ),
        State::Refused => ("it is a refusal to answer", "write a value".to_owned()),
        _ => (
            checker.explain_invalid_answer(Some(value)),
            "write a value of the column's type".to_owned(),
        ),
    }
}

/// Parses a value that is not on the column's list: as the column's type if possible, otherwise as
/// trimmed text.
fn parse_unlisted_value(expansion: &Expansion, column: usize, text: &str) -> CellValue {
    let column = &expansion.columns[column];
    let parse_one = |t: &str| match t.trim() {
        EMPTY_TEXT if column.many.is_none() => Value::from(""),
        trimmed => Checker::parse_value(column.kind, t)
            .map_or_else(|| Value::from(trimmed), |(value, _)| value),
    };
    if column.many.is_some() {
        CellValue::Many(text.split('|').map(parse_one).collect())
    } else {
        CellValue::One(parse_one(text))
    }
}

/// Returns the entities that the key fields of a line may refer to; `None` if the fields are not
/// this expansion's key.
fn find_entities(expansion: &Expansion, fields: &[(String, String)]) -> Option<Vec<Entity>> {
    let mut keys: Vec<Vec<Value>> = vec![Vec::new()];
    for name in expansion.key.names() {
        let (_, text) = fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name))?;
        let candidates = if text.is_empty() {
            vec![Value::Null, Value::from("")]
        } else {
            vec![Value::from(text.as_str())]
        };
        keys = keys
            .into_iter()
            .flat_map(|key| candidates.iter().map(move |m| [key.clone(), vec![m.clone()]].concat()))
            .collect();
    }
    Some(keys.iter().map(|key| expansion.build_entity(key)).collect())
}

/// Returns the lines of an overrides file with their numbers.
///
/// # Errors
/// Returns [`OverridesError`] if the file cannot be read or lacks a column.
pub fn read_lines(path: &Path) -> Result<Vec<(u64, OverrideLine)>, OverridesError> {
    let line_error = |line: Option<u64>, message: String| OverridesError {
        path: path.to_owned(),
        line,
        message,
    };
    if !path.exists() {
        return Ok(Vec::new());
    }
    let bytes = std::fs::read(path).map_err(|e| line_error(None, describe_io_error(&e)))?;
    if let Some(line) = hqdl_values::csv::find_unclosed_field(&bytes, b',') {
        return Err(line_error(
            u64::try_from(line).ok(),
            hqdl_values::csv::UNCLOSED_FIELD_MESSAGE.to_owned(),
        ));
    }
    let mut reader = csv::ReaderBuilder::new().flexible(false).from_reader(bytes.as_slice());
    let header = reader.headers().map_err(|e| line_error(Some(1), e.to_string()))?.clone();
    for required in ["column", "value"] {
        if !header.iter().any(|h| h == required) {
            return Err(line_error(
                Some(1),
                format!(
                    "the header lacks `{required}`: expected the key columns, column, value, note"
                ),
            ));
        }
    }
    let mut finder = hqdl_values::csv::LineFinder::new(&bytes);
    let mut lines = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| {
            line_error(e.position().map(|p| finder.find_line(p)), describe_csv_error(&e))
        })?;
        let number = record.position().map_or(0, |p| finder.find_line(p));
        let mut line = OverrideLine {
            key: Vec::new(),
            column: String::new(),
            value: String::new(),
            note: String::new(),
            replaced: String::new(),
        };
        for (n, (name, field)) in header.iter().zip(&record).enumerate() {
            match name {
                // A key column may have this name.
                REPLACED_COLUMN if n + 1 == header.len() && n > 0 && &header[n - 1] == "note" => {
                    field.clone_into(&mut line.replaced);
                }
                "column" => field.clone_into(&mut line.column),
                "value" => field.clone_into(&mut line.value),
                "note" => field.clone_into(&mut line.note),
                key => line.key.push((key.to_owned(), field.to_owned())),
            }
        }
        lines.push((number, line));
    }
    Ok(lines)
}

/// For a line that applies to no expansion, returns the error's line number and message. An unknown
/// key column is an error in the header, line 1.
fn explain_inapplicable_line(spec: &Spec, number: u64, line: &OverrideLine) -> (u64, String) {
    let suggest = |name: &str, known: Vec<&str>| {
        let nearest = find_nearest(name, known.iter().copied());
        nearest.map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default()
    };
    let keys: Vec<&str> =
        spec.expansions.iter().flat_map(|e| e.key.names()).map(String::as_str).collect();
    let is_unknown = |name: &&String| !keys.iter().any(|key| key.eq_ignore_ascii_case(name));
    if let Some(name) = line.key.iter().map(|(name, _)| name).find(is_unknown) {
        return (1, format!("no expansion has the key `{name}`{}", suggest(name, keys)));
    }
    let columns = spec.expansions.iter().flat_map(|e| &e.columns).map(|c| c.name.as_str());
    let columns: Vec<&str> = columns.collect();
    if !columns.iter().any(|column| column.eq_ignore_ascii_case(&line.column)) {
        let suggestion = suggest(&line.column, columns);
        return (number, format!("no expansion has a column `{}`{suggestion}", line.column));
    }
    let names: Vec<&str> = line.key.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    (number, format!("no expansion has a column `{}` and the key {names}", line.column))
}

/// Returns the header of an overrides file; empty if the file cannot be read.
fn read_header(path: &Path) -> csv::StringRecord {
    let read = csv::Reader::from_path(path).and_then(|mut reader| reader.headers().cloned());
    read.unwrap_or_default()
}

/// Writes an overrides file by writing a temporary file next to it and renaming that file.
///
/// # Errors
/// Returns [`OverridesError`] if the file cannot be written.
pub fn write_lines(path: &Path, lines: &[OverrideLine]) -> Result<(), OverridesError> {
    let file_error =
        |message: String| OverridesError { path: path.to_owned(), line: None, message };
    // A file without overrides keeps its key columns, so that a person can add a line.
    let header = if lines.is_empty() { read_header(path) } else { csv::StringRecord::new() };
    let mut keys: Vec<&str> = header.iter().take_while(|name| *name != VALUE_COLUMNS[0]).collect();
    for (name, _) in lines.iter().flat_map(|l| &l.key) {
        if !keys.contains(&name.as_str()) {
            keys.push(name);
        }
    }
    let replaced_column =
        lines.iter().any(|line| !line.replaced.is_empty()).then_some(REPLACED_COLUMN);
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer
        .write_record(keys.iter().copied().chain(VALUE_COLUMNS).chain(replaced_column))
        .map_err(|e| file_error(e.to_string()))?;
    for line in lines {
        let key = keys
            .iter()
            .map(|k| line.key.iter().find(|(n, _)| n == k).map_or("", |(_, v)| v.as_str()));
        let value_fields = [line.column.as_str(), &line.value, &line.note];
        let replaced = replaced_column.map(|_| line.replaced.as_str());
        let fields = key.chain(value_fields).chain(replaced);
        writer.write_record(fields).map_err(|e| file_error(e.to_string()))?;
    }
    let bytes = writer.into_inner().map_err(|e| file_error(e.to_string()))?;
    // The name is unique, so that concurrent writers do not write to the same temporary file.
    let temporary =
        path.with_extension(format!("{}-{:08x}.part", std::process::id(), fastrand::u32(..)));
    std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path)).map_err(
        |e| {
            let _ = std::fs::remove_file(&temporary);
            file_error(describe_write_error(path, &e))
        },
    )
}
