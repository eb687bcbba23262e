//! `PostgreSQL`'s array functions.

use jiff::Span;
use rusqlite::functions::Context;
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{Connection, Result};
use serde_json::Value as Json;

use super::{
    FLAGS, FunctionResult, are_equal, function_error, parse_array_elements,
    parse_timestamp_argument, register_strict_function, to_text,
};
use crate::suql::date_functions;
use hqdl_values::value::Value;

/// Maximum number of rows of a series.
const MAX_ROWS: usize = 10_000_000;

/// Registers the functions on a connection.
///
/// # Errors
/// Returns [`rusqlite::Error`] if `SQLite` rejects a registration.
pub(super) fn register(connection: &Connection) -> Result<()> {
    let make = |name: &str, count: i32, run: fn(&[ValueRef<'_>]) -> FunctionResult| {
        connection.create_scalar_function(name, count, FLAGS, move |ctx: &Context<'_>| {
            run(&(0..ctx.len()).map(|n| ctx.get_raw(n)).collect::<Vec<_>>())
        })
    };
    make("suql_append", 2, |v| {
        Ok(array_to_sql(parse_elements(v[0]).into_iter().chain([to_json(v[1])]).collect()))
    })?;
    make("suql_prepend", 2, |v| {
        Ok(array_to_sql([to_json(v[0])].into_iter().chain(parse_elements(v[1])).collect()))
    })?;
    make("suql_remove", 2, |v| {
        if v[0] == ValueRef::Null {
            return Ok(Sql::Null);
        }
        let removed = to_json(v[1]);
        Ok(array_to_sql(
            parse_array_elements(v[0])
                .into_iter()
                .filter(|e| !elements_match(e, &removed))
                .collect(),
        ))
    })?;
    make("suql_position", 2, |v| {
        let wanted = to_json(v[1]);
        let at = parse_elements(v[0]).iter().position(|e| elements_match(e, &wanted));
        Ok(at.and_then(|at| i64::try_from(at + 1).ok()).map_or(Sql::Null, Sql::Integer))
    })?;
    // A NULL delimiter splits a text into its characters.
    make("suql_split", -1, |v| {
        let [of, delimiter, null @ ..] = v else { return Ok(Sql::Null) };
        if *of == ValueRef::Null {
            return Ok(Sql::Null);
        }
        let (of, delimiter_text) = (to_text(*of), to_text(*delimiter));
        let parts: Vec<String> = match delimiter {
            _ if of.is_empty() => Vec::new(),
            ValueRef::Null => of.chars().map(String::from).collect(),
            _ if delimiter_text.is_empty() => vec![of],
            _ => of.split(&delimiter_text).map(str::to_owned).collect(),
        };
        let null = null.first().filter(|null| **null != ValueRef::Null).map(|null| to_text(*null));
        let part =
            |part: String| if null.as_ref() == Some(&part) { Json::Null } else { part.into() };
        Ok(array_to_sql(parts.into_iter().map(part).collect()))
    })?;
    register_strict_function(connection, "suql_series", -1, |v| {
        Ok(Sql::Text(generate_series(v)?.to_string()))
    })
}

fn array_to_sql(all: Vec<Json>) -> Sql {
    Sql::Text(Json::from(all).to_string())
}

fn parse_elements(value: ValueRef<'_>) -> Vec<Json> {
    if value == ValueRef::Null { Vec::new() } else { parse_array_elements(value) }
}

fn to_json(value: ValueRef<'_>) -> Json {
    Value::from_sqlite(value).map_or(Json::Null, |value| value.to_json())
}

/// Returns true if the elements are equal; NULL equals NULL.
fn elements_match(element: &Json, wanted: &Json) -> bool {
    are_equal(element, wanted) || element.is_null() && wanted.is_null()
}

/// Implements `generate_series(from, to[, step])` for numbers, and for timestamps with an interval
/// as step.
fn generate_series(v: &[ValueRef<'_>]) -> Result<Json> {
    let too_many = || function_error(format!("generate_series makes more than {MAX_ROWS} rows"));
    let mut all: Vec<Json> = Vec::new();
    match v {
        [ValueRef::Integer(from), ValueRef::Integer(to), step @ ..] => {
            let step = match step {
                [] => 1,
                [ValueRef::Integer(step), ..] => *step,
                [other, ..] => {
                    return Err(function_error(format!(
                        "\"{}\" is not a valid step",
                        to_text(*other)
                    )));
                }
            };
            if step == 0 {
                return Err(function_error("the step of generate_series is 0".to_owned()));
            }
            let mut at = Some(*from);
            while let Some(n) = at.filter(|n| if step > 0 { n <= to } else { n >= to }) {
                all.push(n.into());
                if all.len() > MAX_ROWS {
                    return Err(too_many());
                }
                at = n.checked_add(step);
            }
        }
        [from @ ValueRef::Text(_), to @ ValueRef::Text(_), step] => {
            let (from, to) = (parse_timestamp_argument(*from)?, parse_timestamp_argument(*to)?);
            let Some((mut at, to)) = from.zip(to) else {
                return Err(function_error("generate_series needs a date at both ends".to_owned()));
            };
            let step = parse_step(&to_text(*step)).ok_or_else(|| {
                function_error(format!("\"{}\" is not a valid step", to_text(*step)))
            })?;
            let out_of_range =
                |_| function_error("a series of dates exceeds the range of dates".to_owned());
            let next = at.checked_add(step).map_err(out_of_range)?;
            if next == at {
                return Err(function_error("the step of generate_series is 0".to_owned()));
            }
            let is_ascending = next > at;
            while if is_ascending { at <= to } else { at >= to } {
                all.push(date_functions::format_timestamp(at).into());
                if all.len() > MAX_ROWS {
                    return Err(too_many());
                }
                at = at.checked_add(step).map_err(out_of_range)?;
            }
        }
        _ => {
            return Err(function_error(
                "generate_series needs two numbers, or two dates and an INTERVAL, as in generate_series(1, 10)".to_owned(),
            ));
        }
    }
    Ok(all.into())
}

/// Parses the text form of an interval literal, such as `1 months 2 days`. Returns `None` for any
/// other text.
fn parse_step(text: &str) -> Option<Span> {
    let mut span = Span::new();
    let words: Vec<&str> = text.split_whitespace().collect();
    for pair in words.chunks(2) {
        let [n, unit] = pair else { return None };
        let n: i64 = n.parse().ok()?;
        span = match *unit {
            "years" => span.try_years(n),
            "months" => span.try_months(n),
            "days" => span.try_days(n),
            "hours" => span.try_hours(n),
            "minutes" => span.try_minutes(n),
            "seconds" => span.try_seconds(n),
            _ => return None,
        }
        .ok()?;
    }
    (!words.is_empty()).then_some(span)
}
