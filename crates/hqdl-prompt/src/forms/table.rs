//! A question about the rows of tables.

use serde_json::{Value as Json, json};

use super::{Intro, read_quoted, write_value};
use crate::AskedRow;
use hqdl_values::value::Value;

/// What the model is asked to do.
pub(super) const INTRO: Intro = Intro {
    task: "Answer the question about the table. Only its rows count.",
    unknown: "if you do not know",
};

/// Writes the tables that a question is about: a header and the rows, each a JSON array on a
/// line of its own, so that nothing in a cell can forge a row or the question.
///
/// A small model reads arrays better than CSV or Markdown: 10 of 40 look-ups against 6 and 4.
pub(super) fn write(names: &[String], contexts: &[Value]) -> String {
    let mut text = String::new();
    for (name, context) in names.iter().zip(contexts) {
        let name = if names.len() > 1 { format!(" {name}") } else { String::new() };
        let Some((columns, rows)) = read_table(context) else {
            text.push_str(&format!("Text{name}:\n{}\n", write_value(context)));
            continue;
        };
        text.push_str(&format!("Table{name}:\n{columns}\n"));
        rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
    }
    text
}

/// Returns the column names and the rows of a context that is a table.
fn read_table(context: &Value) -> Option<(Json, Vec<Json>)> {
    let Value::Text(text) = context else { return None };
    let Json::Object(mut table) = serde_json::from_str(text).ok()? else { return None };
    let (columns, rows) = (table.remove("columns")?, table.remove("rows")?);
    let is_table = table.is_empty() && columns.is_array();
    match rows {
        Json::Array(rows) if is_table && rows.iter().all(Json::is_array) => Some((columns, rows)),
        _ => None,
    }
}

/// Reads what [`write`] wrote: table, key columns, row, and what follows.
pub(super) fn read(user: &str) -> Option<(&'static str, Vec<String>, AskedRow, &str)> {
    let (mut rest, mut context) = (user, Vec::new());
    while !rest.starts_with('\n') {
        let (heading, body) = rest.split_once('\n')?;
        let (first, mut next) = read_quoted(body)?;
        if heading.starts_with("Table") {
            let mut rows = Vec::new();
            while next.starts_with('[') {
                let (row, after) = read_quoted(next)?;
                rows.push(row);
                next = after;
            }
            context.push(json!({ "columns": first, "rows": rows }).to_string().into());
        } else {
            context.push(first);
        }
        rest = next;
    }
    let key = vec![Json::from(context.clone()).to_string().into()];
    Some(("question", vec!["rows".to_owned()], AskedRow { number: 1, key, context }, rest))
}
