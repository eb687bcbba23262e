//! [`Catalog`](hqdl_spec::Catalog) of a database.

use rusqlite::types::ValueRef;

use super::postgres::told;
use super::{Database, message};
use hqdl_spec::Catalog;
use hqdl_values::value::Value;

impl Catalog for Database {
    fn tables(&self) -> Vec<String> {
        if let Some(server) = self.server() {
            return server.tables().unwrap_or_default();
        }
        let sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') \
                   AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\' ORDER BY name";
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection().prepare(sql)?.query_map([], |row| row.get(0))?.collect()
        };
        read().unwrap_or_default()
    }

    fn columns(&self, table: &str) -> Option<Vec<(String, Option<String>)>> {
        if let Some(server) = self.server() {
            return server.columns(table).ok().flatten();
        }
        let read = || -> rusqlite::Result<Vec<(String, Option<String>)>> {
            self.connection()
                .prepare("SELECT name, nullif(type, '') FROM pragma_table_info(?1)")?
                .query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        };
        read().ok().filter(|columns| !columns.is_empty())
    }

    /// Returns true if hqdl created the present table or view. A table that was created after
    /// hqdl's was dropped lacks the index (of tables made by older versions) and the triggers that
    /// hqdl creates.
    fn made_by_hqdl(&self, table: &str) -> bool {
        if let Some(server) = self.server() {
            return server.made_by_hqdl(table).unwrap_or(false);
        }
        let sql = "SELECT 1 FROM hqdl_object AS o
             JOIN sqlite_schema AS s ON s.name = o.name COLLATE NOCASE AND s.type = o.type
             WHERE o.name = ?1 AND NOT EXISTS (
               SELECT 1 FROM hqdl_object AS m
               WHERE o.type = 'table'
                 AND (m.type, m.name) IN (('index', 'hqdl_' || o.name || '_key'), ('trigger', 'hqdl_' || o.name || '_insert'))
                 AND NOT EXISTS (
                   SELECT 1 FROM sqlite_schema AS i
                   WHERE i.type = m.type AND i.name = m.name COLLATE NOCASE AND i.tbl_name = s.name COLLATE NOCASE))";
        self.has_bookkeeping() && self.connection().query_row(sql, [table], |_| Ok(())).is_ok()
    }

    fn prepare(&self, sql: &str) -> Result<Vec<String>, String> {
        if let Some(server) = self.server() {
            return server.prepare(sql).map_err(|e| e.said());
        }
        let statement = self.connection().prepare(sql).map_err(|e| message(&e))?;
        if !statement.readonly() {
            return Err("it would write to the database".to_owned());
        }
        if statement.column_count() == 0 {
            return Err("it returns no columns".to_owned());
        }
        if statement.parameter_count() > 0 {
            return Err("it has parameters".to_owned());
        }
        Ok(statement.column_names().map(str::to_owned).collect())
    }

    fn select(&self, sql: &str, limit: usize) -> Result<Vec<Vec<Value>>, String> {
        if let Some(server) = self.server() {
            return told(server.select(sql, limit).map_err(|e| e.said())?);
        }
        self.prepare(sql)?;
        let mut statement = self.connection().prepare(sql).map_err(|e| message(&e))?;
        let width = statement.column_count();
        let mut rows = statement.query([]).map_err(|e| message(&e))?;
        let mut out = Vec::new();
        while out.len() < limit {
            let Some(row) = rows.next().map_err(|e| message(&e))? else {
                break;
            };
            let read = |n: usize| {
                let value = row.get_ref(n).unwrap_or(ValueRef::Null);
                Value::read(value).map_err(|why| format!("column {} holds {why}", n + 1))
            };
            out.push((0..width).map(read).collect::<Result<_, _>>()?);
        }
        Ok(out)
    }
}
