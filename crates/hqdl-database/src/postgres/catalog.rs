//! Tables, columns and rows of a database on a server.

use rusqlite::types::Value as Sqlite;
use tokio_postgres::types::Type;

use super::DatabaseServer;
use super::values::ColumnDecoder;
use crate::StoreError;
use hqdl_spec::SourceRows;
use hqdl_values::sql;
use hqdl_values::value::Value;

type DeclaredColumns = Vec<(String, Option<String>)>;

impl DatabaseServer {
    /// Returns the user's tables and views, and those that hqdl published. A name includes its
    /// schema if the schema is not in the search path.
    pub(crate) fn list_tables(&self) -> Result<Vec<String>, StoreError> {
        self.list_relations("'r', 'p', 'v', 'm', 'f'")
    }

    /// Returns the views among [`Self::list_tables`].
    pub(crate) fn list_views(&self) -> Result<Vec<String>, StoreError> {
        self.list_relations("'v', 'm'")
    }

    fn list_relations(&self, kinds: &str) -> Result<Vec<String>, StoreError> {
        let sql = format!(
            "SELECT CASE WHEN pg_catalog.pg_table_is_visible(c.oid) THEN c.relname::text
              ELSE n.nspname || '.' || c.relname END
            FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE c.relkind IN ({kinds}) AND NOT c.relispartition
              AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
              AND (n.nspname <> 'hqdl' OR $1 = 'hqdl') AND c.relname NOT LIKE 'hqdl\\_%'
            ORDER BY 1"
        );
        let rows = self.query_rows(&sql, &[&self.schema])?;
        Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }

    /// Returns the SQL name of a table or view; `None` if it does not exist. Tries `name` as an
    /// unqualified name first, then as `schema.table`.
    pub(crate) fn find_table(&self, name: &str) -> Result<Option<String>, StoreError> {
        let exists = |text: &String| {
            self.query_one::<bool>("SELECT pg_catalog.to_regclass($1) IS NOT NULL", &[text])
        };
        let quoted = sql::quote_name(name);
        if exists(&quoted)? {
            return Ok(Some(quoted));
        }
        let Some((schema, table)) = name.split_once('.') else { return Ok(None) };
        let qualified = format!("{}.{}", sql::quote_name(schema), sql::quote_name(table));
        Ok(exists(&qualified)?.then_some(qualified))
    }

    /// Returns the columns of a table or view, with their declared types; `None` if it does not
    /// exist.
    pub(crate) fn list_columns(&self, table: &str) -> Result<Option<DeclaredColumns>, StoreError> {
        let Some(table) = self.find_table(table)? else { return Ok(None) };
        let sql = "SELECT attname::text, pg_catalog.format_type(atttypid, atttypmod)
            FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass($1)
              AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
        let rows = self.query_rows(sql, &[&table])?;
        let to_column =
            |row: &tokio_postgres::Row| Some((row.try_get(0).ok()?, row.try_get(1).ok()));
        Ok(Some(rows.iter().filter_map(to_column).collect()))
    }

