//! Counts of an expansion's published cells.

use hqdl_values::cell::{State, Tally};

/// Counts per column: published cells by state, and cells that were never requested.
#[derive(Debug, Clone, Default)]
pub(super) struct CellCounts {
    pub(super) cells: Vec<Tally>,
    pub(super) unasked: Vec<u64>,
}

impl CellCounts {
    /// Creates zero counts for `columns` columns.
    pub(super) fn with_columns(columns: usize) -> Self {
        Self { cells: vec![Tally::default(); columns], unasked: vec![0; columns] }
    }

    /// Counts a cell; `None` means that it was never requested.
    pub(super) fn add_cell(&mut self, column: usize, state: Option<State>) {
        match state {
            Some(state) => self.cells[column].add(state, 1),
            None => self.unasked[column] += 1,
        }
    }
}
