//! SQL values of keys and cells, and their canonical forms.
//!
//! Blobs are not values, because a language model cannot use bytes. A blob or invalid UTF-8 in a
//! key or context column is reported where it is read ([`UnreadableValue`]) and never becomes a
//! `Value`.

use std::borrow::Cow;

use rusqlite::types::{ToSqlOutput, ValueRef};
use serde::{Deserialize, Serialize};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// A SQL value that can be shown to a model and written back to `SQLite`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// SQL NULL; distinct from the empty text.
    Null,
    /// A 64-bit integer; booleans are 0 and 1, as in `SQLite`.
    Integer(i64),
    /// A double-precision number.
    Real(f64),
    /// UTF-8 text.
    Text(String),
}

/// Reason why a value in a database cannot be shown to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableValue {
    /// The cell contains a blob.
    #[error("a blob")]
    Blob,
    /// The cell contains text that is not UTF-8.
    #[error("text that is not UTF-8")]
    NotUtf8,
}

impl Value {
    /// Converts a `SQLite` value.
    ///
    /// # Errors
    /// [`UnreadableValue`] if the value is a blob, or text that is not UTF-8.
    pub fn from_sqlite(value: ValueRef<'_>) -> Result<Self, UnreadableValue> {
        match value {
            ValueRef::Null => Ok(Self::Null),
            ValueRef::Integer(i) => Ok(Self::Integer(i)),
            ValueRef::Real(r) => Ok(Self::Real(r)),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Self::Text(text.to_owned())),
                Err(_) => Err(UnreadableValue::NotUtf8),
            },
            ValueRef::Blob(_) => Err(UnreadableValue::Blob),
        }
    }

    /// Returns the value as text; `None` for NULL. Numbers have one canonical form: `1`, `1.0` and
    /// the text `1` are the same entity.
    #[must_use]
    pub fn to_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Null => None,
            Self::Integer(i) => Some(i.to_string().into()),
            Self::Real(r) => Some(format_real(*r).into()),
            Self::Text(text) => Some(text.as_str().into()),
        }
    }

    /// Returns the canonical text of a key part: trimmed, normalized to NFC, with case kept. `None`
    /// for NULL.
    #[must_use]
    pub fn canonical_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => {
                let trimmed = text.trim();
                if trimmed.is_ascii() || is_nfc_quick(trimmed.chars()) == IsNormalized::Yes {
                    Some(trimmed.into())
                } else {
                    Some(trimmed.nfc().collect::<String>().into())
                }
            }
            other => other.to_text(),
        }
    }

    /// Converts the value to JSON, as used in prompts, exports and bookkeeping. JSON has no
    /// infinite numbers, so they become text; null would mean that there is no value.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Integer(i) => (*i).into(),
            Self::Real(r) if r.is_infinite() => format_real(*r).into(),
            Self::Real(r) => (*r).into(),
            Self::Text(text) => text.as_str().into(),
        }
    }

    /// Converts a JSON scalar to a value. Arrays and objects become JSON text.
    #[must_use]
    pub fn from_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(b) => Self::Integer(i64::from(*b)),
            serde_json::Value::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(i), _) => Self::Integer(i),
                (None, Some(r)) => Self::Real(r),
                (None, None) => Self::Text(n.to_string()),
            },
            serde_json::Value::String(text) => Self::Text(text.clone()),
            other => Self::Text(other.to_string()),
        }
    }
}

/// Returns the shortest decimal that parses as `r`. Whole numbers have no decimal point, and -0
/// becomes 0.
fn format_real(r: f64) -> String {
    format!("{}", r + 0.0)
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(i) => ValueRef::Integer(*i),
            Self::Real(r) => ValueRef::Real(*r),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl std::fmt::Display for Value {
    /// Formats the value for human readers: NULL as `NULL`, text without quotes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_text().unwrap_or(Cow::Borrowed("NULL")))
    }
}
