//! SQL dialects of queries.

/// SQL dialect of a query. Calls have the same syntax in all dialects.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// `SQLite`'s dialect with `BlendSQL`'s ingredients.
    #[default]
    Sqlite,
    /// SUQL's dialect: `PostgreSQL`'s with `answer` and `summary`.
    Suql,
}
