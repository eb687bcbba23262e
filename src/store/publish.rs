//! Publishing: the facts of an expansion as ordinary tables, swapped in within
//! one transaction. Readers see the old tables until the new ones are whole,
//! and a crash leaves the old ones.
//!
//! Only objects listed in `hqdl_object` are ever dropped or written.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Statement, params_from_iter};
use serde_json::{Value as Json, json};

use super::standing::Standing;
use super::view::view_sql;
use super::{Database, StoreError, migrate};
use crate::cell::CellValue;
use crate::prompt::Row;
use crate::spec::{Catalog, Expansion, Spec};
use crate::sql;
use crate::value::Value;

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

/// What is told of a completion beside the cells that came from it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Origin {
    /// The run.
    pub run: i64,
    /// The model.
    pub model: String,
    /// The prompt's hash.
    pub prompt_hash: String,
    /// When it was asked.
    pub asked_at: String,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Price in USD.
    pub cost_usd: f64,
    /// Cells it was asked for.
    pub cells: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// A publication under way: one transaction on the target.
pub struct Publication<'db> {
    db: &'db Database,
    transaction: rusqlite::Transaction<'db>,
}

impl<'db> Publication<'db> {
    /// Begins. Tables of the spec's expansions that are no longer in it go.
    ///
    /// # Errors
    /// [`StoreError`] when the database is locked or read-only.
    pub fn begin(db: &'db Database, spec: &Spec) -> Result<Self, StoreError> {
        let error = |e: rusqlite::Error| db.error(&e);
        let connection = db.connection();
        // With foreign keys on, dropping a table would delete the rows of a
        // user's table that refer to it; it comes back in the same transaction.
        connection.execute_batch("PRAGMA foreign_keys = OFF").map_err(error)?;
        let behavior = rusqlite::TransactionBehavior::Immediate;
        let transaction =
            rusqlite::Transaction::new_unchecked(connection, behavior).map_err(error)?;
        migrate::database(connection).map_err(error)?;
        // A view that somebody dropped is not ours to look after any more; those
        // of this spec are made again.
        transaction
            .execute_batch(
                "DELETE FROM hqdl_object WHERE type = 'view' AND NOT EXISTS (
                   SELECT 1 FROM sqlite_schema AS s WHERE s.type = 'view' AND s.name = hqdl_object.name)",
            )
            .map_err(error)?;
        let publication = Self { db, transaction };
        for before in publication.expansions_of(spec).map_err(error)? {
            if !spec.expansions.iter().any(|e| e.name.eq_ignore_ascii_case(&before)) {
                publication.drop_objects(&before).map_err(error)?;
            }
        }
        Ok(publication)
    }

    /// Expansions that this spec has published before.
    fn expansions_of(&self, spec: &Spec) -> rusqlite::Result<Vec<String>> {
        self.transaction
            .prepare("SELECT name FROM hqdl_expansion WHERE spec = ?1")?
            .query_map([spec.full_path()], |row| row.get(0))?
            .collect()
    }

    /// Begins the tables of one expansion, in place of those of before.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn expansion<'e>(&'e self, expansion: &'e Expansion) -> Result<Tables<'e>, StoreError> {
        let error = |e: rusqlite::Error| self.db.error(&e);
        self.drop_objects(&expansion.name).map_err(error)?;
        self.create(expansion).map_err(error)?;
        let c: &'e rusqlite::Connection = &self.transaction;
        let keys = expansion.key.names();
        let insert = |table: &str, columns: Vec<&String>| {
            let marks = vec!["?"; columns.len()].join(", ");
            let names = sql::names("", columns);
            c.prepare(&format!("INSERT INTO {} ({names}) VALUES ({marks})", sql::name(table)))
        };
        let singles = expansion.columns.iter().filter(|c| c.many.is_none()).map(|c| &c.name);
        let main = insert(&expansion.name, keys.iter().chain(singles).collect()).map_err(error)?;
        let many = expansion
            .columns
            .iter()
            .map(|column| {
                let Some(many) = &column.many else { return Ok(None) };
                insert(&many.table, keys.iter().chain([&many.column]).collect()).map(Some)
            })
            .collect::<rusqlite::Result<_>>()
            .map_err(error)?;
        let record =
            c.prepare("INSERT OR REPLACE INTO hqdl_record VALUES (?1, ?2, ?3)").map_err(error)?;
        Ok(Tables {
            db: self.db,
            expansion,
            main,
            many,
            record,
            rows: 0,
            completions: BTreeSet::new(),
        })
    }

    /// Drops what hqdl made for an expansion before.
    fn drop_objects(&self, expansion: &str) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let objects: Vec<(String, String)> = c
            .prepare("SELECT name, type FROM hqdl_object WHERE expansion = ?1 COLLATE NOCASE ORDER BY type DESC")?
            .query_map([expansion], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (name, kind) in objects {
            // Indexes go with their tables.
            if (kind == "table" || kind == "view") && self.db.made_by_hqdl(&name) {
                c.execute_batch(&format!("DROP {kind} IF EXISTS {}", sql::name(&name)))?;
            }
        }
        for table in ["hqdl_object", "hqdl_record", "hqdl_completion"] {
            c.execute(
                &format!("DELETE FROM {table} WHERE expansion = ?1 COLLATE NOCASE"),
                [expansion],
            )?;
        }
        c.execute("DELETE FROM hqdl_expansion WHERE name = ?1", [expansion])?;
        Ok(())
    }

    fn create(&self, expansion: &Expansion) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let keys: Vec<String> = expansion
            .key
            .names()
            .iter()
            .zip(&expansion.key_types)
            .map(|(name, kind)| format!("{} {}", sql::name(name), affinity(kind.as_deref())))
            .collect();
        let made = |name: &str, kind: &str| {
            c.execute("INSERT INTO hqdl_object VALUES (?1, ?2, ?3)", [name, kind, &expansion.name])
        };
        let singles: Vec<String> = expansion
            .columns
            .iter()
            .filter(|c| c.many.is_none())
            .map(|c| format!("{} {}", sql::name(&c.name), c.kind.sql()))
            .collect();
        let columns = [keys.clone(), singles].concat().join(", ");
        c.execute_batch(&format!("CREATE TABLE {} ({columns})", sql::name(&expansion.name)))?;
        made(&expansion.name, "table")?;
        for column in &expansion.columns {
            let Some(many) = &column.many else { continue };
            let value = format!("{} {} NOT NULL", sql::name(&many.column), column.kind.sql());
            let columns = [keys.clone(), vec![value]].concat().join(", ");
            c.execute_batch(&format!("CREATE TABLE {} ({columns})", sql::name(&many.table)))?;
            made(&many.table, "table")?;
        }
        Ok(())
    }

    /// Writes down where the cells of an expansion came from, makes its
    /// indexes, and closes it.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn close(
        &self,
        spec: &Spec,
        written: &Written<'_>,
        (digest, standing): (&str, &Standing),
        origins: &mut dyn FnMut(i64) -> Option<Origin>,
    ) -> Result<(), StoreError> {
        self.close_inner(spec, written, (digest, standing), origins).map_err(|e| self.db.error(&e))
    }

    fn close_inner(
        &self,
        spec: &Spec,
        written: &Written<'_>,
        (digest, standing): (&str, &Standing),
        origins: &mut dyn FnMut(i64) -> Option<Origin>,
    ) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let expansion = written.expansion;
        // Indexes after the rows: sorted once instead of one by one.
        let keys = sql::names("", expansion.key.names());
        let index = |table: &str, columns: &str, unique: &str| {
            let name = format!("hqdl_{table}_key");
            c.execute_batch(&format!(
                "CREATE {unique} INDEX {} ON {} ({columns})",
                sql::name(&name),
                sql::name(table)
            ))?;
            c.execute("INSERT INTO hqdl_object VALUES (?1, 'index', ?2)", [&name, &expansion.name])
        };
        index(&expansion.name, &keys, "UNIQUE")?;
        let mut shows: BTreeMap<&str, &str> = BTreeMap::new();
        for column in &expansion.columns {
            shows.insert(&column.name, &expansion.name);
            if let Some(many) = &column.many {
                index(&many.table, &format!("{keys}, {}", sql::name(&many.column)), "UNIQUE")?;
                shows.insert(&column.name, &many.table);
            }
        }
        let mut insert = c.prepare(
            "INSERT INTO hqdl_completion VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?;
        for id in &written.completions {
            let o = origins(*id).unwrap_or_default();
            insert.execute(rusqlite::params![
                expansion.name,
                id,
                o.run,
                o.model,
                o.prompt_hash,
                o.asked_at,
                o.input_tokens,
                o.output_tokens,
                o.cost_usd,
                o.cells,
                o.error
            ])?;
        }
        c.execute(
            "INSERT INTO hqdl_expansion VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            rusqlite::params![
                expansion.name,
                spec.full_path(),
                json!(expansion.key.names()).to_string(),
                json!(shows).to_string(),
                digest,
                written.rows,
                super::now(),
                json!(standing).to_string(),
            ],
        )?;
        Ok(())
    }

    /// Makes the views that join each source with its expansions; returns
    /// warnings about names that are taken.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn views(&self, spec: &Spec) -> Result<Vec<String>, StoreError> {
        let error = |e: rusqlite::Error| self.db.error(&e);
        let mut warnings = Vec::new();
        let mut sources: BTreeMap<String, Vec<(&Expansion, &crate::spec::Source)>> =
            BTreeMap::new();
        for expansion in &spec.expansions {
            for source in &expansion.sources {
                if let Some(name) = &source.name {
                    sources.entry(name.clone()).or_default().push((expansion, source));
                }
            }
        }
        for (source, joined) in sources {
            let view = format!("{source}_expanded");
            if self.db.columns(&view).is_some() && !self.db.made_by_hqdl(&view) {
                warnings.push(format!("the database has a table `{view}` that hqdl did not make, so there is no view of that name"));
                continue;
            }
            let text = view_sql(self.db, &view, &joined);
            let c = &self.transaction;
            c.execute_batch(&format!("DROP VIEW IF EXISTS {}", sql::name(&view))).map_err(error)?;
            c.execute_batch(&text).map_err(error)?;
            c.execute("INSERT OR REPLACE INTO hqdl_object VALUES (?1, 'view', NULL)", [&view])
                .map_err(error)?;
        }
        Ok(warnings)
    }

    /// Swaps everything in.
    ///
    /// # Errors
    /// [`StoreError`] when the commit fails; the old tables stand then.
    pub fn commit(self) -> Result<(), StoreError> {
        let db = self.db;
        self.transaction.commit().map_err(|e| db.error(&e))
    }
}

