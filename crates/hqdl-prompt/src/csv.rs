//! Parses CSV as models write it.
//!
//! If the completion as a whole is well-formed CSV, that reading is used. Otherwise each line is
//! parsed separately, so that a malformed line does not affect the others. A line is parsed in the
//! ways models write it (single quotes, quotes inside quotes, no quotes, a Markdown table), and the
//! best reading is used. A quoted field is never split.

use std::cmp::Reverse;

use super::align::{Echoed, Fit, RequestKeys, RowPlace};
use super::astray;
use super::fields::{self, RowField};
use super::found::{Ending, FoundRow, RowWords, is_fence};
use super::quotes;
use super::record::{CsvRecord, around, in_brackets, lenient, never_closed, plain, record, table};
use hqdl_spec::checker::Checker;
use hqdl_spec::coerce::within_quotes;
use hqdl_values::cell::{Answer, State};

/// Maximum number of lines that one row may span.
const LINES: usize = 50;

/// Formats a CSV line.
pub fn line<'f>(fields: impl IntoIterator<Item = &'f str>) -> String {
    let fields: Vec<String> = fields.into_iter().map(str::to_owned).collect();
    answer_line(&fields, fields.len())
}

/// Formats a CSV line whose first `name_fields` fields identify a row.
///
/// In the other fields, an empty field means unknown, and single quotes are read as SQL quotes. A
/// value that is empty or begins with a single quote is therefore put in double quotes.
pub fn answer_line(fields: &[String], named: usize) -> String {
    let mut out = String::new();
    for (n, field) in fields.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        let plain = !field.contains([',', '"', '\n', '\r']) && field.trim() == field;
        let value = n < named || !(field.is_empty() || field.starts_with('\''));
        if plain && value {
            out.push_str(field);
        } else {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        }
    }
    out
}

/// Parses the rows of a CSV completion. If it was truncated, a row that is still open at its end is
/// discarded.
pub fn read(
    text: &str,
    ending: Ending,
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let (text, cut_line) = complete_lines(text, ending);
    // Most texts without an answer contain no key of the request.
    if !keys.may_name(text) {
        return without_key(text, keys, checkers).into_iter().collect();
    }
    // The truncated line may be the rest of the last row, unless it begins another row.
    let broken_off = cut_line.is_some_and(|line| !keys.may_begin(line));
    if let Some(found) = whole(text, keys, checkers).filter(|_| !broken_off) {
        return found;
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    // Within an unclosed field, a line that looks like a key without a number may be anything.
    let mut numbered_only = false;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        if line.trim().is_empty() || !keys.may_name(line) {
            continue;
        }
        if numbered_only && !is_numbered(line, keys) {
            continue;
        }
        match spanning(line, &lines[at..], keys, checkers) {
            LineSpan::Row(row, more) => {
                found.push(*row);
                at += more;
                numbered_only = false;
            }
            LineSpan::Open { end } if end && ending != Ending::Complete => break,
            span => {
                let reading = read_line(line, keys, checkers);
                let is_open = matches!(span, LineSpan::Open { end: true });
                let broken = goes_on(&lines[at..], broken_off, keys, checkers);
                found.extend(reading.map(|reading| {
                    if is_open && opens_value(line, &reading) {
                        reading.found.without_end("a quoted value is not closed")
                    } else if broken {
                        cut(reading.found, checkers)
                    } else {
                        reading.found
                    }
                }));
                numbered_only = matches!(span, LineSpan::Open { .. });
            }
        }
    }
    if found.is_empty() {
        found.extend(without_key(text, keys, checkers));
    }
    found
}

/// Returns true if a line ends within a double-quoted value. The rest of the value is missing, even
/// if the model finished by itself.
fn opens_value(line: &str, reading: &LineReading) -> bool {
    let open = record(line, &['"']).filter(|record| record.open);
    open.is_some_and(|record| record.fields.len() > reading.place.taken)
}

/// Returns the complete lines and the truncated line after them. If the answer was truncated
/// because it repeats itself, the lines end before the repetition.
fn complete_lines(text: &str, ending: Ending) -> (&str, Option<&str>) {
    if ending != Ending::Cut {
        return (text, None);
    }
    if let Some(lines) = astray::before_circle(text) {
        return (lines, None);
    }
    let end = text.trim_end().rfind('\n').unwrap_or(0);
    (&text[..end], Some(&text[end..]))
}

