//! Reading a prompt back: what a replayed recording, a test endpoint or a
//! person sees in it.

use serde_json::Value as Json;

use super::write::{answer, answer_row};
use super::{AnswerForm, forms, label};
use hqdl_spec::Format;
use hqdl_values::value::Value;

/// What a prompt asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The expansion's name.
    pub table: String,
    /// The column or expression that the values come from, where the prompt shows it.
    pub origin: Option<String>,
    /// Names of the key columns.
    pub key: Vec<String>,
    /// The form of the answer.
    pub format: Format,
    /// The columns asked for.
    pub columns: Vec<AskedColumn>,
    /// The rows asked about.
    pub rows: Vec<AskedRow>,
    /// The tags of their labels by key, where they have labels.
    pub(super) tags: Vec<(Vec<Json>, String)>,
    /// The form of the answer.
    pub(super) answers: AnswerForm,
}

/// A column of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Its description.
    pub about: String,
    /// Whether its cells are lists.
    pub many: bool,
    /// Its value list.
    pub values: Option<Vec<String>>,
}

/// A row of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedRow {
    /// Its number in this prompt.
    pub number: usize,
    /// The values of the key columns.
    pub key: Vec<Json>,
    /// The values of the context columns.
    pub context: Vec<Json>,
}

impl Question {
    /// Reads a prompt; `None` when the messages are not a prompt of ours.
    #[must_use]
    pub fn read(system: &str, user: &str) -> Option<Self> {
        if let Some(question) = forms::read_back(system, user) {
            return Some(question);
        }
        let mut section = "";
        let mut lists: Vec<(String, Vec<String>)> = Vec::new();
        let mut table = Json::Null;
        let mut columns = Vec::new();
        for line in system.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                section = heading;
                continue;
            }
            let json = || serde_json::from_str::<Json>(line).ok();
            match section {
                "Table" => table = json()?,
                "Value lists" => {
                    let list = json()?;
                    lists.push((text(&list["values"]), texts(&list["list"])));
                }
                "Columns" => {
                    let column = json()?;
                    let list = column["values"].as_str();
                    columns.push(AskedColumn {
                        name: text(&column["column"]),
                        kind: text(&column["type"]),
                        about: text(&column["about"]),
                        many: column["many"].as_bool().unwrap_or(false),
                        values: list
                            .and_then(|l| lists.iter().find(|(n, _)| n == l))
                            .map(|(_, v)| v.clone()),
                    });
                }
                _ => {}
            }
        }
        let key = texts(&table["key"]);
        let mut rows = Vec::new();
        let mut tags = Vec::new();
        for line in user.strip_prefix("## Rows\n")?.lines().skip(1) {
            let Json::Array(mut cells) = serde_json::from_str(line).ok()? else {
                return None;
            };
            if cells.len() <= key.len() {
                return None;
            }
            let context = cells.split_off(1 + key.len());
            let number = match cells.remove(0) {
                Json::String(label) => {
                    let (number, tag) = label::read(&label)?;
                    tags.push((cells.clone(), tag.to_owned()));
                    number
                }
                number => usize::try_from(number.as_u64()?).ok()?,
            };
            rows.push(AskedRow { number, key: cells, context });
        }
        let format = if table["format"] == "csv" { Format::Csv } else { Format::Json };
        let (table, answers) = (text(&table["table"]), AnswerForm::Table);
        let origin = None;
        Some(Self { table, origin, key, format, columns, rows, tags, answers })
    }

    /// The answer to this question as a well-behaved model writes it: `cell`
    /// gives the JSON of each cell, null where it does not know.
    #[must_use]
    pub fn answer(&self, mut cell: impl FnMut(&AskedRow, &AskedColumn) -> Json) -> String {
        match (self.answers, &*self.rows, &*self.columns) {
            (AnswerForm::Single, [row], columns) => {
                let cells = columns.iter().map(|c| (c.name.as_str(), cell(row, c)));
                return forms::write_answer(cells);
            }
            (AnswerForm::Lines | AnswerForm::Arrays, rows, columns) => {
                let mut cells = |row| columns.iter().map(|c| cell(row, c)).collect();
                let rows = rows.iter().map(|row| (self.first(row), cells(row)));
                return match self.answers {
                    AnswerForm::Arrays => forms::write_arrays(rows),
                    _ => forms::write_lines(rows),
                };
            }
            _ => {}
        }
        let rows: Vec<String> = self
            .rows
            .iter()
            .map(|row| {
                let cells: Vec<(&str, Json)> =
                    self.columns.iter().map(|c| (c.name.as_str(), cell(row, c))).collect();
                answer_row(&self.first(row), &row.key, &cells, self.format)
            })
            .collect();
        answer(&rows, self.format)
    }

    /// What the answer for a row begins with: its number, or its label. The tag
    /// goes with the key; a key that nobody asked about has one of its own.
    fn first(&self, row: &AskedRow) -> Json {
        if self.tags.is_empty() {
            return row.number.into();
        }
        let tag = self.tags.iter().find(|(key, _)| *key == row.key).map(|(_, tag)| tag.clone());
        let tag = tag.unwrap_or_else(|| {
            let key: Vec<Value> = row.key.iter().map(Value::from_json).collect();
            label::tags([key.as_slice()]).remove(0)
        });
        format!("{} {tag}", row.number).into()
    }
}

impl AskedRow {
    /// The key as one text, its parts joined by ", ", NULLs left out.
    #[must_use]
    pub fn key_text(&self) -> String {
        let parts: Vec<String> = self
            .key
            .iter()
            .filter(|k| !k.is_null())
            .map(|k| match k {
                Json::String(text) => text.clone(),
                other => Value::from_json(other).to_string(),
            })
            .collect();
        parts.join(", ")
    }
}

fn text(json: &Json) -> String {
    json.as_str().unwrap_or_default().to_owned()
}

fn texts(json: &Json) -> Vec<String> {
    json.as_array()
        .into_iter()
        .flatten()
        .map(|t| hqdl_values::value::Value::from_json(t).to_string())
        .collect()
}
