//! Writes the rows of a published expansion that differ from the existing rows.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rusqlite::{Connection, OptionalExtension, Statement, params, params_from_iter};
use serde_json::{Value as Json, json};

use super::buckets::{BucketSnapshot, ChangedBuckets};
use super::target::RowTransfer;
use super::versions::{
    Checksums, PublishedCell, PublishedValue, RowVersion, bucket_index, hash_key,
};
use super::{Database, StoreError};
use hqdl_spec::Expansion;
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Maximum number of buckets whose records are read from a server individually. If more are needed,
/// all records are read at once.
const MAX_FETCHED_BUCKETS: usize = 16;

/// Writes an expansion's tables.
pub struct ExpansionWriter<'e> {
    db: &'e Database,
    expansion: &'e Expansion,
    main: TableWriter<'e>,
    many: Vec<Option<TableWriter<'e>>>,
    record_statements: [Statement<'e>; 3],
    /// Whether the tables are new.
    is_new: bool,
    before: Checksums,
    checksums: Checksums,
    /// Change in the number of published cells, by completion.
    completions: BTreeMap<i64, i64>,
    /// Buckets whose records were read from a server; `None` if all records were read or are local.
    fetched_buckets: Option<BTreeSet<usize>>,
}

/// Statements that write to a table.
struct TableWriter<'e> {
    insert: Statement<'e>,
    /// Statement that updates a row; `None` if the table has only key columns.
    update: Option<Statement<'e>>,
    delete: Statement<'e>,
}

/// Result of writing an expansion's tables.
pub struct WrittenTables<'e> {
    pub(super) expansion: &'e Expansion,
    pub(super) is_new: bool,
    pub(super) checksums: Checksums,
    pub(super) completions: BTreeMap<i64, i64>,
    /// Snapshot of the keys and their rows.
    pub(super) snapshot: Option<BucketSnapshot>,
}

