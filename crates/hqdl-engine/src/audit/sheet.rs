//! The sheet of an audit: the CSV file that a person fills in, one line per cell.
//!
//! ```csv
//! # hqdl audit 5f3a… of llm: uniform sample of 50 of 750 rows; write the true value into truth…
//! row,superhero_name,full_name,column,answer,truth,source,note
//! 1,Spawn,Al Simmons,race,Human,Demon,image comics,
//! ```

use std::collections::HashMap;
use std::path::Path;

use super::draw::{Draw, write_file};
use super::error::AuditError;
pub use crate::truth::{CANNOT_BE_KNOWN, NO_VALUE, format_cell, format_entry};
use crate::truth::{format_value, parse_entry};
use hqdl_spec::Expansion;
use hqdl_spec::checker::{Checker, EMPTY_TEXT};
use hqdl_values::cell::{CellValue, State};
use hqdl_values::csv::{
    LineFinder, UNCLOSED_FIELD_MESSAGE, describe_csv_error, find_unclosed_field,
};
use hqdl_values::format::describe_io_error;
use hqdl_values::key::hash_tagged_parts;
use serde::Serialize;

/// Source of the truths that a person entered; the person's name follows.
const PERSON_SOURCE: &str = "person";
/// Prefix of a source that marks an answer of another model.
pub(super) const MODEL_SOURCE: &str = "model:";
/// The sheet's column before the key columns, and the columns after them.
const COLUMNS: (&str, [&str; 5]) = ("row", ["column", "answer", "truth", "source", "note"]);

/// Origin of a value in a sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The truth, from a person or a source.
    Truth,
    /// The answer of another model, which can also be wrong.
    Model,
}

/// True value of a cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellTruth {
    /// True value; `None` if it cannot be known, and `Nothing` if there is none.
    pub value: Option<CellValue>,
    /// Person, source or model that provided the value.
    pub source: String,
    /// Time, remark and replaced truths.
    pub note: String,
}

impl CellTruth {
    /// Returns the kind of evidence: the truth, or another model's answer.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        if self.source.starts_with(MODEL_SOURCE) { Evidence::Model } else { Evidence::Truth }
    }

    /// Returns a hash of the value, the source and the note.
    #[must_use]
    pub fn digest(&self) -> String {
        let parts = [format_entry(self.value.as_ref()), self.source.clone(), self.note.clone()];
        hash_tagged_parts("hqdl truth", &parts).chars().take(16).collect()
    }
}

/// Truths of the sampled rows, by position in the frame and by position of the column in the
/// expansion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sheet {
    truths: HashMap<(usize, usize), CellTruth>,
    /// Source and note of the cells that have no truth.
    remarks: HashMap<(usize, usize), (String, String)>,
    /// Lines of audited columns that the spec no longer has. These lines stay in the file, so that
    /// their truths are not lost.
    removed_columns: Vec<csv::StringRecord>,
}

impl Sheet {
    /// Returns the truth of a cell.
    #[must_use]
    pub fn truth(&self, row: usize, column: usize) -> Option<&CellTruth> {
        self.truths.get(&(row, column))
    }

    /// Returns the note of a cell, which can have one without a truth.
    #[must_use]
    pub fn note(&self, row: usize, column: usize) -> &str {
        let remark = || self.remarks.get(&(row, column)).map_or("", |(_, note)| note);
        self.truth(row, column).map_or_else(remark, |truth| &truth.note)
    }

    /// Sets the truth of a cell.
    pub fn set_truth(&mut self, row: usize, column: usize, truth: CellTruth) {
        self.remarks.remove(&(row, column));
        self.truths.insert((row, column), truth);
    }

    /// Removes the truth of a cell, and leaves a note.
    pub fn remove_truth(&mut self, row: usize, column: usize, note: String) {
        self.truths.remove(&(row, column));
        self.remarks.insert((row, column), (String::new(), note));
    }

