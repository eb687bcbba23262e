//! Parses JSON as models write it. Valid JSON is parsed strictly; otherwise every complete row
//! object in the text is used, in fences, in prose or before a truncation.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::align::{Echoed, Fit, RequestKeys, RowPlace};
use super::found::{Ending, FoundRow, RowWords};
use super::unambiguous::{TRIES, UnambiguousJson};
use super::{csv, label, quotes};
use hqdl_spec::checker::Checker;
use hqdl_values::cell::{Answer, State};
use hqdl_values::value::Value;

/// Parses the rows of a JSON completion: the elements of the requested array or of any array, or
/// one object per row. An object in any other position is part of a value.
pub fn read(
    text: &str,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let mut found = documents(text, columns);
    if !found.is_whole {
        let again = documents(&mended(text), columns);
        // Some rows may be valid without repair, and others only after it.
        if again.rows.len() > found.rows.len() || (again.is_whole && !again.rows.is_empty()) {
            found = again;
        }
    }
    // A broken row may contain cells whose key is lost.
    let is_whole = found.is_whole;
    let only = found.only;
    let row = |(n, row)| match row {
        RowText::Object(object) => {
            let only = is_whole && only.contains(&n);
            place_row(object, only, keys, key_names, columns, checkers).into_iter().collect()
        }
        RowText::Line(line) => csv::read(&line, Ending::Complete, keys, checkers),
    };
    found.rows.into_iter().enumerate().flat_map(row).collect()
}

/// Row of a document.
enum RowText {
    /// Object with cells.
    Object(Map<String, Json>),
    /// CSV line.
    Line(String),
}

impl RowText {
    /// Returns an element of an array of rows as a row, if it is one.
    fn read(element: Json, columns: &[String]) -> Option<Self> {
        match element {
            // A label, and a cell for every column: with one too few it is not known whose
            // the others are.
            Json::Array(mut cells) if cells.len() == columns.len() + 1 => {
                let row = cells.remove(0);
                let cells: Map<String, Json> = columns.iter().cloned().zip(cells).collect();
                let object = [("row".to_owned(), row), ("cells".to_owned(), Json::Object(cells))];
                Some(Self::Object(object.into_iter().collect()))
            }
            Json::Object(object) if is_row(&object, columns) => Some(Self::Object(object)),
            // A line break would split the line in two.
            Json::String(text) => Some(Self::Line(
                text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
            )),
            _ => None,
        }
    }
}

/// Rows of a text.
struct FoundRows {
    rows: Vec<RowText>,
    /// Positions of rows that are the only row of their document.
    only: Vec<usize>,
    /// Whether every object of the text is complete.
    is_whole: bool,
}

/// Finds the row objects of every JSON document of a text. Nothing after the first syntax error is
/// parsed, because an apparent row there may be part of a badly quoted text.
fn documents(text: &str, columns: &[String]) -> FoundRows {
    let mut rows = Vec::new();
    let mut only = Vec::new();
    let mut at = 0;
    let mut tries = 0;
    while let Some(next) = text[at..].find(['{', '[']) {
        at += next;
        let mut values =
            serde_json::Deserializer::from_str(&text[at..]).into_iter::<UnambiguousJson>();
        if let Some(Ok(UnambiguousJson(json))) = values.next() {
            at += values.byte_offset();
            let before = rows.len();
            rows_of_document(json, columns, &mut rows);
            only.extend((rows.len() == before + 1).then_some(before));
            continue;
        }
        if is_document(&text[at..]) {
            // The broken document may correct the documents before it.
            rows.clear();
            rows_before_damage(&text[at..], columns, &mut rows);
            return FoundRows { rows, only, is_whole: false };
        }
        at += 1;
        tries += 1;
        if tries > TRIES {
            return FoundRows { rows, only, is_whole: false };
        }
    }
    FoundRows { rows, only, is_whole: true }
}

/// Returns true if a text begins with an object or an array of objects, not with braces in prose.
fn is_document(text: &str) -> bool {
    let inner = text.strip_prefix('[').unwrap_or(text).trim_start();
    inner.strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with(['"', '}']))
}

