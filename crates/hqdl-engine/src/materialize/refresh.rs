//! `--refresh` and `--retry-failed` across runs. If a limit or a kill leaves cells over, repeating
//! the command requests them. After all cells are requested, the command starts again from the
//! beginning.

use super::survey::Survey;
use super::{Report, Selection, Way, Work};
use hqdl_facts::refresh::{Kind, OpenRefresh, RefreshSubject};
use hqdl_facts::{FactsError, History, Reason, Wanted};
use hqdl_model::plan::ColumnPlan;
use hqdl_spec::Spec;
use hqdl_values::cell::State;
use hqdl_values::format::count_noun;

/// A refresh or retry of one column.
#[derive(Debug)]
pub(super) struct RefreshJob {
    expansion: usize,
    column: usize,
    subject: RefreshSubject,
    /// Facts of completions up to this id are outdated.
    up_to: i64,
    /// The journal's entry, if an earlier run started this refresh.
    open: Option<OpenRefresh>,
}

/// Returns the refresh jobs that a selection requests in an expansion. Marks the affected facts as
/// outdated in `requirements`.
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
    /// Returns the number of cells that are still to be requested, by this run or a later one.
    fn left(&self, surveys: &[Survey<'_>]) -> u64 {
        let Some(survey) = surveys.get(self.expansion) else { return 0 };
        let reason = match self.subject.kind {
            Kind::Refresh => Reason::Refreshed,
            Kind::Retry => Reason::Retried,
        };
        let asked = survey.plan.columns.get(self.column).and_then(|c| c.missing.get(&reason));
        asked.copied().unwrap_or(0) + self.unasked(survey) + self.under_way(survey)
    }

    /// Returns the number of cells left to a later run.
    fn unasked(&self, survey: &Survey<'_>) -> u64 {
        survey.unasked_again.get(self.column).copied().unwrap_or(0)
    }

    /// Returns the number of cells that open batch jobs request.
    fn under_way(&self, survey: &Survey<'_>) -> u64 {
        survey.under_way_again.get(self.column).copied().unwrap_or(0)
    }
}

impl Work<'_> {
    /// Returns a note for each refresh that an earlier run started.
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

    /// Records the start of the refresh jobs that have cells to request.
    pub(super) fn begin_rounds(&self, surveys: &[Survey<'_>]) -> Result<(), FactsError> {
        let history = self.facts.history();
        for round in self.rounds.iter().filter(|r| r.open.is_none() && r.left(surveys) > 0) {
            history.begin_round(&round.subject, round.up_to)?;
        }
        Ok(())
    }

    /// Records the end of the refresh jobs whose cells have all been requested.
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
            // A cancelled batch job leaves cells unanswered.
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
