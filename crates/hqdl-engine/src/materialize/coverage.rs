//! Computes a spec's coverage: which cells are known and which are missing.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::counts::CellCounts;
use super::{MaterializeError, Materializer, RunMode, WalkError};
use hqdl_database::buckets::{Bucket, BucketSnapshot};
use hqdl_database::keys::{KeyPositions, KeyRow, Keys};
use hqdl_database::versions::{Checksums, PublishedCell, PublishedValue};
use hqdl_database::{Database, StoreError};
use hqdl_facts::{CellLookup, FactsError, Reason, Record};
use hqdl_model::ExpansionModels;
use hqdl_model::generate::ExpansionKeys;
use hqdl_model::plan::{ColumnPlan, ExpansionPlan};
use hqdl_spec::overrides::Override;
use hqdl_spec::{Catalog, Expansion};
use hqdl_sql::blendsql::lexer::has_call_braces;
use hqdl_values::cell::{Answer, CellValue, State, Tally};
use hqdl_values::key::Entity;
use hqdl_values::problem::find_nearest;

/// Number of keys whose facts are fetched in one call. If the facts are on a server, each call is a
/// round trip.
const PREFETCHED_KEYS: usize = 1000;

/// The stored facts of an entity; `None` if there are none.
pub(super) type EntityFacts = Option<Record>;

/// Answers that are not in their column's value list, by column and lowercase form, because letter
/// case is ignored.
pub(super) type UnlistedValues = BTreeMap<usize, BTreeMap<String, String>>;

/// Coverage of one expansion: its known and missing cells.
pub(super) struct CoverageReport<'db> {
    pub(super) keys: Keys<'db>,
    /// The plan without the cost of its requests.
    pub(super) plan: ExpansionPlan,
    /// The plan of each model, with the cells requested from it. Contains costs only if the walk
    /// computed them.
    pub(super) model_plans: Vec<ExpansionPlan>,
    /// For each model, the maximum number of second answers to cells that have no first answer yet.
    pub(super) possible_cells: Vec<u64>,
    /// Known cells by state, per column.
    pub(super) cells: Vec<Tally>,
    pub(super) known: u64,
    /// Missing cells that this run does not request, per column.
    pub(super) unasked: Vec<u64>,
    /// Cells to refresh or retry that `--limit` leaves to a later run, per column.
    pub(super) unasked_refreshes: Vec<u64>,
    /// Missing cells that are requested by open batch jobs, per column. The run does not request
    /// them again.
    pub(super) in_flight: Vec<u64>,
    /// Cells of `in_flight` that are to be refreshed or retried, per column.
    pub(super) in_flight_refreshes: Vec<u64>,
    /// Checksums of the visited keys' rows, in the form in which they are published if no further
    /// answer arrives.
    pub(super) checksums: Checksums,
    /// Sums over all keys, and over the cells of the keys that are not in `pending_keys`.
    pub(super) buckets: BucketSnapshot,
    /// Published tables that contain the rows of the unvisited keys. `None` if all keys were
    /// visited.
    pub(super) unvisited: Option<UnvisitedRows>,
    /// Order-independent hash of the keys.
    pub(super) keys_hash: i64,
    /// Last journal row that this report is guaranteed to include.
    pub(super) last_row: i64,
    /// Counts of the cells of all keys that need no request.
    pub(super) unrequested_counts: CellCounts,
    /// Positions of the keys with missing cells. The first set contains keys that are the first
    /// spelling of their entity, the second set all other spellings.
    pub(super) pending_keys: [KeyPositions; 2],
    /// Differences from the published tables; `None` until they are compared.
    pub(super) differences: Option<TableDifferences>,
    /// Entities with overrides.
    pub(super) overridden_entities: HashSet<Entity>,
    /// The error message if `--where` is invalid for this expansion.
    pub(super) filter_error: Option<String>,
    /// The expansion's keys, used to suggest the closest key for a misspelled one.
    pub(super) expansion_keys: Arc<ExpansionKeys>,
    /// Answers that are not in their column's value list and that no run has asked the model to
    /// unify yet.
    pub(super) unlisted_values: UnlistedValues,
    /// Number of keys that `--where` selects.
    pub(super) selected_keys: u64,
}

