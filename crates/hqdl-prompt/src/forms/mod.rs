//! Prompts that ask one question: about one value, one text, the rows of a table, one value of a
//! join, or the columns of one row. The answer is `{"answer": …}`, or an object with the columns: a
//! single row needs no label.
//!
//! The question ends the user message. Values are JSON on one line, so that nothing in a value can
//! end it early.

mod evidence;
mod join;
mod pack;
mod row;
mod several;
mod statement;
mod table;
mod text;
mod value;

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

pub(super) use self::evidence::estimate_quote_tokens;
pub(super) use self::pack::{PackForm, format_arrays, format_lines};
use super::align::RequestKeys;
use super::completion::{self, FinishReason, RowOutcome};
use super::reasoning::strip_reasoning;
use super::unambiguous::UnambiguousJson;
use super::{AnswerForm, AskedColumn, Prompt, Question, schema};
use hqdl_spec::checker::Checker;
use hqdl_spec::media::{MediaWords, all_words};
use hqdl_spec::{Column, Echo, Expansion, Format, Task, Type};
use hqdl_values::Row;
use hqdl_values::cell::{Answer, State};
use hqdl_values::evidence::{Quotation, ShownEvidence};
use hqdl_values::format::to_single_line;
use hqdl_values::key::quote_json;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Name of the only member of an answer to one question.
const ANSWER: &str = "answer";

/// The form of prompts about one row.
#[derive(Debug, Clone)]
pub(super) struct SingleForm {
    task: Task,
    /// Names of the key columns.
    key: Vec<String>,
    /// Names of the context columns.
    context: Vec<String>,
    /// Column of the database that the value comes from.
    base_column: Option<String>,
    question: String,
    /// Names of the members of an answer.
    members: Vec<String>,
    schema: Arc<Json>,
    schema_text: String,
    task_instructions: Instructions,
    /// Instructions for texts, used if the value is a text.
    text_instructions: Instructions,
    /// Form of the quotations in the answers; `None` if the prompt contains no passages.
    evidence: Option<evidence::EvidenceForm>,
}

/// System message, and its token count once it is computed.
#[derive(Debug, Clone)]
struct Instructions {
    system: Arc<str>,
    tokens: OnceLock<u64>,
}

impl SingleForm {
    /// Returns the form for the requested columns, given by position; `None` if they must be
    /// requested in a table.
    pub(super) fn new(expansion: &Expansion, columns: &[usize], format: Format) -> Option<Self> {
        let requested: Vec<&Column> =
            columns.iter().filter_map(|at| expansion.columns.get(*at)).collect();
        if !can_omit_table(expansion, format) {
            return None;
        }
        if expansion.task == Task::Columns {
            let system = row::build_system_message(expansion, columns, &requested);
            let members = requested.iter().map(|column| column.name.clone()).collect();
            return Some(Self::with_columns(
                expansion,
                &requested,
                members,
                row::QUESTION.to_owned(),
                [&system; 2],
            ));
        }
        if expansion.task == Task::Statement {
            return statement::create_form(expansion, &requested);
        }
        let [column] = requested.as_slice() else {
            return Self::with_questions(expansion, &requested);
        };
        let about = super::write::column_description(column).unwrap_or_default();
        let (intro, question) = match expansion.task {
            Task::Text => (text::INTRO, about.to_owned()),
            Task::Rows => (table::INTRO, about.to_owned()),
            Task::Join => (join::INTRO, format!("{}{about}", join::QUESTION)),
            Task::Value | Task::Columns | Task::Statement => {
                (choose_intro(expansion), about.to_owned())
            }
        };
        let answer_column = Column { name: ANSWER.to_owned(), ..(*column).clone() };
        let systems =
            [&build_system_message(&intro, column), &build_system_message(&text::INTRO, column)];
        let question = format!("Question: {question}");
        Some(Self::with_columns(
            expansion,
            &[&answer_column],
            vec![ANSWER.to_owned()],
            question,
            systems,
        ))
    }

    /// Returns the form for several questions about one value or text; `None` if there is none.
    fn with_questions(expansion: &Expansion, asked: &[&Column]) -> Option<Self> {
        let intro = match expansion.task {
            Task::Text => text::INTRO,
            Task::Value => choose_intro(expansion),
            Task::Rows | Task::Join | Task::Columns | Task::Statement => return None,
        };
        let systems = [
            &several::build_system_message(&intro, asked),
            &several::build_system_message(&text::INTRO, asked),
        ];
        let members = asked.iter().map(|column| column.name.clone()).collect();
        let questions = several::format_questions(asked);
        (!asked.is_empty())
            .then(|| Self::with_columns(expansion, asked, members, questions, systems))
    }

