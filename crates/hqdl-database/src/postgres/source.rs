//! Streams the rows of a source from a server into a local table, using a cursor.

use std::collections::HashSet;
use std::time::Duration;

use rusqlite::types::Value as Sqlite;
use rusqlite::{Connection, params_from_iter};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::catalog::find_column;
use super::layout::ServerTables;
use super::values::{ColumnDecoder, replace_nul_chars};
use super::{BATCH_ROWS, DatabaseServer};
use crate::StoreError;
use hqdl_spec::{Expansion, SourceRows};
use hqdl_values::key::Entity;
use hqdl_values::sql;

/// Rows to copy from the sources.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CopiedRows<'a> {
    /// All rows.
    All {
        /// For each source, the condition that marks rows.
        filters: &'a [Option<&'a str>],
    },
    /// At least the rows of these entities.
    OfEntities {
        /// The entities.
        entities: &'a HashSet<Entity>,
        /// Time limit of each statement.
        timeout: Duration,
    },
}

/// Name of the column that is true if the row matches the filter.
pub(crate) const SELECTED_COLUMN: &str = "hqdl wanted";

impl DatabaseServer {
    /// Visits the rows of a SELECT in batches, within the open transaction, until there are no more
    /// rows or the visitor returns false.
    pub(super) fn for_each_row(
        &self,
        select: &str,
        visit: &mut dyn FnMut(&Row) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        self.execute_batch(&format!("DECLARE hqdl_rows NO SCROLL CURSOR FOR {select}"))?;
        let fetch = format!("FETCH FORWARD {BATCH_ROWS} FROM hqdl_rows");
        'all: loop {
            let rows = self.query_rows(&fetch, &[])?;
            for row in &rows {
                if !visit(row)? {
                    break 'all;
                }
            }
            if rows.len() < BATCH_ROWS {
                break;
            }
        }
        self.execute_batch("CLOSE hqdl_rows")
    }

    /// Checks that a filter is a valid condition on the rows of a source.
    pub(crate) fn check_filter(&self, rows: &SourceRows, filter: &str) -> Result<(), StoreError> {
        let from_sql = self.format_from_clause(rows)?;
        self.describe_columns(&format!("SELECT 1 FROM {from_sql} WHERE ({filter}\n)")).map(drop)
    }

    /// Copies the needed columns of an expansion's sources, from one snapshot, into tables of the
    /// `temp` schema; `table` returns their names. Each table has the key and context columns, and
    /// a column that is true if the row matches the source's filter.
    pub(crate) fn copy_sources(
        &self,
        expansion: &Expansion,
        copied: CopiedRows<'_>,
        connection: &Connection,
        table: &dyn Fn(usize) -> String,
    ) -> Result<(), StoreError> {
        let layout = self.load_table_layout(expansion)?;
        let transaction = self.begin_transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        if let CopiedRows::OfEntities { timeout, .. } = copied {
            self.set_statement_timeout(timeout)?;
        }
        for n in 0..expansion.sources.len() {
            self.copy_source(expansion, &layout, n, copied, connection, &table(n))?;
        }
        transaction.commit()
    }

    /// Returns, for each named column of a source, its SQL and its decoder.
    fn decode_columns(
        &self,
        layout: &ServerTables,
        rows: &SourceRows,
        names: &[&String],
    ) -> Result<Vec<(String, ColumnDecoder)>, StoreError> {
        let columns = self.list_source_columns(rows)?;
        let decode = |name: &&String| {
            let Some((column, data_type)) = find_column(&columns, name) else {
                let message = format!("the column `{name}` no longer exists");
                return Err(StoreError::Statement { url: self.display_url().to_owned(), message });
            };
            let decoder = match layout.key.iter().find(|(key, _)| key == *name) {
                // Compare a key as text if it is published as text.
                Some((_, "text")) if *data_type != Type::BYTEA => ColumnDecoder::Text,
                _ => ColumnDecoder::for_type(data_type),
            };
            Ok((decoder.build_select_expression(&sql::quote_name(column)), decoder))
        };
        names.iter().map(decode).collect()
    }

    fn copy_source(
        &self,
        expansion: &Expansion,
        layout: &ServerTables,
        n: usize,
        copied: CopiedRows<'_>,
        connection: &Connection,
        table: &str,
    ) -> Result<(), StoreError> {
        let (rows, key_part) = (&expansion.sources[n].rows, expansion.key_parts.get(n));
        let keys = expansion.key.names().iter().enumerate();
        let keys = keys
            .filter(|(position, _)| key_part.is_none_or(|key_part| key_part.contains(position)));
        let mut needed: Vec<&String> = keys.map(|(_, name)| name).collect();
        for name in &expansion.context {
            if !needed.contains(&name) {
                needed.push(name);
            }
        }
        let columns = self.decode_columns(layout, rows, &needed)?;
        let (mut expressions, decoders): (Vec<String>, Vec<ColumnDecoder>) =
            columns.into_iter().unzip();
        let (filter, where_sql) = match copied {
            CopiedRows::All { filters } => (filters.get(n).copied().flatten(), String::new()),
            CopiedRows::OfEntities { entities, .. } => {
                let columns: Vec<(&str, &str, ColumnDecoder)> = needed
                    .iter()
                    .zip(&expressions)
                    .zip(&decoders)
                    .filter(|((name, _), _)| !expansion.is_media(name))
                    .map(|((name, text), decoder)| (name.as_str(), text.as_str(), *decoder))
                    .collect();
                (None, format_entities_condition(&columns, entities))
            }
        };
        expressions.push(match filter {
            Some(filter) => format!("coalesce(({filter}\n), false)::text"),
            None => "'true'".to_owned(),
        });
        let names: Vec<String> = needed.iter().map(|name| sql::quote_name(name)).collect();
        let marks = vec!["?"; names.len() + 1].join(", ");
        let to_error =
            |e: rusqlite::Error| StoreError::from_sqlite(self.display_url().as_ref(), &e);
        connection
            .execute_batch(&format!(
                "DROP TABLE IF EXISTS temp.{table};
                 CREATE TEMP TABLE {table} ({}, {})",
                names.join(", "),
                sql::quote_name(SELECTED_COLUMN)
            ))
            .map_err(to_error)?;
        let transaction = connection.unchecked_transaction().map_err(to_error)?;
        let mut insert = transaction
            .prepare(&format!("INSERT INTO temp.{table} VALUES ({marks})"))
            .map_err(to_error)?;
        let (expressions, from_sql) = (expressions.join(", "), self.format_from_clause(rows)?);
        let select = format!("SELECT {expressions} FROM {from_sql}{where_sql}");
        self.for_each_row(&select, &mut |row| {
            let mut values = Vec::with_capacity(decoders.len() + 1);
            for (position, decoder) in decoders.iter().enumerate() {
                values
                    .push(decoder.read_value(row, position).map_err(|e| self.to_store_error(&e))?);
            }
            let is_selected: &str =
                row.try_get(decoders.len()).map_err(|e| self.to_store_error(&e))?;
            values.push(Sqlite::Integer(i64::from(is_selected == "true")));
            insert.execute(params_from_iter(values)).map_err(to_error)?;
            Ok(true)
        })?;
        drop(insert);
        transaction.commit().map_err(to_error)
    }
}

