//! Semantic keys of an expansion: the rows of its sources, without duplicate keys.
//!
//! The keys are first collected into a temporary table. `SQLite` sorts and groups them on disk, so
//! that memory use does not grow with the number of keys, and all phases of a run (plan, generate,
//! publish) use the same keys even if the source changes in the meantime.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, ValueRef};

use super::buckets::{BucketSnapshot, ChangedBuckets, MAX_SAMPLES, format_key};
use super::postgres::{CopiedRows, SELECTED_COLUMN};
use super::source_sql::{find_source_qualifier, format_from_clause, format_key_columns};
use super::{Database, StoreError};
use hqdl_spec::checker::UNKNOWN_WORDS;
use hqdl_spec::{Expansion, SourceRows};
use hqdl_values::Row;
use hqdl_values::key::{Entity, KeyColumns};
use hqdl_values::sql;
use hqdl_values::value::Value;

/// The keys of one expansion, ordered by source.
pub struct Keys<'db> {
    db: &'db Database,
    pub(super) table: String,
    expansion: Expansion,
    pub(super) part_count: usize,
    pub(super) context_count: usize,
    sources: Vec<Vec<usize>>,
    column_count: usize,
    /// Entities with more than one spelling, each with the columns requested for any of its
    /// spellings.
    spelling_groups: HashMap<u128, SpellingGroup>,
    /// Report about the keys. If only some buckets are visited, it does not count partly NULL keys
    /// in the other buckets.
    pub report: KeyReport,
    /// Buckets whose keys are visited; `None` if all keys are visited.
    pub changed: Option<ChangedBuckets>,
    /// Entities whose keys are collected; `None` if the keys of all entities are collected.
    entities: Option<HashSet<Entity>>,
}

/// A key, with the columns to request for it.
#[derive(Debug, Clone)]
pub struct KeyRow {
    /// Position among the keys of the expansion, from 1.
    pub position: i64,
    /// Whether the entity has other spellings.
    pub has_other_spellings: bool,
    /// Key and context, as they appear in the source.
    pub row: Row,
    /// Entity that the key identifies.
    pub entity: Entity,
    /// Entity under which facts are stored, if the expansion has a context. All rows and spellings
    /// of a key share one context.
    pub entity_in_context: Option<Entity>,
    /// Position of the key whose context is shown.
    pub(super) context_position: i64,
    /// Whether this is the first spelling of the entity.
    pub is_first_spelling: bool,
    /// Whether the row matches `--where`.
    pub is_selected: bool,
    /// Number of rows with this key, for each source.
    pub source_rows: Vec<u64>,
    /// For each column, whether a source that contains this key requests it.
    pub requested_columns: Vec<bool>,
    /// For each column, whether it is requested for any spelling of the entity. Used only with the
    /// first spelling.
    pub entity_requested_columns: Vec<bool>,
}

impl KeyRow {
    /// Returns the entity under which the facts about this key are stored.
    #[must_use]
    pub fn fact_entity(&self) -> &Entity {
        self.entity_in_context.as_ref().unwrap_or(&self.entity)
    }
}

/// Columns that the sources request for an entity, combined over all spellings of its key.
#[derive(Debug, Clone)]
struct SpellingGroup {
    /// Digest and values of the smallest context among the spellings, and the position of its key.
    context: (u128, Vec<Value>, i64),
    requested_columns: Vec<bool>,
    is_selected: bool,
}

/// Number of an expansion's keys, and the problems found in the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// Number of rows in the sources.
    pub rows: u64,
    /// Number of distinct keys.
    pub keys: u64,
    /// Keys that occur in several rows of a source, with samples.
    pub duplicates: (u64, Vec<String>),
    /// Number of keys with some NULL columns, with samples.
    pub partly_null: (u64, Vec<String>),
    /// Number of keys whose texts are all placeholders, such as `N/A`, with these placeholders.
    pub placeholders: (u64, BTreeSet<String>),
    /// Number of rows whose key columns are all NULL; such rows identify no entity.
    pub null_rows: u64,
    /// Number of keys that are skipped because they contain a blob or invalid UTF-8, with samples.
    pub unreadable: (u64, Vec<String>),
    /// Number of key spellings whose entity also has another spelling, with samples.
    pub respelled: (u64, Vec<String>),
}

