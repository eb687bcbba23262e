//! SQL functions named `suql_…` that implement `PostgreSQL`'s operators and functions that `SQLite`
//! lacks. Arrays are JSON arrays. A value that is not an array is treated as an array with one
//! element.

mod lists;
mod numbers;
mod texts;
mod to_char;

use std::cmp::Ordering;

use jiff::Span;
use jiff::civil::{Date, DateTime};
use regex::{Regex, RegexBuilder};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value as Sql, ValueRef};
use rusqlite::{Connection, Error};
use serde_json::Value as Json;

use super::date_functions::{self, TimeSpan};
use hqdl_values::format::describe_regex_error;
use hqdl_values::value::Value;

type FunctionResult = rusqlite::Result<Sql>;
/// An SQL function that is called only if no argument is NULL.
type StrictFunction = fn(&[ValueRef<'_>]) -> FunctionResult;
/// Converts a pattern to a regular expression; returns `None` for an invalid pattern.
type PatternSyntax = fn(&str) -> Option<String>;

const FLAGS: FunctionFlags = FunctionFlags::SQLITE_UTF8
    .union(FunctionFlags::SQLITE_DETERMINISTIC)
    .union(FunctionFlags::SQLITE_INNOCUOUS);

/// Registers all functions on a connection.
///
/// # Errors
/// Returns [`rusqlite::Error`] if `SQLite` rejects a registration.
pub fn register(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FLAGS;
    let make = |name: &str, count: i32, run: StrictFunction| {
        register_strict_function(connection, name, count, run)
    };
    register_array_functions(connection)?;
    // Encodes a row so that different rows have different texts; NULL is a distinct value.
    connection.create_scalar_function("suql_row", -1, flags, |ctx: &Context<'_>| {
        let value = |n: usize| match ctx.get_raw(n) {
            ValueRef::Blob(bytes) => serde_json::json!({ "blob": bytes }),
            other => Value::from_sqlite(other).map_or(Json::Null, |value| match value {
                Value::Real(real) if real.fract() == 0.0 && real.abs() < 9e15 => {
                    Json::from(real as i64)
                }
                value => value.to_json(),
            }),
        };
        Ok((0..ctx.len()).map(value).collect::<Json>().to_string())
    })?;
    make("suql_replace", -1, regexp_replace)?;
    make("suql_split_part", 3, |v| split_part(&to_text(v[0]), &to_text(v[1]), v[2]))?;
    register_text_functions(connection)?;
    make("suql_initcap", 1, |v| Ok(Sql::Text(initcap(&to_text(v[0])))))?;
    make("suql_groups", 2, |v| {
        let regex = compile_pattern(&to_text(v[1]), find_pattern_syntax("match"), false)?;
        let of = to_text(v[0]);
        let Some(found) = regex.captures(&of) else { return Ok(Sql::Null) };
        // The capture groups, or the whole match if there are none.
        let first = usize::from(found.len() > 1);
        let groups = (first..found.len()).map(|n| found.get(n).map(|m| m.as_str().to_owned()));
        Ok(Sql::Text(groups.collect::<Json>().to_string()))
    })?;
    // Like `PostgreSQL`, ignore NULLs.
    let extreme = |name: &str, wanted: Ordering| {
        connection.create_scalar_function(name, -1, flags, move |ctx: &Context<'_>| {
            let mut best: Option<Value> = None;
            for value in (0..ctx.len()).filter_map(|n| Value::from_sqlite(ctx.get_raw(n)).ok()) {
                let better = best.as_ref().is_none_or(|b| compare_values(&value, b) == wanted);
                if value != Value::Null && better {
                    best = Some(value);
                }
            }
            Ok(ToSqlOutput::Owned(best.map_or(Sql::Null, |v| json_to_sql(&v.to_json()))))
        })
    };
    extreme("suql_greatest", Ordering::Greater)?;
    extreme("suql_least", Ordering::Less)?;
    make("suql_to_char", 2, |v| {
        let formatted = match v[0] {
            ValueRef::Integer(i) => to_char::format_number(i as f64, &to_text(v[1])),
            ValueRef::Real(r) => to_char::format_number(r, &to_text(v[1])),
            other => to_char::format_date(&to_text(other), &to_text(v[1])),
        };
        Ok(formatted.map_err(function_error)?.map_or(Sql::Null, Sql::Text))
    })?;
    register_conversion_functions(connection)?;
    register_date_functions(connection)?;
    numbers::register(connection)?;
    texts::register(connection)?;
    lists::register(connection)?;
    for operator in ["like", "ilike", "similar", "match", "imatch"] {
        let (name, syntax, ignore_case) =
            (format!("suql_{operator}"), find_pattern_syntax(operator), operator.starts_with('i'));
        connection.create_scalar_function(name.as_str(), 2, flags, move |ctx: &Context<'_>| {
            let (of, pattern) = (ctx.get_raw(0), ctx.get_raw(1));
            if of == ValueRef::Null || pattern == ValueRef::Null {
                return Ok(ToSqlOutput::Owned(Sql::Null));
            }
            // Cache the compiled regular expression if the pattern is constant.
            let regex = ctx.get_or_create_aux(1, |p| -> rusqlite::Result<Regex> {
                compile_pattern(&to_text(p), syntax, ignore_case)
            })?;
            Ok(ToSqlOutput::Owned(boolean_to_sql(regex.is_match(&to_text(of)))))
        })?;
    }
    Ok(())
}

