//! Builds a coverage report in one walk over the keys of an expansion.

use std::collections::HashSet;
use std::sync::Arc;

use super::counts::CellCounts;
use super::coverage::{
    CoverageReport, EntityFacts, KeyCells, ResolvedCell, UnlistedValues, add_cells,
    to_published_cells,
};
use super::{MaterializeError, Materializer, WalkError};
use hqdl_database::Database;
use hqdl_database::buckets::{BucketSnapshot, ChangedBuckets};
use hqdl_database::keys::{KeyPositions, KeyRow, Keys, for_each_source_key};
use hqdl_database::versions::{Checksums, RowVersion};
use hqdl_facts::unify::MAX_WORD_BYTES;
use hqdl_facts::{CellLookup, Reason, Record};
use hqdl_model::ModelChoice;
use hqdl_model::generate::{ExpansionKeys, KeyHashes};
use hqdl_model::plan::{
    Batcher, ColumnPlan, CostEstimator, ExpansionPlan, MeasuredAnswers, MissingRow,
    ThroughputEstimate,
};
use hqdl_spec::Expansion;
use hqdl_values::cell::{Answer, Tally};
use hqdl_values::key::Entity;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

impl<'w> Materializer<'w> {
    /// Computes the coverage of the given keys; with `priced`, also the cost of requesting the
    /// missing cells.
    pub(super) fn compute_key_coverage(
        &self,
        n: usize,
        keys: Keys<'w>,
        priced: bool,
    ) -> Result<CoverageReport<'w>, MaterializeError> {
        // Read the position before any fact, so that later facts are never missed.
        let (_, last_row) = self.facts.history().load_journal_position()?;
        self.update_batch_job_flag()?;
        let records_id = self.facts.sync().records_id()?;
        let mut builder = CoverageBuilder::new(self, n, priced).with_buckets_for(&keys, records_id);
        self.for_each_key(&keys, &mut |key: &KeyRow, facts: EntityFacts| {
            builder.visit_key(key, facts.as_ref())
        })
        .map_err(|h| h.into_materialize_error(self.database))?;
        builder.finish(keys, last_row)
    }
}

/// Sums over the keys visited so far; [`CoverageReport`] documents the fields.
pub(super) struct CoverageBuilder<'b, 'w> {
    materializer: &'b Materializer<'w>,
    /// Index of the expansion in the spec.
    n: usize,
    plan: ExpansionPlan,
    model_plans: Vec<ExpansionPlan>,
    /// Costs for each model of the expansion; empty if costs are not computed.
    costs: Vec<CostWalk<'b>>,
    possible_cells: Vec<u64>,
    cells: Vec<Tally>,
    known: u64,
    selected_keys: u64,
    unasked: Vec<u64>,
    unasked_refreshes: Vec<u64>,
    in_flight: Vec<u64>,
    in_flight_refreshes: Vec<u64>,
    checksums: Checksums,
    buckets: BucketSnapshot,
    unrequested_counts: CellCounts,
    pending_keys: [KeyPositions; 2],
    /// Number of keys that count toward `--limit`.
    requested_keys: u64,
    /// Requested entities that have other spellings.
    respelled: HashSet<Entity>,
    overridden_entities: HashSet<Entity>,
    unlisted_values: UnlistedValues,
    /// Hashes of the keys; `None` if the keys can be read from the database later.
    key_hashes: Option<KeyHashes>,
}

/// Cost of requesting the missing cells from one model.
struct CostWalk<'e> {
    requests: RequestCost<'e>,
    /// Cost of second answers to cells that have no first answer yet.
    possible: Option<PossibleCost<'e>>,
}

/// Cost of the requests for some rows.
pub(super) struct RequestCost<'e> {
    estimator: CostEstimator<'e>,
    batcher: Batcher<'e>,
    /// Whether requests include all columns of a row, even the known ones.
    whole_rows: bool,
}

