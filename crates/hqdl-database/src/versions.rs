//! Versions of published rows. A row's version is a hash of all that it contains; a row with an
//! unchanged version is not written again.
//!
//! The versions are summed into checksums per bucket, by the hash of the row's key. Comparing
//! checksums with those of the facts finds the changed rows, without reading the others.

use std::collections::BTreeSet;

use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::value::Value;

/// Number of buckets of an expansion's rows.
const BUCKETS: usize = 4096;

/// Published cell with an answer.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'f> {
    /// Name of the state.
    pub state: &'static str,
    /// Value; `Nothing` is NULL.
    pub value: &'f CellValue,
    /// Completion that it came from.
    pub completion: Option<i64>,
    /// The model's original text.
    pub raw: Option<&'f str>,
    /// Note about what was repaired.
    pub repair: Option<&'f str>,
}

/// Cell of a published row.
#[derive(Debug, Clone, Copy)]
pub enum PublishedCell<'f> {
    /// No source of the row requests the cell.
    NotAsked,
    /// The cell was not requested yet.
    Missing,
    /// Result of the request.
    Shown(Shown<'f>),
}

impl<'f> PublishedCell<'f> {
    pub(super) fn shown(&self) -> Option<&Shown<'f>> {
        match self {
            Self::Shown(shown) => Some(shown),
            Self::NotAsked | Self::Missing => None,
        }
    }
}

/// Key and version of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Key, a JSON array.
    pub key: String,
    /// Hash of the key.
    pub hash: i64,
    /// Version; `None` for a row without any requested cell, which is not published.
    pub of: Option<i64>,
}

impl Version {
    /// Returns the version of a row with these cells, one entry per column.
    #[must_use]
    pub fn of(row: &Row, cells: &[PublishedCell<'_>]) -> Self {
        let key = key_json(&row.key);
        let hash = hash(&key);
        if cells.iter().all(|cell| cell.shown().is_none()) {
            return Self { key, hash, of: None };
        }
        let mut bytes = Vec::with_capacity(256);
        push(&mut bytes, Some(key.as_bytes()));
        for cell in cells {
            let cell = match cell {
                PublishedCell::Shown(cell) => cell,
                PublishedCell::Missing => {
                    bytes.push(0);
                    continue;
                }
                PublishedCell::NotAsked => {
                    bytes.push(8);
                    continue;
                }
            };
            push(&mut bytes, Some(cell.state.as_bytes()));
            match cell.value {
                CellValue::Nothing => bytes.push(0),
                CellValue::One(value) => push_value(&mut bytes, value),
                CellValue::Many(values) => {
                    bytes.extend([9]);
                    bytes.extend((values.len() as u64).to_le_bytes());
                    values.iter().for_each(|value| push_value(&mut bytes, value));
                }
            }
            bytes.extend(cell.completion.unwrap_or(-1).to_le_bytes());
            push(&mut bytes, cell.raw.map(str::as_bytes));
            push(&mut bytes, cell.repair.map(str::as_bytes));
        }
        Self { key, hash, of: Some(head(&bytes)) }
    }

    /// Returns the bucket of the row.
    #[must_use]
    pub fn bucket(&self) -> usize {
        bucket(self.hash)
    }
}

/// Returns the bucket of a key hash.
#[must_use]
pub fn bucket(hash: i64) -> usize {
    usize::try_from(hash.cast_unsigned() % BUCKETS as u64).unwrap_or_default()
}

/// Returns the stored form of a key.
#[must_use]
pub fn key_json(key: &[Value]) -> String {
    let mut text = String::with_capacity(64);
    for (n, part) in key.iter().enumerate() {
        text.push(if n == 0 { '[' } else { ',' });
        text.push_str(&part.to_json().to_string());
    }
    text.push(']');
    text
}

fn push(bytes: &mut Vec<u8>, part: Option<&[u8]>) {
    bytes.push(u8::from(part.is_some()) + 1);
    let part = part.unwrap_or_default();
    bytes.extend((part.len() as u64).to_le_bytes());
    bytes.extend(part);
}

fn push_value(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(3),
        Value::Integer(i) => {
            bytes.push(4);
            bytes.extend(i.to_le_bytes());
        }
        Value::Real(r) => {
            bytes.push(5);
            bytes.extend(r.to_le_bytes());
        }
        Value::Text(text) => push(bytes, Some(text.as_bytes())),
    }
}

fn head(bytes: &[u8]) -> i64 {
    let hash = blake3::hash(bytes);
    hash.as_bytes().first_chunk().map_or(0, |head| i64::from_le_bytes(*head))
}

/// Checksums of the rows of an expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums {
    buckets: Vec<i64>,
    /// Number of published rows.
    pub rows: i64,
}

impl Default for Sums {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], rows: 0 }
    }
}

impl Sums {
    /// Returns checksums for `rows` rows, without any versions.
    pub(super) fn of(rows: i64) -> Self {
        Self { rows, ..Self::default() }
    }

    /// Adds a row.
    pub fn add(&mut self, version: &Version) {
        if let Some(of) = version.of {
            self.count(version.bucket(), of, 1);
        }
    }

    /// Adds a version to a bucket, and a number of rows.
    pub(super) fn count(&mut self, bucket: usize, version: i64, rows: i64) {
        if let Some(sum) = self.buckets.get_mut(bucket) {
            *sum = sum.wrapping_add(version);
        }
        self.rows += rows;
    }

    /// Returns the checksums, by bucket.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        self.buckets.iter().copied().enumerate()
    }

    /// Returns the buckets whose checksums differ.
    #[must_use]
    pub fn differing(&self, other: &Self) -> BTreeSet<usize> {
        (0..BUCKETS).filter(|n| self.buckets.get(*n) != other.buckets.get(*n)).collect()
    }

    /// Returns true if there are too many buckets to read each of them separately.
    #[must_use]
    pub fn is_much(buckets: &BTreeSet<usize>) -> bool {
        buckets.len() > BUCKETS / 4
    }
}

/// Returns the hash of a key.
#[must_use]
pub fn hash(key: &str) -> i64 {
    head(key.as_bytes())
}
