//! Materialization: requests a spec's missing cells, stores the answers and publishes the tables.
//!
//! `coverage` walks the keys and finds the missing cells, `fill` requests them, and `publish`
//! writes the tables. All three walk the same keys independently. A plan therefore needs only the
//! coverage, and a run without missing cells sends no request and writes nothing.

mod counts;
mod fill;
mod calibration;
mod cascade;
mod batch_jobs;
mod publish;
mod report;
mod budget;
mod changed_keys;
mod refresh;
mod run;
mod search;
mod evidence;
mod shots;
mod coverage;
mod coverage_builder;
mod doubtful_cells;
mod unify;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

pub use self::batch_jobs::{ExportFile, ExportResult, ImportResult, UnansweredFile};
use self::calibration::Calibration;
use self::coverage::{CoverageReport, count_orphans};
pub use self::doubtful_cells::DoubtfulCell;
use self::refresh::RefreshJob;
pub use self::report::{ColumnReport, Report};
use self::run::Run;
pub use self::run::RunMode;
use crate::audit::AuditError;
use hqdl_database::output::{OutputTarget, check_support, remove_stale_files};
use hqdl_database::{Database, StoreError};
use hqdl_facts::{ExpansionRequirements, Facts, FactsError};
use hqdl_model::generate::{Event, Listener, StopReason};
use hqdl_model::plan::Plan;
use hqdl_model::{self as model, ExpansionModels, Model, SetupError};

use hqdl_spec::overrides::{Overrides, OverridesError};
use hqdl_spec::{Expansion, Format, Provider, Spec};
use hqdl_values::cell::{State, Tally};
use hqdl_values::format::format_count;
use hqdl_values::problem::find_nearest;