impl<'b, 'w> CoverageBuilder<'b, 'w> {
    /// Returns a builder that has visited no key yet. With `priced`, the builder also computes the
    /// cost of requesting the missing cells.
    pub(super) fn new(materializer: &'b Materializer<'w>, n: usize, priced: bool) -> Self {
        let expansion = &materializer.spec.expansions[n];
        let columns = expansion.columns.len();
        let models = &materializer.models[n];
        let costs = models.choices().iter().enumerate().filter(|_| priced);
        let costs = costs.map(|(model, choice)| {
            let is_second = models.second_answer_positions().contains(&model);
            CostWalk::new(materializer, expansion, choice, is_second)
        });
        let column_plan =
            |name: &String| ColumnPlan { name: name.clone(), ..ColumnPlan::default() };
        let columns_plan: Vec<ColumnPlan> =
            expansion.columns.iter().map(|c| column_plan(&c.name)).collect();
        let model_plan = |choice: &ModelChoice| ExpansionPlan {
            model: choice.tokenizer.clone(),
            price: choice.price,
            columns: columns_plan.clone(),
            ..ExpansionPlan::default()
        };
        Self {
            materializer,
            n,
            plan: ExpansionPlan {
                name: expansion.name.clone(),
                columns: columns_plan.clone(),
                ..ExpansionPlan::default()
            },
            model_plans: models.choices().iter().map(model_plan).collect(),
            costs: costs.collect(),
            possible_cells: vec![0; models.choices().len()],
            cells: vec![Tally::default(); columns],
            known: 0,
            selected_keys: 0,
            unasked: vec![0; columns],
            unasked_refreshes: vec![0; columns],
            in_flight: vec![0; columns],
            in_flight_refreshes: vec![0; columns],
            checksums: Checksums::default(),
            buckets: BucketSnapshot::default(),
            unrequested_counts: CellCounts::with_columns(columns),
            pending_keys: [KeyPositions::default(), KeyPositions::default()],
            requested_keys: 0,
            respelled: HashSet::new(),
            overridden_entities: HashSet::new(),
            unlisted_values: UnlistedValues::new(),
            key_hashes: materializer.database.server_url().map(|_| KeyHashes::default()),
        }
    }

    /// Sets up empty buckets: with the layout of the published snapshot if only changed buckets are
    /// visited, otherwise for all keys.
    fn with_buckets_for(mut self, keys: &Keys<'_>, records_id: i64) -> Self {
        let columns = self.cells.len();
        self.buckets = match &keys.changed {
            Some(changed) => changed.empty_snapshot(),
            None => {
                BucketSnapshot { records_id, ..BucketSnapshot::for_keys(keys.report.keys, columns) }
            }
        };
        self
    }

    /// Adds a key with its entity's facts.
    pub(super) fn visit_key(
        &mut self,
        key: &KeyRow,
        record: Option<&Record>,
    ) -> Result<(), WalkError> {
        let (materializer, n) = (self.materializer, self.n);
        if !key.is_first_spelling {
            let columns = &key.requested_columns;
            let resolved = materializer.resolve_cells(n, key, columns, record);
            let version = self.add_to_checksums(key, &resolved);
            let bucket = self.buckets.add_key(&key.row.key, &key.entity, &key.source_rows, false);
            if self.respelled.contains(&key.entity) {
                self.pending_keys[1].add(key.position);
            } else {
                bucket.add_version(version);
            }
            return Ok(());
        }
        self.plan.keys += 1;
        self.selected_keys += u64::from(key.is_selected);
        if let Some(hashes) = &mut self.key_hashes {
            hashes.insert(&key.row.key);
        }
        if materializer.overrides.has_entity(n, &key.entity) {
            self.overridden_entities.insert(key.entity.clone());
        }
        let columns = &key.entity_requested_columns;
        let key_cells =
            materializer.resolve_key_cells(n, key, columns, record, self.requested_keys)?;
        let version = self.add_to_checksums(key, &key_cells.resolved);
        let bucket = self.buckets.add_key(&key.row.key, &key.entity, &key.source_rows, true);
        if key_cells.counts_toward_limit() {
            self.requested_keys += 1;
            self.pending_keys[0].add(key.position);
            if key.has_other_spellings {
                self.respelled.insert(key.entity.clone());
            }
        } else {
            bucket.add_version(version);
            add_cells(bucket, &key_cells.resolved);
            for (column, resolved) in &key_cells.resolved {
                self.unrequested_counts.add_cell(*column, resolved.state());
            }
        }
        for (column, resolved) in &key_cells.resolved {
            self.count_cell(key, &key_cells, *column, resolved);
        }
        for (model, cost) in self.costs.iter_mut().enumerate() {
            let columns = key_cells.list_columns_of_model(model);
            if !columns.is_empty() {
                cost.requests.add_row(key, columns, &key_cells.source_columns);
            }
            let second = materializer.find_possible_columns(n, model, &key_cells);
            self.possible_cells[model] += second.len() as u64;
            if let Some(possible) = cost.possible.as_mut().filter(|_| !second.is_empty()) {
                possible.add_row(key, &second, &key_cells.source_columns);
            }
        }
        Ok(())
    }

