//! The rows of a published expansion. Each has a *version*, a hash of all that it
//! shows; a row whose version is what it was is not written again. The versions
//! are summed up in buckets, by the hash of the row's key: who knows the sums of
//! what the facts say sees which rows to look at, without reading the others.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rusqlite::{OptionalExtension, Statement, params, params_from_iter};
use serde_json::{Value as Json, json};

use super::publish::Publication;
use super::{Database, StoreError};
use crate::cell::CellValue;
use crate::prompt::Row;
use crate::spec::Expansion;
use crate::sql;
use crate::value::Value;

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
    pub fn of(row: &Row, cells: &[Option<Shown<'_>>]) -> Self {
        let key = key_json(&row.key);
        let hash = hash(&key);
        if cells.iter().all(Option::is_none) {
            return Self { key, hash, of: None };
        }
        let mut bytes = Vec::with_capacity(256);
        push(&mut bytes, Some(key.as_bytes()));
        for cell in cells {
            let Some(cell) = cell else {
                bytes.push(0);
                continue;
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
    usize::try_from(hash.rem_euclid(BUCKETS as i64)).unwrap_or_default()
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
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(bytes).as_bytes();
    i64::from_le_bytes([a, b, c, d, e, f, g, h])
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
    /// Counts a row in.
    pub fn add(&mut self, version: &Version) {
        if let Some(of) = version.of {
            self.count(version.bucket(), of, 1);
        }
    }

    fn count(&mut self, bucket: usize, version: i64, rows: i64) {
        if let Some(sum) = self.buckets.get_mut(bucket) {
            *sum = sum.wrapping_add(version);
        }
        self.rows += rows;
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

/// The tables of an expansion, being written.
pub struct Tables<'e> {
    db: &'e Database,
    expansion: &'e Expansion,
    main: Table<'e>,
    many: Vec<Option<Table<'e>>>,
    record: [Statement<'e>; 3],
    /// Whether nothing stood there before.
    fresh: bool,
    before: Sums,
    sums: Sums,
    /// Cells that came from each completion, more or less than before.
    completions: BTreeMap<i64, i64>,
}

/// How a table is written to.
struct Table<'e> {
    insert: Statement<'e>,
    /// `None` where there is nothing but the key.
    update: Option<Statement<'e>>,
    delete: Statement<'e>,
}

/// What was written for an expansion.
pub struct Written<'e> {
    pub(super) expansion: &'e Expansion,
    pub(super) fresh: bool,
    pub(super) before: Sums,
    pub(super) sums: Sums,
    pub(super) completions: BTreeMap<i64, i64>,
}

impl<'e> Tables<'e> {
    /// Writes to the tables of an expansion: to new ones, or over what stands,
    /// summed up, there.
    pub(super) fn open(
        publication: &'e Publication<'_>,
        expansion: &'e Expansion,
        stands: Option<Sums>,
    ) -> rusqlite::Result<Self> {
        let c = publication.connection();
        let keys = expansion.key.names();
        let table = |name: &str, columns: Vec<&String>| -> rusqlite::Result<Table<'e>> {
            let (all, table) = (keys.iter().chain(columns.iter().copied()), sql::name(name));
            let names = sql::names("", all);
            let marks: Vec<String> =
                (1..=keys.len() + columns.len()).map(|n| format!("?{n}")).collect();
            let of_key: Vec<String> =
                keys.iter().zip(1..).map(|(k, n)| format!("{} IS ?{n}", sql::name(k))).collect();
            let of_key = of_key.join(" AND ");
            let set: Vec<String> = columns
                .iter()
                .zip(keys.len() + 1..)
                .map(|(c, n)| format!("{} = ?{n}", sql::name(c)))
                .collect();
            let update = format!("UPDATE {table} SET {} WHERE {of_key}", set.join(", "));
            let insert = format!("INSERT INTO {table} ({names}) VALUES ({})", marks.join(", "));
            Ok(Table {
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
        Ok(Self {
            db: publication.db,
            expansion,
            main,
            many,
            record,
            fresh,
            sums: before.clone(),
            before,
            completions: BTreeMap::new(),
        })
    }

    /// Writes a row, unless it stands as it is; `cells` has one entry a column,
    /// `None` where nothing was ever asked. A row of which nothing was asked is not
    /// published.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn row(&mut self, row: &Row, cells: &[Option<Shown<'_>>]) -> Result<(), StoreError> {
        let (db, version) = (self.db, Version::of(row, cells));
        self.write(row, cells, &version).map_err(|e| db.error(&e))
    }

    fn write(
        &mut self,
        row: &Row,
        cells: &[Option<Shown<'_>>],
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
            .map(|(column, shown)| (column.name.clone(), cell_json(shown.as_ref())))
            .collect();
        put.execute(params![name, version.key, Json::Object(record.clone()).to_string(), of])?;
        let had = before.as_ref().map(|(_, cells)| read(cells));
        let mut values: Vec<&Value> = row.key.iter().collect();
        for ((column, shown), many) in self.expansion.columns.iter().zip(cells).zip(&mut self.many)
        {
            let value = shown.as_ref().map_or(&CellValue::Nothing, |s| s.value);
            let Some(many) = many else {
                values.push(if let CellValue::One(value) = value { value } else { &Value::Null });
                continue;
            };
            if let Some(had) = &had {
                if had.get(&column.name) == record.get(&column.name) {
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
        for id in cells.iter().flatten().filter_map(|c| c.completion) {
            *self.completions.entry(id).or_default() += 1;
        }
        let bucket = version.bucket();
        self.sums.count(bucket, of, 1);
        if let (Some((before, _)), Some(had)) = (before, had) {
            self.forget(bucket, before, &had);
        }
        Ok(())
    }

    /// Takes a row out that is published and has nothing to show any more.
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

    /// Takes out the rows of some buckets, or of all, whose key is not among these,
    /// as hashes.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn retain(
        &mut self,
        buckets: Option<&BTreeSet<usize>>,
        keys: &HashSet<i64>,
    ) -> Result<(), StoreError> {
        let db = self.db;
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

    /// What stood there before, summed up; `None` when it is made anew.
    #[must_use]
    pub fn stood(&self) -> Option<&Sums> {
        (!self.fresh).then_some(&self.before)
    }

    /// Rows that are published now.
    #[must_use]
    pub fn rows(&self) -> i64 {
        self.sums.rows
    }

    /// Ends writing.
    #[must_use]
    pub fn finish(self) -> Written<'e> {
        let Self { expansion, fresh, before, sums, completions, .. } = self;
        Written { expansion, fresh, before, sums, completions }
    }
}

/// What a key is told apart by.
#[must_use]
pub fn hash(key: &str) -> i64 {
    head(key.as_bytes())
}

/// The cells of a record, as they were written.
fn read(cells: &str) -> serde_json::Map<String, Json> {
    serde_json::from_str(cells).unwrap_or_default()
}

/// `[state, value, completion, raw, repair]`, trailing nulls left out.
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
    /// The sums that are others now, by bucket.
    pub(super) fn changed(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        let sums = self.sums.buckets.iter().zip(&self.before.buckets).enumerate();
        sums.filter(|(_, (now, before))| now != before).map(|(n, (now, _))| (n, *now))
    }
}

impl Database {
    /// What stands here of an expansion, summed up; `None` when that cannot be
    /// told, and it has to be made again: other tables, or written by others.
    #[must_use]
    pub fn sums(&self, expansion: &Expansion) -> Option<Sums> {
        let name = &expansion.name;
        let sums = || -> rusqlite::Result<Option<Sums>> {
            let c = self.connection();
            let (layout, rows): (String, i64) = c.query_row(
                "SELECT digest, rows FROM hqdl_expansion WHERE name = ?1",
                [name],
                |r| Ok((r.get(0)?, r.get(1)?)),
            )?;
            if layout != super::publish::layout(expansion) || !self.is_whole(expansion, rows)? {
                return Ok(None);
            }
            let mut sums = Sums { rows, ..Sums::default() };
            let mut all = c.prepare("SELECT bucket, sum FROM hqdl_bucket WHERE expansion = ?1")?;
            let mut rows = all.query([name])?;
            while let Some(row) = rows.next()? {
                if let Some(sum) = sums.buckets.get_mut(row.get::<_, usize>(0)?) {
                    *sum = row.get(1)?;
                }
            }
            Ok(Some(sums))
        };
        sums().ok().flatten()
    }

    /// What to tell of published rows that somebody else has written; `None` when
    /// there are none.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn edited(&self, expansion: &Expansion) -> Result<Option<String>, StoreError> {
        let name = &expansion.name;
        let read = || -> rusqlite::Result<(u64, Option<String>)> {
            let c = self.connection();
            if !c.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'hqdl_edit'")?.exists([])? {
                return Ok((0, None));
            }
            let sql = "SELECT count(DISTINCT key), max(key) FROM hqdl_edit WHERE expansion = ?1";
            c.query_row(sql, [name], |r| Ok((r.get(0)?, r.get(1)?)))
        };
        let (rows, key) = read().map_err(|e| self.error(&e))?;
        let key = key.unwrap_or_default();
        let s = if rows == 1 { " was" } else { "s were" };
        Ok((rows > 0)
            .then(|| format!("{name}: {rows} published row{s} written by hand, such as ({key})")))
    }

    /// Whether all objects of an expansion are here, are ours, and were written by
    /// nobody else.
    fn is_whole(&self, expansion: &Expansion, rows: i64) -> rusqlite::Result<bool> {
        use crate::spec::Catalog;
        let c = self.connection();
        let name = &expansion.name;
        let gone: bool = c.prepare(
            "SELECT 1 FROM hqdl_object AS o WHERE (expansion = ?1 COLLATE NOCASE OR type = 'view')
             AND type IN ('table', 'view', 'index', 'trigger') AND NOT EXISTS (
               SELECT 1 FROM sqlite_schema AS s WHERE s.name = o.name COLLATE NOCASE AND s.type = o.type)",
        )?
        .exists([name])?;
        let edited = c.prepare("SELECT 1 FROM hqdl_edit WHERE expansion = ?1")?.exists([name])?;
        let tables = expansion.columns.iter().filter_map(|c| Some(&c.many.as_ref()?.table));
        let ours = std::iter::once(name).chain(tables).all(|t| self.made_by_hqdl(t));
        let count = format!("SELECT count(*) FROM {}", sql::name(name));
        Ok(!gone && !edited && ours && c.query_row(&count, [], |r| r.get::<_, i64>(0))? == rows)
    }

    /// Published rows of an expansion whose key is in no source any more.
    #[must_use]
    pub fn orphans(&self, expansion: &Expansion, known: &mut dyn FnMut(&str) -> bool) -> u64 {
        let mut count = || -> rusqlite::Result<u64> {
            let mut statement =
                self.connection().prepare("SELECT key FROM hqdl_record WHERE expansion = ?1")?;
            let mut rows = statement.query([&expansion.name])?;
            let mut orphans = 0;
            while let Some(row) = rows.next()? {
                let key: String = row.get(0)?;
                orphans += u64::from(!known(&key));
            }
            Ok(orphans)
        };
        count().unwrap_or(0)
    }
}
