//! Formats the system message of a prompt, and answers as a model should write them.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::align::row_to_number;
use super::{PromptRow, csv, label};
use hqdl_spec::{Column, Echo, Expansion, Format, Shot, Type};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::key::quote_json;
use hqdl_values::value::Value;

/// Returns the first entry of each row in a request: its label or its number.
pub(super) fn build_row_prefixes<'r>(
    keys: impl Iterator<Item = &'r [Value]>,
    echo: Echo,
) -> impl Iterator<Item = Json> {
    let prefixes: Vec<Json> = match echo {
        Echo::Full => keys.enumerate().map(|(row, _)| row_to_number(row).into()).collect(),
        Echo::Short => {
            let row_tags = label::build_row_tags(keys);
            let number_tags = row_tags.iter().enumerate();
            number_tags.map(|(row, tag)| format!("{} {tag}", row_to_number(row)).into()).collect()
        }
    };
    prefixes.into_iter()
}

/// Returns a row's line in the prompt, and the beginning of its line in an answer.
pub(super) fn format_prompt_row(prefix: &Json, row: &Row, format: Format) -> PromptRow {
    let key: Vec<Json> = row.key.iter().map(Value::to_json).collect();
    PromptRow {
        echo_line: format_answer_row(prefix, &key, &[], format),
        prompt_line: format_row(prefix, row),
    }
}

/// Formats a row of a prompt: `["1 Bomb","A-Bomb","Richard Milhouse Jones",203]`.
pub(super) fn format_row(prefix: &Json, row: &Row) -> String {
    let mut line = format!("[{prefix}");
    for value in row.key.iter().chain(&row.context) {
        line.push(',');
        match value {
            Value::Text(text) => line.push_str(&quote_json(text)),
            other => line.push_str(&other.to_json().to_string()),
        }
    }
    line.push(']');
    line
}

/// Writes the instructions about the answer format.
fn write_answer_format(
    text: &mut String,
    expansion: &Expansion,
    requested: &[&Column],
    format: Format,
    echo: Echo,
) {
    let mut fields: Vec<&str> = vec!["row"];
    if echo == Echo::Full {
        fields.extend(expansion.key.names().iter().map(String::as_str));
    }
    fields.extend(requested.iter().map(|c| c.name.as_str()));
    match format {
        Format::Csv => {
            let copy_instruction = match echo {
                Echo::Short => {
                    "Begin each line with the first entry of the row, copied as given, and leave out the rest of its key."
                }
                Echo::Full => "Copy the row number and the key as given (an empty field for null).",
            };
            let _ = writeln!(
                text,
                "Answer in CSV and nothing else, without a header: one line for each row, with these {} fields in this order:\n{}\n\
                 {copy_instruction} \
                 Put a field that contains a comma or a quote in double quotes. \
                 Put | between the values of a list; write none for an empty list. Write ? for what you do not know.",
                fields.len(),
                csv::format_csv_line(fields.iter().copied()),
            );
        }
        Format::Json => {
            let (example, copy_instruction) = match echo {
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
                "Answer with one JSON object and nothing else: {example}, one element for each row. \
                 {copy_instruction} A list is an array. Write null for what you do not know.",
            );
        }
    }
}