/// Reason why a spec could not be materialized.
#[derive(Debug, thiserror::Error)]
pub enum MaterializeError {
    /// A database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The fact store failed.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The model could not be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The run stopped early; every answer received so far is stored and published.
    #[error(transparent)]
    Stopped(StopReason),
    /// The audit of a column with a `target_truth` cannot be used.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The stronger model's answers are too often wrong to reach a `target_truth`.
    #[error("{0}")]
    TargetRefused(String),
    /// The endpoint reports no log-probabilities, which a column's confidence needs.
    #[error(
        "{column}: `low_confidence` without `compare` needs the log-probabilities of tokens, which {model} did not report for any of {answers}"
    )]
    NoLogprobs {
        /// The expansion and the column.
        column: String,
        /// Name of the model.
        model: String,
        /// Number of answers, in words.
        answers: String,
    },
    /// The overrides file is invalid.
    #[error(transparent)]
    Overrides(#[from] OverridesError),
    /// `--columns` or `--refresh` names a column that is in no expansion.
    #[error("{flag}: no expansion has a column `{name}`")]
    UnknownColumn {
        /// The flag that contains the name.
        flag: &'static str,
        /// Column name that the user passed.
        name: String,
        /// The most similar column name, if there is one.
        nearest: Option<String>,
    },
    /// The condition of `--where` is invalid for every expansion.
    #[error("--where: {message}")]
    InvalidWhere {
        /// Reason why the condition is invalid.
        message: String,
        /// Suggestion for the user.
        hint: String,
    },
    /// The evidence is to be refreshed, but no expansion has any.
    #[error("--refresh-evidence: no expansion has [expansion.evidence]")]
    NoEvidence,
    /// The model has no Batch API.
    #[error("recordings cannot be run as batches")]
    BatchesUnsupported,
    /// A column uses another model, but batches are sent only to the model in `[model]`.
    #[error("`{column}` uses [model.{model}], but hqdl sends batches only to [model]")]
    BatchModelMismatch {
        /// The column with its expansion, or only the expansion if all of its columns use this
        /// model.
        column: String,
        /// The named model.
        model: String,
    },
    /// The expansion sends media, which batches do not support.
    #[error("`{0}` sends {1}, which batches do not support")]
    BatchMediaUnsupported(String, &'static str),
    /// The expansion shows evidence, which batches do not support.
    #[error("`{0}` shows passages of documents, which batches do not support")]
    BatchEvidenceUnsupported(String),
    /// The documents of an expansion cannot be read.
    #[error("the evidence of `{expansion}`: {message}")]
    Evidence {
        /// Name of the expansion.
        expansion: String,
        /// Reason why the documents cannot be read.
        message: String,
    },
    /// The async runtime could not be started.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// The subset of the missing cells that a run requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Maximum number of keys per expansion; `None` for no limit.
    pub limit: Option<u64>,
    /// Columns to request; `None` for all.
    pub columns: Option<Vec<String>>,
    /// SQL condition that source rows must satisfy; `None` for all rows.
    pub filter: Option<String>,
    /// Columns whose answered cells the run requests again.
    pub refresh: Vec<String>,
    /// Whether to request a cell again if its request would now show different passages.
    pub refresh_evidence: bool,
    /// Whether to retry cells without a value.
    pub retry_failed: bool,
}

impl Selection {
    /// Returns true if the selection excludes any cells.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.limit.is_some() || self.columns.is_some() || self.filter.is_some()
    }

    /// Checks the names of columns.
    ///
    /// # Errors
    /// Returns [`MaterializeError::UnknownColumn`] if a column is in no expansion.
    pub fn check_columns(&self, spec: &Spec) -> Result<(), MaterializeError> {
        let columns = self.columns.iter().flatten().map(|name| ("--columns", name));
        let refreshed = self.refresh.iter().map(|name| ("--refresh", name));
        for (flag, name) in columns.chain(refreshed) {
            if spec.expansions.iter().all(|e| Self::find_column(e, name).is_none()) {
                let columns = spec.expansions.iter().flat_map(|e| &e.columns);
                let nearest = find_nearest(name, columns.map(|column| column.name.as_str()));
                return Err(MaterializeError::UnknownColumn {
                    flag,
                    name: name.clone(),
                    nearest: nearest.map(str::to_owned),
                });
            }
        }
        Ok(())
    }

    /// Returns the index of the column with this name in an expansion. The name is `genre`, or
    /// `llm_album.genre` if several expansions have a column `genre`.
    #[must_use]
    pub fn find_column(expansion: &Expansion, name: &str) -> Option<usize> {
        expansion.find_column(name).or_else(|| {
            let name_length = expansion.name.len();
            let is_qualified = name
                .get(..name_length)
                .is_some_and(|prefix| prefix.eq_ignore_ascii_case(&expansion.name));
            expansion
                .find_column(name.get(name_length..)?.strip_prefix('.')?)
                .filter(|_| is_qualified)
        })
    }
}

/// A spec together with its database, fact store and model: everything a run needs.
pub struct Materializer<'w> {
    spec: Cow<'w, Spec>,
    database: &'w Database,
    facts: &'w Facts,
    model: Arc<dyn Model>,
    selection: &'w Selection,
    /// For each expansion, whether each column is selected.
    columns: Vec<Vec<bool>>,
    /// Models that answer the columns, per expansion.
    models: Vec<ExpansionModels>,
    requirements: Vec<Arc<ExpansionRequirements>>,
    /// Columns to refresh or retry.
    refresh_jobs: Vec<RefreshJob>,
    overrides: Overrides,
    run_mode: RunMode,
    /// Whether any batch job is open.
    has_batch_jobs: Cell<bool>,
    /// Change counter of the database when the coverage was computed.
    version: Cell<i64>,
    /// Calibration of each column that has a target, per expansion and column.
    calibrations: RefCell<Vec<Vec<Option<Calibration>>>>,
    /// Number of missing cells in unanswered export files, by batch job. `None` if these cells are
    /// requested again.
    exported_cells: RefCell<Option<BTreeMap<i64, u64>>>,
}