    /// Returns true if hqdl created the table or view with this name in its schema. If the user
    /// replaced hqdl's table, the new table lacks hqdl's trigger.
    pub(crate) fn is_created_by_hqdl(&self, name: &str) -> Result<bool, StoreError> {
        if !self.has_bookkeeping()? {
            return Ok(false);
        }
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM {} AS o
               JOIN pg_catalog.pg_class AS c ON c.relname = o.name
               JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = $2
             WHERE lower(o.name) = lower($1) AND (o.type = 'view' AND c.relkind = 'v'
               OR o.type = 'table' AND c.relkind = 'r' AND EXISTS (
                 SELECT 1 FROM pg_catalog.pg_trigger AS t
                 WHERE t.tgrelid = c.oid AND t.tgname = 'hqdl_edit')))",
            self.qualify_name("hqdl_object")
        );
        self.query_one(&sql, &[&name, &self.schema])
    }

    /// Returns the column names of a read-only SELECT.
    pub(crate) fn list_select_columns(&self, select: &str) -> Result<Vec<String>, StoreError> {
        // A subquery in FROM cannot write.
        let columns = self.describe_columns(&format!("SELECT * FROM ({select}\n) AS source"))?;
        Ok(columns.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns at most `limit` rows of a SELECT.
    pub(crate) fn select_rows(
        &self,
        select: &str,
        limit: usize,
    ) -> Result<Vec<Vec<Sqlite>>, StoreError> {
        let columns = self.describe_columns(&format!("SELECT * FROM ({select}\n) AS source"))?;
        let decoders: Vec<ColumnDecoder> =
            columns.iter().map(|(_, data_type)| ColumnDecoder::for_type(data_type)).collect();
        let names: Vec<String> = (0..decoders.len()).map(|n| format!("c{n}")).collect();
        let expressions: Vec<String> =
            decoders.iter().zip(&names).map(|(r, n)| r.build_select_expression(n)).collect();
        let text = format!(
            "SELECT {} FROM ({select}\n) AS source ({})",
            expressions.join(", "),
            names.join(", ")
        );
        let transaction = self.begin_transaction("READ ONLY")?;
        let mut all = Vec::new();
        self.for_each_row(&text, &mut |row| {
            let row = decoders.iter().enumerate().map(|(n, decoder)| decoder.read_value(row, n));
            let row: Result<Vec<Sqlite>, _> = row.collect();
            all.push(row.map_err(|e| self.to_store_error(&e))?);
            Ok(all.len() < limit)
        })?;
        transaction.commit()?;
        all.truncate(limit);
        Ok(all)
    }

    /// Formats a source for use in a FROM clause.
    pub(super) fn format_from_clause(&self, rows: &SourceRows) -> Result<String, StoreError> {
        Ok(match rows {
            SourceRows::Table(table) => {
                self.find_table(table)?.unwrap_or_else(|| sql::quote_name(table))
            }
            SourceRows::Select(select) => format!("({select}\n) AS source"),
        })
    }

    /// Returns the columns of a source, with their types.
    pub(super) fn list_source_columns(
        &self,
        rows: &SourceRows,
    ) -> Result<Vec<(String, Type)>, StoreError> {
        self.describe_columns(&format!("SELECT * FROM {}", self.format_from_clause(rows)?))
    }

    /// Returns the number of row changes that the server has counted so far in tables other than
    /// hqdl's.
    pub(crate) fn change_counter(&self) -> Result<i64, StoreError> {
        let sql = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint + count(*)
            FROM pg_catalog.pg_stat_user_tables
            WHERE schemaname <> 'hqdl' AND relname NOT LIKE 'hqdl\\_%' AND NOT EXISTS (
              SELECT 1 FROM pg_catalog.pg_trigger WHERE tgrelid = relid AND tgname = 'hqdl_edit')";
        self.query_one(sql, &[])
    }

    /// Returns a number that changes when any client writes to the server.
    pub(crate) fn snapshot_version(&self) -> Result<i64, StoreError> {
        self.query_one(
            "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint",
            &[],
        )
    }
}

/// Converts rows to hqdl's value type.
pub(crate) fn to_values(rows: Vec<Vec<Sqlite>>) -> Result<Vec<Vec<Value>>, String> {
    let to_value = |(n, to_value): (usize, Sqlite)| match to_value {
        Sqlite::Null => Ok(Value::Null),
        Sqlite::Integer(i) => Ok(Value::Integer(i)),
        Sqlite::Real(r) => Ok(Value::Real(r)),
        Sqlite::Text(text) => Ok(Value::Text(text)),
        Sqlite::Blob(_) => Err(format!("column {} of the SELECT contains a blob", n + 1)),
    };
    rows.into_iter().map(|row| row.into_iter().enumerate().map(to_value).collect()).collect()
}

/// Finds a column by its exact name, or case-insensitively if there is no exact match.
pub(super) fn find_column<'c>(
    columns: &'c [(String, Type)],
    name: &str,
) -> Option<&'c (String, Type)> {
    let exact = columns.iter().find(|(column, _)| column == name);
    exact.or_else(|| columns.iter().find(|(column, _)| column.eq_ignore_ascii_case(name)))
}
