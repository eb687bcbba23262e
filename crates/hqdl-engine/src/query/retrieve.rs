//! Orders the candidates of a query by similarity before they are asked about.

use super::QueryError;
use super::engine::Engine;
use super::live::lock;
use super::passages::Compare;
use crate::retrieval::passages::cut;
use hqdl_sql::blendsql::plan::FirstRows;
use hqdl_values::tokens::Tokenizer;

/// Maximum number of tokens of a compared passage.
const PASSAGE: u64 = 200;

impl Engine<'_, '_> {
    /// Orders the candidates if there are more than the query needs.
    ///
    /// # Errors
    /// [`QueryError`] for errors that stop the run.
    pub(super) fn order_candidates(
        &mut self,
        first: &FirstRows,
        compare: &mut Compare<'_>,
    ) -> Result<(), QueryError> {
        let needed = first.need.unwrap_or(0);
        let mut live = lock(&self.live);
        if live.candidates.are_too_many() {
            live.candidates.settled();
            drop(live);
            self.retrieves = false;
            return Ok(());
        }
        if live.candidates.count() as u64 <= needed {
            live.candidates.settled();
            return Ok(());
        }
        let calls = &self.parsed.calls;
        let question = |n: usize| calls.get(n).map(|c| c.question.clone()).unwrap_or_default();
        // Only the relative length of passages matters, so an estimate of the tokens is enough.
        let passages = |text: &str| {
            cut(text, Tokenizer::Estimate, PASSAGE).into_iter().map(str::to_owned).collect()
        };
        live.candidates.order(question, passages, compare)
    }
}
