//! Computes the coverage from the keys that may have changed since the tables were published, if
//! the published tables allow it ([`hqdl_database::buckets`]).

use tracing::debug;

use super::coverage::{CoverageReport, UnvisitedRows};
use super::{MaterializeError, Materializer, RunMode};
use hqdl_database::Database;
use hqdl_database::buckets::BucketSnapshot;
use hqdl_database::keys::Keys;
use hqdl_database::output::OutputTarget;
use hqdl_database::published_state::PublishedState;
use hqdl_database::versions::Checksums;
use hqdl_facts::FactsError;
use hqdl_spec::Expansion;

/// Published tables that a coverage report can start from.
struct PublishedKeys {
    snapshot: BucketSnapshot,
    checksums: Checksums,
    state: PublishedState,
}

impl<'w> Materializer<'w> {
    /// Computes the coverage of an expansion. Visits only the keys that may have changed since the
    /// tables in `previous` were published, if possible.
    pub(super) fn compute_current_coverage(
        &self,
        n: usize,
        previous: Option<&Database>,
    ) -> Result<CoverageReport<'w>, MaterializeError> {
        if let Some(previous) = previous
            && let Some(published) = self.load_published_keys(n, previous)?
            && let Some(coverage) = self.compute_changed_coverage(n, published)?
        {
            return Ok(coverage);
        }
        self.compute_coverage(n, false)
    }

    /// Returns the published tables of an expansion with their snapshot, if this run would publish
    /// the same values for the same keys and answers.
    fn load_published_keys(
        &self,
        n: usize,
        previous: &Database,
    ) -> Result<Option<PublishedKeys>, FactsError> {
        let (expansion, selection) = (&self.spec.expansions[n], self.selection);
        // With these options, the run also requests cells that are already known.
        let rejects_facts = !self.refresh_jobs.is_empty()
            || !selection.refresh.is_empty()
            || selection.refresh_evidence
            || selection.retry_failed;
        // The content of a medium and the meaning of an unlisted word can change without a new
        // answer, and a known cell may need a second answer.
        let has_other_inputs = expansion.has_media()
            || expansion.columns.iter().any(|c| c.unify || c.escalation.is_some());
        let is_on_server = self.database.server_url().is_some();
        if rejects_facts || has_other_inputs || is_on_server || self.run_mode == RunMode::Batch {
            return Ok(None);
        }
        let history = self.facts.history();
        let position = history.load_journal_position()?;
        let model = self.models[n].describe();
        let now = PublishedState::current(&self.spec, n, &model, &self.overrides, position.clone());
        let state = previous.load_published_state(&self.spec, &expansion.name).filter(|state| {
            state.has_same_inputs(&now)
                && state.head <= position.1
                && expansion.columns.iter().all(|column| state.has_unchanged_column(column))
        });
        let (Some(state), Some(snapshot), Some(checksums)) =
            (state, previous.load_bucket_snapshot(expansion), previous.load_checksums(expansion))
        else {
            return Ok(None);
        };
        // The fact store may be a restored copy to which other answers were added, or damaged
        // answers may be missing since its records were rebuilt.
        let (id, description) = &snapshot.last_completion;
        let is_same_history = self.describe_completion(*id)? == *description
            && self.facts.sync().records_id()? == snapshot.records_id;
        Ok(is_same_history.then_some(PublishedKeys { snapshot, checksums, state }))
    }

    /// Computes the coverage from the changed buckets. Returns `None` if these buckets contain most
    /// keys, or if the sources are changing.
    fn compute_changed_coverage(
        &self,
        n: usize,
        published: PublishedKeys,
    ) -> Result<Option<CoverageReport<'w>>, MaterializeError> {
        let history = self.facts.history();
        // Read the position before the answers, so that later answers are never missed.
        let (_, last_row) = history.load_journal_position()?;
        let identity_ids = self.requirements[n].all_identity_ids();
        let answered = history.find_entities_answered_since(published.state.head, &identity_ids)?;
        let (expansion, filter) = (&self.spec.expansions[n], self.selection.filter.as_deref());
        let keys = Keys::collect_changed_keys(
            self.database,
            expansion,
            filter,
            published.snapshot,
            &answered,
        );
        // Ignore the error: the fallback, which collects all keys, returns or handles it.
        let Ok(Some(keys)) = keys else { return Ok(None) };
        let coverage = self.compute_key_coverage(n, keys, false)?;
        let Some(changed) = &coverage.keys.changed else { return Ok(None) };
        if !changed.matches_source_sums(&coverage.buckets) {
            return Ok(None);
        }
        debug!(
            expansion = expansion.name,
            buckets = changed.visited.len(),
            of = changed.snapshot.buckets.len(),
            "visits the changed keys"
        );
        let unvisited = UnvisitedRows {
            is_current: changed.visited_versions()
                == (coverage.checksums.version_sum(), coverage.checksums.rows),
            published: published.checksums,
        };
        Ok(Some(CoverageReport { last_row, unvisited: Some(unvisited), ..coverage }))
    }

    /// Returns true if the published tables of an expansion come from this fact store, and the
    /// store still contains the last completion they were published from. Another store, or a
    /// restored older copy, can contain other completions with the same ids.
    pub(super) fn is_from_this_store(
        &self,
        published: &Database,
        expansion: &Expansion,
        journal: &str,
    ) -> Result<bool, FactsError> {
        let published_journal = published.load_published_journal(&expansion.name);
        if published_journal.as_deref() != Some(journal) {
            return Ok(false);
        }
        match published.load_bucket_snapshot(expansion) {
            Some(BucketSnapshot { last_completion: (id, description), .. }) => {
                Ok(self.describe_completion(id)? == description)
            }
            None => Ok(true),
        }
    }

    /// Returns the name of a published table that comes from another cache, if there is one.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if the output or the facts cannot be read.
    pub fn find_table_of_other_cache(&self) -> Result<Option<&str>, MaterializeError> {
        let target = OutputTarget::inspect(self.database, self.spec.output.as_deref())?;
        let Some(published) = target.previous_database(self.database) else { return Ok(None) };
        let journal = self.facts.history().load_journal_id()?;
        let is_from_other_cache = |expansion: &&Expansion| {
            published.load_published_journal(&expansion.name).is_some_and(|other| other != journal)
        };
        let found = self.spec.expansions.iter().find(is_from_other_cache);
        Ok(found.map(|expansion| expansion.name.as_str()))
    }

    /// Returns the last completion of the fact store, with its description.
    pub(super) fn describe_last_completion(&self) -> Result<(i64, String), FactsError> {
        let id = self.facts.history().load_last_completion_id()?;
        Ok((id, self.describe_completion(id)?))
    }

    fn describe_completion(&self, id: i64) -> Result<String, FactsError> {
        let completion = self.facts.history().load_completion(id)?;
        Ok(completion.map_or_else(String::new, |(completion, model)| {
            format!("{model} {} {}", completion.asked_at, completion.prompt_hash)
        }))
    }
}
