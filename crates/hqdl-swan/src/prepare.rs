//! Creates SWAN's databases from BIRD's. The gold copy contains SWAN's rows and all columns. The
//! prepared copy is a new file without the hidden columns, so that its pages contain no trace of
//! them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value as Json;

use super::benchmark::{Benchmark, BenchmarkTruth, ReadColumn};
use super::shots::{self, Example, Examples, Shots};
use super::{SwanError, compare};
use hqdl_database::{Database, StoreError};
use hqdl_values::sql;

/// Files written for a database.
#[derive(Debug)]
pub struct PreparedDatabase {
    /// Name of the benchmark.
    pub name: &'static str,
    /// Database without the hidden columns.
    pub path: PathBuf,
    /// Database with the true values.
    pub gold: PathBuf,
    /// File of example rows with true values.
    pub shots: PathBuf,
    /// Hidden columns; a table's name means the whole table.
    pub hidden: Vec<String>,
    /// Hidden columns that the copy keeps, because HQDL's published SQL reads them. Each is listed
    /// with the question that reads it.
    pub left: Vec<String>,
    /// Number of rows deleted by SWAN's rules, by table.
    pub removed: Vec<(String, u64)>,
}

/// Returns the path of a database in BIRD's folder, if it exists.
#[must_use]
pub fn find_database(bird: &Path, name: &str) -> Option<PathBuf> {
    let file = format!("{name}.sqlite");
    let places = [
        bird.join(name).join(&file),
        bird.join("dev_databases").join(name).join(&file),
        bird.join(&file),
    ];
    if bird.is_file() && super::benchmark::database_name(bird) == name {
        return Some(bird.to_owned());
    }
    places.into_iter().find(|p| p.is_file())
}

/// Creates SWAN's copies of a database in `out`.
///
/// # Errors
/// [`SwanError`] if the source is not BIRD's database, or if a copy already exists and `force` is
/// not set.
pub fn prepare_database(
    benchmark: &'static Benchmark,
    source: &Path,
    out: &Path,
    force: bool,
) -> Result<PreparedDatabase, SwanError> {
    let path = out.join(format!("{}.sqlite", benchmark.name));
    let gold = out.join("gold").join(format!("{}.sqlite", benchmark.name));
    let shots = shots::shots_path(&path);
    for target in [&path, &gold, &shots] {
        ensure_writable(target, source, force)?;
    }
    let dir = out.join("gold");
    std::fs::create_dir_all(&dir).map_err(|e| SwanError::file(&dir, e))?;
    let database = Database::open(source)?;
    database
        .require_file("hqdl cannot prepare a database on a server", "pass BIRD's SQLite file")?;
    ensure_hidden_columns(&database, benchmark)?;
    let part = PartFile::new(&gold)?;
    database
        .connection()
        .execute("VACUUM INTO ?1", [part.path.to_string_lossy()])
        .map_err(|e| database.to_store_error(&e))?;
    let removed = apply_rules(&part.path, benchmark)?;
    let masked = PartFile::new(&path)?;
    let hidden = write_without_hidden_columns(&part.path, &masked.path, benchmark)?;
    write_shots(&part.path, &shots, benchmark)?;
    masked.finish(&path)?;
    part.finish(&gold)?;
    let left = benchmark.read_by_hqdl.iter().map(ReadColumn::to_label).collect();
    Ok(PreparedDatabase { name: benchmark.name, path, gold, shots, hidden, left, removed })
}

/// Returns an error if the target is the source, or exists and `force` is not set.
fn ensure_writable(target: &Path, source: &Path, force: bool) -> Result<(), SwanError> {
    let same = match (target.canonicalize(), source.canonicalize()) {
        (Ok(target), Ok(source)) => target == source,
        _ => false,
    };
    if same {
        return Err(SwanError::wrong_input(
            format!("{} is BIRD's database itself", target.display()),
            "choose another folder with --out",
        ));
    }
    if target.exists() && !force {
        return Err(SwanError::wrong_input(
            format!("{} exists", target.display()),
            "pass --force to create it again; this deletes the tables that hqdl published there, but not the stored answers",
        ));
    }
    Ok(())
}

