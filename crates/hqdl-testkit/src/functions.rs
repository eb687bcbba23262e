//! The functions behind questions that start with `fn:`, also available as SQL functions.

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{ToSqlOutput, Value as Sql};
use serde_json::Value as Json;

use hqdl_values::value::Value;

/// Functions of a value, with the number of their other parameters.
const FUNCTIONS: [(&str, usize); 13] = [
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
        other => panic!("no function fn:{other}"),
    }
}

/// Registers the functions in a connection: `hq_starts_with(x, 'P')`, `hq_length(x)` …
pub fn register_functions(connection: &Connection) {
    register_modified(connection, |_, _, _, truth| truth);
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
