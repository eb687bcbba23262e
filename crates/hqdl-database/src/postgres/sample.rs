//! Copies the first rows of a server's tables into local tables with the same names, so that an
//! unknown database can be analyzed.

use std::collections::BTreeMap;

use rusqlite::{Connection, params_from_iter};

use super::DatabaseServer;
use super::values::ColumnDecoder;
use crate::StoreError;
use hqdl_values::sql;

#[derive(Default)]
struct TableKeys {
    primary: Vec<String>,
    /// Foreign keys: the table's own columns, the referenced table, and the referenced columns.
    foreign: Vec<(Vec<String>, String, Vec<String>)>,
}

impl DatabaseServer {
    /// Copies at most `max_rows` rows of each table in the search path, or of each view if there
    /// are no tables.
    pub(crate) fn copy_samples(&self, max_rows: u64, local: &Connection) -> Result<(), StoreError> {
        let tables = self.list_tables_of_kinds("'r', 'p', 'm', 'f'")?;
        let tables = if tables.is_empty() { self.list_tables_of_kinds("'v'")? } else { tables };
        let keys = self.read_table_keys()?;
        let transaction = self.begin_transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        // A table may be copied before a table that it refers to.
        local.execute_batch("PRAGMA foreign_keys = OFF").map_err(|e| self.local_error(&e))?;
        let local_transaction = local.unchecked_transaction().map_err(|e| self.local_error(&e))?;
        for table in &tables {
            let table_keys = keys.get(table);
            self.copy_table_sample(
                table,
                table_keys.unwrap_or(&TableKeys::default()),
                max_rows,
                local,
            )?;
        }
        local_transaction.commit().map_err(|e| self.local_error(&e))?;
        transaction.commit()
    }

    fn local_error(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::from_sqlite(self.display_url().as_ref(), error)
    }

    /// Returns the tables of the given kinds that the user may read and hqdl did not create.
    fn list_tables_of_kinds(&self, relation_kinds: &str) -> Result<Vec<String>, StoreError> {
        let sql = format!(
            "SELECT c.relname::text FROM pg_catalog.pg_class AS c
             JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
             WHERE c.relkind IN ({relation_kinds}) AND NOT c.relispartition
               AND pg_catalog.pg_table_is_visible(c.oid)
               AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
               AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', $1)
               AND c.relname NOT LIKE 'hqdl\\_%' ORDER BY 1"
        );
        let rows = self.query_rows(&sql, &[&self.schema])?;
        Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }

    fn read_table_keys(&self) -> Result<BTreeMap<String, TableKeys>, StoreError> {
        let column_array = |keys: &str, relation: &str| {
            format!(
                "ARRAY(SELECT a.attname::text FROM unnest({keys}) WITH ORDINALITY AS k (n, at)
                   JOIN pg_catalog.pg_attribute AS a ON a.attrelid = {relation} AND a.attnum = k.n
                   ORDER BY k.at)"
            )
        };
        let sql = format!(
            "SELECT t.relname::text, {}, f.relname::text, {}
             FROM pg_catalog.pg_constraint AS c
             JOIN pg_catalog.pg_class AS t ON t.oid = c.conrelid
             LEFT JOIN pg_catalog.pg_class AS f ON f.oid = c.confrelid
             WHERE c.contype IN ('p', 'f') AND pg_catalog.pg_table_is_visible(t.oid)
             ORDER BY c.conname",
            column_array("c.conkey", "c.conrelid"),
            column_array("c.confkey", "c.confrelid")
        );
        let mut keys_by_table: BTreeMap<String, TableKeys> = BTreeMap::new();
        for row in self.query_rows(&sql, &[])? {
            let to_error = |e: tokio_postgres::Error| self.to_store_error(&e);
            let keys = keys_by_table.entry(row.try_get(0).map_err(to_error)?).or_default();
            let columns: Vec<String> = row.try_get(1).map_err(to_error)?;
            match row.try_get::<_, Option<String>>(2).map_err(to_error)? {
                None => keys.primary = columns,
                Some(table) => {
                    keys.foreign.push((columns, table, row.try_get(3).map_err(to_error)?));
                }
            }
        }
        Ok(keys_by_table)
    }

    fn copy_table_sample(
        &self,
        table: &str,
        keys: &TableKeys,
        max_rows: u64,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let name = sql::quote_name(table);
        let columns = self.describe_columns(&format!("SELECT * FROM {name}"))?;
        if columns.is_empty() {
            return Ok(());
        }
        let decoders: Vec<ColumnDecoder> =
            columns.iter().map(|(_, data_type)| ColumnDecoder::for_type(data_type)).collect();
        let mut definitions: Vec<String> = columns
            .iter()
            .zip(&decoders)
            .map(|((column, _), decoder)| {
                format!("{} {}", sql::quote_name(column), decoder.sqlite_type())
            })
            .collect();
        let quote_list = |names: &[String]| sql::quote_names("", names);
        if !keys.primary.is_empty() {
            definitions.push(format!("PRIMARY KEY ({})", quote_list(&keys.primary)));
        }
        for (from, table, to) in &keys.foreign {
            definitions.push(format!(
                "FOREIGN KEY ({}) REFERENCES {} ({})",
                quote_list(from),
                sql::quote_name(table),
                quote_list(to)
            ));
        }
        let create = format!("CREATE TABLE {name} ({})", definitions.join(", "));
        local.execute_batch(&create).map_err(|e| self.local_error(&e))?;
        let marks = vec!["?"; columns.len()].join(", ");
        let insert = format!("INSERT OR IGNORE INTO {name} VALUES ({marks})");
        let mut insert = local.prepare(&insert).map_err(|e| self.local_error(&e))?;
        let expressions = columns
            .iter()
            .zip(&decoders)
            .map(|((c, _), r)| r.build_select_expression(&sql::quote_name(c)));
        let expressions: Vec<String> = expressions.collect();
        let select = format!("SELECT {} FROM {name} LIMIT {max_rows}", expressions.join(", "));
        self.for_each_row(&select, &mut |row| {
            let values = decoders.iter().enumerate().map(|(n, decoder)| decoder.read_value(row, n));
            let values: Vec<_> =
                values.collect::<Result<_, _>>().map_err(|e| self.to_store_error(&e))?;
            insert.execute(params_from_iter(values)).map_err(|e| self.local_error(&e))?;
            Ok(true)
        })
    }
}
