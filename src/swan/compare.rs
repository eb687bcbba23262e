//! When two results are the same: by SWAN's rule, and by a strict one.

use rusqlite::types::ValueRef;
use serde_json::{Value as Json, json};

use crate::blendsql::SqlError;
use crate::query::Smoothie;

/// A value as results are compared by: a whole number is the same as an integer
/// and as a real, as in the language of SWAN's own scorer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ComparedCell {
    /// NULL.
    Null,
    /// A whole number.
    Integer(i64),
    /// Any other number, its bits.
    Real(u64),
    /// Text.
    Text(String),
}

impl ComparedCell {
    /// Reads a value as results hold it.
    #[must_use]
    pub fn of(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(b) => Self::Integer(i64::from(*b)),
            Json::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(i), _) => Self::Integer(i),
                (None, Some(r)) if r.fract() == 0.0 && r.abs() < 9e15 => Self::Integer(r as i64),
                (None, r) => Self::Real(r.unwrap_or(f64::NAN).to_bits()),
            },
            Json::String(text) => Self::Text(text.clone()),
            // Bytes, as `query --json` writes them.
            other => Self::Text(other.to_string()),
        }
    }

    /// The number that it is.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(i) => Some(*i as f64),
            Self::Real(bits) => Some(f64::from_bits(*bits)),
            Self::Null | Self::Text(_) => None,
        }
    }
}

/// Rows of values, as a record keeps them.
pub type Rows = Vec<Vec<Json>>;

/// A value of a result, as a record keeps it.
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

/// Rows of a query, as a record keeps them.
#[must_use]
pub fn kept(smoothie: &Smoothie) -> Rows {
    let row = |row: &Vec<_>| row.iter().map(|v| to_json(ValueRef::from(v))).collect();
    smoothie.rows.iter().map(row).collect()
}

/// Rows to be compared, values in their order.
#[must_use]
pub fn cells(rows: &Rows) -> Vec<Vec<ComparedCell>> {
    rows.iter().map(|row| row.iter().map(ComparedCell::of).collect()).collect()
}

/// Rows as SWAN compares them: each a sorted tuple of its values.
#[must_use]
pub fn sorted(rows: &[Vec<ComparedCell>]) -> Vec<Vec<ComparedCell>> {
    let mut rows = rows.to_vec();
    rows.iter_mut().for_each(|row| row.sort());
    rows
}

/// SWAN's rule: as many rows; each a sorted tuple; in order when ORDER BY stands
/// anywhere in the tested query, else as sets.
#[must_use]
pub fn by_swan(ours: &[Vec<ComparedCell>], gold: &[Vec<ComparedCell>], tested: &str) -> bool {
    let (mut ours, mut gold) = (sorted(ours), sorted(gold));
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

/// The strict rule: the same rows as often, values in the order of the columns;
/// in order when the gold query's outermost SELECT orders.
#[must_use]
pub fn strictly(ours: &[Vec<ComparedCell>], gold: &[Vec<ComparedCell>], ordered: bool) -> bool {
    if ordered {
        return ours == gold;
    }
    let (mut ours, mut gold) = (ours.to_vec(), gold.to_vec());
    ours.sort();
    gold.sort();
    ours == gold
}

/// Whether the outermost SELECT of a query orders its rows.
///
/// # Errors
/// [`SqlError`] for a text or name that is never closed.
pub fn orders(sql: &str) -> Result<bool, SqlError> {
    crate::blendsql::orders_outermost(sql)
}
