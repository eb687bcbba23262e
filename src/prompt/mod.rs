//! From rows with missing cells to a prompt, and from a completion to answers.
//!
//! # The prompt
//!
//! Two messages. The *system* message never changes within a run (instructions,
//! table, value lists, columns, shots), so an endpoint's prefix cache serves
//! it; the *user* message is the rows alone. Everything between the headings
//! is JSON, one value a line, and can be read back by a program, a person or a
//! test endpoint ([`Question::read`]):
//!
//! ```text
//! …instructions…
//! ## Table
//! {"table":"llm","about":"…","key":["superhero_name","full_name"],"context":["height_cm"],"format":"csv"}
//! ## Value lists
//! {"values":"v1","list":["Amber","Black",…]}
//! ## Columns
//! {"column":"eye_color","type":"text","about":"…","values":"v1"}
//! {"column":"powers","type":"text","many":true,"values":"v2"}
//! ## Examples
//! ["row","superhero_name","full_name","height_cm"]
//! [1,"3-D Man","Charles Chandler",188]
//! Answer:
//! 1,3-D Man,Charles Chandler,Brown,Super Strength|Stamina
//! ```
//! ```text
//! ## Rows
//! ["row","superhero_name","full_name","height_cm"]
//! [1,"A-Bomb","Richard Milhouse Jones",203]
//! [2,"Abe Sapien",null,191]
//! ```
//!
//! Examples are those that say something about the columns asked. Where one of
//! them leaves some out, a line before them says what stands for that.
//!
//! `"example"` on a column is a value of the kind that is expected, maybe not a
//! right one. `"open":true` on a column lets values outside its list pass. A NULL is
//! `null`, distinct from `""`.
//!
//! # The answer
//!
//! * `csv`: a line for each row: row number, key columns, then the columns
//!   asked for; `|` between the values of a list, `?` for unknown.
//! * `json`: `{"rows":[{"row":1,"key":["A-Bomb","Richard Milhouse Jones"],"cells":{"eye_color":"Yellow","powers":["…"]}}]}`,
//!   `null` for unknown; constrained by [`Frame::schema`] where the endpoint can.
//!
//! Number and key must both be echoed and must agree: no answer ever lands in
//! another row ([`align`]). Both formats end in the same checked answer
//! ([`completion::read`]).

pub mod align;
pub mod completion;
mod csv;
mod json;
mod part;
mod question;

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

pub use completion::RowOutcome;
pub use question::{AskedColumn, AskedRow, Question};

use crate::cell::CellValue;
use crate::spec::{Column, Expansion, Format, Shot, Type};
use crate::tokens::Tokenizer;
use crate::value::Value;

/// Most values a schema's enums may hold together (`OpenAI`'s limit for strict schemas).
const SCHEMA_VALUES: usize = 1000;
/// Most characters those values may have together.
const SCHEMA_CHARS: usize = 15_000;

/// Tokens of an answer beside its rows: fences, brackets, a word too many.
const OUTPUT_AROUND: u64 = 96;
/// Tokens that a key part may take when it is echoed, with what stands around.
const KEY_OUTPUT: u64 = 40;

/// The most tokens that a sound cell of a column takes, its name included.
fn cell_output(column: &Column) -> u64 {
    let name = column.name.len() as u64 + 8;
    let longest = |n: usize| n as u64 + 2;
    let one = match (&column.values, column.kind) {
        (Some(list), _) if !list.open => {
            longest(list.values.iter().map(String::len).max().unwrap_or(0))
        }
        (_, Type::Integer | Type::Real | Type::Boolean | Type::Date) => 16,
        (_, Type::Url) => 120,
        (_, Type::Text) => 250,
    };
    let items = if column.many.is_some() { 40 } else { 1 };
    name + one * items
}

/// A row to be asked about: its key and its context, as the source spells them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Values of the key columns, in the spec's order.
    pub key: Vec<Value>,
    /// Values of the context columns, in the spec's order.
    pub context: Vec<Value>,
}

