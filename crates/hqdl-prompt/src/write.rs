//! Formats the system message of a prompt, and answers as a model should write them.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::{Line, csv, label};
use hqdl_spec::{Column, Echo, Expansion, Format, Shot, Type};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::key::quote;
use hqdl_values::value::Value;

/// Returns the first entries of the rows of a request: their labels or their numbers.
pub(super) fn firsts<'r>(
    keys: impl Iterator<Item = &'r [Value]>,
    echo: Echo,
) -> impl Iterator<Item = Json> {
    let firsts: Vec<Json> = match echo {
        Echo::Full => keys.enumerate().map(|(n, _)| (n + 1).into()).collect(),
        Echo::Short => {
            let tags = label::tags(keys);
            tags.iter().enumerate().map(|(n, tag)| format!("{} {tag}", n + 1).into()).collect()
        }
    };
    firsts.into_iter()
}

/// Returns the line of the prompt and the echoed line of a row.
pub(super) fn line(first: &Json, row: &Row, format: Format) -> Line {
    let key: Vec<Json> = row.key.iter().map(Value::to_json).collect();
    Line { echoed: answer_row(first, &key, &[], format), asked: row_line(first, row) }
}

/// Formats a row of a prompt: `["1 Bomb","A-Bomb","Richard Milhouse Jones",203]`
pub(super) fn row_line(first: &Json, row: &Row) -> String {
    let mut line = format!("[{first}");
    for value in row.key.iter().chain(&row.context) {
        line.push(',');
        match value {
            Value::Text(text) => line.push_str(&quote(text)),
            other => line.push_str(&other.to_json().to_string()),
        }
    }
    line.push(']');
    line
}

/// Writes the instructions about the answer format.
fn say_form(
    text: &mut String,
    expansion: &Expansion,
    asked: &[&Column],
    format: Format,
    echo: Echo,
) {
    let mut fields: Vec<&str> = vec!["row"];
    if echo == Echo::Full {
        fields.extend(expansion.key.names().iter().map(String::as_str));
    }
    fields.extend(asked.iter().map(|c| c.name.as_str()));
    match format {
        Format::Csv => {
            let copy = match echo {
                Echo::Short => {
                    "Begin each line with the first entry of the row, copied as given, and leave out the rest of its key."
                }
                Echo::Full => "Copy the row number and the key as given (an empty field for null).",
            };
            let _ = writeln!(
                text,
                "Answer in CSV and nothing else, without a header: one line for each row, with these {} fields in this order:\n{}\n\
                 {copy} \
                 Put a field that contains a comma or a quote in double quotes. \
                 Put | between the values of a list; write none for an empty list. Write ? for what you do not know.",
                fields.len(),
                csv::line(fields.iter().copied()),
            );
        }
        Format::Json => {
            let (form, copy) = match echo {
                Echo::Short => (
                    "{\"rows\":[{\"row\":\"1 …\",\"cells\":{column: value, …}}, …]}",
                    "Copy the first entry of the row as given.",
                ),
                Echo::Full => (
                    "{\"rows\":[{\"row\":1,\"key\":[…],\"cells\":{column: value, …}}, …]}",
                    "Copy the row number and the key as given.",
                ),
            };
            let _ = writeln!(
                text,
                "Answer with one JSON object and nothing else: {form}, one element for each row. \
                 {copy} A list is an array. Write null for what you do not know.",
            );
        }
    }
}