/// A temporary file, which is renamed when it is complete.
struct PartFile {
    path: PathBuf,
}

impl PartFile {
    fn new(target: &Path) -> Result<Self, SwanError> {
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(SwanError::file(&path, e)),
            _ => Ok(Self { path }),
        }
    }

    fn finish(&self, target: &Path) -> Result<(), SwanError> {
        std::fs::rename(&self.path, target).map_err(|e| SwanError::file(target, e))
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // Does nothing after `finish`, which renamed the file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns an error if the database lacks a hidden column and therefore is not BIRD's original
/// database.
fn ensure_hidden_columns(database: &Database, benchmark: &Benchmark) -> Result<(), SwanError> {
    let (_, missing) = find_hidden_columns(database, benchmark)?;
    // Only some of BIRD's releases have this column.
    let missing: Vec<String> = missing.into_iter().filter(|m| m != "Match.goal").collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(SwanError::wrong_input(
        format!(
            "{} is not BIRD's {}: it lacks {}",
            database.path().display(),
            benchmark.name,
            missing.join(", ")
        ),
        "pass BIRD's directory dev_databases with --bird; hqdl cannot prepare a prepared copy again",
    ))
}

/// Returns the hidden tables and columns that a database contains, and those it lacks. Columns that
/// HQDL's published SQL reads do not count as present, because every copy contains them.
///
/// # Errors
/// [`StoreError`] if the database cannot be read.
pub fn find_hidden_columns(
    database: &Database,
    benchmark: &Benchmark,
) -> Result<(Vec<String>, Vec<String>), StoreError> {
    let (mut present, mut missing) = (Vec::new(), Vec::new());
    for hidden in benchmark.hidden {
        let columns = read_declared_columns(database.connection(), hidden.table)
            .map_err(|e| database.to_store_error(&e))?;
        if columns.is_empty() || hidden.columns.is_empty() {
            let side = if columns.is_empty() { &mut missing } else { &mut present };
            side.push(hidden.table.to_owned());
            continue;
        }
        for name in hidden.columns {
            let has = columns.iter().any(|c| c.name.eq_ignore_ascii_case(name));
            if has && !is_hidden(benchmark, hidden.table, name) {
                continue;
            }
            let side = if has { &mut present } else { &mut missing };
            side.push(format!("{}.{name}", hidden.table));
        }
    }
    Ok((present, missing))
}

/// Deletes the rows that SWAN excludes. Returns the number of deleted rows by table.
fn apply_rules(gold: &Path, benchmark: &Benchmark) -> Result<Vec<(String, u64)>, SwanError> {
    let connection = open_without_key_checks(gold, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let run = || -> rusqlite::Result<Vec<(String, u64)>> {
        let count = |table: &String| -> rusqlite::Result<u64> {
            let sql = format!("SELECT count(*) FROM {}", sql::quote_name(table));
            connection.query_row(&sql, [], |r| r.get(0))
        };
        let tables = list_user_tables(&connection)?;
        let before = tables.iter().map(|(t, _)| count(t)).collect::<rusqlite::Result<Vec<_>>>()?;
        for rule in benchmark.rules {
            connection.execute(rule, [])?;
        }
        connection.execute_batch("DROP TABLE IF EXISTS temp.kept")?;
        let mut removed = Vec::new();
        for ((table, _), before) in tables.iter().zip(before) {
            let deleted = before - count(table)?;
            if deleted > 0 {
                removed.push((table.clone(), deleted));
            }
        }
        connection.execute_batch("VACUUM")?;
        Ok(removed)
    };
    run().map_err(|e| StoreError::from_sqlite(gold, &e).into())
}

/// Writes a database without the hidden columns. Returns the omitted columns.
///
/// # Errors
/// Returns [`SwanError`] if a file cannot be read or written.
pub(crate) fn write_without_hidden_columns(
    gold: &Path,
    masked: &Path,
    benchmark: &Benchmark,
) -> Result<Vec<String>, SwanError> {
    let connection = open_without_key_checks(
        masked,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
    )?;
    let mut left_out = Vec::new();
    let mut run = || -> rusqlite::Result<()> {
        connection.execute("ATTACH ?1 AS gold", [gold.to_string_lossy()])?;
        let source = Connection::open_with_flags(gold, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.execute_batch("BEGIN")?;
        for (table, without_rowid) in list_user_tables(&source)? {
            let hidden = benchmark.hidden.iter().find(|h| h.table.eq_ignore_ascii_case(&table));
            if hidden.is_some_and(|h| h.columns.is_empty()) {
                left_out.push(table);
                continue;
            }
            let all = read_declared_columns(&source, &table)?;
            let shown = |c: &&DeclaredColumn| !is_hidden(benchmark, &table, &c.name);
            left_out
                .extend(all.iter().filter(|c| !shown(c)).map(|c| format!("{table}.{}", c.name)));
            let kept: Vec<&DeclaredColumn> = all.iter().filter(shown).collect();
            let mut constraints = read_unique_constraints(&source, &table, &kept)?;
            constraints.extend(read_foreign_keys(&source, &table, &kept, benchmark)?);
            connection.execute_batch(&build_create_table(
                &table,
                &kept,
                &constraints,
                without_rowid,
            ))?;
            let names = sql::quote_names("", kept.iter().map(|c| &c.name));
            let name = sql::quote_name(&table);
            let order = if without_rowid { "" } else { " ORDER BY rowid" };
            connection.execute_batch(&format!(
                "INSERT INTO main.{name} ({names}) SELECT {names} FROM gold.{name}{order}"
            ))?;
            for index in read_kept_indexes(&source, &table, &kept)? {
                connection.execute_batch(&index)?;
            }
        }
        connection.execute_batch("COMMIT; DETACH gold")
    };
    run().map_err(|e| StoreError::from_sqlite(masked, &e))?;
    Ok(left_out)
}

/// Returns true if the prepared copy does not contain a column.
fn is_hidden(benchmark: &Benchmark, table: &str, column: &str) -> bool {
    let same = |t: &str, c: &str| t.eq_ignore_ascii_case(table) && c.eq_ignore_ascii_case(column);
    benchmark.hidden.iter().any(|h| h.columns.iter().any(|c| same(h.table, c)))
        && !benchmark.read_by_hqdl.iter().any(|r| same(r.table, r.column))
}

/// A column, as declared by its table.
struct DeclaredColumn {
    name: String,
    data_type: String,
    not_null: bool,
    default: Option<String>,
    /// Position in the primary key, from 1; 0 if it is not in the key.
    primary: i64,
}

fn read_declared_columns(
    connection: &Connection,
    table: &str,
) -> rusqlite::Result<Vec<DeclaredColumn>> {
    let sql = "SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_xinfo(?1)
               WHERE hidden <> 1 ORDER BY cid";
    let mut statement = connection.prepare(sql)?;
    let column = |row: &rusqlite::Row<'_>| {
        Ok(DeclaredColumn {
            name: row.get(0)?,
            data_type: row.get(1)?,
            not_null: row.get(2)?,
            default: row.get(3)?,
            primary: row.get(4)?,
        })
    };
    statement.query_map([table], column)?.collect()
}

/// Returns the user's tables in the order of their creation, and whether each is WITHOUT ROWID.
fn list_user_tables(connection: &Connection) -> rusqlite::Result<Vec<(String, bool)>> {
    let sql = "SELECT l.name, l.wr FROM pragma_table_list AS l
               JOIN sqlite_schema AS s ON s.name = l.name AND s.type = 'table'
               WHERE l.schema = 'main' AND l.type = 'table' AND l.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
               ORDER BY s.rowid";
    connection.prepare(sql)?.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?.collect()
}

/// Returns the FOREIGN KEY constraints whose child and parent columns are all kept.
fn read_foreign_keys(
    source: &Connection,
    table: &str,
    kept: &[&DeclaredColumn],
    benchmark: &Benchmark,
) -> rusqlite::Result<Vec<String>> {
    let sql =
        "SELECT id, \"table\", \"from\", \"to\" FROM pragma_foreign_key_list(?1) ORDER BY id, seq";
    let mut statement = source.prepare(sql)?;
    let parts: Vec<(i64, String, String, Option<String>)> = statement
        .query_map([table], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let is_kept = |(_, parent, from, to): &(i64, String, String, Option<String>)| {
        let hidden = benchmark.hidden.iter().find(|h| h.table.eq_ignore_ascii_case(parent));
        kept.iter().any(|c| c.name.eq_ignore_ascii_case(from))
            && !hidden.is_some_and(|h| {
                h.columns.is_empty()
                    || to.as_deref().is_some_and(|to| is_hidden(benchmark, parent, to))
            })
    };
    let mut found = Vec::new();
    for key in parts.chunk_by(|a, b| a.0 == b.0).filter(|key| key.iter().all(is_kept)) {
        let parent = key.first().map(|k| sql::quote_name(&k.1)).unwrap_or_default();
        let from = sql::quote_names("", key.iter().map(|k| &k.2));
        let to: Vec<String> =
            key.iter().filter_map(|k| k.3.as_deref().map(sql::quote_name)).collect();
        let to = if to.is_empty() { String::new() } else { format!(" ({})", to.join(", ")) };
        found.push(format!("FOREIGN KEY ({from}) REFERENCES {parent}{to}"));
    }
    Ok(found)
}

/// Returns the UNIQUE constraints whose columns are all kept.
fn read_unique_constraints(
    source: &Connection,
    table: &str,
    kept: &[&DeclaredColumn],
) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM pragma_index_list(?1) WHERE origin = 'u' ORDER BY seq DESC";
    let mut statement = source.prepare(sql)?;
    let names: Vec<String> =
        statement.query_map([table], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut found = Vec::new();
    for name in names {
        if let Some(columns) = read_index_columns(source, &name, kept)? {
            found.push(format!("UNIQUE ({})", sql::quote_names("", &columns)));
        }
    }
    Ok(found)
}

/// Returns the columns of an index if all of them are kept.
fn read_index_columns(
    source: &Connection,
    index: &str,
    kept: &[&DeclaredColumn],
) -> rusqlite::Result<Option<Vec<String>>> {
    let mut statement = source.prepare("SELECT name FROM pragma_index_info(?1) ORDER BY seqno")?;
    // An expression has no name, and the columns it reads are unknown.
    let names: Vec<Option<String>> =
        statement.query_map([index], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    let is_kept = |name: &String| kept.iter().any(|c| c.name.eq_ignore_ascii_case(name));
    Ok(names.into_iter().map(|name| name.filter(is_kept)).collect())
}

/// Returns the CREATE TABLE statement with the kept columns.
fn build_create_table(
    table: &str,
    kept: &[&DeclaredColumn],
    constraints: &[String],
    without_rowid: bool,
) -> String {
    let column = |c: &&DeclaredColumn| {
        let mut text = format!("{} {}", sql::quote_name(&c.name), c.data_type);
        if c.not_null {
            text.push_str(" NOT NULL");
        }
        if let Some(default) = &c.default {
            text.push_str(&format!(" DEFAULT ({default})"));
        }
        text
    };
    let mut parts: Vec<String> = kept.iter().map(column).collect();
    let mut primary: Vec<&&DeclaredColumn> = kept.iter().filter(|c| c.primary > 0).collect();
    primary.sort_by_key(|c| c.primary);
    if !primary.is_empty() {
        let names = sql::quote_names("", primary.iter().map(|c| &c.name));
        parts.push(format!("PRIMARY KEY ({names})"));
    }
    parts.extend(constraints.iter().cloned());
    let rowid = if without_rowid { " WITHOUT ROWID" } else { "" };
    format!("CREATE TABLE {} (\n  {}\n){rowid}", sql::quote_name(table), parts.join(",\n  "))
}

/// Returns the indexes of a table whose columns are all kept.
fn read_kept_indexes(
    source: &Connection,
    table: &str,
    kept: &[&DeclaredColumn],
) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT s.name, s.sql FROM sqlite_schema AS s
               WHERE s.type = 'index' AND s.tbl_name = ?1 AND s.sql IS NOT NULL";
    let mut statement = source.prepare(sql)?;
    let all: Vec<(String, String)> = statement
        .query_map([table], |r| Ok((r.get(0)?, r.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut found = Vec::new();
    for (name, definition) in all {
        let whole = read_index_columns(source, &name, kept)?.is_some();
        if whole && !definition.to_uppercase().contains("WHERE") {
            found.push(definition);
        }
    }
    Ok(found)
}

/// Writes the example rows for `--shots`. They are SWAN's own examples; if the database lacks some
/// of them, the first rows of the true values replace them.
fn write_shots(gold: &Path, path: &Path, benchmark: &Benchmark) -> Result<(), SwanError> {
    let connection = open_without_key_checks(gold, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut all: BTreeMap<String, Vec<Vec<Example>>> = BTreeMap::new();
    for shown in benchmark.shots {
        let of = |t: &&BenchmarkTruth| {
            t.expansion == shown.expansion && shown.source.is_none_or(|n| n == t.source)
        };
        let mut found: Vec<(usize, Example)> = Vec::new();
        for truth in benchmark.truth.iter().filter(of) {
            read_examples(&connection, truth, shown.keys, &mut found)
                .map_err(|e| StoreError::from_sqlite(gold, &e))?;
        }
        found.sort_by_key(|(rank, _)| *rank);
        let rows = found.into_iter().map(|(_, row)| row).take(shots::MAX_EXAMPLES).collect();
        all.entry(shown.expansion.to_owned()).or_default().push(rows);
    }
    let only = |mut sources: Vec<Vec<Example>>| match sources.len() {
        1 => Examples::Rows(sources.remove(0)),
        _ => Examples::BySource(sources),
    };
    let all: Shots = all.into_iter().map(|(name, sources)| (name, only(sources))).collect();
    let text = serde_json::to_string_pretty(&all).unwrap_or_default();
    std::fs::write(path, text + "\n").map_err(|e| SwanError::file(path, e))
}

/// Adds the rows of `truth` with these keys to the examples, in the order of the keys, followed by
/// the first rows of `truth`. Omits unknown values.
fn read_examples(
    connection: &Connection,
    truth: &BenchmarkTruth,
    keys: &[&[&str]],
    found: &mut Vec<(usize, Example)>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(truth.select)?;
    let mut rows = statement.query([])?;
    let mut first = 0;
    while let Some(row) = rows.next()? {
        let value = |at: usize| row.get_ref(at).map(compare::to_json);
        let mut example = Example::new();
        for (at, name) in truth.key.iter().enumerate() {
            example.insert((*name).to_owned(), value(at)?);
        }
        let texts: Vec<String> = format_example_key(truth, &example);
        let named = keys.iter().position(|key| texts == *key);
        let same = |(_, shot): &(usize, Example)| format_example_key(truth, shot) == texts;
        let at = match found.iter().position(same) {
            Some(at) => at,
            None if named.is_some() || first < shots::MAX_EXAMPLES && truth.many.is_none() => {
                first += usize::from(named.is_none());
                found.push((named.unwrap_or(keys.len() + first), example));
                found.len() - 1
            }
            None => continue,
        };
        let shot = &mut found[at].1;
        for (at, name) in truth.columns.iter().enumerate() {
            let value = value(truth.key.len() + at)?;
            match (truth.many, value) {
                (None, Json::Null) => {}
                (None, value) => {
                    shot.entry((*name).to_owned()).or_insert(value);
                }
                (Some(many), value) => {
                    let list = shot.entry(many.to_owned()).or_insert_with(|| Json::Array(vec![]));
                    if let (Some(list), false) = (list.as_array_mut(), value.is_null()) {
                        list.push(value);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Returns the key values of an example as texts.
fn format_example_key(truth: &BenchmarkTruth, example: &Example) -> Vec<String> {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    truth.key.iter().filter_map(|name| example.get(*name)).map(text).collect()
}

/// Opens a database without foreign-key checks, because BIRD's databases violate some keys.
fn open_without_key_checks(path: &Path, flags: OpenFlags) -> Result<Connection, SwanError> {
    let opened = Connection::open_with_flags(path, flags);
    let free = |c: Connection| c.pragma_update(None, "foreign_keys", false).map(|()| c);
    opened.and_then(free).map_err(|e| StoreError::from_sqlite(path, &e).into())
}