    /// Reads a sheet and checks that its rows and answers match the draw.
    ///
    /// # Errors
    /// [`AuditError`] if the file cannot be read, or if a line is missing, invalid or does not
    /// match the draw.
    pub fn read(path: &Path, draw: &Draw, expansion: &Expansion) -> Result<Self, AuditError> {
        let error = |line: u64, message: String| AuditError::in_file(path, Some(line), message);
        let bytes = std::fs::read(path)
            .map_err(|e| AuditError::in_file(path, None, describe_io_error(&e)))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = 1 + String::from_utf8_lossy(before).matches('\n').count();
            error(line as u64, "the line is not UTF-8 text".to_owned())
        })?;
        let text = text.trim_start_matches('\u{feff}');
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        if first.trim_end().trim_end_matches(',') != format_header_comment(draw, expansion) {
            let message = format!("the header is not that of audit {}", draw.id);
            return Err(error(1, message));
        }
        if let Some(line) = find_unclosed_field(rest.as_bytes(), b',') {
            return Err(error(line as u64 + 1, UNCLOSED_FIELD_MESSAGE.to_owned()));
        }
        let mut reader = csv::ReaderBuilder::new().from_reader(rest.as_bytes());
        let header = reader.headers().map_err(|e| error(2, describe_csv_error(&e)))?.clone();
        let names = column_names(expansion);
        if !header.iter().eq(names.iter().map(String::as_str)) {
            return Err(error(2, format!("the header was changed: expected {}", names.join(","))));
        }
        let mut lines = LineReader::new(draw, expansion);
        let mut finder = LineFinder::new(rest.as_bytes());
        // The reader does not see the comment in the first line.
        let mut find_line = |position: &csv::Position| finder.find_line(position) + 1;
        let mut record = csv::StringRecord::new();
        while reader
            .read_record(&mut record)
            .map_err(|e| error(e.position().map_or(0, &mut find_line), describe_csv_error(&e)))?
        {
            let line = record.position().map_or(0, &mut find_line);
            let next = find_line(reader.position());
            lines.read_line(&record, next).map_err(|message| error(line, message))?;
        }
        match lines.find_missing_line() {
            Some((line, message)) => Err(error(line, message)),
            None => Ok(lines.sheet),
        }
    }

    /// Writes the sheet.
    ///
    /// # Errors
    /// [`AuditError`] if the file cannot be written.
    pub fn write(&self, path: &Path, draw: &Draw, expansion: &Expansion) -> Result<(), AuditError> {
        let mut text = (format_header_comment(draw, expansion) + "\n").into_bytes();
        let mut writer = csv::Writer::from_writer(&mut text);
        let failed = |e: csv::Error| AuditError::in_file(path, None, describe_csv_error(&e));
        writer.write_record(column_names(expansion)).map_err(failed)?;
        for (n, row) in draw.sample().iter().enumerate() {
            let frame_row = &draw.frame[*row];
            for (column, audited) in draw.find_expansion_columns(expansion) {
                let truth = self.truth(*row, column);
                let remark = self.remarks.get(&(*row, column)).cloned().unwrap_or_default();
                let (source, note) =
                    truth.map_or(remark, |truth| (truth.source.clone(), truth.note.clone()));
                let mut record = vec![(n + 1).to_string()];
                record.extend(frame_row.key.iter().map(format_value));
                record.push(expansion.columns[column].name.clone());
                record.push(format_cell(&frame_row.answers[audited]));
                record.push(truth.map_or(String::new(), |t| format_entry(t.value.as_ref())));
                record.extend([source, note]);
                writer.write_record(record).map_err(failed)?;
            }
        }
        for record in &self.removed_columns {
            writer.write_record(record).map_err(failed)?;
        }
        writer.flush().map_err(|e| AuditError::in_file(path, None, describe_io_error(&e)))?;
        drop(writer);
        write_file(path, &text)
    }
}

/// Reads the lines of a sheet and rejects those that do not match the draw.
struct LineReader<'d> {
    draw: &'d Draw,
    expansion: &'d Expansion,
    checkers: Vec<Checker>,
    /// For each sampled row and column: the number of the line after the cell's line, if the cell
    /// was read.
    next_lines: Vec<Vec<Option<u64>>>,
    sheet: Sheet,
}

impl<'d> LineReader<'d> {
    fn new(draw: &'d Draw, expansion: &'d Expansion) -> Self {
        Self {
            draw,
            expansion,
            checkers: expansion.columns.iter().map(Checker::new).collect(),
            next_lines: vec![vec![None; expansion.columns.len()]; draw.sample().len()],
            sheet: Sheet::default(),
        }
    }

