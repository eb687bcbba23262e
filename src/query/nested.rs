//! Queries within a query: what gives a call its options may have calls itself,
//! and is run first, in the same run.

use std::time::Instant;

use rusqlite::types::ValueRef;

use super::ask::Asking;
use super::calls::Choosing;
use super::engine::within;
use super::explain::explain;
use super::guard::Guard;
use super::kept::Kept;
use super::smoothie::Meta;
use super::{QueryError, Request, params};
use crate::blendsql;
use crate::value::Value;

/// Values of a query beside the one that runs, which may have calls itself.
pub(super) struct Nested<'n, 'a> {
    pub(super) request: &'n Request<'n>,
    pub(super) guard: &'n Guard,
    pub(super) asking: Option<&'n Asking<'a>>,
    pub(super) inner: Vec<Meta>,
}

impl Choosing for Nested<'_, '_> {
    fn values(&mut self, sql: &str, most: usize) -> Result<Option<Vec<Value>>, QueryError> {
        let mut kept = Kept::default();
        if blendsql::scan(sql)?.is_empty() {
            let mut statement =
                self.guard.connection().prepare(sql).map_err(|e| self.guard.error(&e, sql))?;
            params::bind(&mut statement, &self.request.params)?;
            self.guard.stream(&mut statement, sql, &mut kept)?;
        } else {
            let request = Request { sql, ..self.request.again() };
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
}
