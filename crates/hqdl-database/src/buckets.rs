//! Sums over the keys of an expansion, grouped in buckets. The sums show which keys may have
//! changed since the tables were published, so that a run looks up facts about these keys only.
//!
//! A publication records a [`BucketSnapshot`]. The next run reads the key columns of the sources
//! once, computes the sums again, and visits only the keys of buckets that may differ. A bucket
//! contains whole entities, with all spellings of their keys. The run skips a bucket only if all of
//! these conditions hold:
//!
//! * The sum over its source rows equals the recorded sum. Each row adds a hash of its key, as
//!   stored, and of its source. The sum therefore changes if a row is added, deleted or moved to
//!   another source, or if the value, type or spelling of a key changes. The order of the rows and
//!   their other columns do not affect the sum: a cell depends on its entity alone, and a request
//!   reads the context again.
//! * All cells of its keys were known when the tables were published, and none is overridden.
//! * The fact store has neither gained nor lost an answer about the bucket's entities since.
//!
//! A snapshot is valid only for the tables that were published with it, the same definition of the
//! expansion, and the same version of hqdl. Like the tables' checksums, the sums are 64 bits of
//! cryptographic hashes.

use std::collections::{BTreeSet, HashSet};

use rusqlite::{OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::Database;
use super::versions::{hash_to_i64, push_value};
use hqdl_spec::Expansion;
use hqdl_values::cell::Tally;
use hqdl_values::key::Entity;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Maximum number of buckets.
const MAX_BUCKETS: u64 = 8192;
/// Approximate number of keys per bucket, if this results in fewer than [`MAX_BUCKETS`] buckets.
const KEYS_PER_BUCKET: u64 = 8;

/// Maximum number of samples per entry of a report.
pub(super) const MAX_SAMPLES: usize = 3;

/// Sums over the keys of an expansion, recorded when its tables were published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSnapshot {
    /// The buckets; their number is a power of two.
    pub buckets: Vec<Bucket>,
    /// Id of the fact store's last completion, and a description of that completion.
    pub last_completion: (i64, String),
    /// Id of the fact store's records when the cells were looked up.
    pub records_id: i64,
    /// Sample keys, each with its bucket number: keys that occur in several rows, and alternative
    /// spellings.
    pub samples: [Vec<(usize, String)>; 2],
}

/// Sums over the keys of one bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Sum of the hashes of the bucket's source rows.
    pub source_sum: i64,
    /// Number of source rows.
    pub source_rows: u64,
    /// Number of entities.
    pub entities: u64,
    /// Number of keys that occur in several rows of the same source.
    pub duplicates: u64,
    /// Number of additional spellings of entities.
    pub respelled: u64,
    /// Sum of the versions of the published rows.
    pub version_sum: i64,
    /// Number of published rows.
    pub published_rows: i64,
    /// Whether every run must visit the bucket's keys, because a cell is unknown or overridden.
    pub is_open: bool,
    /// Cells by state, per column.
    pub cells: Vec<Tally>,
}

impl BucketSnapshot {
    /// Creates empty buckets for an expansion with `keys` keys.
    #[must_use]
    pub fn for_keys(keys: u64, columns: usize) -> Self {
        let count = (keys / KEYS_PER_BUCKET).next_power_of_two().min(MAX_BUCKETS);
        let bucket = Bucket { cells: vec![Tally::default(); columns], ..Bucket::default() };
        let buckets = vec![bucket; usize::try_from(count).unwrap_or(1)];
        Self { buckets, ..Self::default() }
    }

    /// Returns a copy of the snapshot without cells. Only the values that the sources determine are
    /// left.
    #[must_use]
    pub fn without_cells(&self) -> Self {
        let mut snapshot = self.clone();
        for bucket in &mut snapshot.buckets {
            bucket.reset_cells();
        }
        snapshot
    }

