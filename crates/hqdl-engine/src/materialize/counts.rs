//! How the cells of an expansion are shown.

use hqdl_values::cell::{State, Tally};

/// How the cells of an expansion are shown, for each column.
#[derive(Debug, Clone, Default)]
pub(super) struct CellCounts {
    pub(super) cells: Vec<Tally>,
    pub(super) unasked: Vec<u64>,
}

impl CellCounts {
    /// Nothing counted yet, for so many columns.
    pub(super) fn of(columns: usize) -> Self {
        Self { cells: vec![Tally::default(); columns], unasked: vec![0; columns] }
    }

    /// Counts a cell; without a state, nobody has asked for it.
    pub(super) fn add(&mut self, column: usize, state: Option<State>) {
        match state {
            Some(state) => self.cells[column].add(state, 1),
            None => self.unasked[column] += 1,
        }
    }
}
