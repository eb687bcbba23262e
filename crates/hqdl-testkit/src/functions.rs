//! The functions behind questions that start with `fn:`, also available as SQL functions.

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{ToSqlOutput, Value as Sql};
use serde_json::Value as Json;

use crate::embedder::letter_similarity;
use hqdl_values::value::Value;

/// Functions of a value, with the number of their other parameters.
const FUNCTIONS: [(&str, usize); 15] = [
    ("starts_with", 1),
    ("ends_with", 1),
    ("contains", 1),
    ("true", 0),
    ("length", 0),
    ("vowels", 0),
    ("mod", 1),
    ("upper", 0),
    ("initial", 0),
    ("least", 0),
    ("null_if", 1),
    ("say", 1),
    ("const", 1),
    ("pair_initial", 0),
    ("pair_adjacent", 0),
];

/// Computes a function of a value's canonical text.
pub fn compute_function(name: &str, text: &str, parameter: &str) -> Json {
    let length = text.chars().count();
    match name {
        "starts_with" => text.starts_with(parameter).into(),
        "ends_with" => text.ends_with(parameter).into(),
        "contains" => text.contains(parameter).into(),
        "true" => true.into(),
        "length" => length.into(),
        "vowels" => text.chars().filter(|c| "aeiouAEIOU".contains(*c)).count().into(),
        "mod" => (length % parameter.parse::<usize>().unwrap()).into(),
        "upper" => text.to_uppercase().into(),
        "initial" => text.chars().next().map_or(Json::Null, |c| c.to_string().into()),
        "least" => text.split("\n\n").min().into(),
        "null_if" if text.contains(parameter) => Json::Null,
        "null_if" => text.into(),
        "say" | "const" => parameter.replace("\\n", "\n").into(),
        "pair_initial" => (initial_distance(text) == 0).into(),
        "pair_adjacent" => (initial_distance(text) <= 1).into(),
        other => panic!("no function fn:{other}"),
    }
}

/// Returns the distance in the alphabet of the initials of a pair, a JSON list of two texts.
fn initial_distance(pair: &str) -> u32 {
    let pair: Vec<String> = serde_json::from_str(pair).unwrap_or_default();
    let initial = |n: usize| {
        let initial = pair.get(n).and_then(|text| text.chars().next()).unwrap_or(' ');
        u32::from(initial.to_ascii_lowercase())
    };
    initial(0).abs_diff(initial(1))
}

/// Registers the functions in a connection: `hq_starts_with(x, 'P')`, `hq_length(x)` …
pub fn register_functions(connection: &Connection) {
    register_modified(connection, |_, _, _, truth| truth);
    register_similarity(connection);
}

/// Registers `hq_similarity(a, b)`, rounded: embeddings are stored with the precision of 32-bit
/// floats.
fn register_similarity(connection: &Connection) {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection
        .create_scalar_function("hq_similarity", 2, flags, |call| {
            let text = |n| {
                let value = Value::from_sqlite(call.get_raw(n)).unwrap_or(Value::Null);
                let text = value.canonical_text().filter(|text| !text.is_empty());
                text.map(std::borrow::Cow::into_owned)
            };
            let similarity = text(0).zip(text(1)).map(|(a, b)| letter_similarity(&a, &b));
            Ok(similarity.map(|s| (s * 1e5).round() / 1e5))
        })
        .unwrap();
}

/// Registers the functions with modified results. `modify` receives the name, the parameter, the
/// value and the true result, and returns the result to use.
pub fn register_modified(
    connection: &Connection,
    modify: impl Fn(&str, &str, &str, Json) -> Json + Clone + Send + Sync + 'static,
) {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    for (name, parameters) in FUNCTIONS {
        let arguments = i32::try_from(1 + parameters).unwrap();
        let modify = modify.clone();
        connection
            .create_scalar_function(format!("hq_{name}").as_str(), arguments, flags, move |call| {
                let value = Value::from_sqlite(call.get_raw(0)).unwrap_or(Value::Null);
                let parameter = match parameters {
                    0 => String::new(),
                    _ => Value::from_sqlite(call.get_raw(1)).unwrap_or(Value::Null).to_string(),
                };
                let result = value.canonical_text().map(|text| {
                    modify(name, &parameter, &text, compute_function(name, &text, &parameter))
                });
                Ok(ToSqlOutput::Owned(match result {
                    Some(Json::Bool(b)) => Sql::Integer(b.into()),
                    Some(Json::Number(n)) => Sql::Integer(n.as_i64().unwrap()),
                    Some(Json::String(text)) => Sql::Text(text),
                    _ => Sql::Null,
                }))
            })
            .unwrap();
    }
}
