//! A model that computes its answers. Questions that start with `fn:` are pure functions of the
//! value. The expected rows of a query therefore come from plain `SQLite` with the same functions
//! (`register`).
//!
//! | question | answer |
//! |---|---|
//! | `fn:starts_with:P` `fn:ends_with:S` `fn:contains:S` | boolean, case-sensitive |
//! | `fn:true` | true |
//! | `fn:length` `fn:vowels` `fn:mod:N` | characters; vowels; characters modulo N |
//! | `fn:upper` `fn:initial` | text |
//! | `fn:least` | smallest paragraph |
//! | `fn:null_if:S` | the value, unknown if it contains S |
//! | `fn:say:X` `fn:const:X` | X for every value (`\n` is a line break) |
//! | `fn:pair_initial` `fn:pair_adjacent` | whether the initials of a pair are equal, or at most one letter apart |
//! | `fn:first_sorted` (QA) | smallest of the options, otherwise of the context |
//! | `fn:table_size` (QA) | number of rows in the context |
//! | a join | equal values are partners; `fn:same_initial`: values with the same initial |
//!
//! A question may start with `is it `. The question `fn` about a field (`fn: upper`) is the field's
//! function. If the question is about a document, the function is applied
//! to its text.
//!
//! A function of NULL is NULL and needs no request; the same is true for blobs, which no model can
//! read. Other questions get a made-up value of the right type that depends only on the question
//! and the value.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hqdl_prompt::{AskedColumn, AskedRow};
use hqdl_values::value::Value;
use serde_json::{Value as Json, json};

use crate::endpoint::{Endpoint, Request};
use crate::functions::compute_function;
pub use crate::functions::register_functions;

/// Starts an endpoint with computed answers.
pub fn start_endpoint() -> Endpoint {
    Endpoint::start_answering(answer_cell)
}

/// Returns the answer for one cell.
pub fn answer_cell(column: &AskedColumn, row: &AskedRow) -> Json {
    let question = column.about.as_str();
    // LLMQA sends its context as one JSON text, with a hash as key.
    let is_qa = !row.context.is_empty();
    let values = column.values.as_deref();
    let document =
        row.context.first().and_then(Json::as_str).filter(|t| !t.starts_with("{\"columns"));
    if let Some(call) = question.strip_prefix("is it ").unwrap_or(question).strip_prefix("fn:") {
        let call = call.trim_start();
        // Remove the number of requested values after the question.
        let call =
            call.rfind(" (").filter(|_| call.ends_with(" values)")).map_or(call, |n| &call[..n]);
        // Remove the instruction after the question.
        let instruction = " Answer with a part of the text, word by word.";
        let call = call.strip_suffix(instruction).unwrap_or(call);
        let combining = " (Each text answers this about a part of the texts: combine the answers.)";
        let call = call.strip_suffix(combining).unwrap_or(call);
        // Remove the descriptions of labels, the examples, and the name of the list of a row.
        let call = [" Labels: ", " Examples: ", " Answers look like ", " Choose from {"]
            .iter()
            .fold(call, |call, end| call.split(end).next().unwrap_or(call));
        let scale = " (a number from 0 to 10; 10 is the best)";
        let call = call.strip_suffix(scale).unwrap_or(call);
        let (name, parameter) = call.split_once(':').unwrap_or((call, ""));
        let result = match name {
            "first_sorted" => first_sorted(values, &context_rows(row)),
            "table_size" => context_rows(row).len().into(),
            "same_initial" => {
                let initial = |text: &str| text.chars().next();
                let own_initial = initial(&row.key_text());
                values
                    .into_iter()
                    .flatten()
                    .filter(|v| initial(v) == own_initial)
                    .cloned()
                    .collect()
            }
            _ => {
                let text = match document {
                    Some(document) => Some(document.to_owned()),
                    None => Value::from_json(&row.key[0]).canonical_text().map(Cow::into_owned),
                };
                text.map_or(Json::Null, |text| compute_function(name, &text, parameter))
            }
        };
        return to_column_type(result, column);
    }
    match values {
        Some(values) if column.many && !is_qa => {
            let canonical = |text: String| {
                Value::Text(text).canonical_text().map(Cow::into_owned).unwrap_or_default()
            };
            let key = canonical(row.key_text());
            values.iter().filter(|v| canonical((*v).clone()) == key).cloned().collect()
        }
        _ => made_up_value(column, row),
    }
}