/// Differences between the published tables and a coverage report.
pub(super) struct TableDifferences {
    pub(super) published: Checksums,
    /// Buckets whose checksums differ.
    pub(super) buckets: BTreeSet<usize>,
    /// Hashes of the source keys in these buckets. If only some keys were visited, hashes of all
    /// visited keys.
    pub(super) keys: HashSet<i64>,
    /// Positions of the keys in `keys` that are not in `pending_keys`.
    pub(super) positions: KeyPositions,
}

/// Published rows of the keys that a coverage report did not visit.
pub(super) struct UnvisitedRows {
    /// Checksums of the published tables.
    pub(super) published: Checksums,
    /// Whether the published rows of the visited keys are up to date.
    pub(super) is_current: bool,
}

impl CoverageReport<'_> {
    /// Returns the number of cells to request.
    pub(super) fn count_missing_cells(&self) -> u64 {
        self.plan.columns.iter().map(ColumnPlan::cell_count).sum()
    }

    /// Splits the plan by model. Returns one plan for each model of the expansion, with the columns
    /// that the model answers and their cost.
    pub(super) fn split_plan(&self, models: &ExpansionModels) -> Vec<ExpansionPlan> {
        let plan_of = |(m, plan): (usize, &ExpansionPlan)| ExpansionPlan {
            name: self.plan.name.clone(),
            keys: self.plan.keys,
            orphaned: if m == 0 { self.plan.orphaned } else { 0 },
            columns: models
                .list_columns_of_model(m)
                .map(|column| plan.columns[column].clone())
                .collect(),
            ..plan.clone()
        };
        self.model_plans.iter().enumerate().map(plan_of).collect()
    }

    /// Returns the number of missing cells to request from a model.
    pub(super) fn count_missing_cells_of_model(&self, model: usize) -> u64 {
        self.model_plans[model].columns.iter().map(ColumnPlan::cell_count).sum()
    }

    /// Returns true if the published tables with these checksums are up to date.
    pub(super) fn matches(&self, published: &Checksums) -> bool {
        match &self.unvisited {
            Some(unvisited) => unvisited.is_current && unvisited.published == *published,
            None => self.checksums == *published,
        }
    }

    /// Returns the number of cells requested by open batch jobs.
    pub(super) fn count_in_flight_cells(&self) -> u64 {
        self.in_flight.iter().sum()
    }
}

