//! Computes the remaining budget and the cost of the missing cells.

use super::coverage::CoverageReport;
use super::{MaterializeError, Materializer, RunMode};
use hqdl_facts::FactsError;
use hqdl_model::ExpansionModels;
use hqdl_model::budget::load_run_caps;
use hqdl_model::generate::{Event, Listener};
use hqdl_model::plan::{BudgetLeft, Plan, ThroughputEstimate};
use hqdl_spec::Provider;
use hqdl_values::tokens::Tokenizer;

impl<'w> Materializer<'w> {
    /// Adds the cost, the duration and the remaining budget to a plan.
    pub(super) fn add_plan_costs(&self, plan: &mut Plan) -> Result<(), MaterializeError> {
        let is_replayed = self.spec.model.provider == Provider::Replay;
        let throughput = (!is_replayed)
            .then(|| ThroughputEstimate::from_history(self.facts.history(), &self.spec.model));
        let throughput = throughput.transpose()?;
        match self.run_mode {
            RunMode::Batch => plan.estimate_batch_cost(&self.spec.limits),
            _ => plan.estimate_cost(&self.spec.limits, throughput),
        }
        plan.budget_left = self.budget_left()?;
        Ok(())
    }

    /// Sends a warning if the budget does not cover the plan, before any request is made. Returns
    /// the reports, with the cost computed if there is a budget.
    pub(super) fn warn_if_over_budget(
        &self,
        coverages: Vec<CoverageReport<'w>>,
        listener: &Listener,
    ) -> Result<Vec<CoverageReport<'w>>, MaterializeError> {
        if self.budget_left()? == BudgetLeft::default() {
            return Ok(coverages);
        }
        let with_cost = |(n, coverage): (usize, CoverageReport<'w>)| {
            let priced = self.compute_key_coverage(n, coverage.keys, true)?;
            // Publishing looks up all answers again, including those that arrived after the first
            // walk.
            let CoverageReport { unvisited, last_row, .. } = coverage;
            Ok::<_, MaterializeError>(CoverageReport { unvisited, last_row, ..priced })
        };
        let coverages: Vec<CoverageReport<'w>> =
            coverages.into_iter().enumerate().map(with_cost).collect::<Result<_, _>>()?;
        let mut expansions = Vec::new();
        for (n, coverage) in coverages.iter().enumerate() {
            let mut plans = coverage.split_plan(&self.models[n]);
            expansions.extend(self.plan_searches(n, coverage, &mut plans)?);
            expansions.extend(plans);
            expansions.extend(self.plan_unification(n, coverage)?);
        }
        let mut plan =
            Plan { expansions, is_counted: self.has_exact_token_counts(), ..Plan::default() };
        self.add_plan_costs(&mut plan)?;
        if let Some(warning) = plan.budget_warning() {
            listener(&Event::Warning(warning));
        }
        Ok(coverages)
    }

    /// Returns true if hqdl's token counts are exact for the models of all expansions.
    pub(super) fn has_exact_token_counts(&self) -> bool {
        let mut choices = self.models.iter().flat_map(ExpansionModels::choices);
        choices.all(|choice| Tokenizer::for_model(&choice.tokenizer).is_exact())
    }

    /// Returns the budget left for the next run, or for the unfinished run that it resumes.
    fn budget_left(&self) -> Result<BudgetLeft, FactsError> {
        if self.spec.all_models().all(|m| m.provider == Provider::Replay) {
            return Ok(BudgetLeft::default());
        }
        let history = self.facts.history();
        let unfinished = history.find_unfinished_run(&self.spec.full_path())?;
        let (caps, spent) = load_run_caps(history, &self.spec.limits, unfinished)?;
        Ok(BudgetLeft {
            usd: caps.usd.map(|usd| (usd - spent.usd).max(0.0)),
            tokens: caps.tokens.map(|tokens| tokens.saturating_sub(spent.tokens)),
            is_daily: caps.daily.is_some(),
        })
    }
}