/// Collects the rows of a document: the elements of its array `rows`, the elements of the array
/// that it is, or the document itself. An object with one member may wrap another document.
fn rows_of_document(json: Json, columns: &[String], rows: &mut Vec<RowText>) {
    match json {
        Json::Array(items) => {
            rows.extend(items.into_iter().filter_map(|item| RowText::read(item, columns)));
        }
        Json::Object(mut object) => match object.get_mut("rows").map(Json::take) {
            Some(inner @ Json::Array(_)) => rows_of_document(inner, columns, rows),
            Some(Json::Object(inner)) if is_row(&inner, columns) => {
                rows.push(RowText::Object(inner));
            }
            _ if is_row(&object, columns) => rows.push(RowText::Object(object)),
            _ if object.len() == 1 => {
                object.into_iter().for_each(|(_, inner)| rows_of_document(inner, columns, rows));
            }
            _ => {}
        },
        _ => {}
    }
}

/// Collects the rows of a broken document: the elements of its array before the syntax error.
fn rows_before_damage(text: &str, columns: &[String], rows: &mut Vec<RowText>) {
    let Some(array) = rows_array(text) else { return };
    let mut rest = array;
    loop {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<UnambiguousJson>();
        let Some(Ok(UnambiguousJson(json))) = values.next() else { return };
        let end = values.byte_offset();
        rows.extend(RowText::read(json, columns));
        let Some(next) = rest[end..].trim_start().strip_prefix(',') else { return };
        rest = next;
    }
}

/// Returns the inside of the array with a broken document's rows. Everything before it must be
/// valid.
fn rows_array(text: &str) -> Option<&str> {
    if let Some(inside) = text.strip_prefix('[') {
        return Some(inside);
    }
    let mut rest = text.strip_prefix('{')?;
    loop {
        let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let name = names.next()?.ok()?;
        let value = rest[names.byte_offset()..].trim_start().strip_prefix(':')?.trim_start();
        if name == "rows" {
            return value.strip_prefix('[');
        }
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<Json>();
        if values.next().and_then(Result::ok).is_none() {
            // The only member may wrap the document.
            return rows_array(value)
                .filter(|_| text[1..].trim_start().len() == rest.trim_start().len());
        }
        rest = value[values.byte_offset()..].trim_start().strip_prefix(',')?;
    }
}

/// Returns true if an object is a row: it has a label, cells, or a column's value.
fn is_row(object: &Map<String, Json>, columns: &[String]) -> bool {
    object.contains_key("cells")
        || object.contains_key("row")
        || object.iter().any(|(name, value)| {
            !value.is_object() && columns.iter().any(|c| c.eq_ignore_ascii_case(name))
        })
}

/// Escapes bare line breaks inside strings and drops commas before a closing bracket. These are the
/// two most common mistakes of local models.
fn mended(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    let mut escaped = false;
    for c in text.chars() {
        if inside {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                _ => out.push(c),
            }
            inside = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        if matches!(c, ']' | '}') {
            let kept = out.trim_end().trim_end_matches(',').len();
            out.truncate(kept);
        }
        inside = c == '"';
        out.push(c);
    }
    out
}