/// Returns true if the lines after a row may begin with the rest of its last value, because the
/// value contains a line break and was not quoted.
///
/// Such a line is no row of this or another request. A fence, and text after a fence or a blank
/// line, belong to a value only if a row follows them or may have followed before the answer was
/// truncated.
fn goes_on(lines: &[&str], broken_off: bool, keys: &RequestKeys, checkers: &[&Checker]) -> bool {
    let apart = |line: &str| line.trim().is_empty() || is_fence(line);
    let gap = lines.iter().take_while(|line| apart(line)).count();
    let (gap_lines, rest) = lines.split_at(gap);
    let Some(line) = rest.first() else { return broken_off };
    let is_row = |line: &str| read_line(line, keys, checkers).is_some();
    if is_row(line) {
        return gap_lines.iter().any(|line| is_fence(line));
    }
    let short = line.matches(',').count() < checkers.len();
    let numbered = line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    (short || !numbered)
        && (gap == 0 || broken_off || rest.iter().take(LINES).any(|line| is_row(line)))
}

/// Rejects a row whose last field may continue on the next line, unless a type or a value list
/// shows that it is complete.
fn cut(row: FoundRow, checkers: &[&Checker]) -> FoundRow {
    let last = row.cells.as_ref().ok().and_then(|cells| cells.last());
    let closed =
        last.is_some_and(|a| a.state == State::Ok) && checkers.last().is_some_and(|c| c.vouches());
    if closed { row } else { row.without_end("a line that is no row follows") }
}

/// Parses a completion that is well-formed CSV with one line per row and nothing else.
fn whole(text: &str, keys: &RequestKeys, checkers: &[&Checker]) -> Option<Vec<FoundRow>> {
    let mut rows: Vec<Option<FoundRow>> = vec![None; keys.len()];
    let mut rest = text;
    while !rest.trim().is_empty() {
        let CsvRecord { fields, end, open } = record(rest.trim_start(), &['"', '\''])?;
        let words = &rest.trim_start()[..end];
        rest = &rest.trim_start()[end..];
        let reading = reading(&fields, keys, checkers, words)?;
        let free = rows.get_mut(reading.place.row).filter(|r| r.is_none())?;
        if open || !reading.exact || reading.place.fit <= Fit::Partly {
            return None;
        }
        *free = Some(reading.found);
    }
    rows.into_iter().collect()
}

/// Row or part of a row at the start of a line.
enum LineSpan {
    /// A row that spans this many further lines, because a quoted field contains line breaks.
    Row(Box<FoundRow>, usize),
    /// A row whose quotes are not closed before the next row, or before the end.
    Open { end: bool },
    /// A row on a single line, or no row.
    Line,
}

fn spanning(first: &str, rest: &[&str], keys: &RequestKeys, checkers: &[&Checker]) -> LineSpan {
    let open = |text: &str| record(text, &['"', '\'']).is_some_and(|r| r.open);
    if !open(first) {
        return LineSpan::Line;
    }
    let mut text = first.to_owned();
    for (n, next) in rest.iter().enumerate().take(LINES) {
        // The next row begins here, so the quote above did not open a field.
        if is_numbered(next, keys) {
            return LineSpan::Open { end: false };
        }
        text.push('\n');
        text.push_str(next);
        match record(&text, &['"', '\'']) {
            Some(record) if record.open => {}
            Some(record) if record.end == text.len() => {
                let row = reading(&record.fields, keys, checkers, &text);
                return match row {
                    Some(row) => LineSpan::Row(Box::new(row.found), n + 1),
                    None => LineSpan::Open { end: false },
                };
            }
            _ => return LineSpan::Open { end: false },
        }
    }
    LineSpan::Open { end: rest.len() <= LINES }
}

/// Returns true if a line begins with a row number that agrees with its label or key, regardless of
/// correct quoting.
fn is_numbered(line: &str, keys: &RequestKeys) -> bool {
    if !keys.may_name(line) {
        return false;
    }
    let readings =
        [record(line, &['"', '\'']).map(|r| r.fields), Some(lenient(line)), Some(plain(line))];
    readings.into_iter().flatten().any(|fields| {
        let texts: Vec<&str> = fields.iter().map(|f| f.text.as_str()).collect();
        keys.numbered(&texts)
    })
}

