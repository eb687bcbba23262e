//! Types of columns and answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The type of a column's values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    /// Any text.
    #[default]
    Text,
    /// A whole number.
    Integer,
    /// A number.
    Real,
    /// True or false, stored as 1 and 0.
    Boolean,
    /// A date, stored as ISO 8601 (`2026-11-21`, `2026-11` or `2026`).
    Date,
    /// An absolute URL.
    Url,
}

/// Properties of a type. A new type needs one of these, and a parser for its values
/// (`hqdl_spec::coerce`).
struct TypeRow {
    name: &'static str,
    sql: &'static str,
    postgres: &'static str,
    json: &'static str,
    said: &'static [&'static str],
    spelling: Option<&'static str>,
    ordered: bool,
    tokens: [f64; 3],
    room: u64,
}

impl Type {
    /// All types, in the order in which prompts list their format hints.
    pub const ALL: [Self; 6] =
        [Self::Text, Self::Integer, Self::Real, Self::Date, Self::Boolean, Self::Url];

    const fn form(self) -> TypeRow {
        match self {
            Self::Text => TypeRow {
                name: "text",
                sql: "TEXT",
                postgres: "text",
                json: "string",
                said: &["str", "string", "text", "substring"],
                spelling: None,
                ordered: false,
                tokens: [1.0, 4.0, 24.0],
                room: 80,
            },
            Self::Integer => TypeRow {
                name: "integer",
                sql: "INTEGER",
                postgres: "bigint",
                json: "integer",
                said: &["int", "integer"],
                spelling: None,
                ordered: true,
                tokens: [1.0, 2.0, 4.0],
                room: 8,
            },
            Self::Real => TypeRow {
                name: "real",
                sql: "REAL",
                postgres: "double precision",
                json: "number",
                said: &["float", "real", "double", "number"],
                spelling: None,
                ordered: true,
                tokens: [1.0, 4.0, 7.0],
                room: 8,
            },
            Self::Boolean => TypeRow {
                name: "boolean",
                sql: "BOOLEAN",
                postgres: "boolean",
                json: "boolean",
                said: &["bool", "boolean"],
                spelling: Some("booleans as true or false"),
                ordered: false,
                tokens: [1.0, 1.0, 1.0],
                room: 8,
            },
            Self::Date => TypeRow {
                name: "date",
                sql: "TEXT",
                postgres: "text",
                json: "string",
                said: &["date", "iso_8601_date"],
                spelling: Some("dates as YYYY-MM-DD"),
                ordered: true,
                tokens: [1.0, 6.0, 6.0],
                room: 8,
            },
            Self::Url => TypeRow {
                name: "url",
                sql: "TEXT",
                postgres: "text",
                json: "string",
                said: &[],
                spelling: Some("URLs in full"),
                ordered: false,
                tokens: [6.0, 14.0, 40.0],
                room: 40,
            },
        }
    }

    /// Returns the name used in specs, prompts and fingerprints.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.form().name
    }

    /// Returns the declared `SQLite` type of the published column.
    ///
    /// Dates and URLs are TEXT: a declared type `DATE` has numeric affinity in `SQLite` and would
    /// turn the year `2009` into a number.
    #[must_use]
    pub fn sql(self) -> &'static str {
        self.form().sql
    }

    /// Returns the `PostgreSQL` type of the published column. A date may be only a year, so it is
    /// text there, too.
    #[must_use]
    pub fn postgres(self) -> &'static str {
        self.form().postgres
    }

    /// Returns the type of a value in a JSON schema.
    #[must_use]
    pub fn json(self) -> &'static str {
        self.form().json
    }

    /// Returns the names of the type in calls (`return_type=`), the usual one first; empty if calls
    /// cannot request it.
    #[must_use]
    pub fn said(self) -> &'static [&'static str] {
        self.form().said
    }

    /// Returns the instruction for how a model should write values, if the type needs one.
    #[must_use]
    pub fn spelling(self) -> Option<&'static str> {
        self.form().spelling
    }

    /// Returns true if values are stored as text.
    #[must_use]
    pub fn is_text(self) -> bool {
        self.form().sql == "TEXT"
    }

    /// Returns true if the order of values is meaningful.
    #[must_use]
    pub fn is_ordered(self) -> bool {
        self.form().ordered
    }

    /// Returns a low, a typical and a high number of tokens of a value in an answer.
    #[must_use]
    pub fn tokens(self) -> [f64; 3] {
        self.form().tokens
    }

    /// Returns the number of tokens to reserve for each value of an answer.
    #[must_use]
    pub fn room(self) -> u64 {
        self.form().room
    }
}