    /// Returns the bucket number of an entity.
    #[must_use]
    pub fn bucket_index(&self, entity: &Entity) -> usize {
        self.bucket_index_of_text(entity.as_str().as_bytes())
    }

    /// Returns the bucket of an entity.
    pub fn bucket_mut(&mut self, entity: &Entity) -> &mut Bucket {
        let n = self.bucket_index(entity);
        &mut self.buckets[n]
    }

    /// Returns the bucket number of an entity's text.
    pub(super) fn bucket_index_of_text(&self, entity: &[u8]) -> usize {
        let mask = (self.buckets.len() as u64).wrapping_sub(1);
        usize::try_from(hash_to_i64(entity).cast_unsigned() & mask).unwrap_or_default()
    }

    /// Adds a key of an entity, with its number of rows in each source. Returns the entity's
    /// bucket.
    pub fn add_key(
        &mut self,
        key: &[Value],
        entity: &Entity,
        source_rows: &[u64],
        is_first_spelling: bool,
    ) -> &mut Bucket {
        let n = self.bucket_index(entity);
        let is_duplicate = source_rows.iter().any(|rows| *rows > 1);
        let remarks = [is_duplicate, !is_first_spelling].into_iter().zip(&mut self.samples);
        for (_, samples) in remarks.filter(|(is_sample, s)| *is_sample && s.len() < MAX_SAMPLES) {
            samples.push((n, format_key(key)));
        }
        let bucket = &mut self.buckets[n];
        let mut buffer = Vec::with_capacity(64);
        for (source, rows) in source_rows.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            let hash = hash_row(key, source, &mut buffer);
            let sum = hash.wrapping_mul(i64::try_from(*rows).unwrap_or_default());
            bucket.source_sum = bucket.source_sum.wrapping_add(sum);
            bucket.source_rows += rows;
        }
        bucket.duplicates += u64::from(is_duplicate);
        bucket.entities += u64::from(is_first_spelling);
        bucket.respelled += u64::from(!is_first_spelling);
        bucket
    }

    /// Copies the buckets that the run did not visit.
    pub fn add_unvisited_buckets(&mut self, changed: &ChangedBuckets) {
        for (n, bucket) in changed.unvisited_buckets() {
            self.buckets[n] = bucket.clone();
        }
        for (samples, recorded) in self.samples.iter_mut().zip(&changed.snapshot.samples) {
            let unvisited = recorded.iter().filter(|(n, _)| !changed.visited.contains(n));
            samples.extend(unvisited.cloned());
            samples.truncate(MAX_SAMPLES);
        }
    }

    /// Returns the sum of the hashes of all source rows.
    #[must_use]
    pub fn source_sum(&self) -> i64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.wrapping_add(bucket.source_sum))
    }

    /// Returns the number of published rows.
    #[must_use]
    pub fn published_rows(&self) -> i64 {
        self.buckets.iter().map(|bucket| bucket.published_rows).sum()
    }
}

impl Bucket {
    /// Resets the sums that depend on cells and published rows.
    pub fn reset_cells(&mut self) {
        self.cells.iter_mut().for_each(|cells| *cells = Tally::default());
        (self.version_sum, self.published_rows, self.is_open) = (0, 0, false);
    }

    /// Adds a published row.
    pub fn add_version(&mut self, version: Option<i64>) {
        if let Some(version) = version {
            self.version_sum = self.version_sum.wrapping_add(version);
            self.published_rows += 1;
        }
    }
}

/// Returns the hash that a source row with this key adds to its bucket's sum.
pub(super) fn hash_row(key: &[Value], source: usize, buffer: &mut Vec<u8>) -> i64 {
    buffer.clear();
    buffer.extend(source.to_le_bytes());
    key.iter().for_each(|value| push_value(buffer, value));
    hash_to_i64(buffer)
}

