//! Parses a completion into one outcome per requested row.
//!
//! However malformed the completion is, every row has an outcome, and an error in one row does not
//! affect the others.

use super::align::RequestKeys;
use super::found_row::{FoundRow, Truncation, is_fence};
use super::reasoning::strip_reasoning;
use super::{csv, json, split_fields};
use hqdl_spec::checker::{Checker, is_refusal};
use hqdl_values::cell::{Answer, State};

/// Maximum number of bytes of model output stored with a failed row; the journal contains the full
/// output.
const MAX_RAW_BYTES: usize = 4096;

/// How a completion ended, as reported by the endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FinishReason {
    /// The model finished normally.
    #[default]
    Stop,
    /// The text was truncated, by a length limit or a broken connection.
    Truncated,
    /// The endpoint does not report how the completion ended. A last line without a line break may
    /// be truncated.
    Unknown,
}

/// Outcome of one row in a completion.
#[derive(Debug, Clone, PartialEq)]
pub enum RowOutcome {
    /// One answer per column, in the requested order.
    Answered(Vec<Answer>),
    /// No part of the completion belongs to this row with certainty.
    Failed {
        /// `invalid` or `refused`.
        state: State,
        /// Human-readable reason.
        reason: String,
        /// The model's output.
        raw: String,
    },
}

/// Parses a completion and returns one outcome per row of `keys`, in the same order.
///
/// The requested format is tried first, then the other one: a model that was asked for JSON may
/// still answer in CSV. Unless `finish` is `Stop`, the last CSV line is ignored, because its end
/// may be missing.
#[must_use]
pub fn parse_completion(
    content: &str,
    finish: FinishReason,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<RowOutcome> {
    let answer = strip_reasoning(content);
    let found = match answer.as_deref() {
        Some(answer) => {
            let read_rows = |body: &str, looks_json: bool, truncation: Truncation| {
                find_rows(body, looks_json, truncation, keys, key_names, columns, checkers)
            };
            find_rows_in_answer(answer, finish, &read_rows)
        }
        None => Vec::new(),
    };
    let mut rows: Vec<Option<FoundRow>> = vec![None; keys.len()];
    let mut conflicts: Vec<bool> = vec![false; keys.len()];
    let mut is_repeated: Vec<bool> = vec![false; keys.len()];
    for candidate in found {
        let row = candidate.row;
        let Some(previous) = &rows[row] else {
            rows[row] = Some(candidate);
            continue;
        };
        is_repeated[row] = true;
        // Prefer a row without a note to one with a note.
        match (&previous.cells, &candidate.cells) {
            (Ok(_), Ok(_)) if previous.note.is_some() && candidate.note.is_none() => {
                rows[row] = Some(candidate);
                conflicts[row] = false;
            }
            (Ok(_), Ok(_)) if previous.note.is_none() && candidate.note.is_some() => {}
            _ => {
                conflicts[row] |= previous.contradicts(&candidate);
                if previous.cells.is_err() && candidate.cells.is_ok() {
                    rows[row] = Some(candidate);
                }
            }
        }
    }
    // The missing end of a truncated second answer could also contradict the first one.
    if finish != FinishReason::Stop && conflicts.contains(&true) {
        conflicts.iter_mut().zip(is_repeated).for_each(|(conflict, twice)| *conflict |= !twice);
    }
    let is_refused = rows.iter().all(Option::is_none) && answer.as_deref().is_some_and(is_refusal);
    let failed_row = |state, reason: &str, raw: &str| RowOutcome::Failed {
        state,
        reason: reason.to_owned(),
        raw: truncate_raw(raw).to_owned(),
    };
    let check_in_row = |row: usize, cells: Vec<Answer>| {
        let cells = cells.into_iter().zip(checkers);
        cells
            .map(|(cell, checker)| checker.complete_from_key(cell, |part| keys.key_part(row, part)))
            .collect()
    };
    rows.into_iter()
        .zip(conflicts)
        .enumerate()
        .map(|(n, (row, is_conflict))| match row {
            None if is_refused => failed_row(State::Refused, "the model refused", content),
            None if answer.is_none() => failed_row(
                State::Invalid,
                "the completion ended before the model finished reasoning",
                content,
            ),
            None if answer.as_deref().is_some_and(|a| a.trim().is_empty()) => {
                failed_row(State::Invalid, "the completion is empty", content)
            }
            None if finish == FinishReason::Truncated => failed_row(
                State::Invalid,
                "the reply was cut off before this row (`max_output_tokens`, or a broken connection)",
                content,
            ),
            None => failed_row(State::Invalid, "no answer for this row", content),
            Some(row) if is_conflict => failed_row(
                State::Invalid,
                "two different answers for this row",
                &row.raw.to_string(),
            ),
            Some(FoundRow { cells: Err(reason), raw, .. }) => {
                failed_row(State::Invalid, &reason, &raw.to_string())
            }
            Some(FoundRow { cells: Ok(cells), note, raw, .. }) => {
                RowOutcome::Answered(match note {
                    None => check_in_row(n, cells),
                    Some(note) => {
                        let raw_text = raw.to_string();
                        let add_note = |a: Answer| {
                            if a.state.has_value() {
                                a.with_repair_note(&note, truncate_raw(&raw_text))
                            } else {
                                a
                            }
                        };
                        check_in_row(n, cells).into_iter().map(add_note).collect()
                    }
                })
            }
        })
        .collect()
}

/// Finds the rows of an answer, inside and outside its code fences. A row that is corrected after
/// its fence is returned twice.
fn find_rows_in_answer(
    answer: &str,
    finish: FinishReason,
    read_rows: &dyn Fn(&str, bool, Truncation) -> Vec<FoundRow>,
) -> Vec<FoundRow> {
    let all_fences = find_fences(answer);
    let looks_json = |text: &str| text.trim_start().starts_with(['{', '[']);
    let first_text = all_fences.first().map_or(answer, |fence| fence.inside);
    let is_json = looks_json(first_text);
    let truncation = match finish {
        FinishReason::Stop => Truncation::Complete,
        FinishReason::Unknown if answer.ends_with('\n') => Truncation::AtLineEnd,
        FinishReason::Unknown | FinishReason::Truncated => Truncation::Anywhere,
    };
    // A truncated second answer may contradict all of the first one.
    let is_complete = truncation == Truncation::Complete;
    let is_cut = |fence: &Fence<'_>| {
        let is_not_blank = !fence.inside.trim().is_empty();
        !fence.is_closed && (!is_complete || is_not_blank && is_json)
    };
    if all_fences.iter().skip(1).any(is_cut) {
        return Vec::new();
    }
    let mut rows = read_rows(answer, is_json, truncation);
    let outside_count = rows.len();
    for fence in &all_fences {
        let looks_json = looks_json(fence.inside);
        let is_whole = fence.is_closed && truncation != Truncation::Complete;
        let fence_truncation = if is_whole { Truncation::AtLineEnd } else { truncation };
        let mut inside = read_rows(fence.inside, looks_json, fence_truncation);
        // The text outside the fences was read in the first fence's format. A row that continues
        // after the fence appears complete only in that reading.
        let is_found = |f: &FoundRow| rows[..outside_count].iter().any(|a| a.row == f.row);
        inside.retain(|f| f.cells.is_ok() && (looks_json != is_json || !is_found(f)));
        rows.extend(inside);
    }
    rows
}

