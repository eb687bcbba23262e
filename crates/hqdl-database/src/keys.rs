//! Semantic keys of an expansion: the rows of its sources, without duplicate keys.
//!
//! They are first collected into a temporary table. `SQLite` sorts and groups them on disk, so that
//! memory use does not grow with their number, and all phases of a run (plan, generate, publish)
//! use the same keys even if the source changes meanwhile.

use std::collections::{HashMap, HashSet};

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, ValueRef};

use super::postgres::WANTED;
use super::{Database, StoreError};
use hqdl_spec::{Expansion, SourceRows};
use hqdl_values::Row;
use hqdl_values::key::{Entity, KeyColumns};
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Maximum number of samples per entry of a report.
const SAMPLES: usize = 3;

/// Keys of one expansion, in the order of their sources.
pub struct Keys<'db> {
    db: &'db Database,
    table: String,
    expansion: Expansion,
    parts: usize,
    context: usize,
    sources: Vec<Vec<usize>>,
    columns: usize,
    /// Entities with more than one spelling, with the combined requests of all spellings.
    respelled: HashMap<u128, AskedTogether>,
    /// Report about the keys.
    pub report: KeyReport,
}

/// Key, and the columns to request for it.
#[derive(Debug, Clone)]
pub struct KeyRow {
    /// Position among the keys of the expansion, from 1.
    pub at: i64,
    /// Whether the entity has other spellings.
    pub respelled: bool,
    /// Key and context, as written in the source.
    pub row: Row,
    /// Entity that the key identifies.
    pub entity: Entity,
    /// Whether this is the first spelling of the entity.
    pub first: bool,
    /// Whether the row matches `--where`.
    pub wanted: bool,
    /// For each column, whether a source of this key requests it.
    pub columns: Vec<bool>,
    /// For each column, whether any spelling of the entity requests it. Only used with the first
    /// spelling.
    pub entity_columns: Vec<bool>,
}

/// Combined requests of all spellings of an entity.
#[derive(Debug, Clone)]
struct AskedTogether {
    columns: Vec<bool>,
    wanted: bool,
}

/// Anomalies of the keys of an expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// Number of rows of the sources.
    pub rows: u64,
    /// Number of distinct keys.
    pub keys: u64,
    /// Keys that occur in several rows of a source, with samples.
    pub duplicate: (u64, Vec<String>),
    /// Keys with some NULL columns, with samples.
    pub partly_null: (u64, Vec<String>),
    /// Rows whose key columns are all NULL; they identify no entity.
    pub null: u64,
    /// Keys with a blob or text that is not UTF-8, which are skipped, with samples.
    pub unreadable: (u64, Vec<String>),
    /// Spellings of entities with another spelling, with samples.
    pub respelled: (u64, Vec<String>),
}

impl KeyReport {
    /// Returns what `hqdl check` reports about the keys, in sentences.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let (n, samples) = &self.partly_null;
        let verb = if *n == 1 { "has" } else { "have" };
        let partly_null = (*n > 0).then(|| {
            let keys = hqdl_values::format::count_noun(*n, "key");
            format!("{keys} {verb} a part that is NULL, such as {}", samples.join("; "))
        });
        partly_null.into_iter().chain(self.run_remarks()).collect()
    }

    /// Returns what every plan and run reports: the remarks without keys that are partly NULL,
    /// which are complete keys.
    #[must_use]
    pub fn run_remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut say = |(n, samples): &(u64, Vec<String>), one: &str, many: &str| {
            if *n > 0 {
                let (noun, verbs) = if *n == 1 { ("key", one) } else { ("keys", many) };
                remarks.push(format!("{n} {noun} {verbs}, such as {}", samples.join("; ")));
            }
        };
        say(
            &self.duplicate,
            "occurs in several rows; rows with the same key get the same answers",
            "occur in several rows; rows with the same key get the same answers",
        );
        say(
            &self.unreadable,
            "contains a blob or text that is not UTF-8 and is skipped",
            "contain a blob or text that is not UTF-8 and are skipped",
        );
        say(
            &self.respelled,
            "is another spelling of an entity and shares its answers",
            "are other spellings of entities and share their answers",
        );
        if self.null > 0 {
            let verbs = if self.null == 1 {
                "has no key (NULL) and is"
            } else {
                "have no key (NULL) and are"
            };
            remarks.push(format!(
                "{} {verbs} skipped",
                hqdl_values::format::count_noun(self.null, "row")
            ));
        }
        remarks
    }
}