impl<'w> Materializer<'w> {
    /// Computes the coverage of an expansion.
    pub(super) fn compute_coverage(
        &self,
        n: usize,
        priced: bool,
    ) -> Result<CoverageReport<'w>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let filter = self.selection.filter.as_deref();
        let gathered = Keys::collect(self.database, expansion, filter);
        let (keys, filter_error) = match (filter, gathered) {
            // The condition may name columns of another expansion. In that case it selects no key
            // of this expansion.
            (
                Some(_),
                Err(StoreError::Sqlite { message, .. } | StoreError::Statement { message, .. }),
            ) => (Keys::collect(self.database, expansion, Some("1 = 0"))?, Some(message)),
            (_, keys) => (keys?, None),
        };
        Ok(CoverageReport { filter_error, ..self.compute_key_coverage(n, keys, priced)? })
    }

    /// Checks `--where`, and returns a warning for each expansion for which the condition is
    /// invalid.
    ///
    /// # Errors
    /// Returns [`MaterializeError::InvalidWhere`] if the condition is invalid for every expansion.
    pub(super) fn check_filter(
        &self,
        coverages: &[CoverageReport<'_>],
    ) -> Result<Vec<String>, MaterializeError> {
        let inapplicable: Vec<(&str, &str)> = self
            .spec
            .expansions
            .iter()
            .zip(coverages)
            .filter_map(|(e, s)| Some((e.name.as_str(), s.filter_error.as_deref()?)))
            .collect();
        match inapplicable.first() {
            Some((_, error)) if inapplicable.len() == coverages.len() => {
                Err(self.explain_filter_error(error))
            }
            _ => {
                let skipped = inapplicable.into_iter().map(|(name, error)| {
                    format!("{name}: skipped, because --where does not apply to it ({error})")
                });
                let selects_none = self.selection.filter.is_some()
                    && coverages.iter().all(|c| c.selected_keys == 0 && c.unvisited.is_none());
                let nothing = selects_none.then(|| "--where selects no row".to_owned());
                Ok(skipped.chain(nothing).collect())
            }
        }
    }

    /// Returns the error for a condition that the database rejects.
    fn explain_filter_error(&self, error: &str) -> MaterializeError {
        let filter = self.selection.filter.as_deref().unwrap_or_default();
        let example =
            "write an SQL condition on columns of the source, such as \"height_cm > 200\"";
        let to_error = |message: &str, hint: String| MaterializeError::InvalidWhere {
            message: message.to_owned(),
            hint,
        };
        if has_call_braces(filter) {
            let hint = "use columns of the source; `hqdl query` accepts calls in WHERE".to_owned();
            return to_error("the condition cannot contain calls", hint);
        }
        let quoted = error.strip_prefix("column ").and_then(|rest| rest.split('"').nth(1));
        let name = error.strip_prefix("no such column: ").or(quoted);
        if let Some(name) = name {
            let tables = self.database.table_names();
            let columns = tables.iter().filter_map(|table| self.database.table_columns(table));
            let columns: Vec<String> = columns.flatten().map(|(column, _)| column).collect();
            let last = name.rsplit('.').next().unwrap_or(name);
            return match find_nearest(last, columns.iter().map(String::as_str)) {
                Some(nearest) => to_error(error, format!("did you mean `{nearest}`?")),
                None => to_error(
                    &format!("no source column `{name}`"),
                    format!("if it is a text, write '{name}'"),
                ),
            };
        }
        // hqdl puts the condition in parentheses, so an incomplete condition fails at hqdl's own
        // `)`.
        let fails_at_end =
            ["near \")\": syntax error", "syntax error at or near \")\""].contains(&error);
        let message = match error {
            _ if fails_at_end && filter.trim().is_empty() => "the condition is empty",
            _ if fails_at_end && !filter.contains(')') => "the condition ends too early",
            error => error,
        };
        to_error(message, example.to_owned())
    }

    /// Calls `visit` for every key, with its entity's facts.
    pub(super) fn for_each_key(
        &self,
        keys: &Keys<'_>,
        visit: &mut dyn FnMut(&KeyRow, EntityFacts) -> Result<(), WalkError>,
    ) -> Result<(), WalkError> {
        self.for_each_key_in(&mut |on_key| keys.for_each(on_key), visit)
    }

    /// Calls `visit` for every key of a walk, with the facts of the key's entity. Fetches the facts
    /// for [`PREFETCHED_KEYS`] keys at a time.
    pub(super) fn for_each_key_in(
        &self,
        walk: &mut KeyWalk<'_>,
        visit: &mut dyn FnMut(&KeyRow, EntityFacts) -> Result<(), WalkError>,
    ) -> Result<(), WalkError> {
        let facts = self.facts.sync();
        let mut buffer: Vec<KeyRow> = Vec::with_capacity(PREFETCHED_KEYS);
        let mut flush = |buffer: &mut Vec<KeyRow>| {
            let rows: Vec<_> = buffer.iter().map(|k| (k.fact_entity(), &k.entity)).collect();
            let entity_facts = facts.get_rows(&rows)?;
            buffer
                .drain(..)
                .zip(entity_facts)
                .try_for_each(|(key, entity_facts)| visit(&key, entity_facts))
        };
        walk(&mut |key: &KeyRow| {
            buffer.push(key.clone());
            if buffer.len() < PREFETCHED_KEYS { Ok(()) } else { flush(&mut buffer) }
        })?;
        flush(&mut buffer)
    }

    /// Returns the override or the stored fact for each requested column of a key.
    pub(super) fn resolve_cells<'r>(
        &'r self,
        n: usize,
        key: &KeyRow,
        columns: &[bool],
        record: Option<&'r Record>,
    ) -> Vec<(usize, ResolvedCell<'r>)> {
        let look_up = |c: usize| {
            let requirements = &self.requirements[n];
            // A batch run requests no second answers.
            if self.run_mode == RunMode::Batch {
                return (requirements.look_up_cell(record, c), requirements.first_model(c));
            }
            let decision = self.find_cascade_decision(n, c, &key.entity);
            requirements.look_up_with_second_answer(record, c, decision)
        };
        let resolve = |c: usize| {
            let (lookup, model) = look_up(c);
            match self.overrides.get(n, &key.entity, c) {
                Some(entry) => {
                    let to_ask = self.find_missing_sample_answer(n, c, &key.entity, record);
                    let answer = lookup.fact().map(|fact| describe_answer(&fact.answer));
                    ResolvedCell::Overridden { entry, to_ask, answer: answer.flatten() }
                }
                None => ResolvedCell::Fact { lookup, model },
            }
        };
        let requested = columns.iter().enumerate().filter(|(_, is_requested)| **is_requested);
        requested.map(|(c, _)| (c, resolve(c))).collect()
    }

    /// Determines which cells of a key the run requests, and the current content of each cell.
    pub(super) fn resolve_key_cells<'r>(
        &'r self,
        n: usize,
        key: &KeyRow,
        columns: &[bool],
        record: Option<&'r Record>,
        requested_keys: u64,
    ) -> Result<KeyCells<'r>, FactsError> {
        let requirements = &self.requirements[n];
        let resolved = self.resolve_cells(n, key, columns, record);
        let is_within_limit =
            key.is_selected && self.selection.limit.is_none_or(|limit| requested_keys < limit);
        let mut to_request: Vec<usize> = resolved
            .iter()
            .filter(|(c, f)| is_within_limit && self.columns[n][*c] && f.is_missing())
            .map(|(c, _)| *c)
            .collect();
        let mut in_flight = Vec::new();
        if self.has_batch_jobs.get() && !to_request.is_empty() {
            let batched = self.find_batched_columns(n, key.fact_entity(), &to_request)?;
            (in_flight, to_request) = to_request.into_iter().partition(|c| batched.contains(c));
        }
        if let Some(exported_cells) =
            self.exported_cells.borrow_mut().as_mut().filter(|_| !to_request.is_empty())
        {
            // Export files ask only one model.
            let model = requirements.column_requirements(to_request[0]).model;
            let exported = self.facts.history().list_exported_columns(key.fact_entity(), model)?;
            to_request.retain(|c| {
                let identity_id = requirements.identity_id(*c);
                let export =
                    exported.iter().find(|(_, all)| identity_id.is_some_and(|m| all.contains(&m)));
                export.into_iter().for_each(|(batch_job_id, _)| {
                    *exported_cells.entry(*batch_job_id).or_default() += 1;
                });
                export.is_none()
            });
        }
        let source_columns = resolved.iter().map(|(c, _)| *c).collect();
        Ok(KeyCells { resolved, to_request, source_columns, in_flight })
    }

    /// Returns the requested columns of a key for which a model may be asked later in the run,
    /// depending on the answers of other models.
    pub(super) fn find_possible_columns(
        &self,
        n: usize,
        model: usize,
        key_cells: &KeyCells<'_>,
    ) -> Vec<usize> {
        let may_follow = |column: &usize| {
            let models = self.models[n].column_models(*column);
            let asked = key_cells.find_requested_model(*column);
            let Some(rule) = &models.second else { return false };
            if !key_cells.to_request.contains(column) {
                // The threshold of a calibrated column may later exclude cells that are known now.
                return rule.to == model
                    && self.is_undecided(n, *column)
                    && self.columns[n][*column]
                    && asked.is_some();
            }
            // The models are asked in this order: the first model, the compared models, the
            // stronger model.
            asked != Some(model)
                && asked != Some(rule.to)
                && (rule.to == model || rule.compare.contains(&model))
        };
        if self.run_mode == RunMode::Batch {
            return Vec::new();
        }
        key_cells.source_columns.iter().copied().filter(may_follow).collect()
    }

    /// Returns the columns of an entity that are requested by open batch jobs.
    fn find_batched_columns(
        &self,
        n: usize,
        entity: &Entity,
        columns: &[usize],
    ) -> Result<Vec<usize>, FactsError> {
        let mut batched_columns = Vec::new();
        for model in self.models[n].first_positions() {
            let requirements = self.requirements[n].model_requirements(model);
            let mut own = columns
                .iter()
                .filter(|column| self.requirements[n].first_model(**column) == model)
                .peekable();
            if own.peek().is_some() {
                let batched =
                    self.facts.history().list_batched_columns(entity, requirements.model)?;
                let is_in_batch = |column: &&usize| {
                    requirements.identity_id(**column).is_some_and(|id| batched.contains(&id))
                };
                batched_columns.extend(own.filter(is_in_batch));
            }
        }
        Ok(batched_columns)
    }

    /// Returns warnings for overrides whose key is in no source.
    pub(super) fn find_unknown_overrides(&self, coverages: &[CoverageReport<'_>]) -> Vec<String> {
        let overridden: Vec<_> = coverages.iter().map(|s| s.overridden_entities.clone()).collect();
        self.overrides.list_unmatched_lines(&self.spec, &overridden)
    }

    /// Updates the flag that shows whether any batch job is open.
    pub(super) fn update_batch_job_flag(&self) -> Result<(), FactsError> {
        self.has_batch_jobs.set(self.facts.history().has_batch_requests_in_flight()?);
        Ok(())
    }
}

