//! Remaining budget, and the cost of the missing cells.

use super::survey::Survey;
use super::{MaterializeError, Way, Work};
use hqdl_facts::FactsError;
use hqdl_model::budget::allowance;
use hqdl_model::generate::{Event, Listener};
use hqdl_model::plan::{BudgetLeft, Pace, Plan};
use hqdl_spec::Provider;
use hqdl_values::tokens::Tokenizer;

impl<'w> Work<'w> {
    /// Adds the cost, the duration and the remaining budget to a plan.
    pub(super) fn price(&self, plan: &mut Plan) -> Result<(), MaterializeError> {
        let replayed = self.spec.model.provider == Provider::Replay;
        let pace = (!replayed).then(|| Pace::of(self.facts.history(), &self.spec.model));
        let pace = pace.transpose()?;
        match self.way {
            Way::Batch => plan.batch(&self.spec.limits),
            _ => plan.price(&self.spec.limits, pace),
        }
        plan.room = self.room()?;
        Ok(())
    }

    /// Sends a warning if the budget does not cover the plan, before any request is made. Returns
    /// the reports, with the cost computed if there is a budget.
    pub(super) fn warn_of_budget(
        &self,
        surveys: Vec<Survey<'w>>,
        listener: &Listener,
    ) -> Result<Vec<Survey<'w>>, MaterializeError> {
        if self.room()? == BudgetLeft::default() {
            return Ok(surveys);
        }
        let metered = |(n, survey): (usize, Survey<'w>)| self.survey_keys(n, survey.keys, true);
        let surveys: Vec<Survey<'w>> =
            surveys.into_iter().enumerate().map(metered).collect::<Result<_, _>>()?;
        let mut expansions = Vec::new();
        for (n, survey) in surveys.iter().enumerate() {
            expansions.push(survey.plan.clone());
            expansions.extend(self.unify_plan(n, survey)?);
        }
        let mut plan = Plan { expansions, counted: self.counts_exactly(), ..Plan::default() };
        self.price(&mut plan)?;
        if let Some(warning) = plan.warning() {
            listener(&Event::Warning(warning));
        }
        Ok(surveys)
    }

    /// Returns true if hqdl counts tokens exactly as the models of all expansions do.
    pub(super) fn counts_exactly(&self) -> bool {
        let of = |e| Tokenizer::of(&self.choice(e).tokenizer);
        self.spec.expansions.iter().all(|e| of(e).is_exact())
    }

    /// Returns the budget left for the next run, or for the unfinished run that it resumes.
    fn room(&self) -> Result<BudgetLeft, FactsError> {
        if self.spec.all_models().all(|m| m.provider == Provider::Replay) {
            return Ok(BudgetLeft::default());
        }
        let history = self.facts.history();
        let unfinished = history.unfinished(&self.spec.full_path())?;
        let (caps, gone) = allowance(history, &self.spec.limits, unfinished)?;
        Ok(BudgetLeft {
            usd: caps.usd.map(|usd| (usd - gone.usd).max(0.0)),
            tokens: caps.tokens.map(|tokens| tokens.saturating_sub(gone.tokens)),
        })
    }
}
