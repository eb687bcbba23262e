//! From a completion to one outcome for each row asked about.
//!
//! However bad the completion is, every row ends in an outcome, and what is
//! wrong with one row touches no other.

use super::align::RequestKeys;
use super::found::{Ending, FoundRow, is_fence};
use super::reasoning::answer_part;
use super::{csv, json, parted};
use hqdl_spec::checker::{Checker, is_refusal};
use hqdl_values::cell::{Answer, State};

/// Most bytes of a model's words kept beside a failed row; the journal has all.
const RAW: usize = 4096;

/// How an endpoint says that a completion ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Finish {
    /// The model wrote all that it wanted to.
    #[default]
    Stop,
    /// The text was cut off, at a length or by a broken connection.
    Cut,
    /// The endpoint does not say. A last line without its line break may be cut off.
    Unknown,
}

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
/// asked for JSON and writes CSV has still answered. Unless `finish` is `Stop`, the last line
/// of CSV is not read, since its rest may be missing.
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
        // Placed beyond doubt beats placed with a note.
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
    // The rest of a second answer is missing, which may contradict the first one, too.
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

/// Finds the rows in all of an answer: within its code fences and outside. Rows that a
/// fence and a correction after it contradict are found twice.
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
    // A second answer that is cut may contradict all of the first one.
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
        // All of the answer was read in the first fence's format. A row that goes on behind the
        // fence ends there only in the part.
        let found = |f: &FoundRow| all[..outside].iter().any(|a| a.row == f.row);
        inside.retain(|f| f.cells.is_ok() && (looks_json != is_json || !found(f)));
        all.extend(inside);
    }
    all
}

/// Finds the rows of a text, in the format that it looks like, else in the other one.
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
        // A line of pretty-printed JSON that is a key is no row.
        if found.is_empty() || other.iter().any(|f| f.cells.is_ok()) {
            return other;
        }
    }
    found
}

/// A code fence of an answer.
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
