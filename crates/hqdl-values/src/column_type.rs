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

/// Properties of a type. CONTRIBUTING.md lists the files that a new type changes.
struct TypeProperties {
    name: &'static str,
    sql_type: &'static str,
    postgres_type: &'static str,
    json_type: &'static str,
    call_names: &'static [&'static str],
    /// Prompts with tables list the hints of all types, so a new hint changes these prompts.
    format_hint: Option<&'static str>,
    /// Two example values in prompts: JSON literals, or texts if `json_type` is `string`. The
    /// parser of prompts recognizes the type by them, so no two types share an example.
    examples: [&'static str; 2],
    /// Whether every value can be written on a line without quotes.
    is_short: bool,
    /// Why a single value and a list are invalid.
    invalid: [&'static str; 2],
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
                examples: ["your answer", "another answer"],
                is_short: false,
                invalid: ["not a single value", "not a list of values"],
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
                examples: ["12", "7"],
                is_short: true,
                invalid: ["not an integer", "not a list of integers"],
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
                examples: ["1.5", "0.25"],
                is_short: true,
                invalid: ["not a number", "not a list of numbers"],
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
                examples: ["true", "false"],
                is_short: true,
                invalid: ["neither yes nor no", "not a list of yes and no"],
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
                examples: ["2024-05-31", "1999-01-02"],
                is_short: true,
                invalid: [
                    "not a complete, unambiguous date",
                    "not a list of complete, unambiguous dates",
                ],
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
                examples: ["https://example.com/page", "https://example.com/other"],
                is_short: false,
                invalid: ["not a URL", "not a list of URLs"],
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

    /// Returns two example values for prompts.
    #[must_use]
    pub fn examples(self) -> [&'static str; 2] {
        self.properties().examples
    }

    /// Returns true if every value of the type can be written on a line without quotes.
    #[must_use]
    pub fn is_short(self) -> bool {
        self.properties().is_short
    }

    /// Returns the reason why a text is not a value, or not a list of values, of this type.
    #[must_use]
    pub fn explain_invalid(self, is_many: bool) -> &'static str {
        self.properties().invalid[usize::from(is_many)]
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

#[cfg(test)]
mod tests {
    use super::Type;

    #[test]
    fn the_list_contains_every_type_with_its_own_example() {
        let schema = schemars::schema_for!(Type);
        let variants = schema.as_value()["oneOf"].as_array().expect("one schema per variant");
        assert_eq!(variants.len(), Type::ALL.len());
        for (n, data_type) in Type::ALL.iter().enumerate() {
            let is_same = |other: &Type| other.examples()[0] == data_type.examples()[0];
            assert_eq!(Type::ALL.iter().position(is_same), Some(n));
            let is_literal = |text| serde_json::from_str::<serde_json::Value>(text).is_ok();
            let is_text = data_type.json_type() == "string";
            assert!(is_text || data_type.examples().into_iter().all(is_literal), "{data_type:?}");
        }
    }
}
