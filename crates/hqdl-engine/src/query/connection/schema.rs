//! Tables and columns of the database that a query runs on.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::query::connection::guard::GuardedConnection;
use crate::query::request::error::QueryError;
use hqdl_database::publish::find_column_affinity;
use hqdl_sql::blendsql::calls_random_function;
use hqdl_sql::blendsql::scope::{Affinity, Resolver, Schema, Scope};
use hqdl_sql::blendsql::tree::{Body, ExprKind, FromItem, FromSource, Query, ViewDefinition};
use hqdl_sql::suql::TableColumns;

/// Returns a function that looks up the columns of a table or view, in order. The function returns
/// `None` if there is no such table or the table cannot be read. The first lookup opens the
/// database.
pub(in crate::query) fn build_column_lookup(
    database: &Path,
) -> impl Fn(&str) -> Option<TableColumns> {
    let opened = std::cell::OnceCell::new();
    let database = database.to_owned();
    move |table| {
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
            let connection = Connection::open_with_flags(&database, flags).ok()?;
            connection.busy_timeout(Duration::from_secs(5)).ok()?;
            Some(connection)
        };
        read_columns(opened.get_or_init(open).as_ref()?, table)
    }
}

fn read_columns(connection: &Connection, table: &str) -> Option<TableColumns> {
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
pub(in crate::query) struct KnownSchema {
    tables: HashMap<String, Vec<String>>,
    affinities: HashMap<(String, String), Affinity>,
    unique_keys: HashMap<String, Vec<Vec<String>>>,
    /// Columns, in lower case, whose collation may treat different texts as equal.
    collations: HashSet<(String, String)>,
    /// Views that may have volatile results.
    random_views: HashSet<String>,
    /// Views that may join tables.
    join_views: HashSet<String>,
    limit_views: HashSet<String>,
    functions: HashMap<String, Vec<String>>,
    /// Views whose definitions can be parsed.
    views: HashMap<String, ViewDefinition>,
}

impl KnownSchema {
    /// Reads the schema.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the database fails.
    pub fn read_schema(guard: &GuardedConnection) -> Result<Self, QueryError> {
        let failed = |e: rusqlite::Error| guard.query_error(&e, "");
        let connection = guard.connection();
        let mut tables: HashMap<String, Vec<String>> = HashMap::new();
        let mut affinities = HashMap::new();
        let mut collations = HashSet::new();
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
        let mut unique_keys: HashMap<String, Vec<Vec<String>>> = HashMap::new();
        for (name, schema) in names {
            // Treat a view whose tables were dropped, or two tables with the same name, as having
            // no unique key.
            let own_keys = read_unique_keys(connection, &name, &schema).unwrap_or_default();
            unique_keys.entry(name.to_lowercase()).and_modify(Vec::clear).or_insert(own_keys);
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let found = columns.query_map((&name, &schema), read).map_err(failed)?;
            // A view whose tables were dropped has no columns, and must not affect other tables.
            let Ok(found) = found.collect::<Result<Vec<(String, Option<String>)>, _>>() else {
                continue;
            };
            let table = name.to_lowercase();
            for (column, declared_type) in found {
                let affinity = match find_column_affinity(declared_type.as_deref()) {
                    "TEXT" => Affinity::Text,
                    "INTEGER" => Affinity::Integer,
                    "REAL" => Affinity::Real,
                    "NUMERIC" => Affinity::Numeric,
                    _ => Affinity::Blob,
                };
                affinities.insert((table.clone(), column.to_lowercase()), affinity);
                if !has_binary_collation(connection, (&schema, &name, &column)) {
                    collations.insert((table.clone(), column.to_lowercase()));
                }
                tables.entry(table.clone()).or_default().push(column);
            }
        }
        let json_columns = ["key", "value", "type", "atom", "id", "parent", "fullkey", "path"];
        let json_columns: Vec<String> = json_columns.iter().map(|s| (*s).to_owned()).collect();
        let functions = [
            ("json_each", json_columns.clone()),
            ("json_tree", json_columns),
            ("generate_series", vec!["value".to_owned()]),
        ];
        let functions = functions.into_iter().map(|(n, c)| (n.to_owned(), c)).collect();
        let (join_views, limit_views, random_views) = Default::default();
        let views = HashMap::new();
        let mut known = Self {
            tables,
            affinities,
            unique_keys,
            collations,
            random_views,
            join_views,
            limit_views,
            functions,
            views,
        };
        let definitions = read_view_definitions(connection).map_err(failed)?;
        known.record_view_properties(&definitions);
        known.views =
            definitions.into_iter().filter_map(|(name, view)| Some((name, view?))).collect();
        Ok(known)
    }

    /// Records the properties of views: limits, random functions, joins and collations.
    fn record_view_properties(&mut self, views: &[(String, Option<ViewDefinition>)]) {
        let views_where = |of: &dyn Fn(&Query) -> bool| find_views_with_property(views, of);
        self.limit_views = views_where(&has_limit);
        self.random_views = views_where(&calls_random_function);
        let is_view = |table: &str| views.iter().any(|(view, _)| view.eq_ignore_ascii_case(table));
        let joined = |view: &&(String, Option<ViewDefinition>)| {
            !view.1.as_ref().is_some_and(|view| reads_at_most_one_table(&view.query, &is_view))
        };
        self.join_views = views.iter().filter(joined).map(|(name, _)| name.clone()).collect();
        // Each iteration resolves at least the views that read only tables and resolved views.
        for _ in views {
            let before = self.collations.len();
            for (name, view) in views {
                let Some(view) = view else { continue };
                let resolver = Resolver { schema: self, cte_calls: &[] };
                let fields = resolver.resolve_output_fields(&view.query, &Scope::new(None));
                let columns = self.tables.get(name).map_or(&[][..], Vec::as_slice);
                let fields = fields.filter(|fields| fields.len() == columns.len());
                let plain: Vec<(String, String)> = (columns.iter().zip(fields.iter().flatten()))
                    .filter(|(_, field)| !field.has_custom_collation)
                    .map(|(column, _)| (name.clone(), column.to_lowercase()))
                    .collect();
                self.collations.retain(|column| !plain.contains(column));
            }
            if self.collations.len() == before {
                return;
            }
        }
    }
}

/// Returns true if a table's column has the BINARY collation. `SQLite` does not report the
/// collation of a view's column.
fn has_binary_collation(
    connection: &Connection,
    (schema, table, column): (&str, &str, &str),
) -> bool {
    read_column_collation(connection, (schema, table, column))
        .is_some_and(|name| name.eq_ignore_ascii_case("binary"))
}

fn read_column_collation(
    connection: &Connection,
    (schema, table, column): (&str, &str, &str),
) -> Option<String> {
    let metadata = connection.column_metadata(Some(schema), table, column);
    metadata.ok()?.1.map(|name| name.to_string_lossy().into_owned())
}

/// Reads the unique keys of a table. Each key is a set of lower-case column names. Its columns are
/// never NULL, and their values are unique under the columns' own collations. An index that
/// distinguishes more values than its column is not a unique key.
fn read_unique_keys(
    connection: &Connection,
    table: &str,
    schema: &str,
) -> rusqlite::Result<Vec<Vec<String>>> {
    // A primary key without an index is the rowid. An expression in an index has no name.
    let sql = "WITH columns AS (SELECT lower(name) AS name, pk, \"notnull\" AS is_needed \
                 FROM pragma_table_xinfo(?1, ?2)), \
               indexes AS (SELECT name, origin FROM pragma_index_list(?1, ?2) \
                 WHERE \"unique\" AND NOT partial), \
               parts AS (SELECT i.name AS of, lower(p.name) AS part, p.coll \
                 FROM indexes AS i, pragma_index_xinfo(i.name, ?2) AS p WHERE p.key) \
               SELECT json_group_array(json_array(part, coll)) FROM parts GROUP BY of \
                 HAVING min(part IS NOT NULL \
                 AND EXISTS (SELECT 1 FROM columns AS c WHERE c.name = part AND c.is_needed)) \
               UNION ALL SELECT json_array(json_array(max(name), NULL)) FROM columns WHERE pk > 0 \
                 AND NOT EXISTS (SELECT 1 FROM indexes WHERE origin = 'pk') HAVING count(*) = 1";
    let mut statement = connection.prepare_cached(sql)?;
    let unique_keys: Vec<String> =
        statement.query_map((table, schema), |row| row.get(0))?.collect::<Result<_, _>>()?;
    let compares_alike = |(column, collation): &(String, Option<String>)| {
        let Some(collation) = collation else { return true };
        read_column_collation(connection, (schema, table, column)).is_some_and(|own| {
            own.eq_ignore_ascii_case("binary") || own.eq_ignore_ascii_case(collation)
        })
    };
    let keys = unique_keys.iter().filter_map(|key| serde_json::from_str(key).ok());
    let keys = keys.filter(|key: &Vec<(String, Option<String>)>| key.iter().all(compares_alike));
    Ok(keys.map(|key| key.into_iter().map(|(column, _)| column).collect()).collect())
}

/// Returns the views of a database: each name in lower case, with the definition if it can be
/// parsed.
fn read_view_definitions(
    connection: &Connection,
) -> rusqlite::Result<Vec<(String, Option<ViewDefinition>)>> {
    let mut views = connection.prepare(
        "SELECT lower(name), sql FROM sqlite_schema WHERE type = 'view' \
         UNION ALL SELECT lower(name), sql FROM sqlite_temp_schema WHERE type = 'view'",
    )?;
    let read = |row: &rusqlite::Row<'_>| {
        let sql: Option<String> = row.get(1)?;
        Ok((row.get(0)?, sql.as_deref().and_then(ViewDefinition::parse)))
    };
    views.query_map([], read)?.collect()
}