fn place_row(
    object: Map<String, Json>,
    only: bool,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Option<FoundRow> {
    let label = object.get("row").and_then(|r| match r {
        Json::String(text) => Some(text.trim().to_owned()).filter(|t| !t.is_empty()),
        Json::Number(number) => Some(number.to_string()),
        _ => None,
    });
    let key = echoed(&object, key_names);
    let place = match (&label, &key) {
        (Some(label), _) if label::read(label).is_some() => {
            labelled(label, key.as_deref(), key_names.len(), keys)
        }
        // A key instead of a number.
        (Some(label), None) => keys.by_key(&[label]),
        (_, Some(key)) => {
            let key = padded(key, key_names.len());
            keys.by_key(&key)
        }
        (None, None) => None,
    };
    let (place, note) = match (place, &key) {
        (Some(place), key) => {
            let key = key.as_ref().filter(|_| place.fit <= Fit::Partly);
            (place, key.map(|k| format!("the key was echoed as \"{}\"", k.join(", "))))
        }
        // The request has one row, so the answer belongs to it.
        (None, None) if keys.len() == 1 && only && label.as_ref().is_none_or(|l| l == "1") => (
            RowPlace { row: 0, fit: Fit::Partly, taken: 0, echo: Echoed::Key },
            Some("the key was not echoed".to_owned()),
        ),
        _ => return None,
    };
    let cells = object.get("cells").and_then(Json::as_object).unwrap_or(&object);
    let cells: Vec<Option<&Json>> = columns
        .iter()
        .map(|name| cells.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v))
        .collect();
    let named: Vec<&str> = label.iter().chain(key.iter().flatten()).map(String::as_str).collect();
    let texts: Vec<&str> =
        cells.iter().map(|cell| cell.and_then(Json::as_str).unwrap_or_default()).collect();
    let quote = quotes::of_writer(quotes::naming(&named, place.row, keys), &texts, checkers);
    let answers: Vec<Answer> = cells
        .iter()
        .zip(checkers)
        .map(|(cell, checker)| match cell {
            None => Answer::without_value(State::Invalid, None),
            Some(cell) => cell
                .as_str()
                .and_then(|text| quotes::taken_off(quote, text, checker))
                .unwrap_or_else(|| checker.json(cell)),
        })
        .collect();
    let words = RowWords::Object(object);
    Some(FoundRow { row: place.row, cells: Ok(answers), note, words, partial: Vec::new() })
}

/// Returns the row that a label or a number names, unless the key contradicts it.
fn labelled(
    label: &str,
    key: Option<&[String]>,
    parts: usize,
    keys: &RequestKeys,
) -> Option<RowPlace> {
    let whole = |key: &[&str]| {
        let fields: Vec<&str> = [label].into_iter().chain(key.iter().copied()).collect();
        keys.places(&fields).into_iter().find(|p| p.taken == fields.len())
    };
    match key {
        None => whole(&[]),
        // Do not match by the key alone or a part of it, because the number disagrees.
        Some(key) => whole(&padded(key, parts)).or_else(|| {
            let given: Vec<&str> = key.iter().map(String::as_str).collect();
            // A key of NULLs or punctuation does not contradict the label.
            let says_nothing =
                given.iter().all(|part| label::fold(part).is_empty() || label::says_none(part));
            whole(&given).or_else(|| says_nothing.then(|| whole(&[])).flatten())
        }),
    }
}

/// Returns the key with empty texts for the missing parts. An incomplete key can still show that
/// the answer belongs to another row.
fn padded(key: &[String], parts: usize) -> Vec<&str> {
    let mut key: Vec<&str> = key.iter().map(String::as_str).collect();
    key.resize(key.len().max(parts), "");
    key
}

/// Returns the echoed key of an answer: an array, an object, or fields of the row. NULL is `null`,
/// distinct from the empty text.
fn echoed(object: &Map<String, Json>, names: &[String]) -> Option<Vec<String>> {
    let text = |json: &Json| {
        Value::from_json(json).text().map_or_else(|| "null".to_owned(), Cow::into_owned)
    };
    let by_name = |fields: &Map<String, Json>| -> Option<Vec<String>> {
        let parts: Vec<Option<String>> = names
            .iter()
            .map(|n| fields.iter().find(|(k, _)| k.eq_ignore_ascii_case(n)).map(|(_, v)| text(v)))
            .collect();
        let any = parts.iter().any(Option::is_some);
        any.then(|| parts.into_iter().map(Option::unwrap_or_default).collect())
    };
    match object.get("key") {
        Some(Json::Array(parts)) if !parts.is_empty() => Some(parts.iter().map(text).collect()),
        Some(Json::Object(fields)) if !fields.is_empty() => {
            by_name(fields).or_else(|| Some(vec![String::new(); names.len()]))
        }
        Some(scalar @ (Json::String(_) | Json::Number(_))) => Some(vec![text(scalar)]),
        _ => by_name(object),
    }
}
