//! Known types, and casts of text literals, which are checked before the query runs.

use std::ops::Range;

use super::cast::{CastTarget, IntegerWidth};
use super::day;
use super::functions::{integer_of, number_of, time_of};
use super::parser::{ExprShape, Parser, Piece};
use super::text::Part;
use crate::blendsql::SqlError;
use rusqlite::types::Value as Sql;

/// `PostgreSQL`'s type names with their cast target.
pub(super) static TYPES: [(&[&str], CastTarget); 13] = [
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
    (&["JSON", "JSONB"], CastTarget::AsItIs),
    (&["ENUM"], CastTarget::AsItIs),
    (&["FREE_TEXT"], CastTarget::Text),
];

/// List of types for error messages.
pub(super) const KNOWN_TYPES: &str = "text, integer, bigint, real, numeric, boolean, date, timestamp, time, \
                           interval, json, and arrays of them";

/// Creates an error for an unknown type, or an ENUM in an unsupported position.
pub(super) fn no_type(name: &str, span: Range<usize>) -> SqlError {
    let error = SqlError::new(span, format!("unknown type `{name}`"), "here");
    match slip(name) {
        Some(meant) => error.suggest(&meant.to_lowercase()),
        None => error.help(format!(
            "the known types are {KNOWN_TYPES}; a value of an ENUM can only be compared: price = 'cheap'::{name}"
        )),
    }
}

/// Returns the type that a name is probably a misspelling of. Short names are not checked, because
/// they may be an ENUM's.
pub(super) fn slip(name: &str) -> Option<&'static str> {
    let upper = name.to_ascii_uppercase();
    let all = TYPES.iter().flat_map(|(names, ..)| names.iter().copied());
    let close = |known: &&str| {
        known.len() > 4 && upper.len() > 4 && strsim::osa_distance(known, &upper) == 1
    };
    all.filter(|known| *known != upper).find(close)
}

/// Fails if a number is out of the range of an integer type.
pub(super) fn in_range(
    target: CastTarget,
    number: &Sql,
    text: &str,
    span: &Range<usize>,
) -> Result<Option<Piece>, SqlError> {
    let CastTarget::Integer(width) = target else { return Ok(None) };
    if integer_of(number, width.bits()).is_some() {
        return Ok(None);
    }
    let message = format!("{text} is out of the range of this type");
    let error = SqlError::new(span.clone(), message, "cast here");
    Err(error.help("smallint holds 16 bits, integer 32, bigint 64"))
}

/// Converts a text literal to the target type. Returns `None` if `SQLite`'s own cast is used.
pub(super) fn literal(
    target: CastTarget,
    text: &str,
    span: &Range<usize>,
) -> Result<Option<Piece>, SqlError> {
    let wrong = |what: &str, help: &str| {
        let error = SqlError::new(span.clone(), format!("'{text}' is not a {what}"), "cast here");
        Err(if help.is_empty() { error } else { error.help(help) })
    };
    let word = text.trim().to_ascii_lowercase();
    let made =
        |words: &str| Piece::new(vec![Part::New(words.to_owned(), span.clone())], span.clone());
    match target {
        CastTarget::Boolean => Parser::truth(text, span.clone(), "cast here").map(Some),
        CastTarget::Real | CastTarget::Numeric => match number_of(text) {
            Some(_) => Ok(None),
            None => wrong("number", ""),
        },
        CastTarget::Integer(_) => match number_of(text) {
            Some(number) => in_range(target, &number, text, span),
            None => wrong("number", ""),
        },
        CastTarget::Date | CastTarget::Timestamp => {
            let (name, shape, help) = if target == CastTarget::Date {
                ("date", ExprShape::Date, "write it like '2024-01-31'")
            } else {
                ("datetime", ExprShape::Timestamp, "write it like '2024-01-31 15:00:00'")
            };
            let what = if name == "date" { "date" } else { "time of a day" };
            let written = match (word.as_str(), day::moment(text)) {
                ("now", _) => format!("{name}('now')"),
                ("today", _) => format!("{name}('now', 'start of day')"),
                ("tomorrow", _) => format!("{name}('now', 'start of day', '+1 days')"),
                ("yesterday", _) => format!("{name}('now', 'start of day', '-1 days')"),
                (_, Some(at)) if name == "date" => format!("date('{}')", at.date()),
                (_, Some(at)) if at.subsec_nanosecond() == 0 => {
                    format!("datetime('{}')", day::said(at))
                }
                (_, Some(at)) => format!("suql_timestamp('{}')", day::said(at)),
                (_, None) => return wrong(what, help),
            };
            Ok(Some(Piece { shape, ..made(&written) }))
        }
        CastTarget::Time => match time_of(text) {
            Some(time) => Ok(Some(Piece { shape: ExprShape::Time, ..made(&format!("'{time}'")) })),
            None => wrong("time of a day", "write it like '15:00:00'"),
        },
        CastTarget::Text | CastTarget::AsItIs => Ok(None),
    }
}