/// Registers functions that parse, compare and concatenate arrays and JSON documents.
fn register_array_functions(connection: &Connection) -> rusqlite::Result<()> {
    let make = |name: &str, count: i32, run: StrictFunction| {
        register_strict_function(connection, name, count, run)
    };
    make("suql_array", 1, |v| Ok(Sql::Text(Json::from(parse_array_elements(v[0])).to_string())))?;
    for (name, any) in [("suql_any", true), ("suql_all", false)] {
        connection.create_scalar_function(name, 3, FLAGS, move |ctx: &Context<'_>| {
            evaluate_quantified_comparison(&[ctx.get_raw(0), ctx.get_raw(1), ctx.get_raw(2)], any)
        })?;
    }
    make("suql_json_text", 1, |v| {
        let text = to_text(v[0]);
        Ok(match serde_json::from_str(&text) {
            Ok(Json::Null) => Sql::Null,
            Ok(Json::String(string)) => Sql::Text(string),
            _ => Sql::Text(text),
        })
    })?;
    make("suql_json_typeof", 1, |v| {
        let text = to_text(v[0]);
        let json: Json = serde_json::from_str(&text)
            .map_err(|_| function_error(format!("`{text}` is not a JSON document")))?;
        let type_name = match json {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        };
        Ok(Sql::Text(type_name.to_owned()))
    })?;
    make("suql_array_to_string", -1, |v| {
        let element_text = |element: Json| match element {
            Json::Null => v.get(2).map(|null| to_text(*null)),
            Json::String(string) => Some(string),
            Json::Bool(truth) => Some(if truth { "t" } else { "f" }.to_owned()),
            other => Some(other.to_string()),
        };
        let all: Vec<String> =
            parse_array_elements(v[0]).into_iter().filter_map(element_text).collect();
        Ok(Sql::Text(all.join(&to_text(v[1]))))
    })?;
    make("suql_contains", 2, |v| {
        if let (Some(all), Some(some)) = (parse_object(v[0]), parse_object(v[1])) {
            return Ok(boolean_to_sql(document_contains(&all, &some)));
        }
        let (all, some) = (parse_array_elements(v[0]), parse_array_elements(v[1]));
        Ok(boolean_to_sql(some.iter().all(|s| all.iter().any(|a| are_equal(a, s)))))
    })?;
    make("suql_overlaps", 2, |v| {
        let (all, some) = (parse_array_elements(v[0]), parse_array_elements(v[1]));
        Ok(boolean_to_sql(some.iter().any(|s| all.iter().any(|a| are_equal(a, s)))))
    })?;
    make("suql_same", 2, |v| {
        let (a, b) = (parse_array_elements(v[0]), parse_array_elements(v[1]));
        // If whole arrays are compared, NULL equals NULL.
        let same = |a: &Json, b: &Json| a.is_null() && b.is_null() || are_equal(a, b);
        Ok(boolean_to_sql(a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same(a, b))))
    })?;
    // A NULL operand counts as an empty array, unless both operands are NULL.
    connection.create_scalar_function("suql_joined", 2, FLAGS, |ctx: &Context<'_>| {
        let values = [ctx.get_raw(0), ctx.get_raw(1)];
        if values == [ValueRef::Null; 2] {
            return Ok(Sql::Null);
        }
        let some = values.into_iter().filter(|value| *value != ValueRef::Null);
        Ok(Sql::Text(some.flat_map(parse_array_elements).collect::<Json>().to_string()))
    })?;
    make("suql_element", 2, |v| {
        let ValueRef::Integer(n) = v[1] else { return Ok(Sql::Null) };
        let n = n.checked_sub(1).and_then(|n| usize::try_from(n).ok());
        Ok(n.and_then(|n| parse_array_elements(v[0]).get(n).map(json_to_sql)).unwrap_or(Sql::Null))
    })?;
    Ok(())
}