/// The part of a prompt that all rows share: an expansion, the columns asked
/// for and the format.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The form of the answers.
    pub format: Format,
    /// Names of the columns asked for.
    pub columns: Vec<String>,
    system: Arc<str>,
    schema: Option<Arc<Json>>,
    header: String,
    /// The most tokens that a sound answer takes for one row.
    row_output: u64,
    tokens: OnceLock<u64>,
}

/// What is sent to a model.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The system message: the same for all rows.
    pub system: Arc<str>,
    /// The user message: the rows.
    pub user: String,
    /// The JSON schema of the answer, for format `json`.
    pub schema: Option<Arc<Json>>,
    /// The most tokens that a sound answer takes, generously.
    pub max_output: u64,
    /// Input tokens it takes, as far as they were counted.
    pub input_tokens: u64,
}

impl Prompt {
    /// The hash that provenance keeps of it.
    #[must_use]
    pub fn hash(&self) -> String {
        crate::key::prompt_hash(&[&self.system, &self.user])
    }
}

impl Frame {
    /// The frame for some columns (by position) of an expansion.
    #[must_use]
    pub fn new(expansion: &Expansion, columns: &[usize], format: Format) -> Self {
        let asked: Vec<&Column> =
            columns.iter().filter_map(|c| expansion.columns.get(*c)).collect();
        let mut header: Vec<Json> = vec!["row".into()];
        header.extend(
            expansion.key.names().iter().chain(&expansion.context).map(|n| n.as_str().into()),
        );
        let header = Json::Array(header).to_string();
        let system = system(expansion, columns, &asked, format, &header);
        Self {
            format,
            columns: asked.iter().map(|c| c.name.clone()).collect(),
            system: system.into(),
            schema: (format == Format::Json).then(|| Arc::new(schema(expansion, &asked))),
            header,
            row_output: KEY_OUTPUT * expansion.key.names().len() as u64
                + asked.iter().map(|c| cell_output(c)).sum::<u64>(),
            tokens: OnceLock::new(),
        }
    }

    /// The tokens that all prompts of this frame share, counted once.
    #[must_use]
    pub fn tokens(&self, tokenizer: Tokenizer) -> u64 {
        *self.tokens.get_or_init(|| {
            let schema = self.schema.as_ref().map_or(0, |s| tokenizer.count(&s.to_string()));
            tokenizer.count(&self.system) + schema
        })
    }

    /// The text that all prompts of this frame share.
    #[must_use]
    pub fn system(&self) -> &str {
        &self.system
    }

    /// The JSON schema of an answer; `None` for csv.
    #[must_use]
    pub fn schema(&self) -> Option<&Json> {
        self.schema.as_deref()
    }

    /// The prompt that asks about `rows`.
    #[must_use]
    pub fn prompt<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Prompt {
        let mut user = format!("## Rows\n{}\n", self.header);
        let mut count = 0;
        for row in rows {
            count += 1;
            user.push_str(&row_line(count, row));
            user.push('\n');
        }
        let max_output = OUTPUT_AROUND + self.row_output * count as u64;
        Prompt {
            system: Arc::clone(&self.system),
            user,
            schema: self.schema.clone(),
            max_output,
            input_tokens: 0,
        }
    }
}

/// A row as it stands in a prompt: `[1,"A-Bomb","Richard Milhouse Jones",203]`.
#[must_use]
pub fn row_line(number: usize, row: &Row) -> String {
    let mut cells: Vec<Json> = vec![number.into()];
    cells.extend(row.key.iter().chain(&row.context).map(Value::to_json));
    Json::Array(cells).to_string()
}

