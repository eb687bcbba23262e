//! Publishes the known facts into the target database, or into a copy that replaces it.
//!
//! If the tables exist, only rows that differ are written. The candidates are known before any
//! request is made: rows of requested keys, and rows in buckets whose checksums differ from the
//! coverage report ([`hqdl_database::versions`]). If another process has stored answers or
//! published in the meantime, every row is checked.

use std::collections::HashSet;

use tokio::sync::watch;
use tracing::{debug, info};

use super::counts::CellCounts;
use super::survey::{Differs, KnownFacts, Survey, key_shows};
use super::{Halt, MaterializeError, Report, Work};
use hqdl_database::Database;
use hqdl_database::keys::KeyRow;
use hqdl_database::output::{OutputTarget, Place};
use hqdl_database::publish::{CompletionOrigin, Publication};
use hqdl_database::rows::Tables;
use hqdl_database::standing::PublishedVersion;
use hqdl_database::versions::{Sums, bucket, hash, key_json};
use hqdl_facts::Completion;
use hqdl_model::generate::{Event, Listener, Stopped};

impl<'w> Work<'w> {
    /// Returns true if the published tables match the coverage reports.
    pub(super) fn stands(&self, db: &Database, surveys: &[Survey<'_>]) -> bool {
        let mut all = self.spec.expansions.iter().zip(surveys);
        all.all(|(expansion, survey)| db.sums(expansion).is_some_and(|sums| sums == survey.sums))
            && self.stands_as_ours(db)
    }

    /// Returns true if all tables were published from this fact store, for this model, and with the
    /// current column definitions.
    pub(super) fn stands_as_ours(&self, db: &Database) -> bool {
        let Ok(place) = self.facts.history().place() else { return false };
        self.spec.expansions.iter().enumerate().all(|(n, expansion)| {
            let model = self.choice(expansion).name;
            let now = PublishedVersion::now(&self.spec, n, &model, &self.overrides, place.clone());
            let means = |s: &PublishedVersion| expansion.columns.iter().all(|c| s.means(c));
            db.standing(&self.spec, &expansion.name).is_some_and(|s| s.holds(&now) && means(&s))
        })
    }

    /// Warns about published rows that were edited by hand; this run restores them.
    pub(super) fn tell_of_edits(
        &self,
        db: &Database,
        listener: &Listener,
    ) -> Result<(), MaterializeError> {
        for expansion in &self.spec.expansions {
            if let Some(told) = db.edited(expansion)? {
                listener(&Event::Warning(format!("{told}; this run restores them from the cache")));
            }
        }
        Ok(())
    }

    /// Compares the published tables with the coverage reports and collects the keys in differing
    /// buckets.
    pub(super) fn look_for_differences(
        &self,
        db: &Database,
        surveys: &mut [Survey<'w>],
    ) -> Result<(), MaterializeError> {
        for (expansion, survey) in self.spec.expansions.iter().zip(surveys) {
            let Some(stands) = db.sums(expansion) else { continue };
            let buckets = stands.differing(&survey.sums);
            let mut keys = HashSet::new();
            if !buckets.is_empty() && !Sums::is_much(&buckets) {
                let [open, others] = &mut survey.open;
                survey
                    .keys
                    .each(&mut |key: &KeyRow| {
                        let hash = hash(&key_json(&key.row.key));
                        if buckets.contains(&bucket(hash)) {
                            keys.insert(hash);
                            if !open.has(key.at) {
                                others.add(key.at);
                            }
                        }
                        Ok::<(), rusqlite::Error>(())
                    })
                    .map_err(|e| self.database.error(&e))?;
            }
            survey.differs = Some(Differs { stands, buckets, keys });
        }
        Ok(())
    }

    /// Publishes the known facts.
    pub(super) fn publish(
        &self,
        surveys: &[Survey<'w>],
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let path = self.spec.target();
        let path = path.canonicalize().or_else(|_| std::path::absolute(path));
        let path = path.unwrap_or_else(|_| self.spec.target().clone());
        let turn = self.facts.lock(&format!("publish {}", path.display()), interrupt)?;
        let _turn = turn.ok_or(MaterializeError::Stopped(Stopped::Interrupted))?;
        info!(target = %path.display(), "publishes");
        let mut again = self.survey_again(surveys, listener)?;
        // Another process may have recreated the copy while this run waited for the lock.
        let target = OutputTarget::look(self.database, self.spec.output.as_deref())?;
        if let (Some(again), Some(db)) = (&mut again, target.before(self.database)) {
            self.look_for_differences(db, again)?;
        }
        let surveys = again.as_deref().unwrap_or(surveys);
        let place = target.prepare(self.database)?;
        if let Err(error) = self.write(surveys, &place, listener, report) {
            place.abandon();
            return Err(error);
        }
        place.finish()?;
        info!(target = %report.target.display(), cells = ?report.cells, "published");
        report.published = true;
        Ok(())
    }

    /// Recomputes the coverage if the database has changed since it was computed.
    fn survey_again(
        &self,
        surveys: &[Survey<'w>],
        listener: &Listener,
    ) -> Result<Option<Vec<Survey<'w>>>, MaterializeError> {
        let version = self.database.version()?;
        if self.version.replace(version) == version {
            return Ok(None);
        }
        let mut again = Vec::new();
        for (n, (expansion, before)) in self.spec.expansions.iter().zip(surveys).enumerate() {
            let survey = self.survey(n, false)?;
            if survey.names != before.names {
                listener(&Event::Warning(format!(
                    "{}: rows of its sources changed during the run; the published table has the current rows",
                    expansion.name
                )));
            }
            again.push(survey);
        }
        Ok(Some(again))
    }

    /// Writes the tables from the facts, in one transaction.
    fn write(
        &self,
        surveys: &[Survey<'_>],
        place: &Place,
        listener: &Listener,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let publication = Publication::begin(place.database(), &self.spec)?;
        place.refresh()?;
        // Read the position before the facts: later facts are newer than the tables.
        let place = self.facts.history().place()?;
        for (n, survey) in surveys.iter().enumerate() {
            let expansion = &self.spec.expansions[n];
            let mut tables = publication.expansion(expansion)?;
            let counts = match self.write_some(n, survey, &mut tables)? {
                Some(counts) => counts,
                None => self.write_all(n, survey, &mut tables)?,
            };
            report.count(n, &counts);
            let history = self.facts.history();
            let mut failed = None;
            let mut origins = |ids: &[i64]| {
                let found = history.completions(ids).unwrap_or_else(|error| {
                    failed = Some(error);
                    vec![None; ids.len()]
                });
                found.into_iter().map(|c| c.map(origin).unwrap_or_default()).collect()
            };
            let model = self.choice(&self.spec.expansions[n]).name;
            let standing =
                PublishedVersion::now(&self.spec, n, &model, &self.overrides, place.clone());
            publication.close(&self.spec, &tables.finish(), &standing, &mut origins)?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        for warning in publication.views(&self.spec)? {
            listener(&Event::Warning(warning));
        }
        publication.commit()?;
        Ok(())
    }

    /// Writes only the rows that may differ. Returns `None` if these rows are not known: the
    /// published tables have changed, too many buckets differ, or another process has stored
    /// answers since.
    fn write_some(
        &self,
        n: usize,
        survey: &Survey<'_>,
        tables: &mut Tables<'_>,
    ) -> Result<Option<CellCounts>, MaterializeError> {
        let Some(differs) = survey
            .differs
            .as_ref()
            .filter(|d| tables.stood() == Some(&d.stands) && !Sums::is_much(&d.buckets))
        else {
            return Ok(None);
        };
        let columns = 0..self.spec.expansions[n].columns.len();
        let meanings: Vec<u32> = columns.filter_map(|c| self.wanted[n].meaning(c)).collect();
        let mut answered = self.facts.history().answered_since(survey.seen, &meanings)?;
        let mut counts = survey.closed.clone();
        let [first, others] = &survey.open;
        for (places, is_first) in [(first, true), (others, false)] {
            let mut walk = |give: &mut dyn FnMut(&KeyRow) -> Result<(), Halt>| {
                survey.keys.each_at(places, give)
            };
            self.known_of(&mut walk, &mut |key: &KeyRow, found: KnownFacts| {
                if is_first {
                    answered.remove(&key.entity);
                }
                let counts = is_first.then_some(&mut counts);
                self.write_row(n, key, found, tables, counts)
            })
            .map_err(|h| h.into_error(self.database))?;
        }
        if !answered.is_empty() {
            return Ok(None);
        }
        if !differs.buckets.is_empty() {
            tables.retain(Some(&differs.buckets), &differs.keys)?;
        }
        Ok(Some(counts))
    }

    /// Writes every row that differs from the published one.
    fn write_all(
        &self,
        n: usize,
        survey: &Survey<'_>,
        tables: &mut Tables<'_>,
    ) -> Result<CellCounts, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        debug!(expansion = expansion.name, anew = tables.stood().is_none(), "looks at every row");
        let mut counts = CellCounts::of(expansion.columns.len());
        let mut published = 0;
        self.each_known(&survey.keys, &mut |key: &KeyRow, found: KnownFacts| {
            published += i64::from(self.is_shown(n, key, &found));
            self.write_row(n, key, found, tables, key.first.then_some(&mut counts))
        })
        .map_err(|h| h.into_error(self.database))?;
        // If the tables have more rows, the key of some rows is no longer in any source.
        if tables.rows() != published {
            let mut keys = HashSet::new();
            survey
                .keys
                .each(&mut |key: &KeyRow| {
                    keys.insert(hash(&key_json(&key.row.key)));
                    Ok::<(), rusqlite::Error>(())
                })
                .map_err(|e| self.database.error(&e))?;
            tables.retain(None, &keys)?;
        }
        Ok(counts)
    }

    /// Returns true if the key's row is published: at least one of its cells was requested or
    /// overridden.
    fn is_shown(&self, n: usize, key: &KeyRow, found: &KnownFacts) -> bool {
        let record = found.as_ref();
        self.looked(n, key, &key.columns, record).iter().any(|(_, looked)| looked.state().is_some())
    }

    /// Writes a key's row unless it is unchanged. `counts` is set for an entity's first spelling
    /// and counts its cells.
    fn write_row(
        &self,
        n: usize,
        key: &KeyRow,
        found: KnownFacts,
        tables: &mut Tables<'_>,
        counts: Option<&mut CellCounts>,
    ) -> Result<(), Halt> {
        let record = found;
        // The first spelling counts all cells of the entity; each spelling publishes its own.
        let columns = if counts.is_some() { &key.entity_columns } else { &key.columns };
        let looked = self.looked(n, key, columns, record.as_ref());
        if let Some(counts) = counts {
            looked.iter().for_each(|(column, looked)| counts.add(*column, looked.state()));
        }
        Ok(tables.row(&key.row, &key_shows(key, &looked))?)
    }
}

/// Returns the published provenance of a completion.
fn origin((c, model): (Completion, String)) -> CompletionOrigin {
    CompletionOrigin {
        run: c.run.get(),
        model,
        prompt_hash: c.prompt_hash,
        parameters: c.parameters,
        asked_at: c.asked_at,
        input_tokens: c.input_tokens,
        output_tokens: c.output_tokens,
        cost_usd: c.cost_usd,
        cells: c.cells,
        error: c.error,
    }
}
