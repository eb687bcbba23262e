//! Continues `--refresh` and `--retry-failed` across runs. If a limit or a kill leaves cells
//! unanswered, repeating the command requests them. Once all cells have been requested, the same
//! command starts a new refresh.

use super::coverage::CoverageReport;
use super::{Materializer, Report, RunMode, Selection};
use hqdl_facts::refresh::{OpenRefresh, RefreshKind, RefreshSubject};
use hqdl_facts::{ExpansionRequirements, FactsError, History, Reason};
use hqdl_model::plan::ColumnPlan;
use hqdl_spec::Spec;
use hqdl_values::cell::State;
use hqdl_values::format::format_count;

/// A refresh or retry of one column.
#[derive(Debug)]
pub(super) struct RefreshJob {
    expansion: usize,
    column: usize,
    subject: RefreshSubject,
    /// Id of the last completion whose facts are outdated.
    up_to: i64,
    /// The refresh's entry in the journal; `None` unless an earlier run started the refresh.
    open_refresh: Option<OpenRefresh>,
}

/// Returns the refresh jobs that a selection requests in an expansion. Marks the affected facts as
/// outdated in `requirements`.
pub(super) fn plan_refresh_jobs(
    history: &dyn History,
    spec: &Spec,
    expansion: usize,
    requirements: &mut ExpansionRequirements,
    selection: &Selection,
) -> Result<Vec<RefreshJob>, FactsError> {
    let e = &spec.expansions[expansion];
    let refreshed = selection.refresh.iter().filter_map(|name| Selection::find_column(e, name));
    let mut columns: Vec<(RefreshKind, usize)> =
        refreshed.map(|c| (RefreshKind::Refresh, c)).collect();
    columns.dedup();
    if selection.retry_failed {
        columns.extend((0..e.columns.len()).map(|c| (RefreshKind::Retry, c)));
    }
    let last = history.load_last_completion_id()?;
    let mut refresh_jobs = Vec::new();
    for (kind, column) in columns {
        let Some(identity_id) = requirements.identity_id(column) else { continue };
        let subject = RefreshSubject {
            kind,
            spec: spec.full_path(),
            expansion: e.name.clone(),
            identity_id,
            model: requirements.column_requirements(column).model,
            scope: selection.filter.clone().unwrap_or_default(),
        };
        let open_refresh = history.load_open_refresh(&subject)?;
        let up_to = open_refresh.as_ref().map_or(last, |open_refresh| open_refresh.up_to);
        match kind {
            RefreshKind::Refresh => requirements.refresh_column(column, up_to),
            RefreshKind::Retry => requirements.retry_column(column, up_to),
        }
        refresh_jobs.push(RefreshJob { expansion, column, subject, up_to, open_refresh });
    }
    Ok(refresh_jobs)
}

impl RefreshJob {
    /// Returns the number of cells that this run or a later run must still request.
    fn count_remaining_cells(&self, coverages: &[CoverageReport<'_>]) -> u64 {
        let Some(coverage) = coverages.get(self.expansion) else { return 0 };
        let reason = match self.subject.kind {
            RefreshKind::Refresh => Reason::Refreshed,
            RefreshKind::Retry => Reason::Retried,
        };
        let requested = coverage.plan.columns.get(self.column).and_then(|c| c.missing.get(&reason));
        requested.copied().unwrap_or(0)
            + self.count_unasked_cells(coverage)
            + self.count_in_flight_cells(coverage)
    }

    /// Returns the number of cells that are left to a later run.
    fn count_unasked_cells(&self, coverage: &CoverageReport<'_>) -> u64 {
        coverage.unasked_refreshes.get(self.column).copied().unwrap_or(0)
    }

    /// Returns the number of cells that are requested by open batch jobs.
    fn count_in_flight_cells(&self, coverage: &CoverageReport<'_>) -> u64 {
        coverage.in_flight_refreshes.get(self.column).copied().unwrap_or(0)
    }
}

impl Materializer<'_> {
    /// Returns a note for each refresh that an earlier run started.
    pub(super) fn list_resumed_refreshes(&self, coverages: &[CoverageReport<'_>]) -> Vec<String> {
        let to_note = |refresh_job: &RefreshJob| {
            let (open_refresh, remaining) =
                (refresh_job.open_refresh.as_ref()?, refresh_job.count_remaining_cells(coverages));
            let column =
                &self.spec.expansions[refresh_job.expansion].columns[refresh_job.column].name;
            (remaining > 0).then(|| {
                format!(
                    "the {} of `{column}` that began {} continues, with {} left",
                    refresh_job.subject.kind.name(),
                    open_refresh.begun_at,
                    format_count(remaining, "cell")
                )
            })
        };
        self.refresh_jobs.iter().filter_map(to_note).collect()
    }

    /// Records the start of the refresh jobs that have cells to request.
    pub(super) fn start_refresh_jobs(
        &self,
        coverages: &[CoverageReport<'_>],
    ) -> Result<(), FactsError> {
        let history = self.facts.history();
        for refresh_job in self
            .refresh_jobs
            .iter()
            .filter(|r| r.open_refresh.is_none() && r.count_remaining_cells(coverages) > 0)
        {
            history.start_refresh(&refresh_job.subject, refresh_job.up_to)?;
        }
        Ok(())
    }

    /// Records the end of the refresh jobs whose cells have all been requested.
    pub(super) fn finish_refresh_jobs(
        &self,
        coverages: &[CoverageReport<'_>],
        report: &Report,
    ) -> Result<(), FactsError> {
        if report.stop_reason.is_some() || report.failure.is_some() {
            return Ok(());
        }
        let history = self.facts.history();
        for refresh_job in &self.refresh_jobs {
            let Some(coverage) = coverages.get(refresh_job.expansion) else { continue };
            let answered = &report.columns[refresh_job.expansion][refresh_job.column].requested;
            let is_in_flight = refresh_job.count_in_flight_cells(coverage) > 0
                && history.has_batch_requests_in_flight()?;
            // A cancelled batch job may have left cells unanswered.
            let expected =
                coverage.plan.columns.get(refresh_job.column).map_or(0, ColumnPlan::cell_count)
                    + coverage.in_flight.get(refresh_job.column).copied().unwrap_or(0);
            let has_unanswered = self.run_mode == RunMode::Batch && answered.total() < expected;
            if refresh_job.count_unasked_cells(coverage) == 0
                && !is_in_flight
                && !has_unanswered
                && answered.get(State::Error) == 0
                && let Some(open_refresh) = history.load_open_refresh(&refresh_job.subject)?
            {
                history.finish_refresh(open_refresh.id)?;
            }
        }
        Ok(())
    }
}