/// The type of a published key column: a word of ours for the affinity that
/// the declared type of the source's column has
/// (<https://sqlite.org/datatype3.html#determination_of_column_affinity>).
#[must_use]
pub fn affinity(declared: Option<&str>) -> &'static str {
    let declared = declared.unwrap_or_default().to_uppercase();
    let has = |words: &[&str]| words.iter().any(|w| declared.contains(w));
    match () {
        () if has(&["INT"]) => "INTEGER",
        () if has(&["CHAR", "CLOB", "TEXT"]) => "TEXT",
        // ANY: what a STRICT table keeps as it is given.
        () if declared.is_empty() || declared == "ANY" || has(&["BLOB"]) => "",
        () if has(&["REAL", "FLOA", "DOUB"]) => "REAL",
        () => "NUMERIC",
    }
}

/// The tables of an expansion, being filled.
pub struct Tables<'e> {
    db: &'e Database,
    expansion: &'e Expansion,
    main: Statement<'e>,
    many: Vec<Option<Statement<'e>>>,
    record: Statement<'e>,
    rows: u64,
    completions: BTreeSet<i64>,
}

/// What was written for an expansion.
pub struct Written<'e> {
    expansion: &'e Expansion,
    rows: u64,
    completions: BTreeSet<i64>,
}