/// Registers a function that returns NULL if an argument is NULL, as operators do.
fn register_strict_function(
    connection: &Connection,
    name: &str,
    count: i32,
    run: StrictFunction,
) -> rusqlite::Result<()> {
    connection.create_scalar_function(name, count, FLAGS, move |ctx: &Context<'_>| {
        let values: Vec<ValueRef<'_>> = (0..ctx.len()).map(|n| ctx.get_raw(n)).collect();
        let null = values.contains(&ValueRef::Null);
        let result = if null { Ok(Sql::Null) } else { run(&values) };
        result.map(ToSqlOutput::Owned)
    })
}

/// Registers text functions whose behavior in `PostgreSQL` differs from `SQLite`.
fn register_text_functions(connection: &Connection) -> rusqlite::Result<()> {
    register_strict_function(connection, "suql_lower", 1, |v| {
        Ok(Sql::Text(to_text(v[0]).to_lowercase()))
    })?;
    register_strict_function(connection, "suql_upper", 1, |v| {
        Ok(Sql::Text(to_text(v[0]).to_uppercase()))
    })?;
    // A negative number means all but the last `n` characters.
    register_strict_function(connection, "suql_left", 2, |v| {
        let (of, n) = (to_text(v[0]), parse_integer_argument(v[1])?);
        let length = count_chars(&of);
        let kept = if n < 0 { length.saturating_add(n) } else { n }.clamp(0, length);
        Ok(Sql::Text(of.chars().take(kept as usize).collect()))
    })?;
    register_strict_function(connection, "suql_right", 2, |v| {
        let (of, n) = (to_text(v[0]), parse_integer_argument(v[1])?);
        let length = count_chars(&of);
        let kept = if n < 0 { length.saturating_add(n) } else { n }.clamp(0, length);
        Ok(Sql::Text(of.chars().skip((length - kept) as usize).collect()))
    })?;
    // Positions before the first character are allowed and count towards the length.
    register_strict_function(connection, "suql_substr", -1, |v| {
        let [of, from, rest @ ..] = v else { return Ok(Sql::Null) };
        let (of, from) = (to_text(*of), parse_integer_argument(*from)?);
        let length = rest.first().map(|n| parse_integer_argument(*n)).transpose()?;
        if length.is_some_and(|length| length < 0) {
            return Err(function_error("the length of a part of a text is negative".to_owned()));
        }
        let end = length.map_or(i64::MAX, |length| from.saturating_add(length)).max(1);
        let start = from.max(1);
        let part = of.chars().skip((start - 1) as usize);
        Ok(Sql::Text(part.take((end - start).max(0) as usize).collect()))
    })?;
    register_strict_function(connection, "suql_time", 1, |v| {
        let text = to_text(v[0]);
        let time =
            parse_time(&text).ok_or_else(|| function_error(format!("\"{text}\" is not a time")))?;
        Ok(Sql::Text(time))
    })
}