impl KeyReport {
    /// Returns the warnings about keys for `hqdl check`.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let (n, samples) = &self.partly_null;
        let verb = if *n == 1 { "has" } else { "have" };
        let partly_null = (*n > 0).then(|| {
            let keys = hqdl_values::format::format_count(*n, "key");
            format!("{keys} {verb} a part that is NULL, such as {}", samples.join("; "))
        });
        partly_null.into_iter().chain(self.warnings_for_runs()).collect()
    }

    /// Returns the note about keys that occur in several rows, for `hqdl check`. Such keys are not
    /// a problem, because hqdl asks about each key once.
    #[must_use]
    pub fn duplicates_note(&self) -> Option<String> {
        describe_keys(
            &self.duplicates,
            "occurs in several rows, which get the same answers",
            "occur in several rows; rows with the same key get the same answers",
        )
    }

    /// Returns the warning about keys that consist of placeholders, for `hqdl check`.
    #[must_use]
    pub fn placeholders_warning(&self) -> Option<String> {
        let (n, texts) = &self.placeholders;
        let verb = if *n == 1 { "stands" } else { "stand" };
        let shown: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
        (*n > 0).then(|| {
            let keys = hqdl_values::format::format_count(*n, "key");
            format!("{keys} {verb} for no value, but a run asks about them: {}", shown.join(", "))
        })
    }

    /// Returns the warnings for every plan and run. Partly NULL keys cause no warning here, because
    /// they are valid keys.
    #[must_use]
    pub fn warnings_for_runs(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut add_warning = |keys: &(u64, Vec<String>), one: &str, many: &str| {
            warnings.extend(describe_keys(keys, one, many));
        };
        add_warning(
            &self.unreadable,
            "contains a blob or text that is not UTF-8 and is skipped",
            "contain a blob or text that is not UTF-8 and are skipped",
        );
        add_warning(
            &self.respelled,
            "is another spelling of an entity and shares its answers",
            "are other spellings of entities and share their answers",
        );
        if self.null_rows > 0 {
            let verbs = if self.null_rows == 1 {
                "has no key (NULL) and is"
            } else {
                "have no key (NULL) and are"
            };
            warnings.push(format!(
                "{} {verbs} skipped",
                hqdl_values::format::format_count(self.null_rows, "row")
            ));
        }
        warnings
    }
}

/// Returns a sentence about a number of keys, with samples; `None` if there are none.
fn describe_keys((n, samples): &(u64, Vec<String>), one: &str, many: &str) -> Option<String> {
    let (noun, verbs) = if *n == 1 { ("key", one) } else { ("keys", many) };
    (*n > 0).then(|| format!("{n} {noun} {verbs}, such as {}", samples.join("; ")))
}

/// Placeholders for missing values in a source, in addition to the model's words for "unknown".
const PLACEHOLDERS: [&str; 5] = ["", "nan", "undefined", "#n/a", "n.a."];

/// Returns the texts of a key if all of them are placeholders.
fn find_placeholders(key: &[Value]) -> Option<Vec<&str>> {
    let is_placeholder = |text: &str| {
        let mut words = PLACEHOLDERS.iter().chain(&UNKNOWN_WORDS);
        words.any(|word| word.eq_ignore_ascii_case(text.trim()))
    };
    let mut texts = Vec::new();
    for part in key {
        match part {
            Value::Null => {}
            Value::Text(text) if is_placeholder(text) => texts.push(text.as_str()),
            _ => return None,
        }
    }
    Some(texts)
}

impl<'db> Keys<'db> {
    /// Collects the keys of an expansion. `filter` is an SQL condition over the source's columns.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the source cannot be read or the filter is invalid.
    pub fn collect(
        db: &'db Database,
        expansion: &Expansion,
        filter: Option<&str>,
    ) -> Result<Self, StoreError> {
        let mut keys = Self::new(db, expansion);
        let filterable = keys.find_filterable_sources(expansion, filter)?;
        if let Some(server) = db.server() {
            let filter_of = |n: usize| filter.filter(|_| filterable.contains(&n));
            let filters: Vec<_> = (0..expansion.sources.len()).map(filter_of).collect();
            let all = CopiedRows::All { filters: &filters };
            server.copy_sources(expansion, all, db.connection(), &|n| keys.source_table(n))?;
        }
        keys.fill_key_table(expansion, filter, &filterable).map_err(|e| db.to_store_error(&e))?;
        keys.scan_keys(expansion).map_err(|e| db.to_store_error(&e))?;
        Ok(keys)
    }

