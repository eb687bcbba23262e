//! Form of a question about a value, or about the values of several arguments.

use super::{Intro, format_value, parse_json_line};
use crate::AskedRow;
use hqdl_values::Row;

/// Beginning of the system message.
pub(super) const INTRO: Intro =
    Intro { task: "Answer the question about the value.", unknown: "if you do not know" };

/// Formats the values of a row, one per line.
pub(super) fn format_values(row: &Row, names: &[String], base_column: Option<&str>) -> String {
    let mut lines =
        base_column.map(|base_column| format!("Column: {base_column}\n")).unwrap_or_default();
    for (name, value) in names.iter().zip(&row.key) {
        lines.push_str(&format!("{name}: {}\n", format_value(value)));
    }
    lines
}

/// Parses the output of [`format_values`] and returns the table, the key columns, the row, and the
/// remaining text.
pub(super) fn parse_values(user: &str) -> Option<(&'static str, Vec<String>, AskedRow, &str)> {
    let mut rest = match user.strip_prefix("Column: ") {
        Some(rest) => rest.split_once('\n')?.1,
        None => user,
    };
    let (mut names, mut key) = (Vec::new(), Vec::new());
    // An empty line separates the values from the question.
    while !rest.starts_with('\n') {
        let (name, value) = rest.split_once(": ")?;
        let (value, next) = parse_json_line(value)?;
        names.push(name.to_owned());
        key.push(value);
        rest = next;
    }
    Some((
        "values",
        names,
        AskedRow { passages: Vec::new(), number: 1, key, context: Vec::new() },
        rest,
    ))
}