    /// Creates the form with the system messages for its task and for texts.
    fn with_columns(
        expansion: &Expansion,
        asked: &[&Column],
        members: Vec<String>,
        question: String,
        systems: [&String; 2],
    ) -> Self {
        let mut schema = schema::build_cells_schema(asked);
        let evidence = evidence::EvidenceForm::new(expansion, asked);
        evidence.iter().for_each(|form| form.add_to_schema(&mut schema));
        let [task_instructions, text] = systems
            .map(|system| Instructions { system: system.as_str().into(), tokens: OnceLock::new() });
        Self {
            task: expansion.task,
            key: expansion.key.names().iter().map(|name| to_single_line(name)).collect(),
            context: expansion.context.clone(),
            base_column: asked
                .first()
                .and_then(|column| column.origin.as_deref())
                .map(to_single_line),
            question,
            members,
            schema_text: schema.to_string(),
            schema: Arc::new(schema),
            task_instructions,
            text_instructions: text,
            evidence,
        }
    }

    /// Returns the names of the members of an answer.
    pub(super) fn members(&self) -> &[String] {
        &self.members
    }

    /// Returns whether this is the form of a live question.
    pub(super) fn is_live(&self) -> bool {
        self.task != Task::Columns
    }

    /// Returns whether the answer is an SQL query.
    pub(super) fn asks_for_statement(&self) -> bool {
        self.task == Task::Statement
    }

    /// Counts the tokens of the system message and the schema.
    pub(super) fn count_shared_tokens(&self, prompt: &Prompt, tokenizer: Tokenizer) -> u64 {
        let task_instructions = &self.task_instructions;
        let is_for_task = Arc::ptr_eq(&prompt.system, &task_instructions.system);
        let instructions = if is_for_task { task_instructions } else { &self.text_instructions };
        *instructions.tokens.get_or_init(|| {
            tokenizer.count_tokens(&instructions.system) + tokenizer.count_tokens(&self.schema_text)
        })
    }

    /// Builds the prompt that asks about `row`.
    pub(super) fn build_prompt(&self, row: &Row, planned_output: u64) -> Prompt {
        let base_column = self.base_column.as_deref();
        let is_text = self.task == Task::Value && text::is_long_text(row);
        let instructions = if is_text { &self.text_instructions } else { &self.task_instructions };
        let mut user = match self.task {
            Task::Text => text::format_texts(&row.context, base_column),
            Task::Rows => table::format_tables(&self.context, &row.context),
            _ if is_text => text::format_texts(&row.key, base_column),
            Task::Columns => row::format_row(row, &self.key, &self.context),
            Task::Statement => statement::format_question(row, &self.key),
            Task::Value | Task::Join => value::format_values(row, &self.key, base_column),
        };
        let evidence = self.evidence.as_ref().map(|form| form.find_evidence(row));
        if let Some(Ok(evidence)) = &evidence {
            user.push_str(&evidence::format_passages(evidence));
        }
        user.push('\n');
        user.push_str(&self.question);
        Prompt {
            system: Arc::clone(&instructions.system),
            user,
            schema: Some(Arc::clone(&self.schema)),
            planned_output,
            max_output: planned_output,
            input_tokens: 0,
            full_key_hash: None,
            answer_form: AnswerForm::Single,
            rows: 1,
            temperature: self.is_live().then_some(0.0),
            media: Vec::new(),
            audio_tokens: 0,
            evidence,
            has_sets: !self.is_live(),
            wants_logprobs: false,
        }
    }

