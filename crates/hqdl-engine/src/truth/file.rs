//! Reads reference values from a CSV file. The header names key columns and columns of the spec,
//! and each line describes one key. An empty field has no reference value; [`parse_entry`] reads
//! all others.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::entry::parse_entry;
use hqdl_spec::checker::Checker;
use hqdl_spec::{Expansion, Spec};
use hqdl_values::cell::{CellValue, State};
use hqdl_values::csv::{
    LineFinder, UNCLOSED_FIELD_MESSAGE, describe_csv_error, find_unclosed_field,
};
use hqdl_values::key::Entity;
use hqdl_values::problem::find_nearest;
use hqdl_values::value::Value;

/// Rows that have a reference value for one column.
type TrueRows = Vec<TrueRow>;

/// Reference value of a row.
#[derive(Debug, Clone)]
pub struct TrueRow {
    /// Key of the row.
    pub key: Vec<Value>,
    /// True value; `None` if it cannot be known.
    pub value: Option<CellValue>,
    /// Line number in the file; `None` if not known.
    pub line: Option<u64>,
}

/// Reference values for some columns of a spec.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    columns: HashMap<(usize, usize), TrueRows>,
    /// Entities that have a line, by expansion.
    entities: HashSet<(usize, Entity)>,
    /// Number of lines in the file.
    pub lines: u64,
    /// Columns of the file that are neither a key column nor a column of the spec.
    pub ignored: Vec<String>,
}

/// An error in a file with reference values.
#[derive(Debug, thiserror::Error)]
#[error("{}", hqdl_values::format::format_file_error(&path.display().to_string(), *line, message))]
pub struct TruthError {
    /// Path of the file.
    pub path: PathBuf,
    /// Line number of the error; `None` if the error concerns the whole file.
    pub line: Option<u64>,
    /// Description of the error.
    pub message: String,
}

impl TruthError {
    /// Returns a suggestion for the user.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.line {
            Some(_) => {
                "the first line names the key columns and columns of the spec; each other line has one key"
            }
            None => "name a CSV file with the key columns and at least one column of the spec",
        }
    }
}

/// An expansion that has reference values in the file.
struct TruthExpansion<'s> {
    expansion_index: usize,
    expansion: &'s Expansion,
    /// For each key column, the index of its field in the file.
    key_fields: Vec<Option<usize>>,
    /// Column index in the expansion, and index of its field in the file.
    columns: Vec<(usize, usize)>,
    checkers: Vec<Checker>,
}

impl Truth {
    /// Reads a file. Its columns must identify the rows of an expansion: they must include the
    /// whole key, or all key columns of one source.
    ///
    /// # Errors
    /// Returns [`TruthError`] if the file cannot be read, has no column of the spec, or contains
    /// two values for the same cell.
    pub fn read_csv(path: &Path, spec: &Spec) -> Result<Self, TruthError> {
        let error = |line, message: String| TruthError { path: path.to_owned(), line, message };
        let bytes = std::fs::read(path)
            .map_err(|e| error(None, hqdl_values::format::describe_io_error(&e)))?;
        if let Some(line) = find_unclosed_field(&bytes, b',') {
            return Err(error(u64::try_from(line).ok(), UNCLOSED_FIELD_MESSAGE.to_owned()));
        }
        let mut reader = csv::ReaderBuilder::new().from_reader(bytes.as_slice());
        let header: Vec<String> = reader
            .headers()
            .map_err(|e| error(Some(1), describe_csv_error(&e)))?
            .iter()
            .map(|name| name.trim_start_matches('\u{feff}').trim().to_owned())
            .collect();
        let duplicate = header.iter().enumerate().find(|(index, name)| {
            !name.is_empty() && header[..*index].iter().any(|h| h.eq_ignore_ascii_case(name))
        });
        if let Some((_, name)) = duplicate {
            return Err(error(Some(1), format!("the header names the column `{name}` twice")));
        }
        if header.is_empty() {
            return Err(error(None, "it is empty".to_owned()));
        }
        let expansions = match_expansions(spec, &header);
        let mut truth = Self::default();
        let used_fields: HashSet<usize> = expansions
            .iter()
            .flat_map(|s| {
                s.key_fields.iter().flatten().copied().chain(s.columns.iter().map(|c| c.1))
            })
            .collect();
        let unused = header.iter().enumerate().filter(|(index, _)| !used_fields.contains(index));
        truth.ignored = unused.map(|(_, name)| name.clone()).collect();
        if expansions.is_empty() {
            return Err(error(Some(1), build_no_match_message(spec, &header)));
        }
        let mut seen: HashSet<(usize, usize, Entity)> = HashSet::new();
        let mut lines = LineFinder::new(&bytes);
        for record in reader.records() {
            let record = record.map_err(|e| {
                error(e.position().map(|p| lines.find_line(p)), describe_csv_error(&e))
            })?;
            let line = record.position().map(|p| lines.find_line(p));
            truth.lines += 1;
            for truth_expansion in &expansions {
                let key = truth_expansion.parse_key(&record);
                if key.iter().all(|part| *part == Value::Null) {
                    continue;
                }
                let entity = truth_expansion.expansion.build_entity(&key);
                truth.entities.insert((truth_expansion.expansion_index, entity.clone()));
                for (n, (column, field)) in truth_expansion.columns.iter().enumerate() {
                    let text = record.get(*field).unwrap_or_default();
                    if text.trim().is_empty() {
                        continue;
                    }
                    let entity = entity.clone();
                    if !seen.insert((truth_expansion.expansion_index, *column, entity)) {
                        let name = &truth_expansion.expansion.columns[*column].name;
                        let message = format!("two values of `{name}` for the same key");
                        return Err(error(line, message));
                    }
                    let value = truth_expansion.parse_value(n, text);
                    let values = truth
                        .columns
                        .entry((truth_expansion.expansion_index, *column))
                        .or_default();
                    values.push(TrueRow { key: key.clone(), value, line });
                }
            }
        }
        if truth.columns.is_empty() {
            return Err(error(None, "it has no value for any cell".to_owned()));
        }
        Ok(truth)
    }

