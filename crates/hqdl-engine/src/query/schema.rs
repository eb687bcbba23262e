//! The tables and columns of the database that a query runs on.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::QueryError;
use super::guard::Guard;
use hqdl_database::publish::affinity;
use hqdl_sql::blendsql::parse::parse;
use hqdl_sql::blendsql::scope::{Affinity, Schema};
use hqdl_sql::blendsql::tree::{Body, FromItem, FromSource};
use hqdl_sql::suql::TableColumns;

/// What says the columns of a table or view, in order; `None` where there is none of this
/// name, or it cannot be read. The database is opened once, at the first that is asked.
pub(super) fn columns_of(database: &Path) -> impl Fn(&str) -> Option<TableColumns> {
    let opened = std::cell::OnceCell::new();
    let database = database.to_owned();
    move |table| {
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
            let connection = Connection::open_with_flags(&database, flags).ok()?;
            connection.busy_timeout(Duration::from_secs(5)).ok()?;
            Some(connection)
        };
        columns(opened.get_or_init(open).as_ref()?, table)
    }
}

fn columns(connection: &Connection, table: &str) -> Option<TableColumns> {
    let sql = "SELECT name, coalesce(type, '') FROM pragma_table_xinfo(?1) WHERE hidden <> 1 \
               ORDER BY cid";
    let mut statement = connection.prepare_cached(sql).ok()?;
    let found = statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?))).ok()?;
    let found: Vec<(String, String)> = found.collect::<Result<_, _>>().ok()?;
    if found.is_empty() {
        return None;
    }
    let (names, types): (Vec<String>, Vec<String>) = found.into_iter().unzip();
    let sql =
        "SELECT type = 'table' AND NOT wr FROM pragma_table_list WHERE name = ?1 COLLATE NOCASE";
    let has_rowid = connection.query_row(sql, [table], |row| row.get(0)).unwrap_or(false);
    let has_rowid = has_rowid && !names.iter().any(|name| name.eq_ignore_ascii_case("rowid"));
    Some(TableColumns { names, types, has_rowid })
}

/// The tables of a database, read once.
pub(super) struct KnownSchema {
    tables: HashMap<String, Vec<String>>,
    affinities: HashMap<(String, String), Affinity>,
    /// Whether texts may be ordered otherwise than by their bytes.
    pub collates: bool,
    /// Whether a view draws something by lot.
    pub draws: bool,
    /// Those that join tables, or may.
    joins: HashSet<String>,
    /// Views that may have a LIMIT.
    limits: HashSet<String>,
    functions: HashMap<String, Vec<String>>,
}

impl KnownSchema {
    /// Reads them.
    ///
    /// # Errors
    /// [`QueryError`] when the database fails.
    pub fn read(guard: &Guard) -> Result<Self, QueryError> {
        let failed = |e: rusqlite::Error| guard.error(&e, "");
        let connection = guard.connection();
        let mut tables: HashMap<String, Vec<String>> = HashMap::new();
        let mut affinities = HashMap::new();
        let mut names = connection
            .prepare("SELECT name, schema FROM pragma_table_list ORDER BY name")
            .map_err(failed)?;
        let names = names.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
        let names: Vec<(String, String)> = names.collect::<Result<_, _>>().map_err(failed)?;
        let mut columns = connection
            .prepare(
                "SELECT name, type FROM pragma_table_xinfo(?1, ?2) WHERE hidden <> 1 ORDER BY cid",
            )
            .map_err(failed)?;
        for (name, schema) in names {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let found = columns.query_map((&name, schema), read).map_err(failed)?;
            // A view whose tables are gone has none, and is no trouble of other tables.
            let Ok(found) = found.collect::<Result<Vec<(String, Option<String>)>, _>>() else {
                continue;
            };
            let table = name.to_lowercase();
            for (column, declared) in found {
                let affinity = match affinity(declared.as_deref()) {
                    "TEXT" => Affinity::Text,
                    "INTEGER" => Affinity::Integer,
                    "REAL" => Affinity::Real,
                    "NUMERIC" => Affinity::Numeric,
                    _ => Affinity::Blob,
                };
                affinities.insert((table.clone(), column.to_lowercase()), affinity);
                tables.entry(table.clone()).or_default().push(column);
            }
        }
        let collates = connection
            .query_row(
                // Texts in UTF-16 are ordered by other bytes than ours.
                "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE lower(sql) LIKE '%collate%') \
                 OR (SELECT encoding <> 'UTF-8' FROM pragma_encoding)",
                [],
                |row| row.get(0),
            )
            .map_err(failed)?;
        let draws = connection
            .query_row(
                "SELECT EXISTS (SELECT 1 FROM sqlite_schema \
                 WHERE type = 'view' AND lower(sql) LIKE '%random%')",
                [],
                |row| row.get(0),
            )
            .map_err(failed)?;
        let each = ["key", "value", "type", "atom", "id", "parent", "fullkey", "path"];
        let each: Vec<String> = each.iter().map(|s| (*s).to_owned()).collect();
        let functions = [
            ("json_each", each.clone()),
            ("json_tree", each),
            ("generate_series", vec!["value".to_owned()]),
        ];
        let functions = functions.into_iter().map(|(n, c)| (n.to_owned(), c)).collect();
        let joins = joins(guard).map_err(failed)?;
        let limits = limits(guard).map_err(failed)?;
        Ok(Self { tables, affinities, collates, draws, joins, limits, functions })
    }
}

