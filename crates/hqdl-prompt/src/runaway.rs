//! Detects degenerate output in an answer that is still streaming: endless repetition, or row after
//! row that the request did not contain. Output tokens are billed, so hqdl aborts such an answer.
//!
//! A valid answer never matches: its rows have different numbers, and repetition of text from the
//! prompt itself is allowed.

use std::collections::HashSet;

use super::align::number_to_row;
use super::reasoning::strip_reasoning;
use super::{AnswerForm, Prompt};

/// Longest period of a repetition, in bytes.
const MAX_PERIOD: usize = 800;
/// Minimum number of repetitions that counts as degenerate.
const MIN_REPEATS: usize = 4;
/// Minimum number of bytes that the repetitions must cover.
const MIN_REPEATED_BYTES: usize = 400;
/// Number of consecutive list items at which a list counts as degenerate if the items have only one
/// or two different texts.
const MAX_SAME_ITEMS: usize = 6;
/// Number of consecutive unknown row numbers that are tolerated, in addition to the number of
/// requested rows.
const MAX_UNKNOWN_ROWS: usize = 16;

impl Prompt {
    /// Returns true if an answer contains the number of a row of this prompt.
    #[must_use]
    pub fn has_started_row(&self, answer: &str) -> bool {
        if self.answer_form == AnswerForm::Single {
            return strip_reasoning(answer).is_some_and(|answer| answer.contains("\":"));
        }
        let answer = strip_reasoning(answer).unwrap_or_default();
        parse_row_numbers(&answer).any(|number| number_to_row(number, self.rows).is_some())
    }

    /// Returns the reason why an answer to this prompt is degenerate; `None` if it is not.
    #[must_use]
    pub fn find_runaway_reason(&self, answer: &str) -> Option<&'static str> {
        if let Some(repetition) = find_trailing_repetition(answer)
            && !self.user.contains(repetition)
        {
            return Some("it repeats itself");
        }
        // Drafts in the reasoning may have any row numbers.
        let answer = strip_reasoning(answer)?;
        if self.has_sets && repeats_items(&answer) {
            return Some("it repeats an item of a list");
        }
        let rows = self.rows;
        // Each line begins with the complete number of its row, so no unknown number is tolerated.
        let max_unknown =
            if self.answer_form == AnswerForm::Lines { 0 } else { rows + MAX_UNKNOWN_ROWS };
        (count_unknown_rows(&answer, rows) > max_unknown)
            .then_some("its rows are not rows of the request")
    }
}

/// Returns true if the last strings of a JSON list repeat the same one or two texts.
fn repeats_items(answer: &str) -> bool {
    // Texts and separators alternate; the first part may be either.
    let parts: Vec<&str> = answer.rsplit('"').skip(1).take(2 * MAX_SAME_ITEMS + 1).collect();
    (0..2).any(|first| {
        let items: HashSet<&&str> = parts.iter().skip(first).step_by(2).collect();
        let mut separators = parts.iter().skip(1 - first).step_by(2);
        parts.len() > 2 * MAX_SAME_ITEMS
            && items.len() <= 2
            && separators.all(|separator| separator.trim() == ",")
    })
}

fn find_trailing_repetition(text: &str) -> Option<&str> {
    let (start, _) = find_repetition(text)?;
    (start..text.len()).find_map(|position| text.get(position..))
}

/// Returns an offset inside the trailing repetition of a text, and the period in bytes.
fn find_repetition(text: &str) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    (1..=MAX_PERIOD).find_map(|period| {
        let start = bytes.len().checked_sub((MIN_REPEATS * period).max(MIN_REPEATED_BYTES))?;
        let (repeated, next) = (&bytes[start..bytes.len() - period], &bytes[start + period..]);
        repeated.iter().rev().eq(next.iter().rev()).then_some((start, period))
    })
}

/// Returns the lines before a trailing repetition of lines. `None` if there is no repetition, or if
/// it contains a row, because its lines may then be part of a value.
pub(super) fn strip_repetition(text: &str) -> Option<&str> {
    let (mut start, period) = find_repetition(text)?;
    let bytes = text.as_bytes();
    while start > 0 && bytes[start - 1] == bytes[start - 1 + period] {
        start -= 1;
    }
    // The line before the repetition may have the same ending as the repeated lines.
    let end = start + bytes[start..].iter().position(|b| *b == b'\n')?;
    parse_row_numbers(text.get(end..end + period)?).next().is_none().then_some(&text[..end])
}

/// Returns the number of consecutive row numbers at the end of an answer that are not in the
/// request. In an incomplete answer, only the numbers are reliable.
fn count_unknown_rows(answer: &str, rows: usize) -> usize {
    parse_row_numbers(answer)
        .fold(0, |run, number| if number_to_row(number, rows).is_some() { 0 } else { run + 1 })
}

/// Returns the row numbers in an answer, whether they are alone or part of a label (`2 Batman`).
fn parse_row_numbers(answer: &str) -> Box<dyn Iterator<Item = usize> + '_> {
    let json = answer.trim_start();
    if json.starts_with(['{', '[']) {
        if let Some(lines) = find_lines_content(json) {
            return Box::new(lines.split('"').filter_map(parse_row_number));
        }
        if let Some(arrays) = find_arrays_content(json) {
            // A list in a cell may also begin with a number.
            return Box::new(arrays.split("[\"").filter_map(parse_row_number));
        }
        let rows = answer.split("\"row\"").skip(1);
        return Box::new(
            rows.filter_map(|row| parse_row_number(row.trim_start_matches([':', ' ', '\n', '\t']))),
        );
    }
    Box::new(answer.lines().filter_map(|line| parse_row_number(line.split_once(',')?.0)))
}

/// Returns the content of an answer that is an array of lines: `{"rows": ["1 Oslo,true"`.
fn find_lines_content(json: &str) -> Option<&str> {
    find_array_content(json).filter(|inside| inside.starts_with('"'))
}

/// Returns the content of an answer that is an array of arrays: `{"rows": [["1 Oslo", true`.
fn find_arrays_content(json: &str) -> Option<&str> {
    find_array_content(json).filter(|inside| inside.starts_with('['))
}

/// Returns the content of the array at the beginning of a text: `{"rows": [`.
fn find_array_content(json: &str) -> Option<&str> {
    let array = json.strip_prefix('{')?.trim_start().strip_prefix("\"rows\"")?.trim_start();
    Some(array.strip_prefix(':')?.trim_start().strip_prefix('[')?.trim_start())
}

/// Parses the number at the start of a field.
fn parse_row_number(field: &str) -> Option<usize> {
    let field = field.trim_start().trim_start_matches(['"', '\'']);
    let end = field.find(|c: char| !c.is_ascii_digit()).unwrap_or(field.len());
    let (digits, rest) = field.split_at(end);
    let is_whole_number = rest.chars().next().is_none_or(|c| !c.is_alphanumeric());
    digits.parse().ok().filter(|_| is_whole_number)
}
