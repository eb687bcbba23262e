//! Parses JSON as models write it. Valid JSON is parsed strictly. Otherwise every complete row
//! object is used, whether in fences, in prose or before a truncation.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::align::{MatchQuality, MatchedBy, RequestKeys, RowMatch, is_row_number};
use super::found_row::{FoundRow, RawRow, Truncation};
use super::unambiguous::{MAX_ATTEMPTS, UnambiguousJson};
use super::{csv, label, quotes};
use hqdl_spec::checker::Checker;
use hqdl_values::cell::{Answer, State};
use hqdl_values::value::Value;

/// Parses the rows of a JSON completion: the elements of the requested array or of another array,
/// or one object per row. An object in any other position is part of a value.
pub fn parse_json(
    text: &str,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let mut found = find_documents(text, columns);
    if !found.is_whole {
        let repaired = find_documents(&repair_json(text), columns);
        // Some rows may be valid without repair, and others only after repair.
        if repaired.rows.len() > found.rows.len()
            || (repaired.is_whole && !repaired.rows.is_empty())
        {
            found = repaired;
        }
    }
    // A broken row may contain cells whose names are lost.
    let is_whole = found.is_whole;
    let sole_rows = found.sole_rows;
    let to_rows = |(n, to_rows)| {
        let is_sole_row = is_whole && sole_rows.contains(&n);
        match to_rows {
            RowText::Object(object) => {
                let row = match_object(object, is_sole_row, keys, key_names, columns, checkers);
                row.into_iter().collect()
            }
            RowText::Line(line) if is_sole_row => {
                csv::parse_csv(&line, Truncation::Complete, keys, checkers)
            }
            RowText::Line(line) => csv::parse_keyed_line(&line, keys, checkers),
        }
    };
    found.rows.into_iter().enumerate().flat_map(to_rows).collect()
}

/// Row of a JSON document.
enum RowText {
    /// Object with cells.
    Object(Map<String, Json>),
    Line(String),
}

impl RowText {
    /// Converts an element of an array of rows to a row; `None` if it is not a row.
    fn from_json(element: Json, columns: &[String]) -> Option<Self> {
        match element {
            // A row needs a label and a cell for every column. With one cell too few, it is unclear
            // which columns the other cells belong to.
            Json::Array(mut cells) if cells.len() == columns.len() + 1 => {
                let row = cells.remove(0);
                let cells: Map<String, Json> = columns.iter().cloned().zip(cells).collect();
                let object = [("row".to_owned(), row), ("cells".to_owned(), Json::Object(cells))];
                Some(Self::Object(object.into_iter().collect()))
            }
            Json::Object(object) if is_row(&object, columns) => Some(Self::Object(object)),
            // A line break would split the CSV line in two.
            Json::String(text) => Some(Self::Line(
                text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
            )),
            _ => None,
        }
    }
}

/// Rows found in a text.
struct FoundRows {
    rows: Vec<RowText>,
    /// Positions of the rows that are the only row in their document.
    sole_rows: Vec<usize>,
    /// Whether every object of the text is complete.
    is_whole: bool,
}

/// Finds the row objects in every JSON document in a text. Nothing after the first syntax error is
/// parsed, because an apparent row there may be part of a badly quoted text.
fn find_documents(text: &str, columns: &[String]) -> FoundRows {
    let mut rows = Vec::new();
    let mut sole_rows = Vec::new();
    let mut position = 0;
    let mut attempts = 0;
    while let Some(next) = text[position..].find(['{', '[']) {
        position += next;
        let mut values =
            serde_json::Deserializer::from_str(&text[position..]).into_iter::<UnambiguousJson>();
        if let Some(Ok(UnambiguousJson(json))) = values.next() {
            position += values.byte_offset();
            let before = rows.len();
            collect_rows(json, columns, &mut rows);
            sole_rows.extend((rows.len() == before + 1).then_some(before));
            continue;
        }
        if starts_document(&text[position..]) {
            // The broken document may be a correction of the documents before it.
            rows.clear();
            collect_rows_before_damage(&text[position..], columns, &mut rows);
            return FoundRows { rows, sole_rows, is_whole: false };
        }
        position += 1;
        attempts += 1;
        if attempts > MAX_ATTEMPTS {
            return FoundRows { rows, sole_rows, is_whole: false };
        }
    }
    FoundRows { rows, sole_rows, is_whole: true }
}

