//! Web searches for evidence. Before a run asks about rows, it searches the web for them. The
//! results are stored like answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::coverage::CoverageReport;
use super::run::Run;
use super::{MaterializeError, Materializer, Report};
use crate::retrieval::search::StoredSearches;
use hqdl_facts::FactsError;
use hqdl_model::generate::{self, Context, Event, Events, ModelRun, StopReason};
use hqdl_model::plan::{ColumnPlan, Estimate, ExpansionPlan, MissingRow, RowBatch};
use hqdl_model::search::{SearchEndpoint, build_search_choice};
use hqdl_spec::evidence::SearchSettings;
use hqdl_values::key::Entity;
use hqdl_values::tokens::Tokenizer;

/// Searches whose results are not stored, for the rows with missing cells.
struct MissingSearches {
    stored: StoredSearches,
    /// Rows of the searches, by entity. Several rows with missing cells can share a search.
    searches: BTreeMap<Entity, MissingRow>,
    /// For each model, the number of rows without results that the model will be asked about.
    rows: Vec<u64>,
}

impl Materializer<'_> {
    /// Searches the web for the rows that a run is going to ask about, unless the results are
    /// stored already. If the run stops, the report contains the reason. A failed search does not
    /// stop the run; only the search's own rows fail.
    pub(super) fn search_evidence(
        &self,
        run: &Run,
        model_run: &ModelRun,
        coverages: &[CoverageReport<'_>],
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        for (n, coverage) in coverages.iter().enumerate() {
            let Some(settings) = self.spec.expansions[n].search_settings() else { continue };
            let MissingSearches { stored, searches: rows, .. } =
                self.find_missing_searches(n, coverage, settings)?;
            if rows.is_empty() {
                continue;
            }
            let endpoint = Arc::new(SearchEndpoint::new(settings)?);
            let choice = build_search_choice(settings, Some(endpoint));
            // The results are not cells of the tables, so hide their events.
            let outer = Arc::clone(&run.events.listener);
            let listener = Arc::new(move |event: &Event| {
                if matches!(event, Event::Warning(_) | Event::Failed(_)) {
                    outer(event);
                }
            });
            let events = Events { listener, usage: Arc::clone(&run.events.usage) };
            let (model, interrupt) = (Arc::clone(&self.model), model_run.interrupt.clone());
            // The requests for answers share this budget, so the searches must count toward it.
            let search_run = ModelRun {
                budget: Arc::clone(&model_run.budget),
                ..ModelRun::new(&self.spec, model, self.facts, run.id, events, interrupt)?
            };
            let (expansion, requirements) = (stored.expansion, stored.requirements);
            let search_run = Arc::new(search_run);
            let context = Context::new(&search_run, expansion, requirements, choice);
            let context = Arc::new(context);
            let (sender, batches) = mpsc::channel(rows.len());
            for (_, missing_row) in rows {
                // The channel has capacity for all rows.
                let row_batch = RowBatch {
                    columns: vec![0],
                    source_columns: vec![0],
                    missing_rows: vec![missing_row],
                };
                let _ = sender.try_send((Arc::clone(&context), row_batch));
            }
            drop(sender);
            let searches = generate::generate_facts(search_run, batches);
            match run.runtime.block_on(async { tokio::spawn(searches).await }) {
                Ok(Ok(()) | Err(StopReason::Gone(_))) => {}
                Ok(Err(stopped)) => report.stop_reason = Some(Arc::new(stopped)),
                Err(join_error) => {
                    report.stop_reason = Some(Arc::new(StopReason::Bug(join_error.to_string())));
                }
            }
            if report.has_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Plans the searches of an expansion. Adds the size of their results to the maximum input of
    /// the requests that show them.
    ///
    /// # Errors
    /// [`MaterializeError`] if keys or facts cannot be read.
    pub(super) fn plan_searches(
        &self,
        n: usize,
        coverage: &CoverageReport<'_>,
        plans: &mut [ExpansionPlan],
    ) -> Result<Option<ExpansionPlan>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let (Some(settings), Some(evidence)) = (expansion.search_settings(), &expansion.evidence)
        else {
            return Ok(None);
        };
        let missing = self.find_missing_searches(n, coverage, settings)?;
        let searches = missing.searches.len() as u64;
        for (model, plan) in plans.iter_mut().enumerate() {
            // Each request has one row. Its results are not known yet, so assume the maximum.
            let possible = coverage.possible_cells[model];
            let unknown = missing.rows.get(model).copied().unwrap_or_default();
            plan.extra_input += evidence.max_tokens * (unknown + possible);
        }
        let choice = build_search_choice(settings, None);
        let mut column = ColumnPlan { name: "results".to_owned(), ..ColumnPlan::default() };
        if searches > 0 {
            column.missing.insert(hqdl_facts::Reason::NewRow, searches);
        }
        let tokens = searches as f64;
        Ok(Some(ExpansionPlan {
            name: format!("search {}", expansion.name),
            model: choice.name,
            price: choice.price,
            keys: searches,
            columns: vec![column],
            requests: searches,
            output_tokens: Estimate { low: tokens, likely: tokens, max: tokens },
            ..ExpansionPlan::default()
        }))
    }

    /// Returns the searches whose results are not stored, for the rows with missing cells.
    fn find_missing_searches(
        &self,
        n: usize,
        coverage: &CoverageReport<'_>,
        settings: &SearchSettings,
    ) -> Result<MissingSearches, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let model = self.spec.model_settings(expansion.model.as_deref());
        let tokenizer = Tokenizer::for_model(&model.name);
        let stored = StoredSearches::new(settings, self.facts, tokenizer)?;
        let (mut rows, mut failure) = (BTreeMap::new(), None::<FactsError>);
        let mut unknown = vec![0; self.models[n].choices().len()];
        for (model, unknown) in unknown.iter_mut().enumerate() {
            self.for_each_row_batch((n, model), coverage, &mut |row_batch| {
                for missing_row in row_batch.missing_rows {
                    let shown = expansion.reduce_to_key_part(&missing_row.row.key);
                    let query =
                        shown.build_evidence_query(&expansion.build_shown_row(&missing_row.row));
                    match stored.find_results(&query) {
                        Ok(Some(_)) => {}
                        Ok(None) => {
                            *unknown += 1;
                            let (row, entity) = stored.build_row(&query);
                            rows.insert(entity.clone(), MissingRow { row, entity });
                        }
                        Err(error) => failure = Some(error),
                    }
                }
                Ok(())
            })?;
        }
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(MissingSearches { stored, searches: rows, rows: unknown }),
        }
    }
}