    /// Parses the answer to a prompt of this form. Also returns the quotations that occur in the
    /// passages.
    pub(super) fn parse_answer(
        &self,
        content: &str,
        finish: FinishReason,
        keys: &RequestKeys,
        key_names: &[String],
        checkers: &[&Checker],
        evidence: &ShownEvidence,
    ) -> (Vec<RowOutcome>, Vec<Quotation>) {
        if self.task == Task::Statement {
            return (vec![statement::parse_answer(content, finish)], Vec::new());
        }
        let cut = || {
            if finish == FinishReason::Stop {
                None
            } else {
                self.parse_closed_cells(content, evidence)
            }
        };
        if let Some((cells, quotes)) = self.parse_cells(content, evidence).or_else(cut) {
            let answer = |(n, (cell, checker)): (usize, (&Option<Json>, &&Checker))| {
                let check = |cell: &Json| checker.check_json(cell);
                let answer = match (cell, &self.evidence) {
                    (None, _) => Answer::without_value(State::Invalid, None),
                    (Some(cell), None) => check(cell),
                    (Some(cell), Some(form)) => form.check_cell(n, cell, &quotes, check),
                };
                checker.complete_from_key(answer, |part| keys.key_part(0, part))
            };
            let answers = cells.iter().zip(checkers).enumerate().map(answer).collect();
            return (vec![RowOutcome::Answered(answers)], quotes);
        }
        if self.evidence.as_ref().is_some_and(evidence::EvidenceForm::is_required) {
            let failed = RowOutcome::Failed {
                state: State::Invalid,
                reason: "the answer is not an object with quotations".to_owned(),
                raw: content.to_owned(),
            };
            return (vec![failed], Vec::new());
        }
        // The model wrote other text around its answer, or a row of a table.
        let outcomes =
            completion::parse_completion(content, finish, keys, key_names, &self.members, checkers);
        (outcomes, Vec::new())
    }

    /// Parses a completion that is one JSON object, and returns its cells and quotations. Reasoning
    /// before the object is ignored. If quotations are requested, any text around the object is
    /// ignored as well.
    fn parse_cells(&self, content: &str, evidence: &ShownEvidence) -> Option<CellsWithQuotes> {
        let answer = strip_reasoning(content)?;
        let mut text = answer.trim();
        if self.evidence.is_some() {
            // Other text may surround an object with quotations.
            text = text.get(text.find('{')?..=text.rfind('}')?)?;
        }
        let UnambiguousJson(json) = serde_json::from_str(text).ok()?;
        let Json::Object(object) = json else { return None };
        self.extract_members(object, evidence)
    }

    /// Returns the complete cells of a completion that consists of a single truncated answer.
    fn parse_closed_cells(
        &self,
        content: &str,
        evidence: &ShownEvidence,
    ) -> Option<CellsWithQuotes> {
        let answer = strip_reasoning(content)?;
        self.extract_members(parse_closed_members(&answer)?, evidence)
    }

    /// Returns the cells and quotations of an object; `None` if it has other members.
    fn extract_members(
        &self,
        mut object: serde_json::Map<String, Json>,
        evidence: &ShownEvidence,
    ) -> Option<CellsWithQuotes> {
        let form = self.evidence.as_ref();
        let quotes = form.map(|form| form.take_quotes(&mut object, evidence)).unwrap_or_default();
        let cells: Vec<_> = self.members.iter().map(|name| object.remove(name)).collect();
        (object.is_empty() && cells.iter().any(Option::is_some)).then_some((cells, quotes))
    }
}

/// The cells of an answer, by member, and its quotations.
type CellsWithQuotes = (Vec<Option<Json>>, Vec<Quotation>);

/// Parses the complete members of a truncated object. `None` if the text does not begin with an
/// object, or if the object is complete.
fn parse_closed_members(text: &str) -> Option<serde_json::Map<String, Json>> {
    let mut rest = text.trim_start().strip_prefix('{')?;
    let mut members = serde_json::Map::new();
    let mut contradictory = Vec::new();
    while let Some((name, value, after)) = parse_member(rest) {
        if members.get(&name).is_some_and(|earlier| *earlier != value) {
            contradictory.push(name);
        } else {
            members.insert(name, value);
        }
        let after = after.trim_start();
        let Some(next) = after.strip_prefix(',') else {
            if !after.is_empty() {
                return None;
            }
            break;
        };
        rest = next;
    }
    members.retain(|name, _| !contradictory.contains(name));
    Some(members)
}

/// Parses a complete member; returns its name, its value and the remaining text.
fn parse_member(text: &str) -> Option<(String, Json, &str)> {
    let (name, rest) = row::parse_string(text)?;
    let rest = rest.trim_start().strip_prefix(':')?;
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<UnambiguousJson>();
    let UnambiguousJson(value) = values.next()?.ok()?;
    let after = &rest[values.byte_offset()..];
    // A number or a word may be incomplete.
    let is_closed = value.is_string() || value.is_array() || value.is_object();
    (is_closed || !after.is_empty()).then_some((name, value, after))
}