fn system(
    expansion: &Expansion,
    columns: &[usize],
    asked: &[&Column],
    format: Format,
    header: &str,
) -> String {
    let mut text = String::from(
        "You fill in missing cells of a database table with what you know of the world.\n\
         For every row under \"## Rows\" give the value of every column under \"## Columns\".\n\
         Where a column has a value list, choose from that list and copy the value exactly.\n",
    );
    let mut fields: Vec<&str> = vec!["row"];
    fields.extend(expansion.key.names().iter().map(String::as_str));
    fields.extend(asked.iter().map(|c| c.name.as_str()));
    match format {
        Format::Csv => {
            let _ = writeln!(
                text,
                "Answer in CSV and nothing else, without a header: one line for each row, with these {} fields in this order:\n{}\n\
                 Copy the row number and the key as given (an empty field for null). \
                 Put a field that contains a comma or a quote in double quotes. \
                 Put | between the values of a list; write none for an empty list. Write ? for what you do not know.",
                fields.len(),
                csv::line(fields.iter().copied()),
            );
        }
        Format::Json => text.push_str(
            "Answer with one JSON object and nothing else: \
             {\"rows\":[{\"row\":1,\"key\":[…],\"cells\":{column: value, …}}, …]}, one element for each row. \
             Copy the row number and the key as given. \
             A list is an array. Write null for what you do not know.\n",
        ),
    }
    if asked.iter().any(|c| c.example.is_some()) {
        text.push_str(
            "An example of a column shows the form of its values, not which one is right.\n",
        );
    }
    if asked.iter().any(|c| matches!(c.kind, Type::Date | Type::Url | Type::Boolean)) {
        text.push_str("Write dates as YYYY-MM-DD, booleans as true or false, URLs in full.\n");
    }
    let mut table = json!({ "table": expansion.name });
    if !expansion.about.is_empty() {
        table["about"] = expansion.about.trim().into();
    }
    table["key"] = expansion.key.names().into();
    if !expansion.context.is_empty() {
        table["context"] = expansion.context.as_slice().into();
    }
    table["format"] = format.name().into();
    let _ = writeln!(text, "## Table\n{table}");

    // A list that several columns share is written once.
    let mut lists: Vec<&crate::spec::ValueList> = Vec::new();
    for list in asked.iter().filter_map(|c| c.values.as_ref()) {
        if !lists.iter().any(|l| l.hash == list.hash) {
            lists.push(list);
        }
    }
    if !lists.is_empty() {
        text.push_str("## Value lists\n");
        for (n, list) in lists.iter().enumerate() {
            let _ = writeln!(
                text,
                "{}",
                json!({ "values": format!("v{}", n + 1), "list": list.values })
            );
        }
    }
    text.push_str("## Columns\n");
    for column in asked {
        let mut line = json!({ "column": column.name, "type": column.kind.name() });
        if let Some(about) = about(column) {
            line["about"] = about.into();
        }
        if column.many.is_some() {
            line["many"] = true.into();
        }
        if let Some(example) = &column.example {
            line["example"] = example.as_str().into();
        }
        if let Some(list) = &column.values {
            let at = lists.iter().position(|l| l.hash == list.hash).unwrap_or_default();
            line["values"] = format!("v{}", at + 1).into();
            if list.open {
                line["open"] = true.into();
            }
        }
        let _ = writeln!(text, "{line}");
    }
    examples(&mut text, expansion, columns, asked, format, header);
    text
}

/// What a column is: its description, else the question it answers.
fn about(column: &Column) -> Option<&str> {
    let described = Some(column.about.trim()).filter(|a| !a.is_empty());
    described.or_else(|| column.bindings.iter().find(|b| b.sql.is_none()).map(|b| b.ask.as_str()))
}

fn examples(
    text: &mut String,
    expansion: &Expansion,
    columns: &[usize],
    asked: &[&Column],
    format: Format,
    header: &str,
) {
    let says = |shot: &&Shot, at: &usize| {
        shot.cells.get(*at).is_some_and(|cell| *cell != CellValue::Nothing)
    };
    // An example that says nothing about these columns would teach to say
    // nothing. It also keeps a row from being its own example: what is
    // overridden is not asked, so a row with overrides is asked for the rest
    // alone, of which its example says nothing.
    let shots: Vec<&Shot> =
        expansion.shots.iter().filter(|s| columns.iter().any(|c| says(s, c))).collect();
    if shots.is_empty() {
        return;
    }
    text.push_str("## Examples\n");
    if shots.iter().any(|s| !columns.iter().all(|c| says(s, c))) {
        let blank = if format == Format::Csv { "?" } else { "null" };
        let _ = writeln!(text, "Here {blank} stands for what the example leaves out.");
    }
    let _ = writeln!(text, "{header}");
    let mut answers = Vec::new();
    for (n, shot) in shots.into_iter().enumerate() {
        let row = Row { key: shot.key.clone(), context: shot.context.clone() };
        let _ = writeln!(text, "{}", row_line(n + 1, &row));
        let cells: Vec<(&str, Json)> = columns
            .iter()
            .zip(asked)
            .map(|(at, column)| {
                let cell = shot.cells.get(*at).unwrap_or(&CellValue::Nothing);
                (column.name.as_str(), json_cell(column.kind, cell))
            })
            .collect();
        let key: Vec<Json> = shot.key.iter().map(Value::to_json).collect();
        answers.push(answer_row(n + 1, &key, &cells, format));
    }
    let _ = writeln!(text, "Answer:\n{}", answer(&answers, format));
}

