//! `PostgreSQL`'s array functions.

use jiff::Span;
use rusqlite::functions::Context;
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{Connection, Result};
use serde_json::Value as Json;

use super::{FLAGS, GivenType, array, moment, same, strict, text, wrong};
use crate::suql::day;
use hqdl_values::value::Value;

/// Maximum number of rows of a series.
const MOST: usize = 10_000_000;

/// Registers the functions on a connection.
///
/// # Errors
/// [`rusqlite::Error`] if `SQLite` rejects a registration.
pub(super) fn register(connection: &Connection) -> Result<()> {
    let make = |name: &str, count: i32, run: fn(&[ValueRef<'_>]) -> GivenType| {
        connection.create_scalar_function(name, count, FLAGS, move |ctx: &Context<'_>| {
            run(&(0..ctx.len()).map(|n| ctx.get_raw(n)).collect::<Vec<_>>())
        })
    };
    make("suql_append", 2, |v| {
        Ok(list(elements(v[0]).into_iter().chain([element(v[1])]).collect()))
    })?;
    make("suql_prepend", 2, |v| {
        Ok(list([element(v[0])].into_iter().chain(elements(v[1])).collect()))
    })?;
    make("suql_remove", 2, |v| {
        if v[0] == ValueRef::Null {
            return Ok(Sql::Null);
        }
        let gone = element(v[1]);
        Ok(list(array(v[0]).into_iter().filter(|e| !is_element(e, &gone)).collect()))
    })?;
    make("suql_position", 2, |v| {
        let wanted = element(v[1]);
        let at = elements(v[0]).iter().position(|e| is_element(e, &wanted));
        Ok(at.and_then(|at| i64::try_from(at + 1).ok()).map_or(Sql::Null, Sql::Integer))
    })?;
    // A NULL delimiter splits a text into its characters.
    make("suql_split", -1, |v| {
        let [of, delimiter, null @ ..] = v else { return Ok(Sql::Null) };
        if *of == ValueRef::Null {
            return Ok(Sql::Null);
        }
        let (of, delimited) = (text(*of), text(*delimiter));
        let parts: Vec<String> = match delimiter {
            _ if of.is_empty() => Vec::new(),
            ValueRef::Null => of.chars().map(String::from).collect(),
            _ if delimited.is_empty() => vec![of],
            _ => of.split(&delimited).map(str::to_owned).collect(),
        };
        let null = null.first().filter(|null| **null != ValueRef::Null).map(|null| text(*null));
        let part =
            |part: String| if null.as_ref() == Some(&part) { Json::Null } else { part.into() };
        Ok(list(parts.into_iter().map(part).collect()))
    })?;
    strict(connection, "suql_series", -1, |v| Ok(Sql::Text(series(v)?.to_string())))
}

fn list(all: Vec<Json>) -> Sql {
    Sql::Text(Json::from(all).to_string())
}

fn elements(value: ValueRef<'_>) -> Vec<Json> {
    if value == ValueRef::Null { Vec::new() } else { array(value) }
}

fn element(value: ValueRef<'_>) -> Json {
    Value::read(value).map_or(Json::Null, |value| value.to_json())
}

/// Returns true if the elements are equal; NULL equals NULL.
fn is_element(element: &Json, wanted: &Json) -> bool {
    same(element, wanted) || element.is_null() && wanted.is_null()
}

/// Implements `generate_series(from, to[, step])` for numbers, and for timestamps with an interval
/// as step.
fn series(v: &[ValueRef<'_>]) -> Result<Json> {
    let too_many = || wrong(format!("generate_series makes more than {MOST} rows"));
    let mut all: Vec<Json> = Vec::new();
    match v {
        [ValueRef::Integer(from), ValueRef::Integer(to), step @ ..] => {
            let step = match step {
                [] => 1,
                [ValueRef::Integer(step), ..] => *step,
                [other, ..] => {
                    return Err(wrong(format!("\"{}\" is not a valid step", text(*other))));
                }
            };
            if step == 0 {
                return Err(wrong("the step of generate_series is 0".to_owned()));
            }
            let mut at = Some(*from);
            while let Some(n) = at.filter(|n| if step > 0 { n <= to } else { n >= to }) {
                all.push(n.into());
                if all.len() > MOST {
                    return Err(too_many());
                }
                at = n.checked_add(step);
            }
        }
        [from @ ValueRef::Text(_), to @ ValueRef::Text(_), step] => {
            let (from, to) = (moment(*from)?, moment(*to)?);
            let Some((mut at, to)) = from.zip(to) else {
                return Err(wrong("generate_series needs a date at both ends".to_owned()));
            };
            let step = span(&text(*step))
                .ok_or_else(|| wrong(format!("\"{}\" is not a valid step", text(*step))))?;
            let far = |_| wrong("a series of dates exceeds the range of dates".to_owned());
            let later = at.checked_add(step).map_err(far)?;
            if later == at {
                return Err(wrong("the step of generate_series is 0".to_owned()));
            }
            let ahead = later > at;
            while if ahead { at <= to } else { at >= to } {
                all.push(day::said(at).into());
                if all.len() > MOST {
                    return Err(too_many());
                }
                at = at.checked_add(step).map_err(far)?;
            }
        }
        _ => {
            return Err(wrong(
                "generate_series needs two numbers, or two dates and an INTERVAL".to_owned(),
            ));
        }
    }
    Ok(all.into())
}

/// Parses the text form of an interval literal, such as `1 months 2 days`.
fn span(text: &str) -> Option<Span> {
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