impl<'db> Keys<'db> {
    /// Collects the keys of an expansion. `filter` is an SQL condition over the source's columns.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the source cannot be read or the filter is invalid.
    pub fn gather(
        db: &'db Database,
        expansion: &Expansion,
        filter: Option<&str>,
    ) -> Result<Self, StoreError> {
        let mut keys = Self {
            db,
            table: sql::name(&format!("hqdl_key_{}", expansion.name)),
            expansion: expansion.clone(),
            parts: expansion.key.names().len(),
            context: expansion.context.len(),
            sources: expansion.sources.iter().map(|s| s.columns.clone()).collect(),
            columns: expansion.columns.len(),
            respelled: HashMap::new(),
            report: KeyReport::default(),
        };
        let filtered = keys.filtered(expansion, filter)?;
        if let Some(server) = db.server() {
            let of = |n: usize| filter.filter(|_| filtered.contains(&n));
            let filters: Vec<_> = (0..expansion.sources.len()).map(of).collect();
            let connection = db.connection();
            server.copy_sources(expansion, &filters, connection, &|n| keys.source_table(n))?;
        }
        keys.fill(expansion, filter, &filtered).map_err(|e| db.error(&e))?;
        keys.look(expansion).map_err(|e| db.error(&e))?;
        Ok(keys)
    }

    /// Returns the table that the rows of a source on a server are copied into.
    fn source_table(&self, n: usize) -> String {
        sql::name(&format!("hqdl_source_{n}_{}", self.expansion.name))
    }

    fn fill(
        &self,
        expansion: &Expansion,
        filter: Option<&str>,
        filtered: &[usize],
    ) -> rusqlite::Result<()> {
        let list =
            |letter: char, n: usize| (0..n).map(|i| format!("{letter}{i}")).collect::<Vec<_>>();
        let (k, c, s) =
            (list('k', self.parts), list('c', self.context), list('s', self.sources.len()));
        let all = [k.clone(), c.clone(), s.clone()].concat().join(", ");
        let copied = self.db.server().is_some();
        self.register_image_function(expansion)?;
        let selects: Vec<String> = expansion
            .sources
            .iter()
            .enumerate()
            .map(|(n, source)| {
                let (from, table) = if copied {
                    let table = self.source_table(n);
                    (format!("temp.{table}"), table)
                } else {
                    (from(&source.rows), qualifier(&source.rows))
                };
                let named = |names: &[String], aliases: &[String]| {
                    names
                        .iter()
                        .zip(aliases)
                        .map(|(n, a)| format!("{table}.{} AS {a}", sql::name(n)))
                        .collect::<Vec<_>>()
                };
                let flags = s
                    .iter()
                    .enumerate()
                    .map(|(i, a)| format!("{} AS {a}", u8::from(i == n)))
                    .collect();
                let wanted = match filter {
                    None => "1".to_owned(),
                    // If a source lacks the filter's columns, none of its rows match.
                    Some(_) if !filtered.contains(&n) => "0".to_owned(),
                    Some(_) if copied => format!("{table}.{}", sql::name(WANTED)),
                    Some(f) => format!("coalesce(({f}\n), 0) <> 0"),
                };
                let mut key = named(expansion.key.names(), &k);
                if let Some(part) = expansion.key_parts.get(n) {
                    let others = key.iter_mut().zip(&k).enumerate();
                    let others = others.filter(|(at, _)| !part.contains(at));
                    others.for_each(|(_, (text, k))| *text = format!("NULL AS {k}"));
                }
                let context = self.expansion.context.iter().zip(&c).map(|(column, alias)| {
                    let value = format!("{table}.{}", sql::name(column));
                    if expansion.is_image(column) {
                        format!("hqdl_image({value}) AS {alias}")
                    } else {
                        format!("{value} AS {alias}")
                    }
                });
                let columns = [key, context.collect(), flags].concat();
                format!("SELECT {}, {wanted} AS w FROM {from}", columns.join(", "))
            })
            .collect();
        let sums: Vec<String> = s.iter().map(|s| format!("sum({s}) AS {s}")).collect();
        let table = &self.table;
        // Compare case-sensitively, regardless of the column's collation.
        let group: Vec<String> = k.iter().map(|k| format!("{k} COLLATE BINARY")).collect();
        let group = group.join(", ");
        let bare = [k.clone(), c.clone()].concat().join(", ");
        self.db.connection().execute_batch(&format!(
            "DROP TABLE IF EXISTS temp.{table};
             CREATE TEMP TABLE {table} (n INTEGER, {all}, copies INTEGER, w INTEGER);
             INSERT INTO temp.{table}
             SELECT min(n), {bare}, {}, count(*), sum(w)
             FROM (SELECT *, row_number() OVER () AS n FROM ({}))
             GROUP BY {group} ORDER BY 1;",
            sums.join(", "),
            selects.join(" UNION ALL "),
        ))?;
        let copies = (0..expansion.sources.len()).filter(|_| copied);
        copies.map(|n| self.source_table(n)).try_for_each(|table| {
            self.db.connection().execute_batch(&format!("DROP TABLE temp.{table}"))
        })
    }