    fn new(db: &'db Database, expansion: &Expansion) -> Self {
        Self {
            db,
            table: sql::quote_name(&format!("hqdl_key_{}", expansion.name)),
            expansion: expansion.clone(),
            part_count: expansion.key.names().len(),
            context_count: expansion.context.len(),
            sources: expansion.sources.iter().map(|s| s.columns.clone()).collect(),
            column_count: expansion.columns.len(),
            spelling_groups: HashMap::new(),
            report: KeyReport::default(),
            changed: None,
            entities: None,
        }
    }

    /// Collects the keys of some entities only, in all spellings. A server may spend `timeout` on
    /// each of its statements.
    ///
    /// # Errors
    /// Returns [`StoreError`] if a source cannot be read.
    pub fn collect_entities(
        db: &'db Database,
        expansion: &Expansion,
        entities: HashSet<Entity>,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let mut keys = Self { entities: Some(entities), ..Self::new(db, expansion) };
        if let (Some(server), Some(entities)) = (db.server(), &keys.entities) {
            let only = CopiedRows::OfEntities { entities, timeout };
            server.copy_sources(expansion, only, db.connection(), &|n| keys.source_table(n))?;
        }
        keys.fill_key_table(expansion, None, &[]).map_err(|e| db.to_store_error(&e))?;
        keys.scan_keys(expansion).map_err(|e| db.to_store_error(&e))?;
        Ok(keys)
    }

    /// Collects the keys in buckets that may differ from `snapshot`, and the keys of the entities
    /// in `answered`. Returns `None` if these are most of the keys, if a key is unreadable, or if
    /// the expansion has a context, which the buckets do not cover. The caller then collects all
    /// keys.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the source cannot be read or the filter is invalid.
    pub fn collect_changed_keys(
        db: &'db Database,
        expansion: &Expansion,
        filter: Option<&str>,
        snapshot: BucketSnapshot,
        answered: &HashSet<Entity>,
    ) -> Result<Option<Self>, StoreError> {
        if expansion.has_row_context() {
            return Ok(None);
        }
        let mut keys = Self::new(db, expansion);
        let filterable = keys.find_filterable_sources(expansion, filter)?;
        let scanned = keys.find_changed_buckets(snapshot, answered);
        let Some(changed) = scanned.map_err(|e| db.to_store_error(&e))? else { return Ok(None) };
        keys.changed = Some(changed);
        keys.fill_key_table(expansion, filter, &filterable).map_err(|e| db.to_store_error(&e))?;
        keys.scan_keys(expansion).map_err(|e| db.to_store_error(&e))?;
        Ok(keys.add_unvisited_counts().then_some(keys))
    }

    /// Reads the keys of all source rows and returns the buckets to visit. Returns `None` if these
    /// contain most of the keys, or if a key is unreadable.
    fn find_changed_buckets(
        &self,
        snapshot: BucketSnapshot,
        answered: &HashSet<Entity>,
    ) -> rusqlite::Result<Option<ChangedBuckets>> {
        let mut changed = ChangedBuckets::new(snapshot);
        let is_readable = for_each_source_key(self.db, &self.expansion, &mut |source, key| {
            changed.add_row(&self.expansion, source, key);
        })?;
        changed.mark_visited_buckets(answered);
        Ok((is_readable && !changed.visits_most_buckets()).then_some(changed))
    }

    /// Adds the counts of the unvisited buckets to the report. Returns false if the report would
    /// count duplicate or respelled keys but have no sample of them; all keys must then be visited.
    fn add_unvisited_counts(&mut self) -> bool {
        let (Some(changed), report) = (&self.changed, &mut self.report) else { return true };
        report.null_rows = changed.null_rows;
        report.rows += changed.null_rows;
        for (_, bucket) in changed.unvisited_buckets() {
            report.rows += bucket.source_rows;
            report.keys += bucket.entities + bucket.respelled;
            report.duplicates.0 += bucket.duplicates;
            report.respelled.0 += bucket.respelled;
        }
        let remarks = [&mut report.duplicates, &mut report.respelled];
        remarks.into_iter().zip(&changed.snapshot.samples).all(|((count, samples), recorded)| {
            let unvisited = recorded.iter().filter(|(n, _)| !changed.visited.contains(n));
            samples.extend(unvisited.map(|(_, sample)| sample.clone()));
            samples.truncate(MAX_SAMPLES);
            *count == 0 || !samples.is_empty()
        })
    }