/// Registers conversions to numbers and booleans.
fn register_conversion_functions(connection: &Connection) -> rusqlite::Result<()> {
    register_strict_function(connection, "suql_truth", 1, |v| match v[0] {
        ValueRef::Integer(i) => Ok(boolean_to_sql(i != 0)),
        ValueRef::Real(r) => Ok(boolean_to_sql(r != 0.0)),
        other => {
            let text = to_text(other);
            parse_boolean(&text)
                .map(boolean_to_sql)
                .ok_or_else(|| function_error(format!("\"{text}\" is neither true nor false")))
        }
    })?;
    register_strict_function(connection, "suql_said", 1, |v| {
        Ok(match v[0] {
            ValueRef::Integer(i) => Sql::Text((i != 0).to_string()),
            other => {
                Sql::Text(parse_boolean(&to_text(other)).map_or(to_text(other), |t| t.to_string()))
            }
        })
    })?;
    register_strict_function(connection, "suql_number", 1, |v| match v[0] {
        ValueRef::Integer(i) => Ok(Sql::Integer(i)),
        ValueRef::Real(r) => Ok(Sql::Real(r)),
        other => {
            let text = to_text(other);
            parse_number(&text).ok_or_else(|| function_error(format!("\"{text}\" is not a number")))
        }
    })?;
    register_strict_function(connection, "suql_integer", 2, |v| {
        let number = match v[0] {
            ValueRef::Integer(i) => Some(Sql::Integer(i)),
            ValueRef::Real(r) => Some(Sql::Real(r)),
            other => parse_number(&to_text(other)),
        };
        let display =
            || Value::from_sqlite(v[0]).map_or_else(|_| to_text(v[0]), |value| value.to_string());
        let number = number
            .ok_or_else(|| function_error(format!("\"{}\" is not a number", to_text(v[0]))))?;
        let ValueRef::Integer(bits) = v[1] else { return Ok(Sql::Null) };
        let bits = u32::try_from(bits).unwrap_or(i64::BITS);
        to_integer(&number, bits).map(Sql::Integer).ok_or_else(|| {
            function_error(format!(
                "{} is out of the range of an integer of {bits} bits",
                display()
            ))
        })
    })
}

/// Registers conversions to dates, and arithmetic with them.
fn register_date_functions(connection: &Connection) -> rusqlite::Result<()> {
    register_strict_function(connection, "suql_date", 1, |v| {
        Ok(parse_timestamp_argument(v[0])?.map_or(Sql::Null, |at| Sql::Text(at.date().to_string())))
    })?;
    register_strict_function(connection, "suql_timestamp", 1, |v| {
        Ok(parse_timestamp_argument(v[0])?
            .map_or(Sql::Null, |at| Sql::Text(date_functions::format_timestamp(at))))
    })?;
    register_strict_function(connection, "suql_by_format", 2, |v| {
        let (date_text, format) = (to_text(v[0]), to_text(v[1]));
        let at = date_functions::parse_date_with_format(&date_text, &format).ok_or_else(|| {
            function_error(format!("\"{date_text}\" is not a date of the form \"{format}\""))
        })?;
        Ok(Sql::Text(date_functions::format_timestamp(at)))
    })?;
    register_strict_function(connection, "suql_trunc", 2, |v| {
        let Some(at) = parse_timestamp_argument(v[1])? else { return Ok(Sql::Null) };
        Ok(date_functions::truncate_timestamp(&to_text(v[0]), at)
            .map_or(Sql::Null, |at| Sql::Text(date_functions::format_timestamp(at))))
    })?;
    register_strict_function(connection, "suql_between", 2, |v| {
        compute_time_span(v, TimeSpan::between)
    })?;
    register_strict_function(connection, "suql_age", 2, |v| compute_time_span(v, TimeSpan::age))?;
    register_strict_function(connection, "suql_span_part", 2, |v| {
        let span = TimeSpan::parse(&to_text(v[1]));
        let part = span.and_then(|span| span.extract_part(&to_text(v[0])));
        Ok(match part {
            Some(part) if part.fract() == 0.0 => Sql::Integer(part as i64),
            Some(part) => Sql::Real(part),
            None => Sql::Null,
        })
    })?;
    register_strict_function(connection, "suql_days_after", 2, |v| add_days(v[0], v[1], false))?;
    register_strict_function(connection, "suql_days_before", 2, |v| {
        match parse_date_argument(v[1]) {
            Some(other) => {
                let of = parse_date_argument(v[0]).ok_or_else(|| {
                    function_error(format!("\"{}\" is not a date", to_text(v[0])))
                })?;
                Ok(Sql::Integer(i64::from((of - other).get_days())))
            }
            None => add_days(v[0], v[1], true),
        }
    })
}