/// Views that may have a LIMIT, or read one that has.
fn limits(guard: &Guard) -> rusqlite::Result<HashSet<String>> {
    let views = "SELECT lower(name), lower(sql) FROM sqlite_schema WHERE type = 'view'";
    let mut views = guard.connection().prepare(views)?;
    let views: Vec<(String, String)> =
        views.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let mut found: HashSet<String> = HashSet::new();
    loop {
        let reads =
            |sql: &str| sql.contains("limit") || found.iter().any(|name| sql.contains(name));
        let more: Vec<&String> = views
            .iter()
            .filter(|(name, sql)| !found.contains(name) && reads(sql))
            .map(|(name, _)| name)
            .collect();
        if more.is_empty() {
            return Ok(found);
        }
        found.extend(more.into_iter().cloned());
    }
}

/// Views that are not one table for certain.
fn joins(guard: &Guard) -> rusqlite::Result<HashSet<String>> {
    let views = "SELECT name, sql FROM sqlite_schema WHERE type = 'view'";
    let mut views = guard.connection().prepare(views)?;
    let views: Vec<(String, Option<String>)> =
        views.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let names: HashSet<String> = views.iter().map(|(name, _)| name.to_lowercase()).collect();
    let one_table = |sql: &str| {
        let at = sql.to_ascii_lowercase().find("select")?;
        let query = parse(sql.get(at..)?, Vec::new()).ok()?.query;
        if sql.to_ascii_lowercase().contains("exists") {
            return None;
        }
        let Body::Core(core) = query.body else { return None };
        if core.computes_of_no_row() {
            return None;
        }
        match core.from.as_slice() {
            [] => Some(()),
            [FromItem { source: FromSource::Table { name, .. }, .. }] => {
                (!names.contains(&name.to_lowercase())).then_some(())
            }
            _ => None,
        }
    };
    let joined = views.iter().filter(|(_, sql)| sql.as_deref().and_then(one_table).is_none());
    Ok(joined.map(|(name, _)| name.to_lowercase()).collect())
}

impl Schema for KnownSchema {
    fn columns(&self, table: &str) -> Option<Vec<String>> {
        let name = table.to_lowercase();
        self.tables.get(&name).or_else(|| self.functions.get(&name)).cloned()
    }

    fn joins(&self, table: &str) -> bool {
        self.joins.contains(&table.to_lowercase())
    }

    fn limits(&self, table: &str) -> bool {
        self.limits.contains(&table.to_lowercase())
    }

    fn affinity(&self, table: &str, column: &str) -> Option<Affinity> {
        self.affinities.get(&(table.to_lowercase(), column.to_lowercase())).copied()
    }
}
