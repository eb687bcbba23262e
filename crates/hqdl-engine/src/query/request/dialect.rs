//! SQL dialects of queries.

use hqdl_sql::blendsql::vendors::Vendor;

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
    /// SUQL: `PostgreSQL`'s dialect with `answer` and `summary`.
    Suql,
    /// `SQLite`'s dialect with Snowflake's AI functions.
    Snowflake,
    /// `SQLite`'s dialect with `BigQuery`'s AI functions.
    BigQuery,
    /// `SQLite`'s dialect with Databricks' AI functions.
    Databricks,
    /// `SQLite`'s dialect with flock's functions for `DuckDB`.
    Flock,
    /// `PostgreSQL`'s dialect with `AlloyDB`'s AI functions.
    AlloyDb,
}

impl Dialect {
    /// All dialects with their names.
    pub const ALL: [(&'static str, Self); 7] = [
        ("sqlite", Self::Sqlite),
        ("suql", Self::Suql),
        ("snowflake", Self::Snowflake),
        ("bigquery", Self::BigQuery),
        ("databricks", Self::Databricks),
        ("flock", Self::Flock),
        ("alloydb", Self::AlloyDb),
    ];

    /// Returns the dialect's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, dialect)| *dialect == self).map_or("sqlite", |(name, _)| name)
    }

    /// Returns the dialect with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// Returns true if the dialect has `PostgreSQL`'s syntax.
    pub(in crate::query) fn has_postgres_syntax(self) -> bool {
        matches!(self, Self::Suql | Self::AlloyDb)
    }

    /// Returns the vendor whose functions the dialect supports, if any.
    pub(in crate::query) fn vendor(self) -> Option<Vendor> {
        match self {
            Self::Sqlite | Self::Suql => None,
            Self::Snowflake => Some(Vendor::Snowflake),
            Self::BigQuery => Some(Vendor::BigQuery),
            Self::Databricks => Some(Vendor::Databricks),
            Self::Flock => Some(Vendor::Flock),
            Self::AlloyDb => Some(Vendor::AlloyDb),
        }
    }
}
