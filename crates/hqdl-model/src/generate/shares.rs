//! Attributes a request's cells and price to columns.

use std::sync::PoisonError;

use super::Context;
use crate::Tokens;
use crate::plan::RowBatch;
use hqdl_facts::Fact;
use hqdl_values::cell::Tally;
use hqdl_values::key::Entity;

impl Context {
    /// Counts the cells of each column of a batch by state.
    pub(super) fn tallies(&self, cut: &RowBatch, facts: &[(Entity, Vec<Fact>)]) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); cut.columns.len()];
        for fact in facts.iter().flat_map(|(_, f)| f) {
            let column = cut.columns.iter().position(|c| self.wanted.means(*c, fact));
            if let Some(tally) = column.and_then(|at| tallies.get_mut(at)) {
                tally.add(fact.answer.state, 1);
            }
        }
        tallies
    }

    /// Divides the cost of a request among its columns.
    pub(super) fn share(&self, cut: &RowBatch, tallies: &[Tally], tokens: Tokens, cost: f64) {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, tally) in cut.columns.iter().zip(tallies) {
            if let Some(usage) = columns.get_mut(*at) {
                usage.add(tally, cut.columns.len(), tokens, cost);
            }
        }
    }
}