/// Formats a key for messages.
pub(super) fn format_key(key: &[Value]) -> String {
    let parts: Vec<String> = key
        .iter()
        .map(|v| match v {
            Value::Text(text) => sql::quote_text(text),
            other => other.to_string(),
        })
        .collect();
    format!("({})", parts.join(", "))
}

/// The buckets of a snapshot that a run visits, and the current state of the sources.
#[derive(Debug, Clone, Default)]
pub struct ChangedBuckets {
    /// Snapshot of the published tables.
    pub snapshot: BucketSnapshot,
    /// Indices of the visited buckets.
    pub visited: BTreeSet<usize>,
    /// Sums of the hashes of the source rows, per bucket.
    pub(super) source_sums: Vec<i64>,
    /// Number of source rows without a key.
    pub(super) null_rows: u64,
    buffer: Vec<u8>,
}

impl ChangedBuckets {
    /// Starts the comparison with a snapshot; no source row has been read yet.
    pub(super) fn new(snapshot: BucketSnapshot) -> Self {
        let source_sums = vec![0; snapshot.buckets.len()];
        Self { snapshot, source_sums, ..Self::default() }
    }

    /// Adds a source row to its bucket.
    pub(super) fn add_row(&mut self, expansion: &Expansion, source: usize, key: &[Value]) {
        if key.iter().all(|value| *value == Value::Null) {
            self.null_rows += 1;
            return;
        }
        self.buffer.clear();
        expansion.key.write_entity(key, &mut self.buffer);
        let sum = &mut self.source_sums[self.snapshot.bucket_index_of_text(&self.buffer)];
        *sum = sum.wrapping_add(hash_row(key, source, &mut self.buffer));
    }

    /// Determines the buckets to visit, after all source rows have been added.
    pub(super) fn mark_visited_buckets(&mut self, answered: &HashSet<Entity>) {
        self.visited = answered.iter().map(|entity| self.snapshot.bucket_index(entity)).collect();
        let sums = self.snapshot.buckets.iter().zip(&self.source_sums).enumerate();
        let may_differ = sums.filter(|(_, (b, sum))| b.is_open || b.source_sum != **sum);
        self.visited.extend(may_differ.map(|(n, _)| n));
    }

    /// Returns true if most buckets must be visited, so that visiting all keys is no slower.
    pub(super) fn visits_most_buckets(&self) -> bool {
        self.visited.len() * 2 > self.snapshot.buckets.len()
    }

    /// Returns the sum of the hashes of all source rows.
    #[must_use]
    pub fn source_sum(&self) -> i64 {
        self.source_sums.iter().fold(0, |sum, bucket| sum.wrapping_add(*bucket))
    }

    /// Returns the buckets that the run does not visit, with their bucket numbers.
    pub fn unvisited_buckets(&self) -> impl Iterator<Item = (usize, &Bucket)> {
        self.snapshot.buckets.iter().enumerate().filter(|(n, _)| !self.visited.contains(n))
    }

    /// Returns a snapshot with the same number of buckets as the published snapshot, all empty.
    #[must_use]
    pub fn empty_snapshot(&self) -> BucketSnapshot {
        let columns = self.snapshot.buckets.first().map_or(0, |bucket| bucket.cells.len());
        let bucket = Bucket { cells: vec![Tally::default(); columns], ..Bucket::default() };
        BucketSnapshot {
            buckets: vec![bucket; self.snapshot.buckets.len()],
            records_id: self.snapshot.records_id,
            ..BucketSnapshot::default()
        }
    }

    /// Returns true if the run visits the keys of an entity.
    #[must_use]
    pub fn contains(&self, entity: &Entity) -> bool {
        self.visited.contains(&self.snapshot.bucket_index(entity))
    }

    /// Returns the sum of the versions of the published rows in the visited buckets, and the number
    /// of these rows.
    #[must_use]
    pub fn visited_versions(&self) -> (i64, i64) {
        let visited = self.visited.iter().filter_map(|n| self.snapshot.buckets.get(*n));
        visited.fold((0, 0), |(sum, rows): (i64, i64), bucket| {
            (sum.wrapping_add(bucket.version_sum), rows + bucket.published_rows)
        })
    }