    /// Reads a line; `next` is the number of the line after it.
    fn read_line(&mut self, record: &csv::StringRecord, next: u64) -> Result<(), String> {
        let field = |n: usize| record.get(n).unwrap_or_default();
        let parts = self.expansion.key.names().len();
        let number: usize = field(0).trim().parse().unwrap_or_default();
        let row = number.checked_sub(1).and_then(|n| self.draw.sample().get(n));
        let Some(row) = row.copied() else {
            return Err(format!("the audit has no row {}", field(0)));
        };
        let frame_row = &self.draw.frame[row];
        let key: Vec<String> = frame_row.key.iter().map(format_value).collect();
        if !key.iter().map(String::as_str).eq((0..parts).map(|n| field(1 + n))) {
            return Err(format!("row {number} has another key: {} was drawn", key.join(", ")));
        }
        let name = field(parts + 1);
        let columns = self.draw.find_expansion_columns(self.expansion);
        let found = columns.iter().find(|(column, _)| self.expansion.columns[*column].name == name);
        let Some((column, audited)) = found.copied() else {
            if self.draw.columns.iter().any(|column| column == name) {
                self.sheet.removed_columns.push(record.clone());
                return Ok(());
            }
            return Err(format!("`{name}` is not an audited column"));
        };
        let answer = format_cell(&frame_row.answers[audited]);
        // Earlier versions wrote the empty text as an empty field.
        let is_empty_text = answer == EMPTY_TEXT && field(parts + 2).is_empty();
        if field(parts + 2) != answer && !is_empty_text {
            return Err(format!("the answer was changed: \"{answer}\" was drawn"));
        }
        if self.next_lines[number - 1][column].replace(next).is_some() {
            return Err(format!("row {number} has `{name}` twice"));
        }
        let truth = field(parts + 3).trim();
        let (source, note) = (field(parts + 4).to_owned(), field(parts + 5).to_owned());
        if truth.is_empty() {
            if !source.is_empty() || !note.is_empty() {
                self.sheet.remarks.insert((row, column), (source, note));
            }
            return Ok(());
        }
        let value = parse_truth(&self.checkers[column], name, truth)?;
        self.sheet.set_truth(row, column, CellTruth { value, source, note });
        Ok(())
    }

    /// Returns the line number at which the first missing cell is expected, and a message; `None`
    /// if no cell is missing.
    fn find_missing_line(&self) -> Option<(u64, String)> {
        let columns = self.draw.find_expansion_columns(self.expansion);
        // The lines of the sheet begin after the comment and the header.
        let mut expected = 3;
        for (n, next_lines) in self.next_lines.iter().enumerate() {
            for (column, _) in &columns {
                let Some(next) = next_lines[*column] else {
                    let name = &self.expansion.columns[*column].name;
                    let message = format!("row {}, column `{name}`, is missing here", n + 1);
                    return Some((expected, message));
                };
                expected = next;
            }
        }
        None
    }
}

/// Returns the source of the truths that a person enters; the name may be empty.
#[must_use]
pub fn format_person(name: &str) -> String {
    format!("{PERSON_SOURCE} {}", name.trim()).trim_end().to_owned()
}

/// Parses a truth; `None` if it cannot be known, and `Nothing` if there is none.
///
/// # Errors
/// Returns a message if the column does not allow the value.
pub fn parse_truth(checker: &Checker, name: &str, text: &str) -> Result<Option<CellValue>, String> {
    parse_entry(checker, text).map_err(|answer| match answer.state {
        State::Ok | State::NotInList => {
            format!("\"{text}\" is not in the value list of `{name}`")
        }
        State::Unknown => format!(
            "\"{text}\" is not a value; write {NO_VALUE} if there is no value, or {CANNOT_BE_KNOWN} if the truth cannot be known"
        ),
        _ => format!("\"{text}\" is not a valid value of `{name}`"),
    })
}

/// Returns the first line of a sheet.
fn format_header_comment(draw: &Draw, expansion: &Expansion) -> String {
    format!(
        "# hqdl audit {} of {}: {} sample of {} of {} rows; write the true value into truth or ? \
         if it cannot be known",
        draw.id,
        expansion.name,
        draw.design.name(),
        draw.sample().len(),
        draw.frame.len()
    )
}

fn column_names(expansion: &Expansion) -> Vec<String> {
    let key = expansion.key.names().iter().cloned();
    let fixed = COLUMNS.1.map(str::to_owned);
    std::iter::once(COLUMNS.0.to_owned()).chain(key).chain(fixed).collect()
}
