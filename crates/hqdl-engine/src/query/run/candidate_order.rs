//! Orders the candidate rows of a query by similarity before hqdl asks about them.

use crate::query::ask::passages::CompareFn;
use crate::query::functions::call_runtime::lock_runtime;
use crate::query::plan::engine::Engine;
use crate::query::request::error::QueryError;
use crate::retrieval::passages::split_passages;
use hqdl_sql::blendsql::plan::LimitPushdown;
use hqdl_values::tokens::Tokenizer;

/// Maximum number of tokens of a compared passage.
const COMPARED_TOKENS: u64 = 200;

impl Engine<'_, '_> {
    /// Orders the candidates by similarity if there are more candidates than the query needs.
    ///
    /// # Errors
    /// Returns [`QueryError`] if an error stops the run.
    pub(in crate::query) fn order_candidates(
        &mut self,
        limit: &LimitPushdown,
        compare: &mut CompareFn<'_>,
    ) -> Result<(), QueryError> {
        let needed = limit.rows_needed.unwrap_or(0);
        let mut runtime = lock_runtime(&self.runtime);
        if runtime.candidates.exceeds_limit() {
            runtime.candidates.freeze_order();
            drop(runtime);
            self.similarity_ordering = false;
            return Ok(());
        }
        if runtime.candidates.unordered_count() as u64 <= needed {
            runtime.candidates.freeze_order();
            return Ok(());
        }
        let calls = &self.parsed.calls;
        let question = |n: usize| calls.get(n).map(|c| c.question.clone()).unwrap_or_default();
        // Only the relative length of passages matters, so a token estimate is sufficient.
        let passages = |text: &str| {
            split_passages(text, Tokenizer::Estimate, COMPARED_TOKENS)
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        runtime.candidates.sort_by_similarity(question, passages, compare)
    }
}