impl<'w> Materializer<'w> {
    /// Prepares to plan or materialize a spec.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if the selection names an unknown column, or if the facts, the
    /// overrides or the database cannot be read.
    pub fn new(
        spec: &'w Spec,
        database: &'w Database,
        facts: &'w Facts,
        model: Arc<dyn Model>,
        selection: &'w Selection,
    ) -> Result<Self, MaterializeError> {
        selection.check_columns(spec)?;
        if selection.refresh_evidence && spec.expansions.iter().all(|e| e.evidence.is_none()) {
            return Err(MaterializeError::NoEvidence);
        }
        let columns = spec
            .expansions
            .iter()
            .map(|e| match &selection.columns {
                None => vec![true; e.columns.len()],
                Some(names) => {
                    let mut chosen = vec![false; e.columns.len()];
                    let indices = names.iter().filter_map(|n| Selection::find_column(e, n));
                    indices.for_each(|c| chosen[c] = true);
                    chosen
                }
            })
            .collect();
        let history = facts.history();
        let (mut models, mut requirements, mut refresh_jobs) = (Vec::new(), Vec::new(), Vec::new());
        for (n, expansion) in spec.expansions.iter().enumerate() {
            let expansion_models = model::choose_models(spec, Some(&*model), expansion);
            let mut w = expansion_models.build_requirements(history, expansion)?;
            models.push(expansion_models);
            refresh_jobs.extend(refresh::plan_refresh_jobs(history, spec, n, &mut w, selection)?);
            requirements.push(Arc::new(w));
        }
        let overrides = Overrides::read(spec)?;
        let spec = shots::add_override_shots(spec, database, &overrides)?;
        let calibrations = spec.expansions.iter().map(|e| vec![None; e.columns.len()]).collect();
        let mut materializer = Self {
            spec,
            database,
            facts,
            model,
            selection,
            columns,
            models,
            requirements,
            refresh_jobs,
            overrides,
            run_mode: RunMode::Live,
            has_batch_jobs: Cell::new(false),
            version: Cell::new(0),
            calibrations: RefCell::new(calibrations),
            exported_cells: RefCell::default(),
        };
        if selection.refresh_evidence {
            materializer.mark_changed_evidence_outdated()?;
        }
        Ok(materializer)
    }

    /// Sets the run mode; the default is [`RunMode::Live`].
    ///
    /// # Errors
    /// Returns an error if the model or the spec does not support batches and the mode is
    /// [`RunMode::Batch`].
    pub fn with_run_mode(mut self, run_mode: RunMode) -> Result<Self, MaterializeError> {
        if run_mode == RunMode::Batch && self.spec.model.provider == Provider::Replay {
            return Err(MaterializeError::BatchesUnsupported);
        }
        if run_mode == RunMode::Batch {
            self.ensure_batch_support()?;
        }
        self.run_mode = run_mode;
        Ok(self)
    }

    /// Returns an error if a selected column uses a model other than `[model]`, or if an expansion
    /// sends media or shows evidence. Media and documents are read when a request is sent, but
    /// another process may send a batch a day later.
    pub(super) fn ensure_batch_support(&self) -> Result<(), MaterializeError> {
        for (n, (expansion, models)) in self.spec.expansions.iter().zip(&self.models).enumerate() {
            for m in models.first_positions() {
                let choice = &models.choices()[m];
                let selected =
                    models.list_columns_of_model(m).find(|column| self.columns[n][*column]);
                let (Some(column), true) = (selected, choice.endpoint.is_some()) else { continue };
                let column = match models.first_positions().len() {
                    1 => expansion.name.clone(),
                    _ => format!("{}.{}", expansion.name, expansion.columns[column].name),
                };
                let model = choice.model.clone().unwrap_or_default();
                return Err(MaterializeError::BatchModelMismatch { column, model });
            }
        }
        if let Some(e) = self.spec.expansions.iter().find(|e| e.has_media()) {
            let plural = e.only_media_kind().map_or("media", |kind| kind.plural);
            return Err(MaterializeError::BatchMediaUnsupported(e.name.clone(), plural));
        }
        match self.spec.expansions.iter().find(|e| e.evidence.is_some()) {
            Some(e) => Err(MaterializeError::BatchEvidenceUnsupported(e.name.clone())),
            None => Ok(()),
        }
    }

