//! Parses a completion into one outcome per requested row.
//!
//! However malformed the completion is, every row has an outcome, and an error in one row does not
//! affect the others.

use super::align::RequestKeys;
use super::found::{Ending, FoundRow, is_fence};
use super::reasoning::answer_part;
use super::{csv, json, parted};
use hqdl_spec::checker::{Checker, is_refusal};
use hqdl_values::cell::{Answer, State};

/// Maximum bytes of model output stored with a failed row; the journal has all of it.
const RAW: usize = 4096;

/// How a completion ended, as reported by the endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Finish {
    /// The model finished by itself.
    #[default]
    Stop,
    /// The text was truncated, by a length limit or a broken connection.
    Cut,
    /// The endpoint does not report it. A last line without a line break may be truncated.
    Unknown,
}

/// Outcome of one row of a completion.
#[derive(Debug, Clone, PartialEq)]
pub enum RowOutcome {
    /// One answer per column, in the requested order.
    Read(Vec<Answer>),
    /// The completion contains nothing that is certain to belong to this row.
    Failed {
        /// `invalid` or `refused`.
        state: State,
        /// Reason, for people.
        why: String,
        /// The model's output.
        raw: String,
    },
}

/// Parses a completion and returns one outcome per row of `keys`, in the same order.
///
/// The requested format is tried first, then the other one: a model that was asked for JSON may
/// still answer in CSV. Unless `finish` is `Stop`, the last CSV line is not used, because its end
/// may be missing.
#[must_use]
pub fn read(
    content: &str,
    finish: Finish,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<RowOutcome> {
    let answer = answer_part(content);
    let found = match answer.as_deref() {
        Some(answer) => {
            let read = |body: &str, looks_json: bool, ending: Ending| {
                found(body, looks_json, ending, keys, key_names, columns, checkers)
            };
            found_everywhere(answer, finish, &read)
        }
        None => Vec::new(),
    };
    let mut rows: Vec<Option<FoundRow>> = vec![None; keys.len()];
    let mut conflicts: Vec<bool> = vec![false; keys.len()];
    let mut is_repeated: Vec<bool> = vec![false; keys.len()];
    for one in found {
        let row = one.row;
        let Some(before) = &rows[row] else {
            rows[row] = Some(one);
            continue;
        };
        is_repeated[row] = true;
        // A row without a note replaces one with a note.
        match (&before.cells, &one.cells) {
            (Ok(_), Ok(_)) if before.note.is_some() && one.note.is_none() => {
                rows[row] = Some(one);
                conflicts[row] = false;
            }
            (Ok(_), Ok(_)) if before.note.is_none() && one.note.is_some() => {}
            _ => {
                conflicts[row] |= before.contradicts(&one);
                if before.cells.is_err() && one.cells.is_ok() {
                    rows[row] = Some(one);
                }
            }
        }
    }
    // The missing end of a second answer could contradict the first one, too.
    if finish != Finish::Stop && conflicts.contains(&true) {
        conflicts.iter_mut().zip(is_repeated).for_each(|(conflict, twice)| *conflict |= !twice);
    }
    let refused = rows.iter().all(Option::is_none) && answer.as_deref().is_some_and(is_refusal);
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
            None if answer.is_none() => failed(
                State::Invalid,
                "the completion ended before the model finished reasoning",
                content,
            ),
            None if answer.as_deref().is_some_and(|a| a.trim().is_empty()) => {
                failed(State::Invalid, "the completion is empty", content)
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

/// Finds the rows of an answer, inside and outside its code fences. Rows whose fence and later
/// correction differ are returned twice.
fn found_everywhere(
    answer: &str,
    finish: Finish,
    read: &dyn Fn(&str, bool, Ending) -> Vec<FoundRow>,
) -> Vec<FoundRow> {
    let fences = fences(answer);
    let looks_json = |text: &str| text.trim_start().starts_with(['{', '[']);
    let first = fences.first().map_or(answer, |fence| fence.inside);
    let is_json = looks_json(first);
    let end = match finish {
        Finish::Stop => Ending::Complete,
        Finish::Unknown if answer.ends_with('\n') => Ending::Lines,
        Finish::Unknown | Finish::Cut => Ending::Cut,
    };
    // A truncated second answer may contradict all of the first one.
    let ends = end == Ending::Complete;
    let is_cut = |fence: &Fence<'_>| {
        let says = !fence.inside.trim().is_empty();
        !fence.is_closed && (!ends || says && is_json)
    };
    if fences.iter().skip(1).any(is_cut) {
        return Vec::new();
    }
    let mut all = read(answer, is_json, end);
    let outside = all.len();
    for fence in &fences {
        let looks_json = looks_json(fence.inside);
        let is_whole = fence.is_closed && end != Ending::Complete;
        let ending = if is_whole { Ending::Lines } else { end };
        let mut inside = read(fence.inside, looks_json, ending);
        // The whole answer was read in the first fence's format. A row that continues after the
        // fence appears complete only in that reading.
        let found = |f: &FoundRow| all[..outside].iter().any(|a| a.row == f.row);
        inside.retain(|f| f.cells.is_ok() && (looks_json != is_json || !found(f)));
        all.extend(inside);
    }
    all
}

/// Finds the rows of a text in the format it looks like, otherwise in the other format.
fn found(
    body: &str,
    looks_json: bool,
    ending: Ending,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let as_json = || json::read(body, keys, key_names, columns, checkers);
    let parted = parted::as_csv(body, key_names, columns);
    let lines = parted.as_deref().unwrap_or(body);
    let as_csv = || csv::read(lines, ending, keys, checkers);
    let found = if looks_json { as_json() } else { as_csv() };
    if !found.iter().any(|f| f.cells.is_ok()) {
        let other = if looks_json { as_csv() } else { as_json() };
        // A line of pretty-printed JSON that equals a key is not a row.
        if found.is_empty() || other.iter().any(|f| f.cells.is_ok()) {
            return other;
        }
    }
    found
}

/// Code fence of an answer.
struct Fence<'a> {
    inside: &'a str,
    is_closed: bool,
}

/// Returns the code fences of an answer.
fn fences(content: &str) -> Vec<Fence<'_>> {
    let mut fences = Vec::new();
    let mut begin = None;
    let mut at = 0;
    for line in content.split_inclusive('\n') {
        let next = at + line.len();
        match begin {
            None if is_fence(line) => begin = Some(next),
            Some(inside) if line.trim() == "```" => {
                fences.push(Fence { inside: &content[inside..at], is_closed: true });
                begin = None;
            }
            _ => {}
        }
        at = next;
    }
    let open = begin.map(|inside| Fence { inside: &content[inside..], is_closed: false });
    fences.extend(open);
    fences
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(RAW);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
