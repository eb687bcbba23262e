//! Versions of published rows. A row's version is a hash of its content. If the version is
//! unchanged, the row is not written again.
//!
//! The versions are summed into checksums per bucket, by the hash of the row's key. Comparing these
//! checksums with the checksums of the facts finds the changed rows without reading the others.

use std::collections::{BTreeMap, BTreeSet};

use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::key::quote_json;
use hqdl_values::value::Value;

/// Number of buckets that an expansion's rows are grouped into.
const BUCKET_COUNT: usize = 4096;

/// A published cell that has an answer.
#[derive(Debug, Clone, Copy)]
pub struct PublishedValue<'f> {
    /// Name of the state.
    pub state: &'static str,
    /// Value; `Nothing` is NULL.
    pub value: &'f CellValue,
    /// Id of the completion that contained the answer.
    pub completion: Option<i64>,
    /// The model's original text, if it differs from the value.
    pub raw: Option<&'f str>,
    /// Note about repairs of the answer.
    pub repair: Option<&'f str>,
    /// Note of the person who overrode the cell.
    pub note: Option<&'f str>,
}

/// A cell of a published row.
#[derive(Debug, Clone, Copy)]
pub enum PublishedCell<'f> {
    /// No source of the row requests the cell.
    NotAsked,
    /// The cell has not been requested yet.
    Missing,
    /// The result of the request.
    Value(PublishedValue<'f>),
}

impl<'f> PublishedCell<'f> {
    pub(super) fn value(&self) -> Option<&PublishedValue<'f>> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotAsked | Self::Missing => None,
        }
    }
}

/// The key and version of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowVersion {
    /// Key, a JSON array.
    pub key: String,
    /// Hash of the key.
    pub hash: i64,
    /// Version of the row; `None` if none of its cells was requested. Such a row is not published.
    pub version: Option<i64>,
}

impl RowVersion {
    /// Returns the key and version of a row. `cells` has one entry per column.
    #[must_use]
    pub fn from_row(row: &Row, cells: &[PublishedCell<'_>]) -> Self {
        let key = key_to_json(&row.key);
        let hash = hash_key(&key);
        if cells.iter().all(|cell| cell.value().is_none()) {
            return Self { key, hash, version: None };
        }
        let mut bytes = Vec::with_capacity(256);
        push_bytes(&mut bytes, Some(key.as_bytes()));
        for cell in cells {
            let cell = match cell {
                PublishedCell::Value(cell) => cell,
                PublishedCell::Missing => {
                    bytes.push(0);
                    continue;
                }
                PublishedCell::NotAsked => {
                    bytes.push(8);
                    continue;
                }
            };
            push_bytes(&mut bytes, Some(cell.state.as_bytes()));
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
            push_bytes(&mut bytes, cell.raw.map(str::as_bytes));
            push_bytes(&mut bytes, cell.repair.map(str::as_bytes));
            if let Some(note) = cell.note {
                bytes.push(10);
                push_bytes(&mut bytes, Some(note.as_bytes()));
            }
        }
        Self { key, hash, version: Some(hash_to_i64(&bytes)) }
    }

    /// Returns the index of the row's bucket.
    #[must_use]
    pub fn bucket_index(&self) -> usize {
        bucket_index(self.hash)
    }
}

/// Returns the bucket of a key hash.
#[must_use]
pub fn bucket_index(hash: i64) -> usize {
    usize::try_from(hash.cast_unsigned() % BUCKET_COUNT as u64).unwrap_or_default()
}

/// Returns the stored form of a key.
#[must_use]
pub fn key_to_json(key: &[Value]) -> String {
    let mut text = String::with_capacity(64);
    for (n, part) in key.iter().enumerate() {
        text.push(if n == 0 { '[' } else { ',' });
        match part {
            Value::Text(part) => text.push_str(&quote_json(part)),
            other => text.push_str(&other.to_json().to_string()),
        }
    }
    text.push(']');
    text
}

fn push_bytes(bytes: &mut Vec<u8>, part: Option<&[u8]>) {
    bytes.push(u8::from(part.is_some()) + 1);
    let part = part.unwrap_or_default();
    bytes.extend((part.len() as u64).to_le_bytes());
    bytes.extend(part);
}

pub(super) fn push_value(bytes: &mut Vec<u8>, value: &Value) {
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
        Value::Text(text) => push_bytes(bytes, Some(text.as_bytes())),
    }
}

pub(super) fn hash_to_i64(bytes: &[u8]) -> i64 {
    let hash = blake3::hash(bytes);
    hash.as_bytes().first_chunk().map_or(0, |prefix| i64::from_le_bytes(*prefix))
}

/// Checksums of an expansion's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksums {
    buckets: Vec<i64>,
    /// Number of published rows.
    pub rows: i64,
}

impl Default for Checksums {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKET_COUNT], rows: 0 }
    }
}

impl Checksums {
    /// Parses the result of [`Self::to_json`]; `rows` is the number of published rows.
    pub(super) fn from_json(text: &str, rows: i64) -> Option<Self> {
        let mut checksums = Self { rows, ..Self::default() };
        for (bucket, sum) in serde_json::from_str::<BTreeMap<usize, i64>>(text).ok()? {
            *checksums.buckets.get_mut(bucket)? = sum;
        }
        Some(checksums)
    }

    /// Returns a JSON object with the checksum of each nonempty bucket.
    pub(super) fn to_json(&self) -> String {
        let sums = self.buckets.iter().enumerate().filter(|(_, sum)| **sum != 0);
        serde_json::json!(sums.collect::<BTreeMap<_, _>>()).to_string()
    }

    /// Adds a row to the checksum of its bucket.
    pub fn add_row(&mut self, version: &RowVersion) {
        if let Some(row_version) = version.version {
            self.add_version(version.bucket_index(), row_version, 1);
        }
    }

    /// Adds a version to a bucket's checksum, and `rows` to the row count.
    pub(super) fn add_version(&mut self, bucket: usize, version: i64, rows: i64) {
        if let Some(checksum) = self.buckets.get_mut(bucket) {
            *checksum = checksum.wrapping_add(version);
        }
        self.rows += rows;
    }

    /// Returns the sum of all versions.
    #[must_use]
    pub fn version_sum(&self) -> i64 {
        self.buckets.iter().fold(0, |sum, checksum| sum.wrapping_add(*checksum))
    }

    /// Returns the buckets whose checksums differ.
    #[must_use]
    pub fn find_differing_buckets(&self, other: &Self) -> BTreeSet<usize> {
        (0..BUCKET_COUNT).filter(|n| self.buckets.get(*n) != other.buckets.get(*n)).collect()
    }

    /// Returns true if there are too many buckets to read each one separately.
    #[must_use]
    pub fn has_many_buckets(buckets: &BTreeSet<usize>) -> bool {
        buckets.len() > BUCKET_COUNT / 4
    }
}

/// Returns the hash of a key, which determines its bucket.
#[must_use]
pub fn hash_key(key: &str) -> i64 {
    hash_to_i64(key.as_bytes())
}