/// Returns the introduction for a question about a value, which depends on whether the value is a
/// medium.
fn choose_intro(expansion: &Expansion) -> Intro {
    expansion.media_words().map_or(value::INTRO, build_media_intro)
}

fn build_media_intro(words: &MediaWords) -> Intro {
    Intro { task: words.task, unknown: words.unknown }
}

/// Returns true if a question about a value or a medium can have this introduction.
fn is_value_intro(is_intro: impl Fn(&Intro) -> bool) -> bool {
    is_intro(&value::INTRO) || all_words().any(|words| is_intro(&build_media_intro(words)))
}

/// Returns whether a question about one row of an expansion can be asked without a table.
fn can_omit_table(expansion: &Expansion, format: Format) -> bool {
    let needs_examples = expansion.task != Task::Columns && !expansion.shots.is_empty();
    format == Format::Json && expansion.echo == Echo::Short && !needs_examples
}

/// First part of a system message, before the answer format.
struct Intro {
    task: &'static str,
    /// Condition under which the answer is null.
    unknown: &'static str,
}

/// Returns an example value, which shows the type of the answer.
fn build_example_value(data_type: Type, has_options: bool) -> Json {
    if has_options && data_type == Type::Text {
        return OPTION_PLACEHOLDERS[0].into();
    }
    let example = data_type.examples()[0];
    if data_type.json_type() == "string" {
        example.into()
    } else {
        serde_json::from_str(example).unwrap_or_default()
    }
}

/// Placeholders for answers to a question with options.
const OPTION_PLACEHOLDERS: [&str; 2] = ["one of the options", "another option"];
/// Placeholder for a cell in an example row, and a common misspelling of it.
const CELL_PLACEHOLDERS: [&str; 2] = ["\u{2026}", "..."];

/// Returns the placeholders for answers in the examples of prompts about a column.
///
/// A model that repeats one of them has copied the example. None of them is the answer to a
/// question, in exactly this spelling. The examples of numbers, dates and booleans can be answers,
/// so they are not in the list.
pub(super) fn list_placeholders(task: Task, column: &Column) -> Vec<&'static str> {
    match (task, column.kind) {
        (Task::Columns, Type::Text | Type::Url) => CELL_PLACEHOLDERS.to_vec(),
        (_, Type::Text) if column.values.is_some() => OPTION_PLACEHOLDERS.to_vec(),
        (_, kind @ (Type::Text | Type::Url)) => vec![kind.examples()[0]],
        (_, Type::Boolean | Type::Integer | Type::Real | Type::Date) => Vec::new(),
    }
}

fn build_example_answer(data_type: Type, is_many: bool, has_options: bool) -> String {
    let item = build_example_value(data_type, has_options);
    match data_type {
        _ if is_many => {
            format!("{{\"{ANSWER}\": [{item}, …]}}, {{\"{ANSWER}\": []}} if there is none")
        }
        Type::Boolean => format!("{{\"{ANSWER}\": true}} or {{\"{ANSWER}\": false}}"),
        _ => format!("{{\"{ANSWER}\": {item}}}"),
    }
}

fn build_system_message(intro: &Intro, column: &Column) -> String {
    let Intro { task, unknown } = intro;
    let example = build_example_answer(column.kind, column.many.is_some(), column.values.is_some());
    let mut system =
        format!("{task} Answer with JSON: {example}, or {{\"{ANSWER}\": null}} {unknown}.");
    add_options(&mut system, column);
    add_answer_format(&mut system, column);
    system
}

fn add_answer_format(system: &mut String, column: &Column) {
    if let Some(example) = &column.example {
        system.push_str(&format!("\nAn answer looks like {}.", json!(example)));
    }
    if let Some(pattern) = &column.pattern {
        system.push_str(&format!("\nAn answer matches the regular expression {}.", json!(pattern)));
    }
}

/// Adds the options for the answer.
fn add_options(system: &mut String, column: &Column) {
    let Some(list) = &column.values else { return };
    let open_note = if list.open { " Another value is allowed if none of them fits." } else { "" };
    system.push_str(&format!(
        "\nCopy the answer from the options.{open_note}\nOptions: {}",
        json!(list.values)
    ));
}

