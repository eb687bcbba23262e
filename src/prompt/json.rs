//! JSON as models write it: strict where it is strict; otherwise every complete
//! row object that can be found in the text, in fences, in prose, after a cut.

use serde_json::{Map, Value as Json};

use super::align::{Fit, Keys, Place};
use super::completion::Found;
use crate::cell::{Answer, State};
use crate::spec::checker::Checker;
use crate::value::Value;

/// Broken beginnings of objects after which the rest is given up, so that
/// megabytes of braces cost no more than megabytes.
const TRIES: usize = 20_000;

/// Reads the rows of a JSON completion.
pub fn read(
    text: &str,
    keys: &Keys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Vec<Found> {
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
    objects
        .into_iter()
        .filter_map(|o| found(&o, only, keys, key_names, columns, checkers))
        .collect()
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
    object: &Map<String, Json>,
    only: bool,
    keys: &Keys,
    key_names: &[String],
    columns: &[String],
    checkers: &[&Checker],
) -> Option<Found> {
    let number = object.get("row").and_then(|r| match r {
        Json::String(text) => text.trim().parse::<u64>().ok(),
        other => other.as_u64(),
    });
    let key = echoed(object, key_names);
    let fields: Option<Vec<&str>> = key.as_ref().map(|k| k.iter().map(String::as_str).collect());
    let (place, note) = match (number, fields) {
        (Some(number), Some(fields)) => {
            let number = number.to_string();
            let all: Vec<&str> =
                [number.as_str()].into_iter().chain(fields.iter().copied()).collect();
            let place = keys.place(&all)?;
            // Placed by the key alone: the number said something else.
            if place.taken != all.len() {
                return None;
            }
            (
                place,
                (place.fit == Fit::Partly)
                    .then(|| format!("the key was echoed as \"{}\"", fields.join(", "))),
            )
        }
        (None, Some(fields)) => (keys.by_key(&fields)?, None),
        // One row was asked about and one came back: it is that one.
        (Some(1) | None, None) if keys.len() == 1 && only => (
            Place { row: 0, fit: Fit::Partly, taken: 0 },
            Some("the key was not echoed".to_owned()),
        ),
        _ => return None,
    };
    let cells = object.get("cells").and_then(Json::as_object).unwrap_or(object);
    let answers: Vec<Answer> = columns
        .iter()
        .zip(checkers)
        .map(|(name, checker)| {
            let cell = cells.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v);
            cell.map_or_else(|| Answer::without_value(State::Invalid, None), |c| checker.json(c))
        })
        .collect();
    let text = Json::Object(object.clone()).to_string();
    Some(Found { row: place.row, cells: Ok(answers), note, text })
}

/// The key as the answer echoes it: an array, an object, or fields of the row.
fn echoed(object: &Map<String, Json>, names: &[String]) -> Option<Vec<String>> {
    let text = |json: &Json| Value::from_json(json).text().unwrap_or_default().into_owned();
    // Parts left out are echoed as nothing: an echoed key that is not whole still
    // says whose the answer is not.
    let by_name = |fields: &Map<String, Json>| -> Option<Vec<String>> {
        let parts: Vec<Option<String>> = names
            .iter()
            .map(|n| fields.iter().find(|(k, _)| k.eq_ignore_ascii_case(n)).map(|(_, v)| text(v)))
            .collect();
        let any = parts.iter().any(Option::is_some);
        any.then(|| parts.into_iter().map(Option::unwrap_or_default).collect())
    };
    let padded = |mut parts: Vec<String>| {
        parts.resize(parts.len().max(names.len()), String::new());
        Some(parts)
    };
    match object.get("key") {
        Some(Json::Array(parts)) if !parts.is_empty() => padded(parts.iter().map(text).collect()),
        Some(Json::Object(fields)) if !fields.is_empty() => {
            by_name(fields).or_else(|| padded(Vec::new()))
        }
        Some(scalar @ (Json::String(_) | Json::Number(_))) => padded(vec![text(scalar)]),
        _ => by_name(object),
    }
}
