//! Finds the text of each cell in a completion, to determine which tokens belong to a value.
//!
//! The completion is split into rows again, and each row is read as before. A position is kept only
//! if parsing the text there gives the same answer. A cell that cannot be located has no position;
//! this is not an error.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::value::RawValue;

use super::align::RequestKeys;
use super::completion::RowOutcome;
use super::found_row::{FoundRow, Truncation};
use super::reasoning::strip_reasoning;
use super::record::{find_field_end, parse_record};
use super::unambiguous::MAX_ATTEMPTS;
use super::{csv, json};
use hqdl_spec::checker::Checker;
use hqdl_values::cell::Answer;

/// Positions of the cells of a row, by column, in bytes of the completion.
pub type CellPositions = Vec<Option<Range<usize>>>;

/// Returns the positions of the cells of each row.
pub(super) fn locate_cells(
    content: &str,
    outcomes: &[RowOutcome],
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<CellPositions> {
    let positions = vec![vec![None; columns.len()]; outcomes.len()];
    let mut locator = Locator { outcomes, keys, key_names, columns, checkers, positions };
    let answer = strip_reasoning(content).unwrap_or_default();
    // If there is reasoning in several places, the answer is not a contiguous part of the
    // completion.
    if let Some(before) = content.strip_suffix(&*answer) {
        let start = before.len();
        locator.locate_json(&answer, start);
        locator.locate_lines(&answer, start);
    }
    locator.positions
}

struct Locator<'c> {
    outcomes: &'c [RowOutcome],
    keys: &'c RequestKeys,
    key_names: &'c [String],
    columns: &'c [String],
    checkers: &'c [&'c Checker],
    positions: Vec<CellPositions>,
}

impl Locator<'_> {
    /// Locates the cells of JSON rows. `start` is the position of `text` in the completion.
    fn locate_json(&mut self, text: &str, start: usize) {
        for row in find_json_values(text) {
            let rows = format!("[{row}]");
            let found =
                json::parse_json(&rows, self.keys, self.key_names, self.columns, self.checkers);
            let Some(n) = self.match_row(&found) else { continue };
            let row_start = start + find_offset(row, text);
            if row.starts_with('"') {
                let Some((line, offsets)) = decode_string(row) else { continue };
                self.locate_line(n, &line, |range| {
                    row_start + offsets[range.start]..row_start + offsets[range.end]
                });
                continue;
            }
            for (column, cell) in self.find_json_cells(row).into_iter().enumerate() {
                self.positions[n][column] = cell.map(|cell| {
                    let value = strip_delimiters(cell);
                    let at = row_start + find_offset(value, row);
                    at..at + value.len()
                });
            }
        }
    }

    /// Returns the text of each cell of a JSON object or array.
    fn find_json_cells<'r>(&self, row: &'r str) -> Vec<Option<&'r str>> {
        if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(row) {
            return items.iter().skip(1).take(self.columns.len()).map(|i| Some(i.get())).collect();
        }
        let members = |object: &'r str| -> Option<BTreeMap<String, &'r RawValue>> {
            serde_json::from_str(object).ok()
        };
        let object = members(row).unwrap_or_default();
        let inner = object.get("cells").and_then(|cells| members(cells.get()));
        let cells = inner.unwrap_or(object);
        let find = |name: &String| {
            let cell = cells.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            cell.map(|(_, cell)| cell.get())
        };
        self.columns.iter().map(find).collect()
    }

    /// Locates the cells of CSV lines. `start` is the position of `text` in the completion.
    fn locate_lines(&mut self, text: &str, start: usize) {
        let mut position = 0;
        while position < text.len() {
            let rest = &text[position..];
            let line_end = rest.find('\n').unwrap_or(rest.len());
            // A quoted field may contain line breaks.
            let record = parse_record(rest, &['"']).filter(|record| !record.is_open);
            let end = record.map_or(line_end, |record| record.end.max(line_end));
            let line = &rest[..end];
            let found = csv::parse_csv(line, Truncation::Complete, self.keys, self.checkers);
            if let Some(n) = self.match_row(&found) {
                let at = start + position;
                self.locate_line(n, line, |range| at + range.start..at + range.end);
                position += end + 1;
            } else {
                position += line_end + 1;
            }
        }
    }

    /// Locates the cells of a row in its line. `to_content` converts a position in the line to one
    /// in the completion.
    fn locate_line(
        &mut self,
        n: usize,
        line: &str,
        to_content: impl Fn(Range<usize>) -> Range<usize>,
    ) {
        let fields = split_line(line);
        let Some(first) = fields.len().checked_sub(self.columns.len()) else { return };
        for (column, field) in fields[first..].iter().enumerate() {
            let text = line[field.clone()].replace("\"\"", "\"");
            let answer = self.checkers[column].check_text(&text);
            if !field.is_empty() && self.is_answer(n, column, answer) {
                self.positions[n][column] = Some(to_content(field.clone()));
            }
        }
    }

    /// Returns the position, in the request, of the only row found; `None` if there are several, if
    /// its answers differ from the completion's, or if it was located before.
    fn match_row(&self, found: &[FoundRow]) -> Option<usize> {
        let [FoundRow { row, cells: Ok(cells), .. }] = found else { return None };
        let is_new = self.positions[*row].iter().all(Option::is_none);
        let mut all = cells.iter().enumerate();
        let is_same = all.all(|(column, cell)| self.is_answer(*row, column, cell.clone()));
        (is_new && is_same).then_some(*row)
    }

    /// Returns true if `answer` is the completion's answer for the cell.
    fn is_answer(&self, n: usize, column: usize, answer: Answer) -> bool {
        let RowOutcome::Answered(answers) = &self.outcomes[n] else { return false };
        let own =
            self.checkers[column].complete_from_key(answer, |part| self.keys.key_part(n, part));
        answers.get(column).is_some_and(|a| a.state == own.state && a.value == own.value)
    }
}

