//! A question about a value, or about the values of several arguments.

use serde_json::Value as Json;

use super::{Intro, fenced, read_fenced};
use crate::AskedRow;
use hqdl_values::Row;
use hqdl_values::key::quote;
use hqdl_values::value::Value;

/// What the model is asked to do.
pub(super) const INTRO: Intro =
    Intro { task: "Answer the question about the value.", unknown: "if you do not know" };

/// What the model is asked to do with a value that is a text of its own.
pub(super) const LONG_INTRO: Intro = Intro {
    task: "Answer the question about the value. Use only its text.",
    unknown: "if the text does not say",
};

/// Characters from which on a value is a text that speaks for itself.
const LONG: usize = 100;

/// Whether the only value of a row is a long text.
pub(super) fn is_long(row: &Row) -> bool {
    let [Value::Text(text)] = row.key.as_slice() else { return false };
    text.contains(char::is_whitespace) && text.chars().nth(LONG).is_some()
}

/// Writes a long value.
pub(super) fn write_long(row: &Row, origin: Option<&str>) -> String {
    let text = row.key.first().and_then(Value::text).unwrap_or_default();
    format!("{}value:\n{}\n", write_origin(origin), fenced(&text))
}

/// Writes the values of a row, one a line.
pub(super) fn write(row: &Row, names: &[String], origin: Option<&str>) -> String {
    let mut lines = write_origin(origin);
    for (name, value) in names.iter().zip(&row.key) {
        let value = match value {
            Value::Text(text) => quote(text),
            other => other.to_json().to_string(),
        };
        lines.push_str(&format!("{name}: {value}\n"));
    }
    lines
}

fn write_origin(origin: Option<&str>) -> String {
    origin.map(|origin| format!("Column: {origin}\n")).unwrap_or_default()
}

fn skip_origin(user: &str) -> Option<&str> {
    match user.strip_prefix("Column: ") {
        Some(rest) => Some(rest.split_once('\n')?.1),
        None => Some(user),
    }
}

/// Reads what [`write_long`] wrote: table, key columns, row, and what follows.
pub(super) fn read_long(user: &str) -> Option<(&'static str, Vec<String>, AskedRow, &str)> {
    let (text, rest) = read_fenced(skip_origin(user)?.strip_prefix("value:\n")?)?;
    let row = AskedRow { number: 1, key: vec![text.into()], context: Vec::new() };
    Some(("values", vec!["value".to_owned()], row, rest.strip_prefix('\n')?))
}

/// Reads what [`write`] wrote: table, key columns, row, and what follows.
pub(super) fn read(user: &str) -> Option<(&'static str, Vec<String>, AskedRow, &str)> {
    let mut rest = skip_origin(user)?;
    let (mut names, mut key) = (Vec::new(), Vec::new());
    // An empty line separates the values from the question.
    while !rest.starts_with('\n') {
        let (line, next) = rest.split_once('\n')?;
        let (name, value) = line.split_once(": ")?;
        names.push(name.to_owned());
        key.push(serde_json::from_str::<Json>(value).ok()?);
        rest = next;
    }
    Some(("values", names, AskedRow { number: 1, key, context: Vec::new() }, rest))
}