/// A walk that passes keys to a callback, one at a time.
pub(super) type KeyWalk<'w> =
    dyn FnMut(&mut dyn FnMut(&KeyRow) -> Result<(), WalkError>) -> Result<(), WalkError> + 'w;

/// Returns the published form of a key's row, one entry per column of the expansion.
pub(super) fn to_published_cells<'r>(
    key: &KeyRow,
    resolved: &'r [(usize, ResolvedCell<'_>)],
) -> Vec<PublishedCell<'r>> {
    let mut published = vec![PublishedCell::NotAsked; key.requested_columns.len()];
    for (column, resolved) in resolved.iter().filter(|(column, _)| key.requested_columns[*column]) {
        published[*column] =
            resolved.to_published_value().map_or(PublishedCell::Missing, PublishedCell::Value);
    }
    published
}

/// Result of [`Materializer::resolve_key_cells`].
pub(super) struct KeyCells<'r> {
    pub(super) resolved: Vec<(usize, ResolvedCell<'r>)>,
    pub(super) to_request: Vec<usize>,
    pub(super) source_columns: Vec<usize>,
    /// Indices of missing columns that are requested by an open batch job.
    pub(super) in_flight: Vec<usize>,
}

impl KeyCells<'_> {
    /// Returns the columns that are requested from a model.
    pub(super) fn list_columns_of_model(&self, model: usize) -> Vec<usize> {
        let is_own = |column: &&usize| self.find_requested_model(**column) == Some(model);
        self.to_request.iter().filter(is_own).copied().collect()
    }

    /// Returns the model from which a column is requested; `None` if the column is overridden and
    /// no sampled answer is missing.
    pub(super) fn find_requested_model(&self, column: usize) -> Option<usize> {
        self.resolved.iter().find(|(c, _)| *c == column).and_then(|(_, cell)| match cell {
            ResolvedCell::Overridden { to_ask, .. } => to_ask.map(|(_, model)| model),
            ResolvedCell::Fact { model, .. } => Some(*model),
        })
    }

    /// Returns true if the key counts toward `--limit`. Cells in open batch jobs count too;
    /// otherwise repeating the command would request more keys instead of waiting.
    pub(super) fn counts_toward_limit(&self) -> bool {
        !self.to_request.is_empty() || !self.in_flight.is_empty()
    }
}

