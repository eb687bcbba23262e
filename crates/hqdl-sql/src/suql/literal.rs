//! Known types, and casts of text literals. The literals are checked before the query runs.

use std::ops::Range;

use super::cast_target::{CastTarget, IntegerWidth};
use super::date_functions;
use super::functions::{parse_number, parse_time, to_integer};
use super::translator::{SqlType, Translator};
use crate::blendsql::SqlError;
use rusqlite::types::Value as Sql;

/// `PostgreSQL`'s type names with their cast target.
static TYPES: [(&[&str], CastTarget); 13] = [
    (
        &["TEXT", "VARCHAR", "CHAR", "CHARACTER", "BPCHAR", "NAME", "CITEXT", "UUID"],
        CastTarget::Text,
    ),
    (&["INT2", "SMALLINT"], CastTarget::Integer(IntegerWidth::Small)),
    (&["INT", "INTEGER", "INT4"], CastTarget::Integer(IntegerWidth::Normal)),
    (&["INT8", "BIGINT"], CastTarget::Integer(IntegerWidth::Big)),
    (&["REAL", "FLOAT", "FLOAT4", "FLOAT8", "DOUBLE"], CastTarget::Real),
    (&["NUMERIC", "DECIMAL", "MONEY", "NUMBER"], CastTarget::Numeric),
    (&["BOOL", "BOOLEAN"], CastTarget::Boolean),
    (&["DATE"], CastTarget::Date),
    (&["TIMESTAMP", "TIMESTAMPTZ"], CastTarget::Timestamp),
    (&["TIME", "TIMETZ"], CastTarget::Time),
    (&["JSON", "JSONB"], CastTarget::Unchanged),
    (&["ENUM"], CastTarget::Unchanged),
    (&["FREE_TEXT"], CastTarget::Text),
];

/// Returns the target of a cast to a type with this name, in upper case.
pub(super) fn find_cast_target(name: &str) -> Option<CastTarget> {
    TYPES.iter().find(|(names, _)| names.contains(&name)).map(|(_, target)| *target)
}

/// List of types for error messages.
pub(super) const KNOWN_TYPES: &str = "text, integer, bigint, real, numeric, boolean, date, timestamp, time, \
                           interval, json, and arrays of them";

/// Creates an error for an unknown type, or an ENUM in an unsupported position.
pub(super) fn unknown_type_error(name: &str, span: Range<usize>) -> SqlError {
    let error = SqlError::new(span, format!("unknown type `{name}`"), "here");
    match find_misspelled_type(name) {
        Some(suggestion) => error.with_suggestion(&suggestion.to_lowercase()),
        None => error.with_help(format!(
            "the known types are {KNOWN_TYPES}; a value of an ENUM can only be compared: price = 'cheap'::{name}"
        )),
    }
}

/// Returns the known type that a name probably misspells. Ignores short names, because they may be
/// names of ENUMs.
pub(super) fn find_misspelled_type(name: &str) -> Option<&'static str> {
    let upper = name.to_ascii_uppercase();
    let all = TYPES.iter().flat_map(|(names, ..)| names.iter().copied());
    let close = |known: &&str| {
        known.len() > 4 && upper.len() > 4 && strsim::osa_distance(known, &upper) == 1
    };
    all.filter(|known| *known != upper).find(close)
}

/// Fails if a number is out of the range of an integer type.
pub(super) fn check_range(
    target: CastTarget,
    number: &Sql,
    text: &str,
    span: &Range<usize>,
) -> Result<(), SqlError> {
    let CastTarget::Integer(width) = target else { return Ok(()) };
    if to_integer(number, width.bits()).is_some() {
        return Ok(());
    }
    let message = format!("{text} is out of the range of this type");
    let error = SqlError::new(span.clone(), message, "cast here");
    Err(error.with_help("smallint holds 16 bits, integer 32, bigint 64"))
}

/// Converts a text literal to the target type. Returns its SQL and type, or `None` if `SQLite`'s own
/// cast applies.
pub(super) fn convert_literal_text(
    target: CastTarget,
    text: &str,
    span: &Range<usize>,
) -> Result<Option<(String, SqlType)>, SqlError> {
    let invalid = |noun: &str, help: &str| {
        let error = SqlError::new(span.clone(), format!("'{text}' is not a {noun}"), "cast here");
        Err(if help.is_empty() { error } else { error.with_help(help) })
    };
    let word = text.trim().to_ascii_lowercase();
    match target {
        CastTarget::Boolean => {
            let word = Translator::parse_boolean_literal(text, span.clone(), "cast here")?;
            Ok(Some((word.to_owned(), SqlType::Boolean)))
        }
        CastTarget::Real | CastTarget::Numeric => match parse_number(text) {
            Some(_) => Ok(None),
            None => invalid("number", ""),
        },
        CastTarget::Integer(_) => match parse_number(text) {
            Some(number) => check_range(target, &number, text, span).map(|()| None),
            None => invalid("number", ""),
        },
        CastTarget::Date | CastTarget::Timestamp => {
            let (name, sql_type, help) = if target == CastTarget::Date {
                ("date", SqlType::Date, "write it like '2024-01-31'")
            } else {
                ("datetime", SqlType::Timestamp, "write it like '2024-01-31 15:00:00'")
            };
            let noun = if name == "date" { "date" } else { "time of a day" };
            let sql = match (word.as_str(), date_functions::parse_timestamp(text)) {
                ("now", _) => format!("{name}('now')"),
                ("today", _) => format!("{name}('now', 'start of day')"),
                ("tomorrow", _) => format!("{name}('now', 'start of day', '+1 days')"),
                ("yesterday", _) => format!("{name}('now', 'start of day', '-1 days')"),
                (_, Some(at)) if name == "date" => format!("date('{}')", at.date()),
                (_, Some(at)) if at.subsec_nanosecond() == 0 => {
                    format!("datetime('{}')", date_functions::format_timestamp(at))
                }
                (_, Some(at)) => {
                    format!("suql_timestamp('{}')", date_functions::format_timestamp(at))
                }
                (_, None) => return invalid(noun, help),
            };
            Ok(Some((sql, sql_type)))
        }
        CastTarget::Time => match parse_time(text) {
            Some(time) => Ok(Some((format!("'{time}'"), SqlType::Time))),
            None => invalid("time of a day", "write it like '15:00:00'"),
        },
        CastTarget::Text | CastTarget::Unchanged => Ok(None),
    }
}