/// Returns the names of the views whose query satisfies `holds`, and of all views that read such a
/// view, directly or through other views. Views that cannot be parsed are included.
fn find_views_with_property(
    views: &[(String, Option<ViewDefinition>)],
    holds: &dyn Fn(&Query) -> bool,
) -> HashSet<String> {
    let mut found: HashSet<String> = HashSet::new();
    loop {
        let reads = |query: &Query| {
            let mut reads = false;
            query.visit_tables(&mut |table| reads |= found.contains(&table.to_lowercase()));
            reads
        };
        let is_new = |view: &&(String, Option<ViewDefinition>)| {
            let holds = |view: &ViewDefinition| holds(&view.query) || reads(&view.query);
            !found.contains(&view.0) && view.1.as_ref().is_none_or(holds)
        };
        let more: Vec<String> = views.iter().filter(is_new).map(|(name, _)| name.clone()).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Returns true if a query, or any query inside it, has a LIMIT.
fn has_limit(query: &Query) -> bool {
    let mut found = false;
    query.visit_queries(&mut |q| found |= q.limit.is_some());
    found
}

/// Returns true if a view's query certainly reads at most one table.
fn reads_at_most_one_table(query: &Query, is_view: &dyn Fn(&str) -> bool) -> bool {
    let mut exists = false;
    query.visit_exprs(&mut |e| exists |= matches!(e.kind, ExprKind::Exists(_)));
    let Body::Core(core) = &query.body else { return false };
    if exists || !query.with.is_empty() || core.has_row_independent_result() {
        return false;
    }
    match core.from.as_slice() {
        [] => true,
        [FromItem { source: FromSource::Table { name, .. }, .. }] => !is_view(name),
        _ => false,
    }
}

/// A schema that traces values through views to the underlying tables.
pub(in crate::query) struct ThroughViews<'s>(pub &'s KnownSchema);

impl Schema for ThroughViews<'_> {
    fn column_names(&self, table: &str) -> Option<Vec<String>> {
        self.0.column_names(table)
    }

    fn affinity(&self, table: &str, column: &str) -> Option<Affinity> {
        self.0.affinity(table, column)
    }

    fn has_custom_collation(&self, table: &str, column: &str) -> bool {
        self.0.has_custom_collation(table, column)
    }

    fn unique_keys(&self, table: &str) -> &[Vec<String>] {
        self.0.unique_keys(table)
    }

    fn view_definition(&self, table: &str) -> Option<&ViewDefinition> {
        self.0.views.get(&table.to_lowercase())
    }
}