/// Adds the cells of an entity to its bucket.
pub(super) fn add_cells(bucket: &mut Bucket, resolved: &[(usize, ResolvedCell<'_>)]) {
    for (column, cell) in resolved {
        bucket.is_open |= !matches!(cell, ResolvedCell::Fact { lookup: CellLookup::Known(_), .. });
        if let Some(state) = cell.state() {
            bucket.cells[*column].add(state, 1);
        }
    }
}

/// Current content of a cell: an override or the stored fact.
pub(super) enum ResolvedCell<'r> {
    /// The override applies. If the cell is in a calibration sample and a model's answer is
    /// missing, `to_ask` contains the reason and the model to ask. `answer` is the text of the
    /// model's own answer.
    Overridden { entry: &'r Override, to_ask: Option<(Reason, usize)>, answer: Option<String> },
    /// The stored fact, if any. `model` is the model to ask if the cell is missing.
    Fact { lookup: CellLookup<'r>, model: usize },
}

impl ResolvedCell<'_> {
    /// Returns true if a run must request the cell.
    fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Fact { lookup: CellLookup::Missing(..), .. }
                | Self::Overridden { to_ask: Some(_), .. }
        )
    }

    /// Returns the published state; `None` if the cell was never requested.
    pub(super) fn state(&self) -> Option<State> {
        match self {
            Self::Overridden { entry, .. } => Some(entry.state()),
            Self::Fact { lookup, .. } => lookup.fact().map(|fact| fact.answer.state),
        }
    }

    /// Returns the published form; `None` if the cell was never requested.
    pub(super) fn to_published_value(&self) -> Option<PublishedValue<'_>> {
        match self {
            Self::Overridden { entry, answer, .. } => Some(PublishedValue {
                state: entry.state().name(),
                value: &entry.value,
                completion: None,
                raw: answer.as_deref(),
                repair: None,
                note: entry.published_note(),
            }),
            Self::Fact { lookup, .. } => lookup.fact().map(|fact| PublishedValue {
                state: fact.answer.state.name(),
                value: &fact.answer.value,
                completion: Some(fact.completion),
                raw: fact.answer.raw.as_deref(),
                repair: fact.answer.repair.as_deref(),
                note: None,
            }),
        }
    }
}

/// Returns the text of a model's answer; `None` if the model gave no text.
fn describe_answer(answer: &Answer) -> Option<String> {
    answer.raw.clone().or_else(|| match &answer.value {
        CellValue::Nothing => None,
        CellValue::One(value) => value.to_text().map(Cow::into_owned),
        CellValue::Many(_) => Some(answer.value.to_json().to_string()),
    })
}

/// Counts the published rows whose key is no longer in any source.
pub(super) fn count_orphans(
    target: &Database,
    expansion: &Expansion,
    keys: &Keys<'_>,
) -> Result<u64, MaterializeError> {
    if !target.has_bookkeeping() {
        return Ok(0);
    }
    let hash = |text: &str| blake3::hash(text.as_bytes());
    let mut known: HashSet<blake3::Hash> = HashSet::new();
    keys.for_each(&mut |key: &KeyRow| {
        let json: Vec<serde_json::Value> =
            key.row.key.iter().map(hqdl_values::value::Value::to_json).collect();
        known.insert(hash(&serde_json::Value::Array(json).to_string()));
        Ok::<(), rusqlite::Error>(())
    })
    .map_err(|e| target.to_store_error(&e))?;
    Ok(target.count_orphans(expansion, &mut |key| known.contains(&hash(key))))
}
