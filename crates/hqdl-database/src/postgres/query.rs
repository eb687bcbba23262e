//! Runs queries on a server, over published tables and all others.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::{Value as Sqlite, ValueRef};
use tokio_postgres::error::SqlState;

use super::catalog::find;
use super::values::ColumnReading;
use super::{DatabaseServer, ROWS};
use crate::StoreError;
use hqdl_spec::Expansion;
use hqdl_values::sql;

/// Reason why a query stops.
#[derive(Debug)]
pub enum QueryStop<E> {
    /// The server rejected the query, or is unreachable.
    Store(StoreError),
    /// The timeout expired.
    Late,
    /// The reader of the rows failed, or stopped reading.
    Reader(E),
}

impl<E> From<StoreError> for QueryStop<E> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl DatabaseServer {
    /// Creates empty local tables with the names and columns of the server's tables, so that the
    /// names in a query can be resolved.
    pub(crate) fn outline(&self, local: &Connection) -> Result<(), StoreError> {
        let failed = |e: rusqlite::Error| StoreError::from_sqlite(self.shown().as_ref(), &e);
        let sql = "SELECT c.relname::text, a.attname::text, a.atttypid
            FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped
              AND pg_catalog.pg_table_is_visible(c.oid) AND n.nspname NOT LIKE 'pg\\_%'
              AND n.nspname <> 'information_schema' AND c.relname NOT LIKE 'hqdl\\_%'
            ORDER BY c.oid, a.attnum";
        let mut tables: Vec<(String, Vec<String>)> = Vec::new();
        for row in self.rows(sql, &[])? {
            let read = |e: tokio_postgres::Error| self.error(&e);
            let table: String = row.try_get(0).map_err(read)?;
            let column: String = row.try_get(1).map_err(read)?;
            let kind: u32 = row.try_get(2).map_err(read)?;
            let kind = tokio_postgres::types::Type::from_oid(kind);
            let declared = kind.map_or("TEXT", |kind| ColumnReading::of(&kind).declared());
            let column = format!("{} {declared}", sql::name(&column));
            match tables.last_mut().filter(|(last, _)| *last == table) {
                Some((_, columns)) => columns.push(column),
                None => tables.push((table, vec![column])),
            }
        }
        for (table, columns) in tables {
            let columns = columns.join(", ");
            // The server distinguishes names that differ only in case; SQLite does not.
            local
                .execute_batch(&format!(
                    "CREATE TABLE IF NOT EXISTS {} ({columns})",
                    sql::name(&table)
                ))
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the number of keys of an expansion's sources that are not published, or for which
    /// one of these columns is missing or failed. A query would need requests for these.
    pub(crate) fn unanswered(
        &self,
        expansion: &Expansion,
        columns: &[String],
    ) -> Result<i64, StoreError> {
        let shape = self.shape(expansion)?;
        let mut open = 0;
        for (n, source) in expansion.sources.iter().enumerate() {
            let part = expansion.key_parts.get(n);
            let own = self.source_columns(&source.rows)?;
            let (mut theirs, mut ours) = (Vec::new(), Vec::new());
            for (at, (name, kind)) in shape.key.iter().enumerate() {
                ours.push(format!("e.{}", sql::name(name)));
                theirs.push(match part {
                    Some(part) if !part.contains(&at) => format!("NULL::{kind}"),
                    _ => {
                        let name = find(&own, name).map_or(name, |(name, _)| name);
                        format!("s.{}::{kind}", sql::name(name))
                    }
                });
            }
            let nobody: Vec<String> = theirs.iter().map(|t| format!("{t} IS NULL")).collect();
            let (theirs, ours) = (theirs.join(", "), ours.join(", "));
            // A SELECT has an alias of its own.
            let from = format!("(SELECT * FROM {}) AS s", self.from(&source.rows)?);
            open += self.one::<i64>(
                &format!(
                    "SELECT count(*) FROM {from} WHERE NOT ({}) AND NOT EXISTS (
                       SELECT 1 FROM {} AS e WHERE ROW({ours})::record = ROW({theirs})::record)",
                    nobody.join(" AND "),
                    self.own(&expansion.name)
                ),
                &[],
            )?;
        }
        let columns = columns.to_vec();
        let failed = format!(
            "SELECT count(*) FROM {} AS r WHERE r.expansion = $1
               AND (r.cells LIKE '%[\"missing\"%' OR r.cells LIKE '%[\"error\"%')
               AND EXISTS (SELECT 1 FROM json_each(r.cells::json) AS c
                 WHERE c.key = ANY ($2) AND c.value ->> 0 IN ('missing', 'error'))",
            self.own("hqdl_record")
        );
        Ok(open + self.one::<i64>(&failed, &[&expansion.name, &columns])?)
    }

    /// Runs a read-only query: calls `columns` with the column names first, then `row` with each
    /// row.
    pub(crate) fn query<E>(
        &self,
        query: &str,
        timeout: Option<Duration>,
        columns: &mut dyn FnMut(&[String]) -> Result<(), E>,
        row: &mut dyn FnMut(&[ValueRef<'_>]) -> Result<(), E>,
    ) -> Result<(), QueryStop<E>> {
        let query = query.trim_end().trim_end_matches(';');
        let described = self.describe(&format!("SELECT * FROM ({query}\n) AS query"))?;
        let names: Vec<String> = described.iter().map(|(name, _)| name.clone()).collect();
        columns(&names).map_err(QueryStop::Reader)?;
        let readings: Vec<ColumnReading> =
            described.iter().map(|(_, kind)| ColumnReading::of(kind)).collect();
        let plain: Vec<String> = (0..readings.len()).map(|n| format!("c{n}")).collect();
        let asked: Vec<String> = readings.iter().zip(&plain).map(|(r, n)| r.asked(n)).collect();
        let reading = self.begin("READ ONLY")?;
        if let Some(timeout) = timeout {
            self.batch(&format!("SET LOCAL statement_timeout = {}", timeout.as_millis().max(1)))?;
        }
        self.batch(&format!(
            "DECLARE hqdl_query NO SCROLL CURSOR FOR SELECT {} FROM ({query}\n) AS query ({})",
            asked.join(", "),
            plain.join(", ")
        ))?;
        let client = self.client()?;
        let fetch = format!("FETCH FORWARD {ROWS} FROM hqdl_query");
        loop {
            let rows = self.thread.wait(client.query(&fetch, &[])).map_err(|e| {
                if timeout.is_some() && e.code() == Some(&SqlState::QUERY_CANCELED) {
                    QueryStop::Late
                } else {
                    QueryStop::Store(self.error(&e))
                }
            })?;
            for found in &rows {
                let mut values: Vec<Sqlite> = Vec::with_capacity(readings.len());
                for (n, reading) in readings.iter().enumerate() {
                    values.push(reading.read(found, n).map_err(|e| self.error(&e))?);
                }
                let values: Vec<ValueRef<'_>> = values.iter().map(ValueRef::from).collect();
                row(&values).map_err(QueryStop::Reader)?;
            }
            if rows.len() < ROWS {
                break;
            }
        }
        Ok(reading.commit()?)
    }
}