/// One way to parse a line.
struct LineReading {
    place: RowPlace,
    found: FoundRow,
    /// Whether there is one field per column.
    exact: bool,
    /// Number of cells that passed their checks.
    good: usize,
    /// Number of fields still in quotes, a sign that the line uses another quoting style.
    wrapped: usize,
}

impl LineReading {
    /// Returns the rank of the reading; the best reading has the greatest rank.
    fn rank(&self) -> (bool, bool, Fit, Reverse<usize>, usize) {
        let ok = self.found.cells.is_ok();
        (ok && self.exact, ok, self.place.fit, Reverse(self.wrapped), self.good)
    }
}

fn read_line(line: &str, keys: &RequestKeys, checkers: &[&Checker]) -> Option<LineReading> {
    let mut best: Option<LineReading> = None;
    for fields in ways(line) {
        let Some(next) = reading(&fields, keys, checkers, line) else { continue };
        if best.as_ref().is_none_or(|b| next.rank() > b.rank()) {
            best = Some(next);
        }
    }
    // A quote in the fields that name the row is a mistake if the key has none.
    let number_and_key = 1 + keys.parts();
    for (at, fields) in never_closed(line.trim(), number_and_key) {
        let named = |r: &LineReading| r.exact && r.place.taken > at && r.place.fit > Fit::Partly;
        let next = reading(&fields, keys, checkers, line).filter(named);
        best = match (best, next) {
            (Some(best), Some(next)) if next.rank() <= best.rank() => Some(best),
            (best, next) => next.or(best),
        };
    }
    best
}

/// Returns the possible field lists of a line. If the line is well quoted, its quoting decides.
fn ways(line: &str) -> Vec<Vec<RowField>> {
    let line = line.trim();
    let closed = |quotes: &[char]| {
        record(line, quotes).filter(|r| !r.open && r.end == line.len()).map(|r| r.fields)
    };
    if let Some(table) = table(line) {
        return vec![table];
    }
    if let Some(fields) = closed(&['"', '\'']).or_else(|| in_brackets(line)) {
        // One field with commas may be a row in quotes as a whole, or one whose key and last value
        // have an apostrophe each.
        let one = fields.len() == 1 && fields[0].text.contains(',');
        let parted = || around(line).into_iter().chain(closed(&['"']));
        let others: Vec<Vec<RowField>> = if one { parted().collect() } else { Vec::new() };
        return [fields].into_iter().chain(others).collect();
    }
    let around = around(line);
    let lenient = lenient(line);
    // Do not split a quoted field at its comma.
    let comma = lenient.iter().any(|f| f.quoted && f.text.contains(','));
    let strict = closed(&['"']).filter(|_| !comma);
    let plain = Some(plain(line)).filter(|_| !comma);
    [around, strict, Some(lenient), plain].into_iter().flatten().collect()
}

/// Parses a completion for one row that contains only the values. A closed list or a type must
/// confirm a value, so that prose is never read as a row.
fn without_key(text: &str, keys: &RequestKeys, checkers: &[&Checker]) -> Option<FoundRow> {
    let line = text.trim();
    if keys.len() != 1 || line.lines().count() != 1 {
        return None;
    }
    ways(line).into_iter().find_map(|fields| {
        let mut fields = fields.as_slice();
        if fields.len() == checkers.len() + 1 && fields.first().is_some_and(|f| f.text == "1") {
            fields = &fields[1..];
        }
        // A list column would otherwise accept the number and key of an unknown row.
        if fields.len() != checkers.len() && checkers.len() > 1 {
            return None;
        }
        let cells = fields::cells(fields, checkers).ok()?;
        let vouched = cells.iter().zip(checkers).any(|(a, c)| a.state == State::Ok && c.vouches());
        let sound = cells.iter().all(|a| matches!(a.state, State::Ok | State::Unknown))
            && !cells.iter().any(Answer::leaves_out);
        let note = Some("the key was not echoed".to_owned());
        (vouched && sound).then(|| FoundRow {
            row: 0,
            cells: Ok(cells),
            note,
            words: RowWords::Line(line.to_owned()),
            partial: Vec::new(),
        })
    })
}

