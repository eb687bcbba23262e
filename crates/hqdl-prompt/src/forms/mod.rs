//! Prompts with one question about one value, one text, the rows of a table, or one value of a
//! join. The answer is `{"answer": …}`: a single row needs no label.
//!
//! The question ends the user message. Values are JSON on one line, so that nothing in a value can
//! end it early.

mod join;
mod pack;
mod table;
mod text;
mod value;

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

pub(super) use self::pack::{PackForm, write_lines};
use super::align::RequestKeys;
use super::completion::{self, Finish, RowOutcome};
use super::reasoning::answer_part;
use super::unambiguous::UnambiguousJson;
use super::{AnswerForm, AskedColumn, Prompt, Question, schema};
use hqdl_spec::checker::Checker;
use hqdl_spec::{Column, Echo, Expansion, Format, Task, Type};
use hqdl_values::Row;
use hqdl_values::key::quote;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Name of the only member of an answer.
const ANSWER: &str = "answer";

/// Form of prompts about one row.
#[derive(Debug, Clone)]
pub(super) struct SingleForm {
    task: Task,
    /// Names of the key columns.
    key: Vec<String>,
    /// Names of the context columns.
    context: Vec<String>,
    /// Base column of the value.
    origin: Option<String>,
    question: String,
    schema: Arc<Json>,
    schema_text: String,
    /// Instructions of the task.
    task_instructions: Instructions,
    /// Instructions about texts, used if the value is a text.
    text: Instructions,
}

/// System message, and its token count once it was computed.
#[derive(Debug, Clone)]
struct Instructions {
    system: Arc<str>,
    tokens: OnceLock<u64>,
}

impl SingleForm {
    /// Returns the form for the requested columns; `None` if they need a table.
    pub(super) fn new(expansion: &Expansion, asked: &[&Column], format: Format) -> Option<Self> {
        let [column] = asked else { return None };
        if !is_plain(expansion, format) {
            return None;
        }
        let about = super::write::about(column).unwrap_or_default();
        let (intro, question) = match expansion.task {
            Task::Text => (&text::INTRO, about.to_owned()),
            Task::Rows => (&table::INTRO, about.to_owned()),
            Task::Join => (&join::INTRO, format!("{}{about}", join::QUESTION)),
            Task::Value | Task::Columns => (&value::INTRO, about.to_owned()),
        };
        let named = Column { name: ANSWER.to_owned(), ..(*column).clone() };
        let schema = schema::cells(&[&named]);
        let instructions =
            |intro| Instructions { system: system(intro, column).into(), tokens: OnceLock::new() };
        Some(Self {
            task: expansion.task,
            key: expansion.key.names().iter().map(|name| on_one_line(name)).collect(),
            context: expansion.context.clone(),
            origin: column.origin.as_deref().map(on_one_line),
            question,
            schema_text: schema.to_string(),
            schema: Arc::new(schema),
            task_instructions: instructions(intro),
            text: instructions(&text::INTRO),
        })
    }

    /// Returns the number of tokens of the system message and the schema.
    pub(super) fn tokens(&self, prompt: &Prompt, tokenizer: Tokenizer) -> u64 {
        let of_task = &self.task_instructions;
        let is_of_task = Arc::ptr_eq(&prompt.system, &of_task.system);
        let instructions = if is_of_task { of_task } else { &self.text };
        *instructions.tokens.get_or_init(|| {
            tokenizer.count(&instructions.system) + tokenizer.count(&self.schema_text)
        })
    }

    /// Builds the prompt that asks about `row`.
    pub(super) fn prompt(&self, row: &Row, planned_output: u64) -> Prompt {
        let origin = self.origin.as_deref();
        let is_text = self.task == Task::Value && text::is_text(row);
        let instructions = if is_text { &self.text } else { &self.task_instructions };
        let mut user = match self.task {
            Task::Text => text::write(&row.context, origin),
            Task::Rows => table::write(&self.context, &row.context),
            _ if is_text => text::write(&row.key, origin),
            Task::Value | Task::Join | Task::Columns => value::write(row, &self.key, origin),
        };
        user.push_str("\nQuestion: ");
        user.push_str(&self.question);
        Prompt {
            system: Arc::clone(&instructions.system),
            user,
            schema: Some(Arc::clone(&self.schema)),
            planned_output,
            max_output: planned_output,
            input_tokens: 0,
            with_keys: None,
            answers: AnswerForm::Single,
            rows: 1,
            temperature: Some(0.0),
            images: Vec::new(),
        }
    }
}

/// Returns true if an expansion can ask about one column without a table.
fn is_plain(expansion: &Expansion, format: Format) -> bool {
    expansion.task != Task::Columns
        && format == Format::Json
        && expansion.echo == Echo::Short
        && expansion.shots.is_empty()
        && !expansion.has_images()
}

/// First part of a system message, before the answer format.
struct Intro {
    task: &'static str,
    /// Condition under which the answer is null.
    unknown: &'static str,
}

/// Types in the order in which they are tried when a prompt is parsed.
const KINDS: [Type; 6] =
    [Type::Boolean, Type::Integer, Type::Real, Type::Date, Type::Url, Type::Text];

