//! Publishes the known facts into the target database, or into a new copy that replaces the target.
//!
//! If the tables exist, only rows that differ are written. The candidates are known before any
//! request is made: rows of requested keys, and rows in buckets whose checksums differ from the
//! coverage report ([`hqdl_database::versions`]). If another process has stored answers or
//! published in the meantime, every row is checked.

use std::collections::{BTreeSet, HashSet};

use tokio::sync::watch;
use tracing::{debug, info};

use super::counts::CellCounts;
use super::coverage::{
    CoverageReport, EntityFacts, TableDifferences, add_cells, to_published_cells,
};
use super::{MaterializeError, Materializer, Report, WalkError};
use hqdl_database::Database;
use hqdl_database::buckets::{Bucket, BucketSnapshot};
use hqdl_database::keys::{KeyPositions, KeyRow};
use hqdl_database::output::{OutputDatabase, OutputTarget};
use hqdl_database::publish::{CompletionProvenance, Publication};
use hqdl_database::published_state::PublishedState;
use hqdl_database::rows::ExpansionWriter;
use hqdl_database::versions::{Checksums, bucket_index, hash_key, key_to_json};
use hqdl_facts::Completion;
use hqdl_model::generate::{Event, Listener, StopReason};

/// Counts of the cells in the written tables, and sums over their keys.
type WrittenRows = (CellCounts, BucketSnapshot);

