//! Runs queries on a server, over published tables and the user's own tables.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::{Value as Sqlite, ValueRef};
use tokio_postgres::error::SqlState;

use super::catalog::find_column;
use super::values::ColumnDecoder;
use super::{BATCH_ROWS, DatabaseServer};
use crate::StoreError;
use hqdl_spec::Expansion;
use hqdl_values::sql;

/// Reason why a query stopped.
#[derive(Debug)]
pub enum QueryStop<E> {
    /// The server rejected the query, or is unreachable.
    Store(StoreError),
    /// The timeout expired.
    Timeout,
    /// The callback that reads the rows failed or stopped reading.
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
    pub(crate) fn create_empty_tables(&self, local: &Connection) -> Result<(), StoreError> {
        let to_error =
            |e: rusqlite::Error| StoreError::from_sqlite(self.display_url().as_ref(), &e);
        let sql = "SELECT c.relname::text, a.attname::text, a.atttypid
            FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped
              AND pg_catalog.pg_table_is_visible(c.oid) AND n.nspname NOT LIKE 'pg\\_%'
              AND n.nspname <> 'information_schema' AND c.relname NOT LIKE 'hqdl\\_%'
            ORDER BY c.oid, a.attnum";
        let mut tables: Vec<(String, Vec<String>)> = Vec::new();
        for row in self.query_rows(sql, &[])? {
            let to_read_error = |e: tokio_postgres::Error| self.to_store_error(&e);
            let table: String = row.try_get(0).map_err(to_read_error)?;
            let column: String = row.try_get(1).map_err(to_read_error)?;
            let type_oid: u32 = row.try_get(2).map_err(to_read_error)?;
            let data_type = tokio_postgres::types::Type::from_oid(type_oid);
            let sqlite_type = data_type
                .map_or("TEXT", |data_type| ColumnDecoder::for_type(&data_type).sqlite_type());
            let column = format!("{} {sqlite_type}", sql::quote_name(&column));
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
                    sql::quote_name(&table)
                ))
                .map_err(to_error)?;
        }
        Ok(())
    }

    /// Returns the number of keys in an expansion's sources that are not published, or whose cell
    /// in one of these columns is missing or failed. A query would have to ask a model about these
    /// keys.
    pub(crate) fn count_unanswered_keys(
        &self,
        expansion: &Expansion,
        columns: &[String],
    ) -> Result<i64, StoreError> {
        let layout = self.load_table_layout(expansion)?;
        let mut unanswered = 0;
        for (n, source) in expansion.sources.iter().enumerate() {
            let key_part = expansion.key_parts.get(n);
            let source_columns = self.list_source_columns(&source.rows)?;
            let (mut source_keys, mut published_keys) = (Vec::new(), Vec::new());
            for (position, (name, type_name)) in layout.key.iter().enumerate() {
                published_keys.push(format!("e.{}", sql::quote_name(name)));
                source_keys.push(match key_part {
                    Some(key_part) if !key_part.contains(&position) => format!("NULL::{type_name}"),
                    _ => {
                        let name =
                            find_column(&source_columns, name).map_or(name, |(name, _)| name);
                        format!("s.{}::{type_name}", sql::quote_name(name))
                    }
                });
            }
            let null_conditions: Vec<String> =
                source_keys.iter().map(|t| format!("{t} IS NULL")).collect();
            let (source_keys, published_keys) = (source_keys.join(", "), published_keys.join(", "));
            // The source is wrapped in a subquery, because a SELECT already has its own alias.
            let from_sql =
                format!("(SELECT * FROM {}) AS s", self.format_from_clause(&source.rows)?);
            unanswered += self.query_one::<i64>(
                &format!(
                    "SELECT count(*) FROM {from_sql} WHERE NOT ({}) AND NOT EXISTS (
                       SELECT 1 FROM {} AS e WHERE ROW({published_keys})::record = ROW({source_keys})::record)",
                    null_conditions.join(" AND "),
                    self.qualify_name(&expansion.name)
                ),
                &[],
            )?;
        }
        let columns = columns.to_vec();
        let failed_sql = format!(
            "SELECT count(*) FROM {} AS r WHERE r.expansion = $1
               AND (r.cells LIKE '%[\"missing\"%' OR r.cells LIKE '%[\"error\"%')
               AND EXISTS (SELECT 1 FROM json_each(r.cells::json) AS c
                 WHERE c.key = ANY ($2) AND c.value ->> 0 IN ('missing', 'error'))",
            self.qualify_name("hqdl_record")
        );
        Ok(unanswered + self.query_one::<i64>(&failed_sql, &[&expansion.name, &columns])?)
    }

    /// Runs a read-only query: calls `columns` with the column names first, then `row` with each
    /// row.
    pub(crate) fn run_query<E>(
        &self,
        query: &str,
        timeout: Option<Duration>,
        columns: &mut dyn FnMut(&[String]) -> Result<(), E>,
        row: &mut dyn FnMut(&[ValueRef<'_>]) -> Result<(), E>,
    ) -> Result<(), QueryStop<E>> {
        let query = query.trim_end().trim_end_matches(';');
        let result_columns =
            self.describe_columns(&format!("SELECT * FROM ({query}\n) AS query"))?;
        let names: Vec<String> = result_columns.iter().map(|(name, _)| name.clone()).collect();
        columns(&names).map_err(QueryStop::Reader)?;
        let decoders: Vec<ColumnDecoder> = result_columns
            .iter()
            .map(|(_, data_type)| ColumnDecoder::for_type(data_type))
            .collect();
        let aliases: Vec<String> = (0..decoders.len()).map(|n| format!("c{n}")).collect();
        let expressions: Vec<String> =
            decoders.iter().zip(&aliases).map(|(r, n)| r.build_select_expression(n)).collect();
        let transaction = self.begin_transaction("READ ONLY")?;
        if let Some(timeout) = timeout {
            self.set_statement_timeout(timeout)?;
        }
        self.execute_batch(&format!(
            "DECLARE hqdl_query NO SCROLL CURSOR FOR SELECT {} FROM ({query}\n) AS query ({})",
            expressions.join(", "),
            aliases.join(", ")
        ))?;
        let client = self.connection()?;
        let fetch = format!("FETCH FORWARD {BATCH_ROWS} FROM hqdl_query");
        loop {
            let rows = self.thread.block_on(client.query(&fetch, &[])).map_err(|e| {
                if timeout.is_some() && e.code() == Some(&SqlState::QUERY_CANCELED) {
                    QueryStop::Timeout
                } else {
                    QueryStop::Store(self.to_store_error(&e))
                }
            })?;
            for server_row in &rows {
                let mut values: Vec<Sqlite> = Vec::with_capacity(decoders.len());
                for (n, decoder) in decoders.iter().enumerate() {
                    values.push(
                        decoder.read_value(server_row, n).map_err(|e| self.to_store_error(&e))?,
                    );
                }
                let values: Vec<ValueRef<'_>> = values.iter().map(ValueRef::from).collect();
                row(&values).map_err(QueryStop::Reader)?;
            }
            if rows.len() < BATCH_ROWS {
                break;
            }
        }
        Ok(transaction.commit()?)
    }
}