/// Builds the system message of a prompt: the text that all its rows share.
pub(super) fn system(
    expansion: &Expansion,
    columns: &[usize],
    asked: &[&Column],
    format: Format,
    echo: Echo,
    header: &str,
) -> String {
    let mut text = String::from(
        "You fill in missing cells of a database table with what you know of the world.\n\
         For every row under \"## Rows\" give the value of every column under \"## Columns\".\n\
         Where a column has a value list, choose from that list and copy the value exactly.\n",
    );
    say_form(&mut text, expansion, asked, format, echo);
    if asked.iter().any(|c| c.example.is_some()) {
        text.push_str(
            "An example of a column shows the form of its values, not which one is right.\n",
        );
    }
    if asked.iter().any(|c| c.pattern.is_some()) {
        text.push_str(
            "A pattern of a column is a regular expression that its values match as a whole.\n",
        );
    }
    if asked.iter().any(|c| c.kind.spelling().is_some()) {
        let spellings: Vec<&str> = Type::ALL.iter().filter_map(|t| t.spelling()).collect();
        text.push_str(&format!("Write {}.\n", spellings.join(", ")));
    }
    if expansion.has_images() {
        text.push_str(
            "Where a row has [image 1], [image 2] and so on, it shows an image: they follow the rows in this order. \
             Say what they show.\n",
        );
    }
    let mut table = json!({ "table": expansion.name });
    if !expansion.about.is_empty() {
        table["about"] = expansion.about.trim().into();
    }
    table["key"] = expansion.key.names().into();
    if !expansion.context.is_empty() {
        table["context"] = expansion.context.as_slice().into();
    }
    if expansion.has_images() {
        table["images"] = expansion.images.as_slice().into();
    }
    table["format"] = format.name().into();
    let _ = writeln!(text, "## Table\n{table}");

    // A list that several columns share is written once.
    let mut lists: Vec<&hqdl_spec::ValueList> = Vec::new();
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
        if let Some(pattern) = &column.pattern {
            line["pattern"] = pattern.as_str().into();
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
    examples(&mut text, expansion, columns, asked, format, echo, header);
    text
}

/// Returns the description of a column, or else the question that it answers.
pub(super) fn about(column: &Column) -> Option<&str> {
    let described = Some(column.about.trim()).filter(|a| !a.is_empty());
    described.or_else(|| column.bindings.iter().find(|b| b.sql.is_none()).map(|b| b.ask.as_str()))
}

fn examples(
    text: &mut String,
    expansion: &Expansion,
    columns: &[usize],
    asked: &[&Column],
    format: Format,
    echo: Echo,
    header: &str,
) {
    let says = |shot: &&Shot, at: &usize| {
        shot.cells.get(*at).is_some_and(|cell| *cell != CellValue::Nothing)
    };
    // An example without values for these columns would teach the model to leave them out.
    //
    // This also prevents a row from being its own example. Overridden cells are not requested, so a
    // row with overrides is requested only for columns that its example lacks.
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
    let firsts = firsts(shots.iter().map(|s| s.key.as_slice()), echo);
    for (shot, first) in shots.iter().zip(firsts) {
        let row = Row { key: shot.key.clone(), context: shot.context.clone() };
        let _ = writeln!(text, "{}", row_line(&first, &row));
        let cells: Vec<(&str, Json)> = columns
            .iter()
            .zip(asked)
            .map(|(at, column)| {
                let cell = shot.cells.get(*at).unwrap_or(&CellValue::Nothing);
                (column.name.as_str(), json_cell(column.kind, cell))
            })
            .collect();
        let key: Vec<Json> = shot.key.iter().map(Value::to_json).collect();
        answers.push(answer_row(&first, &key, &cells, format));
    }
    let _ = writeln!(text, "Answer:\n{}", answer(&answers, format));
}

/// Formats one row of an answer as a model should write it: its label, or its number and key, and
/// its cells.
pub(super) fn answer_row(
    first: &Json,
    key: &[Json],
    cells: &[(&str, Json)],
    format: Format,
) -> String {
    let key = first.is_number().then_some(key);
    match format {
        Format::Csv => {
            let text = |v: &Json| Value::from_json(v).text().unwrap_or_default().into_owned();
            let mut fields = vec![text(first)];
            fields.extend(key.into_iter().flatten().map(text));
            let labelled = fields.len();
            fields.extend(cells.iter().map(|(_, cell)| csv_cell(cell)));
            csv::answer_line(&fields, labelled)
        }
        Format::Json => {
            let cells: serde_json::Map<String, Json> =
                cells.iter().map(|(name, cell)| ((*name).to_owned(), cell.clone())).collect();
            match key {
                Some(key) => json!({ "row": first, "key": key, "cells": cells }).to_string(),
                None => json!({ "row": first, "cells": cells }).to_string(),
            }
        }
    }
}

/// Joins the rows of an answer.
pub(super) fn answer(rows: &[String], format: Format) -> String {
    match format {
        Format::Csv => rows.join("\n"),
        Format::Json => format!("{{\"rows\":[{}]}}", rows.join(",")),
    }
}

/// Formats a cell for CSV.
pub(super) fn csv_cell(cell: &Json) -> String {
    match cell {
        Json::Null => "?".to_owned(),
        Json::Array(items) if items.is_empty() => "none".to_owned(),
        Json::Array(items) => items.iter().map(csv_cell).collect::<Vec<_>>().join("|"),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Converts a cell to JSON. Booleans are `true` and `false`, as the model should write them.
pub(super) fn json_cell(kind: Type, cell: &CellValue) -> Json {
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
