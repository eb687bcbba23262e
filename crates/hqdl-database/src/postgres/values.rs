//! Converts values between a server and hqdl. A server sends each value as text, which is parsed by
//! its type; hqdl sends texts, which the server casts to the types of its columns.

use rusqlite::types::Value as Sqlite;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use hqdl_values::value::Value;

/// Decoder of a column of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnReading {
    /// True and false, as 1 and 0.
    Truth,
    Integer,
    /// Number: an integer, or a double if it represents the number exactly.
    Number,
    /// Timestamp, in UTC.
    Moment,
    Bytes,
    Text,
}

impl ColumnReading {
    pub(super) fn of(kind: &Type) -> Self {
        match *kind {
            Type::BOOL => Self::Truth,
            Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => Self::Integer,
            Type::NUMERIC | Type::FLOAT4 | Type::FLOAT8 => Self::Number,
            Type::TIMESTAMPTZ => Self::Moment,
            Type::BYTEA => Self::Bytes,
            _ => Self::Text,
        }
    }

    /// Returns the `SQLite` type of the column.
    pub(super) fn declared(self) -> &'static str {
        match self {
            Self::Truth => "BOOLEAN",
            Self::Integer => "INTEGER",
            Self::Number => "NUMERIC",
            Self::Bytes => "BLOB",
            Self::Moment | Self::Text => "TEXT",
        }
    }

    /// Returns the expression that selects the column.
    pub(super) fn asked(self, column: &str) -> String {
        if self == Self::Bytes { column.to_owned() } else { format!("({column})::text") }
    }

    /// Returns a value of a row.
    pub(super) fn read(self, row: &Row, at: usize) -> Result<Sqlite, tokio_postgres::Error> {
        if self == Self::Bytes {
            return Ok(row.try_get::<_, Option<Vec<u8>>>(at)?.map_or(Sqlite::Null, Sqlite::Blob));
        }
        let text: Option<&str> = row.try_get(at)?;
        Ok(text.map_or(Sqlite::Null, |text| self.parse(text)))
    }

    fn parse(self, text: &str) -> Sqlite {
        let kept = || Sqlite::Text(text.to_owned());
        match self {
            Self::Truth => Sqlite::Integer(i64::from(text == "true")),
            Self::Integer => text.parse().map_or_else(|_| kept(), Sqlite::Integer),
            Self::Number => number(text),
            Self::Moment => Sqlite::Text(moment(text)),
            Self::Text | Self::Bytes => kept(),
        }
    }
}

/// Parses a number; returns text if a 64-bit integer or a double would change it.
fn number(text: &str) -> Sqlite {
    let plain = if text.contains('.') && !text.contains(['e', 'E']) {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    };
    if let Ok(whole) = plain.parse::<i64>() {
        return Sqlite::Integer(whole);
    }
    match text.parse::<f64>() {
        // The shortest text of a double equals the number, unless the double lacks digits.
        Ok(real) if real.is_finite() && (format!("{real}") == plain || text.contains('e')) => {
            Sqlite::Real(real)
        }
        _ => Sqlite::Text(text.to_owned()),
    }
}

/// Converts `2026-11-22 15:41:26.5+00` to ISO 8601.
fn moment(text: &str) -> String {
    match text.strip_suffix("+00") {
        Some(utc) if utc.contains(' ') => format!("{}Z", utc.replacen(' ', "T", 1)),
        _ => text.to_owned(),
    }
}

/// Converts a value of `SQLite` to a parameter for the server.
pub(super) fn given(value: &Sqlite) -> Option<String> {
    match value {
        Sqlite::Null | Sqlite::Blob(_) => None,
        Sqlite::Integer(i) => Some(i.to_string()),
        Sqlite::Real(r) => Some(r.to_string()),
        Sqlite::Text(text) => Some(without_nul(text)),
    }
}

/// Converts a value of hqdl to a parameter for the server.
pub(super) fn said(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Integer(i) => Some(i.to_string()),
        Value::Real(r) => Some(r.to_string()),
        Value::Text(text) => Some(without_nul(text)),
    }
}

/// Replaces NUL, which a server's text cannot contain, with a symbol.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// Replaces NUL in texts of JSON, where it is an escape sequence.
pub(super) fn json_without_nul(json: &str) -> String {
    fn mend(json: &mut serde_json::Value) {
        match json {
            serde_json::Value::String(text) => *text = without_nul(text),
            serde_json::Value::Array(all) => all.iter_mut().for_each(mend),
            serde_json::Value::Object(all) => all.values_mut().for_each(mend),
            _ => {}
        }
    }
    if !json.contains("\\u0000") {
        return json.to_owned();
    }
    let mut read: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    mend(&mut read);
    read.to_string()
}

/// Returns the type of a published key column: the source's type if it compares values like hqdl
/// does, else text.
pub(super) fn of_key(kind: &Type) -> &'static str {
    match *kind {
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
    fn a_number_is_one_only_where_it_stays_the_same() {
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
            assert_eq!(ColumnReading::Number.parse(text), value, "{text}");
        }
        for text in ["NaN", "Infinity", "12345678901234567890.5", "0.10000000000000000001"] {
            assert_eq!(ColumnReading::Number.parse(text), Sqlite::Text(text.to_owned()));
        }
    }

    #[test]
    fn a_moment_is_in_utc_and_nul_is_a_sign() {
        assert_eq!(moment("2026-11-22 15:41:26.5+00"), "2026-11-22T15:41:26.5Z");
        assert_eq!(moment("infinity"), "infinity");
        assert_eq!(json_without_nul(r#"["a\u0000b","\\u0000"]"#), "[\"a\u{2400}b\",\"\\\\u0000\"]");
    }
}
