//! Form of questions about several values. Short answers are lines, each with a label and the
//! answers separated by commas: `{"rows": ["1 Oslo,true", "2 Bergen,false"]}`. Other answers are
//! arrays, so that no text needs quotes within quotes: `{"rows": [["1 Oslo", "a city"]]}`.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    ANSWER, OPTION_PLACEHOLDERS, add_answer_format, add_options, can_omit_table, format_value,
    parse_json_line, parse_options, several, to_single_line,
};
use crate::{
    AnswerForm, AskedColumn, AskedRow, PromptRow, Question, SharedPrompt, csv, label, write,
};
use hqdl_spec::{Column, Expansion, Format, Task, Type};
use hqdl_values::Row;

/// Start of the system message.
const TASK: &str = "Answer the question about each value. Answer with JSON: ";
/// Start of the system message if there are several questions.
const TASK_OF_SEVERAL: &str = "Answer the questions about each value. Answer with JSON: ";
/// Text after the example.
const ENTRIES: &str = ", one entry for each value: its number and word as given, ";

/// Form of prompts about several values.
#[derive(Debug, Clone)]
pub(crate) struct PackForm {
    /// System message and schema.
    pub shared: SharedPrompt,
    /// Whether the answers are lines or arrays.
    pub answers: AnswerForm,
    /// Names of the key columns.
    key: Vec<String>,
    /// Column of the database that the values come from.
    base_column: Option<String>,
    /// Question or questions, with their heading.
    question: String,
}

impl PackForm {
    /// Returns the form for the requested columns; `None` if they must be requested in a table.
    pub fn new(expansion: &Expansion, requested: &[&Column], format: Format) -> Option<Self> {
        let is_supported = expansion.task == Task::Value
            && !expansion.has_media()
            && can_omit_table(expansion, format);
        if !is_supported || requested.is_empty() {
            return None;
        }
        let is_short = requested.iter().all(|column| has_short_answers(column));
        let answers = if is_short { AnswerForm::Lines } else { AnswerForm::Arrays };
        let example =
            if is_short { format_line_example(requested) } else { format_array_example(requested) };
        let (system, question) = if let [column] = requested {
            let comma =
                if is_short { "a comma and the answer, or ?" } else { "and the answer, or null" };
            let mut system = format!("{TASK}{example}{ENTRIES}{comma} if you do not know.");
            add_options(&mut system, column);
            if !is_short {
                add_answer_format(&mut system, column);
            }
            let about = write::column_description(column).unwrap_or_default();
            (system, format!("Question: {about}"))
        } else {
            let or = if is_short { "with commas between them, or ?" } else { "or null" };
            let mut system = format!(
                "{TASK_OF_SEVERAL}{example}{ENTRIES}and the answers in the order of the questions, \
                 {or} for what you do not know."
            );
            several::add_options(&mut system, requested);
            (system, several::format_questions(requested))
        };
        let schema = create_schema(answers);
        Some(Self {
            answers,
            shared: SharedPrompt { system: system.into(), schema: Some(Arc::new(schema)) },
            key: expansion.key.names().iter().map(|name| to_single_line(name)).collect(),
            base_column: requested.first().and_then(|c| c.origin.as_deref()).map(to_single_line),
            question,
        })
    }

    /// Builds the user message from rows and their labels.
    pub fn build_user_message<'r>(&self, rows: impl Iterator<Item = (&'r Row, Json)>) -> String {
        let mut user =
            self.base_column.as_ref().map_or(String::new(), |o| format!("Column: {o}\n"));
        for (row, label) in rows {
            user.push_str(&self.format_row(&label, row));
            user.push('\n');
        }
        user.push('\n');
        user.push_str(&self.question);
        user
    }

    /// Returns a row's line in the prompt, and the beginning of its line in an answer.
    pub fn format_prompt_row(&self, label: &Json, row: &Row) -> PromptRow {
        let label_text = label.as_str().unwrap_or_default();
        let echoed = match self.answers {
            AnswerForm::Lines => format!("\"{label_text},\","),
            _ => format!("[\"{label_text}\",],"),
        };
        PromptRow { prompt_line: self.format_row(label, row), echo_line: echoed }
    }

    /// Formats a row: its label and its value, or its values by name.
    fn format_row(&self, label: &Json, row: &Row) -> String {
        let label = label.as_str().unwrap_or_default();
        match row.key.as_slice() {
            [value] => format!("{label}: {}", format_value(value)),
            values => {
                let format_named = |(name, value): (&String, &_)| {
                    format!("{}: {}", json!(name), format_value(value))
                };
                let parts: Vec<String> = self.key.iter().zip(values).map(format_named).collect();
                format!("{label}: {{{}}}", parts.join(", "))
            }
        }
    }
}

/// Returns whether the answers for a column can be written on a line without quotes.
fn has_short_answers(column: &Column) -> bool {
    let is_short = match (&column.values, column.kind) {
        (Some(list), _) => !list.open && list.values.iter().all(|value| is_safe_unquoted(value)),
        (None, data_type) => data_type.is_short(),
    };
    is_short && column.many.is_none()
}

/// Returns true if an option can be written on a line without quotes, because it has no special
/// meaning there.
fn is_safe_unquoted(option: &str) -> bool {
    !label::is_null_text(option)
        && !option.is_empty()
        && option.trim() == option
        && !option.contains([',', '"', '\'', '|', '`'])
        && !option.chars().any(char::is_control)
}

