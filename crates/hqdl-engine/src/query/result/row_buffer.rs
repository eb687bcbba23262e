//! Buffers the rows of a pass, in case the pass is the last one.

use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::result::query_result::{RowSink, to_owned_value};

/// Maximum number of buffered values. If the last pass returns more, the query runs once more and
/// streams its rows.
const MAX_VALUES: usize = 1_000_000;

/// Rows in memory, up to a limit.
#[derive(Default)]
pub(in crate::query) struct RowBuffer {
    pub(in crate::query) columns: Vec<String>,
    pub(in crate::query) rows: Vec<Vec<Sql>>,
    value_count: usize,
    pub(in crate::query) has_overflowed: bool,
}

impl RowBuffer {
    /// Returns a buffer with these rows.
    pub(in crate::query) fn from_rows(columns: Vec<String>, rows: Vec<Vec<Sql>>) -> Self {
        Self { columns, rows, value_count: 0, has_overflowed: false }
    }
}

impl RowSink for RowBuffer {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        names.clone_into(&mut self.columns);
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.value_count += row.len();
        if self.value_count > MAX_VALUES {
            self.has_overflowed = true;
            self.rows.clear();
        }
        if !self.has_overflowed {
            self.rows.push(row.iter().map(|v| to_owned_value(*v)).collect());
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