    /// Adds a row to the checksums. Returns the row's version; `None` if the row is not published.
    fn add_to_checksums(
        &mut self,
        key: &KeyRow,
        resolved: &[(usize, ResolvedCell<'_>)],
    ) -> Option<i64> {
        let version = RowVersion::from_row(&key.row, &to_published_cells(key, resolved));
        self.checksums.add_row(&version);
        version.version
    }

    fn count_cell(
        &mut self,
        key: &KeyRow,
        key_cells: &KeyCells<'_>,
        column: usize,
        resolved: &ResolvedCell<'_>,
    ) {
        let Some(column_plan) = self.plan.columns.get_mut(column) else { return };
        match resolved {
            ResolvedCell::Overridden { to_ask: Some((reason, model)), .. }
                if key_cells.to_request.contains(&column) =>
            {
                *column_plan.missing.entry(*reason).or_insert(0) += 1;
                let model_plan = &mut self.model_plans[*model].columns[column];
                *model_plan.missing.entry(*reason).or_insert(0) += 1;
            }
            ResolvedCell::Overridden { entry, .. } => {
                column_plan.overridden += 1;
                self.known += 1;
                self.cells[column].add(entry.state(), 1);
            }
            ResolvedCell::Fact { lookup: CellLookup::Known(fact), .. } => {
                column_plan.known += 1;
                self.known += 1;
                self.cells[column].add(fact.answer.state, 1);
                self.add_unlisted_words(column, &fact.answer);
                let model = self.materializer.requirements[self.n].first_model(column);
                if let Some(cost) = self.costs.get_mut(model) {
                    cost.requests.estimator.record_cell_length(column, &fact.answer.value);
                }
            }
            ResolvedCell::Fact { lookup: CellLookup::Missing(reason, fact), model } => {
                if key_cells.to_request.contains(&column) {
                    *column_plan.missing.entry(*reason).or_insert(0) += 1;
                    let model_plan = &mut self.model_plans[*model].columns[column];
                    *model_plan.missing.entry(*reason).or_insert(0) += 1;
                    // `unify` may read the first answer before another model gives a second answer.
                    if let (Reason::SecondAnswer, Some(fact)) = (reason, fact) {
                        self.add_unlisted_words(column, &fact.answer);
                    }
                    return;
                }
                self.unasked[column] += 1;
                let is_refresh = matches!(reason, Reason::Refreshed | Reason::Retried);
                if key_cells.in_flight.contains(&column) {
                    self.in_flight[column] += 1;
                    self.in_flight_refreshes[column] += u64::from(is_refresh);
                } else {
                    self.unasked_refreshes[column] += u64::from(is_refresh && key.is_selected);
                }
            }
        }
    }

    /// Adds the words of an answer that are not in the column's value list. Skips columns that are
    /// not selected.
    fn add_unlisted_words(&mut self, column: usize, answer: &Answer) {
        if !self.materializer.columns[self.n][column] {
            return;
        }
        let checker = self.materializer.requirements[self.n].checker(column);
        let unlisted = checker.map(|c| c.find_unlisted_words(answer)).unwrap_or_default();
        for word in unlisted.into_iter().filter(|w| w.len() <= MAX_WORD_BYTES) {
            let words = self.unlisted_values.entry(column).or_default();
            words.entry(word.to_lowercase()).or_insert(word);
        }
    }

    /// Returns the report. Call this after all keys were visited.
    pub(super) fn finish(
        mut self,
        keys: Keys<'_>,
        last_row: i64,
    ) -> Result<CoverageReport<'_>, MaterializeError> {
        let models = &self.materializer.models[self.n];
        for (model, cost) in std::mem::take(&mut self.costs).into_iter().enumerate() {
            let name = models.choices()[model].model.as_deref();
            let settings = self.materializer.spec.model_settings(name);
            let history = self.materializer.facts.history();
            let throughput = ThroughputEstimate::from_history(history, settings)?;
            let requirements = self.materializer.requirements[self.n].model_requirements(model);
            let columns = self.plan.columns.len();
            let identity_ids: Vec<_> = (0..columns).map(|c| requirements.identity_id(c)).collect();
            let measured = MeasuredAnswers::from_history(history, settings, &identity_ids)?;
            let reasoning = throughput.reasoning_tokens;
            cost.write_totals(&mut self.model_plans[model], reasoning, measured.as_ref());
        }
        for (column, plan) in self.plan.columns.iter().enumerate() {
            let first = models.column_models(column).first;
            let model_plan = &mut self.model_plans[first].columns[column];
            (model_plan.known, model_plan.overridden) = (plan.known, plan.overridden);
        }
        let keys_hash = match &keys.changed {
            Some(changed) => changed.source_sum(),
            None => self.buckets.source_sum(),
        };
        if let Some(changed) = &keys.changed {
            self.add_unvisited_buckets(changed);
        }
        let expansion_keys = match self.key_hashes.take() {
            Some(hashes) => ExpansionKeys::from(hashes),
            None => self.read_keys_on_demand(),
        };
        Ok(CoverageReport {
            keys,
            plan: self.plan,
            model_plans: self.model_plans,
            possible_cells: self.possible_cells,
            cells: self.cells,
            known: self.known,
            unasked: self.unasked,
            unasked_refreshes: self.unasked_refreshes,
            in_flight: self.in_flight,
            in_flight_refreshes: self.in_flight_refreshes,
            checksums: self.checksums,
            buckets: self.buckets,
            unvisited: None,
            keys_hash,
            last_row,
            unrequested_counts: self.unrequested_counts,
            pending_keys: self.pending_keys,
            differences: None,
            overridden_entities: self.overridden_entities,
            expansion_keys: Arc::new(expansion_keys),
            unlisted_values: self.unlisted_values,
            filter_error: None,
            selected_keys: self.selected_keys,
        })
    }
}

impl CoverageBuilder<'_, '_> {
    /// Adds the buckets whose keys were not visited because all of their cells are known.
    fn add_unvisited_buckets(&mut self, changed: &ChangedBuckets) {
        for (_, bucket) in changed.unvisited_buckets() {
            self.plan.keys += bucket.entities;
            for (column, cells) in bucket.cells.iter().enumerate() {
                self.plan.columns[column].known += cells.total();
                self.known += cells.total();
                self.cells[column].merge(cells);
                self.unrequested_counts.cells[column].merge(cells);
            }
        }
        self.buckets.add_unvisited_buckets(changed);
    }