/// Finds the rows of a text in the format that it appears to have or, if there are none, in the
/// other format.
fn find_rows(
    body: &str,
    looks_json: bool,
    truncation: Truncation,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let read_json = || json::parse_json(body, keys, key_names, columns, checkers);
    let with_commas = split_fields::convert_to_csv(body, key_names, columns);
    let lines = with_commas.as_deref().unwrap_or(body);
    let read_csv = || csv::parse_csv(lines, truncation, keys, checkers);
    let found = if looks_json { read_json() } else { read_csv() };
    if !found.iter().any(|f| f.cells.is_ok()) {
        let other = if looks_json { read_csv() } else { read_json() };
        // A line of pretty-printed JSON that equals a key is not a row.
        if found.is_empty() || other.iter().any(|f| f.cells.is_ok()) {
            return other;
        }
    }
    found
}

/// A code fence in an answer.
struct Fence<'a> {
    inside: &'a str,
    is_closed: bool,
}

/// Returns the code fences of an answer.
fn find_fences(content: &str) -> Vec<Fence<'_>> {
    let mut fences = Vec::new();
    let mut inside_start = None;
    let mut position = 0;
    for line in content.split_inclusive('\n') {
        let next = position + line.len();
        match inside_start {
            None if is_fence(line) => inside_start = Some(next),
            Some(inside) if line.trim() == "```" => {
                fences.push(Fence { inside: &content[inside..position], is_closed: true });
                inside_start = None;
            }
            _ => {}
        }
        position = next;
    }
    let unclosed =
        inside_start.map(|inside| Fence { inside: &content[inside..], is_closed: false });
    fences.extend(unclosed);
    fences
}

fn truncate_raw(text: &str) -> &str {
    let mut end = text.len().min(MAX_RAW_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
