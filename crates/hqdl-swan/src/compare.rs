//! Compares two results by SWAN's rule and by a strict rule.

use rusqlite::types::ValueRef;
use serde_json::{Value as Json, json};

use hqdl_engine::query::QueryResult;
use hqdl_sql::blendsql::SqlError;

/// A comparable value. A whole number is the same as an integer and as a real, as in Python, the
/// language of SWAN's own scorer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ComparedCell {
    /// NULL.
    Null,
    /// A whole number.
    Integer(i64),
    /// The bits of any other number.
    Real(u64),
    /// Text.
    Text(String),
}

impl ComparedCell {
    /// Converts a value of a result.
    #[must_use]
    pub fn from_json(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(b) => Self::Integer(i64::from(*b)),
            Json::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(i), _) => Self::Integer(i),
                (None, Some(r)) if r.fract() == 0.0 && r.abs() < 9e15 => Self::Integer(r as i64),
                (None, r) => Self::Real(r.unwrap_or(f64::NAN).to_bits()),
            },
            Json::String(text) => Self::Text(text.clone()),
            // A blob in the form that `query --json` writes.
            other => Self::Text(other.to_string()),
        }
    }

    /// Returns the number, unless the value is NULL or text.
    #[must_use]
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Integer(i) => Some(*i as f64),
            Self::Real(bits) => Some(f64::from_bits(*bits)),
            Self::Null | Self::Text(_) => None,
        }
    }
}

/// Rows of values, as stored in a record.
pub type Rows = Vec<Vec<Json>>;

/// Converts a value of a result to its form in a record.
#[must_use]
pub fn to_json(value: ValueRef<'_>) -> Json {
    let blob = |bytes: &[u8]| {
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        json!({ "blob": hex.concat() })
    };
    match value {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(i) => i.into(),
        ValueRef::Real(r) => {
            serde_json::Number::from_f64(r).map_or_else(|| r.to_string().into(), Json::Number)
        }
        ValueRef::Text(bytes) => {
            std::str::from_utf8(bytes).map_or_else(|_| blob(bytes), Json::from)
        }
        ValueRef::Blob(bytes) => blob(bytes),
    }
}

/// Converts the rows of a query to their form in a record.
#[must_use]
pub fn to_rows(result: &QueryResult) -> Rows {
    let row = |row: &Vec<_>| row.iter().map(|v| to_json(ValueRef::from(v))).collect();
    result.rows.iter().map(row).collect()
}

/// Converts rows to comparable values.
#[must_use]
pub fn to_cells(rows: &Rows) -> Vec<Vec<ComparedCell>> {
    rows.iter().map(|row| row.iter().map(ComparedCell::from_json).collect()).collect()
}

/// Sorts the values of each row, as SWAN does.
#[must_use]
pub fn sort_cells(rows: &[Vec<ComparedCell>]) -> Vec<Vec<ComparedCell>> {
    let mut rows = rows.to_vec();
    rows.iter_mut().for_each(|row| row.sort());
    rows
}

/// Returns true if the rows are equal by SWAN's rule: the same number of rows, each compared as a
/// sorted tuple. The order of rows counts only if the tested query contains ORDER BY anywhere;
/// otherwise the rows are compared as sets.
#[must_use]
pub fn is_equal_by_swan_rule(
    ours: &[Vec<ComparedCell>],
    gold: &[Vec<ComparedCell>],
    tested: &str,
) -> bool {
    let (mut ours, mut gold) = (sort_cells(ours), sort_cells(gold));
    if ours.len() != gold.len() {
        return false;
    }
    if !tested.to_uppercase().contains("ORDER BY") {
        for rows in [&mut ours, &mut gold] {
            rows.sort();
            rows.dedup();
        }
    }
    ours == gold
}

/// Returns true if the rows are equal by the strict rule: the same rows with the same number of
/// duplicates, and the columns in the same order. The order of rows counts if the gold query's
/// outermost SELECT has an ORDER BY.
#[must_use]
pub fn is_equal_strictly(
    ours: &[Vec<ComparedCell>],
    gold: &[Vec<ComparedCell>],
    ordered: bool,
) -> bool {
    if ordered {
        return ours == gold;
    }
    let (mut ours, mut gold) = (ours.to_vec(), gold.to_vec());
    ours.sort();
    gold.sort();
    ours == gold
}

/// Returns true if the outermost SELECT of a query has an ORDER BY.
///
/// # Errors
/// [`SqlError`] if the query contains an unterminated string or name.
pub fn is_ordered(sql: &str) -> Result<bool, SqlError> {
    hqdl_sql::blendsql::has_outer_order_by(sql)
}
