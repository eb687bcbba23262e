//! Types of `TRY_CAST(x AS type)`, a cast that returns NULL if the value is not one of the type.

/// Type of a `TRY_CAST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryCastType {
    /// Whole numbers of 64 bits.
    Integer,
    /// Numbers.
    Real,
    /// 1 and 0, for true and false.
    Boolean,
    /// Dates `YYYY-MM-DD`.
    Date,
    /// Times `YYYY-MM-DD HH:MM:SS`.
    Timestamp,
    /// Texts.
    Text,
}

/// A type with the type of `SQLite`'s cast, and its names.
type NamedType = (TryCastType, &'static str, &'static [&'static str]);

/// Types with the names that engines use, and the type of `SQLite`'s cast.
const TYPES: [NamedType; 6] = [
    (
        TryCastType::Integer,
        "INTEGER",
        &["integer", "int", "bigint", "smallint", "tinyint", "int64", "int32", "long", "short"],
    ),
    (TryCastType::Real, "REAL", &["real", "float", "double", "double precision", "float64"]),
    (TryCastType::Boolean, "BOOLEAN", &["boolean", "bool", "logical"]),
    (TryCastType::Date, "TEXT", &["date"]),
    (TryCastType::Timestamp, "TEXT", &["timestamp", "datetime"]),
    (TryCastType::Text, "TEXT", &["text", "varchar", "string", "char", "character varying"]),
];

impl TryCastType {
    /// Returns the type with this name, in lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        find_type(name).map(|(found, ..)| found)
    }

    /// Returns the first name of the type with this name, and the type of `SQLite`'s cast.
    pub(super) fn find_names(name: &str) -> Option<(&'static str, &'static str)> {
        find_type(name).map(|(_, sqlite_type, names)| (names[0], sqlite_type))
    }
}

fn find_type(name: &str) -> Option<NamedType> {
    TYPES.into_iter().find(|(.., names)| names.contains(&name))
}
