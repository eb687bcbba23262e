//! CSV as models write it. A well-formed line is read by the csv crate and is
//! done; a line that does not fit is read in the other ways models have (single
//! quotes, quotes inside quotes, none at all, a Markdown table) and the reading
//! that fits best is taken. Each line is read for itself, so that a broken one
//! harms no other.

use std::cmp::Reverse;

use super::align::{Fit, Keys, Place};
use super::completion::Found;
use crate::cell::{Answer, CellValue, State};
use crate::spec::checker::Checker;

/// A line of CSV.
pub fn line<'f>(fields: impl IntoIterator<Item = &'f str>) -> String {
    let mut out = String::new();
    for (n, field) in fields.into_iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        let plain = !field.contains([',', '"', '\n', '\r']) && field.trim() == field;
        if plain {
            out.push_str(field);
        } else {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        }
    }
    out
}

/// Reads the rows of a csv completion.
pub fn read(text: &str, keys: &Keys, checkers: &[&Checker]) -> Vec<Found> {
    // Most of what is no answer names none of the rows.
    let lines: Vec<&str> = if keys.may_name(text) { text.lines().collect() } else { Vec::new() };
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        if line.trim().is_empty() {
            continue;
        }
        if let Some((row, more)) = spanning(line, &lines[at..], keys, checkers) {
            found.push(row);
            at += more;
        } else {
            found.extend(read_line(line, keys, checkers));
        }
    }
    if found.is_empty() {
        found.extend(without_key(text, keys, checkers));
    }
    found
}

/// A row that runs over several lines because a quoted field holds line
/// breaks; with the number of further lines it takes.
fn spanning(
    first: &str,
    rest: &[&str],
    keys: &Keys,
    checkers: &[&Checker],
) -> Option<(Found, usize)> {
    const MOST: usize = 50;
    if first.matches('"').count().is_multiple_of(2) {
        return None;
    }
    let mut text = first.to_owned();
    for (n, next) in rest.iter().enumerate().take(MOST) {
        // The next row begins here: the quote above was just a quote.
        if begins_row(next, keys, checkers) {
            return None;
        }
        text.push('\n');
        text.push_str(next);
        if text.matches('"').count().is_multiple_of(2) {
            if !keys.may_name(&text) {
                return None;
            }
            let fields = quoted(&text)?;
            // All lines are inside fields; else the record ended before them.
            let inside: usize = fields.iter().map(|f| f.matches('\n').count()).sum();
            let whole = reading(&fields, keys, checkers, &text)?;
            return (inside == n + 1
                && whole.place.fit == Fit::Exactly
                && whole.found.cells.is_ok())
            .then_some((whole.found, n + 1));
        }
    }
    None
}

/// Whether a line is the beginning of a row, its own quotes right or wrong.
fn begins_row(line: &str, keys: &Keys, checkers: &[&Checker]) -> bool {
    if !keys.may_name(line) {
        return false;
    }
    [quoted(line), Some(lenient(line)), plain(line)]
        .into_iter()
        .flatten()
        .filter_map(|fields| reading(&fields, keys, checkers, line))
        .any(|r| {
            r.place.fit == Fit::Exactly || (r.place.fit == Fit::Nearly && r.found.cells.is_ok())
        })
}

/// One way to read a line.
struct Reading {
    place: Place,
    found: Found,
    /// Cells that passed their checks.
    good: usize,
    /// Fields that still stand in quotes: the line was quoted in another way.
    wrapped: usize,
    /// Fields after the key.
    fields: usize,
}

impl Reading {
    /// The better reading has the greater rank.
    fn rank(&self) -> (bool, Fit, Reverse<usize>, usize) {
        // Where the key stands as it was given, the quotes belong to the values.
        let wrapped = if self.place.fit == Fit::Exactly { 0 } else { self.wrapped };
        (self.found.cells.is_ok(), self.place.fit, Reverse(wrapped), self.good)
    }

    /// Beyond doubt: the key as it was given, and a field a column. What such
    /// a field holds may be wrong; reading the line another way would only put
    /// pieces of it elsewhere.
    fn is_sure(&self, columns: usize) -> bool {
        self.place.fit == Fit::Exactly
            && self.fields == columns
            && (self.wrapped == 0 || self.good == columns)
    }
}