    /// Returns the model name under which the run's facts are stored.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.model.name()
    }

    /// Returns the plan of a run and the warnings about it. Sends no request.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if keys or facts cannot be read.
    pub fn plan_requests(&self) -> Result<(Plan, Vec<String>), MaterializeError> {
        let mut plan = Plan {
            is_counted: self.has_exact_token_counts(),
            price_notes: self.spec.list_reserved_price_notes(),
            ..Plan::default()
        };
        let (mut warnings, mut coverages) = (Vec::new(), Vec::new());
        check_support(self.spec.output.as_deref())?;
        let target = Database::open(self.spec.target()).ok();
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            self.load_evidence(expansion)?;
            self.calibrate_before_run(n)?;
            let mut coverage = self.compute_coverage(n, true)?;
            warnings.extend(
                coverage
                    .keys
                    .report
                    .warnings_for_runs()
                    .into_iter()
                    .map(|r| format!("{}: {r}", expansion.name)),
            );
            if let Some(target) = &target {
                coverage.plan.orphaned = count_orphans(target, expansion, &coverage.keys)?;
            }
            if coverage.count_in_flight_cells() > 0 {
                warnings.push(format!(
                    "{}: running batches ask for {}, which the plan leaves out",
                    expansion.name,
                    format_count(coverage.count_in_flight_cells(), "cell")
                ));
            }
            let mut plans = coverage.split_plan(&self.models[n]);
            plan.expansions.extend(self.plan_searches(n, &coverage, &mut plans)?);
            plan.expansions.extend(plans);
            plan.expansions.extend(self.plan_unification(n, &coverage)?);
            warnings.extend(self.describe_possible_cells(n, &coverage));
            warnings.extend(self.describe_cascades(n));
            warnings.extend(self.check_logprobs(n)?);
            plan.cascades.extend(self.plan_cascades(n));
            coverages.push(coverage);
        }
        warnings.extend(self.list_resumed_refreshes(&coverages));
        warnings.extend(self.overrides.warnings.iter().cloned());
        warnings.extend(self.find_unknown_overrides(&coverages));
        warnings.extend(self.check_filter(&coverages)?);
        self.add_plan_costs(&mut plan)?;
        Ok((plan, warnings))
    }

    /// Materializes the spec: requests the missing cells, stores the answers and publishes the
    /// tables. If `interrupt` becomes true, the run ends early and keeps all answers.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if the run cannot start, or if the tables cannot be read or
    /// written. If the run stops early, this function succeeds and the report contains the reason,
    /// because the answers are stored and published.
    pub fn materialize(
        &self,
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Report, MaterializeError> {
        let mut report = Report {
            has_price: self.spec.is_priced(),
            target: self.spec.target().clone(),
            ..Report::for_spec(&self.spec)
        };
        let batch_lock = match self.run_mode {
            RunMode::Batch => Some(self.lock_batches(listener, interrupt)?),
            _ => None,
        };
        let mut run = None;
        let result = self.run_pipeline(
            &mut run,
            batch_lock.is_some(),
            command,
            listener,
            interrupt,
            &mut report,
        );
        self.finish_run(run, matches!(result, Ok(true)), &mut report);
        result.map(|_| report)
    }

    /// Requests the missing cells and publishes the tables. Returns true if the tables are up to
    /// date. Stores the run in `run` once it has started; the caller must end it.
    fn run_pipeline(
        &self,
        run: &mut Option<Run>,
        has_batch_lock: bool,
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<bool, MaterializeError> {
        if let Some(output) = &self.spec.output {
            remove_stale_files(output);
        }
        *run = self.recover_batches(has_batch_lock, command, listener, interrupt, report)?;
        self.version.set(self.database.data_version()?);
        let target = OutputTarget::inspect(self.database, self.spec.output.as_deref())?;
        let previous = target.previous_database(self.database);
        let mut coverages = self.compute_coverages(previous, listener, report)?;
        let missing: u64 = coverages.iter().map(CoverageReport::count_missing_cells).sum();
        let should_request = report.stop_reason.is_none() && self.has_requests(&coverages);
        if !should_request && missing == 0 {
            self.finish_refresh_jobs(&coverages, report)?;
        }
        let published_db = target.published_database(self.database);
        if let Some(db) = previous {
            self.warn_about_edits(db, listener)?;
        }
        if !should_request && published_db.is_some_and(|db| self.matches_coverage(db, &coverages)) {
            self.update_report(run.as_ref(), report);
            self.add_cascade_notes(report);
            report.count_cells_from_coverage(&coverages);
            return Ok(true);
        }
        // Check write access before any request is paid for.
        target.check_writable(&self.spec)?;
        if should_request {
            for (expansion, _) in self
                .spec
                .expansions
                .iter()
                .zip(&coverages)
                .filter(|(_, coverage)| coverage.count_missing_cells() > 0)
            {
                self.load_evidence(expansion)?;
            }
            coverages = self.warn_if_over_budget(coverages, listener)?;
        }
        if let Some(db) = previous {
            self.find_differences(db, &mut coverages)?;
        }
        let mut changed = Vec::new();
        if should_request {
            self.start_refresh_jobs(&coverages)?;
            // From here on, failures go into the report: the run still reports its cost and
            // publishes its answers.
            let run = match run {
                Some(run) => run,
                None => run.insert(self.start_run(command, listener)?),
            };
            changed = self.request_cells(run, &mut coverages, &target, interrupt, report);
        }
        self.add_cascade_notes(report);
        let notes = (0..self.spec.expansions.len()).flat_map(|n| self.describe_cascades(n));
        notes.for_each(|note| listener(&Event::Warning(note)));
        self.update_report(run.as_ref(), report);
        self.report_changed_cells(&changed, &coverages, report);
        report.reused += report.answered_by_others;
        if missing > 0 && self.must_keep_tables(&target, report) {
            report.count_cells_from_coverage(&coverages);
            listener(&Event::Warning(
                "the model answered nothing, so the published tables are unchanged".to_owned(),
            ));
            return Ok(true);
        }
        if let Some(advice) = self.format_failure_advice(report) {
            listener(&Event::Warning(advice));
        }
        match self.publish_tables(&coverages, listener, interrupt, report) {
            Err(MaterializeError::Stopped(reason)) => {
                report.count_cells_from_coverage(&coverages);
                listener(&Event::Warning(
                    "another run publishes into the same database, so this run leaves the tables unchanged".to_owned(),
                ));
                report.stop_reason.get_or_insert(Arc::new(reason));
            }
            published => report.failure = report.failure.take().or(published.err()),
        }
        Ok(report.published)
    }

    /// Returns the coverage of every expansion, and sends warnings about it to the listener.
    fn compute_coverages(
        &self,
        previous: Option<&Database>,
        listener: &Listener,
        report: &mut Report,
    ) -> Result<Vec<CoverageReport<'w>>, MaterializeError> {
        let mut coverages = Vec::new();
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            self.calibrate_before_run(n)?;
            let coverage = self.compute_current_coverage(n, previous)?;
            for remark in coverage.keys.report.warnings_for_runs() {
                listener(&Event::Warning(format!("{}: {remark}", expansion.name)));
            }
            report.reused += coverage.known;
            coverages.push(coverage);
        }
        let in_flight: u64 = coverages.iter().map(CoverageReport::count_in_flight_cells).sum();
        if in_flight > 0 && self.run_mode == RunMode::Live {
            listener(&Event::Warning(format!(
                "running batches ask for {}, which this run skips: `--batch` waits for them",
                format_count(in_flight, "cell")
            )));
        }
        let mut notes = self.list_resumed_refreshes(&coverages);
        let has_second =
            self.models.iter().any(|models| !models.second_answer_positions().is_empty());
        if self.run_mode == RunMode::Batch && has_second {
            notes.push("a batch requests no second answers; a run without `--batch` does".into());
        }
        notes.extend(self.overrides.warnings.iter().cloned());
        notes.extend(self.find_unknown_overrides(&coverages));
        notes.extend(self.check_filter(&coverages)?);
        notes.into_iter().for_each(|note| listener(&Event::Warning(note)));
        Ok(coverages)
    }

    /// Returns a note for each model that may be asked for second answers once missing first
    /// answers have arrived.
    fn describe_possible_cells(&self, n: usize, coverage: &CoverageReport<'_>) -> Vec<String> {
        let second = self.models[n].second_answer_positions();
        let possible = second.map(|model| (model, coverage.possible_cells[model]));
        let describe = |(model, cells): (usize, u64)| {
            format!(
                "{}: {} may answer {} again; only the maximum price includes this",
                self.spec.expansions[n].name,
                self.models[n].choices()[model].name,
                format_count(cells, "cell")
            )
        };
        possible.filter(|(_, cells)| *cells > 0).map(describe).collect()
    }

    fn add_cascade_notes(&self, report: &mut Report) {
        let expansions = 0..self.spec.expansions.len();
        report.cascades = expansions.flat_map(|n| self.plan_cascades(n)).collect();
        report.failure = report.failure.take().or_else(|| self.find_refused_target());
    }

    /// Returns whether the run has cells to request or batches to wait for.
    fn has_requests(&self, coverages: &[CoverageReport<'_>]) -> bool {
        let is_missing = coverages.iter().any(|c| c.count_missing_cells() > 0);
        match self.run_mode {
            RunMode::Live => is_missing || coverages.iter().any(|c| !c.unlisted_values.is_empty()),
            RunMode::Batch => is_missing || coverages.iter().any(|c| c.count_in_flight_cells() > 0),
            RunMode::CachedOnly => false,
        }
    }

    /// Requests the missing cells. Returns the positions of the expansions whose first answers may
    /// have been superseded, because values were unified or cells were answered again. Failures go
    /// into the report.
    fn request_cells(
        &self,
        run: &Run,
        coverages: &mut [CoverageReport<'w>],
        target: &OutputTarget,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Vec<usize> {
        let changed = match self.run_mode {
            RunMode::Batch => {
                self.send_batches(run, coverages, interrupt, report);
                Ok(Vec::new())
            }
            _ => self.request_live_answers(run, coverages, interrupt, report),
        };
        if let Err(error) = self.finish_refresh_jobs(coverages, report) {
            report.failure.get_or_insert(error.into());
        }
        let changed = changed.and_then(|changed| {
            if !changed.is_empty() {
                self.update_coverage(&changed, coverages, target)?;
            }
            Ok(changed)
        });
        if let Err(error) = self.recount_answers() {
            report.failure.get_or_insert(error);
        }
        changed.unwrap_or_else(|error| {
            report.failure = Some(error);
            Vec::new()
        })
    }

    /// Requests first answers, then the meaning of unlisted values, then second answers. Returns
    /// the positions of the expansions whose first answers may have been superseded.
    fn request_live_answers(
        &self,
        run: &Run,
        coverages: &[CoverageReport<'w>],
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<Vec<usize>, MaterializeError> {
        let model_run = self.start_model_run(run, interrupt)?;
        self.search_evidence(run, &model_run, coverages, report)?;
        report.in_doubt = model_run.budget.unconfirmed_cost();
        if report.has_stopped() {
            return Ok(Vec::new());
        }
        self.fill_cells(run, &model_run, coverages, report);
        if report.stop_reason.is_some() || report.failure.is_some() {
            return Ok(Vec::new());
        }
        let mut changed = self.unify_values(run, &model_run, report)?;
        report.in_doubt = model_run.budget.unconfirmed_cost();
        if report.stop_reason.is_none() {
            changed.extend(self.escalate_cells(run, &model_run, coverages, report)?);
        }
        changed.sort_unstable();
        changed.dedup();
        Ok(changed)
    }

    /// Returns whether the published tables must be kept because no request succeeded. The tables
    /// may contain another model's values, which are better than NULLs.
    fn must_keep_tables(&self, target: &OutputTarget, report: &Report) -> bool {
        let nothing_answered = self.run_mode != RunMode::CachedOnly
            && report.answered_by_others == 0
            && report.requested.total() == report.requested.get(State::Error);
        nothing_answered
            && target
                .published_database(self.database)
                .is_some_and(|db| self.has_published_tables(db) && !self.has_current_versions(db))
    }

    /// Returns advice if all answers of the run were unreadable or refused, or if none of a
    /// column's answers is in its value list.
    fn format_failure_advice(&self, report: &Report) -> Option<String> {
        let is_all = |requested: &Tally, state| {
            requested.total() > 0 && requested.total() == requested.get(state)
        };
        if is_all(&report.requested, State::Invalid) {
            return Some(self.format_unreadable_advice());
        }
        if is_all(&report.requested, State::Refused) {
            return Some(
                "the model or the endpoint's content filter refused all answers: `hqdl why` shows the reply for a cell. Try another model or another `about`, then pass --retry-failed"
                    .to_owned(),
            );
        }
        let mut columns = report.columns.iter().flatten();
        let column = columns.find(|c| is_all(&c.requested, State::NotInList))?;
        Some(format!(
            "no answer for `{}` is in its value list: `hqdl why` shows the reply for a cell. Add the answers to `values` or `aliases`, or set `open = true`",
            column.column
        ))
    }

    /// Returns the advice for a run in which no answer could be parsed.
    fn format_unreadable_advice(&self) -> String {
        let is_csv = self.spec.expansions.iter().any(|e| e.format == Some(Format::Csv));
        let advice = if is_csv {
            "small models often answer in JSON only: set `format = \"json\"` in the expansion"
        } else {
            "`hqdl why` shows the reply for a cell. Try `rows_per_request = 1` or another model"
        };
        format!("hqdl could not read any answer of this run: {advice}, then pass --retry-failed")
    }

    /// Returns true if the database contains published tables of all expansions.
    fn has_published_tables(&self, db: &Database) -> bool {
        let published = db.list_published_expansions().unwrap_or_default();
        self.spec
            .expansions
            .iter()
            .all(|e| published.iter().any(|p| p.expansion.eq_ignore_ascii_case(&e.name)))
    }
}

/// Reason why a walk over the keys ended early.
enum WalkError {
    Sqlite(rusqlite::Error),
    Store(StoreError),
    Facts(FactsError),
    /// The receiver of the batches was dropped.
    Closed,
}

impl WalkError {
    fn into_materialize_error(self, db: &Database) -> MaterializeError {
        match self {
            Self::Sqlite(e) => db.to_store_error(&e).into(),
            Self::Store(e) => e.into(),
            Self::Facts(e) => e.into(),
            Self::Closed => MaterializeError::Stopped(StopReason::Interrupted),
        }
    }
}

impl From<rusqlite::Error> for WalkError {
    fn from(e: rusqlite::Error) -> Self {
        Self::Sqlite(e)
    }
}

impl From<StoreError> for WalkError {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<FactsError> for WalkError {
    fn from(e: FactsError) -> Self {
        Self::Facts(e)
    }
}
