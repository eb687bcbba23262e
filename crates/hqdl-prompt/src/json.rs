//! JSON as models write it: strict where it is strict; otherwise every complete
//! row object that can be found in the text, in fences, in prose, after a cut.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::align::{Echoed, Fit, RequestKeys, RowPlace};
use super::found::{FoundRow, RowWords};
use super::{label, quotes};
use hqdl_spec::checker::Checker;
use hqdl_values::cell::{Answer, State};
use hqdl_values::value::Value;

/// Broken beginnings of objects after which the rest is given up, so that
/// megabytes of braces cost no more than megabytes.
const TRIES: usize = 20_000;

/// Reads the rows of a JSON completion.
pub fn read(
    text: &str,
    keys: &RequestKeys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<FoundRow> {
    let mut objects = Vec::new();
    let mut whole = true;
    if let Ok(json) = serde_json::from_str::<Json>(text.trim()) {
        collect(json, columns, &mut objects);
    } else {
        whole = scan(text, columns, &mut objects);
        if !whole {
            let mut more = Vec::new();
            let mended = scan(&mended(text), columns, &mut more);
            // Some rows may be sound as they are, and others only mended.
            if more.len() > objects.len() || (mended && !more.is_empty()) {
                objects = more;
                whole = mended;
            }
        }
    }
    // Inside a broken row there may be cells whose key is lost.
    let only = objects.len() == 1 && whole;
    objects.into_iter().filter_map(|o| found(o, only, keys, key_names, columns, checkers)).collect()
}

/// Takes the row objects out of a JSON value.
fn collect(json: Json, columns: &[String], rows: &mut Vec<Map<String, Json>>) {
    match json {
        Json::Array(items) => items.into_iter().for_each(|i| collect(i, columns, rows)),
        Json::Object(object) => {
            let is_row = object.contains_key("cells")
                || object.contains_key("row")
                || object.keys().any(|k| {
                    columns.iter().any(|c| c.eq_ignore_ascii_case(k) && !object[k].is_object())
                });
            let nested = object.get("rows").is_some_and(|r| r.is_array() || r.is_object());
            if is_row && !nested {
                rows.push(object);
            } else {
                object.into_iter().for_each(|(_, v)| collect(v, columns, rows));
            }
        }
        _ => {}
    }
}

/// Finds complete objects anywhere in a text; whether there are no others.
fn scan(text: &str, columns: &[String], rows: &mut Vec<Map<String, Json>>) -> bool {
    let mut at = 0;
    let mut tries = 0;
    while let Some(next) = text[at..].find('{') {
        at += next;
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Json>();
        if let Some(Ok(json)) = values.next() {
            at += values.byte_offset();
            collect(json, columns, rows);
        } else {
            at += 1;
            tries += 1;
            if tries > TRIES {
                return false;
            }
        }
    }
    tries == 0
}

/// Bare line breaks inside strings escaped, commas before a closing bracket
/// dropped: the two slips local models make most.
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

fn found(
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
        // A name in place of a number.
        (Some(label), None) => keys.by_key(&[label]),
        (_, Some(key)) => {
            let key = padded(key, key_names.len());
            keys.by_key(&key)
        }
        (None, None) => None,
    };
    let (place, note) = match (place, &key) {
        (Some(place), key) => {
            let key = key.as_ref().filter(|_| place.fit == Fit::Partly);
            (place, key.map(|k| format!("the key was echoed as \"{}\"", k.join(", "))))
        }
        // One row was asked about and one came back: it is that one.
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
    Some(FoundRow { row: place.row, cells: Ok(answers), note, words })
}

/// The row that a label or a number names, where the key does not contradict it.
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
        // Placed by the key alone, or by a part of it, the number says something else.
        Some(key) => whole(&padded(key, parts)).or_else(|| {
            let given: Vec<&str> = key.iter().map(String::as_str).collect();
            whole(&given)
        }),
    }
}

/// The key with the parts that were left out echoed as nothing: one that is not
/// whole still says whose the answer is not.
fn padded(key: &[String], parts: usize) -> Vec<&str> {
    let mut key: Vec<&str> = key.iter().map(String::as_str).collect();
    key.resize(key.len().max(parts), "");
    key
}

/// The key as the answer echoes it: an array, an object, or fields of the row.
/// NULL is `null`, distinct from the empty text.
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
