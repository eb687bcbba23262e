//! Form of a request for the columns of one row. The answer is an object with the columns:
//! `{"eye_color": "Yellow", "powers": ["Flight"]}`.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::{
    CELL_PLACEHOLDERS, build_example_value, evidence, format_value, parse_json_line, to_single_line,
};
use crate::{AnswerForm, AskedColumn, AskedRow, Question, write};
use hqdl_spec::{Column, Expansion, Format, Shot, Type, ValueList};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::key::quote_json;
use hqdl_values::value::Value;

/// Start of the system message.
const TASK: &str = "Fill in the columns of one row of a table with what you know. Answer with one \
                    JSON object: ";
/// Text after the example.
const UNKNOWN: &str = ", with null for what you do not know.";
/// End of the user message and of each example row. A small model follows an example whose row ends
/// in the same words; otherwise it may repeat a list item endlessly.
pub(super) const QUESTION: &str = "What are the columns of this row?\nAnswer:";
/// Heading of the context columns, which do not identify the row.
const CONTEXT: &str = "It also has:\n";

/// Returns the system message: an example answer, the table, its columns and its value lists.
pub(super) fn build_system_message(
    expansion: &Expansion,
    columns: &[usize],
    asked: &[&Column],
) -> String {
    let mut text = match &expansion.evidence {
        None => format!("{TASK}{{{}}}{UNKNOWN}", format_example(asked)),
        Some(settings) => {
            let has_shots = !expansion.shots.is_empty();
            format!(
                "{}{{{}, {}}}{UNKNOWN}{}",
                evidence::build_task_sentence(settings.require),
                evidence::format_example(asked),
                format_example(asked),
                evidence::format_rules(asked, has_shots)
            )
        }
    };
    if let Some(words) = expansion.media_words() {
        text.push_str(words.numbered);
    }
    let spellings: Vec<&str> = Type::ALL
        .iter()
        .filter(|kind| asked.iter().any(|column| column.kind == **kind))
        .filter_map(|kind| kind.format_hint())
        .collect();
    if !spellings.is_empty() {
        let _ = write!(text, " Write {}.", spellings.join(", "));
    }
    let about = to_single_line(expansion.about.trim());
    let _ = write!(text, "\nTable {}: {about}", quote_json(&expansion.name));
    // Write a list shared by several columns only once.
    let mut lists: Vec<&ValueList> = Vec::new();
    let mut lines = String::new();
    for column in asked {
        let list = column.values.as_ref().map(|list| {
            let at = lists.iter().position(|known| known.hash == list.hash);
            let at = at.unwrap_or_else(|| {
                lists.push(list);
                lists.len() - 1
            });
            format!("list {}", at + 1)
        });
        let about = to_single_line(write::column_description(column).unwrap_or_default());
        let _ = write!(
            lines,
            "\n{} ({}): {about}",
            quote_json(&column.name),
            describe_column(column, list)
        );
    }
    for (n, list) in lists.iter().enumerate() {
        let _ = write!(text, "\nList {}: {}", n + 1, json!(list.values));
    }
    let _ = write!(text, "\nColumns:{lines}");
    add_shots(&mut text, expansion, columns, asked);
    text
}

/// Returns the members of an example answer.
fn format_example(asked: &[&Column]) -> String {
    let members = asked.iter().map(|column| {
        let one = match column.kind {
            Type::Url | Type::Text => json!(CELL_PLACEHOLDERS[0]),
            other => build_example_value(other, false),
        };
        let cell = if column.many.is_some() { json!([one]) } else { one };
        format!("{}: {cell}", quote_json(&column.name))
    });
    members.collect::<Vec<_>>().join(", ")
}

/// Describes a column's type, list, example and pattern.
fn describe_column(column: &Column, list: Option<String>) -> String {
    let many = if column.many.is_some() { "list of " } else { "" };
    let mut words = format!("{many}{}", column.kind.name());
    if let (Some(list), Some(values)) = (list, &column.values) {
        words.push_str(if values.open { ", if possible copied from " } else { ", copied from " });
        words.push_str(&list);
    }
    if let Some(example) = &column.example {
        let _ = write!(words, ", such as {}", quote_json(example));
    }
    if let Some(pattern) = &column.pattern {
        let _ = write!(words, ", matching {}", quote_json(pattern));
    }
    words
}

/// Adds the example rows that have a value in a requested column.
fn add_shots(text: &mut String, expansion: &Expansion, columns: &[usize], asked: &[&Column]) {
    let cell = |shot: &Shot, at: &usize| match shot.cells.get(*at) {
        None | Some(CellValue::Nothing) => None,
        Some(cell) => Some(cell.clone()),
    };
    for shot in &expansion.shots {
        let cells = columns.iter().zip(asked).filter_map(|(at, column)| {
            cell(shot, at)
                .map(|cell| (column.name.clone(), write::cell_to_json(column.kind, &cell)))
        });
        let cells: Map<String, Json> = cells.collect();
        if cells.is_empty() {
            continue;
        }
        let row = Row { key: shot.key.clone(), context: shot.context.clone() };
        let row = format_row(&row, expansion.key.names(), &expansion.context);
        let _ = write!(text, "\nExample:\n{row}\n{QUESTION}\n{}", Json::Object(cells));
    }
}

