//! One question about several values. The answer is a list of short lines, each with a label, a
//! comma and an answer: `{"rows": ["1 Oslo,true", "2 Bergen,false"]}`.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    ANSWER, KINDS, add_options, is_plain, on_one_line, read_options, read_quoted, write_value,
};
use crate::{AnswerForm, AskedColumn, AskedRow, EchoForm, Line, Question, csv, label, write};
use hqdl_spec::{Column, Expansion, Format, Task, Type};
use hqdl_values::Row;

/// Start of the system message.
const TASK: &str = "Answer the question about each value. Answer with JSON: ";
/// Text after the example.
const ENTRIES: &str = ", one entry for each value: its number and word as given, a comma and the \
                       answer, or ? if you do not know.";

/// Form of prompts about several values.
#[derive(Debug, Clone)]
pub(crate) struct PackForm {
    /// System message and schema.
    pub echo: EchoForm,
    /// Names of the key columns.
    key: Vec<String>,
    /// Base column of the values.
    origin: Option<String>,
    question: String,
}

impl PackForm {
    /// Returns the form for the requested columns; `None` if they need a table.
    pub fn new(expansion: &Expansion, asked: &[&Column], format: Format) -> Option<Self> {
        let [column] = asked else { return None };
        let is_short = match (&column.values, column.kind) {
            (Some(list), _) => !list.open && list.values.iter().all(|value| is_plain_word(value)),
            (None, Type::Boolean | Type::Integer | Type::Real | Type::Date) => true,
            (None, Type::Text | Type::Url) => false,
        };
        let fits = expansion.task == Task::Value && is_plain(expansion, format);
        if !fits || !is_short || column.many.is_some() {
            return None;
        }
        let mut system =
            format!("{TASK}{}{ENTRIES}", example(column.kind, column.values.is_some()));
        add_options(&mut system, column);
        let schema = json!({
            "type": "object",
            "properties": { "rows": { "type": "array", "items": { "type": "string" } } },
            "required": ["rows"],
            "additionalProperties": false,
        });
        Some(Self {
            echo: EchoForm { system: system.into(), schema: Some(Arc::new(schema)) },
            key: expansion.key.names().iter().map(|name| on_one_line(name)).collect(),
            origin: column.origin.as_deref().map(on_one_line),
            question: write::about(column).unwrap_or_default().to_owned(),
        })
    }

    /// Builds the user message from rows and their labels.
    pub fn write<'r>(&self, rows: impl Iterator<Item = (&'r Row, Json)>) -> String {
        let mut user = self.origin.as_ref().map_or(String::new(), |o| format!("Column: {o}\n"));
        for (row, label) in rows {
            user.push_str(&self.row(&label, row));
            user.push('\n');
        }
        user.push_str("\nQuestion: ");
        user.push_str(&self.question);
        user
    }

    /// Returns the line of the prompt and the echoed line of a row.
    pub fn line(&self, label: &Json, row: &Row) -> Line {
        let label_text = label.as_str().unwrap_or_default();
        Line { asked: self.row(label, row), echoed: format!("\"{label_text},\",") }
    }

    /// Formats a row: its label and its value, or its values by name.
    fn row(&self, label: &Json, row: &Row) -> String {
        let label = label.as_str().unwrap_or_default();
        match row.key.as_slice() {
            [value] => format!("{label}: {}", write_value(value)),
            values => {
                let named = |(name, value): (&String, &_)| {
                    format!("{}: {}", json!(name), write_value(value))
                };
                let parts: Vec<String> = self.key.iter().zip(values).map(named).collect();
                format!("{label}: {{{}}}", parts.join(", "))
            }
        }
    }
}

/// Returns true if an option needs no quotes in a line and has no special meaning there.
fn is_plain_word(option: &str) -> bool {
    !label::says_none(option)
        && !option.is_empty()
        && option.trim() == option
        && !option.contains([',', '"', '\'', '|', '`'])
        && !option.chars().any(char::is_control)
}

/// Returns an example of an answer.
fn example(kind: Type, options: bool) -> String {
    let [first, second] = match kind {
        _ if options => ["one of the options", "another option"],
        Type::Boolean => ["true", "false"],
        Type::Integer => ["12", "7"],
        Type::Real => ["1.5", "0.25"],
        _ => ["2024-05-31", "1999-01-02"],
    };
    format!("{{\"rows\": [\"1 Abc,{first}\", \"2 Def,{second}\"]}}")
}

/// Formats labels and cells as the answer that a model should write.
pub(crate) fn write_lines(rows: impl Iterator<Item = (Json, Json)>) -> String {
    let line = |(label, cell): (Json, Json)| {
        let label = label.as_str().unwrap_or_default().to_owned();
        csv::answer_line(&[label, write::csv_cell(&cell)], 1)
    };
    json!({ "rows": rows.map(line).collect::<Vec<_>>() }).to_string()
}

/// Parses a prompt about several values.
pub(super) fn read_back(system: &str, user: &str) -> Option<Question> {
    let rest = system.strip_prefix(TASK)?;
    let shapes = KINDS.iter().flat_map(|kind| [(*kind, false), (*kind, true)]);
    let is_shape =
        |(kind, options): &(Type, bool)| rest.starts_with(&(example(*kind, *options) + ENTRIES));
    let values = read_options(system);
    let mut shapes = shapes.filter(|(_, options)| *options == values.is_some());
    let (kind, _) = shapes.find(is_shape)?;
    let kind = if values.is_some() { Type::Text } else { kind };
    let mut rest = match user.strip_prefix("Column: ") {
        Some(rest) => rest.split_once('\n')?.1,
        None => user,
    };
    let (mut rows, mut tags, mut names) = (Vec::new(), Vec::new(), vec!["value".to_owned()]);
    while !rest.starts_with('\n') {
        let (label, value) = rest.split_once(": ")?;
        let (number, tag) = label::read(label)?;
        let (value, next) = read_quoted(value)?;
        let key = match value {
            Json::Object(values) => {
                names = values.keys().cloned().collect();
                values.into_iter().map(|(_, value)| value).collect()
            }
            value => vec![value],
        };
        tags.push((key.clone(), tag.to_owned()));
        rows.push(AskedRow { number, key, context: Vec::new() });
        rest = next;
    }
    let column = AskedColumn {
        name: ANSWER.to_owned(),
        kind: kind.name().to_owned(),
        about: rest.strip_prefix("\nQuestion: ")?.to_owned(),
        many: false,
        values,
    };
    Some(Question {
        table: "values".to_owned(),
        key: names,
        format: Format::Json,
        columns: vec![column],
        rows,
        tags,
        answers: AnswerForm::Lines,
    })
}