fn read_line(line: &str, keys: &Keys, checkers: &[&Checker]) -> Option<Found> {
    if !keys.may_name(line) {
        return None;
    }
    let mut best = quoted(line).and_then(|fields| reading(&fields, keys, checkers, line));
    if best.as_ref().is_none_or(|r| !r.is_sure(checkers.len())) {
        for fields in [Some(lenient(line)), plain(line), table(line)].into_iter().flatten() {
            let Some(next) = reading(&fields, keys, checkers, line) else { continue };
            if best.as_ref().is_none_or(|b| next.rank() > b.rank()) {
                best = Some(next);
            }
        }
    }
    best.map(|b| b.found)
}

/// A completion for one row that gives the values alone. Taken only when a
/// closed list or a type vouches for it, so that prose is never a row.
fn without_key(text: &str, keys: &Keys, checkers: &[&Checker]) -> Option<Found> {
    let line = text.trim();
    if keys.len() != 1 || line.lines().count() != 1 {
        return None;
    }
    [quoted(line)?, lenient(line)].into_iter().find_map(|fields| {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        // A list would swallow the number and key of a foreign row.
        if fields.len() != checkers.len() && checkers.len() > 1 {
            return None;
        }
        let cells = cells(&fields, checkers).ok()?;
        let vouched = cells.iter().zip(checkers).any(|(a, c)| a.state == State::Ok && c.vouches());
        let sound = cells.iter().all(|a| matches!(a.state, State::Ok | State::Unknown))
            && !cells.iter().any(Answer::leaves_out);
        let note = Some("the key was not echoed".to_owned());
        (vouched && sound).then(|| Found { row: 0, cells: Ok(cells), note, text: line.to_owned() })
    })
}

fn reading(fields: &[String], keys: &Keys, checkers: &[&Checker], line: &str) -> Option<Reading> {
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let place = keys.place(&fields)?;
    let rest = fields.get(place.taken..).unwrap_or_default();
    let cells = cells(rest, checkers);
    let good =
        cells.iter().flatten().filter(|a| matches!(a.state, State::Ok | State::Unknown)).count();
    let note = (place.fit == Fit::Partly).then(|| {
        let start = place.taken.saturating_sub(keys.parts());
        format!(
            "the key was echoed as \"{}\"",
            fields.get(start..place.taken).unwrap_or_default().join(", ")
        )
    });
    let wrapped = fields
        .iter()
        .filter(|f| f.len() > 1 && f.starts_with(['\'', '"']) && f.ends_with(['\'', '"']))
        .count();
    let found = Found { row: place.row, cells, note, text: line.to_owned() };
    Some(Reading { place, found, good, wrapped, fields: rest.len() })
}