impl<'e> ExpansionWriter<'e> {
    /// Opens the tables of an expansion. If `checksums` is `None`, the tables are new.
    pub(super) fn open(
        db: &'e Database,
        c: &'e Connection,
        expansion: &'e Expansion,
        checksums: Option<Checksums>,
    ) -> rusqlite::Result<Self> {
        let keys = expansion.key.names();
        let prepare_table =
            |name: &str, columns: Vec<&String>| -> rusqlite::Result<TableWriter<'e>> {
                let (all_columns, table) =
                    (keys.iter().chain(columns.iter().copied()), sql::quote_name(name));
                let names = sql::quote_names("", all_columns);
                let marks: Vec<String> =
                    (1..=keys.len() + columns.len()).map(|n| format!("?{n}")).collect();
                let key_conditions: Vec<String> = keys
                    .iter()
                    .zip(1..)
                    .map(|(k, n)| format!("{table}.{} IS ?{n}", sql::quote_name(k)))
                    .collect();
                let key_condition = key_conditions.join(" AND ");
                let assignments: Vec<String> = columns
                    .iter()
                    .zip(keys.len() + 1..)
                    .map(|(c, n)| format!("{} = ?{n}", sql::quote_name(c)))
                    .collect();
                let update =
                    format!("UPDATE {table} SET {} WHERE {key_condition}", assignments.join(", "));
                let insert = format!("INSERT INTO {table} ({names}) VALUES ({})", marks.join(", "));
                Ok(TableWriter {
                    insert: c.prepare(&insert)?,
                    update: if assignments.is_empty() { None } else { Some(c.prepare(&update)?) },
                    delete: c.prepare(&format!("DELETE FROM {table} WHERE {key_condition}"))?,
                })
            };
        let single_columns = expansion.columns.iter().filter(|c| c.many.is_none()).map(|c| &c.name);
        let main = prepare_table(&expansion.name, single_columns.collect())?;
        let many = expansion
            .columns
            .iter()
            .map(|column| {
                column.many.as_ref().map(|m| prepare_table(&m.table, vec![&m.column])).transpose()
            })
            .collect::<rusqlite::Result<_>>()?;
        let record_statements = [
            c.prepare("SELECT version, cells FROM hqdl_record WHERE expansion = ?1 AND key = ?2")?,
            c.prepare(
                "INSERT OR REPLACE INTO hqdl_record (expansion, key, cells, version)
                 VALUES (?1, ?2, ?3, ?4)",
            )?,
            c.prepare("DELETE FROM hqdl_record WHERE expansion = ?1 AND key = ?2")?,
        ];
        let (is_new, before) = (checksums.is_none(), checksums.unwrap_or_default());
        let fetched_buckets =
            (!is_new && db.target.row_transfer() == RowTransfer::Differences).then(BTreeSet::new);
        Ok(Self {
            db,
            expansion,
            main,
            many,
            record_statements,
            is_new,
            checksums: before.clone(),
            before,
            completions: BTreeMap::new(),
            fetched_buckets,
        })
    }

    /// Reads the records of a bucket, or of all buckets if `bucket` is `None`. Does nothing if the
    /// records are local.
    fn fetch_records(&mut self, bucket: Option<usize>) -> Result<(), StoreError> {
        let Some(fetched_buckets) = &mut self.fetched_buckets else { return Ok(()) };
        let (db, name) = (self.db, &self.expansion.name);
        match bucket {
            Some(bucket) if fetched_buckets.contains(&bucket) => {}
            Some(bucket) if fetched_buckets.len() < MAX_FETCHED_BUCKETS => {
                db.target.fetch_records(db, name, Some(bucket), &[])?;
                fetched_buckets.insert(bucket);
            }
            _ => {
                let known: Vec<usize> = fetched_buckets.iter().copied().collect();
                db.target.fetch_records(db, name, None, &known)?;
                self.fetched_buckets = None;
            }
        }
        Ok(())
    }

    /// Writes a row, unless it is unchanged; `cells` has one entry per column. A row without any
    /// requested cell is not published. Returns the row's version; `None` if the row is not
    /// published.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the row cannot be compared or written.
    pub fn write_row(
        &mut self,
        row: &Row,
        cells: &[PublishedCell<'_>],
    ) -> Result<Option<i64>, StoreError> {
        let (db, version) = (self.db, RowVersion::from_row(row, cells));
        self.fetch_records(Some(version.bucket_index()))?;
        self.write_local_row(row, cells, &version).map_err(|e| db.to_store_error(&e))?;
        Ok(version.version)
    }

    fn write_local_row(
        &mut self,
        row: &Row,
        cells: &[PublishedCell<'_>],
        version: &RowVersion,
    ) -> rusqlite::Result<()> {
        let [select, insert, _] = &mut self.record_statements;
        let name = &self.expansion.name;
        let before: Option<(i64, String)> = if self.is_new {
            None
        } else {
            select.query_row([name, &version.key], |r| Ok((r.get(0)?, r.get(1)?))).optional()?
        };
        let Some(row_version) = version.version else {
            return match before {
                Some(before) => self.delete_row(&row.key, &version.key, before),
                None => Ok(()),
            };
        };
        if before.as_ref().is_some_and(|(before, _)| *before == row_version) {
            return Ok(());
        }
        let record: serde_json::Map<String, Json> = (self.expansion.columns.iter().zip(cells))
            .filter(|(_, cell)| !matches!(cell, PublishedCell::NotAsked))
            .map(|(column, cell)| (column.name.clone(), cell_to_json(cell.value())))
            .collect();
        insert.execute(params![
            name,
            version.key,
            Json::Object(record.clone()).to_string(),
            row_version
        ])?;
        let previous_cells = before.as_ref().map(|(_, cells)| parse_cells(cells));
        let mut values: Vec<&Value> = row.key.iter().collect();
        for ((column, cell), many) in self.expansion.columns.iter().zip(cells).zip(&mut self.many) {
            let value = cell.value().map_or(&CellValue::Nothing, |s| s.value);
            let Some(many) = many else {
                values.push(if let CellValue::One(value) = value { value } else { &Value::Null });
                continue;
            };
            if let Some(previous_cells) = &previous_cells {
                // A server always receives a row with all of its lists.
                let same = previous_cells.get(&column.name) == record.get(&column.name);
                if same && self.db.target.row_transfer() == RowTransfer::InPlace {
                    continue;
                }
                many.delete.execute(params_from_iter(&row.key))?;
            }
            let CellValue::Many(items) = value else { continue };
            for item in items {
                many.insert.execute(params_from_iter(row.key.iter().chain([item])))?;
            }
        }
        let updated = match (&previous_cells, &mut self.main.update) {
            (None, _) => 0,
            (Some(_), Some(update)) => update.execute(params_from_iter(&values))?,
            (Some(_), None) => 1,
        };
        if updated == 0 {
            self.main.insert.execute(params_from_iter(&values))?;
        }
        for id in cells.iter().filter_map(|c| c.value()?.completion) {
            *self.completions.entry(id).or_default() += 1;
        }
        let bucket = version.bucket_index();
        self.checksums.add_version(bucket, row_version, 1);
        if let (Some((before, _)), Some(previous_cells)) = (before, previous_cells) {
            self.subtract_row(bucket, before, &previous_cells);
        }
        Ok(())
    }

    /// Deletes a published row that no longer has any cells.
    fn delete_row(
        &mut self,
        values: &[Value],
        key: &str,
        (version, cells): (i64, String),
    ) -> rusqlite::Result<()> {
        self.main.delete.execute(params_from_iter(values))?;
        for many in self.many.iter_mut().flatten() {
            many.delete.execute(params_from_iter(values))?;
        }
        let [.., delete] = &mut self.record_statements;
        delete.execute([&self.expansion.name, key])?;
        self.subtract_row(bucket_index(hash_key(key)), version, &parse_cells(&cells));
        Ok(())
    }

    fn subtract_row(&mut self, bucket: usize, version: i64, cells: &serde_json::Map<String, Json>) {
        self.checksums.add_version(bucket, version.wrapping_neg(), -1);
        for id in cells.values().filter_map(|cell| cell.get(2)?.as_i64()) {
            *self.completions.entry(id).or_default() -= 1;
        }
    }

    /// Deletes the rows whose key hash is not in `keys`, from the given buckets or from all
    /// buckets. With `changed`, deletes only rows whose keys are in visited buckets.
    ///
    /// # Errors
    /// Returns [`StoreError`] if rows cannot be read or deleted.
    pub fn delete_obsolete_rows(
        &mut self,
        buckets: Option<&BTreeSet<usize>>,
        keys: &HashSet<i64>,
        changed: Option<&ChangedBuckets>,
    ) -> Result<(), StoreError> {
        let db = self.db;
        let key_columns = &self.expansion.key;
        let is_visited = |key: &str| {
            changed.is_none_or(|c| c.contains(&key_columns.build_entity(&parse_key(key))))
        };
        match buckets {
            Some(buckets) => {
                buckets.iter().try_for_each(|bucket| self.fetch_records(Some(*bucket)))?;
            }
            None => self.fetch_records(None)?,
        }
        let mut delete_missing = || -> rusqlite::Result<()> {
            let mut select = db
                .connection()
                .prepare("SELECT key, version, cells FROM hqdl_record WHERE expansion = ?1")?;
            let mut rows = select.query([&self.expansion.name])?;
            let mut missing = Vec::new();
            while let Some(row) = rows.next()? {
                let key = row.get_ref(0)?.as_str()?;
                let hash = hash_key(key);
                if buckets.is_none_or(|b| b.contains(&bucket_index(hash)))
                    && !keys.contains(&hash)
                    && is_visited(key)
                {
                    missing.push((key.to_owned(), (row.get(1)?, row.get(2)?)));
                }
            }
            drop(rows);
            for (key, before) in missing {
                self.delete_row(&parse_key(&key), &key, before)?;
            }
            Ok(())
        };
        delete_missing().map_err(|e| db.to_store_error(&e))
    }

    /// Returns the checksums of the existing tables; `None` if the tables are recreated.
    #[must_use]
    pub fn previous_checksums(&self) -> Option<&Checksums> {
        (!self.is_new).then_some(&self.before)
    }

    /// Returns the number of published rows.
    #[must_use]
    pub fn row_count(&self) -> i64 {
        self.checksums.rows
    }

    /// Finishes writing. `snapshot` describes the keys and the written rows.
    #[must_use]
    pub fn finish(self, snapshot: Option<BucketSnapshot>) -> WrittenTables<'e> {
        let Self { expansion, is_new, checksums, completions, .. } = self;
        WrittenTables { expansion, is_new, checksums, completions, snapshot }
    }
}

fn parse_key(key: &str) -> Vec<Value> {
    let parts: Vec<Json> = serde_json::from_str(key).unwrap_or_default();
    parts.iter().map(Value::from_json).collect()
}

fn parse_cells(cells: &str) -> serde_json::Map<String, Json> {
    serde_json::from_str(cells).unwrap_or_default()
}

/// Returns the JSON array `[state, value, completion, raw, repair, note]`, without trailing nulls.
fn cell_to_json(value: Option<&PublishedValue<'_>>) -> Json {
    let Some(value) = value else { return json!(["missing"]) };
    let mut cell = vec![
        json!(value.state),
        value.value.to_json(),
        json!(value.completion),
        json!(value.raw),
        json!(value.repair),
        json!(value.note),
    ];
    while cell.last().is_some_and(Json::is_null) {
        cell.pop();
    }
    Json::Array(cell)
}