    /// Returns the keys of the expansion. They are read from the database only when they are
    /// needed.
    fn read_keys_on_demand(&self) -> ExpansionKeys {
        let (path, expansion) = (
            self.materializer.database.path().to_owned(),
            self.materializer.spec.expansions[self.n].clone(),
        );
        ExpansionKeys::from_loader(move |hashes| {
            let mut insert = |_: usize, key: &[Value]| hashes.insert(key);
            Database::open(&path).is_ok_and(|database| {
                for_each_source_key(&database, &expansion, &mut insert).is_ok()
            })
        })
    }
}

impl<'e> CostWalk<'e> {
    fn new(
        materializer: &Materializer<'_>,
        expansion: &'e Expansion,
        choice: &ModelChoice,
        is_second: bool,
    ) -> Self {
        let new_cost = || RequestCost::new(materializer, expansion, choice);
        let possible = is_second.then(|| PossibleCost {
            columns: expansion.columns.iter().map(|_| new_cost()).collect(),
            combination: new_cost(),
            rows: 0,
        });
        Self { requests: new_cost(), possible }
    }

    /// Writes the cost into a plan, with the expected number of reasoning tokens per request and the
    /// figures of earlier requests.
    fn write_totals(
        self,
        plan: &mut ExpansionPlan,
        reasoning: f64,
        measured: Option<&MeasuredAnswers>,
    ) {
        self.requests.write_totals(plan, reasoning, measured);
        if let Some(possible) = self.possible {
            possible.add_to_maximum(plan, reasoning);
        }
    }
}

impl<'e> RequestCost<'e> {
    pub(super) fn new(
        materializer: &Materializer<'_>,
        expansion: &'e Expansion,
        choice: &ModelChoice,
    ) -> Self {
        let tokenizer = Tokenizer::for_model(&choice.tokenizer);
        let endpoint = choice.endpoint.as_ref().unwrap_or(&materializer.model);
        Self {
            estimator: CostEstimator::new(expansion, choice.format, tokenizer)
                .with_max_output(choice.max_output)
                .with_media_model(&choice.tokenizer)
                .with_extra_input(choice.extra_input),
            batcher: Batcher::new(expansion, choice.rows),
            whole_rows: endpoint.answers_whole_rows(),
        }
    }

