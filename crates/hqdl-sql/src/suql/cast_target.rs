//! Target types of `PostgreSQL` casts, and the equivalent SQL in `SQLite`.

use super::translator::SqlType;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CastTarget {
    Text,
    Integer(IntegerWidth),
    Real,
    Numeric,
    Boolean,
    Date,
    Timestamp,
    Time,
    /// A type that does not change the value.
    Unchanged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntegerWidth {
    Small,
    Normal,
    Big,
}

impl IntegerWidth {
    pub fn bits(self) -> u32 {
        match self {
            Self::Small => 16,
            Self::Normal => 32,
            Self::Big => 64,
        }
    }
}

impl CastTarget {
    /// Returns the SQL of the cast; `{}` is the operand.
    pub fn template(self) -> &'static str {
        match self {
            Self::Text => "CAST({} AS TEXT)",
            Self::Integer(IntegerWidth::Small) => "CAST(suql_integer({}, 16) AS INTEGER)",
            Self::Integer(IntegerWidth::Normal) => "CAST(suql_integer({}, 32) AS INTEGER)",
            Self::Integer(IntegerWidth::Big) => "CAST(suql_integer({}, 64) AS INTEGER)",
            Self::Real => "CAST(suql_number({}) AS REAL)",
            Self::Numeric => "CAST(suql_number({}) AS NUMERIC)",
            Self::Boolean => "suql_truth({})",
            Self::Date => "suql_date({})",
            Self::Timestamp => "suql_timestamp({})",
            Self::Time => "suql_time({})",
            Self::Unchanged => "{}",
        }
    }

    /// Returns the SQL template for casting a call; the engine infers the answer type from this
    /// cast.
    pub fn call_template(self) -> &'static str {
        match self {
            Self::Integer(_) => "CAST({} AS INTEGER)",
            Self::Real => "CAST({} AS REAL)",
            Self::Numeric => "CAST({} AS NUMERIC)",
            Self::Boolean => "CAST({} AS BOOLEAN)",
            Self::Date => "date({})",
            Self::Timestamp => "datetime({})",
            Self::Text | Self::Time | Self::Unchanged => self.template(),
        }
    }

    /// Returns the type of the result.
    pub fn sql_type(self) -> SqlType {
        match self {
            Self::Text => SqlType::Text,
            Self::Integer(_) => SqlType::Integer,
            Self::Real => SqlType::Float,
            Self::Numeric => SqlType::Numeric,
            Self::Boolean => SqlType::Boolean,
            Self::Date => SqlType::Date,
            Self::Timestamp => SqlType::Timestamp,
            Self::Time => SqlType::Time,
            Self::Unchanged => SqlType::Unknown,
        }
    }
}
