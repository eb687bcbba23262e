//! Form of a request for an SQL query that answers a question about a database. The context of the
//! row is the description of the database. The key is the question and, for a repair, the earlier
//! query with its problem.
//!
//! The answer is an object with `sql`, `dialect`, `assumptions`, `cannot_answer`, the query and the
//! description of another reading (`other_sql`, `other_reading`), and `new_columns`, the columns
//! that the model proposes. Models without schema-constrained output write prose or code fences
//! around the object, or only the query. The parser converts all of these to the same object.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value as Json, json};

use super::{Instructions, SingleForm, format_value, parse_json_line, to_single_line};
use crate::completion::{FinishReason, RowOutcome};
use crate::reasoning::strip_reasoning;
use crate::unambiguous::{MAX_ATTEMPTS, UnambiguousJson};
use crate::{AnswerForm, AskedColumn, AskedRow, Question};
use hqdl_spec::{Column, Expansion, Format, Type};
use hqdl_values::Row;
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::value::Value;

/// Start of the system message.
const TASK: &str = "Write one SQL query that answers a question about a database. Answer with one JSON object: \
{\"sql\": \"SELECT …\", \"dialect\": \"sqlite\", \"assumptions\": null, \"cannot_answer\": null, \"other_sql\": null, \"other_reading\": null, \"new_columns\": null}.";
/// Heading of the question, at the end of the user message.
const HEADING: &str = "\n## Question\n";
/// Members of an answer.
const MEMBERS: [&str; 7] =
    ["sql", "dialect", "assumptions", "cannot_answer", "other_sql", "other_reading", "new_columns"];
/// Members of a proposed column that are texts.
const COLUMN_TEXTS: [&str; 5] = ["table", "name", "type", "about", "question"];
/// Maximum number of proposed columns.
const MAX_NEW_COLUMNS: usize = 3;
/// Maximum number of bytes of model output stored with an unreadable answer.
const MAX_RAW_BYTES: usize = 4096;

/// Returns the form for the only requested column. The column's description is the rest of the
/// system message.
pub(super) fn create_form(expansion: &Expansion, requested: &[&Column]) -> Option<SingleForm> {
    let [column] = requested else { return None };
    let system = format!("{TASK}\n{}", column.about);
    let schema = build_answer_schema();
    let instructions = Instructions { system: system.as_str().into(), tokens: OnceLock::new() };
    Some(SingleForm {
        task: expansion.task,
        key: expansion.key.names().iter().map(|name| to_single_line(name)).collect(),
        context: expansion.context.clone(),
        base_column: None,
        question: "Answer:".to_owned(),
        members: Vec::new(),
        evidence: None,
        schema_text: schema.to_string(),
        schema: Arc::new(schema),
        task_instructions: instructions.clone(),
        text_instructions: instructions,
    })
}

fn build_answer_schema() -> Json {
    let or_null = |schema: Json| json!({ "anyOf": [schema, { "type": "null" }] });
    let text = or_null(json!({ "type": "string" }));
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    let types: Vec<&str> = Type::ALL.iter().map(|data_type| data_type.name()).collect();
    let column = json!({
        "type": "object",
        "properties": {
            "table": { "type": "string" }, "key": texts, "name": { "type": "string" },
            "type": { "type": "string", "enum": types }, "many": { "type": "boolean" },
            "values": or_null(texts.clone()), "about": { "type": "string" },
            "question": { "type": "string" },
        },
        "required": ["table", "key", "name", "type", "many", "values", "about", "question"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": {
            "sql": text, "dialect": { "type": "string", "enum": ["sqlite", "suql"] },
            "assumptions": text, "cannot_answer": text, "other_sql": text, "other_reading": text,
            "new_columns": or_null(json!({ "type": "array", "items": column })),
        },
        "required": MEMBERS,
        "additionalProperties": false,
    })
}

/// Formats the description of the database and the question.
pub(super) fn format_question(row: &Row, names: &[String]) -> String {
    let mut text = String::new();
    for part in &row.context {
        text.push_str(&part.to_text().unwrap_or_default());
    }
    text.push_str(HEADING);
    for (name, value) in names.iter().zip(&row.key) {
        text.push_str(&format!("{name}: {}\n", format_value(value)));
    }
    text
}

pub(super) fn parse_prompt(system: &str, user: &str) -> Option<Question> {
    if !system.starts_with(TASK) {
        return None;
    }
    let (context, mut rest) = user.rsplit_once(HEADING)?;
    let (mut names, mut key) = (Vec::new(), Vec::new());
    while let Some((name, value)) = rest.split_once(": ").filter(|_| !rest.starts_with('\n')) {
        let (value, next) = parse_json_line(value)?;
        names.push(name.to_owned());
        key.push(value);
        rest = next;
    }
    let column = |name: &str| AskedColumn {
        name: name.to_owned(),
        data_type: "text".to_owned(),
        about: String::new(),
        many: false,
        values: None,
    };
    Some(Question {
        origin: None,
        table: "statement".to_owned(),
        key: names,
        format: Format::Json,
        columns: MEMBERS.iter().map(|name| column(name)).collect(),
        rows: vec![AskedRow {
            number: 1,
            key,
            context: vec![context.into()],
            passages: Vec::new(),
        }],
        row_tags: Vec::new(),
        answer_form: AnswerForm::Single,
    })
}