/// Parses the fields of a line as a row: the row that they name, and its cells.
fn reading(
    fields: &[RowField],
    keys: &RequestKeys,
    checkers: &[&Checker],
    line: &str,
) -> Option<LineReading> {
    let texts: Vec<&str> = fields.iter().map(|f| f.text.as_str()).collect();
    let mut places = keys.places(&texts);
    if places.is_empty() {
        // A label may be in quotes within the quotes of its field.
        let unquoted: Vec<&str> = texts
            .iter()
            .map(|text| within_quotes(text).map_or(*text, |(_, inner)| inner))
            .collect();
        places = keys.places(&unquoted);
    }
    let place = match likeliest(&places, fields, keys, checkers)? {
        Likeliest::One(place) => place,
        Likeliest::Unclear(row) => {
            let cells = Err("key and values cannot be separated".to_owned());
            let place = RowPlace { row, fit: Fit::Nearly, taken: 0, echo: Echoed::Key };
            let words = RowWords::Line(line.to_owned());
            let found = FoundRow { row, cells, note: None, words, partial: Vec::new() };
            return Some(LineReading { place, found, exact: false, good: 0, wrapped: 0 });
        }
    };
    let rest = fields.get(place.taken..).unwrap_or_default();
    let values = texts.get(place.taken..).unwrap_or_default();
    let named = quotes::naming(&texts[..texts.len() - values.len()], place.row, keys);
    let quote = quotes::of_writer(named, values, checkers);
    let cells = if quote.is_some() && rest.len() == checkers.len() {
        let cell = |(field, checker): (&RowField, &&Checker)| {
            quotes::taken_off(quote, &field.text, checker)
                .unwrap_or_else(|| fields::cell(field, checker))
        };
        Ok(rest.iter().zip(checkers).map(cell).collect())
    } else if let Some(bare) = quotes::around_all(named, rest) {
        fields::cells(&bare, checkers)
    } else {
        fields::cells(rest, checkers)
    };
    let good =
        cells.iter().flatten().filter(|a| matches!(a.state, State::Ok | State::Unknown)).count();
    let note = (place.fit <= Fit::Partly).then(|| {
        let start = place.taken.saturating_sub(keys.parts());
        format!(
            "the key was echoed as \"{}\"",
            texts.get(start..place.taken).unwrap_or_default().join(", ")
        )
    });
    let wrapped = fields
        .iter()
        .map(|f| f.text.trim())
        .zip(fields)
        .filter(|(text, f)| !f.quoted && text.len() > 1)
        .filter(|(text, _)| text.starts_with(['\'', '"']) && text.ends_with(['\'', '"']))
        .count();
    let words = RowWords::Line(line.to_owned());
    let found = FoundRow { row: place.row, cells, note, words, partial: Vec::new() };
    Some(LineReading { place, found, exact: rest.len() == checkers.len(), good, wrapped })
}

/// Result of choosing among the possible matches of a line.
enum Likeliest {
    One(RowPlace),
    /// The fields that name this row cannot be distinguished from its values.
    Unclear(usize),
}

/// Returns the best match: one that leaves one field per column, unless another match is equally
/// plausible. `None` if the line may belong to another row.
fn likeliest(
    places: &[RowPlace],
    fields: &[RowField],
    keys: &RequestKeys,
    checkers: &[&Checker],
) -> Option<Likeliest> {
    let first = places.first()?;
    let rest = |p: &RowPlace| fields.get(p.taken..).unwrap_or_default();
    let exact = |p: &&RowPlace| rest(p).len() == checkers.len();
    let is_label = |p: &&RowPlace| p.echo == Echoed::Label && p.taken == 1;
    let label = places.iter().find(is_label);
    let key = places.iter().find(|p| p.echo == Echoed::Key && p.fit > Fit::Partly);
    if let Some(place) = label.or(key).filter(exact).or(key.filter(exact)) {
        return Some(Likeliest::One(*place));
    }
    let fitting = places.iter().find(exact);
    Some(match (key, fitting) {
        (Some(_), _) if label.is_some() => Likeliest::Unclear(first.row),
        // Either a whole key and a missing field, or the beginning of a key and a value that looks
        // like the rest of it.
        (Some(_), Some(short)) if fields::may_be(rest(short), checkers) => {
            Likeliest::Unclear(first.row)
        }
        (Some(key), _) => Likeliest::One(*key),
        (None, Some(place)) => Likeliest::One(*place),
        // The beginning of a key, possibly followed by the rest of another key.
        (None, None)
            if label.is_none()
                && keys.parts() > 1
                && rest(first).len() + 1 == checkers.len() + keys.parts() =>
        {
            return None;
        }
        (None, None) => Likeliest::One(*label.unwrap_or(first)),
    })
}
