//! From a completion to one outcome for each row asked about.
//!
//! However bad the completion is, every row ends in an outcome, and what is
//! wrong with one row touches no other.

use super::align::RequestKeys;
use super::found::{Ending, FoundRow, is_fence};
use super::{csv, json, parted};
use hqdl_spec::checker::{Checker, is_refusal};
use hqdl_values::cell::{Answer, State};

/// Most bytes of a model's words kept beside a failed row; the journal has all.
const RAW: usize = 4096;

/// What a completion says about one row.
#[derive(Debug, Clone, PartialEq)]
pub enum RowOutcome {
    /// An answer a column, in the order asked.
    Read(Vec<Answer>),
    /// Nothing that can be trusted to be this row's.
    Failed {
        /// `invalid` or `refused`.
        state: State,
        /// Why, in words.
        why: String,
        /// The model's words.
        raw: String,
    },
}

/// Reads a completion: an outcome for every row of `keys`, in their order.
///
/// The format asked for is tried first, the other one next: a model that was
/// asked for JSON and writes CSV has still answered. `truncated` says that the
/// endpoint cut the completion, so that its last csv line is not to be trusted.
#[must_use]
pub fn read(
    content: &str,
    truncated: bool,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<RowOutcome> {
    let read = |body: &str, ending: Ending| found(body, ending, keys, key_names, columns, checkers);
    let (body, fenced) = unfenced(content);
    let ending = match (truncated, fenced) {
        (false, _) => Ending::Complete,
        (true, true) => Ending::Lines,
        (true, false) => Ending::Cut,
    };
    let mut found = read(body, ending);
    // A fence may belong to a value, or there may be several: then any part may
    // hold rows.
    if body.len() != content.len() {
        let sound =
            |row: usize, found: &[FoundRow]| found.iter().any(|f| f.row == row && f.cells.is_ok());
        if !(0..keys.len()).all(|row| sound(row, &found)) {
            let mut all = read(content, if truncated { Ending::Cut } else { Ending::Complete });
            // A row that goes on behind the fence ends there only in the part.
            found.retain(|f| f.cells.is_ok() && all.iter().all(|a| a.row != f.row));
            all.extend(found);
            found = all;
        }
    }
    let mut rows: Vec<Option<FoundRow>> = vec![None; keys.len()];
    let mut conflicts: Vec<bool> = vec![false; keys.len()];
    for one in found {
        let row = one.row;
        match &rows[row] {
            None => rows[row] = Some(one),
            Some(before) => match (&before.cells, &one.cells) {
                (Err(_), Ok(_)) => rows[row] = Some(one),
                // Placed beyond doubt beats placed with a note.
                (Ok(_), Ok(_)) if before.note.is_some() && one.note.is_none() => {
                    rows[row] = Some(one);
                    conflicts[row] = false;
                }
                (Ok(_), Ok(_)) if before.note.is_none() && one.note.is_some() => {}
                (Ok(a), Ok(b)) if !same(a, b) => conflicts[row] = true,
                _ => {}
            },
        }
    }
    let refused = rows.iter().all(Option::is_none) && is_refusal(content);
    let failed = |state, why: &str, raw: &str| RowOutcome::Failed {
        state,
        why: why.to_owned(),
        raw: cut(raw).to_owned(),
    };
    let in_row = |row: usize, cells: Vec<Answer>| {
        let cells = cells.into_iter().zip(checkers);
        cells.map(|(cell, checker)| checker.in_row(cell, |part| keys.part(row, part))).collect()
    };
    rows.into_iter()
        .zip(conflicts)
        .enumerate()
        .map(|(n, (row, conflict))| match row {
            None if refused => failed(State::Refused, "the model refused", content),
            None if content.trim().is_empty() => {
                failed(State::Invalid, "the completion is empty", "")
            }
            None => failed(State::Invalid, "no answer for this row", content),
            Some(row) if conflict => {
                failed(State::Invalid, "two different answers for this row", &row.words.to_string())
            }
            Some(FoundRow { cells: Err(why), words, .. }) => {
                failed(State::Invalid, &why, &words.to_string())
            }
            Some(FoundRow { cells: Ok(cells), note, words, .. }) => RowOutcome::Read(match note {
                None => in_row(n, cells),
                Some(note) => {
                    let words = words.to_string();
                    let told = |a: Answer| {
                        if a.state.shows() { a.repaired(&note, cut(&words)) } else { a }
                    };
                    in_row(n, cells).into_iter().map(told).collect()
                }
            }),
        })
        .collect()
}

fn same(a: &[Answer], b: &[Answer]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.state == b.state && a.value == b.value)
}

/// The rows found in a text, in the format that it looks like, else in the other
/// one.
fn found(
    body: &str,
    ending: Ending,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let looks_json = body.trim_start().starts_with(['{', '[']);
    let as_json = || json::read(body, keys, key_names, columns, checkers);
    let parted = parted::as_csv(body, key_names, columns);
    let lines = parted.as_deref().unwrap_or(body);
    let as_csv = || csv::read(lines, ending, keys, checkers);
    let found = if looks_json { as_json() } else { as_csv() };
    if !found.iter().any(|f| f.cells.is_ok()) {
        let other = if looks_json { as_csv() } else { as_json() };
        // A line of pretty-printed JSON that is a key is no row.
        if found.is_empty() || other.iter().any(|f| f.cells.is_ok()) {
            return other;
        }
    }
    found
}

/// The inside of the first code fence, when there is one; and whether it was closed.
fn unfenced(content: &str) -> (&str, bool) {
    let mut inside = None;
    let mut at = 0;
    for line in content.split_inclusive('\n') {
        let next = at + line.len();
        match inside {
            None if is_fence(line) => inside = Some(next),
            Some(begin) if line.trim() == "```" => return (&content[begin..at], true),
            _ => {}
        }
        at = next;
    }
    (inside.map_or(content, |begin| &content[begin..]), false)
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(RAW);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
