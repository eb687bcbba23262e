//! Copies the first rows of a server's tables into local tables with the same names, for analyses
//! of unfamiliar data.

use std::collections::BTreeMap;

use rusqlite::{Connection, params_from_iter};

use super::DatabaseServer;
use super::values::ColumnReading;
use crate::StoreError;
use hqdl_values::sql;

/// Keys of a table.
#[derive(Default)]
struct TableKeys {
    primary: Vec<String>,
    /// Foreign keys: columns, the referenced table, and its columns.
    foreign: Vec<(Vec<String>, String, Vec<String>)>,
}

impl DatabaseServer {
    /// Copies at most `max_rows` rows of each table in the search path, or of each view if there
    /// are no tables.
    pub(crate) fn sample(&self, most: u64, local: &Connection) -> Result<(), StoreError> {
        let tables = self.named("'r', 'p', 'm', 'f'")?;
        let tables = if tables.is_empty() { self.named("'v'")? } else { tables };
        let keys = self.keys()?;
        let reading = self.begin("ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        // A table may be copied before the one that it refers to.
        local.execute_batch("PRAGMA foreign_keys = OFF").map_err(|e| self.local(&e))?;
        let copying = local.unchecked_transaction().map_err(|e| self.local(&e))?;
        for table in &tables {
            let found = keys.get(table);
            self.sample_table(table, found.unwrap_or(&TableKeys::default()), most, local)?;
        }
        copying.commit().map_err(|e| self.local(&e))?;
        reading.commit()
    }

    fn local(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::from_sqlite(self.shown().as_ref(), error)
    }

    /// Returns the tables of some kinds that the user may read and hqdl did not create.
    fn named(&self, kinds: &str) -> Result<Vec<String>, StoreError> {
        let sql = format!(
            "SELECT c.relname::text FROM pg_catalog.pg_class AS c
             JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
             WHERE c.relkind IN ({kinds}) AND NOT c.relispartition
               AND pg_catalog.pg_table_is_visible(c.oid)
               AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
               AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', $1)
               AND c.relname NOT LIKE 'hqdl\\_%' ORDER BY 1"
        );
        let rows = self.rows(&sql, &[&self.schema])?;
        Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }

    fn keys(&self) -> Result<BTreeMap<String, TableKeys>, StoreError> {
        let names = |keys: &str, of: &str| {
            format!(
                "ARRAY(SELECT a.attname::text FROM unnest({keys}) WITH ORDINALITY AS k (n, at)
                   JOIN pg_catalog.pg_attribute AS a ON a.attrelid = {of} AND a.attnum = k.n
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
            names("c.conkey", "c.conrelid"),
            names("c.confkey", "c.confrelid")
        );
        let mut found: BTreeMap<String, TableKeys> = BTreeMap::new();
        for row in self.rows(&sql, &[])? {
            let failed = |e: tokio_postgres::Error| self.error(&e);
            let keys = found.entry(row.try_get(0).map_err(failed)?).or_default();
            let columns: Vec<String> = row.try_get(1).map_err(failed)?;
            match row.try_get::<_, Option<String>>(2).map_err(failed)? {
                None => keys.primary = columns,
                Some(table) => {
                    keys.foreign.push((columns, table, row.try_get(3).map_err(failed)?));
                }
            }
        }
        Ok(found)
    }

    fn sample_table(
        &self,
        table: &str,
        keys: &TableKeys,
        most: u64,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let name = sql::name(table);
        let columns = self.describe(&format!("SELECT * FROM {name}"))?;
        if columns.is_empty() {
            return Ok(());
        }
        let readings: Vec<ColumnReading> =
            columns.iter().map(|(_, kind)| ColumnReading::of(kind)).collect();
        let mut declared: Vec<String> = columns
            .iter()
            .zip(&readings)
            .map(|((column, _), reading)| format!("{} {}", sql::name(column), reading.declared()))
            .collect();
        let list = |names: &[String]| sql::names("", names);
        if !keys.primary.is_empty() {
            declared.push(format!("PRIMARY KEY ({})", list(&keys.primary)));
        }
        for (from, table, to) in &keys.foreign {
            declared.push(format!(
                "FOREIGN KEY ({}) REFERENCES {} ({})",
                list(from),
                sql::name(table),
                list(to)
            ));
        }
        let made = format!("CREATE TABLE {name} ({})", declared.join(", "));
        local.execute_batch(&made).map_err(|e| self.local(&e))?;
        let marks = vec!["?"; columns.len()].join(", ");
        let insert = format!("INSERT OR IGNORE INTO {name} VALUES ({marks})");
        let mut insert = local.prepare(&insert).map_err(|e| self.local(&e))?;
        let asked = columns.iter().zip(&readings).map(|((c, _), r)| r.asked(&sql::name(c)));
        let asked: Vec<String> = asked.collect();
        let select = format!("SELECT {} FROM {name} LIMIT {most}", asked.join(", "));
        self.each(&select, &mut |row| {
            let values = readings.iter().enumerate().map(|(n, reading)| reading.read(row, n));
            let values: Vec<_> = values.collect::<Result<_, _>>().map_err(|e| self.error(&e))?;
            insert.execute(params_from_iter(values)).map_err(|e| self.local(&e))?;
            Ok(true)
        })
    }
}