/// One row of an answer as a model should write it.
fn answer_row(number: usize, key: &[Json], cells: &[(&str, Json)], format: Format) -> String {
    match format {
        Format::Csv => {
            let mut fields = vec![number.to_string()];
            fields.extend(
                key.iter().map(|v| Value::from_json(v).text().unwrap_or_default().into_owned()),
            );
            fields.extend(cells.iter().map(|(_, cell)| csv_cell(cell)));
            csv::line(fields.iter().map(String::as_str))
        }
        Format::Json => {
            let cells: serde_json::Map<String, Json> =
                cells.iter().map(|(name, cell)| ((*name).to_owned(), cell.clone())).collect();
            json!({ "row": number, "key": key, "cells": cells }).to_string()
        }
    }
}

/// The rows of an answer put together.
fn answer(rows: &[String], format: Format) -> String {
    match format {
        Format::Csv => rows.join("\n"),
        Format::Json => format!("{{\"rows\":[{}]}}", rows.join(",")),
    }
}

/// A cell as csv writes it.
fn csv_cell(cell: &Json) -> String {
    match cell {
        Json::Null => "?".to_owned(),
        Json::Array(items) if items.is_empty() => "none".to_owned(),
        Json::Array(items) => items.iter().map(csv_cell).collect::<Vec<_>>().join("|"),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A cell as JSON writes it: booleans by name, as the model is to write them.
fn json_cell(kind: Type, cell: &CellValue) -> Json {
    let one = |v: &Value| match (kind, v) {
        (Type::Boolean, Value::Integer(i)) => (*i != 0).into(),
        _ => v.to_json(),
    };
    match cell {
        CellValue::Nothing => Json::Null,
        CellValue::One(value) => one(value),
        CellValue::Many(values) => values.iter().map(one).collect(),
    }
}

/// The JSON schema that an endpoint can hold its answer to. Value lists are
/// enums as far as `OpenAI`'s limits for strict schemas allow.
fn schema(expansion: &Expansion, asked: &[&Column]) -> Json {
    let mut values_left = SCHEMA_VALUES;
    let mut chars_left = SCHEMA_CHARS;
    let mut properties = serde_json::Map::new();
    for column in asked {
        let kind = match column.kind {
            Type::Integer => "integer",
            Type::Real => "number",
            Type::Boolean => "boolean",
            Type::Text | Type::Date | Type::Url => "string",
        };
        let mut one = json!({ "type": kind });
        if let Some(list) = column.values.as_ref().filter(|l| !l.open && kind == "string") {
            let chars: usize = list.values.iter().map(String::len).sum();
            if list.values.len() < values_left && chars < chars_left {
                values_left -= list.values.len() + 1;
                chars_left -= chars;
                one = json!({ "type": kind, "enum": list.values });
            }
        }
        let cell = if column.many.is_some() {
            json!({ "type": ["array", "null"], "items": one })
        } else {
            json!({ "anyOf": [one, { "type": "null" }] })
        };
        properties.insert(column.name.clone(), cell);
    }
    let required: Vec<&String> = properties.keys().collect();
    let cells = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    let keys = expansion.key.names().len();
    let row = json!({
        "type": "object",
        "properties": {
            "row": { "type": "integer" },
            "key": { "type": "array", "items": { "type": ["string", "number", "null"] }, "description": format!("the {keys} key values of the row") },
            "cells": cells,
        },
        "required": ["row", "key", "cells"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": { "rows": { "type": "array", "items": row } },
        "required": ["rows"],
        "additionalProperties": false,
    })
}
