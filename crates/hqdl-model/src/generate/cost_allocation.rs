//! Attributes a request's cells and cost to columns.

use std::sync::PoisonError;

use super::Context;
use crate::Tokens;
use crate::plan::RowBatch;
use hqdl_facts::Fact;
use hqdl_values::cell::Tally;
use hqdl_values::key::Entity;

impl Context {
    /// Counts the cells of each column of a row batch by state.
    pub(super) fn tally_columns(
        &self,
        row_batch: &RowBatch,
        facts: &[(Entity, Vec<Fact>)],
    ) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); row_batch.columns.len()];
        for fact in facts.iter().flat_map(|(_, f)| f) {
            let column =
                row_batch.columns.iter().position(|c| self.requirements.matches_fact(*c, fact));
            if let Some(tally) = column.and_then(|at| tallies.get_mut(at)) {
                tally.add(fact.answer.state, 1);
            }
        }
        tallies
    }

    /// Adds the cells of a request without a reply to its columns.
    pub(super) fn count_cells(&self, row_batch: &RowBatch, tallies: &[Tally]) {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        for (position, tally) in row_batch.columns.iter().zip(tallies) {
            if let Some(usage) = columns.get_mut(*position) {
                usage.cells.merge(tally);
            }
        }
    }

    /// Divides the cost of a request among its columns.
    pub(super) fn allocate_cost(
        &self,
        row_batch: &RowBatch,
        tallies: &[Tally],
        tokens: Tokens,
        cost: f64,
    ) {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        for (position, tally) in row_batch.columns.iter().zip(tallies) {
            if let Some(usage) = columns.get_mut(*position) {
                usage.add_request(tally, row_batch.columns.len(), tokens, cost);
            }
        }
    }
}