impl<'w> Materializer<'w> {
    /// Returns true if the published tables match the coverage reports.
    pub(super) fn matches_coverage(&self, db: &Database, coverages: &[CoverageReport<'_>]) -> bool {
        let mut all = self.spec.expansions.iter().zip(coverages);
        all.all(|(expansion, coverage)| {
            db.load_checksums(expansion).is_some_and(|checksums| coverage.matches(&checksums))
        }) && self.has_current_versions(db)
            && db.list_removed_expansions(&self.spec).is_ok_and(|removed| removed.is_empty())
    }

    /// Returns true if all tables were published from this fact store, for this model, and with the
    /// current column definitions.
    pub(super) fn has_current_versions(&self, db: &Database) -> bool {
        let Ok(journal_position) = self.facts.history().load_journal_position() else {
            return false;
        };
        self.spec.expansions.iter().enumerate().all(|(n, expansion)| {
            let model = self.models[n].describe();
            let current = PublishedState::current(
                &self.spec,
                n,
                &model,
                &self.overrides,
                journal_position.clone(),
            );
            let has_current_columns =
                |s: &PublishedState| expansion.columns.iter().all(|c| s.has_unchanged_column(c));
            db.load_published_state(&self.spec, &expansion.name)
                .is_some_and(|s| s.has_same_inputs(&current) && has_current_columns(&s))
        })
    }

    /// Warns about published rows that were edited by hand and that this run restores.
    pub(super) fn warn_about_edits(
        &self,
        db: &Database,
        listener: &Listener,
    ) -> Result<(), MaterializeError> {
        for expansion in &self.spec.expansions {
            if let Some(warning) = db.build_edit_warning(expansion)? {
                listener(&Event::Warning(format!(
                    "{warning}; this run restores them from the cache"
                )));
            }
        }
        Ok(())
    }

    /// Compares the published tables with the coverage reports and collects the keys in differing
    /// buckets.
    pub(super) fn find_differences(
        &self,
        db: &Database,
        coverages: &mut [CoverageReport<'w>],
    ) -> Result<(), MaterializeError> {
        for (expansion, coverage) in self.spec.expansions.iter().zip(coverages) {
            let Some(published) = db.load_checksums(expansion) else { continue };
            // If only some keys were visited, the rows of all visited keys are compared with the
            // published rows.
            let is_partial = coverage.unvisited.is_some();
            let buckets = if is_partial {
                BTreeSet::new()
            } else {
                published.find_differing_buckets(&coverage.checksums)
            };
            let (mut keys, mut positions) = (HashSet::new(), KeyPositions::default());
            if is_partial || !buckets.is_empty() && !Checksums::has_many_buckets(&buckets) {
                let is_pending = |position: i64| {
                    coverage.pending_keys.iter().any(|keys| keys.contains(position))
                };
                coverage
                    .keys
                    .for_each(&mut |key: &KeyRow| {
                        let hash = hash_key(&key_to_json(&key.row.key));
                        if is_partial || buckets.contains(&bucket_index(hash)) {
                            keys.insert(hash);
                            if !is_pending(key.position) {
                                positions.add(key.position);
                            }
                        }
                        Ok::<(), rusqlite::Error>(())
                    })
                    .map_err(|e| self.database.to_store_error(&e))?;
            }
            coverage.differences = Some(TableDifferences { published, buckets, keys, positions });
        }
        Ok(())
    }

    /// Publishes the known facts.
    pub(super) fn publish_tables(
        &self,
        coverages: &[CoverageReport<'w>],
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let path = self.spec.target();
        let path = path.canonicalize().or_else(|_| std::path::absolute(path));
        let path = path.unwrap_or_else(|_| self.spec.target().clone());
        let lock = self.facts.lock(&format!("publish {}", path.display()), interrupt)?;
        let _lock = lock.ok_or(MaterializeError::Stopped(StopReason::Interrupted))?;
        info!(target = %path.display(), "publishes");
        // Another process may have recreated the copy while this run waited for the lock.
        let target = OutputTarget::inspect(self.database, self.spec.output.as_deref())?;
        let previous = target.previous_database(self.database);
        let mut recomputed = self.recompute_coverage(coverages, previous, listener)?;
        if let (Some(again), Some(db)) = (&mut recomputed, previous) {
            self.find_differences(db, again)?;
        }
        let coverages = recomputed.as_deref().unwrap_or(coverages);
        let destination = target.open_target(self.database)?;
        if let Err(error) = self.write_tables(coverages, &destination, listener, report) {
            destination.abandon();
            return Err(error);
        }
        destination.finish()?;
        info!(target = %report.target.display(), cells = ?report.cells, "published");
        report.published = true;
        Ok(())
    }

    /// Recomputes the coverage if the database has changed since the last computation.
    fn recompute_coverage(
        &self,
        coverages: &[CoverageReport<'w>],
        previous: Option<&Database>,
        listener: &Listener,
    ) -> Result<Option<Vec<CoverageReport<'w>>>, MaterializeError> {
        let version = self.database.data_version()?;
        if self.version.replace(version) == version {
            return Ok(None);
        }
        let mut recomputed = Vec::new();
        for (n, (expansion, earlier)) in self.spec.expansions.iter().zip(coverages).enumerate() {
            let coverage = self.compute_current_coverage(n, previous)?;
            if coverage.keys_hash != earlier.keys_hash {
                listener(&Event::Warning(format!(
                    "{}: rows of its sources changed during the run; the published table has the current rows",
                    expansion.name
                )));
            }
            recomputed.push(coverage);
        }
        Ok(Some(recomputed))
    }

    /// Writes the tables from the facts, in one transaction.
    fn write_tables(
        &self,
        coverages: &[CoverageReport<'_>],
        destination: &OutputDatabase,
        listener: &Listener,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let publication = Publication::begin(destination.database(), &self.spec)?;
        destination.refresh()?;
        // Read the position before the facts: later facts are newer than the tables.
        let journal_position = self.facts.history().load_journal_position()?;
        let last_completion = self.describe_last_completion()?;
        for (n, coverage) in coverages.iter().enumerate() {
            let expansion = &self.spec.expansions[n];
            let is_same_store =
                self.is_from_this_store(destination.database(), expansion, &journal_position.0)?;
            let mut tables = publication.open_tables(expansion, is_same_store)?;
            let (counts, buckets) = match self.write_changed_rows(n, coverage, &mut tables)? {
                Some(written) => written,
                None if coverage.unvisited.is_none() => {
                    self.write_all_rows(n, coverage, &mut tables)?
                }
                None => {
                    let all_keys = self.compute_coverage(n, false)?;
                    self.write_all_rows(n, &all_keys, &mut tables)?
                }
            };
            report.add_counts(n, &counts);
            let last_completion = last_completion.clone();
            let tables = tables.finish(Some(BucketSnapshot { last_completion, ..buckets }));
            let history = self.facts.history();
            let mut failed = None;
            let mut origins = |ids: &[i64]| {
                let completions = history.load_completions(ids).unwrap_or_else(|error| {
                    failed = Some(error);
                    vec![None; ids.len()]
                });
                completions
                    .into_iter()
                    .map(|c| c.map(to_completion_provenance).unwrap_or_default())
                    .collect()
            };
            let model = self.models[n].describe();
            let version = PublishedState::current(
                &self.spec,
                n,
                &model,
                &self.overrides,
                journal_position.clone(),
            );
            publication.finish_expansion(&self.spec, &tables, &version, &mut origins)?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        for warning in publication.create_views(&self.spec)? {
            listener(&Event::Warning(warning));
        }
        publication.commit()?;
        Ok(())
    }

    /// Writes only the rows that may differ. Returns `None` if these rows cannot be determined,
    /// because the published tables have changed, too many buckets differ, or another process has
    /// stored answers since the coverage was computed.
    fn write_changed_rows(
        &self,
        n: usize,
        coverage: &CoverageReport<'_>,
        tables: &mut ExpansionWriter<'_>,
    ) -> Result<Option<WrittenRows>, MaterializeError> {
        let Some(differences) = coverage.differences.as_ref().filter(|d| {
            tables.previous_checksums() == Some(&d.published)
                && coverage.unvisited.as_ref().is_none_or(|u| u.published == d.published)
                && !Checksums::has_many_buckets(&d.buckets)
        }) else {
            return Ok(None);
        };
        let is_partial = coverage.unvisited.is_some();
        let identity_ids = self.requirements[n].all_identity_ids();
        let mut answered =
            self.facts.history().find_entities_answered_since(coverage.last_row, &identity_ids)?;
        let mut counts = coverage.unrequested_counts.clone();
        let mut buckets = coverage.buckets.clone();
        let [first_keys, other_keys] = &coverage.pending_keys;
        let unchanged_keys = &differences.positions;
        for (positions, is_first, is_counted) in
            [(first_keys, true, false), (other_keys, false, false), (unchanged_keys, false, true)]
        {
            let mut walk = |on_key: &mut dyn FnMut(&KeyRow) -> Result<(), WalkError>| {
                coverage.keys.for_each_key_at(positions, on_key)
            };
            self.for_each_key_in(&mut walk, &mut |key: &KeyRow, facts: EntityFacts| {
                if is_first {
                    answered.remove(key.fact_entity());
                }
                let counts = is_first.then_some(&mut counts);
                let bucket = (!is_counted).then(|| buckets.bucket_mut(&key.entity));
                self.write_row(n, key, facts, tables, counts, bucket)
            })
            .map_err(|h| h.into_materialize_error(self.database))?;
        }
        if !answered.is_empty() {
            return Ok(None);
        }
        if let Some(changed) = coverage.keys.changed.as_ref().filter(|_| is_partial) {
            if tables.row_count() != buckets.published_rows() {
                tables.delete_obsolete_rows(None, &differences.keys, Some(changed))?;
            }
        } else if !differences.buckets.is_empty() {
            tables.delete_obsolete_rows(Some(&differences.buckets), &differences.keys, None)?;
        }
        Ok(Some((counts, buckets)))
    }

    /// Writes every row that differs from the published row.
    fn write_all_rows(
        &self,
        n: usize,
        coverage: &CoverageReport<'_>,
        tables: &mut ExpansionWriter<'_>,
    ) -> Result<WrittenRows, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        debug!(
            expansion = expansion.name,
            anew = tables.previous_checksums().is_none(),
            "looks at every row"
        );
        let mut counts = CellCounts::with_columns(expansion.columns.len());
        let mut buckets = coverage.buckets.without_cells();
        self.for_each_key(&coverage.keys, &mut |key: &KeyRow, facts: EntityFacts| {
            let counts = key.is_first_spelling.then_some(&mut counts);
            let bucket = Some(buckets.bucket_mut(&key.entity));
            self.write_row(n, key, facts, tables, counts, bucket)
        })
        .map_err(|h| h.into_materialize_error(self.database))?;
        // If the tables have more rows than the sources have keys, they contain rows whose key is
        // no longer in any source.
        if tables.row_count() != buckets.published_rows() {
            let mut keys = HashSet::new();
            coverage
                .keys
                .for_each(&mut |key: &KeyRow| {
                    keys.insert(hash_key(&key_to_json(&key.row.key)));
                    Ok::<(), rusqlite::Error>(())
                })
                .map_err(|e| self.database.to_store_error(&e))?;
            tables.delete_obsolete_rows(None, &keys, None)?;
        }
        Ok((counts, buckets))
    }

    /// Writes a key's row unless the row is unchanged, and adds the key to `bucket`. `counts` is
    /// set only for the first spelling of an entity, and counts the entity's cells.
    fn write_row(
        &self,
        n: usize,
        key: &KeyRow,
        facts: EntityFacts,
        tables: &mut ExpansionWriter<'_>,
        counts: Option<&mut CellCounts>,
        mut bucket: Option<&mut Bucket>,
    ) -> Result<(), WalkError> {
        let record = facts;
        // The first spelling counts all cells of the entity, but each spelling publishes only its
        // own columns.
        let columns =
            if counts.is_some() { &key.entity_requested_columns } else { &key.requested_columns };
        let resolved = self.resolve_cells(n, key, columns, record.as_ref());
        if let Some(counts) = counts {
            resolved
                .iter()
                .for_each(|(column, resolved)| counts.add_cell(*column, resolved.state()));
            if let Some(bucket) = &mut bucket {
                add_cells(bucket, &resolved);
            }
        }
        let version = tables.write_row(&key.row, &to_published_cells(key, &resolved))?;
        if let Some(bucket) = bucket {
            bucket.add_version(version);
        }
        Ok(())
    }
}

/// Converts a completion and its model to the provenance that is published.
fn to_completion_provenance((c, model): (Completion, String)) -> CompletionProvenance {
    CompletionProvenance {
        run: c.run.get(),
        model,
        prompt_hash: c.prompt_hash,
        parameters: c.parameters,
        evidence: c.evidence,
        asked_at: c.asked_at,
        input_tokens: c.input_tokens,
        output_tokens: c.output_tokens,
        cost_usd: c.cost_usd,
        assumed_cache_writes: c.assumed_cache_writes,
        cells: c.cells,
        error: c.error,
    }
}