/// Computes the interval between two timestamp arguments.
fn compute_time_span(
    v: &[ValueRef<'_>],
    measure: fn(DateTime, DateTime) -> TimeSpan,
) -> FunctionResult {
    let both = parse_timestamp_argument(v[0])?.zip(parse_timestamp_argument(v[1])?);
    Ok(both.map_or(Sql::Null, |(from, to)| Sql::Text(measure(from, to).to_string())))
}

/// Parses a boolean like `PostgreSQL`: any unambiguous prefix of true, false, yes, no, on or off,
/// or 1 or 0. Returns `None` for any other text.
pub(super) fn parse_boolean(text: &str) -> Option<bool> {
    let text = text.trim().to_lowercase();
    let begins = |word: &str| !text.is_empty() && word.starts_with(&text);
    match text.as_str() {
        "o" => None,
        "1" => Some(true),
        "0" => Some(false),
        _ if ["true", "yes", "on"].into_iter().any(begins) => Some(true),
        _ if ["false", "no", "off"].into_iter().any(begins) => Some(false),
        _ => None,
    }
}

pub(super) fn parse_number(text: &str) -> Option<Sql> {
    let text = text.trim();
    if let Ok(whole) = text.parse::<i64>() {
        return Some(Sql::Integer(whole));
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    text.parse::<f64>().ok().filter(|real| is_number && real.is_finite()).map(Sql::Real)
}

/// Rounds a number to an integer of `bits` bits; `None` if it is out of range.
pub(super) fn to_integer(number: &Sql, bits: u32) -> Option<i64> {
    let whole = match number {
        Sql::Integer(whole) => *whole,
        // 2^63 and larger numbers do not fit into `i64`; the cast of a smaller number is exact.
        Sql::Real(real) if real.round().abs() < 9_223_372_036_854_775_808.0 => real.round() as i64,
        _ => return None,
    };
    let max = i64::MAX >> (i64::BITS - bits.clamp(1, i64::BITS));
    (-max - 1..=max).contains(&whole).then_some(whole)
}

/// Parses a time of day, with or without a date before it.
pub(super) fn parse_time(text: &str) -> Option<String> {
    let text = text.trim();
    let (day, time) = text.rsplit_once([' ', 'T']).unzip();
    if day.is_some_and(|day| day.trim().parse::<Date>().is_err()) {
        return None;
    }
    let time = time.unwrap_or(text).trim_end_matches('Z');
    // PostgreSQL allows an hour with one digit.
    let padded = if time.find(':') == Some(1) { format!("0{time}") } else { time.to_owned() };
    let time: jiff::civil::Time = padded.parse().ok().filter(|_| time.contains(':'))?;
    Some(time.strftime("%H:%M:%S").to_string())
}

/// Returns the number of characters in a text.
fn count_chars(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

/// Converts an argument to an integer.
fn parse_integer_argument(value: ValueRef<'_>) -> rusqlite::Result<i64> {
    match value {
        ValueRef::Integer(n) => Ok(n),
        ValueRef::Real(r) if r.fract() == 0.0 && r.abs() < 9e15 => Ok(r as i64),
        other => Err(function_error(format!("\"{}\" is not a whole number", to_text(other)))),
    }
}

/// Parses a timestamp argument. Returns `None` for an invalid text, but fails for a number.
fn parse_timestamp_argument(value: ValueRef<'_>) -> rusqlite::Result<Option<DateTime>> {
    match value {
        ValueRef::Text(_) => Ok(date_functions::parse_timestamp(&to_text(value))),
        other => Err(function_error(format!("\"{}\" is not a date", to_text(other)))),
    }
}

fn parse_date_argument(value: ValueRef<'_>) -> Option<Date> {
    match value {
        ValueRef::Text(_) => date_functions::parse_timestamp(&to_text(value)).map(DateTime::date),
        _ => None,
    }
}

/// Adds days to a date, or subtracts them if `backwards` is true.
fn add_days(of: ValueRef<'_>, days: ValueRef<'_>, backwards: bool) -> FunctionResult {
    let invalid = |value: ValueRef<'_>, what: &str| {
        function_error(format!("\"{}\" is not a {what}", to_text(value)))
    };
    let days = match days {
        ValueRef::Integer(days) => days,
        ValueRef::Text(_) => match parse_number(&to_text(days)) {
            Some(Sql::Integer(days)) => days,
            _ => return Err(invalid(days, "number of days")),
        },
        _ => return Err(invalid(days, "number of days")),
    };
    let date = parse_date_argument(of).ok_or_else(|| invalid(of, "date"))?;
    let span = Span::new().try_days(if backwards { -days } else { days });
    let moved_date = span.and_then(|span| date.checked_add(span));
    moved_date
        .map(|date| Sql::Text(date.to_string()))
        .map_err(|_| invalid(of, "date that far away"))
}

/// Implements `split_part(text, delimiter, n)`: the `n`th field, counted from the end if `n` is
/// negative, or an empty text if there are fewer fields.
fn split_part(of: &str, delimiter: &str, n: ValueRef<'_>) -> FunctionResult {
    let ValueRef::Integer(n) = n else {
        return Err(function_error("split_part counts fields by whole numbers".to_owned()));
    };
    let fields: Vec<&str> =
        if delimiter.is_empty() { vec![of] } else { of.split(delimiter).collect() };
    let at = match usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX) {
        0 => return Err(function_error("split_part counts fields from 1".to_owned())),
        n_th if n > 0 => Some(n_th - 1),
        n_th => fields.len().checked_sub(n_th),
    };
    let field = at.and_then(|at| fields.get(at)).copied().unwrap_or_default();
    Ok(Sql::Text(field.to_owned()))
}

/// Capitalizes each word and lower-cases the rest.
fn initcap(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            output.extend(c.to_lowercase());
        } else {
            output.extend(c.to_uppercase());
        }
        in_word = c.is_alphanumeric();
    }
    output
}