/// Returns an example of an answer.
fn example(kind: Type, many: bool, options: bool) -> String {
    let one = match kind {
        Type::Boolean => json!(true),
        Type::Integer => json!(12),
        Type::Real => json!(1.5),
        Type::Date => json!("2024-05-31"),
        Type::Url => json!("https://example.com/page"),
        Type::Text if options => json!("one of the options"),
        Type::Text => json!("your answer"),
    };
    match kind {
        _ if many => format!("{{\"{ANSWER}\": [{one}, …]}}, {{\"{ANSWER}\": []}} if there is none"),
        Type::Boolean => format!("{{\"{ANSWER}\": true}} or {{\"{ANSWER}\": false}}"),
        _ => format!("{{\"{ANSWER}\": {one}}}"),
    }
}

/// Returns the system message of a form.
fn system(intro: &Intro, column: &Column) -> String {
    let Intro { task, unknown } = intro;
    let example = example(column.kind, column.many.is_some(), column.values.is_some());
    let mut system =
        format!("{task} Answer with JSON: {example}, or {{\"{ANSWER}\": null}} {unknown}.");
    add_options(&mut system, column);
    if let Some(example) = &column.example {
        system.push_str(&format!("\nAn answer looks like {}.", json!(example)));
    }
    if let Some(pattern) = &column.pattern {
        system.push_str(&format!("\nAn answer matches the regular expression {}.", json!(pattern)));
    }
    system
}

/// Adds the options for the answer.
fn add_options(system: &mut String, column: &Column) {
    let Some(list) = &column.values else { return };
    let open = if list.open { " Another value is allowed if none of them fits." } else { "" };
    system.push_str(&format!(
        "\nCopy the answer from the options.{open}\nOptions: {}",
        json!(list.values)
    ));
}

/// Parses the options of a system message.
fn read_options(system: &str) -> Option<Vec<String>> {
    let options = system.lines().skip(1).find_map(|line| line.strip_prefix("Options: "))?;
    serde_json::from_str(options).ok()
}

/// Returns a text without line breaks and other control characters.
fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Formats a value as JSON on one line.
fn write_value(value: &Value) -> String {
    match value {
        Value::Text(text) => quote(text),
        other => other.to_json().to_string(),
    }
}

/// Parses a line of JSON and returns its value and the text after the line.
fn read_quoted(line: &str) -> Option<(Json, &str)> {
    let (value, rest) = line.split_once('\n')?;
    Some((serde_json::from_str(value).ok()?, rest))
}

/// Parses the answer to a prompt about one row.
#[must_use]
pub fn read(
    content: &str,
    finish: Finish,
    keys: &RequestKeys,
    key_names: &[String],
    checkers: &[&Checker],
) -> Vec<RowOutcome> {
    if let ([checker], Some(value)) = (checkers, answer_value(content)) {
        let answer = checker.in_row(checker.json(&value), |part| keys.part(0, part));
        return vec![RowOutcome::Read(vec![answer])];
    }
    // The model wrote other text around its answer, or a row of a table.
    completion::read(content, finish, keys, key_names, &[ANSWER.to_owned()], checkers)
}

/// Returns the value of a completion that is one answer and nothing else.
fn answer_value(content: &str) -> Option<Json> {
    let answer = answer_part(content)?;
    let UnambiguousJson(json) = serde_json::from_str(answer.trim()).ok()?;
    let Json::Object(mut object) = json else { return None };
    object.remove(ANSWER).filter(|_| object.is_empty())
}

/// Formats an answer as a model should write it.
pub(super) fn write_answer(cell: &Json) -> String {
    json!({ ANSWER: cell }).to_string()
}

/// Parses a prompt about one row; `None` if it is a prompt about a table.
pub(super) fn read_back(system: &str, user: &str) -> Option<Question> {
    if let Some(question) = pack::read_back(system, user) {
        return Some(question);
    }
    let is = |intro: &Intro| system.starts_with(intro.task);
    let (table, key, row, rest) = match () {
        () if is(&text::INTRO) => text::read(user)?,
        () if is(&table::INTRO) => table::read(user)?,
        () if is(&value::INTRO) => value::read(user)?,
        () if is(&join::INTRO) => {
            let (_, key, row, rest) = value::read(user)?;
            ("join", key, row, rest)
        }
        () => return None,
    };
    let about = rest.strip_prefix("\nQuestion: ")?;
    let about = if table == "join" { about.strip_prefix(join::QUESTION)? } else { about };
    let first = system.lines().next()?.split_once(" Answer with JSON: ")?.1;
    let shapes = KINDS.iter().flat_map(|kind| {
        [(false, false), (false, true), (true, false), (true, true)]
            .map(|(many, options)| (*kind, many, options))
    });
    let of = |(kind, many, options): &(Type, bool, bool)| {
        first.starts_with(&(example(*kind, *many, *options) + ", or "))
    };
    let (kind, many, _) = shapes.into_iter().find(of)?;
    let column = AskedColumn {
        name: ANSWER.to_owned(),
        kind: kind.name().to_owned(),
        about: about.to_owned(),
        many,
        values: read_options(system),
    };
    Some(Question {
        table: table.to_owned(),
        key,
        format: Format::Json,
        columns: vec![column],
        rows: vec![row],
        tags: Vec::new(),
        answers: AnswerForm::Single,
    })
}