    /// Adds the request for missing columns of a key.
    pub(super) fn add_row(&mut self, key: &KeyRow, columns: Vec<usize>, source_columns: &[usize]) {
        let missing_row = MissingRow { row: key.row.clone(), entity: key.fact_entity().clone() };
        // Count the columns that the prompt will contain.
        let prompt_columns = if self.whole_rows { source_columns.to_vec() } else { columns };
        if let Some(row_batch) =
            self.batcher.push(prompt_columns, source_columns.to_vec(), missing_row)
        {
            self.estimator.add_batch(&row_batch);
        }
    }

    pub(super) fn write_totals(
        mut self,
        plan: &mut ExpansionPlan,
        reasoning: f64,
        measured: Option<&MeasuredAnswers>,
    ) {
        self.batcher.finish_batches().iter().for_each(|batch| self.estimator.add_batch(batch));
        let expected = measured
            .filter(|_| reasoning <= 0.0)
            .map(|measured| self.estimator.estimate_output(measured.answered_by_column()));
        self.estimator.write_totals(plan);
        if let Some(measured) = measured.filter(|_| plan.requests > 0) {
            plan.apply_measured(measured, expected);
        }
        plan.add_reasoning(reasoning);
    }
}

/// Upper bound on the cost of second answers, in case every cell needs one.
///
/// Two rows can share a request only if the same combination of their columns needs a second
/// answer. The requests cost at most as much as separate requests for each column, plus one request
/// for each combination.
struct PossibleCost<'e> {
    /// Requests for each column alone.
    columns: Vec<RequestCost<'e>>,
    /// One request for one row with all columns.
    combination: RequestCost<'e>,
    rows: u64,
}

impl PossibleCost<'_> {
    fn add_row(&mut self, key: &KeyRow, columns: &[usize], source_columns: &[usize]) {
        for column in columns {
            self.columns[*column].add_row(key, vec![*column], source_columns);
        }
        if self.rows == 0 {
            self.combination.add_row(key, source_columns.to_vec(), source_columns);
        }
        self.rows += 1;
    }

    /// Adds the cost to the maximum of a plan.
    fn add_to_maximum(self, plan: &mut ExpansionPlan, reasoning: f64) {
        let mut add_times = |cost: RequestCost<'_>, times: u64| {
            let mut part = ExpansionPlan::default();
            cost.write_totals(&mut part, reasoning, None);
            plan.extra_input += part.input_tokens * times;
            plan.output_tokens.max += part.output_tokens.max * times as f64;
            part.requests
        };
        let mut column_count = 0;
        for cost in self.columns {
            column_count += u32::from(add_times(cost, 1) > 0);
        }
        if column_count > 1 {
            let combinations = 1_u64.checked_shl(column_count).map_or(u64::MAX, |all| all - 1);
            add_times(self.combination, combinations.min(self.rows));
        }
    }
}
