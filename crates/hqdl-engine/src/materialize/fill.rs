//! Requests the missing cells live, without the Batch API. The calling thread walks the keys; the
//! runtime's threads send the requests.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::{mpsc, watch};
use tracing::info;

use super::coverage::{CoverageReport, EntityFacts};
use super::run::Run;
use super::{MaterializeError, Materializer, Report, WalkError};
use hqdl_database::keys::KeyRow;
use hqdl_model::generate::{self, Context, Event, ModelRun, StopReason};
use hqdl_model::plan::{Batcher, MissingRow, RowBatch};

impl Materializer<'_> {
    /// Starts sending the requests of a run.
    pub(super) fn start_model_run(
        &self,
        run: &Run,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Arc<ModelRun>, MaterializeError> {
        let (model, events) = (Arc::clone(&self.model), run.events.clone());
        let model_run =
            ModelRun::new(&self.spec, model, self.facts, run.id, events, interrupt.clone())?;
        Ok(Arc::new(model_run))
    }

    /// Requests the first answers of the missing cells of all expansions, and adds the results to
    /// the report.
    pub(super) fn fill_cells(
        &self,
        run: &Run,
        model_run: &Arc<ModelRun>,
        coverages: &[CoverageReport<'_>],
        report: &mut Report,
    ) {
        for (n, coverage) in coverages.iter().enumerate() {
            let firsts = self.models[n].first_positions();
            let cells =
                firsts.clone().map(|model| coverage.count_missing_cells_of_model(model)).sum();
            if cells == 0 {
                continue;
            }
            let expansion = self.spec.expansions[n].name.clone();
            (run.events.listener)(&Event::Begin { expansion, cells });
            for model in firsts {
                let cells = coverage.count_missing_cells_of_model(model);
                self.fill_from_model((n, model), (coverage, cells), run, model_run, report);
                if report.stop_reason.is_some() || report.failure.is_some() {
                    break;
                }
            }
            if report.stop_reason.is_some() || report.failure.is_some() {
                break;
            }
        }
        report.answered_by_others = model_run.answered_by_others.load(Ordering::Relaxed);
        report.in_doubt = model_run.budget.unconfirmed_cost();
    }

    /// Requests second answers (`escalate`) for the keys of the coverage reports, and adds the
    /// results to the report. Each model is asked once, after the models whose answers determine
    /// its cells. Returns the positions of the expansions with second answers.
    pub(super) fn escalate_cells(
        &self,
        run: &Run,
        model_run: &Arc<ModelRun>,
        coverages: &[CoverageReport<'_>],
        report: &mut Report,
    ) -> Result<Vec<usize>, MaterializeError> {
        let mut escalated = Vec::new();
        for (n, coverage) in coverages.iter().enumerate() {
            let notes = self.check_logprobs(n)?;
            notes.into_iter().for_each(|note| (run.events.listener)(&Event::Warning(note)));
            self.ask_second_models(n, run, model_run, coverage, report, &mut escalated)?;
            if report.has_stopped() {
                break;
            }
            // The models have now answered the sample, which determines the other cells that need a
            // second answer.
            if self.calibrate_after_sample(n)? {
                let coverage = self.compute_coverage(n, false)?;
                self.ask_second_models(n, run, model_run, &coverage, report, &mut escalated)?;
                if report.has_stopped() {
                    break;
                }
            }
        }
        report.answered_by_others = model_run.answered_by_others.load(Ordering::Relaxed);
        report.in_doubt = model_run.budget.unconfirmed_cost();
        Ok(escalated)
    }

    /// Requests the second answers of an expansion. If there are any to request, adds the expansion
    /// to `escalated`.
    fn ask_second_models(
        &self,
        n: usize,
        run: &Run,
        model_run: &Arc<ModelRun>,
        coverage: &CoverageReport<'_>,
        report: &mut Report,
        escalated: &mut Vec<usize>,
    ) -> Result<(), MaterializeError> {
        for model in self.models[n].second_answer_positions() {
            // Count the cells again, because they depend on the answers of this run.
            let mut cells = 0;
            self.for_each_row_batch((n, model), coverage, &mut |row_batch| {
                cells += (row_batch.columns.len() * row_batch.missing_rows.len()) as u64;
                Ok(())
            })?;
            if cells == 0 {
                continue;
            }
            let expansion = self.spec.expansions[n].name.clone();
            (run.events.listener)(&Event::Begin { expansion, cells });
            escalated.push(n);
            self.fill_from_model((n, model), (coverage, cells), run, model_run, report);
            if report.has_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Requests the missing cells of an expansion from one of its models, and adds the results to
    /// the report. `cells` is the number of these cells.
    fn fill_from_model(
        &self,
        (n, model): (usize, usize),
        (coverage, cells): (&CoverageReport<'_>, u64),
        run: &Run,
        model_run: &Arc<ModelRun>,
        report: &mut Report,
    ) {
        if cells == 0 {
            return;
        }
        let (expansion, choice) = (&self.spec.expansions[n], &self.models[n].choices()[model]);
        info!(run = run.id.get(), expansion = expansion.name, cells, model = choice.name, "asks");
        let requirements = Arc::clone(self.requirements[n].model_requirements(model));
        let context =
            Context::new(model_run, Arc::new(expansion.clone()), requirements, choice.clone());
        let known_keys = Some(Arc::clone(&coverage.expansion_keys));
        let context = Arc::new(Context { skip_batched: true, known_keys, ..context });
        let (sender, row_batches) = mpsc::channel(2 * self.spec.limits.concurrency as usize);
        let task = run.runtime.spawn(generate::generate_facts(Arc::clone(model_run), row_batches));
        // Walk the keys on this thread, because a SQLite connection stays on one thread.
        let (mut passed_cells, mut was_sent) = (0, true);
        let walked = self.for_each_row_batch((n, model), coverage, &mut |row_batch| {
            passed_cells += (row_batch.columns.len() * row_batch.missing_rows.len()) as u64;
            sender.blocking_send((Arc::clone(&context), row_batch)).map_err(|_| {
                was_sent = false;
                WalkError::Closed
            })
        });
        drop(sender);
        if walked.is_ok() && was_sent {
            // Other processes have answered the remaining cells since the coverage was computed.
            model_run
                .answered_by_others
                .fetch_add(cells.saturating_sub(passed_cells), Ordering::Relaxed);
        }
        match run.runtime.block_on(task) {
            Ok(Ok(())) => {}
            Ok(Err(stopped)) => report.stop_reason = Some(Arc::new(stopped)),
            Err(join_error) => {
                report.stop_reason = Some(Arc::new(StopReason::Bug(join_error.to_string())));
            }
        }
        report.failure = walked.err();
        let column_usage = context.columns.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let names = expansion.columns.iter().map(|c| c.name.clone());
        let to_usage_entry = |(name, usage)| (expansion.name.clone(), name, usage);
        report.add_answers(&names.zip(column_usage).map(to_usage_entry).collect::<Vec<_>>());
    }

    /// Calls `on_batch` with batches of the rows that one of an expansion's models must answer.
    /// Walks only the keys with missing cells, and skips cells that other processes have answered
    /// in the meantime.
    pub(super) fn for_each_row_batch(
        &self,
        (n, model): (usize, usize),
        coverage: &CoverageReport<'_>,
        on_batch: &mut dyn FnMut(RowBatch) -> Result<(), WalkError>,
    ) -> Result<(), MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let mut batcher = Batcher::new(expansion, self.models[n].choices()[model].rows);
        let mut requested_keys = 0;
        let [first_spellings, _] = &coverage.pending_keys;
        let mut walk = |on_key: &mut dyn FnMut(&KeyRow) -> Result<(), WalkError>| {
            coverage.keys.for_each_key_at(first_spellings, on_key)
        };
        let mut walked =
            self.for_each_key_in(&mut walk, &mut |key: &KeyRow, facts: EntityFacts| {
                let record = facts;
                let mut key_cells = self.resolve_key_cells(
                    n,
                    key,
                    &key.entity_requested_columns,
                    record.as_ref(),
                    requested_keys,
                )?;
                requested_keys += u64::from(key_cells.counts_toward_limit());
                key_cells.to_request = key_cells.list_columns_of_model(model);
                if key_cells.to_request.is_empty() {
                    return Ok(());
                }
                let missing_row =
                    MissingRow { row: key.row.clone(), entity: key.fact_entity().clone() };
                match batcher.push(key_cells.to_request, key_cells.source_columns, missing_row) {
                    Some(row_batch) => on_batch(row_batch),
                    None => Ok(()),
                }
            });
        if walked.is_ok() {
            walked = batcher.finish_batches().into_iter().try_for_each(on_batch);
        }
        match walked {
            // If the receiver has closed the channel, the receiver reports the reason.
            Ok(()) | Err(WalkError::Closed) => Ok(()),
            Err(halt) => Err(halt.into_materialize_error(self.database)),
        }
    }
}