/// Formats a WHERE clause that all rows of some entities satisfy. Other rows may satisfy it, too.
/// Each column has a name, its SQL as text, and its decoder.
fn format_entities_condition(
    columns: &[(&str, &str, ColumnDecoder)],
    entities: &HashSet<Entity>,
) -> String {
    let condition = |entity: &Entity| {
        let parts = entity.parts();
        let condition = |(name, text, decoder): &(&str, &str, ColumnDecoder)| {
            match (parts.get(*name)?, decoder) {
                (None, _) => Some(format!("{text} IS NULL")),
                // The key is the text without white space around it, in Unicode's form NFC.
                (Some(part), ColumnDecoder::Text | ColumnDecoder::Integer) => Some(format!(
                    "position({} in CASE WHEN pg_catalog.getdatabaseencoding() = 'UTF8'
                       THEN normalize({text}, NFC) ELSE {text} END) > 0",
                    quote_text(part)
                )),
                // A number has several texts.
                (Some(_), _) => None,
            }
        };
        let conditions: Vec<String> = columns.iter().filter_map(condition).collect();
        if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") }
    };
    let conditions: Vec<String> = entities.iter().map(condition).collect();
    format!(" WHERE ({})", conditions.join(") OR ("))
}

/// Quotes a text, whatever the server's setting of `standard_conforming_strings` is.
pub(super) fn quote_text(text: &str) -> String {
    format!("E'{}'", replace_nul_chars(text).replace('\\', "\\\\").replace('\'', "''"))
}
