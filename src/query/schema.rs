//! The tables and columns of the database that a query runs on.

use std::collections::HashMap;

use super::QueryError;
use super::guard::Guard;
use crate::blendsql::scope::{Affinity, Schema};
use crate::store::publish::affinity;

/// The tables of a database, read once.
pub(super) struct KnownSchema {
    tables: HashMap<String, Vec<String>>,
    affinities: HashMap<(String, String), Affinity>,
    /// Whether texts may be ordered otherwise than by their bytes.
    pub collates: bool,
    /// Views, when there is an EXISTS in one of them.
    views: Vec<String>,
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
        let mut columns = connection
            .prepare(
                "SELECT lower(t.name), c.name, c.type FROM pragma_table_list t, \
                 pragma_table_xinfo(t.name, t.schema) c WHERE c.hidden <> 1 ORDER BY t.name, c.cid",
            )
            .map_err(failed)?;
        let mut rows = columns.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let (table, column): (String, String) =
                (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
            let declared: Option<String> = row.get(2).map_err(failed)?;
            let affinity = match affinity(declared.as_deref()) {
                "TEXT" => Affinity::Text,
                "INTEGER" => Affinity::Integer,
                "REAL" => Affinity::Real,
                "NUMERIC" => Affinity::Numeric,
                _ => Affinity::Blob,
            };
            affinities.insert((table.clone(), column.to_lowercase()), affinity);
            tables.entry(table).or_default().push(column);
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
        let mut views = connection
            .prepare(
                "SELECT lower(name) FROM sqlite_schema WHERE type = 'view' AND EXISTS \
                 (SELECT 1 FROM sqlite_schema WHERE type = 'view' AND sql LIKE '%exists%')",
            )
            .map_err(failed)?;
        let views = views.query_map([], |row| row.get(0)).map_err(failed)?;
        let views = views.collect::<Result<Vec<String>, _>>().map_err(failed)?;
        let each = ["key", "value", "type", "atom", "id", "parent", "fullkey", "path"];
        let each: Vec<String> = each.iter().map(|s| (*s).to_owned()).collect();
        let functions = [
            ("json_each", each.clone()),
            ("json_tree", each),
            ("generate_series", vec!["value".to_owned()]),
        ];
        let functions = functions.into_iter().map(|(n, c)| (n.to_owned(), c)).collect();
        Ok(Self { tables, affinities, collates, views, functions })
    }
}

impl Schema for KnownSchema {
    fn columns(&self, table: &str) -> Option<Vec<String>> {
        let name = table.to_lowercase();
        self.tables.get(&name).or_else(|| self.functions.get(&name)).cloned()
    }

    fn hides_exists(&self, table: &str) -> bool {
        self.views.contains(&table.to_lowercase())
    }

    fn affinity(&self, table: &str, column: &str) -> Option<Affinity> {
        self.affinities.get(&(table.to_lowercase(), column.to_lowercase())).copied()
    }
}
