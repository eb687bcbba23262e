//! The types of columns and answers.

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

impl Type {
    /// The name used in specs, prompts and fingerprints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Boolean => "boolean",
            Self::Date => "date",
            Self::Url => "url",
        }
    }

    /// The declared type of the published column. Dates and URLs are TEXT: a
    /// declared type `DATE` has numeric affinity in `SQLite` and would turn the
    /// year `2009` into a number.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            Self::Text | Self::Date | Self::Url => "TEXT",
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Boolean => "BOOLEAN",
        }
    }
}