    /// Registers `hqdl_image`, which reads a BLOB that is an image once and returns the digest that
    /// identifies it from then on.
    fn register_image_function(&self, expansion: &Expansion) -> rusqlite::Result<()> {
        if expansion.context.iter().any(|c| expansion.is_image(c)) {
            let images = expansion.image_files.clone();
            let image = move |context: &Context<'_>| {
                Ok(match context.get_raw(0) {
                    ValueRef::Blob(bytes) => ToSqlOutput::Owned(match images.keep(bytes) {
                        Value::Text(name) => name.into(),
                        _ => rusqlite::types::Value::Null,
                    }),
                    other => ToSqlOutput::Owned(other.try_into()?),
                })
            };
            let flags = FunctionFlags::SQLITE_UTF8;
            self.db.connection().create_scalar_function("hqdl_image", 1, flags, image)?;
        }
        Ok(())
    }

    /// Returns the sources for which a filter is a valid condition on single rows. Fails if there
    /// is none.
    fn filtered(
        &self,
        expansion: &Expansion,
        filter: Option<&str>,
    ) -> Result<Vec<usize>, StoreError> {
        let Some(filter) = filter else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let mut error = None;
        for (n, source) in expansion.sources.iter().enumerate() {
            let probe = format!("SELECT 1 FROM {} WHERE ({filter}\n)", from(&source.rows));
            let works = match self.db.server() {
                Some(server) => server.takes_filter(&source.rows, filter),
                None => {
                    let prepared = self.db.connection().prepare(&probe);
                    prepared.map(drop).map_err(|e| self.db.error(&e))
                }
            };
            match works {
                Ok(()) => found.push(n),
                Err(e) => error = Some(e),
            }
        }
        match error {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Scans all keys once and collects counts, samples, and spellings.
    fn look(&mut self, expansion: &Expansion) -> rusqlite::Result<()> {
        let mut report = KeyReport::default();
        let sample = |slot: &mut (u64, Vec<String>), text: &dyn Fn() -> String| {
            slot.0 += 1;
            if slot.1.len() < SAMPLES {
                slot.1.push(text());
            }
        };
        let mut candidates: HashSet<u128> = HashSet::new();
        let mut statement =
            self.db.connection().prepare(&format!("SELECT * FROM temp.{}", self.table))?;
        let mut rows = statement.query([])?;
        let copies_at = 1 + self.parts + self.context + self.sources.len();
        while let Some(row) = rows.next()? {
            let copies: u64 = row.get(copies_at)?;
            report.rows += copies;
            let key = match read(row, 1, self.parts) {
                Ok(key) => key,
                Err(shown) => {
                    sample(&mut report.unreadable, &|| shown.clone());
                    continue;
                }
            };
            let shown = || show(&key);
            if key.iter().all(|v| *v == Value::Null) {
                report.null += copies;
                continue;
            }
            report.keys += 1;
            // A key column that the source lacks does not count as NULL.
            if expansion
                .shown(&Row { key: key.clone(), context: Vec::new() })
                .key
                .contains(&Value::Null)
            {
                sample(&mut report.partly_null, &shown);
            }
            let mut in_source = (0..self.sources.len())
                .map(|s| row.get::<_, i64>(1 + self.parts + self.context + s));
            if in_source.any(|n| n.is_ok_and(|n| n > 1)) {
                sample(&mut report.duplicate, &shown);
            }
            if !KeyColumns::is_canonical(&key) || expansion.has_images() {
                candidates.insert(hash(&self.expansion.entity(&key)));
            }
        }
        drop(rows);
        drop(statement);
        // Only an entity with a non-canonical spelling can have several spellings; find those that
        // do.
        if !candidates.is_empty() {
            let mut spellings: HashMap<u128, AskedTogether> = HashMap::new();
            let mut respelled: HashSet<u128> = HashSet::new();
            self.each(&mut |key: &KeyRow| {
                let hash = hash(&key.entity);
                if !candidates.contains(&hash) {
                    return Ok(());
                }
                if let Some(asked) = spellings.get_mut(&hash) {
                    sample(&mut report.respelled, &|| show(&key.row.key));
                    respelled.insert(hash);
                    asked.wanted |= key.wanted;
                    asked.columns.iter_mut().zip(&key.columns).for_each(|(a, k)| *a |= k);
                } else {
                    let asked = AskedTogether { columns: key.columns.clone(), wanted: key.wanted };
                    spellings.insert(hash, asked);
                }
                Ok::<(), rusqlite::Error>(())
            })?;
            spellings.retain(|hash, _| respelled.contains(hash));
            self.respelled = spellings;
        }
        self.report = report;
        Ok(())
    }

    /// Visits every key with a valid entity, in the order of the sources.
    ///
    /// # Errors
    /// Fails with the visitor's error, or with one of `SQLite`.
    pub fn each<E: From<rusqlite::Error>>(
        &self,
        visit: &mut dyn FnMut(&KeyRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut seen: HashSet<u128> = HashSet::new();
        let all = format!("SELECT *, rowid FROM temp.{}", self.table);
        let mut statement = self.db.connection().prepare(&all)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(key) = self.read(row, &mut seen)? {
                visit(&key)?;
            }
        }
        Ok(())
    }

    /// Visits the keys at these positions. Whether a key is the first spelling of its entity is not
    /// determined.
    ///
    /// # Errors
    /// Fails with the visitor's error, or with one of `SQLite`.
    pub fn each_at<E: From<rusqlite::Error>>(
        &self,
        places: &Places,
        visit: &mut dyn FnMut(&KeyRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let one = format!("SELECT *, rowid FROM temp.{} WHERE rowid = ?1", self.table);
        let mut statement = self.db.connection().prepare(&one)?;
        for place in places.iter() {
            let mut rows = statement.query([place])?;
            while let Some(row) = rows.next()? {
                if let Some(key) = self.read(row, &mut HashSet::new())? {
                    visit(&key)?;
                }
            }
        }
        Ok(())
    }

    /// Reads a row; returns `None` if its key is invalid.
    fn read(
        &self,
        row: &rusqlite::Row<'_>,
        seen: &mut HashSet<u128>,
    ) -> rusqlite::Result<Option<KeyRow>> {
        let Ok(key) = read(row, 1, self.parts) else { return Ok(None) };
        if key.iter().all(|v| *v == Value::Null) {
            return Ok(None);
        }
        // An unreadable context value is not shown; it is not part of the entity.
        let context: Vec<Value> = (0..self.context)
            .map(|c| {
                Value::read(row.get_ref(1 + self.parts + c).unwrap_or(ValueRef::Null))
                    .unwrap_or(Value::Null)
            })
            .collect();
        let flags = 1 + self.parts + self.context;
        let mut columns = vec![false; self.columns];
        for (n, source) in self.sources.iter().enumerate() {
            if row.get::<_, i64>(flags + n)? > 0 {
                source.iter().for_each(|c| columns[*c] = true);
            }
        }
        let entity = self.expansion.entity(&key);
        let after = flags + self.sources.len();
        let (mut wanted, at) = (row.get::<_, i64>(after + 1)? > 0, row.get(after + 2)?);
        let (mut first, mut respelled) = (true, false);
        let mut entity_columns = columns.clone();
        if !self.respelled.is_empty() {
            let hash = hash(&entity);
            if let Some(asked) = self.respelled.get(&hash) {
                respelled = true;
                first = seen.insert(hash);
                wanted = asked.wanted;
                entity_columns.clone_from(&asked.columns);
            }
        }
        let row = Row { key, context };
        Ok(Some(KeyRow { at, respelled, row, entity, first, wanted, columns, entity_columns }))
    }
}

/// Set of positions among the keys of an expansion, stored as bits.
#[derive(Debug, Clone, Default)]
pub struct Places(Vec<u64>);

impl Places {
    /// Adds a position.
    pub fn add(&mut self, place: i64) {
        let Ok(place) = usize::try_from(place) else { return };
        if self.0.len() <= place / 64 {
            self.0.resize(place / 64 + 1, 0);
        }
        self.0[place / 64] |= 1 << (place % 64);
    }

    /// Returns true if the set contains a position.
    #[must_use]
    pub fn has(&self, place: i64) -> bool {
        let Ok(place) = usize::try_from(place) else { return false };
        self.0.get(place / 64).is_some_and(|bits| bits >> (place % 64) & 1 == 1)
    }

    /// Returns all positions, in order.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        let of = |(n, bits): (i64, &u64)| {
            let bits = *bits;
            (0..64).filter(move |b| bits >> b & 1 == 1).map(move |b| n * 64 + b)
        };
        (0..).zip(&self.0).filter(|(_, bits)| **bits != 0).flat_map(of)
    }
}