    /// Returns the name of the local table into which the rows of a server's source are copied.
    fn source_table(&self, n: usize) -> String {
        sql::quote_name(&format!("hqdl_source_{n}_{}", self.expansion.name))
    }

    fn fill_key_table(
        &self,
        expansion: &Expansion,
        filter: Option<&str>,
        filterable: &[usize],
    ) -> rusqlite::Result<()> {
        let aliases =
            |letter: char, n: usize| (0..n).map(|i| format!("{letter}{i}")).collect::<Vec<_>>();
        let (key_aliases, c, s) = (
            aliases('k', self.part_count),
            aliases('c', self.context_count),
            aliases('s', self.sources.len()),
        );
        let all_aliases = [key_aliases.clone(), c.clone(), s.clone()].concat().join(", ");
        let is_copied = self.db.server().is_some();
        self.register_media_function(expansion)?;
        self.register_visit_function()?;
        let selects: Vec<String> = expansion
            .sources
            .iter()
            .enumerate()
            .map(|(n, source)| {
                let (from_sql, table) = if is_copied {
                    let table = self.source_table(n);
                    (format!("temp.{table}"), table)
                } else {
                    (format_from_clause(&source.rows), find_source_qualifier(&source.rows))
                };
                let flags = s
                    .iter()
                    .enumerate()
                    .map(|(i, a)| format!("{} AS {a}", u8::from(i == n)))
                    .collect();
                let selected_sql = match filter {
                    None => "1".to_owned(),
                    // If a source lacks the filter's columns, none of its rows match.
                    Some(_) if !filterable.contains(&n) => "0".to_owned(),
                    Some(_) if is_copied => format!("{table}.{}", sql::quote_name(SELECTED_COLUMN)),
                    Some(f) => format!("coalesce(({f}\n), 0) <> 0"),
                };
                let key = format_key_columns(expansion, n, &table).into_iter().zip(&key_aliases);
                let key: Vec<String> =
                    key.map(|(value, alias)| format!("{value} AS {alias}")).collect();
                let context = self.expansion.context.iter().zip(&c).map(|(column, alias)| {
                    let value = format!("{table}.{}", sql::quote_name(column));
                    if expansion.is_media(column) {
                        format!("hqdl_medium({value}) AS {alias}")
                    } else {
                        format!("{value} AS {alias}")
                    }
                });
                let where_sql = self.format_visited_condition(n, &table);
                let columns = [key, context.collect(), flags].concat().join(", ");
                format!("SELECT {columns}, {selected_sql} AS w FROM {from_sql}{where_sql}")
            })
            .collect();
        let source_sums: Vec<String> = s.iter().map(|s| format!("sum({s}) AS {s}")).collect();
        let table = &self.table;
        // Compare case-sensitively, regardless of the column's collation.
        let group_columns: Vec<String> =
            key_aliases.iter().map(|k| format!("{k} COLLATE BINARY")).collect();
        let group_by = group_columns.join(", ");
        let key_and_context = [key_aliases.clone(), c.clone()].concat().join(", ");
        // The order in which rows are read may change from run to run, and so must not decide which
        // of the contexts of a key is shown: it is the smallest one of the first source.
        let context_order: Vec<String> = s
            .iter()
            .map(|s| format!("{s} DESC"))
            .chain(c.iter().map(|c| format!("{c} COLLATE BINARY NULLS LAST")))
            .collect();
        let context_window =
            format!("PARTITION BY {group_by} ORDER BY {}", context_order.join(", "));
        let first_context: Vec<String> =
            c.iter().map(|c| format!(", first_value({c}) OVER context AS {c}")).collect();
        let sources = selects.join(" UNION ALL ");
        let numbered = if c.is_empty() {
            format!("SELECT *, row_number() OVER () AS n FROM ({sources})")
        } else {
            let others = [key_aliases.clone(), s.clone()].concat().join(", ");
            format!(
                "SELECT {others}, w, n{} FROM (SELECT *, row_number() OVER () AS n FROM ({sources}))
                 WINDOW context AS ({context_window})",
                first_context.concat()
            )
        };
        self.db.connection().execute_batch(&format!(
            "DROP TABLE IF EXISTS temp.{table};
             CREATE TEMP TABLE {table} (n INTEGER, {all_aliases}, copies INTEGER, w INTEGER);
             INSERT INTO temp.{table}
             SELECT min(n), {key_and_context}, {}, count(*), sum(w)
             FROM ({numbered})
             GROUP BY {group_by} ORDER BY 1;",
            source_sums.join(", "),
        ))?;
        let copies = (0..expansion.sources.len()).filter(|_| is_copied);
        copies.map(|n| self.source_table(n)).try_for_each(|table| {
            self.db.connection().execute_batch(&format!("DROP TABLE temp.{table}"))
        })
    }

