//! Nested queries. A query that returns the options of a call may contain calls itself. It is run
//! first, within the same run.

use std::time::Instant;

use rusqlite::types::ValueRef;

use crate::query::ask::Asking;
use crate::query::choosing::Choosing;
use crate::query::engine::explain::explain;
use crate::query::engine::within;
use crate::query::guard::Guard;
use crate::query::kept::Kept;
use crate::query::schema::KnownSchema;
use crate::query::smoothie::Meta;
use crate::query::{QueryError, Request, params, stored_values};
use hqdl_spec::Catalog;
use hqdl_sql::blendsql;
use hqdl_sql::blendsql::usage::{self, Outputs};
use hqdl_values::value::Value;

/// Runs the queries and lookups that a query needs before it runs.
pub(in crate::query) struct Nested<'n, 'a> {
    pub(in crate::query) request: &'n Request<'n>,
    pub(in crate::query) guard: &'n Guard,
    pub(in crate::query) schema: &'n KnownSchema,
    pub(in crate::query) asking: Option<&'n Asking<'a>>,
    pub(in crate::query) inner: Vec<Meta>,
    /// Number of temporary tables created.
    pub(in crate::query) tables: usize,
}

impl Choosing for Nested<'_, '_> {
    fn values(&mut self, sql: &str, most: usize) -> Result<Option<Vec<Value>>, QueryError> {
        let mut kept = Kept::default();
        if self.guard.database().url().is_some() {
            // On a server, texts always compare by their bytes.
            let there = sql.replace(" COLLATE BINARY", "");
            let rows = self.guard.database().select(&there, most);
            let rows = rows.map_err(|e| QueryError::sql(e, None, "", ""))?;
            let mut values: Vec<Value> = Vec::new();
            for value in rows.into_iter().flatten().filter(|v| *v != Value::Null) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            return Ok(Some(values));
        }
        if blendsql::scan(sql)?.is_empty() {
            let mut statement =
                self.guard.connection().prepare(sql).map_err(|e| self.guard.error(&e, sql))?;
            params::bind(&mut statement, &self.request.params)?;
            self.guard.stream(&mut statement, sql, &mut kept)?;
        } else {
            let request = Request { sql, ..self.request.clone() };
            match within(&request, self.asking, &mut kept, Instant::now()) {
                Ok(meta) => self.inner.push(meta),
                Err(QueryError::NoModel) if self.asking.is_none() => {
                    self.inner.push(explain(&request)?);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        let mut values: Vec<Value> = Vec::new();
        for cell in kept.rows.iter().flatten() {
            let Ok(value) = Value::read(ValueRef::from(cell)) else { continue };
            if value != Value::Null && !values.contains(&value) {
                values.push(value);
                if values.len() >= most {
                    break;
                }
            }
        }
        Ok(Some(values))
    }

    fn made_of(&mut self, select: &str) -> Outputs {
        let parsed = blendsql::parse::parse(select, Vec::new());
        parsed.map_or_else(|_| Outputs::default(), |p| usage::outputs(select, &p, self.schema))
    }

    fn stored(
        &mut self,
        expansion: usize,
        column: usize,
    ) -> Result<Option<Vec<String>>, QueryError> {
        stored_values::of(self.request, self.guard, (expansion, column))
    }

    fn look_up(
        &mut self,
        by: &[String],
        others: &[String],
        select: &str,
    ) -> Result<String, QueryError> {
        let name = format!("hq_keys_{}", self.tables);
        self.tables += 1;
        let (by, others) = (by.join(", "), others.join(", "));
        // Columns without a type store values unchanged.
        let make = format!(
            "CREATE TEMP TABLE {name} ({by}, {others}); INSERT INTO temp.{name} {select}; \
             CREATE INDEX temp.{name}_by ON {name} ({by});"
        );
        self.guard.connection().execute_batch(&make).map_err(|e| self.guard.error(&e, &make))?;
        Ok(format!("temp.{name}"))
    }
}
