//! Questions about several values. The answer is a list of short lines, each a label and the
//! answers with commas between them: `{"rows": ["1 Oslo,true", "2 Bergen,false"]}`.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    ANSWER, KINDS, add_options, is_plain, on_one_line, read_options, read_quoted, several,
    write_value,
};
use crate::{AnswerForm, AskedColumn, AskedRow, EchoForm, Line, Question, csv, label, write};
use hqdl_spec::{Column, Expansion, Format, Task, Type};
use hqdl_values::Row;

/// How the system message begins.
const TASK: &str = "Answer the question about each value. Answer with JSON: ";
/// What follows the example.
const ENTRIES: &str = ", one entry for each value: its number and word as given, a comma and the \
                       answer, or ? if you do not know.";

/// How the system message begins if there are several questions.
const TASK_OF_SEVERAL: &str = "Answer the questions about each value. Answer with JSON: ";
/// What follows the example then.
const ENTRIES_OF_SEVERAL: &str = ", one entry for each value: its number and word as given, and \
                                  the answers in the order of the questions, with commas between \
                                  them, or ? for what you do not know.";

/// The form of prompts about several values.
#[derive(Debug, Clone)]
pub(crate) struct PackForm {
    /// The system message and the schema.
    pub echo: EchoForm,
    /// Names of the key columns.
    key: Vec<String>,
    /// Base column of the values.
    origin: Option<String>,
    /// The question or questions, with their heading.
    question: String,
}

impl PackForm {
    /// Returns the form for the columns asked for; `None` if a table suits them better.
    pub fn new(expansion: &Expansion, asked: &[&Column], format: Format) -> Option<Self> {
        let fits = expansion.task == Task::Value && is_plain(expansion, format);
        if !fits || asked.is_empty() || !asked.iter().all(|column| is_short(column)) {
            return None;
        }
        let example = example(asked);
        let (system, question) = if let [column] = asked {
            let mut system = format!("{TASK}{example}{ENTRIES}");
            add_options(&mut system, column);
            let about = write::about(column).unwrap_or_default();
            (system, format!("Question: {about}"))
        } else {
            let mut system = format!("{TASK_OF_SEVERAL}{example}{ENTRIES_OF_SEVERAL}");
            several::add_options(&mut system, asked);
            (system, several::questions(asked))
        };
        let schema = json!({
            "type": "object",
            "properties": { "rows": { "type": "array", "items": { "type": "string" } } },
            "required": ["rows"],
            "additionalProperties": false,
        });
        Some(Self {
            echo: EchoForm { system: system.into(), schema: Some(Arc::new(schema)) },
            key: expansion.key.names().iter().map(|name| on_one_line(name)).collect(),
            origin: asked.first().and_then(|c| c.origin.as_deref()).map(on_one_line),
            question,
        })
    }

    /// Returns the user message about rows with their labels.
    pub fn write<'r>(&self, rows: impl Iterator<Item = (&'r Row, Json)>) -> String {
        let mut user = self.origin.as_ref().map_or(String::new(), |o| format!("Column: {o}\n"));
        for (row, label) in rows {
            user.push_str(&self.row(&label, row));
            user.push('\n');
        }
        user.push('\n');
        user.push_str(&self.question);
        user
    }

    /// Returns a row as a prompt has it and as an answer echoes it.
    pub fn line(&self, label: &Json, row: &Row) -> Line {
        let label_text = label.as_str().unwrap_or_default();
        Line { asked: self.row(label, row), echoed: format!("\"{label_text},\",") }
    }

    /// Returns a row: its label and its value, or its values by name.
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

/// Returns whether the answers of a column need no quotes in a line.
fn is_short(column: &Column) -> bool {
    let is_short = match (&column.values, column.kind) {
        (Some(list), _) => !list.open && list.values.iter().all(|value| is_plain_word(value)),
        (None, Type::Boolean | Type::Integer | Type::Real | Type::Date) => true,
        (None, Type::Text | Type::Url) => false,
    };
    is_short && column.many.is_none()
}

/// Returns whether an option needs no quotes in a line and means nothing else there.
fn is_plain_word(option: &str) -> bool {
    !label::says_none(option)
        && !option.is_empty()
        && option.trim() == option
        && !option.contains([',', '"', '\'', '|', '`'])
        && !option.chars().any(char::is_control)
}

/// Returns the filled example of an answer.
fn example(asked: &[&Column]) -> String {
    let cells: Vec<[&str; 2]> =
        asked.iter().map(|column| example_cells(column.kind, column.values.is_some())).collect();
    let cells = |row: usize| cells.iter().map(|cells| cells[row]).collect::<Vec<_>>().join(",");
    format!("{{\"rows\": [\"1 Abc,{}\", \"2 Def,{}\"]}}", cells(0), cells(1))
}

/// Returns the cells of a column in the example.
fn example_cells(kind: Type, options: bool) -> [&'static str; 2] {
    match kind {
        _ if options => ["one of the options", "another option"],
        Type::Boolean => ["true", "false"],
        Type::Integer => ["12", "7"],
        Type::Real => ["1.5", "0.25"],
        _ => ["2024-05-31", "1999-01-02"],
    }
}

/// Returns the answer as a model should write it, of labels and cells.
pub(crate) fn write_lines(rows: impl Iterator<Item = (Json, Vec<Json>)>) -> String {
    let line = |(label, cells): (Json, Vec<Json>)| {
        let label = label.as_str().unwrap_or_default().to_owned();
        let fields: Vec<String> =
            [label].into_iter().chain(cells.iter().map(write::csv_cell)).collect();
        csv::answer_line(&fields, 1)
    };
    json!({ "rows": rows.map(line).collect::<Vec<_>>() }).to_string()
}

/// Returns a column with the type of a cell of the example.
fn read_kind(column: AskedColumn, cell: &str) -> AskedColumn {
    let options = column.values.is_some();
    let is = |kind: &&Type| !options && example_cells(**kind, false)[0] == cell;
    let kind = KINDS.iter().find(is).copied().unwrap_or(Type::Text);
    AskedColumn { kind: kind.name().to_owned(), ..column }
}

/// Reads a prompt about several values back.
pub(super) fn read_back(system: &str, user: &str) -> Option<Question> {
    let (example, rest) = (system.strip_prefix(TASK))
        .or_else(|| system.strip_prefix(TASK_OF_SEVERAL))?
        .split_once("]}")?;
    rest.starts_with(", one entry for each value").then_some(())?;
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
    let asked = rest.strip_prefix('\n')?;
    let columns = match asked.strip_prefix("Question: ") {
        Some(about) => vec![AskedColumn {
            name: ANSWER.to_owned(),
            kind: String::new(),
            about: about.to_owned(),
            many: false,
            values: read_options(system),
        }],
        None => several::read_questions(system, asked)?,
    };
    let cells = example.split_once("[\"1 Abc,")?.1.split_once('"')?.0.split(',');
    let columns = columns.into_iter().zip(cells).map(|(column, cell)| read_kind(column, cell));
    let columns: Vec<AskedColumn> = columns.collect();
    Some(Question {
        table: "values".to_owned(),
        key: names,
        format: Format::Json,
        columns,
        rows,
        tags,
        answers: AnswerForm::Lines,
    })
}
