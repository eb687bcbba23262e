//! Parses prompts, for recordings, test endpoints and human readers.

use serde_json::Value as Json;

use super::write::{format_answer_row, join_answer};
use super::{AnswerForm, forms, label};
use hqdl_spec::Format;
use hqdl_values::value::Value;

/// A question asked by a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Name of the expansion.
    pub table: String,
    /// Column or expression that the values come from, if the prompt shows it.
    pub origin: Option<String>,
    /// Names of the key columns.
    pub key: Vec<String>,
    /// Format of the answer.
    pub format: Format,
    /// Requested columns.
    pub columns: Vec<AskedColumn>,
    /// Requested rows.
    pub rows: Vec<AskedRow>,
    /// Tags of the row labels, by key; empty if the rows have no labels.
    pub(super) row_tags: Vec<(Vec<Json>, String)>,
    pub(super) answer_form: AnswerForm,
}

/// A column in a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedColumn {
    /// Name of the column, as written in the prompt.
    pub name: String,
    /// Type of the column, as written in the prompt.
    pub data_type: String,
    /// Description of the column.
    pub about: String,
    /// Whether the cells are lists.
    pub many: bool,
    /// Allowed values; `None` if the prompt lists none.
    pub values: Option<Vec<String>>,
}

/// A row in a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedRow {
    /// Row number in this prompt.
    pub number: usize,
    /// Values of the key columns.
    pub key: Vec<Json>,
    /// Values of the context columns.
    pub context: Vec<Json>,
    /// Document passages shown with the row.
    pub passages: Vec<Json>,
}

impl Question {
    /// Parses a prompt; `None` if hqdl did not write the messages.
    #[must_use]
    pub fn parse(system: &str, user: &str) -> Option<Self> {
        if let Some(question) = forms::parse_prompt(system, user) {
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
            let parse_line = || serde_json::from_str::<Json>(line).ok();
            match section {
                "Table" => table = parse_line()?,
                "Value lists" => {
                    let list = parse_line()?;
                    lists.push((json_text(&list["values"]), collect_json_texts(&list["list"])));
                }
                "Columns" => {
                    let column = parse_line()?;
                    let list = column["values"].as_str();
                    columns.push(AskedColumn {
                        name: json_text(&column["column"]),
                        data_type: json_text(&column["type"]),
                        about: json_text(&column["about"]),
                        many: column["many"].as_bool().unwrap_or(false),
                        values: list
                            .and_then(|l| lists.iter().find(|(n, _)| n == l))
                            .map(|(_, v)| v.clone()),
                    });
                }
                _ => {}
            }
        }
        let key = collect_json_texts(&table["key"]);
        let mut rows = Vec::new();
        let mut row_tags = Vec::new();
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
                    let (number, tag) = label::parse_label(&label)?;
                    row_tags.push((cells.clone(), tag.to_owned()));
                    number
                }
                number => usize::try_from(number.as_u64()?).ok()?,
            };
            rows.push(AskedRow { passages: Vec::new(), number, key: cells, context });
        }
        let format = if table["format"] == "csv" { Format::Csv } else { Format::Json };
        let (table, answer_form) = (json_text(&table["table"]), AnswerForm::Table);
        let origin = None;
        Some(Self { table, origin, key, format, columns, rows, row_tags, answer_form })
    }

    /// Returns true if each row of an answer begins with a label.
    #[must_use]
    pub fn has_labels(&self) -> bool {
        self.answer_form != AnswerForm::Single
    }

    /// Returns the answer to this question as a well-behaved model writes it. `cell` returns the
    /// JSON of each cell, or null for unknown. If it returns an object, `value` is the cell's value
    /// and `quotes` contains its quotations.
    #[must_use]
    pub fn format_answer(&self, mut cell: impl FnMut(&AskedRow, &AskedColumn) -> Json) -> String {
        match (self.answer_form, &*self.rows, &*self.columns) {
            (AnswerForm::Single, [row], columns) => {
                let mut quotes = Vec::new();
                let mut cells: Vec<(&str, Json)> = columns
                    .iter()
                    .map(|c| (c.name.as_str(), split_quotes(&c.name, cell(row, c), &mut quotes)))
                    .collect();
                if !quotes.is_empty() {
                    cells.insert(0, ("quotes", quotes.into()));
                }
                return forms::format_answer(cells.into_iter());
            }
            (AnswerForm::Lines | AnswerForm::Arrays, rows, columns) => {
                let mut cells = |row| columns.iter().map(|c| cell(row, c)).collect();
                let rows = rows.iter().map(|row| (self.build_row_prefix(row), cells(row)));
                return match self.answer_form {
                    AnswerForm::Arrays => forms::format_arrays(rows),
                    _ => forms::format_lines(rows),
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
                format_answer_row(&self.build_row_prefix(row), &row.key, &cells, self.format)
            })
            .collect();
        join_answer(&rows, self.format)
    }

    /// Returns the number or label that the answer for a row begins with.
    ///
    /// The tag depends on the key; a key that is not in the request gets its own tag.
    fn build_row_prefix(&self, row: &AskedRow) -> Json {
        if self.row_tags.is_empty() {
            return row.number.into();
        }
        let tag = self.row_tags.iter().find(|(key, _)| *key == row.key).map(|(_, tag)| tag.clone());
        let tag = tag.unwrap_or_else(|| {
            let key: Vec<Value> = row.key.iter().map(Value::from_json).collect();
            label::build_row_tags([key.as_slice()]).remove(0)
        });
        format!("{} {tag}", row.number).into()
    }
}

impl AskedRow {
    /// Returns the key as one text: its parts without NULLs, joined by ", ".
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

fn json_text(json: &Json) -> String {
    json.as_str().unwrap_or_default().to_owned()
}

fn collect_json_texts(json: &Json) -> Vec<String> {
    json.as_array()
        .into_iter()
        .flatten()
        .map(|t| hqdl_values::value::Value::from_json(t).to_string())
        .collect()
}

/// Returns the value of a cell, and adds its quotations to `quotes`.
fn split_quotes(column: &str, mut cell: Json, quotes: &mut Vec<Json>) -> Json {
    let Some(of_cell) = cell.get_mut("quotes").and_then(Json::as_array_mut) else { return cell };
    for mut quote in std::mem::take(of_cell) {
        quote["column"] = column.into();
        quotes.push(quote);
    }
    cell["value"].take()
}