    /// Registers the SQL function `hqdl_medium`. For a BLOB that is a medium, the function reads the
    /// bytes once and returns the digest that identifies the medium from then on.
    fn register_media_function(&self, expansion: &Expansion) -> rusqlite::Result<()> {
        if expansion.context.iter().any(|c| expansion.is_media(c)) {
            let media = expansion.media_files.clone();
            let read_medium = move |context: &Context<'_>| {
                Ok(match context.get_raw(0) {
                    ValueRef::Blob(bytes) => ToSqlOutput::Owned(match media.store_blob(bytes) {
                        Value::Text(name) => name.into(),
                        _ => rusqlite::types::Value::Null,
                    }),
                    other => ToSqlOutput::Owned(other.try_into()?),
                })
            };
            let flags = FunctionFlags::SQLITE_UTF8;
            self.db.connection().create_scalar_function("hqdl_medium", 1, flags, read_medium)?;
        }
        Ok(())
    }

    /// Formats the WHERE clause that selects the visited keys of a source; empty if all keys are
    /// visited.
    fn format_visited_condition(&self, source: usize, table: &str) -> String {
        if self.changed.is_none() && self.entities.is_none() {
            return String::new();
        }
        let values = format_key_columns(&self.expansion, source, table);
        let visited = format!(" WHERE hqdl_is_visited({})", values.join(", "));
        match self.list_row_numbers(source) {
            Some(numbers) => format!("{visited} AND {} IN ({numbers})", values.join(", ")),
            None => visited,
        }
    }

    /// Returns the row numbers of the collected entities, separated by commas, if the key is the
    /// number of a row: `SQLite` then finds the rows without reading the others.
    fn list_row_numbers(&self, source: usize) -> Option<String> {
        let (entities, [key]) = (self.entities.as_ref()?, self.expansion.key.names()) else {
            return None;
        };
        let SourceRows::Table(table) = &self.expansion.sources[source].rows else { return None };
        if self.db.server().is_some() || !self.is_row_number(table, key) {
            return None;
        }
        let numbers = entities.iter().flat_map(|entity| entity.parts().into_values().flatten());
        let numbers: Vec<String> =
            numbers.filter_map(|text| Some(text.parse::<i64>().ok()?.to_string())).collect();
        Some(numbers.join(", "))
    }

    /// Returns true if a column is the number of a table's rows (`INTEGER PRIMARY KEY`). Such a
    /// column contains only integers, and `SQLite` finds a row by its number without reading others.
    fn is_row_number(&self, table: &str, column: &str) -> bool {
        let select = "SELECT count(*) = 1 AND max(type = 'INTEGER' COLLATE NOCASE
              AND name = ?2 COLLATE NOCASE)
            FROM pragma_table_info(?1) WHERE pk > 0";
        self.db.connection().query_row(select, [table, column], |row| row.get(0)).unwrap_or(false)
    }

    /// Registers the SQL function `hqdl_is_visited`, which returns true for a key in a visited
    /// bucket, and for a key of a collected entity.
    fn register_visit_function(&self) -> rusqlite::Result<()> {
        let flags = FunctionFlags::SQLITE_UTF8;
        let read_arguments = |context: &Context<'_>| {
            let values = (0..context.len()).map(|n| Value::from_sqlite(context.get_raw(n)));
            values.collect::<Result<Vec<_>, _>>().ok()
        };
        if let Some(entities) = self.entities.clone() {
            let expansion = self.expansion.clone();
            let is_collected = move |context: &Context<'_>| {
                let key = read_arguments(context);
                Ok(key.is_some_and(|key| entities.contains(&expansion.build_entity(&key))))
            };
            let connection = self.db.connection();
            return connection.create_scalar_function("hqdl_is_visited", -1, flags, is_collected);
        }
        let Some(changed) = &self.changed else { return Ok(()) };
        let (changed, key_columns) = (changed.clone(), self.expansion.key.clone());
        let buffer = RefCell::new(Vec::with_capacity(256));
        let is_visited = move |context: &Context<'_>| {
            let Some(key) = read_arguments(context) else { return Ok(false) };
            let mut buffer = buffer.borrow_mut();
            buffer.clear();
            key_columns.write_entity(&key, &mut buffer);
            let bucket = changed.snapshot.bucket_index_of_text(&buffer);
            Ok(changed.visited.contains(&bucket) && !key.iter().all(|v| *v == Value::Null))
        };
        self.db.connection().create_scalar_function("hqdl_is_visited", -1, flags, is_visited)
    }

    /// Returns the sources on which a filter is a valid condition for single rows. Fails if there
    /// is no such source.
    fn find_filterable_sources(
        &self,
        expansion: &Expansion,
        filter: Option<&str>,
    ) -> Result<Vec<usize>, StoreError> {
        let Some(filter) = filter else { return Ok(Vec::new()) };
        let mut filterable = Vec::new();
        let mut error = None;
        for (n, source) in expansion.sources.iter().enumerate() {
            let probe =
                format!("SELECT 1 FROM {} WHERE ({filter}\n)", format_from_clause(&source.rows));
            let checked = match self.db.server() {
                Some(server) => server.check_filter(&source.rows, filter),
                None => {
                    let prepared = self.db.connection().prepare(&probe);
                    prepared.map(drop).map_err(|e| self.db.to_store_error(&e))
                }
            };
            match checked {
                Ok(()) => filterable.push(n),
                Err(e) => error = Some(e),
            }
        }
        match error {
            Some(error) if filterable.is_empty() => Err(error),
            _ => Ok(filterable),
        }
    }

    /// Scans all keys once and collects counts, samples and spellings.
    fn scan_keys(&mut self, expansion: &Expansion) -> rusqlite::Result<()> {
        let mut report = KeyReport::default();
        let add_sample = |slot: &mut (u64, Vec<String>), text: &dyn Fn() -> String| {
            slot.0 += 1;
            if slot.1.len() < MAX_SAMPLES {
                slot.1.push(text());
            }
        };
        let mut candidates: HashSet<u128> = HashSet::new();
        let mut statement =
            self.db.connection().prepare(&format!("SELECT * FROM temp.{}", self.table))?;
        let mut rows = statement.query([])?;
        let copies_index = 1 + self.part_count + self.context_count + self.sources.len();
        while let Some(row) = rows.next()? {
            let copies: u64 = row.get(copies_index)?;
            report.rows += copies;
            let key = match read_key(row, 1, self.part_count) {
                Ok(key) => key,
                Err(shown) => {
                    add_sample(&mut report.unreadable, &|| shown.clone());
                    continue;
                }
            };
            let format_shown = || format_key(&key);
            if key.iter().all(|v| *v == Value::Null) {
                report.null_rows += copies;
                continue;
            }
            report.keys += 1;
            if let Some(texts) = find_placeholders(&key) {
                report.placeholders.0 += 1;
                report.placeholders.1.extend(texts.into_iter().map(str::to_owned));
            }
            // If the source lacks a key column, the column does not count as NULL.
            if expansion
                .build_shown_row(&Row { key: key.clone(), context: Vec::new() })
                .key
                .contains(&Value::Null)
            {
                add_sample(&mut report.partly_null, &format_shown);
            }
            let mut source_counts = (0..self.sources.len())
                .map(|s| row.get::<_, i64>(1 + self.part_count + self.context_count + s));
            if source_counts.any(|n| n.is_ok_and(|n| n > 1)) {
                add_sample(&mut report.duplicates, &format_shown);
            }
            if !KeyColumns::is_canonical(&key) || expansion.has_media() {
                candidates.insert(hash_entity(&self.expansion.build_entity(&key)));
            }
        }
        drop(rows);
        drop(statement);
        // Only an entity with a non-canonical spelling can have several spellings; find the
        // entities that have several.
        if !candidates.is_empty() {
            let mut spellings: HashMap<u128, SpellingGroup> = HashMap::new();
            let mut respelled: HashSet<u128> = HashSet::new();
            self.for_each(&mut |key: &KeyRow| {
                let hash = hash_entity(&key.entity);
                if !candidates.contains(&hash) {
                    return Ok(());
                }
                let context = &key.row.context;
                let digest = expansion.compute_context_digest(context);
                let context = (digest, context.clone(), key.position);
                if let Some(group) = spellings.get_mut(&hash) {
                    // The order of the rows may change, so the first spelling may not decide.
                    if digest < group.context.0 {
                        group.context = context;
                    }
                    add_sample(&mut report.respelled, &|| format_key(&key.row.key));
                    respelled.insert(hash);
                    group.is_selected |= key.is_selected;
                    group
                        .requested_columns
                        .iter_mut()
                        .zip(&key.requested_columns)
                        .for_each(|(a, k)| *a |= k);
                } else {
                    let group = SpellingGroup {
                        context,
                        requested_columns: key.requested_columns.clone(),
                        is_selected: key.is_selected,
                    };
                    spellings.insert(hash, group);
                }
                Ok::<(), rusqlite::Error>(())
            })?;
            spellings.retain(|hash, _| respelled.contains(hash));
            self.spelling_groups = spellings;
        }
        self.report = report;
        Ok(())
    }

    /// Visits every key with a valid entity, in the order of the sources.
    ///
    /// # Errors
    /// Fails with the visitor's error, or with `SQLite`'s error if the keys cannot be read.
    pub fn for_each<E: From<rusqlite::Error>>(
        &self,
        visit: &mut dyn FnMut(&KeyRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut seen: HashSet<u128> = HashSet::new();
        let select = format!("SELECT *, rowid FROM temp.{}", self.table);
        let mut statement = self.db.connection().prepare(&select)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(key) = self.read_key_row(row, &mut seen)? {
                visit(&key)?;
            }
        }
        Ok(())
    }

    /// Visits the keys at these positions. Does not determine whether a key is the first spelling
    /// of its entity.
    ///
    /// # Errors
    /// Fails with the visitor's error, or with `SQLite`'s error if the keys cannot be read.
    pub fn for_each_key_at<E: From<rusqlite::Error>>(
        &self,
        positions: &KeyPositions,
        visit: &mut dyn FnMut(&KeyRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let select = format!("SELECT *, rowid FROM temp.{} WHERE rowid = ?1", self.table);
        let mut statement = self.db.connection().prepare(&select)?;
        for position in positions.iter() {
            let mut rows = statement.query([position])?;
            while let Some(row) = rows.next()? {
                if let Some(key) = self.read_key_row(row, &mut HashSet::new())? {
                    visit(&key)?;
                }
            }
        }
        Ok(())
    }

    /// Reads a row; returns `None` if its key is invalid.
    fn read_key_row(
        &self,
        row: &rusqlite::Row<'_>,
        seen: &mut HashSet<u128>,
    ) -> rusqlite::Result<Option<KeyRow>> {
        let Ok(key) = read_key(row, 1, self.part_count) else { return Ok(None) };
        if key.iter().all(|v| *v == Value::Null) {
            return Ok(None);
        }
        let mut context = read_context(row, 1 + self.part_count, self.context_count);
        let flags = 1 + self.part_count + self.context_count;
        let mut requested_columns = vec![false; self.column_count];
        let mut source_rows = vec![0; self.sources.len()];
        for (n, source) in self.sources.iter().enumerate() {
            source_rows[n] = row.get(flags + n)?;
            if source_rows[n] > 0 {
                source.iter().for_each(|c| requested_columns[*c] = true);
            }
        }
        let entity = self.expansion.build_entity(&key);
        let copies_index = flags + self.sources.len();
        let (mut is_selected, position) =
            (row.get::<_, i64>(copies_index + 1)? > 0, row.get(copies_index + 2)?);
        let mut context_position = position;
        let (mut is_first_spelling, mut has_other_spellings) = (true, false);
        let mut entity_requested_columns = requested_columns.clone();
        if !self.spelling_groups.is_empty() {
            let hash = hash_entity(&entity);
            if let Some(group) = self.spelling_groups.get(&hash) {
                has_other_spellings = true;
                is_first_spelling = seen.insert(hash);
                is_selected = group.is_selected;
                context.clone_from(&group.context.1);
                context_position = group.context.2;
                entity_requested_columns.clone_from(&group.requested_columns);
            }
        }
        let entity_in_context = self
            .expansion
            .has_row_context()
            .then(|| self.expansion.build_fact_entity(&entity, &context));
        let row = Row { key, context };
        Ok(Some(KeyRow {
            position,
            has_other_spellings,
            row,
            entity,
            entity_in_context,
            context_position,
            is_first_spelling,
            is_selected,
            source_rows,
            requested_columns,
            entity_requested_columns,
        }))
    }
}

