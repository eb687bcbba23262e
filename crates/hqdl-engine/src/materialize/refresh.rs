//! `--refresh` and `--retry-failed`, from run to run: what a limit or a kill
//! left over is asked by the same command the next time, and when all is asked
//! the command begins anew.

use super::survey::Survey;
use super::{Report, Selection, Way, Work};
use hqdl_facts::refresh::{Kind, OpenRefresh, RefreshSubject};
use hqdl_facts::{FactsError, History, Reason, Wanted};
use hqdl_model::plan::ColumnPlan;
use hqdl_spec::Spec;
use hqdl_values::cell::State;
use hqdl_values::format::count_noun;

/// A round of asking again for one column.
#[derive(Debug)]
pub(super) struct RefreshJob {
    expansion: usize,
    column: usize,
    subject: RefreshSubject,
    /// Facts of completions up to this one no longer count.
    up_to: i64,
    /// As the journal has it, when an earlier run began it.
    open: Option<OpenRefresh>,
}

/// The rounds that a selection asks for in an expansion; what they ask again is
/// no longer wanted as it is known.
pub(super) fn of(
    history: &dyn History,
    spec: &Spec,
    expansion: usize,
    wanted: &mut Wanted,
    selection: &Selection,
) -> Result<Vec<RefreshJob>, FactsError> {
    let e = &spec.expansions[expansion];
    let refreshed = selection.refresh.iter().filter_map(|name| Selection::column(e, name));
    let mut columns: Vec<(Kind, usize)> = refreshed.map(|c| (Kind::Refresh, c)).collect();
    columns.dedup();
    if selection.retry_failed {
        columns.extend((0..e.columns.len()).map(|c| (Kind::Retry, c)));
    }
    let last = history.last_completion()?;
    let mut rounds = Vec::new();
    for (kind, column) in columns {
        let Some(meaning) = wanted.meaning(column) else { continue };
        let subject = RefreshSubject {
            kind,
            spec: spec.full_path(),
            expansion: e.name.clone(),
            meaning,
            model: wanted.model,
            scope: selection.filter.clone().unwrap_or_default(),
        };
        let open = history.open_round(&subject)?;
        let up_to = open.as_ref().map_or(last, |open| open.up_to);
        match kind {
            Kind::Refresh => wanted.refresh(column, up_to),
            Kind::Retry => wanted.retry(column, up_to),
        }
        rounds.push(RefreshJob { expansion, column, subject, up_to, open });
    }
    Ok(rounds)
}

impl RefreshJob {
    /// Cells that it has yet to ask, in this run or a later one.
    fn left(&self, surveys: &[Survey<'_>]) -> u64 {
        let Some(survey) = surveys.get(self.expansion) else { return 0 };
        let reason = match self.subject.kind {
            Kind::Refresh => Reason::Refreshed,
            Kind::Retry => Reason::Retried,
        };
        let asked = survey.plan.columns.get(self.column).and_then(|c| c.missing.get(&reason));
        asked.copied().unwrap_or(0) + self.unasked(survey) + self.under_way(survey)
    }

    /// Cells that it leaves to a later run.
    fn unasked(&self, survey: &Survey<'_>) -> u64 {
        survey.unasked_again.get(self.column).copied().unwrap_or(0)
    }

    /// Cells of it that batches under way ask for.
    fn under_way(&self, survey: &Survey<'_>) -> u64 {
        survey.under_way_again.get(self.column).copied().unwrap_or(0)
    }
}

impl Work<'_> {
    /// What is to be said of rounds that an earlier run began.
    pub(super) fn rounds_gone_on_with(&self, surveys: &[Survey<'_>]) -> Vec<String> {
        let gone_on = |round: &RefreshJob| {
            let (open, left) = (round.open.as_ref()?, round.left(surveys));
            let column = &self.spec.expansions[round.expansion].columns[round.column].name;
            (left > 0).then(|| {
                format!(
                    "the {} of `{column}` that began {} continues, with {} left",
                    round.subject.kind.name(),
                    open.begun_at,
                    count_noun(left, "cell")
                )
            })
        };
        self.rounds.iter().filter_map(gone_on).collect()
    }

    /// Begins the rounds that have something to ask.
    pub(super) fn begin_rounds(&self, surveys: &[Survey<'_>]) -> Result<(), FactsError> {
        let history = self.facts.history();
        for round in self.rounds.iter().filter(|r| r.open.is_none() && r.left(surveys) > 0) {
            history.begin_round(&round.subject, round.up_to)?;
        }
        Ok(())
    }

    /// Ends the rounds of which all is asked.
    pub(super) fn end_rounds(
        &self,
        surveys: &[Survey<'_>],
        report: &Report,
    ) -> Result<(), FactsError> {
        if report.stopped.is_some() || report.failed.is_some() {
            return Ok(());
        }
        let history = self.facts.history();
        for round in &self.rounds {
            let Some(survey) = surveys.get(round.expansion) else { continue };
            let asked = &report.columns[round.expansion][round.column].asked;
            let under_way = round.under_way(survey) > 0 && history.any_under_way()?;
            // What a cancelled batch did not answer is left.
            let wanted = survey.plan.columns.get(round.column).map_or(0, ColumnPlan::cells)
                + survey.under_way.get(round.column).copied().unwrap_or(0);
            let left = self.way == Way::Batch && asked.total() < wanted;
            if round.unasked(survey) == 0
                && !under_way
                && !left
                && asked.get(State::Error) == 0
                && let Some(open) = history.open_round(&round.subject)?
            {
                history.end_round(open.id)?;
            }
        }
        Ok(())
    }
}
