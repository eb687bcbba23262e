//! Writes the rows of a published expansion, if they differ from the existing ones.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rusqlite::{Connection, OptionalExtension, Statement, params, params_from_iter};
use serde_json::{Value as Json, json};

use super::versions::{PublishedCell, Shown, Sums, Version, bucket, hash};
use super::{Database, StoreError};
use hqdl_spec::Expansion;
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Maximum number of buckets whose records are read from a server individually; if more are needed,
/// all are read at once.
const FETCHED: usize = 16;

/// Writer of an expansion's tables.
pub struct Tables<'e> {
    db: &'e Database,
    expansion: &'e Expansion,
    main: TableWriter<'e>,
    many: Vec<Option<TableWriter<'e>>>,
    record: [Statement<'e>; 3],
    /// Whether there were no tables before.
    fresh: bool,
    before: Sums,
    sums: Sums,
    /// Change of the number of cells from each completion.
    completions: BTreeMap<i64, i64>,
    /// Buckets whose records were read from a server; `None` if all were read, or all are local.
    fetched: Option<BTreeSet<usize>>,
}

/// Statements that write to a table.
struct TableWriter<'e> {
    insert: Statement<'e>,
    /// `None` if the table has only key columns.
    update: Option<Statement<'e>>,
    delete: Statement<'e>,
}

/// Result of writing an expansion's tables.
pub struct Written<'e> {
    pub(super) expansion: &'e Expansion,
    pub(super) fresh: bool,
    pub(super) before: Sums,
    pub(super) sums: Sums,
    pub(super) completions: BTreeMap<i64, i64>,
}

