//! Parses CSV as models write it.
//!
//! If the whole completion is well-formed CSV, it is parsed as such. Otherwise each line is parsed
//! separately, so that a malformed line does not affect the others. A line is parsed in the ways
//! models write it (single quotes, quotes inside quotes, no quotes, a Markdown table), and the best
//! reading is used. A quoted field is never split.

use std::cmp::Reverse;

use super::align::{MatchQuality, MatchedBy, RequestKeys, RowMatch, is_row_number};
use super::fields::{self, RowField};
use super::found_row::{FoundRow, RawRow, Truncation, is_fence};
use super::quotes;
use super::record::{
    CsvRecord, parse_bracketed, parse_quoted_line, parse_record, recover_unclosed_quote,
    split_at_commas, split_leniently, split_table_row,
};
use super::runaway;
use hqdl_spec::checker::Checker;
use hqdl_spec::coerce::split_quotes;
use hqdl_values::cell::{Answer, State};

/// Maximum number of lines that one row may span.
const MAX_ROW_LINES: usize = 50;

/// Joins fields into a CSV line, and quotes them where necessary.
pub fn format_csv_line<'f>(fields: impl IntoIterator<Item = &'f str>) -> String {
    let fields: Vec<String> = fields.into_iter().map(str::to_owned).collect();
    format_answer_line(&fields, fields.len())
}

/// Formats a CSV line whose first `name_fields` fields identify its row.
///
/// In the remaining fields, an empty field means unknown, and single quotes are read as SQL quotes.
/// A value that is empty or begins with a single quote is therefore put in double quotes.
pub fn format_answer_line(fields: &[String], name_fields: usize) -> String {
    let mut out = String::new();
    for (n, field) in fields.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        let is_plain = !field.contains([',', '"', '\n', '\r']) && field.trim() == field;
        let is_safe_unquoted = n < name_fields || !(field.is_empty() || field.starts_with('\''));
        if is_plain && is_safe_unquoted {
            out.push_str(field);
        } else {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        }
    }
    out
}

/// Parses the rows of a CSV completion. If the completion was truncated, a row that is still open
/// at its end is discarded.
pub fn parse_csv(
    text: &str,
    truncation: Truncation,
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let (text, cut_line) = split_complete_lines(text, truncation);
    parse_keyed_lines(text, cut_line, truncation, keys, checkers)
        .unwrap_or_else(|| parse_without_key(text, keys, checkers).into_iter().collect())
}

/// Parses a line that identifies its row.
pub fn parse_keyed_line(line: &str, keys: &RequestKeys, checkers: &[&Checker]) -> Vec<FoundRow> {
    parse_keyed_lines(line, None, Truncation::Complete, keys, checkers).unwrap_or_default()
}