impl<'e> Tables<'e> {
    /// Writes a row; `cells` has one entry a column, `None` where nothing was
    /// ever asked. A row of which nothing was asked is not written.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn row(&mut self, row: &Row, cells: &[Option<Shown<'_>>]) -> Result<(), StoreError> {
        if cells.iter().all(Option::is_none) {
            return Ok(());
        }
        let db = self.db;
        self.row_inner(row, cells).map_err(|e| db.error(&e))
    }

    fn row_inner(&mut self, row: &Row, cells: &[Option<Shown<'_>>]) -> rusqlite::Result<()> {
        let mut values: Vec<&Value> = row.key.iter().collect();
        let mut record = serde_json::Map::new();
        for ((column, shown), many) in self.expansion.columns.iter().zip(cells).zip(&mut self.many)
        {
            let value = shown.as_ref().map_or(&CellValue::Nothing, |s| s.value);
            match (many, value) {
                (None, CellValue::One(value)) => values.push(value),
                (None, _) => values.push(&Value::Null),
                (Some(insert), CellValue::Many(items)) => {
                    for item in items {
                        insert.execute(params_from_iter(row.key.iter().chain([item])))?;
                    }
                }
                (Some(_), _) => {}
            }
            record.insert(column.name.clone(), cell_json(shown.as_ref()));
            self.completions.extend(shown.as_ref().and_then(|s| s.completion));
        }
        self.main.execute(params_from_iter(values))?;
        let key: Vec<Json> = row.key.iter().map(Value::to_json).collect();
        self.record.execute([
            &self.expansion.name,
            &Json::Array(key).to_string(),
            &Json::Object(record).to_string(),
        ])?;
        self.rows += 1;
        Ok(())
    }

    /// Ends writing.
    #[must_use]
    pub fn finish(self) -> Written<'e> {
        Written { expansion: self.expansion, rows: self.rows, completions: self.completions }
    }
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

impl Database {
    /// Whether an expansion stands here exactly as `digest` says.
    #[must_use]
    pub fn is_published(&self, expansion: &Expansion, digest: &str) -> bool {
        let check = || -> rusqlite::Result<bool> {
            let c = self.connection();
            let (kept, rows): (String, u64) = c.query_row(
                "SELECT digest, rows FROM hqdl_expansion WHERE name = ?1",
                [&expansion.name],
                |r| Ok((r.get(0)?, r.get(1)?)),
            )?;
            let count = |table: &str| -> rusqlite::Result<u64> {
                c.query_row(&format!("SELECT count(*) FROM {}", sql::name(table)), [], |r| r.get(0))
            };
            let gone: u64 = c.query_row(
                "SELECT count(*) FROM hqdl_object AS o WHERE (expansion = ?1 COLLATE NOCASE OR type = 'view')
                 AND type IN ('table', 'view', 'index') AND NOT EXISTS (
                   SELECT 1 FROM sqlite_schema AS s WHERE s.name = o.name COLLATE NOCASE AND s.type = o.type)",
                [&expansion.name],
                |r| r.get(0),
            )?;
            if gone > 0 || !self.made_by_hqdl(&expansion.name) {
                return Ok(false);
            }
            Ok(kept == digest && count(&expansion.name)? == rows)
        };
        check().unwrap_or(false)
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