/// Implements `regexp_replace`. `regexp_replace(text, pattern, replacement[, flags])` replaces the
/// first match, or all matches with the flag `g`. `regexp_replace(text, pattern, replacement,
/// start[, n[, flags]])` begins at the character `start` and replaces the `n`th match, or all if
/// `n` is 0. In the replacement, `\\1` is the first capture group and `\\&` the whole match.
fn regexp_replace(values: &[ValueRef<'_>]) -> FunctionResult {
    let [of, pattern, replacement_value, rest @ ..] = values else {
        return Err(function_error("regexp_replace takes three to six values".to_owned()));
    };
    let (start, nth, flags) = match rest {
        [] => (1, None, String::new()),
        [ValueRef::Integer(start)] => (*start, None, String::new()),
        [flags] => (1, None, to_text(*flags)),
        [ValueRef::Integer(start), ValueRef::Integer(n)] => (*start, Some(*n), String::new()),
        [ValueRef::Integer(start), ValueRef::Integer(n), flags] => {
            (*start, Some(*n), to_text(*flags))
        }
        _ => {
            return Err(function_error(
                "regexp_replace counts characters and matches by whole numbers".to_owned(),
            ));
        }
    };
    let to_count = |n: Option<i64>, noun: &str| {
        let n = n.and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| function_error(format!("regexp_replace counts {noun}")))
    };
    let skipped = to_count(start.checked_sub(1), "characters from 1")?;
    let nth = match nth {
        None => usize::from(!flags.contains('g')),
        nth => to_count(nth, "matches from 1; 0 is all of them")?,
    };
    if let Some(flag) = flags.chars().find(|c| !"gi".contains(*c)) {
        return Err(function_error(format!(
            "regexp_replace supports the flags g and i, not `{flag}`"
        )));
    }
    let regex =
        compile_pattern(&to_text(*pattern), find_pattern_syntax("match"), flags.contains('i'))?;
    let mut replacement = String::new();
    let replacement_text = to_text(*replacement_value);
    let mut chars = replacement_text.chars();
    while let Some(c) = chars.next() {
        match c {
            '$' => replacement.push_str("$$"),
            '\\' => match chars.next() {
                Some('&') => replacement.push_str("${0}"),
                Some(digit) if digit.is_ascii_digit() => {
                    replacement.push_str(&format!("${{{digit}}}"));
                }
                Some('$') => replacement.push_str("$$"),
                Some(other) => replacement.push(other),
                None => replacement.push('\\'),
            },
            other => replacement.push(other),
        }
    }
    let of = to_text(*of);
    let from = of.char_indices().nth(skipped).map_or(of.len(), |(at, _)| at);
    let (mut output, mut at) = (String::with_capacity(of.len()), 0);
    let (mut next, mut last, mut n) = (Some(from), None, 0);
    while let Some(captures) = next.and_then(|next| regex.captures_at(&of, next)) {
        let Some(whole) = captures.get(0) else { break };
        let more = of[whole.end()..].chars().next().map(|c| whole.end() + c.len_utf8());
        next = if whole.is_empty() { more } else { Some(whole.end()) };
        // An empty match directly after another match does not count.
        if whole.is_empty() && last == Some(whole.end()) {
            continue;
        }
        last = Some(whole.end());
        n += 1;
        if nth == 0 || n == nth {
            output.push_str(&of[at..whole.start()]);
            captures.expand(&replacement, &mut output);
            at = whole.end();
        }
        if n == nth {
            break;
        }
    }
    output.push_str(&of[at..]);
    Ok(Sql::Text(output))
}

