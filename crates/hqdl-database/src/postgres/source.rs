//! Streams the rows of a source from a server into a local table, with a cursor.

use rusqlite::types::Value as Sqlite;
use rusqlite::{Connection, params_from_iter};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::catalog::find;
use super::shape::ServerTables;
use super::values::ColumnReading;
use super::{DatabaseServer, ROWS};
use crate::StoreError;
use hqdl_spec::{Expansion, SourceRows};
use hqdl_values::sql;

/// Column that is true if the filter matches a row.
pub(crate) const WANTED: &str = "hqdl wanted";

impl DatabaseServer {
    /// Visits the rows of a SELECT in batches, within the open transaction, until there are no more
    /// or the visitor returns false.
    pub(super) fn each(
        &self,
        select: &str,
        visit: &mut dyn FnMut(&Row) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        self.batch(&format!("DECLARE hqdl_rows NO SCROLL CURSOR FOR {select}"))?;
        let fetch = format!("FETCH FORWARD {ROWS} FROM hqdl_rows");
        'all: loop {
            let rows = self.rows(&fetch, &[])?;
            for row in &rows {
                if !visit(row)? {
                    break 'all;
                }
            }
            if rows.len() < ROWS {
                break;
            }
        }
        self.batch("CLOSE hqdl_rows")
    }

    /// Checks that a filter is a valid condition on the rows of a source.
    pub(crate) fn takes_filter(&self, rows: &SourceRows, filter: &str) -> Result<(), StoreError> {
        let from = self.from(rows)?;
        self.describe(&format!("SELECT 1 FROM {from} WHERE ({filter}\n)")).map(drop)
    }

    /// Copies the needed columns of an expansion's sources into tables of the `temp` schema, with
    /// the names that `table` returns, from one snapshot: key and context columns by their names,
    /// and whether `filters` match (one filter per source).
    pub(crate) fn copy_sources(
        &self,
        expansion: &Expansion,
        filters: &[Option<&str>],
        connection: &Connection,
        table: &dyn Fn(usize) -> String,
    ) -> Result<(), StoreError> {
        let shape = self.shape(expansion)?;
        let reading = self.begin("ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        for (n, source) in expansion.sources.iter().enumerate() {
            let filter = filters.get(n).copied().flatten();
            let asked = (source.rows.clone(), filter);
            self.copy(expansion, &shape, n, asked, connection, &table(n))?;
        }
        reading.commit()
    }

    fn copy(
        &self,
        expansion: &Expansion,
        shape: &ServerTables,
        n: usize,
        (rows, filter): (SourceRows, Option<&str>),
        connection: &Connection,
        table: &str,
    ) -> Result<(), StoreError> {
        let part = expansion.key_parts.get(n);
        let keys = expansion.key.names().iter().enumerate();
        let keys = keys.filter(|(at, _)| part.is_none_or(|part| part.contains(at)));
        let mut wanted: Vec<&String> = keys.map(|(_, name)| name).collect();
        for name in &expansion.context {
            if !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        let columns = self.source_columns(&rows)?;
        let mut readings = Vec::new();
        let mut asked = Vec::new();
        for name in &wanted {
            let Some((own, kind)) = find(&columns, name) else {
                let message = format!("the column `{name}` no longer exists");
                return Err(StoreError::Statement { url: self.shown().to_owned(), message });
            };
            let reading = match shape.key.iter().find(|(key, _)| key == *name) {
                // A key that is published as text is compared as text.
                Some((_, "text")) if *kind != Type::BYTEA => ColumnReading::Text,
                _ => ColumnReading::of(kind),
            };
            asked.push(reading.asked(&sql::name(own)));
            readings.push(reading);
        }
        asked.push(match filter {
            Some(filter) => format!("coalesce(({filter}\n), false)::text"),
            None => "'true'".to_owned(),
        });
        let names: Vec<String> = wanted.iter().map(|name| sql::name(name)).collect();
        let marks = vec!["?"; names.len() + 1].join(", ");
        let local = |e: rusqlite::Error| StoreError::from_sqlite(self.shown().as_ref(), &e);
        connection
            .execute_batch(&format!(
                "DROP TABLE IF EXISTS temp.{table};
                 CREATE TEMP TABLE {table} ({}, {})",
                names.join(", "),
                sql::name(WANTED)
            ))
            .map_err(local)?;
        let inserting = connection.unchecked_transaction().map_err(local)?;
        let mut insert = inserting
            .prepare(&format!("INSERT INTO temp.{table} VALUES ({marks})"))
            .map_err(local)?;
        let select = format!("SELECT {} FROM {}", asked.join(", "), self.from(&rows)?);
        self.each(&select, &mut |row| {
            let mut values = Vec::with_capacity(readings.len() + 1);
            for (at, reading) in readings.iter().enumerate() {
                values.push(reading.read(row, at).map_err(|e| self.error(&e))?);
            }
            let wanted: &str = row.try_get(readings.len()).map_err(|e| self.error(&e))?;
            values.push(Sqlite::Integer(i64::from(wanted == "true")));
            insert.execute(params_from_iter(values)).map_err(local)?;
            Ok(true)
        })?;
        drop(insert);
        inserting.commit().map_err(local)
    }
}
