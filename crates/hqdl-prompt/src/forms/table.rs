//! Form of a question about the rows of tables.

use serde_json::{Value as Json, json};

use super::{Intro, format_value, parse_json_line};
use crate::AskedRow;
use hqdl_values::value::Value;

/// Beginning of the system message.
pub(super) const INTRO: Intro = Intro {
    task: "Answer the question about the table. Only its rows count.",
    unknown: "if you do not know",
};

/// Formats the tables of a question: a header and the rows, each a JSON array on its own line, so
/// that nothing in a cell can imitate a row or the question.
///
/// In a test with a small model, 10 of 40 look-ups were correct with JSON arrays, 6 with CSV and 4
/// with Markdown.
pub(super) fn format_tables(names: &[String], contexts: &[Value]) -> String {
    let mut text = String::new();
    for (name, context) in names.iter().zip(contexts) {
        let name = if names.len() > 1 { format!(" {name}") } else { String::new() };
        let Some((columns, rows)) = parse_table(context) else {
            text.push_str(&format!("Text{name}:\n{}\n", format_value(context)));
            continue;
        };
        text.push_str(&format!("Table{name}:\n{columns}\n"));
        rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
    }
    text
}

/// Returns the column names and the rows of a context that is a table.
fn parse_table(context: &Value) -> Option<(Json, Vec<Json>)> {
    let Value::Text(text) = context else { return None };
    let Json::Object(mut table) = serde_json::from_str(text).ok()? else { return None };
    let (columns, rows) = (table.remove("columns")?, table.remove("rows")?);
    let is_table = table.is_empty() && columns.is_array();
    match rows {
        Json::Array(rows) if is_table && rows.iter().all(Json::is_array) => Some((columns, rows)),
        _ => None,
    }
}

/// Parses the output of [`format_tables`] and returns the table, the key columns, the row, and the
/// remaining text.
pub(super) fn parse_tables(user: &str) -> Option<(&'static str, Vec<String>, AskedRow, &str)> {
    let (mut rest, mut context) = (user, Vec::new());
    while !rest.starts_with('\n') {
        let (heading, body) = rest.split_once('\n')?;
        let (first, mut next) = parse_json_line(body)?;
        if heading.starts_with("Table") {
            let mut rows = Vec::new();
            while next.starts_with('[') {
                let (row, after_row) = parse_json_line(next)?;
                rows.push(row);
                next = after_row;
            }
            context.push(json!({ "columns": first, "rows": rows }).to_string().into());
        } else {
            context.push(first);
        }
        rest = next;
    }
    let key = vec![Json::from(context.clone()).to_string().into()];
    Some((
        "question",
        vec!["rows".to_owned()],
        AskedRow { passages: Vec::new(), number: 1, key, context },
        rest,
    ))
}