/// Returns the schema of an answer. All requests use the same schema, because endpoints must
/// compile each new one. The checker decides which cells are valid.
fn create_schema(answers: AnswerForm) -> Json {
    let scalars = json!([
        { "type": "string" }, { "type": "number" }, { "type": "boolean" }, { "type": "null" }
    ]);
    let row = if answers == AnswerForm::Lines {
        json!({ "type": "string" })
    } else {
        let mut cells = scalars.as_array().cloned().unwrap_or_default();
        cells.push(json!({ "type": "array", "items": { "anyOf": scalars } }));
        json!({ "type": "array", "items": { "anyOf": cells } })
    };
    json!({
        "type": "object",
        "properties": { "rows": { "type": "array", "items": row } },
        "required": ["rows"],
        "additionalProperties": false,
    })
}

/// Returns an example answer in arrays.
fn format_array_example(asked: &[&Column]) -> String {
    let row = |label: &str| {
        let cells = asked.iter().map(|column| several::build_example_cell(column).to_string());
        let cells: Vec<String> = [json!(label).to_string()].into_iter().chain(cells).collect();
        format!("[{}]", cells.join(", "))
    };
    format!("{{\"rows\": [{}, {}]}}", row("1 Abc"), row("2 Def"))
}

/// Returns an example answer in lines.
fn format_line_example(asked: &[&Column]) -> String {
    let cells: Vec<[&str; 2]> = asked
        .iter()
        .map(|column| build_example_cells(column.kind, column.values.is_some()))
        .collect();
    let cells = |row: usize| cells.iter().map(|cells| cells[row]).collect::<Vec<_>>().join(",");
    format!("{{\"rows\": [\"1 Abc,{}\", \"2 Def,{}\"]}}", cells(0), cells(1))
}

/// Returns example cells for a column.
fn build_example_cells(kind: Type, options: bool) -> [&'static str; 2] {
    if options { OPTION_PLACEHOLDERS } else { kind.examples() }
}

/// Formats labels and cells as the answer that a model should write.
pub(crate) fn format_lines(rows: impl Iterator<Item = (Json, Vec<Json>)>) -> String {
    let line = |(label, cells): (Json, Vec<Json>)| {
        let label = label.as_str().unwrap_or_default().to_owned();
        let fields: Vec<String> =
            [label].into_iter().chain(cells.iter().map(write::format_csv_cell)).collect();
        csv::format_answer_line(&fields, 1)
    };
    json!({ "rows": rows.map(line).collect::<Vec<_>>() }).to_string()
}

/// Formats labels and cells as the arrays that a model should answer with.
pub(crate) fn format_arrays(rows: impl Iterator<Item = (Json, Vec<Json>)>) -> String {
    let row =
        |(label, cells): (Json, Vec<Json>)| Json::Array([label].into_iter().chain(cells).collect());
    json!({ "rows": rows.map(row).collect::<Vec<_>>() }).to_string()
}

/// Parses the column types from a row of the example, and returns the form of the answers.
fn parse_types(row: &Json, columns: &mut [AskedColumn]) -> Option<AnswerForm> {
    if let Some(cells) = row.as_array() {
        for (column, cell) in columns.iter_mut().zip(cells.iter().skip(1)) {
            several::parse_type(cell, column)?;
        }
        return Some(AnswerForm::Arrays);
    }
    for (column, cell) in columns.iter_mut().zip(row.as_str()?.split(',').skip(1)) {
        let has_options = column.values.is_some();
        let is = |kind: &&Type| !has_options && build_example_cells(**kind, false)[0] == cell;
        let data_type = Type::ALL.iter().find(is).copied().unwrap_or(Type::Text);
        data_type.name().clone_into(&mut column.data_type);
    }
    Some(AnswerForm::Lines)
}

/// Parses a prompt about several values.
pub(super) fn parse_prompt(system: &str, user: &str) -> Option<Question> {
    let rest = system.strip_prefix(TASK).or_else(|| system.strip_prefix(TASK_OF_SEVERAL))?;
    let mut examples = serde_json::Deserializer::from_str(rest).into_iter::<Json>();
    let example = examples.next()?.ok()?;
    rest[examples.byte_offset()..].starts_with(ENTRIES).then_some(())?;
    let mut rest = match user.strip_prefix("Column: ") {
        Some(rest) => rest.split_once('\n')?.1,
        None => user,
    };
    let (mut rows, mut tags, mut names) = (Vec::new(), Vec::new(), vec!["value".to_owned()]);
    while !rest.starts_with('\n') {
        let (label, value) = rest.split_once(": ")?;
        let (number, tag) = label::parse_label(label)?;
        let (value, next) = parse_json_line(value)?;
        let key = match value {
            Json::Object(values) => {
                names = values.keys().cloned().collect();
                values.into_iter().map(|(_, value)| value).collect()
            }
            value => vec![value],
        };
        tags.push((key.clone(), tag.to_owned()));
        rows.push(AskedRow { passages: Vec::new(), number, key, context: Vec::new() });
        rest = next;
    }
    let asked = rest.strip_prefix('\n')?;
    let mut columns = match asked.strip_prefix("Question: ") {
        Some(about) => vec![AskedColumn {
            name: ANSWER.to_owned(),
            data_type: String::new(),
            about: about.to_owned(),
            many: false,
            values: parse_options(system),
        }],
        None => several::parse_questions(system, asked)?,
    };
    let answers = parse_types(example["rows"].get(0)?, &mut columns)?;
    Some(Question {
        origin: None,
        table: "values".to_owned(),
        key: names,
        format: Format::Json,
        columns,
        rows,
        row_tags: tags,
        answer_form: answers,
    })
}