impl<'e> Tables<'e> {
    /// Opens the tables of an expansion: existing ones with the checksums `checksums`, or new ones
    /// without.
    pub(super) fn open(
        db: &'e Database,
        c: &'e Connection,
        expansion: &'e Expansion,
        stands: Option<Sums>,
    ) -> rusqlite::Result<Self> {
        let keys = expansion.key.names();
        let table = |name: &str, columns: Vec<&String>| -> rusqlite::Result<TableWriter<'e>> {
            let (all, table) = (keys.iter().chain(columns.iter().copied()), sql::name(name));
            let names = sql::names("", all);
            let marks: Vec<String> =
                (1..=keys.len() + columns.len()).map(|n| format!("?{n}")).collect();
            let of_key: Vec<String> = keys
                .iter()
                .zip(1..)
                .map(|(k, n)| format!("{table}.{} IS ?{n}", sql::name(k)))
                .collect();
            let of_key = of_key.join(" AND ");
            let set: Vec<String> = columns
                .iter()
                .zip(keys.len() + 1..)
                .map(|(c, n)| format!("{} = ?{n}", sql::name(c)))
                .collect();
            let update = format!("UPDATE {table} SET {} WHERE {of_key}", set.join(", "));
            let insert = format!("INSERT INTO {table} ({names}) VALUES ({})", marks.join(", "));
            Ok(TableWriter {
                insert: c.prepare(&insert)?,
                update: if set.is_empty() { None } else { Some(c.prepare(&update)?) },
                delete: c.prepare(&format!("DELETE FROM {table} WHERE {of_key}"))?,
            })
        };
        let singles = expansion.columns.iter().filter(|c| c.many.is_none()).map(|c| &c.name);
        let main = table(&expansion.name, singles.collect())?;
        let many = expansion
            .columns
            .iter()
            .map(|column| {
                column.many.as_ref().map(|m| table(&m.table, vec![&m.column])).transpose()
            })
            .collect::<rusqlite::Result<_>>()?;
        let record = [
            c.prepare("SELECT version, cells FROM hqdl_record WHERE expansion = ?1 AND key = ?2")?,
            c.prepare(
                "INSERT OR REPLACE INTO hqdl_record (expansion, key, cells, version)
                 VALUES (?1, ?2, ?3, ?4)",
            )?,
            c.prepare("DELETE FROM hqdl_record WHERE expansion = ?1 AND key = ?2")?,
        ];
        let (fresh, before) = (stands.is_none(), stands.unwrap_or_default());
        let fetched = (!fresh && db.server().is_some()).then(BTreeSet::new);
        Ok(Self {
            db,
            expansion,
            main,
            many,
            record,
            fresh,
            sums: before.clone(),
            before,
            completions: BTreeMap::new(),
            fetched,
        })
    }

    /// Reads the records of a bucket, or of all, unless they are local.
    fn fetch(&mut self, bucket: Option<usize>) -> Result<(), StoreError> {
        let (Some(server), Some(fetched)) = (self.db.server(), &mut self.fetched) else {
            return Ok(());
        };
        let number = |bucket: &usize| i32::try_from(*bucket).unwrap_or(i32::MAX);
        let (name, connection) = (&self.expansion.name, self.db.connection());
        match bucket {
            Some(bucket) if fetched.contains(&bucket) => {}
            Some(bucket) if fetched.len() < FETCHED => {
                server.fetch_records(name, Some(number(&bucket)), &[], connection)?;
                fetched.insert(bucket);
            }
            _ => {
                let known: Vec<i32> = fetched.iter().map(number).collect();
                server.fetch_records(name, None, &known, connection)?;
                self.fetched = None;
            }
        }
        Ok(())
    }

    /// Writes a row, unless it is unchanged; `cells` has one entry per column. A row without any
    /// requested cell is not published.
    ///
    /// # Errors
    /// Returns [`StoreError`] from `SQLite`.
    pub fn row(&mut self, row: &Row, cells: &[PublishedCell<'_>]) -> Result<(), StoreError> {
        let (db, version) = (self.db, Version::of(row, cells));
        self.fetch(Some(version.bucket()))?;
        self.write(row, cells, &version).map_err(|e| db.error(&e))
    }

    fn write(
        &mut self,
        row: &Row,
        cells: &[PublishedCell<'_>],
        version: &Version,
    ) -> rusqlite::Result<()> {
        let [get, put, _] = &mut self.record;
        let name = &self.expansion.name;
        let before: Option<(i64, String)> = if self.fresh {
            None
        } else {
            get.query_row([name, &version.key], |r| Ok((r.get(0)?, r.get(1)?))).optional()?
        };
        let Some(of) = version.of else {
            return match before {
                Some(before) => self.take_out(&row.key, &version.key, before),
                None => Ok(()),
            };
        };
        if before.as_ref().is_some_and(|(before, _)| *before == of) {
            return Ok(());
        }
        let record: serde_json::Map<String, Json> = (self.expansion.columns.iter().zip(cells))
            .filter(|(_, cell)| !matches!(cell, PublishedCell::NotAsked))
            .map(|(column, cell)| (column.name.clone(), cell_json(cell.shown())))
            .collect();
        put.execute(params![name, version.key, Json::Object(record.clone()).to_string(), of])?;
        let had = before.as_ref().map(|(_, cells)| read(cells));
        let mut values: Vec<&Value> = row.key.iter().collect();
        for ((column, cell), many) in self.expansion.columns.iter().zip(cells).zip(&mut self.many) {
            let value = cell.shown().map_or(&CellValue::Nothing, |s| s.value);
            let Some(many) = many else {
                values.push(if let CellValue::One(value) = value { value } else { &Value::Null });
                continue;
            };
            if let Some(had) = &had {
                // A row is always sent to a server with all of its lists.
                let same = had.get(&column.name) == record.get(&column.name);
                if same && self.db.server().is_none() {
                    continue;
                }
                many.delete.execute(params_from_iter(&row.key))?;
            }
            let CellValue::Many(items) = value else { continue };
            for item in items {
                many.insert.execute(params_from_iter(row.key.iter().chain([item])))?;
            }
        }
        let updated = match (&had, &mut self.main.update) {
            (None, _) => 0,
            (Some(_), Some(update)) => update.execute(params_from_iter(&values))?,
            (Some(_), None) => 1,
        };
        if updated == 0 {
            self.main.insert.execute(params_from_iter(&values))?;
        }
        for id in cells.iter().filter_map(|c| c.shown()?.completion) {
            *self.completions.entry(id).or_default() += 1;
        }
        let bucket = version.bucket();
        self.sums.count(bucket, of, 1);
        if let (Some((before, _)), Some(had)) = (before, had) {
            self.forget(bucket, before, &had);
        }
        Ok(())
    }

    /// Deletes a published row that has no cells any more.
    fn take_out(
        &mut self,
        values: &[Value],
        key: &str,
        (version, cells): (i64, String),
    ) -> rusqlite::Result<()> {
        self.main.delete.execute(params_from_iter(values))?;
        for many in self.many.iter_mut().flatten() {
            many.delete.execute(params_from_iter(values))?;
        }
        let [.., delete] = &mut self.record;
        delete.execute([&self.expansion.name, key])?;
        self.forget(bucket(hash(key)), version, &read(&cells));
        Ok(())
    }

    fn forget(&mut self, bucket: usize, version: i64, cells: &serde_json::Map<String, Json>) {
        self.sums.count(bucket, version.wrapping_neg(), -1);
        for id in cells.values().filter_map(|cell| cell.get(2)?.as_i64()) {
            *self.completions.entry(id).or_default() -= 1;
        }
    }

    /// Deletes the rows of some buckets, or of all, whose key hash is not in `keys`.
    ///
    /// # Errors
    /// Returns [`StoreError`] from `SQLite`.
    pub fn retain(
        &mut self,
        buckets: Option<&BTreeSet<usize>>,
        keys: &HashSet<i64>,
    ) -> Result<(), StoreError> {
        let db = self.db;
        match buckets {
            Some(buckets) => buckets.iter().try_for_each(|bucket| self.fetch(Some(*bucket)))?,
            None => self.fetch(None)?,
        }
        let mut gone = || -> rusqlite::Result<()> {
            let mut all = db
                .connection()
                .prepare("SELECT key, version, cells FROM hqdl_record WHERE expansion = ?1")?;
            let mut rows = all.query([&self.expansion.name])?;
            let mut gone = Vec::new();
            while let Some(row) = rows.next()? {
                let key = row.get_ref(0)?.as_str()?;
                let hash = hash(key);
                if buckets.is_none_or(|b| b.contains(&bucket(hash))) && !keys.contains(&hash) {
                    gone.push((key.to_owned(), (row.get(1)?, row.get(2)?)));
                }
            }
            drop(rows);
            for (key, before) in gone {
                let parts: Vec<Json> = serde_json::from_str(&key).unwrap_or_default();
                let values: Vec<Value> = parts.iter().map(Value::from_json).collect();
                self.take_out(&values, &key, before)?;
            }
            Ok(())
        };
        gone().map_err(|e| db.error(&e))
    }

    /// Returns the checksums of the previous tables; `None` if they are recreated.
    #[must_use]
    pub fn stood(&self) -> Option<&Sums> {
        (!self.fresh).then_some(&self.before)
    }

    /// Returns the number of published rows.
    #[must_use]
    pub fn rows(&self) -> i64 {
        self.sums.rows
    }

    /// Finishes writing.
    #[must_use]
    pub fn finish(self) -> Written<'e> {
        let Self { expansion, fresh, before, sums, completions, .. } = self;
        Written { expansion, fresh, before, sums, completions }
    }
}

/// Parses the cells of a record.
fn read(cells: &str) -> serde_json::Map<String, Json> {
    serde_json::from_str(cells).unwrap_or_default()
}

/// Returns `[state, value, completion, raw, repair]`, without trailing nulls.
fn cell_json(shown: Option<&Shown<'_>>) -> Json {
    let Some(shown) = shown else { return json!(["missing"]) };
    let mut cell = vec![
        json!(shown.state),
        shown.value.to_json(),
        json!(shown.completion),
        json!(shown.raw),
        json!(shown.repair),
    ];
    while cell.last().is_some_and(Json::is_null) {
        cell.pop();
    }
    Json::Array(cell)
}

impl Written<'_> {
    /// Returns the changed checksums, by bucket.
    pub(super) fn changed(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        let now = self.sums.buckets();
        now.zip(self.before.buckets()).filter(|(now, before)| now != before).map(|(now, _)| now)
    }
}