/// Reads the context columns of a row, which begin at column `first`. An unreadable value becomes
/// NULL.
pub(super) fn read_context(row: &rusqlite::Row<'_>, first: usize, count: usize) -> Vec<Value> {
    let value = |at: usize| {
        Value::from_sqlite(row.get_ref(at).unwrap_or(ValueRef::Null)).unwrap_or(Value::Null)
    };
    (first..first + count).map(value).collect()
}

/// A set of key positions in an expansion, stored as bits.
#[derive(Debug, Clone, Default)]
pub struct KeyPositions(Vec<u64>);

impl KeyPositions {
    /// Adds a position.
    pub fn add(&mut self, position: i64) {
        let Ok(position) = usize::try_from(position) else { return };
        if self.0.len() <= position / 64 {
            self.0.resize(position / 64 + 1, 0);
        }
        self.0[position / 64] |= 1 << (position % 64);
    }

    /// Returns true if the set contains a position.
    #[must_use]
    pub fn contains(&self, position: i64) -> bool {
        let Ok(position) = usize::try_from(position) else { return false };
        self.0.get(position / 64).is_some_and(|bits| bits >> (position % 64) & 1 == 1)
    }

    /// Returns all positions, in order.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        let positions_of = |(n, bits): (i64, &u64)| {
            let bits = *bits;
            (0..64).filter(move |b| bits >> b & 1 == 1).map(move |b| n * 64 + b)
        };
        (0..).zip(&self.0).filter(|(_, bits)| **bits != 0).flat_map(positions_of)
    }
}

