//! Loads the documents of expansions. For `--refresh-evidence`, finds answers whose requests would
//! now show different passages.

use std::collections::HashSet;
use std::sync::Arc;

use super::coverage::EntityFacts;
use super::{MaterializeError, Materializer, WalkError};
use crate::retrieval::evidence::load_evidence;
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_facts::FactsError;
use hqdl_spec::Expansion;
use hqdl_values::Row;
use hqdl_values::evidence::ShownEvidence;

/// Number of completions to read at once.
const CHUNK: usize = 500;

impl Materializer<'_> {
    /// Loads the documents of an expansion, if it has any.
    ///
    /// # Errors
    /// [`MaterializeError::Evidence`] if the documents cannot be read.
    pub(super) fn load_evidence(&self, expansion: &Expansion) -> Result<(), MaterializeError> {
        load_evidence(&self.spec, expansion, self.database, self.facts)
            .map_err(|message| evidence_error(expansion, message))
    }

    /// Marks answers as outdated if their request would now show different passages.
    ///
    /// # Errors
    /// [`MaterializeError`] if documents, keys or facts cannot be read.
    pub(super) fn mark_changed_evidence_outdated(&mut self) -> Result<(), MaterializeError> {
        for n in 0..self.spec.expansions.len() {
            if self.spec.expansions[n].evidence.is_some() {
                let outdated = self.find_changed_evidence(n)?;
                Arc::make_mut(&mut self.requirements[n]).mark_completions_outdated(&outdated);
            }
        }
        Ok(())
    }

    /// Returns the completions whose passages have changed.
    fn find_changed_evidence(&self, n: usize) -> Result<HashSet<i64>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        self.load_evidence(expansion)?;
        let keys = Keys::collect(self.database, expansion, None)?;
        let (mut digests, mut outdated) = (Vec::new(), HashSet::new());
        let mut failure = None;
        let walked = self.for_each_key(&keys, &mut |key: &KeyRow, facts: EntityFacts| {
            let known = |c| self.requirements[n].list_known_completions(facts.as_ref(), c);
            let asked: HashSet<i64> = (0..expansion.columns.len()).flat_map(known).collect();
            if !key.is_first_spelling || asked.is_empty() {
                return Ok(());
            }
            match compute_digest(expansion, &key.row) {
                Ok(digest) => digests.extend(asked.into_iter().map(|id| (id, digest.clone()))),
                Err(message) => {
                    failure = Some(message);
                    return Err(WalkError::Closed);
                }
            }
            if digests.len() >= CHUNK {
                self.collect_outdated_completions(&mut digests, &mut outdated)?;
            }
            Ok(())
        });
        if let Some(message) = failure {
            return Err(evidence_error(expansion, message));
        }
        walked.map_err(|error| error.into_materialize_error(self.database))?;
        self.collect_outdated_completions(&mut digests, &mut outdated)?;
        Ok(outdated)
    }

    /// Collects the completions whose passages had a different digest.
    fn collect_outdated_completions(
        &self,
        digests: &mut Vec<(i64, String)>,
        outdated: &mut HashSet<i64>,
    ) -> Result<(), FactsError> {
        let ids: Vec<i64> = digests.iter().map(|(id, _)| *id).collect();
        let completions = self.facts.history().load_completions(&ids)?;
        for ((id, digest), completion) in digests.drain(..).zip(completions) {
            let shown = completion.and_then(|(completion, _)| completion.evidence);
            let shown = shown.and_then(|json| ShownEvidence::parse(&json));
            if shown.is_none_or(|shown| shown.digest != digest) {
                outdated.insert(id);
            }
        }
        Ok(())
    }
}

/// Computes the digest of the passages that a request about this row would show.
fn compute_digest(expansion: &Expansion, row: &Row) -> Result<String, String> {
    let evidence =
        expansion.reduce_to_key_part(&row.key).find_evidence(&expansion.build_shown_row(row))?;
    Ok(evidence.map(|evidence| evidence.digest.clone()).unwrap_or_default())
}

fn evidence_error(expansion: &Expansion, message: String) -> MaterializeError {
    MaterializeError::Evidence { expansion: expansion.name.clone(), message }
}
