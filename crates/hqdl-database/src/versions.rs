//! Versions of published rows. Each row has one, a hash of all that it shows; a row
//! whose version is what it was is not written again. The versions are summed up in
//! buckets, by the hash of the row's key: who knows the sums of what the facts say
//! sees which rows to look at, without reading the others.

use std::collections::BTreeSet;

use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::value::Value;

/// Into so many parts the rows of an expansion are divided.
const BUCKETS: usize = 4096;

/// A cell as it is published.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'f> {
    /// The state's name.
    pub state: &'static str,
    /// The value; `Nothing` is NULL.
    pub value: &'f CellValue,
    /// The completion it came from.
    pub completion: Option<i64>,
    /// The model's own words.
    pub raw: Option<&'f str>,
    /// What was repaired.
    pub repair: Option<&'f str>,
}

/// A cell of a row that is published.
#[derive(Debug, Clone, Copy)]
pub enum PublishedCell<'f> {
    /// No source of the row asks for it.
    NotAsked,
    /// It was not asked for yet.
    Missing,
    /// What came of asking.
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

/// What a row is found by, and what it shows, in brief.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The key, a JSON array.
    pub key: String,
    /// What the key is told apart by.
    pub hash: i64,
    /// `None` for a row of which nothing was asked: it is not published.
    pub of: Option<i64>,
}

impl Version {
    /// The version of a row with these cells, one entry a column.
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

    /// Where it is counted.
    #[must_use]
    pub fn bucket(&self) -> usize {
        bucket(self.hash)
    }
}

/// The bucket of a key, by its hash.
#[must_use]
pub fn bucket(hash: i64) -> usize {
    usize::try_from(hash.cast_unsigned() % BUCKETS as u64).unwrap_or_default()
}

/// A key as it is written down.
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

/// All that an expansion shows, summed up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums {
    buckets: Vec<i64>,
    /// Rows that are published.
    pub rows: i64,
}

impl Default for Sums {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], rows: 0 }
    }
}

impl Sums {
    /// Of so many rows, of which nothing is summed up yet.
    pub(super) fn of(rows: i64) -> Self {
        Self { rows, ..Self::default() }
    }

    /// Counts a row in.
    pub fn add(&mut self, version: &Version) {
        if let Some(of) = version.of {
            self.count(version.bucket(), of, 1);
        }
    }

    /// Counts a version in a bucket, and rows.
    pub(super) fn count(&mut self, bucket: usize, version: i64, rows: i64) {
        if let Some(sum) = self.buckets.get_mut(bucket) {
            *sum = sum.wrapping_add(version);
        }
        self.rows += rows;
    }

    /// The sums, by bucket.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        self.buckets.iter().copied().enumerate()
    }

    /// The buckets in which other sums have something else.
    #[must_use]
    pub fn differing(&self, other: &Self) -> BTreeSet<usize> {
        (0..BUCKETS).filter(|n| self.buckets.get(*n) != other.buckets.get(*n)).collect()
    }

    /// Whether so many buckets are too many to be looked for one by one.
    #[must_use]
    pub fn is_much(buckets: &BTreeSet<usize>) -> bool {
        buckets.len() > BUCKETS / 4
    }
}

/// What a key is told apart by.
#[must_use]
pub fn hash(key: &str) -> i64 {
    head(key.as_bytes())
}
