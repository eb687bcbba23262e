//! Converts values between a server and hqdl. A server sends each value as text, which hqdl parses
//! according to its type. hqdl sends texts, which the server casts to its column types.

use rusqlite::types::Value as Sqlite;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use hqdl_values::value::Value;

/// Decoder for a result column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnDecoder {
    /// A boolean, as 1 or 0.
    Boolean,
    Integer,
    /// A number: an integer, or a double if it represents the number exactly; otherwise text.
    Number,
    /// A timestamp, in UTC.
    Timestamp,
    Bytes,
    Text,
}

impl ColumnDecoder {
    pub(super) fn for_type(data_type: &Type) -> Self {
        match *data_type {
            Type::BOOL => Self::Boolean,
            Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => Self::Integer,
            Type::NUMERIC | Type::FLOAT4 | Type::FLOAT8 => Self::Number,
            Type::TIMESTAMPTZ => Self::Timestamp,
            Type::BYTEA => Self::Bytes,
            _ => Self::Text,
        }
    }

    /// Returns the `SQLite` type of the column.
    pub(super) fn sqlite_type(self) -> &'static str {
        match self {
            Self::Boolean => "BOOLEAN",
            Self::Integer => "INTEGER",
            Self::Number => "NUMERIC",
            Self::Bytes => "BLOB",
            Self::Timestamp | Self::Text => "TEXT",
        }
    }

    pub(super) fn build_select_expression(self, column: &str) -> String {
        if self == Self::Bytes { column.to_owned() } else { format!("({column})::text") }
    }

    pub(super) fn read_value(
        self,
        row: &Row,
        index: usize,
    ) -> Result<Sqlite, tokio_postgres::Error> {
        if self == Self::Bytes {
            return Ok(row
                .try_get::<_, Option<Vec<u8>>>(index)?
                .map_or(Sqlite::Null, Sqlite::Blob));
        }
        let text: Option<&str> = row.try_get(index)?;
        Ok(text.map_or(Sqlite::Null, |text| self.parse_text(text)))
    }

    fn parse_text(self, text: &str) -> Sqlite {
        let as_text = || Sqlite::Text(text.to_owned());
        match self {
            Self::Boolean => Sqlite::Integer(i64::from(text == "true")),
            Self::Integer => text.parse().map_or_else(|_| as_text(), Sqlite::Integer),
            Self::Number => parse_number(text),
            Self::Timestamp => Sqlite::Text(format_timestamp(text)),
            Self::Text | Self::Bytes => as_text(),
        }
    }
}

/// Parses a number. Returns text if neither a 64-bit integer nor a double represents the number
/// exactly.
fn parse_number(text: &str) -> Sqlite {
    let trimmed = if text.contains('.') && !text.contains(['e', 'E']) {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    };
    if let Ok(integer) = trimmed.parse::<i64>() {
        return Sqlite::Integer(integer);
    }
    match text.parse::<f64>() {
        // The shortest text of a double equals the number if the double can represent all of its
        // digits.
        Ok(real) if real.is_finite() && (format!("{real}") == trimmed || text.contains('e')) => {
            Sqlite::Real(real)
        }
        _ => Sqlite::Text(text.to_owned()),
    }
}

/// Converts `2026-11-22 15:41:26.5+00` to ISO 8601.
fn format_timestamp(text: &str) -> String {
    match text.strip_suffix("+00") {
        Some(utc) if utc.contains(' ') => format!("{}Z", utc.replacen(' ', "T", 1)),
        _ => text.to_owned(),
    }
}

/// Converts a `SQLite` value to a parameter for the server.
pub(super) fn to_parameter(value: &Sqlite) -> Option<String> {
    match value {
        Sqlite::Null | Sqlite::Blob(_) => None,
        Sqlite::Integer(i) => Some(i.to_string()),
        Sqlite::Real(r) => Some(r.to_string()),
        Sqlite::Text(text) => Some(replace_nul_chars(text)),
    }
}

/// Converts an hqdl value to a parameter for the server.
pub(super) fn value_to_parameter(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Integer(i) => Some(i.to_string()),
        Value::Real(r) => Some(r.to_string()),
        Value::Text(text) => Some(replace_nul_chars(text)),
    }
}

/// Replaces each NUL with a symbol, because a server's texts cannot contain NUL.
pub(super) fn replace_nul_chars(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// Replaces each NUL in the strings of a JSON text, where NUL is an escape sequence.
pub(super) fn replace_nul_in_json(json: &str) -> String {
    fn replace_nul(json: &mut serde_json::Value) {
        match json {
            serde_json::Value::String(text) => *text = replace_nul_chars(text),
            serde_json::Value::Array(items) => items.iter_mut().for_each(replace_nul),
            serde_json::Value::Object(fields) => fields.values_mut().for_each(replace_nul),
            _ => {}
        }
    }
    if !json.contains("\\u0000") {
        return json.to_owned();
    }
    let mut parsed: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    replace_nul(&mut parsed);
    parsed.to_string()
}

/// Returns the type of a published key column: the source's type if the server compares its values
/// as hqdl does, otherwise text.
pub(super) fn choose_published_key_type(data_type: &Type) -> &'static str {
    match *data_type {
        Type::BOOL => "boolean",
        Type::INT2 => "smallint",
        Type::INT4 => "integer",
        Type::INT8 => "bigint",
        Type::NUMERIC => "numeric",
        Type::FLOAT4 => "real",
        Type::FLOAT8 => "double precision",
        Type::DATE => "date",
        Type::TIMESTAMP => "timestamp without time zone",
        Type::TIMESTAMPTZ => "timestamp with time zone",
        Type::UUID => "uuid",
        _ => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_text_if_parsing_would_change_it() {
        let cases = [
            ("1", Sqlite::Integer(1)),
            ("1.50", Sqlite::Real(1.5)),
            ("-7.000", Sqlite::Integer(-7)),
            ("9223372036854775807", Sqlite::Integer(i64::MAX)),
            ("0.1", Sqlite::Real(0.1)),
            ("1e+300", Sqlite::Real(1e300)),
            ("100000000000000000000", Sqlite::Real(1e20)),
        ];
        for (text, value) in cases {
            assert_eq!(ColumnDecoder::Number.parse_text(text), value, "{text}");
        }
        for text in ["NaN", "Infinity", "12345678901234567890.5", "0.10000000000000000001"] {
            assert_eq!(ColumnDecoder::Number.parse_text(text), Sqlite::Text(text.to_owned()));
        }
    }

    #[test]
    fn timestamps_are_in_utc_and_nul_is_replaced() {
        assert_eq!(format_timestamp("2026-11-22 15:41:26.5+00"), "2026-11-22T15:41:26.5Z");
        assert_eq!(format_timestamp("infinity"), "infinity");
        assert_eq!(
            replace_nul_in_json(r#"["a\u0000b","\\u0000"]"#),
            "[\"a\u{2400}b\",\"\\\\u0000\"]"
        );
    }
}