fn read_key(row: &rusqlite::Row<'_>, from: usize, n: usize) -> Result<Vec<Value>, String> {
    let values: Vec<Result<Value, _>> = (from..from + n)
        .map(|i| Value::from_sqlite(row.get_ref(i).unwrap_or(ValueRef::Null)))
        .collect();
    if values.iter().all(Result::is_ok) {
        return Ok(values.into_iter().flatten().collect());
    }
    let parts: Vec<String> = (from..from + n)
        .map(|i| match row.get_ref(i) {
            Ok(ValueRef::Text(bytes)) => format!("'{}'", String::from_utf8_lossy(bytes)),
            Ok(ValueRef::Blob(bytes)) => format!("a blob of {} bytes", bytes.len()),
            Ok(other) => {
                Value::from_sqlite(other).map_or_else(|_| "?".to_owned(), |v| v.to_string())
            }
            Err(_) => "?".to_owned(),
        })
        .collect();
    Err(format!("({})", parts.join(", ")))
}

/// Passes the key of each source row to `visit`, with the number of its source. Includes keys that
/// consist of NULLs. Skips unreadable keys, and returns false if there are any.
///
/// # Errors
/// Fails with `SQLite`'s error if a source cannot be read.
pub fn for_each_source_key(
    db: &Database,
    expansion: &Expansion,
    visit: &mut dyn FnMut(usize, &[Value]),
) -> rusqlite::Result<bool> {
    let mut are_readable = true;
    for (n, source) in expansion.sources.iter().enumerate() {
        let values =
            format_key_columns(expansion, n, &find_source_qualifier(&source.rows)).join(", ");
        let select = format!("SELECT {values} FROM {}", format_from_clause(&source.rows));
        let mut statement = db.connection().prepare(&select)?;
        let mut rows = statement.query([])?;
        let mut key = vec![Value::Null; expansion.key.names().len()];
        while let Some(row) = rows.next()? {
            let mut is_readable = true;
            for (i, part) in key.iter_mut().enumerate() {
                match Value::from_sqlite(row.get_ref(i)?) {
                    Ok(value) => *part = value,
                    Err(_) => is_readable = false,
                }
            }
            are_readable &= is_readable;
            if is_readable {
                visit(n, &key);
            }
        }
    }
    Ok(are_readable)
}

pub(super) fn hash_entity(entity: &Entity) -> u128 {
    let hash = blake3::hash(entity.as_str().as_bytes());
    let (head, _) = hash.as_bytes().split_at(16);
    u128::from_le_bytes(head.try_into().unwrap_or([0; 16]))
}