fn read(row: &rusqlite::Row<'_>, from: usize, n: usize) -> Result<Vec<Value>, String> {
    let values: Vec<Result<Value, _>> =
        (from..from + n).map(|i| Value::read(row.get_ref(i).unwrap_or(ValueRef::Null))).collect();
    if values.iter().all(Result::is_ok) {
        return Ok(values.into_iter().flatten().collect());
    }
    let parts: Vec<String> = (from..from + n)
        .map(|i| match row.get_ref(i) {
            Ok(ValueRef::Text(bytes)) => format!("'{}'", String::from_utf8_lossy(bytes)),
            Ok(ValueRef::Blob(bytes)) => format!("a blob of {} bytes", bytes.len()),
            Ok(other) => Value::read(other).map_or_else(|_| "?".to_owned(), |v| v.to_string()),
            Err(_) => "?".to_owned(),
        })
        .collect();
    Err(format!("({})", parts.join(", ")))
}

/// Alias of a source that is a SELECT.
const SOURCE: &str = "hqdl_source";

/// Returns a source as used in FROM. The line break ends a comment at the end of a SELECT.
fn from(rows: &SourceRows) -> String {
    match rows {
        SourceRows::Table(table) => sql::name(table),
        SourceRows::Select(select) => format!("({select}\n) AS {SOURCE}"),
    }
}

/// Returns the name that qualifies the columns of a source.
///
/// `SQLite` treats a double-quoted name that is not a column as a text, unless a table qualifies
/// it. Without the qualifier, a renamed column would give every row the same key.
fn qualifier(rows: &SourceRows) -> String {
    match rows {
        SourceRows::Table(table) => sql::name(table),
        SourceRows::Select(_) => SOURCE.to_owned(),
    }
}

/// Formats a key for messages.
fn show(key: &[Value]) -> String {
    let parts: Vec<String> = key
        .iter()
        .map(|v| match v {
            Value::Text(text) => sql::text(text),
            other => other.to_string(),
        })
        .collect();
    format!("({})", parts.join(", "))
}

fn hash(entity: &Entity) -> u128 {
    let hash = blake3::hash(entity.as_str().as_bytes());
    let (head, _) = hash.as_bytes().split_at(16);
    u128::from_le_bytes(head.try_into().unwrap_or([0; 16]))
}
