//! Implements [`Catalog`] for a database.

use rusqlite::types::ValueRef;

use super::postgres::to_values;
use super::{Database, describe_sqlite_error};
use hqdl_spec::Catalog;
use hqdl_values::value::Value;

impl Catalog for Database {
    fn table_names(&self) -> Vec<String> {
        if let Some(server) = self.server() {
            return server.list_tables().unwrap_or_default();
        }
        let sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') \
                   AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\' ORDER BY name";
        let read_names = || -> rusqlite::Result<Vec<String>> {
            self.connection().prepare(sql)?.query_map([], |row| row.get(0))?.collect()
        };
        read_names().unwrap_or_default()
    }

    fn table_columns(&self, table: &str) -> Option<Vec<(String, Option<String>)>> {
        if let Some(server) = self.server() {
            return server.list_columns(table).ok().flatten();
        }
        let read_columns = || -> rusqlite::Result<Vec<(String, Option<String>)>> {
            self.connection()
                .prepare("SELECT name, nullif(type, '') FROM pragma_table_info(?1)")?
                .query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        };
        read_columns().ok().filter(|columns| !columns.is_empty())
    }

    fn is_created_by_hqdl(&self, table: &str) -> bool {
        self.target.is_created_by_hqdl(self, table)
    }

    fn list_select_columns(&self, sql: &str) -> Result<Vec<String>, String> {
        if let Some(server) = self.server() {
            return server.list_select_columns(sql).map_err(|e| e.message_text());
        }
        let statement = self.connection().prepare(sql).map_err(|e| describe_sqlite_error(&e))?;
        if !statement.readonly() {
            return Err("it is not a SELECT, but would change the database".to_owned());
        }
        if statement.column_count() == 0 {
            return Err("it returns no columns".to_owned());
        }
        if statement.parameter_count() > 0 {
            return Err("it has parameters".to_owned());
        }
        Ok(statement.column_names().map(str::to_owned).collect())
    }

    fn select_rows(&self, sql: &str, limit: usize) -> Result<Vec<Vec<Value>>, String> {
        if let Some(server) = self.server() {
            return to_values(server.select_rows(sql, limit).map_err(|e| e.message_text())?);
        }
        self.list_select_columns(sql)?;
        let mut statement =
            self.connection().prepare(sql).map_err(|e| describe_sqlite_error(&e))?;
        let column_count = statement.column_count();
        let mut rows = statement.query([]).map_err(|e| describe_sqlite_error(&e))?;
        let mut out = Vec::new();
        while out.len() < limit {
            let Some(row) = rows.next().map_err(|e| describe_sqlite_error(&e))? else {
                break;
            };
            let read_value = |n: usize| {
                let value = row.get_ref(n).unwrap_or(ValueRef::Null);
                Value::from_sqlite(value)
                    .map_err(|reason| format!("column {} holds {reason}", n + 1))
            };
            out.push((0..column_count).map(read_value).collect::<Result<_, _>>()?);
        }
        Ok(out)
    }
}
