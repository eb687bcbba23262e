//! The tables and columns of the database that a query runs on.

use std::collections::HashMap;

use super::QueryError;
use super::guard::Guard;
use crate::blendsql::scope::Schema;

/// The tables of a database, read once.
pub(super) struct KnownSchema {
    tables: HashMap<String, Vec<String>>,
    /// Whether some column has a collation of its own.
    pub collates: bool,
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
        let mut columns = connection
            .prepare(
                "SELECT lower(t.name), c.name FROM pragma_table_list t, \
                 pragma_table_xinfo(t.name, t.schema) c WHERE c.hidden <> 1 ORDER BY t.name, c.cid",
            )
            .map_err(failed)?;
        let mut rows = columns.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let (table, column): (String, String) =
                (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
            tables.entry(table).or_default().push(column);
        }
        let collates = connection
            .query_row(
                "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE lower(sql) LIKE '%collate%')",
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
        Ok(Self { tables, collates, functions })
    }
}

impl Schema for KnownSchema {
    fn columns(&self, table: &str) -> Option<Vec<String>> {
        let name = table.to_lowercase();
        self.tables.get(&name).or_else(|| self.functions.get(&name)).cloned()
    }
}