/// Returns the rows of an LLMQA call's context.
fn context_rows(row: &AskedRow) -> Vec<Vec<Json>> {
    let text = row.context.first().and_then(Json::as_str).unwrap_or("null");
    let json: Json = serde_json::from_str(text).unwrap_or(Json::Null);
    let rows = json["rows"].as_array().cloned().unwrap_or_default();
    rows.iter().filter_map(|r| r.as_array().cloned()).collect()
}

fn first_sorted(values: Option<&[String]>, context: &[Vec<Json>]) -> Json {
    match values {
        Some(values) => values.iter().min().map_or(Json::Null, |v| v.as_str().into()),
        None => {
            let first = context.iter().flatten().filter_map(Json::as_str).min();
            first.map_or(Json::Null, Into::into)
        }
    }
}

/// Converts the answer to the column's type and to one of its allowed values.
fn to_column_type(result: Json, column: &AskedColumn) -> Json {
    let convert = |result: &Json| match (result, &column.values, column.data_type.as_str()) {
        (Json::Null, ..) => Json::Null,
        (Json::Bool(b), Some(values), _) => {
            let names = if *b { ["yes", "true", "1", "y"] } else { ["no", "false", "0", "n"] };
            let value = values.iter().find(|v| names.contains(&v.to_lowercase().as_str()));
            value.map_or(Json::Null, |v| v.as_str().into())
        }
        (Json::Bool(b), None, "integer" | "real") => i32::from(*b).into(),
        (Json::String(text), None, "boolean") => (text.to_lowercase() == "true").into(),
        (Json::String(text), None, "integer" | "real") => {
            serde_json::from_str(text).unwrap_or_else(|_| result.clone())
        }
        (Json::String(_), ..)
        | (Json::Number(_), _, "integer" | "real")
        | (_, None, "boolean" | "integer" | "real") => result.clone(),
        (other, ..) => other.to_string().into(),
    };
    let list = result.as_str().filter(|_| column.many);
    let list = list.and_then(|text| serde_json::from_str(text).ok()).map(Json::Array);
    let result = list.unwrap_or(result);
    match (&result, column.many) {
        (Json::Array(items), true) => items.iter().map(convert).collect(),
        (other, true) => json!([convert(other)]),
        (other, false) => convert(other),
    }
}

/// Returns a made-up answer of the right type.
fn made_up_value(column: &AskedColumn, row: &AskedRow) -> Json {
    let text = format!("{}|{}", column.about, Json::from(row.key.as_slice()));
    let hash = text.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let pick = |n: u64| match (&column.values, column.data_type.as_str()) {
        (Some(values), _) if values.is_empty() => Json::Null,
        (Some(values), _) => values[((hash + n) % values.len() as u64) as usize].as_str().into(),
        (None, "boolean") => (hash + n).is_multiple_of(2).into(),
        (None, "integer") => ((hash + n) % 100).into(),
        (None, "real") => json!((hash + n) as f64 % 100.0 + 0.5),
        (None, "date") => format!("20{:02}-0{}-1{}", hash % 25, 1 + n % 9, hash % 10).into(),
        (None, "url") => format!("https://example.org/{}", hash % 1000).into(),
        _ => format!("word {}", (hash + n) % 1000).into(),
    };
    let items = column.values.as_ref().map_or(3, |v| v.len().min(3)) as u64;
    if column.many { (0..items).map(pick).collect() } else { pick(0) }
}

/// Number of times that each pair of question and value was requested. A question is what is asked,
/// of values of which column, and what the answer may be.
pub fn count_pairs(requests: &[Request]) -> BTreeMap<(String, String), usize> {
    let mut pairs = BTreeMap::new();
    for request in requests {
        for column in &request.question.columns {
            for row in &request.question.rows {
                let (table, origin) = (&request.question.table, &request.question.origin);
                let asked = (&column.about, &column.data_type, &column.values);
                // A value of two columns is two entities, a text is one wherever it is.
                let origin = origin.as_ref().filter(|_| table != "documents");
                let question = format!("{table} {origin:?} {asked:?}");
                let pair = (question, Json::from(row.key.as_slice()).to_string());
                *pairs.entry(pair).or_insert(0) += 1;
            }
        }
    }
    pairs
}
