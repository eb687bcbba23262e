//! Values as written in TOML.

use schemars::JsonSchema;
use serde::Deserialize;

/// A TOML scalar.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Literal {
    /// true or false.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Real(f64),
    /// Text.
    Text(String),
}