impl KnownSchema {
    /// Returns true if a table exists.
    pub fn has_table(&self, table: &str) -> bool {
        self.tables.contains_key(&table.to_lowercase())
    }

    /// Returns true if a query reads a view.
    pub fn reads_view(&self, query: &Query) -> bool {
        let mut found = false;
        query.visit_tables(&mut |table| found |= self.views.contains_key(&table.to_lowercase()));
        found
    }
}

impl Schema for KnownSchema {
    fn column_names(&self, table: &str) -> Option<Vec<String>> {
        let name = table.to_lowercase();
        self.tables.get(&name).or_else(|| self.functions.get(&name)).cloned()
    }

    fn may_join_tables(&self, table: &str) -> bool {
        self.join_views.contains(&table.to_lowercase())
    }

    fn may_have_limit(&self, table: &str) -> bool {
        self.limit_views.contains(&table.to_lowercase())
    }

    fn is_volatile(&self, table: &str) -> bool {
        self.random_views.contains(&table.to_lowercase())
    }

    fn has_custom_collation(&self, table: &str, column: &str) -> bool {
        self.collations.contains(&(table.to_lowercase(), column.to_lowercase()))
    }

    fn unique_keys(&self, table: &str) -> &[Vec<String>] {
        self.unique_keys.get(&table.to_lowercase()).map_or(&[], Vec::as_slice)
    }

    fn affinity(&self, table: &str, column: &str) -> Option<Affinity> {
        self.affinities.get(&(table.to_lowercase(), column.to_lowercase())).copied()
    }
}
