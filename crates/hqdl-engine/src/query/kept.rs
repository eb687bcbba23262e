//! Buffer for the rows of a pass, in case it is the last one.

use rusqlite::types::{Value as Sql, ValueRef};

use super::smoothie::{Sink, owned};

/// Maximum number of buffered values. If the result of the last pass is larger, the query runs once
/// more and streams its rows.
const KEPT: usize = 1_000_000;

/// Rows in memory, up to a limit.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Sql>>,
    values: usize,
    pub(super) over: bool,
}

impl Kept {
    /// Returns a buffer with these rows.
    pub(super) fn of(columns: Vec<String>, rows: Vec<Vec<Sql>>) -> Self {
        Self { columns, rows, values: 0, over: false }
    }
}

impl Sink for Kept {
    fn columns(&mut self, names: &[String]) -> std::io::Result<()> {
        names.clone_into(&mut self.columns);
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.values += row.len();
        if self.values > KEPT {
            self.over = true;
            self.rows.clear();
        }
        if !self.over {
            self.rows.push(row.iter().map(|v| owned(*v)).collect());
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