/// The fields after the key, as cells; or why they cannot be told apart.
fn cells(fields: &[&str], checkers: &[&Checker]) -> Result<Vec<Answer>, String> {
    let wanted = checkers.len();
    let trimmed = fields.iter().rev().skip_while(|f| f.trim().is_empty()).count();
    let fields = if fields.len() > wanted { &fields[..trimmed.max(wanted)] } else { fields };
    let count = || format!("{} fields where {wanted} were asked for", fields.len());
    let lists: Vec<usize> = (0..wanted).filter(|c| checkers[*c].is_many()).collect();
    match (fields.len(), lists.as_slice()) {
        (n, _) if n == wanted => Ok(fields.iter().zip(checkers).map(|(f, c)| c.text(f)).collect()),
        // A list that was split into fields: all fields too many are its values.
        (n, [list]) if n > wanted => {
            let after = list + 1 + (n - wanted);
            let mut cells: Vec<Answer> =
                fields[..*list].iter().zip(checkers).map(|(f, c)| c.text(f)).collect();
            let joined = fields[*list..after].join(",");
            let whole = checkers[*list].text(&joined);
            // A field that is no value of the list may be a column that nobody
            // asked for, and then all after it stand in wrong cells. It may not
            // where nothing comes after, and all before is as it should be.
            let sound = |a: &Answer| matches!(a.state, State::Ok | State::Unknown);
            let last = after == n
                && cells.iter().all(sound)
                && fields[*list..].iter().all(|f| !f.contains('|'));
            let vouched = checkers[*list].vouches() && whole.state == State::Ok;
            if !(last || vouched && !whole.leaves_out()) {
                return Err(count());
            }
            cells.push(if whole.state == State::Ok {
                whole.repaired("a list split into fields put together", &joined)
            } else {
                Answer::without_value(State::Invalid, joined)
            });
            cells.extend(
                fields[after..]
                    .iter()
                    .zip(&checkers[after - (n - wanted)..])
                    .map(|(f, c)| c.text(f)),
            );
            Ok(cells)
        }
        // The list at the end is missing; the rest must be beyond doubt.
        (n, [list]) if n + 1 == wanted && *list == n => {
            let mut cells: Vec<Answer> =
                fields.iter().zip(checkers).map(|(f, c)| c.text(f)).collect();
            // In free text, the list itself could stand where text was missing.
            if !cells.iter().zip(checkers).all(|(a, c)| {
                a.state == State::Ok && !matches!(a.value, CellValue::Nothing) && c.vouches()
            }) {
                return Err(count());
            }
            cells.push(Answer::without_value(State::Invalid, None));
            Ok(cells)
        }
        _ => Err(count()),
    }
}

/// As the format asks: fields in double quotes where needed.
fn quoted(line: &str) -> Option<Vec<String>> {
    // Most lines have no quotes, and a reader costs more than they do.
    if !line.contains('"') {
        return Some(line.trim().split(',').map(str::to_owned).collect());
    }
    let mut reader = ::csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .buffer_capacity(line.len() + 1)
        .from_reader(line.trim().as_bytes());
    let mut record = ::csv::StringRecord::new();
    reader.read_record(&mut record).ok()?;
    Some(record.iter().map(str::to_owned).collect())
}

/// Fields in single or double quotes: a quote ends its field only before a
/// comma or at the end, so apostrophes inside names stay.
fn lenient(line: &str) -> Vec<String> {
    let mut fields = Vec::new();
    let mut rest = line.trim();
    loop {
        rest = rest.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let closing = quote.and_then(|q| closing(&rest[1..], q));
        let (field, after) = match (quote, closing) {
            (Some(q), Some(end)) => {
                let doubled: String = [q, q].iter().collect();
                let escaped: String = ['\\', q].iter().collect();
                let inner = &rest[1..=end];
                let one = q.to_string();
                (
                    inner.replace(&escaped, &one).replace(&doubled, &one),
                    rest[end + 2..].trim_start(),
                )
            }
            // Never closed: all that is left is this field.
            (Some(_), None) => (rest[1..].trim().to_owned(), ""),
            (None, _) => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().trim_end_matches(['\'', '"']).to_owned(), &rest[end..])
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None => return fields,
        }
    }
}

/// Where a quoted field ends: at its quote, before a comma or the end.
fn closing(text: &str, quote: char) -> Option<usize> {
    text.char_indices().filter(|(_, c)| *c == quote).map(|(at, _)| at).find(|at| {
        let after = text[at + 1..].trim_start();
        let escaped = text[..*at].ends_with('\\');
        !escaped && (after.is_empty() || after.starts_with(','))
    })
}

/// No quoting at all: every comma parts. Not where a comma stands inside a
/// field in double quotes: there half a value would be taken for another cell.
fn plain(line: &str) -> Option<Vec<String>> {
    let mut inside = false;
    for field in line.split(',').map(str::trim) {
        let ends = field.ends_with('"');
        if inside && ends {
            return None;
        }
        inside |= field.starts_with('"') && !(ends && field.len() > 1);
    }
    let bare = |f: &str| f.trim().trim_matches(|c| matches!(c, '\'' | '"' | '`')).trim().to_owned();
    Some(line.split(',').map(bare).collect())
}

/// A line of a Markdown table, or of pipes.
fn table(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?;
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    Some(inner.split('|').map(|f| f.trim().to_owned()).collect())
}