/// Builds the system message of a prompt, which is the same for all rows.
pub(super) fn build_system_message(
    expansion: &Expansion,
    columns: &[usize],
    requested: &[&Column],
    format: Format,
    echo: Echo,
    header: &str,
) -> String {
    let mut text = String::from(
        "You fill in missing cells of a database table with what you know of the world.\n\
         For every row under \"## Rows\" give the value of every column under \"## Columns\".\n\
         Where a column has a value list, choose from that list and copy the value exactly.\n",
    );
    write_answer_format(&mut text, expansion, requested, format, echo);
    if requested.iter().any(|c| c.example.is_some()) {
        text.push_str(
            "An example of a column shows the form of its values, not which one is right.\n",
        );
    }
    if requested.iter().any(|c| c.pattern.is_some()) {
        text.push_str(
            "A pattern of a column is a regular expression that its values match as a whole.\n",
        );
    }
    if requested.iter().any(|c| c.kind.format_hint().is_some()) {
        let format_hints: Vec<&str> = Type::ALL.iter().filter_map(|t| t.format_hint()).collect();
        text.push_str(&format!("Write {}.\n", format_hints.join(", ")));
    }
    if let Some(words) = expansion.media_words() {
        text.push_str(words.table);
    }
    let mut table = json!({ "table": expansion.name });
    if !expansion.about.is_empty() {
        table["about"] = expansion.about.trim().into();
    }
    table["key"] = expansion.key.names().into();
    if !expansion.context.is_empty() {
        table["context"] = expansion.context.as_slice().into();
    }
    for column in &expansion.media {
        let field = column.kind.map_or("media", |kind| kind.plural);
        match table[field].as_array_mut() {
            Some(names) => names.push(column.name.as_str().into()),
            None => table[field] = json!([column.name]),
        }
    }
    table["format"] = format.name().into();
    let _ = writeln!(text, "## Table\n{table}");

    // Write a list shared by several columns only once.
    let mut lists: Vec<&hqdl_spec::ValueList> = Vec::new();
    for list in requested.iter().filter_map(|c| c.values.as_ref()) {
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
    for column in requested {
        let mut line = json!({ "column": column.name, "type": column.kind.name() });
        if let Some(description) = column_description(column) {
            line["about"] = description.into();
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
            let position = lists.iter().position(|l| l.hash == list.hash).unwrap_or_default();
            line["values"] = format!("v{}", position + 1).into();
            if list.open {
                line["open"] = true.into();
            }
        }
        let _ = writeln!(text, "{line}");
    }
    write_examples(&mut text, expansion, columns, requested, format, echo, header);
    text
}

/// Returns the description of a column or, without a description, the question that it answers.
pub(super) fn column_description(column: &Column) -> Option<&str> {
    let description = Some(column.about.trim()).filter(|a| !a.is_empty());
    description.or_else(|| column.bindings.iter().find(|b| b.sql.is_none()).map(|b| b.ask.as_str()))
}

fn write_examples(
    text: &mut String,
    expansion: &Expansion,
    columns: &[usize],
    requested: &[&Column],
    format: Format,
    echo: Echo,
    header: &str,
) {
    let has_value = |shot: &&Shot, position: &usize| {
        shot.cells.get(*position).is_some_and(|cell| *cell != CellValue::Nothing)
    };
    // An example without values for these columns would teach the model to leave them out.
    //
    // The filter also prevents a row from being its own example. If a row has overrides, only
    // columns that its example lacks are requested, because overridden cells are never requested.
    let shots: Vec<&Shot> =
        expansion.shots.iter().filter(|s| columns.iter().any(|c| has_value(s, c))).collect();
    if shots.is_empty() {
        return;
    }
    text.push_str("## Examples\n");
    if shots.iter().any(|s| !columns.iter().all(|c| has_value(s, c))) {
        let placeholder = if format == Format::Csv { "?" } else { "null" };
        let _ = writeln!(text, "Here {placeholder} stands for what the example leaves out.");
    }
    let _ = writeln!(text, "{header}");
    let mut answers = Vec::new();
    let prefixes = build_row_prefixes(shots.iter().map(|s| s.key.as_slice()), echo);
    for (shot, prefix) in shots.iter().zip(prefixes) {
        let row = Row { key: shot.key.clone(), context: shot.context.clone() };
        let _ = writeln!(text, "{}", format_row(&prefix, &row));
        let cells: Vec<(&str, Json)> = columns
            .iter()
            .zip(requested)
            .map(|(position, column)| {
                let cell = shot.cells.get(*position).unwrap_or(&CellValue::Nothing);
                (column.name.as_str(), cell_to_json(column.kind, cell))
            })
            .collect();
        let key: Vec<Json> = shot.key.iter().map(Value::to_json).collect();
        answers.push(format_answer_row(&prefix, &key, &cells, format));
    }
    let _ = writeln!(text, "Answer:\n{}", join_answer(&answers, format));
}

/// Formats one row of an answer as a model should write it: the label, or the number and key,
/// followed by the cells.
pub(super) fn format_answer_row(
    prefix: &Json,
    key: &[Json],
    cells: &[(&str, Json)],
    format: Format,
) -> String {
    let key = prefix.is_number().then_some(key);
    match format {
        Format::Csv => {
            let to_text = |v: &Json| Value::from_json(v).to_text().unwrap_or_default().into_owned();
            let mut fields = vec![to_text(prefix)];
            fields.extend(key.into_iter().flatten().map(to_text));
            let name_count = fields.len();
            fields.extend(cells.iter().map(|(_, cell)| format_csv_cell(cell)));
            csv::format_answer_line(&fields, name_count)
        }
        Format::Json => {
            let cells: serde_json::Map<String, Json> =
                cells.iter().map(|(name, cell)| ((*name).to_owned(), cell.clone())).collect();
            match key {
                Some(key) => json!({ "row": prefix, "key": key, "cells": cells }).to_string(),
                None => json!({ "row": prefix, "cells": cells }).to_string(),
            }
        }
    }
}

/// Joins the formatted rows of an answer.
pub(super) fn join_answer(rows: &[String], format: Format) -> String {
    match format {
        Format::Csv => rows.join("\n"),
        Format::Json => format!("{{\"rows\":[{}]}}", rows.join(",")),
    }
}

/// Formats a cell as a CSV field.
pub(super) fn format_csv_cell(cell: &Json) -> String {
    match cell {
        Json::Null => "?".to_owned(),
        Json::Array(items) if items.is_empty() => "none".to_owned(),
        Json::Array(items) => items.iter().map(format_csv_cell).collect::<Vec<_>>().join("|"),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Converts a cell to JSON. Booleans are `true` and `false`, as the model should write them.
pub(super) fn cell_to_json(kind: Type, cell: &CellValue) -> Json {
    let value_to_json = |v: &Value| match (kind, v) {
        (Type::Boolean, Value::Integer(i)) => (*i != 0).into(),
        _ => v.to_json(),
    };
    match cell {
        CellValue::Nothing => Json::Null,
        CellValue::One(value) => value_to_json(value),
        CellValue::Many(values) => values.iter().map(value_to_json).collect(),
    }
}
