//! Types of columns and answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::Value;

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

/// Properties of a type. To add a type, add its entry to [`Type::properties`] and a parser for its
/// values to `hqdl_spec::coerce`.
struct TypeProperties {
    name: &'static str,
    sql_type: &'static str,
    postgres_type: &'static str,
    json_type: &'static str,
    call_names: &'static [&'static str],
    format_hint: Option<&'static str>,
    is_ordered: bool,
    token_estimates: [f64; 3],
    max_output_tokens: u64,
}

impl Type {
    /// All types, in the order in which prompts list their format hints.
    pub const ALL: [Self; 6] =
        [Self::Text, Self::Integer, Self::Real, Self::Date, Self::Boolean, Self::Url];

    const fn properties(self) -> TypeProperties {
        match self {
            Self::Text => TypeProperties {
                name: "text",
                sql_type: "TEXT",
                postgres_type: "text",
                json_type: "string",
                call_names: &["str", "string", "text", "substring"],
                format_hint: None,
                is_ordered: false,
                token_estimates: [1.0, 4.0, 24.0],
                max_output_tokens: 80,
            },
            Self::Integer => TypeProperties {
                name: "integer",
                sql_type: "INTEGER",
                postgres_type: "bigint",
                json_type: "integer",
                call_names: &["int", "integer"],
                format_hint: None,
                is_ordered: true,
                token_estimates: [1.0, 2.0, 4.0],
                max_output_tokens: 8,
            },
            Self::Real => TypeProperties {
                name: "real",
                sql_type: "REAL",
                postgres_type: "double precision",
                json_type: "number",
                call_names: &["float", "real", "double", "number"],
                format_hint: None,
                is_ordered: true,
                token_estimates: [1.0, 4.0, 7.0],
                max_output_tokens: 8,
            },
            Self::Boolean => TypeProperties {
                name: "boolean",
                sql_type: "BOOLEAN",
                postgres_type: "boolean",
                json_type: "boolean",
                call_names: &["bool", "boolean"],
                format_hint: Some("booleans as true or false"),
                is_ordered: false,
                token_estimates: [1.0, 1.0, 1.0],
                max_output_tokens: 8,
            },
            Self::Date => TypeProperties {
                name: "date",
                sql_type: "TEXT",
                postgres_type: "text",
                json_type: "string",
                call_names: &["date", "iso_8601_date"],
                format_hint: Some("dates as YYYY-MM-DD"),
                is_ordered: true,
                token_estimates: [1.0, 6.0, 6.0],
                max_output_tokens: 8,
            },
            Self::Url => TypeProperties {
                name: "url",
                sql_type: "TEXT",
                postgres_type: "text",
                json_type: "string",
                call_names: &[],
                format_hint: Some("URLs in full"),
                is_ordered: false,
                token_estimates: [6.0, 14.0, 40.0],
                max_output_tokens: 40,
            },
        }
    }

    /// Returns the name used in specs, prompts and fingerprints.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.properties().name
    }

    /// Returns the declared `SQLite` type of the published column.
    ///
    /// Dates and URLs are TEXT: a declared type `DATE` has numeric affinity in `SQLite` and would
    /// turn the year `2009` into a number.
    #[must_use]
    pub fn sql_type(self) -> &'static str {
        self.properties().sql_type
    }

    /// Returns the `PostgreSQL` type of the published column. Dates are text here too, because a
    /// date may consist of only a year.
    #[must_use]
    pub fn postgres_type(self) -> &'static str {
        self.properties().postgres_type
    }

    /// Returns the type of an answer that is one of these options.
    #[must_use]
    pub fn from_options(options: &[Value]) -> Self {
        let all_integers = options.iter().all(|v| matches!(v, Value::Integer(_)));
        let all_numbers = options.iter().all(|v| matches!(v, Value::Integer(_) | Value::Real(_)));
        match (options, all_integers, all_numbers) {
            ([], ..) | (_, _, false) => Self::Text,
            (_, true, _) => Self::Integer,
            (_, false, true) => Self::Real,
        }
    }

    /// Returns the type of a value in a JSON schema.
    #[must_use]
    pub fn json_type(self) -> &'static str {
        self.properties().json_type
    }

    /// Returns the names of the type in calls (`return_type=`), the usual one first; empty if calls
    /// cannot use it.
    #[must_use]
    pub fn call_names(self) -> &'static [&'static str] {
        self.properties().call_names
    }

    /// Returns the prompt's instruction on how to write values of this type; `None` if the type
    /// needs none.
    #[must_use]
    pub fn format_hint(self) -> Option<&'static str> {
        self.properties().format_hint
    }

    /// Returns true if values are stored as text.
    #[must_use]
    pub fn is_text(self) -> bool {
        self.properties().sql_type == "TEXT"
    }

    /// Returns true if the order of values is meaningful.
    #[must_use]
    pub fn is_ordered(self) -> bool {
        self.properties().is_ordered
    }

    /// Returns a low, a typical and a high estimate of the tokens per value in an answer.
    #[must_use]
    pub fn token_estimates(self) -> [f64; 3] {
        self.properties().token_estimates
    }

    /// Returns the number of tokens to reserve for each value of an answer.
    #[must_use]
    pub fn max_output_tokens(self) -> u64 {
        self.properties().max_output_tokens
    }
}
