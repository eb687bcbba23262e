//! Nested queries. A query that returns the options of a call may contain calls itself. The nested
//! query runs first, within the same run.

use rusqlite::types::ValueRef;

use crate::query::ask::LazyRun;
use crate::query::connection::guard::GuardedConnection;
use crate::query::connection::schema::KnownSchema;
use crate::query::plan::stored_values;
use crate::query::request::error::QueryError;
use crate::query::request::{Request, params};
use crate::query::result::query_result::Meta;
use crate::query::result::row_buffer::RowBuffer;
use crate::query::route::call_options::ValueListProvider;
use hqdl_spec::Catalog;
use hqdl_sql::blendsql;
use hqdl_sql::blendsql::usage::{self, SelectOutputs};
use hqdl_values::value::Value;

/// Function that runs a nested query within the outer query's run. If the outer query is only
/// explained and no model is available, the function returns an estimate without rows.
pub type NestedRunner =
    fn(&Request<'_>, Option<&LazyRun<'_>>) -> Result<(Meta, Option<RowBuffer>), QueryError>;

/// Runs the queries and lookups that a query needs before it starts.
pub(in crate::query) struct NestedQueries<'n, 'a> {
    pub(in crate::query) request: &'n Request<'n>,
    pub(in crate::query) guard: &'n GuardedConnection,
    pub(in crate::query) schema: &'n KnownSchema,
    pub(in crate::query) lazy_run: Option<&'n LazyRun<'a>>,
    pub(in crate::query) run_nested: NestedRunner,
    pub(in crate::query) nested_meta: Vec<Meta>,
    /// Number of temporary tables created so far.
    pub(in crate::query) table_count: usize,
}

impl ValueListProvider for NestedQueries<'_, '_> {
    fn query_values(
        &mut self,
        sql: &str,
        max_values: usize,
    ) -> Result<Option<Vec<Value>>, QueryError> {
        let mut buffer = RowBuffer::default();
        if self.guard.database().server_url().is_some() {
            // A server always compares texts by their bytes.
            let server_sql = sql.replace(" COLLATE BINARY", "");
            let rows = self.guard.database().select_rows(&server_sql, max_values);
            let rows = rows.map_err(|e| QueryError::in_sql(e, None, "", ""))?;
            let mut values: Vec<Value> = Vec::new();
            for value in rows.into_iter().flatten().filter(|v| *v != Value::Null) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            return Ok(Some(values));
        }
        if blendsql::scan_calls(sql)?.is_empty() {
            let mut statement = self
                .guard
                .connection()
                .prepare(sql)
                .map_err(|e| self.guard.query_error(&e, sql))?;
            params::bind_params(&mut statement, &self.request.params)?;
            self.guard.stream_rows(&mut statement, sql, &mut buffer)?;
        } else {
            let request = Request { sql, ..self.request.clone() };
            let (meta, rows) = (self.run_nested)(&request, self.lazy_run)?;
            self.nested_meta.push(meta);
            let Some(rows) = rows else { return Ok(None) };
            buffer = rows;
        }
        let mut values: Vec<Value> = Vec::new();
        for cell in buffer.rows.iter().flatten() {
            let Ok(value) = Value::from_sqlite(ValueRef::from(cell)) else { continue };
            if value != Value::Null && !values.contains(&value) {
                values.push(value);
                if values.len() >= max_values {
                    break;
                }
            }
        }
        Ok(Some(values))
    }

    fn analyze_select_outputs(&mut self, select: &str) -> SelectOutputs {
        let parsed = blendsql::parse::parse_query(select);
        parsed.map_or_else(
            |_| SelectOutputs::default(),
            |p| usage::analyze_outputs(select, &p, self.schema),
        )
    }

    fn stored_values(
        &mut self,
        expansion: usize,
        column: usize,
    ) -> Result<Option<Vec<String>>, QueryError> {
        stored_values::read_stored_values(self.request, self.guard, (expansion, column))
    }

    fn create_lookup_table(
        &mut self,
        key_columns: &[String],
        value_columns: &[String],
        select: &str,
    ) -> Result<String, QueryError> {
        let name = format!("hq_keys_{}", self.table_count);
        self.table_count += 1;
        let (key_columns, value_columns) = (key_columns.join(", "), value_columns.join(", "));
        // Columns without a type store values unchanged.
        let create_sql = format!(
            "CREATE TEMP TABLE {name} ({key_columns}, {value_columns}); INSERT INTO temp.{name} {select}; \
             CREATE INDEX temp.{name}_by ON {name} ({key_columns});"
        );
        self.guard
            .connection()
            .execute_batch(&create_sql)
            .map_err(|e| self.guard.query_error(&e, &create_sql))?;
        Ok(format!("temp.{name}"))
    }
}
