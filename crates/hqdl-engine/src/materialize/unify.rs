//! Unifies answers (`unify = true`): after the cells are filled, hqdl asks the model once about
//! each distinct answer that is not in the value list.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::coverage::CoverageReport;
use super::run::Run;
use super::{MaterializeError, Materializer, Report, RunMode};
use hqdl_database::output::OutputTarget;
use hqdl_facts::{CellLookup, CellRequirements, unify};
use hqdl_model::generate::{self, Context, Event, Events, ModelRun, StopReason};
use hqdl_model::plan::{
    ColumnPlan, CostEstimator, ExpansionPlan, MAX_ITEMS, MissingRow, RowBatch, ThroughputEstimate,
};
use hqdl_model::{self as model, ModelChoice};
use hqdl_spec::Expansion;
use hqdl_values::Row;
use hqdl_values::cell::{CellValue, State};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// States of first answers that a second answer can replace. A failed request is not an answer.
const SUPERSEDED_STATES: [State; 4] =
    [State::Unknown, State::NotInList, State::Invalid, State::Refused];

/// Number of values that are unified at once. All values fit into memory (at most 200 bytes each),
/// but requests and answers need far more memory.
const UNIFY_CHUNK: usize = 10_000;

impl<'w> Materializer<'w> {
    /// Unifies the unlisted values of all expansions. Returns the positions of the expansions about
    /// whose values the model was asked.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if keys or facts cannot be read. If the run stops early, the
    /// report contains the reason.
    pub(super) fn unify_values(
        &self,
        run: &Run,
        model_run: &ModelRun,
        report: &mut Report,
    ) -> Result<Vec<usize>, MaterializeError> {
        let mut unified = Vec::new();
        let is_unified = |e: &Expansion| e.columns.iter().any(|c| c.unify);
        for (n, expansion) in self.spec.expansions.iter().enumerate().filter(|(_, e)| is_unified(e))
        {
            // Compute the coverage again, to include the answers of this run.
            let coverage = self.compute_coverage(n, false)?;
            for (column, unlisted_values) in &coverage.unlisted_values {
                if !unified.contains(&n) {
                    unified.push(n);
                }
                let unlisted_values: Vec<&str> =
                    unlisted_values.values().map(String::as_str).collect();
                for unlisted_values in unlisted_values.chunks(UNIFY_CHUNK) {
                    self.unify_column(
                        run,
                        expansion,
                        (n, *column),
                        unlisted_values,
                        model_run,
                        report,
                    )?;
                    if report.stop_reason.is_some() {
                        return Ok(unified);
                    }
                }
            }
        }
        Ok(unified)
    }