/// Returns true if a text begins with an object or an array of objects, not with braces in prose.
fn starts_document(text: &str) -> bool {
    let inner = text.strip_prefix('[').unwrap_or(text).trim_start();
    inner.strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with(['"', '}']))
}

/// Collects the rows of a document: the elements of its array `rows`, the elements of the document
/// if it is an array, or the document itself. An object with one member may wrap another document.
fn collect_rows(json: Json, columns: &[String], rows: &mut Vec<RowText>) {
    match json {
        Json::Array(items) => {
            rows.extend(items.into_iter().filter_map(|item| RowText::from_json(item, columns)));
        }
        Json::Object(mut object) => match object.get_mut("rows").map(Json::take) {
            Some(inner @ Json::Array(_)) => collect_rows(inner, columns, rows),
            Some(Json::Object(inner)) if is_row(&inner, columns) => {
                rows.push(RowText::Object(inner));
            }
            _ if is_row(&object, columns) => rows.push(RowText::Object(object)),
            _ if object.len() == 1 => {
                object.into_iter().for_each(|(_, inner)| collect_rows(inner, columns, rows));
            }
            _ => {}
        },
        _ => {}
    }
}

/// Collects the rows of a broken document: the elements of its array before the syntax error.
fn collect_rows_before_damage(text: &str, columns: &[String], rows: &mut Vec<RowText>) {
    let Some(array) = find_rows_array(text) else { return };
    let mut rest = array;
    loop {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<UnambiguousJson>();
        let Some(Ok(UnambiguousJson(json))) = values.next() else { return };
        let end = values.byte_offset();
        rows.extend(RowText::from_json(json, columns));
        let Some(next) = rest[end..].trim_start().strip_prefix(',') else { return };
        rest = next;
    }
}

/// Returns the content of the array that contains the rows of a broken document. Everything before
/// the array must be valid.
fn find_rows_array(text: &str) -> Option<&str> {
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
            // The only member may wrap the document. However, a list of texts is the value of a
            // column.
            return find_rows_array(value).filter(|_| {
                starts_document(value) && text[1..].trim_start().len() == rest.trim_start().len()
            });
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
fn repair_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_in_string = false;
    let mut is_escaped = false;
    for c in text.chars() {
        if is_in_string {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                _ => out.push(c),
            }
            is_in_string = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        if matches!(c, ']' | '}') {
            let kept = out.trim_end().trim_end_matches(',').len();
            out.truncate(kept);
        }
        is_in_string = c == '"';
        out.push(c);
    }
    out
}