    /// Returns true if the visited keys come from the same rows that determined the visited
    /// buckets. Otherwise the sources changed in the meantime, or a key is a number that is stored
    /// with two types.
    #[must_use]
    pub fn matches_source_sums(&self, visited: &BucketSnapshot) -> bool {
        let sum_of = |n: &usize| visited.buckets.get(*n).map(|bucket| bucket.source_sum);
        self.visited.iter().all(|n| sum_of(n) == self.source_sums.get(*n).copied())
    }
}

impl Database {
    /// Returns the snapshot of an expansion's published tables; `None` if there is no valid
    /// snapshot.
    #[must_use]
    pub fn load_bucket_snapshot(&self, expansion: &Expansion) -> Option<BucketSnapshot> {
        let sql = "SELECT layout, checksums FROM hqdl_object WHERE name = ?1 AND type = 'buckets'";
        let (digest, bytes): (String, Vec<u8>) = self
            .connection()
            .query_row(sql, [format_snapshot_name(expansion)], |r| Ok((r.get(0)?, r.get(1)?)))
            .ok()?;
        let current = self.compute_snapshot_digest(expansion, &bytes).ok()??;
        if digest != current {
            return None;
        }
        let snapshot: BucketSnapshot = postcard::from_bytes(&bytes).ok()?;
        snapshot.buckets.len().is_power_of_two().then_some(snapshot)
    }

    /// Stores the snapshot of an expansion's published tables, or removes the stored snapshot if
    /// `snapshot` is `None`.
    pub(super) fn store_bucket_snapshot(
        &self,
        expansion: &Expansion,
        snapshot: Option<&BucketSnapshot>,
    ) -> rusqlite::Result<()> {
        let name = format_snapshot_name(expansion);
        self.connection().execute("DELETE FROM hqdl_object WHERE name = ?1", [&name])?;
        let Some(bytes) = snapshot.and_then(|s| postcard::to_allocvec(s).ok()) else {
            return Ok(());
        };
        if let Some(digest) = self.compute_snapshot_digest(expansion, &bytes)? {
            let sql = "INSERT INTO hqdl_object (name, type, expansion, layout, checksums)
                       VALUES (?1, 'buckets', ?2, ?3, ?4)";
            self.connection().execute(sql, params![name, expansion.name, digest, bytes])?;
        }
        Ok(())
    }

    /// Returns a digest of a snapshot and of everything that it depends on; `None` if the expansion
    /// is not published.
    fn compute_snapshot_digest(
        &self,
        expansion: &Expansion,
        bytes: &[u8],
    ) -> rusqlite::Result<Option<String>> {
        let sql = "SELECT inputs, checksums, rows FROM hqdl_object WHERE name = ?1";
        let published = self.connection().query_row(sql, [&expansion.name], |r| {
            Ok((r.get::<_, Option<String>>(0)?, r.get::<_, Option<String>>(1)?, r.get(2)?))
        });
        let Some(published): Option<(_, _, Option<i64>)> = published.optional()? else {
            return Ok(None);
        };
        let Expansion { key, key_parts, key_types, sources, columns, .. } = expansion;
        let definition = format!(
            "{} {published:?} {key:?} {key_parts:?} {key_types:?} {sources:?} {columns:?}",
            env!("CARGO_PKG_VERSION"),
        );
        let mut hasher = blake3::Hasher::new();
        hasher.update(blake3::hash(definition.as_bytes()).as_bytes()).update(bytes);
        Ok(Some(hasher.finalize().to_hex().to_string()))
    }
}

/// Returns the name of an expansion's snapshot in `hqdl_object`.
fn format_snapshot_name(expansion: &Expansion) -> String {
    format!("hqdl:buckets:{}", expansion.name)
}