/// Returns the pattern syntax of an operator. `syntax` is the part of the SQL function's name that
/// identifies the operator.
pub(super) fn find_pattern_syntax(syntax: &str) -> PatternSyntax {
    match syntax {
        "like" | "ilike" => like_to_regex,
        "similar" => similar_to_regex,
        _ => |pattern| Some(postgres_to_regex(pattern)),
    }
}

/// Converts a `PostgreSQL` regular expression: its character classes include all Unicode letters,
/// and it has its own escapes for word boundaries.
fn postgres_to_regex(pattern: &str) -> String {
    const CLASSES: [(&str, &str); 4] = [
        ("[:alnum:]", r"\p{Alphabetic}\p{N}"),
        ("[:alpha:]", r"\p{Alphabetic}"),
        ("[:lower:]", r"\p{Lowercase}"),
        ("[:upper:]", r"\p{Uppercase}"),
    ];
    const ESCAPES: [(&str, &str); 5] = [
        (r"\y", r"\b"),
        (r"\Y", r"\B"),
        (r"\m", r"\b{start}"),
        (r"\M", r"\b{end}"),
        (r"\Z", r"\z"),
    ];
    let (mut output, mut rest) = (String::with_capacity(pattern.len()), pattern);
    while let Some(c) = rest.chars().next() {
        let known = CLASSES.iter().chain(&ESCAPES).find(|(source, _)| rest.starts_with(source));
        // An escaped character does not begin a class.
        let escaped = rest[c.len_utf8()..].chars().next().filter(|_| c == '\\');
        let (consumed, replacement) = match known {
            Some((source, replacement)) => (source.len(), *replacement),
            None => {
                let consumed = c.len_utf8() + escaped.map_or(0, char::len_utf8);
                (consumed, &rest[..consumed])
            }
        };
        output.push_str(replacement);
        rest = &rest[consumed..];
    }
    output
}

pub(super) fn compile_pattern(
    pattern: &str,
    syntax: PatternSyntax,
    ignore_case: bool,
) -> rusqlite::Result<Regex> {
    let regex =
        syntax(pattern).ok_or_else(|| function_error(format!("`{pattern}` is not a pattern")))?;
    let built =
        RegexBuilder::new(&regex).case_insensitive(ignore_case).dot_matches_new_line(true).build();
    built.map_err(|error| {
        let reason = describe_regex_error(&error);
        function_error(format!("hqdl cannot parse the regular expression `{pattern}`: {reason}"))
    })
}

/// Converts a LIKE pattern to a regular expression. The wildcards are `%` and `_`, and `\` is the
/// escape character.
fn like_to_regex(pattern: &str) -> Option<String> {
    wildcards_to_regex(pattern, |c| regex::escape(&c.to_string()))
}

/// Converts a SIMILAR TO pattern to a regular expression. The syntax is that of LIKE with `|`, `*`,
/// `+`, `?`, `{}`, `()` and `[]`.
fn similar_to_regex(pattern: &str) -> Option<String> {
    let other = |c: char| if ".^$".contains(c) { format!("\\{c}") } else { c.to_string() };
    wildcards_to_regex(pattern, other).map(|pattern| postgres_to_regex(&pattern))
}

/// Converts a pattern with `%`, `_` and `\` to a regular expression; `other` converts all other
/// characters. Returns `None` if the pattern ends with `\`.
fn wildcards_to_regex(pattern: &str, other: impl Fn(char) -> String) -> Option<String> {
    let mut out = String::from("^(?:");
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' => out.push_str(".*"),
            '_' => out.push('.'),
            '\\' => out.push_str(&regex::escape(&chars.next()?.to_string())),
            c => out.push_str(&other(c)),
        }
    }
    out.push_str(")$");
    Some(out)
}