fn match_object(
    object: Map<String, Json>,
    is_sole_row: bool,
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
    let key = find_echoed_key(&object, key_names);
    let row_match = match (&label, &key) {
        (Some(label), _) if label::parse_label(label).is_some() => {
            match_label(label, key.as_deref(), key_names.len(), keys)
        }
        // The answer has a key instead of a number.
        (Some(label), None) => keys.match_by_key(&[label]),
        (_, Some(key)) => {
            let padded_key = pad_key(key, key_names.len());
            keys.match_by_key(&padded_key)
        }
        (None, None) => None,
    };
    let (row_match, note) = match (row_match, &key) {
        (Some(row_match), key) => {
            let key = key.as_ref().filter(|_| row_match.quality <= MatchQuality::Partial);
            (row_match, key.map(|k| format!("the key was echoed as \"{}\"", k.join(", "))))
        }
        // The request has one row, so the answer belongs to it.
        (None, None)
            if keys.len() == 1
                && is_sole_row
                && label.as_ref().is_none_or(|l| is_row_number(0, l)) =>
        {
            (
                RowMatch {
                    row: 0,
                    quality: MatchQuality::Partial,
                    field_count: 0,
                    matched_by: MatchedBy::Key,
                },
                Some("the key was not echoed".to_owned()),
            )
        }
        _ => return None,
    };
    let cells = object.get("cells").and_then(Json::as_object).unwrap_or(&object);
    let cells: Vec<Option<&Json>> = columns
        .iter()
        .map(|name| cells.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v))
        .collect();
    let name_texts: Vec<&str> =
        label.iter().chain(key.iter().flatten()).map(String::as_str).collect();
    let texts: Vec<&str> =
        cells.iter().map(|cell| cell.and_then(Json::as_str).unwrap_or_default()).collect();
    let quote = quotes::find_added_quote(
        quotes::list_unquoted_names(&name_texts, row_match.row, keys),
        &texts,
        checkers,
    );
    let answers: Vec<Answer> = cells
        .iter()
        .zip(checkers)
        .map(|(cell, checker)| match cell {
            None => Answer::without_value(State::Invalid, None),
            Some(cell) => cell
                .as_str()
                .and_then(|text| quotes::check_unquoted(quote, text, checker))
                .unwrap_or_else(|| checker.check_json(cell)),
        })
        .collect();
    let raw = RawRow::Object(object);
    Some(FoundRow { row: row_match.row, cells: Ok(answers), note, raw, partial: Vec::new() })
}

/// Returns the row identified by a label or a number, unless the key contradicts it.
fn match_label(
    label: &str,
    key: Option<&[String]>,
    part_count: usize,
    keys: &RequestKeys,
) -> Option<RowMatch> {
    let match_whole = |key: &[&str]| {
        let fields: Vec<&str> = [label].into_iter().chain(key.iter().copied()).collect();
        keys.match_row(&fields).into_iter().find(|p| p.field_count == fields.len())
    };
    match key {
        None => match_whole(&[]),
        // The number disagrees, so a match by the key alone, or by a part of it, is not enough.
        Some(key) => match_whole(&pad_key(key, part_count)).or_else(|| {
            let key_fields: Vec<&str> = key.iter().map(String::as_str).collect();
            // A key of NULLs or punctuation does not contradict the label.
            let is_blank_key = key_fields
                .iter()
                .all(|part| label::normalize_key(part).is_empty() || label::is_null_text(part));
            match_whole(&key_fields).or_else(|| is_blank_key.then(|| match_whole(&[])).flatten())
        }),
    }
}

/// Returns the key with empty texts for the missing parts. An incomplete key can still show that
/// the answer belongs to another row.
fn pad_key(key: &[String], part_count: usize) -> Vec<&str> {
    let mut key: Vec<&str> = key.iter().map(String::as_str).collect();
    key.resize(key.len().max(part_count), "");
    key
}

/// Returns the echoed key of an answer: an array, an object, or fields of the row. NULL is written
/// as `null`, distinct from the empty text.
fn find_echoed_key(object: &Map<String, Json>, names: &[String]) -> Option<Vec<String>> {
    let to_text = |json: &Json| {
        Value::from_json(json).to_text().map_or_else(|| "null".to_owned(), Cow::into_owned)
    };
    let key_by_name = |fields: &Map<String, Json>| -> Option<Vec<String>> {
        let parts: Vec<Option<String>> = names
            .iter()
            .map(|n| {
                fields.iter().find(|(k, _)| k.eq_ignore_ascii_case(n)).map(|(_, v)| to_text(v))
            })
            .collect();
        let has_any = parts.iter().any(Option::is_some);
        has_any.then(|| parts.into_iter().map(Option::unwrap_or_default).collect())
    };
    match object.get("key") {
        Some(Json::Array(parts)) if !parts.is_empty() => Some(parts.iter().map(to_text).collect()),
        Some(Json::Object(fields)) if !fields.is_empty() => {
            key_by_name(fields).or_else(|| Some(vec![String::new(); names.len()]))
        }
        Some(scalar @ (Json::String(_) | Json::Number(_))) => Some(vec![to_text(scalar)]),
        _ => key_by_name(object),
    }
}