fn format_member(name: &str, value: &Value) -> String {
    format!("{}: {}", quote_json(name), format_value(value))
}

/// Formats the key and the context of a row, one value per line.
pub(super) fn format_row(row: &Row, key: &[String], context: &[String]) -> String {
    let mut lines = "Row:\n".to_owned();
    for (name, value) in key.iter().zip(&row.key) {
        let _ = writeln!(lines, "{}", format_member(name, value));
    }
    if !row.context.is_empty() {
        lines.push_str(CONTEXT);
    }
    for (name, value) in context.iter().zip(&row.context) {
        let _ = writeln!(lines, "{}", format_member(name, value));
    }
    lines
}

/// Parses a prompt about the columns of one row.
pub(super) fn parse_prompt(system: &str, user: &str) -> Option<Question> {
    let tasks = [TASK, evidence::build_task_sentence(false), evidence::build_task_sentence(true)];
    let rest = tasks.iter().find_map(|task| system.strip_prefix(task))?;
    let (_, rest) = rest.split_once("\nTable ")?;
    let (table, rest) = parse_string(rest)?;
    let mut lines = rest.lines().skip(1).peekable();
    let mut lists: Vec<Vec<String>> = Vec::new();
    while let Some(line) = lines.next_if(|line| line.starts_with("List ")) {
        lists.push(serde_json::from_str(line.split_once(": ")?.1).ok()?);
    }
    lines.next_if_eq(&"Columns:")?;
    let mut columns = Vec::new();
    while let Some(line) = lines.next_if(|line| line.starts_with('"')) {
        let (mut column, list) = parse_column(line)?;
        column.values = list.and_then(|n| lists.get(n).cloned());
        columns.push(column);
    }
    let (names, key, rest) = parse_values(user.strip_prefix("Row:\n")?)?;
    let (_, context, rest) = match rest.strip_prefix(CONTEXT) {
        Some(rest) => parse_values(rest)?,
        None => (Vec::new(), Vec::new(), rest),
    };
    let (passages, rest) = evidence::parse_passages(rest)?;
    (rest.strip_prefix('\n')? == QUESTION).then(|| Question {
        origin: None,
        table,
        key: names,
        format: Format::Json,
        columns,
        rows: vec![AskedRow { passages, number: 1, key, context }],
        row_tags: Vec::new(),
        answer_form: AnswerForm::Single,
    })
}

/// Parses the line of a column; returns the column and the position of its value list.
fn parse_column(line: &str) -> Option<(AskedColumn, Option<usize>)> {
    let (name, rest) = parse_string(line)?;
    let rest = rest.strip_prefix(" (")?;
    let (many, rest) = match rest.strip_prefix("list of ") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let is_prefix = |kind: &&Type| rest.starts_with(kind.name());
    // One name may be the beginning of another.
    let kind = Type::ALL.iter().filter(is_prefix).max_by_key(|kind| kind.name().len())?;
    let mut rest = &rest[kind.name().len()..];
    let mut list = None;
    for copied in [", copied from list ", ", if possible copied from list "] {
        if let Some(number) = rest.strip_prefix(copied) {
            let end = number.find(|c: char| !c.is_ascii_digit())?;
            list = number[..end].parse::<usize>().ok()?.checked_sub(1);
            rest = &number[end..];
        }
    }
    for shown in [", such as ", ", matching "] {
        if let Some(text) = rest.strip_prefix(shown) {
            rest = parse_string(text)?.1;
        }
    }
    let about = rest.strip_prefix("): ")?.to_owned();
    Some((AskedColumn { name, data_type: kind.name().to_owned(), about, many, values: None }, list))
}

/// Parses a JSON string; returns its text and the remaining text.
pub(super) fn parse_string(text: &str) -> Option<(String, &str)> {
    let mut strings = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let string = strings.next()?.ok()?;
    let end = strings.byte_offset();
    Some((string, &text[end..]))
}

/// Parses lines of names and values; returns the names, the values and the remaining text.
fn parse_values(mut text: &str) -> Option<(Vec<String>, Vec<Json>, &str)> {
    let (mut names, mut values) = (Vec::new(), Vec::new());
    while text.starts_with('"') {
        let (name, rest) = parse_string(text)?;
        let (value, rest) = parse_json_line(rest.strip_prefix(": ")?)?;
        names.push(name);
        values.push(value);
        text = rest;
    }
    Some((names, values, text))
}
