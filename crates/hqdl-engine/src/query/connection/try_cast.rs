//! The function `hq_try_cast(value, type)`, by which `TRY_CAST` is rewritten.

use jiff::civil::{Date, DateTime, Time};
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error};

use hqdl_sql::blendsql::runtime::TRY_CAST_FUNCTION;
use hqdl_sql::blendsql::try_cast::TryCastType;

/// Words for true and false, in lower case, in all engines that have `TRY_CAST`.
const BOOLEANS: [(&str, &str); 3] = [("true", "false"), ("t", "f"), ("1", "0")];

/// Registers the function with a connection.
///
/// # Errors
/// Fails if `SQLite` rejects the registration.
pub fn register_try_cast(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function(TRY_CAST_FUNCTION, 2, flags, |context| {
        let name: String = context.get(1)?;
        let cast_type = TryCastType::from_name(&name).ok_or_else(|| {
            Error::UserFunctionError(format!("`{name}` is not a type of TRY_CAST").into())
        })?;
        Ok(cast_value(context.get_raw(0), cast_type).unwrap_or(Value::Null))
    })
}

/// Converts a value, or returns `None` if the whole value is not one of the type.
fn cast_value(value: ValueRef<'_>, cast_type: TryCastType) -> Option<Value> {
    match value {
        ValueRef::Null | ValueRef::Blob(_) => None,
        ValueRef::Text(text) => cast_text(std::str::from_utf8(text).ok()?, cast_type),
        ValueRef::Integer(i) => Some(match cast_type {
            TryCastType::Integer => Value::Integer(i),
            TryCastType::Real => Value::Real(i as f64),
            TryCastType::Boolean => Value::Integer(i64::from(i != 0)),
            TryCastType::Text => Value::Text(i.to_string()),
            TryCastType::Date | TryCastType::Timestamp => return None,
        }),
        ValueRef::Real(real) => Some(match cast_type {
            TryCastType::Integer => Value::Integer(to_whole_number(real)?),
            TryCastType::Real => Value::Real(real),
            TryCastType::Boolean => Value::Integer(i64::from(real != 0.0)),
            TryCastType::Text => Value::Text(hqdl_values::value::Value::Real(real).to_string()),
            TryCastType::Date | TryCastType::Timestamp => return None,
        }),
    }
}

fn cast_text(text: &str, cast_type: TryCastType) -> Option<Value> {
    // As in other engines, spaces around a value do not count.
    let trimmed = text.trim();
    match cast_type {
        TryCastType::Text => Some(Value::Text(text.to_owned())),
        TryCastType::Integer => {
            // Engines disagree about numbers with an exponent.
            let plain = Some(trimmed).filter(|text| !text.contains(['e', 'E']));
            let number = || plain.and_then(parse_real).and_then(to_whole_number);
            trimmed.parse().ok().or_else(number).map(Value::Integer)
        }
        TryCastType::Real => parse_real(trimmed).map(Value::Real),
        TryCastType::Boolean => {
            let lower = trimmed.to_ascii_lowercase();
            let (yes, _) = BOOLEANS.iter().find(|(yes, no)| lower == *yes || lower == *no)?;
            Some(Value::Integer(i64::from(lower == *yes)))
        }
        TryCastType::Date => parse_time(trimmed).map(|time| Value::Text(time.date().to_string())),
        TryCastType::Timestamp => parse_time(trimmed)
            .map(|time| Value::Text(time.strftime("%Y-%m-%d %H:%M:%S%.f").to_string())),
    }
}

/// Parses a decimal number. Unlike Rust, it rejects `inf` and `nan`, and numbers beyond a double.
fn parse_real(text: &str) -> Option<f64> {
    let is_number = |b: u8| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E');
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.filter(|_| text.bytes().all(is_number))
}

/// Returns the integer that a number is exactly. Beyond 2^53, a double is not a single integer.
fn to_whole_number(real: f64) -> Option<i64> {
    let is_whole = real.fract() == 0.0 && real.abs() <= 9_007_199_254_740_992.0;
    if is_whole { format!("{real:.0}").parse().ok() } else { None }
}

/// Parses a date `YYYY-MM-DD`, or a date with a time after a space or `T`. A time zone is rejected,
/// because the value would need a conversion.
fn parse_time(text: &str) -> Option<DateTime> {
    let date: Date = text.get(..10)?.parse().ok()?;
    if text.len() == 10 {
        return Some(date.at(0, 0, 0, 0));
    }
    let time = text[10..].strip_prefix([' ', 'T'])?;
    // jiff ignores the offset of a time, and reads a leap second as the second before.
    let is_plain =
        time.len() >= 5 && time.bytes().all(|b| b.is_ascii_digit() || b":.".contains(&b));
    let is_leap_second = time.get(6..8) == Some("60");
    let time: Time = time.parse().ok().filter(|_| is_plain && !is_leap_second)?;
    Some(date.to_datetime(time))
}
