//! Formats SQL values as JSON and as text.

use std::io::{Result, Write};

use rusqlite::types::ValueRef;

/// Writes a value as JSON. JSON has no infinite numbers, so these become the text that `SQLite`
/// prints.
///
/// # Errors
/// Fails if writing to `out` fails.
pub fn write_json(out: &mut dyn Write, value: ValueRef<'_>) -> Result<()> {
    match value {
        ValueRef::Null => out.write_all(b"null"),
        ValueRef::Integer(i) => write!(out, "{i}"),
        ValueRef::Real(r) if r.is_finite() => Ok(serde_json::to_writer(&mut *out, &r)?),
        ValueRef::Real(r) => Ok(serde_json::to_writer(&mut *out, &format_real(r))?),
        ValueRef::Text(bytes) => {
            Ok(serde_json::to_writer(&mut *out, &String::from_utf8_lossy(bytes))?)
        }
        ValueRef::Blob(bytes) => {
            out.write_all(b"{\"blob\":\"")?;
            bytes.iter().try_for_each(|b| write!(out, "{b:02x}"))?;
            out.write_all(b"\"}")
        }
    }
}

/// Formats a real number like `SQLite`: always with a point, and with an exponent if the magnitude
/// is at least 1e17 or below 1e-4. The text has the fewest digits that parse to the same number, at
/// most 17; `SQLite` sometimes prints one digit more than necessary.
#[must_use]
pub fn format_real(r: f64) -> String {
    if !r.is_finite() {
        return if r > 0.0 { "Inf" } else { "-Inf" }.to_owned();
    }
    if r == 0.0 {
        return "0.0".to_owned();
    }
    let formatted = format!("{r:e}");
    let Some((digits, exponent)) = formatted.split_once('e') else { return formatted };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..17).contains(&exponent) {
        let plain = r.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{point}e{sign}{:02}", exponent.abs())
}

/// Formats a value as text: `NULL` for a null, hexadecimal for a blob.
#[must_use]
pub fn format_text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(i) => i.to_string(),
        ValueRef::Real(r) => format_real(r),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ValueRef::Blob(bytes) => {
            let digit = |n: u8| char::from(b"0123456789ABCDEF"[usize::from(n)]);
            let mut hex = String::with_capacity(2 * bytes.len() + 3);
            hex.push_str("X'");
            hex.extend(bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]));
            hex.push('\'');
            hex
        }
    }
}