    /// Returns the keys and reference values of a column, given the expansion's index in the spec
    /// and the column's index in the expansion.
    #[must_use]
    pub fn column_values(&self, expansion: usize, column: usize) -> Option<&[TrueRow]> {
        self.columns.get(&(expansion, column)).map(Vec::as_slice)
    }

    /// Returns true if the file has a line for an entity of an expansion.
    #[must_use]
    pub fn has_entity(&self, expansion: usize, entity: &Entity) -> bool {
        self.entities.contains(&(expansion, entity.clone()))
    }
}

impl TruthExpansion<'_> {
    fn parse_key(&self, record: &csv::StringRecord) -> Vec<Value> {
        let parse_part = |field: &Option<usize>| {
            let text = field.and_then(|field_index| record.get(field_index)).unwrap_or_default();
            if text.is_empty() { Value::Null } else { Value::from(text) }
        };
        self.key_fields.iter().map(parse_part).collect()
    }

    /// Parses a field; `None` if the truth cannot be known. Keeps text unchanged if the column
    /// rejects it.
    fn parse_value(&self, n: usize, text: &str) -> Option<CellValue> {
        match parse_entry(&self.checkers[n], text) {
            Ok(value) => return value,
            Err(answer) if answer.state == State::Ok => return Some(answer.value),
            Err(_) => {}
        }
        let many = self.expansion.columns[self.columns[n].0].many.is_some();
        Some(if many {
            CellValue::Many(text.split('|').map(|item| Value::from(item.trim())).collect())
        } else {
            CellValue::One(Value::from(text.trim()))
        })
    }
}

/// Returns the expansions whose rows can be identified by the header, with their columns in the
/// file.
fn match_expansions<'s>(spec: &'s Spec, header: &[String]) -> Vec<TruthExpansion<'s>> {
    let field = |name: &str| header.iter().position(|h| h.eq_ignore_ascii_case(name));
    let to_truth_expansion = |(expansion_index, expansion): (usize, &'s Expansion)| {
        let names = expansion.key.names();
        let key: Vec<Option<usize>> = names.iter().map(|name| field(name)).collect();
        let present: Vec<usize> = (0..names.len()).filter(|n| key[*n].is_some()).collect();
        let is_complete = present.len() == names.len();
        if !is_complete
            && !expansion.key_parts.iter().any(|part| part.iter().all(|n| present.contains(n)))
        {
            return None;
        }
        let columns: Vec<(usize, usize)> = expansion
            .columns
            .iter()
            .enumerate()
            .filter_map(|(n, column)| {
                let many = column.many.as_ref().and_then(|many| field(&many.column));
                Some((n, field(&column.name).or(many)?))
            })
            .collect();
        let checkers = columns.iter().map(|(n, _)| Checker::new(&expansion.columns[*n])).collect();
        (!columns.is_empty()).then_some(TruthExpansion {
            expansion_index,
            expansion,
            key_fields: key,
            columns,
            checkers,
        })
    };
    spec.expansions.iter().enumerate().filter_map(to_truth_expansion).collect()
}

/// Returns the error message for a header that does not identify the rows of any expansion.
fn build_no_match_message(spec: &Spec, header: &[String]) -> String {
    let requirement = |e: &Expansion| {
        let columns: Vec<&str> = e.columns.iter().map(|c| c.name.as_str()).collect();
        format!(
            "for `{}` it needs `{}` and {}`{}`",
            e.name,
            e.key.names().join("`, `"),
            if columns.len() == 1 { "" } else { "at least one of " },
            columns.join("`, `")
        )
    };
    let needs: Vec<String> = spec.expansions.iter().map(requirement).collect();
    let mut message =
        format!("the header lacks key columns or value columns: {}", needs.join("; "));
    let known: Vec<&str> = spec
        .expansions
        .iter()
        .flat_map(|e| e.key.names().iter().chain(e.columns.iter().map(|c| &c.name)))
        .map(String::as_str)
        .collect();
    for name in header {
        let is_unknown = !known.iter().any(|k| k.eq_ignore_ascii_case(name));
        if let Some(near) = find_nearest(name, known.iter().copied()).filter(|_| is_unknown) {
            message.push_str(&format!("; did you mean `{near}` instead of `{name}`?"));
        }
    }
    message
}