/// Parses the lines that identify a row; `None` if there is no such line.
fn parse_keyed_lines(
    text: &str,
    cut_line: Option<&str>,
    truncation: Truncation,
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> Option<Vec<FoundRow>> {
    // Most texts without an answer contain no key of the request, so skip them early.
    if !keys.may_contain_key(text) {
        return None;
    }
    // The truncated line may continue the last row, unless it begins another row.
    let is_broken_off = cut_line.is_some_and(|line| !keys.may_be_row_start(line));
    let strict = parse_well_formed_csv(text, keys, checkers).filter(|_| !is_broken_off);
    if strict.is_some() {
        return strict;
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut position = 0;
    // Within an unclosed field, a line that resembles a key without a number may be part of a
    // value.
    let mut requires_number = false;
    while position < lines.len() {
        let line = lines[position];
        position += 1;
        if line.trim().is_empty() || !keys.may_contain_key(line) {
            continue;
        }
        if requires_number && !is_row_start(line, keys) {
            continue;
        }
        match parse_line_span(line, &lines[position..], keys, checkers) {
            LineSpan::Row(row, more) => {
                found.push(*row);
                position += more;
                requires_number = false;
            }
            LineSpan::Open { at_end: end } if end && truncation != Truncation::Complete => break,
            span => {
                let reading = parse_line(line, keys, checkers);
                let is_open = matches!(span, LineSpan::Open { at_end: true });
                let may_go_on =
                    may_continue_value(&lines[position..], is_broken_off, keys, checkers);
                found.extend(reading.map(|reading| {
                    if is_open && has_unclosed_value(line, &reading) {
                        reading.found.discard_unfinished_cells("a quoted value is not closed")
                    } else if may_go_on {
                        reject_uncertain_end(reading.found, checkers)
                    } else {
                        reading.found
                    }
                }));
                requires_number = matches!(span, LineSpan::Open { .. });
            }
        }
    }
    Some(found).filter(|found| !found.is_empty())
}

/// Returns true if a line ends within a double-quoted value. The rest of the value is missing, even
/// if the model finished normally.
fn has_unclosed_value(line: &str, reading: &LineReading) -> bool {
    let unclosed = parse_record(line, &['"']).filter(|record| record.is_open);
    unclosed.is_some_and(|record| record.fields.len() > reading.row_match.field_count)
}

/// Returns the complete lines, and the truncated line after them. If the answer was truncated
/// because it repeats itself, only the lines before the repetition are returned.
fn split_complete_lines(text: &str, truncation: Truncation) -> (&str, Option<&str>) {
    if truncation != Truncation::Anywhere {
        return (text, None);
    }
    if let Some(lines) = runaway::strip_repetition(text) {
        return (lines, None);
    }
    let end = text.trim_end().rfind('\n').unwrap_or(0);
    (&text[..end], Some(&text[end..]))
}

/// Returns true if the lines after a row may begin with the rest of its last value, because the
/// value contains a line break and was not quoted.
///
/// Such a line is not a row of this or another request. A fence, or text after a fence or a blank
/// line, belongs to a value only if a row follows it, or might have followed if the answer had not
/// been truncated.
fn may_continue_value(
    lines: &[&str],
    is_broken_off: bool,
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> bool {
    let is_separator = |line: &str| line.trim().is_empty() || is_fence(line);
    let separator_count = lines.iter().take_while(|line| is_separator(line)).count();
    let (separators, rest) = lines.split_at(separator_count);
    let Some(line) = rest.first() else { return is_broken_off };
    let is_row = |line: &str| parse_line(line, keys, checkers).is_some();
    if is_row(line) {
        return separators.iter().any(|line| is_fence(line));
    }
    let has_few_commas = line.matches(',').count() < checkers.len();
    let has_number = line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    (has_few_commas || !has_number)
        && (separator_count == 0
            || is_broken_off
            || rest.iter().take(MAX_ROW_LINES).any(|line| is_row(line)))
}

/// Rejects a row whose last field may continue on the next line, unless a type or a value list
/// shows that it is complete.
fn reject_uncertain_end(row: FoundRow, checkers: &[&Checker]) -> FoundRow {
    let last = row.cells.as_ref().ok().and_then(|cells| cells.last());
    let closed = last.is_some_and(|a| a.state == State::Ok)
        && checkers.last().is_some_and(|c| c.is_constrained());
    if closed { row } else { row.discard_unfinished_cells("a line that is not a row follows") }
}

/// Parses a completion that is well-formed CSV with one line per row and nothing else.
fn parse_well_formed_csv(
    text: &str,
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> Option<Vec<FoundRow>> {
    let mut rows: Vec<Option<FoundRow>> = vec![None; keys.len()];
    let mut rest = text;
    while !rest.trim().is_empty() {
        let CsvRecord { fields, end, is_open: open } =
            parse_record(rest.trim_start(), &['"', '\''])?;
        let raw = &rest.trim_start()[..end];
        rest = &rest.trim_start()[end..];
        let reading = parse_fields(&fields, keys, checkers, raw)?;
        let slot = rows.get_mut(reading.row_match.row).filter(|r| r.is_none())?;
        if open || !reading.has_all_fields || reading.row_match.quality <= MatchQuality::Partial {
            return None;
        }
        *slot = Some(reading.found);
    }
    rows.into_iter().collect()
}

/// Result of parsing at the start of a line.
enum LineSpan {
    /// A row that continues on this many further lines, because a quoted field contains line
    /// breaks.
    Row(Box<FoundRow>, usize),
    /// A row whose quotes are not closed before the next row or the end of the text.
    Open { at_end: bool },
    /// A row on a single line, or no row.
    Line,
}

fn parse_line_span(
    first: &str,
    rest: &[&str],
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> LineSpan {
    let is_open = |text: &str| parse_record(text, &['"', '\'']).is_some_and(|r| r.is_open);
    if !is_open(first) {
        return LineSpan::Line;
    }
    let mut text = first.to_owned();
    for (n, next) in rest.iter().enumerate().take(MAX_ROW_LINES) {
        // The next row begins here, so the earlier quote did not open a field.
        if is_row_start(next, keys) {
            return LineSpan::Open { at_end: false };
        }
        text.push('\n');
        text.push_str(next);
        match parse_record(&text, &['"', '\'']) {
            Some(record) if record.is_open => {}
            Some(record) if record.end == text.len() => {
                let row = parse_fields(&record.fields, keys, checkers, &text);
                return match row {
                    Some(row) => LineSpan::Row(Box::new(row.found), n + 1),
                    None => LineSpan::Open { at_end: false },
                };
            }
            _ => return LineSpan::Open { at_end: false },
        }
    }
    LineSpan::Open { at_end: rest.len() <= MAX_ROW_LINES }
}

/// Returns true if a line begins with a row number that agrees with its label or key, even if the
/// line is badly quoted.
fn is_row_start(line: &str, keys: &RequestKeys) -> bool {
    if !keys.may_contain_key(line) {
        return false;
    }
    let readings = [
        parse_record(line, &['"', '\'']).map(|r| r.fields),
        Some(split_leniently(line)),
        Some(split_at_commas(line)),
    ];
    readings.into_iter().flatten().any(|fields| {
        let texts: Vec<&str> = fields.iter().map(|f| f.text.as_str()).collect();
        keys.is_row_start(&texts)
    })
}

/// One way to parse a line.
struct LineReading {
    row_match: RowMatch,
    found: FoundRow,
    /// Whether there is one field per column.
    has_all_fields: bool,
    /// Number of cells that passed their checks.
    valid_cells: usize,
    /// Number of fields that still have quotes, a sign that the line uses another quoting style.
    quoted_fields: usize,
}

impl LineReading {
    /// Returns the rank of the reading; the best reading has the greatest rank.
    fn rank(&self) -> (bool, bool, MatchQuality, Reverse<usize>, usize) {
        let is_ok = self.found.cells.is_ok();
        (
            is_ok && self.has_all_fields,
            is_ok,
            self.row_match.quality,
            Reverse(self.quoted_fields),
            self.valid_cells,
        )
    }
}

fn parse_line(line: &str, keys: &RequestKeys, checkers: &[&Checker]) -> Option<LineReading> {
    let mut best: Option<LineReading> = None;
    for fields in list_possible_splits(line) {
        let Some(next) = parse_fields(&fields, keys, checkers, line) else { continue };
        if best.as_ref().is_none_or(|b| next.rank() > b.rank()) {
            best = Some(next);
        }
    }
    // A quote in the fields that identify the row is a mistake if the row's key contains none.
    let number_and_key = 1 + keys.part_count();
    for (position, fields) in recover_unclosed_quote(line.trim(), number_and_key) {
        let is_named = |r: &LineReading| {
            r.has_all_fields
                && r.row_match.field_count > position
                && r.row_match.quality > MatchQuality::Partial
        };
        let next = parse_fields(&fields, keys, checkers, line).filter(is_named);
        best = match (best, next) {
            (Some(best), Some(next)) if next.rank() <= best.rank() => Some(best),
            (best, next) => next.or(best),
        };
    }
    best
}

/// Returns the possible ways to split a line into fields. If the line is well quoted, its quotes
/// decide.
fn list_possible_splits(line: &str) -> Vec<Vec<RowField>> {
    let line = line.trim();
    let parse_closed = |quotes: &[char]| {
        parse_record(line, quotes).filter(|r| !r.is_open && r.end == line.len()).map(|r| r.fields)
    };
    if let Some(table_fields) = split_table_row(line) {
        return vec![table_fields];
    }
    if let Some(fields) = parse_closed(&['"', '\'']).or_else(|| parse_bracketed(line)) {
        // A single field with commas may be a row that is quoted as a whole, or a row whose key and
        // last value each contain an apostrophe.
        let is_one_field = fields.len() == 1 && fields[0].text.contains(',');
        let split_again = || parse_quoted_line(line).into_iter().chain(parse_closed(&['"']));
        let others: Vec<Vec<RowField>> =
            if is_one_field { split_again().collect() } else { Vec::new() };
        return [fields].into_iter().chain(others).collect();
    }
    let unwrapped = parse_quoted_line(line);
    let lenient_fields = split_leniently(line);
    // Do not split a quoted field at its comma.
    let has_quoted_comma = lenient_fields.iter().any(|f| f.is_quoted && f.text.contains(','));
    let strict = parse_closed(&['"']).filter(|_| !has_quoted_comma);
    let plain_fields = Some(split_at_commas(line)).filter(|_| !has_quoted_comma);
    [unwrapped, strict, Some(lenient_fields), plain_fields].into_iter().flatten().collect()
}

/// Parses a completion for one row that contains only the values. A value must match a closed list
/// or a type, so that prose is never read as a row.
fn parse_without_key(text: &str, keys: &RequestKeys, checkers: &[&Checker]) -> Option<FoundRow> {
    let line = text.trim();
    if keys.len() != 1 || line.lines().count() != 1 {
        return None;
    }
    // Further items of an open list, or the rest of an open text, may be missing.
    let is_open_text = parse_record(line, &['"']).is_some_and(|record| record.is_open);
    if is_open_text || line.starts_with('[') && !line.ends_with(']') {
        return None;
    }
    list_possible_splits(line).into_iter().find_map(|fields| {
        let mut fields = fields.as_slice();
        if fields.len() == checkers.len() + 1
            && fields.first().is_some_and(|f| is_row_number(0, &f.text))
        {
            fields = &fields[1..];
        }
        // A list column would otherwise accept the number and key of an unknown row.
        if fields.len() != checkers.len() && checkers.len() > 1 {
            return None;
        }
        let cells = fields::assign_cells(fields, checkers).ok()?;
        let is_confirmed =
            cells.iter().zip(checkers).any(|(a, c)| a.state == State::Ok && c.is_constrained());
        let is_valid = cells.iter().all(|a| matches!(a.state, State::Ok | State::Unknown))
            && !cells.iter().any(Answer::has_omitted_values);
        let note = Some("the key was not echoed".to_owned());
        (is_confirmed && is_valid).then(|| FoundRow {
            row: 0,
            cells: Ok(cells),
            note,
            raw: RawRow::Line(line.to_owned()),
            partial: Vec::new(),
        })
    })
}

/// Parses the fields of a line as a row: identifies the row and reads its cells.
fn parse_fields(
    fields: &[RowField],
    keys: &RequestKeys,
    checkers: &[&Checker],
    line: &str,
) -> Option<LineReading> {
    let texts: Vec<&str> = fields.iter().map(|f| f.text.as_str()).collect();
    let mut matches = keys.match_row(&texts);
    if matches.is_empty() {
        // A label may be in quotes within the quotes of its field.
        let unquoted: Vec<&str> =
            texts.iter().map(|text| split_quotes(text).map_or(*text, |(_, inner)| inner)).collect();
        matches = keys.match_row(&unquoted);
    }
    let row_match = match find_best_match(&matches, fields, keys, checkers)? {
        BestMatch::One(row_match) => row_match,
        BestMatch::Ambiguous(row) => {
            let cells = Err("key and values cannot be separated".to_owned());
            let row_match = RowMatch {
                row,
                quality: MatchQuality::Normalized,
                field_count: 0,
                matched_by: MatchedBy::Key,
            };
            let raw = RawRow::Line(line.to_owned());
            let found = FoundRow { row, cells, note: None, raw, partial: Vec::new() };
            return Some(LineReading {
                row_match,
                found,
                has_all_fields: false,
                valid_cells: 0,
                quoted_fields: 0,
            });
        }
    };
    let rest = fields.get(row_match.field_count..).unwrap_or_default();
    let values = texts.get(row_match.field_count..).unwrap_or_default();
    let name_quotes =
        quotes::list_unquoted_names(&texts[..texts.len() - values.len()], row_match.row, keys);
    let quote = quotes::find_added_quote(name_quotes, values, checkers);
    let cells = if quote.is_some() && rest.len() == checkers.len() {
        let check_cell = |(field, checker): (&RowField, &&Checker)| {
            quotes::check_unquoted(quote, &field.text, checker)
                .unwrap_or_else(|| fields::check_field(field, checker))
        };
        Ok(rest.iter().zip(checkers).map(check_cell).collect())
    } else if let Some(unwrapped) = quotes::strip_all_quotes(name_quotes, rest) {
        fields::assign_cells(&unwrapped, checkers)
    } else {
        fields::assign_cells(rest, checkers)
    };
    let valid_cells =
        cells.iter().flatten().filter(|a| matches!(a.state, State::Ok | State::Unknown)).count();
    let note = (row_match.quality <= MatchQuality::Partial).then(|| {
        let start = row_match.field_count.saturating_sub(keys.part_count());
        format!(
            "the key was echoed as \"{}\"",
            texts.get(start..row_match.field_count).unwrap_or_default().join(", ")
        )
    });
    let quoted_fields = fields
        .iter()
        .map(|f| f.text.trim())
        .zip(fields)
        .filter(|(text, f)| !f.is_quoted && text.len() > 1)
        .filter(|(text, _)| text.starts_with(['\'', '"']) && text.ends_with(['\'', '"']))
        .count();
    let raw = RawRow::Line(line.to_owned());
    let found = FoundRow { row: row_match.row, cells, note, raw, partial: Vec::new() };
    Some(LineReading {
        row_match,
        found,
        has_all_fields: rest.len() == checkers.len(),
        valid_cells,
        quoted_fields,
    })
}

/// Result of choosing among the possible matches of a line.
enum BestMatch {
    One(RowMatch),
    /// The fields that identify this row cannot be distinguished from its values.
    Ambiguous(usize),
}

/// Returns the best match: the one that leaves one field per column, unless another match is
/// equally plausible. `None` if the line may belong to another row.
fn find_best_match(
    matches: &[RowMatch],
    fields: &[RowField],
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> Option<BestMatch> {
    let first = matches.first()?;
    let remaining = |p: &RowMatch| fields.get(p.field_count..).unwrap_or_default();
    let has_all_fields = |p: &&RowMatch| remaining(p).len() == checkers.len();
    let is_label = |p: &&RowMatch| p.matched_by == MatchedBy::Label && p.field_count == 1;
    let label = matches.iter().find(is_label);
    let key = matches
        .iter()
        .find(|p| p.matched_by == MatchedBy::Key && p.quality > MatchQuality::Partial);
    if let Some(row_match) = label.or(key).filter(has_all_fields).or(key.filter(has_all_fields)) {
        return Some(BestMatch::One(*row_match));
    }
    let complete = matches.iter().find(has_all_fields);
    Some(match (key, complete) {
        (Some(_), _) if label.is_some() => BestMatch::Ambiguous(first.row),
        // The line has either a whole key and one field too few, or the beginning of a key and a
        // value that looks like the rest of the key.
        (Some(_), Some(short_match))
            if fields::matches_columns(remaining(short_match), checkers) =>
        {
            BestMatch::Ambiguous(first.row)
        }
        (Some(key), _) => BestMatch::One(*key),
        (None, Some(row_match)) => BestMatch::One(*row_match),
        // The fields begin with a part of a key, possibly followed by the rest of another key.
        (None, None)
            if label.is_none()
                && keys.part_count() > 1
                && remaining(first).len() + 1 == checkers.len() + keys.part_count() =>
        {
            return None;
        }
        (None, None) => BestMatch::One(*label.unwrap_or(first)),
    })
}