/// Returns the JSON documents in a text and their rows: the elements of an array, of the array
/// `rows`, or of an array wrapped in an object. For a broken document, returns the values of its
/// parts.
fn find_json_values(text: &str) -> Vec<&str> {
    let (mut found, mut position, mut attempts) = (Vec::new(), 0, 0);
    while let Some(next) = text[position..].find(['{', '[']) {
        position += next;
        let mut values =
            serde_json::Deserializer::from_str(&text[position..]).into_iter::<&RawValue>();
        if let Some(Ok(document)) = values.next() {
            position += values.byte_offset();
            collect_values(document.get(), &mut found);
            continue;
        }
        position += 1;
        attempts += 1;
        if attempts > MAX_ATTEMPTS {
            break;
        }
    }
    found
}

fn collect_values<'t>(json: &'t str, found: &mut Vec<&'t str>) {
    found.push(json);
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json) {
        found.extend(items.iter().map(|item| item.get()));
    } else if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) {
        let only = members.values().next().filter(|_| members.len() == 1);
        if let Some(inner) = members.get("rows").or(only) {
            collect_values(inner.get(), found);
        }
    }
}

/// Returns a JSON value without its quotes or brackets, unless it is empty.
fn strip_delimiters(json: &str) -> &str {
    let inner = ['"', '['].into_iter().zip(['"', ']']).find_map(|(open, close)| {
        let inner = json.strip_prefix(open)?.strip_suffix(close)?.trim();
        (!inner.is_empty()).then_some(inner)
    });
    inner.unwrap_or(json)
}

/// Decodes a JSON string, with spaces for control characters. Also returns, for each byte of the
/// decoded text and for its end, the position in the JSON.
fn decode_string(json: &str) -> Option<(String, Vec<usize>)> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    let (mut text, mut offsets, mut position) = (String::new(), Vec::new(), 0);
    while let Some(first) = inner[position..].chars().next() {
        let length = match (first, inner[position..].get(1..2)) {
            ('\\', Some("u")) => {
                let code = u32::from_str_radix(inner.get(position + 2..position + 6)?, 16).ok()?;
                // A surrogate pair is a single character.
                if (0xD800..0xDC00).contains(&code) { 12 } else { 6 }
            }
            ('\\', _) => 2,
            _ => first.len_utf8(),
        };
        let unit = inner.get(position..position + length)?;
        let decoded: String = serde_json::from_str(&format!("\"{unit}\"")).ok()?;
        for c in decoded.chars() {
            text.push(if c.is_control() { ' ' } else { c });
        }
        offsets.resize(text.len(), 1 + position);
        position += length;
    }
    offsets.push(1 + position);
    Some((text, offsets))
}

/// Returns the positions of a line's fields, without quotes and surrounding spaces.
fn split_line(line: &str) -> Vec<Range<usize>> {
    let (mut fields, mut position) = (Vec::new(), 0);
    loop {
        let rest = &line[position..];
        let start = position + (rest.len() - rest.trim_start().len());
        let quoted = line[start..].strip_prefix('"');
        let after = match quoted.and_then(|inner| find_field_end(inner, '"')) {
            Some(length) => {
                fields.push(start + 1..start + 1 + length);
                start + length + 2
            }
            None => {
                let end = position + rest.find(',').unwrap_or(rest.len());
                let start = start.min(end);
                fields.push(start..start + line[start..end].trim_end().len());
                end
            }
        };
        match line[after..].find(',') {
            Some(comma) => position = after + comma + 1,
            None => return fields,
        }
    }
}

/// Returns the byte offset of `part`, a slice of `text`.
fn find_offset(part: &str, text: &str) -> usize {
    part.as_ptr().addr() - text.as_ptr().addr()
}
