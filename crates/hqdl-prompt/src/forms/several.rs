//! Form of several questions about one value or text, or about each of several values. Answers are
//! named after their columns: `{"answer": true, "answer_2": 12}`.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::row::parse_string;
use super::{Intro, build_example_value, to_single_line};
use crate::{AskedColumn, write};
use hqdl_spec::{Column, Type};
use hqdl_values::key::quote_json;

const QUESTIONS: &str = "Questions:";
/// Start of the options for a column.
const OPTIONS: &str = "\nOptions of ";

/// Returns the task of the introduction with "questions" in the plural.
pub(super) fn pluralize_task(intro: &Intro) -> String {
    intro.task.replacen("question", "questions", 1)
}

/// Returns the system message for several questions.
pub(super) fn build_system_message(intro: &Intro, asked: &[&Column]) -> String {
    let (task, unknown) = (pluralize_task(intro), intro.unknown);
    let members = asked
        .iter()
        .map(|column| format!("{}: {}", quote_json(&column.name), build_example_cell(column)));
    let members = members.collect::<Vec<_>>().join(", ");
    let mut system = format!("{task} Answer with JSON: {{{members}}}, with null {unknown}.");
    add_options(&mut system, asked);
    system
}

pub(super) fn build_example_cell(column: &Column) -> Json {
    let one = build_example_value(column.kind, column.values.is_some());
    if column.many.is_some() { json!([one]) } else { one }
}

/// Adds the options, examples and patterns of columns.
pub(super) fn add_options(system: &mut String, asked: &[&Column]) {
    for column in asked {
        let name = quote_json(&column.name);
        if let Some(list) = &column.values {
            let or = if list.open { ", or another value if none fits" } else { "" };
            let _ =
                write!(system, "{OPTIONS}{name}, copied as they are{or}: {}", json!(list.values));
        }
        if let Some(example) = &column.example {
            let _ = write!(system, "\n{name} looks like {}.", quote_json(example));
        }
        if let Some(pattern) = &column.pattern {
            let _ =
                write!(system, "\n{name} matches the regular expression {}.", quote_json(pattern));
        }
    }
}

/// Returns the questions with the names of their columns, one per line.
pub(super) fn format_questions(asked: &[&Column]) -> String {
    let mut text = QUESTIONS.to_owned();
    for column in asked {
        let about = to_single_line(write::column_description(column).unwrap_or_default());
        let _ = write!(text, "\n{}: {about}", quote_json(&column.name));
    }
    text
}

/// Parses the columns of a prompt from its questions and options. Each column has a name, a
/// question and options.
pub(super) fn parse_questions(system: &str, text: &str) -> Option<Vec<AskedColumn>> {
    let mut columns = Vec::new();
    for line in text.strip_prefix(QUESTIONS)?.lines().skip(1) {
        let (name, about) = parse_string(line)?;
        let about = about.strip_prefix(": ")?.to_owned();
        let kind = Type::Text.name().to_owned();
        columns.push(AskedColumn { name, data_type: kind, about, many: false, values: None });
    }
    for line in system.lines().filter_map(|line| line.strip_prefix(OPTIONS.trim_start())) {
        let (name, rest) = parse_string(line)?;
        let options: Vec<String> = serde_json::from_str(rest.split_once(": ")?.1).ok()?;
        let column = columns.iter_mut().find(|column| column.name == name)?;
        column.values = Some(options);
    }
    (!columns.is_empty()).then_some(columns)
}

/// Parses the types of columns from the example in a system message.
pub(super) fn parse_types(system: &str, columns: &mut [AskedColumn]) -> Option<()> {
    let answer = system.split_once(" Answer with JSON: ")?.1;
    let mut members = serde_json::Deserializer::from_str(answer).into_iter::<Map<String, Json>>();
    let members = members.next()?.ok()?;
    columns.iter_mut().try_for_each(|column| parse_type(members.get(&column.name)?, column))
}

/// Parses the type of a column from a cell in the example.
pub(super) fn parse_type(cell: &Json, column: &mut AskedColumn) -> Option<()> {
    column.many = cell.is_array();
    let cell = if column.many { cell.get(0)? } else { cell };
    let is = |kind: &&Type| {
        [true, false].iter().any(|options| build_example_value(**kind, *options) == *cell)
    };
    Type::ALL.iter().find(is)?.name().clone_into(&mut column.data_type);
    Some(())
}