/// Parses an answer into a cell that contains the object as JSON text.
pub(super) fn parse_answer(content: &str, finish: FinishReason) -> RowOutcome {
    let failed = |reason: &str| RowOutcome::Failed {
        state: State::Invalid,
        reason: reason.to_owned(),
        raw: content.chars().take(MAX_RAW_BYTES / 4).collect(),
    };
    let Some(answer) = strip_reasoning(content) else {
        return failed("the completion ended before the model finished reasoning");
    };
    if answer.trim().is_empty() {
        return failed("the completion is empty");
    }
    let mut objects = find_objects(&answer);
    objects.dedup();
    match objects.as_slice() {
        [object] => to_outcome(object),
        [] => match find_bare_query(&answer, finish) {
            Some(sql) => {
                to_outcome(&normalize_answer(&Map::from_iter([("sql".to_owned(), sql.into())])))
            }
            None => failed("the completion contains no query"),
        },
        _ => failed("the completion contains two different answers"),
    }
}

fn to_outcome(object: &Json) -> RowOutcome {
    RowOutcome::Answered(vec![Answer::ok(CellValue::One(Value::Text(object.to_string())))])
}

/// Returns all objects in a text that are answers, in order, with all members filled in.
fn find_objects(text: &str) -> Vec<Json> {
    let mut found = Vec::new();
    let mut position = 0;
    for _ in 0..MAX_ATTEMPTS {
        let Some(open) = text[position..].find('{').map(|n| position + n) else { break };
        let mut values =
            serde_json::Deserializer::from_str(&text[open..]).into_iter::<UnambiguousJson>();
        position = match values.next() {
            Some(Ok(UnambiguousJson(Json::Object(object)))) => {
                if let answer @ Json::Object(_) = normalize_answer(&object) {
                    found.push(answer);
                }
                open + values.byte_offset()
            }
            _ => open + 1,
        };
    }
    found
}

/// Returns an answer with all members, or null if the object contains neither a query nor a reason
/// for its absence.
fn normalize_answer(object: &Map<String, Json>) -> Json {
    let text = |name: &str| {
        let text = match object.get(name)? {
            Json::String(text) => text.trim().to_owned(),
            Json::Array(items) => {
                items.iter().filter_map(Json::as_str).collect::<Vec<_>>().join("; ")
            }
            _ => return None,
        };
        (!text.is_empty()).then_some(text)
    };
    let (sql, reason) = (text("sql"), text("cannot_answer"));
    let columns = object.get("new_columns").map(find_new_columns).unwrap_or_default();
    if sql.is_none() && reason.is_none() && columns.is_empty() {
        return Json::Null;
    }
    let other = text("other_sql").zip(text("other_reading")).filter(|_| sql.is_some());
    let (other_sql, other_reading) = other.unzip();
    let is_suql = text("dialect").is_some_and(|name| name.eq_ignore_ascii_case("suql"));
    json!({
        "sql": sql, "dialect": if is_suql { "suql" } else { "sqlite" },
        "assumptions": text("assumptions"), "cannot_answer": reason,
        "other_sql": other_sql, "other_reading": other_reading, "new_columns": columns,
    })
}

/// Returns the complete column proposals, each formatted on one line.
fn find_new_columns(proposed: &Json) -> Vec<Json> {
    let text = |value: &Json| {
        let line = to_single_line(value.as_str()?.trim());
        (!line.is_empty()).then_some(line)
    };
    let texts =
        |value: &Json| -> Option<Vec<String>> { value.as_array()?.iter().map(text).collect() };
    let read = |column: &Json| {
        let mut read = Map::new();
        for name in COLUMN_TEXTS {
            read.insert(name.to_owned(), text(&column[name])?.into());
        }
        let key = texts(&column["key"]).filter(|key| !key.is_empty())?;
        read.insert("key".to_owned(), key.into());
        read.insert("many".to_owned(), (column["many"] == true).into());
        read.insert("values".to_owned(), texts(&column["values"]).into());
        Some(Json::Object(read))
    };
    proposed.as_array().into_iter().flatten().filter_map(read).take(MAX_NEW_COLUMNS).collect()
}

/// Returns the query in a reply that has no JSON object: the only fenced query, or the whole
/// reply.
fn find_bare_query(answer: &str, finish: FinishReason) -> Option<String> {
    let parts: Vec<&str> = answer.split("```").collect();
    // An odd number of parts means that all fences are closed.
    let fenced: Vec<&str> = match parts.len() {
        n if n % 2 == 1 => parts.iter().skip(1).step_by(2).map(|p| strip_language(p)).collect(),
        _ => Vec::new(),
    };
    let mut queries: Vec<&str> =
        fenced.into_iter().filter(|text| begins_with_query(text)).collect();
    if queries.is_empty() && parts.len() == 1 && finish == FinishReason::Stop {
        queries.extend(Some(answer.trim()).filter(|text| begins_with_query(text)));
    }
    queries.dedup();
    match queries.as_slice() {
        [query] => Some((*query).to_owned()),
        _ => None,
    }
}

/// Removes the name of the language after an opening fence.
fn strip_language(fenced: &str) -> &str {
    match fenced.split_once('\n') {
        Some((language, text)) if !language.trim().contains(' ') => text.trim(),
        _ => fenced.trim(),
    }
}

fn begins_with_query(text: &str) -> bool {
    let word: String = text.chars().take_while(char::is_ascii_alphabetic).collect();
    ["select", "with", "values"].iter().any(|w| word.eq_ignore_ascii_case(w))
}