    /// Recomputes the coverage of expansions whose values were unified or answered again.
    pub(super) fn update_coverage(
        &self,
        changed: &[usize],
        coverages: &mut [CoverageReport<'w>],
        target: &OutputTarget,
    ) -> Result<(), MaterializeError> {
        for n in changed {
            if let Some(coverage) = coverages.get_mut(*n) {
                *coverage = self.compute_coverage(*n, false)?;
            }
        }
        match target.previous_database(self.database) {
            Some(db) => self.find_differences(db, coverages),
            None => Ok(()),
        }
    }

    /// Updates the report for cells whose first answer was superseded, because its value is now
    /// mapped to the value list or the cell has a second answer.
    pub(super) fn report_changed_cells(
        &self,
        changed: &[usize],
        coverages: &[CoverageReport<'_>],
        report: &mut Report,
    ) {
        for n in changed {
            let (Some(expansion), Some(coverage)) =
                (self.spec.expansions.get(*n), coverages.get(*n))
            else {
                continue;
            };
            for (column, cells) in expansion.columns.iter().zip(&coverage.cells) {
                let states: &[State] = match (&column.escalation, column.unify) {
                    (Some(_), _) => &SUPERSEDED_STATES,
                    (None, true) => &[State::NotInList],
                    (None, false) => &[],
                };
                for state in states {
                    let remaining = cells.get(*state);
                    report.cap_requested_cells(&expansion.name, &column.name, *state, remaining);
                }
            }
        }
    }

    /// Unifies some values of one column.
    fn unify_column(
        &self,
        run: &Run,
        expansion: &Expansion,
        (n, column_index): (usize, usize),
        unlisted_values: &[&str],
        model_run: &ModelRun,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let column = &expansion.columns[column_index];
        let Some(list) = &column.values else { return Ok(()) };
        let unify_expansion = Arc::new(unify::build_unify_expansion(expansion, column, list));
        let choice = model::choose_models(&self.spec, Some(&*self.model), &unify_expansion)
            .into_only_model();
        let history = self.facts.history();
        let requirements = Arc::new(choice.build_requirements(history, &unify_expansion)?);
        let missing_rows: Vec<MissingRow> = unlisted_values
            .iter()
            .map(|unlisted_value| to_missing_row(&unify_expansion, unlisted_value))
            .collect();
        let entities: Vec<_> = missing_rows.iter().map(|missing_row| &missing_row.entity).collect();
        let known = self.facts.get_records(&entities)?;
        let missing: Vec<MissingRow> = missing_rows
            .iter()
            .zip(&known)
            .filter(|(_, record)| {
                matches!(requirements.look_up_cell(record.as_ref(), 0), CellLookup::Missing(..))
            })
            .map(|(missing_row, _)| missing_row.clone())
            .collect();
        if !missing.is_empty() {
            let context = (Arc::clone(&unify_expansion), Arc::clone(&requirements), choice.clone());
            let row_batches = missing
                .chunks(choice.rows.max(1) as usize)
                .map(|missing_rows| RowBatch {
                    columns: vec![0],
                    source_columns: vec![0],
                    missing_rows: missing_rows.to_vec(),
                })
                .collect();
            self.request_decisions(run, context, row_batches, model_run, report)?;
        }
        let Some(unified) = self.requirements[n].checker(column_index).and_then(|c| c.decisions())
        else {
            return Ok(());
        };
        let known = self.facts.get_records(&entities)?;
        for (unlisted_value, record) in unlisted_values.iter().zip(&known) {
            let CellLookup::Known(fact) = requirements.look_up_cell(record.as_ref(), 0) else {
                continue;
            };
            let value = match (fact.answer.state, &fact.answer.value) {
                (State::Ok, CellValue::One(Value::Text(value))) => Some(value.as_str()),
                _ => None,
            };
            let target = (expansion, column);
            unify::store_word_meaning(
                history,
                target,
                (unlisted_value, value),
                &choice.name,
                fact.completion,
            )?;
            unified.add_decision(unlisted_value, value.map(str::to_owned));
        }
        Ok(())
    }

    /// Requests decisions about unlisted values. If the run stops, the report contains the reason.
    fn request_decisions(
        &self,
        run: &Run,
        (expansion, requirements, choice): (Arc<Expansion>, Arc<CellRequirements>, ModelChoice),
        row_batches: Vec<RowBatch>,
        model_run: &ModelRun,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let outer = Arc::clone(&run.events.listener);
        // These answers are not cells of the tables, so hide their events.
        let listener = Arc::new(move |event: &Event| {
            if matches!(event, Event::Warning(_) | Event::Failed(_)) {
                outer(event);
            }
        });
        let events = Events { listener, usage: Arc::clone(&run.events.usage) };
        let (endpoint, interrupt) = (Arc::clone(&self.model), model_run.interrupt.clone());
        // The second answers share this budget, so these requests must count toward it.
        let unify_run = ModelRun {
            budget: Arc::clone(&model_run.budget),
            ..ModelRun::new(&self.spec, endpoint, self.facts, run.id, events, interrupt)?
        };
        let unify_run = Arc::new(unify_run);
        let context = Arc::new(Context::new(&unify_run, expansion, requirements, choice));
        let (sender, receiver) = mpsc::channel(row_batches.len().max(1));
        for row_batch in row_batches {
            // The channel has capacity for all batches.
            let _ = sender.try_send((Arc::clone(&context), row_batch));
        }
        drop(sender);
        let result = run
            .runtime
            .block_on(async { tokio::spawn(generate::generate_facts(unify_run, receiver)).await });
        match result {
            Ok(Ok(())) => {}
            Ok(Err(stopped)) => report.stop_reason = Some(Arc::new(stopped)),
            Err(join_error) => {
                report.stop_reason = Some(Arc::new(StopReason::Bug(join_error.to_string())));
            }
        }
        Ok(())
    }

    /// Plans the requests that unify values: one for each known unlisted value, and at most one
    /// more for each missing cell or list item. A batch run does not unify, so it has no plan.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if the history cannot be read.
    pub(super) fn plan_unification(
        &self,
        n: usize,
        coverage: &CoverageReport<'_>,
    ) -> Result<Vec<ExpansionPlan>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let mut plans = Vec::new();
        if self.run_mode == RunMode::Batch || !expansion.columns.iter().any(|c| c.unify) {
            return Ok(plans);
        }
        for (column_index, column) in expansion.columns.iter().enumerate().filter(|(_, c)| c.unify)
        {
            let Some(list) = &column.values else { continue };
            let settings = self.spec.model_settings(self.spec.find_column_model(expansion, column));
            let reasoning =
                ThroughputEstimate::from_history(self.facts.history(), settings)?.reasoning_tokens;
            let unify_expansion = unify::build_unify_expansion(expansion, column, list);
            let choice = model::choose_models(&self.spec, Some(&*self.model), &unify_expansion)
                .into_only_model();
            let estimate = |unlisted_values: &[&str]| {
                let tokenizer = Tokenizer::for_model(&choice.tokenizer);
                let mut estimator = CostEstimator::new(&unify_expansion, choice.format, tokenizer)
                    .with_max_output(choice.max_output);
                for unlisted_values in unlisted_values.chunks(choice.rows.max(1) as usize) {
                    let missing_rows = unlisted_values
                        .iter()
                        .map(|unlisted_value| to_missing_row(&unify_expansion, unlisted_value))
                        .collect();
                    estimator.add_batch(&RowBatch {
                        columns: vec![0],
                        source_columns: vec![0],
                        missing_rows,
                    });
                }
                let column_plan = ColumnPlan { name: "value".to_owned(), ..ColumnPlan::default() };
                let mut plan = ExpansionPlan {
                    name: format!("unify {}.{}", expansion.name, column.name),
                    model: choice.tokenizer.clone(),
                    price: choice.price,
                    columns: vec![column_plan],
                    ..ExpansionPlan::default()
                };
                estimator.write_totals(&mut plan);
                plan.add_reasoning(reasoning);
                plan
            };
            let unlisted_values: Vec<&str> = coverage
                .unlisted_values
                .get(&column_index)
                .into_iter()
                .flat_map(BTreeMap::values)
                .map(String::as_str)
                .collect();
            let mut plan = estimate(&unlisted_values);
            plan.keys = unlisted_values.len() as u64;
            if let Some(value_plan) =
                plan.columns.first_mut().filter(|_| !unlisted_values.is_empty())
            {
                value_plan.missing.insert(hqdl_facts::Reason::NewRow, unlisted_values.len() as u64);
            }
            let missing = coverage.plan.columns.get(column_index).map_or(0, ColumnPlan::cell_count);
            if missing > 0 {
                // Upper bound: each missing cell gets a different unlisted value and its own
                // request. A token has at least one byte.
                let extra_requests = missing * if column.many.is_some() { MAX_ITEMS } else { 1 };
                let single = estimate(&[""]);
                plan.extra_input =
                    (single.input_tokens + unify::MAX_WORD_BYTES as u64) * extra_requests;
                plan.output_tokens.max += single.output_tokens.max * extra_requests as f64;
            }
            plans.push(plan);
        }
        Ok(plans)
    }
}

/// Returns the row of a request about one value.
fn to_missing_row(unify_expansion: &Expansion, unlisted_value: &str) -> MissingRow {
    let key = vec![Value::from(unlisted_value)];
    let entity = unify_expansion.key.build_entity(&key);
    MissingRow { row: Row { key, context: Vec::new() }, entity }
}