/// Implements `x op ANY (array)` and `x op ALL (array)` with three-valued logic.
fn evaluate_quantified_comparison(values: &[ValueRef<'_>], is_any: bool) -> FunctionResult {
    if values[2] == ValueRef::Null {
        return Ok(Sql::Null);
    }
    let sign = to_text(values[1]);
    let (negated, sign) = match sign.strip_prefix("not ") {
        Some(sign) => (true, sign),
        None => (false, sign.as_str()),
    };
    let mut has_null = false;
    for element in parse_array_elements(values[2]) {
        let holds = match &element {
            _ if values[0] == ValueRef::Null => None,
            Json::Null => None,
            element => Some(compare_element(values[0], sign, element)? != negated),
        };
        match holds {
            Some(holds) if holds == is_any => return Ok(boolean_to_sql(is_any)),
            Some(_) => {}
            None => has_null = true,
        }
    }
    Ok(if has_null { Sql::Null } else { boolean_to_sql(!is_any) })
}

fn compare_element(value: ValueRef<'_>, sign: &str, element: &Json) -> rusqlite::Result<bool> {
    let word = || Value::from_json(element).to_string();
    Ok(match sign {
        "like" => compile_pattern(&word(), like_to_regex, false)?.is_match(&to_text(value)),
        "ilike" => compile_pattern(&word(), like_to_regex, true)?.is_match(&to_text(value)),
        "similar" => compile_pattern(&word(), similar_to_regex, false)?.is_match(&to_text(value)),
        _ => {
            let value = Value::from_sqlite(value).unwrap_or(Value::Null);
            let ordering = compare_elements(&value, &Value::from_json(element));
            match sign {
                "=" => ordering == Ordering::Equal,
                "<>" => ordering != Ordering::Equal,
                "<" => ordering == Ordering::Less,
                "<=" => ordering != Ordering::Greater,
                ">" => ordering == Ordering::Greater,
                _ => ordering != Ordering::Less,
            }
        }
    })
}

/// Compares two values in `SQLite`'s order, with numbers before texts.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let number = |v: &Value| match v {
        Value::Integer(i) => Some(*i as f64),
        Value::Real(r) => Some(*r),
        _ => None,
    };
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => a.to_string().cmp(&b.to_string()),
        },
    }
}

fn are_equal(a: &Json, b: &Json) -> bool {
    let (a, b) = (Value::from_json(a), Value::from_json(b));
    a != Value::Null && b != Value::Null && compare_elements(&a, &b) == Ordering::Equal
}

/// Compares two elements. A text compared with a number is parsed as a number if possible, because
/// an array literal such as `'{1, 2}'` has text elements.
fn compare_elements(a: &Value, b: &Value) -> Ordering {
    let number = |text: &str| match parse_number(text) {
        Some(Sql::Integer(i)) => Some(Value::Integer(i)),
        Some(Sql::Real(r)) => Some(Value::Real(r)),
        _ => None,
    };
    match (a, b) {
        (Value::Text(text), Value::Integer(_) | Value::Real(_)) => {
            number(text).map_or(compare_values(a, b), |a| compare_values(&a, b))
        }
        (Value::Integer(_) | Value::Real(_), Value::Text(text)) => {
            number(text).map_or(compare_values(a, b), |b| compare_values(a, &b))
        }
        _ => compare_values(a, b),
    }
}

fn parse_array_elements(value: ValueRef<'_>) -> Vec<Json> {
    let text = match value {
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes),
        other => return Value::from_sqlite(other).map(|v| vec![v.to_json()]).unwrap_or_default(),
    };
    if text.trim_start().starts_with('[')
        && let Ok(elements) = serde_json::from_str(&text)
    {
        return elements;
    }
    vec![text.into_owned().into()]
}

fn parse_object(value: ValueRef<'_>) -> Option<Json> {
    let text = to_text(value);
    serde_json::from_str(&text).ok().filter(Json::is_object)
}

/// Returns true if one document contains another, with the semantics of `PostgreSQL`'s jsonb:
/// object members are matched by name, array elements in any position.
fn document_contains(all: &Json, some: &Json) -> bool {
    match (all, some) {
        (Json::Object(all), Json::Object(some)) => some
            .iter()
            .all(|(name, part)| all.get(name).is_some_and(|whole| document_contains(whole, part))),
        (Json::Array(all), Json::Array(some)) => {
            some.iter().all(|part| all.iter().any(|whole| document_contains(whole, part)))
        }
        (Json::Number(a), Json::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => all == some,
    }
}

fn json_to_sql(json: &Json) -> Sql {
    match Value::from_json(json) {
        Value::Null => Sql::Null,
        Value::Integer(i) => Sql::Integer(i),
        Value::Real(r) => Sql::Real(r),
        Value::Text(text) => Sql::Text(text),
    }
}

fn to_text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        other => Value::from_sqlite(other).unwrap_or(Value::Null).to_string(),
    }
}

fn boolean_to_sql(holds: bool) -> Sql {
    Sql::Integer(i64::from(holds))
}

fn function_error(message: String) -> Error {
    Error::UserFunctionError(message.into())
}