/// Parses the options in a system message.
fn parse_options(system: &str) -> Option<Vec<String>> {
    let options = system.lines().skip(1).find_map(|line| line.strip_prefix("Options: "))?;
    serde_json::from_str(options).ok()
}

/// Formats a value as JSON on one line.
fn format_value(value: &Value) -> String {
    match value {
        Value::Text(text) => quote_json(text),
        other => other.to_json().to_string(),
    }
}

/// Parses a line of JSON and returns its value and the text after the line.
fn parse_json_line(line: &str) -> Option<(Json, &str)> {
    let (value, rest) = line.split_once('\n')?;
    Some((serde_json::from_str(value).ok()?, rest))
}

/// Formats cells as the answer that a model should write.
pub(super) fn format_answer<'c>(cells: impl Iterator<Item = (&'c str, Json)>) -> String {
    let cells: serde_json::Map<String, Json> =
        cells.map(|(name, cell)| (name.to_owned(), cell)).collect();
    Json::Object(cells).to_string()
}

/// Parses a prompt that asks several questions about one value or text.
fn parse_several_questions(system: &str, user: &str) -> Option<Question> {
    let is = |intro: &Intro| system.starts_with(&several::pluralize_task(intro));
    let (table, key, row, rest) = match () {
        () if is(&text::INTRO) => text::parse_text(user)?,
        () if is_value_intro(is) => value::parse_values(user)?,
        () => return None,
    };
    let mut columns = several::parse_questions(system, rest.strip_prefix('\n')?)?;
    several::parse_types(system, &mut columns)?;
    Some(Question {
        origin: None,
        table: table.to_owned(),
        key,
        format: Format::Json,
        columns,
        rows: vec![row],
        row_tags: Vec::new(),
        answer_form: AnswerForm::Single,
    })
}

/// Parses a prompt of one of these forms; `None` if it is a prompt about a table.
pub(super) fn parse_prompt(system: &str, user: &str) -> Option<Question> {
    let question = parse_single_form(system, user)?;
    let column = user.strip_prefix("Column: ").and_then(|rest| rest.split_once('\n'));
    let text = || user.strip_prefix("Text of ").and_then(|rest| rest.split_once(":\n"));
    let origin = column.or_else(text).map(|(origin, _)| origin.to_owned());
    Some(Question { origin, ..question })
}

fn parse_single_form(system: &str, user: &str) -> Option<Question> {
    if let Some(question) =
        pack::parse_prompt(system, user).or_else(|| row::parse_prompt(system, user))
    {
        return Some(question);
    }
    if let Some(question) = statement::parse_prompt(system, user) {
        return Some(question);
    }
    if let Some(question) = parse_several_questions(system, user) {
        return Some(question);
    }
    let has_intro = |intro: &Intro| system.starts_with(intro.task);
    let (table, key, row, rest) = match () {
        () if has_intro(&text::INTRO) => text::parse_text(user)?,
        () if has_intro(&table::INTRO) => table::parse_tables(user)?,
        () if is_value_intro(has_intro) => value::parse_values(user)?,
        () if has_intro(&join::INTRO) => {
            let (_, key, row, rest) = value::parse_values(user)?;
            ("join", key, row, rest)
        }
        () => return None,
    };
    let about = rest.strip_prefix("\nQuestion: ")?;
    let about = if table == "join" { about.strip_prefix(join::QUESTION)? } else { about };
    let example_line = system.lines().next()?.split_once(" Answer with JSON: ")?.1;
    let variants = Type::ALL.iter().flat_map(|data_type| {
        [(false, false), (false, true), (true, false), (true, true)]
            .map(|(is_many, has_options)| (*data_type, is_many, has_options))
    });
    let is_variant = |(data_type, is_many, has_options): &(Type, bool, bool)| {
        example_line
            .starts_with(&(build_example_answer(*data_type, *is_many, *has_options) + ", or "))
    };
    let (data_type, is_many, _) = variants.into_iter().find(is_variant)?;
    let column = AskedColumn {
        name: ANSWER.to_owned(),
        data_type: data_type.name().to_owned(),
        about: about.to_owned(),
        many: is_many,
        values: parse_options(system),
    };
    Some(Question {
        origin: None,
        table: table.to_owned(),
        key,
        format: Format::Json,
        columns: vec![column],
        rows: vec![row],
        row_tags: Vec::new(),
        answer_form: AnswerForm::Single,
    })
}
