//! Materialization: requests a spec's missing cells, stores the answers and publishes the tables.
//!
//! `coverage` walks the keys and finds the missing cells, `fill` requests them, and `publish` writes
//! the tables. All three walk the same gathered keys and work independently: a plan is only a
//! coverage report, and a run without missing cells makes no request and writes nothing.

mod counts;
mod fill;
mod batch_jobs;
mod publish;
mod report;
mod room;
mod refresh;
mod run;
mod shots;
mod survey;
mod unify;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

pub use self::batch_jobs::{Exported, Imported, InFile, WrittenFile};
use self::refresh::RefreshJob;
pub use self::report::{ColumnReport, Report};
use self::run::Run;
pub use self::run::Way;
use self::survey::{Survey, orphans};
use hqdl_database::output::{OutputTarget, sweep};
use hqdl_database::{Database, StoreError};
use hqdl_facts::{Facts, FactsError, Wanted};
use hqdl_model::generate::{Event, Listener, Stopped};
use hqdl_model::plan::Plan;
use hqdl_model::{self as model, Model, ModelChoice, SetupError};

use hqdl_spec::overrides::{Overrides, OverridesError};
use hqdl_spec::{Expansion, Format, Provider, Spec};
use hqdl_values::cell::State;
use hqdl_values::format::count_noun;

/// Reasons why a spec could not be materialized.
#[derive(Debug, thiserror::Error)]
pub enum MaterializeError {
    /// An error of a database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error of the fact store.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The model could not be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The run stopped early; every answer received so far is stored and published.
    #[error(transparent)]
    Stopped(Stopped),
    /// The overrides file is invalid.
    #[error(transparent)]
    Overrides(#[from] OverridesError),
    /// `--columns` or `--refresh` names a column that no expansion has.
    #[error("no expansion has a column `{0}`")]
    NoColumn(String),
    /// The condition of `--where` is invalid for every expansion.
    #[error("--where: {0}")]
    Where(String),
    /// The model has no Batch API.
    #[error("recordings cannot be run as batches")]
    NoBatches,
    /// An expansion names another model, but batches are sent only to the model of `[model]`.
    #[error("`{expansion}` uses [model.{model}], but hqdl sends batches only to [model]")]
    BatchesOfOther {
        /// The expansion.
        expansion: String,
        /// The named model.
        model: String,
    },
    /// The expansion sends images, which batches do not support.
    #[error("`{0}` sends images, which batches do not support")]
    BatchesOfImages(String),
    /// The async runtime could not be started.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// The subset of the missing cells that a run requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Maximum number of keys per expansion.
    pub limit: Option<u64>,
    /// Only these columns.
    pub columns: Option<Vec<String>>,
    /// Only keys of source rows that satisfy this SQL condition.
    pub filter: Option<String>,
    /// Columns whose answered cells are requested again.
    pub refresh: Vec<String>,
    /// Whether cells without a value are requested again.
    pub retry_failed: bool,
}

impl Selection {
    /// Returns true if the selection excludes any cells.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.limit.is_some() || self.columns.is_some() || self.filter.is_some()
    }

    /// Returns the index of the column with this name in an expansion. The name is `genre`, or
    /// `llm_album.genre` if several expansions have a column `genre`.
    #[must_use]
    pub fn column(expansion: &Expansion, name: &str) -> Option<usize> {
        expansion.column(name).or_else(|| {
            let at = expansion.name.len();
            let of = name.get(..at).is_some_and(|of| of.eq_ignore_ascii_case(&expansion.name));
            expansion.column(name.get(at..)?.strip_prefix('.')?).filter(|_| of)
        })
    }
}

/// A spec together with its database, fact store and model: everything a run needs.
pub struct Work<'w> {
    spec: Cow<'w, Spec>,
    database: &'w Database,
    facts: &'w Facts,
    model: Arc<dyn Model>,
    selection: &'w Selection,
    /// Selected columns, per expansion.
    columns: Vec<Vec<bool>>,
    wanted: Vec<Arc<Wanted>>,
    /// Columns to refresh or retry.
    rounds: Vec<RefreshJob>,
    overrides: Overrides,
    way: Way,
    /// Whether any batch job is open.
    parcels: Cell<bool>,
    /// Change counter of the database when the coverage was computed.
    version: Cell<i64>,
    /// Number of missing cells in unanswered export files, by batch job. `None` if these cells are
    /// requested anyway.
    in_files: RefCell<Option<BTreeMap<i64, u64>>>,
}

impl<'w> Work<'w> {
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
        let named = selection.columns.iter().flatten().chain(&selection.refresh);
        for name in named {
            if spec.expansions.iter().all(|e| Selection::column(e, name).is_none()) {
                return Err(MaterializeError::NoColumn(name.clone()));
            }
        }
        let columns = spec
            .expansions
            .iter()
            .map(|e| match &selection.columns {
                None => vec![true; e.columns.len()],
                Some(names) => {
                    let mut chosen = vec![false; e.columns.len()];
                    let named = names.iter().filter_map(|n| Selection::column(e, n));
                    named.for_each(|c| chosen[c] = true);
                    chosen
                }
            })
            .collect();
        let history = facts.history();
        let (mut wanted, mut rounds) = (Vec::new(), Vec::new());
        for (n, expansion) in spec.expansions.iter().enumerate() {
            let choice = model::choose(spec, Some(&*model), expansion);
            let mut w = choice.wanted(history, expansion)?;
            rounds.extend(refresh::of(history, spec, n, &mut w, selection)?);
            wanted.push(Arc::new(w));
        }
        let overrides = Overrides::read(spec)?;
        let spec = shots::with_overrides(spec, database, &overrides)?;
        Ok(Self {
            spec,
            database,
            facts,
            model,
            selection,
            columns,
            wanted,
            rounds,
            overrides,
            way: Way::Live,
            parcels: Cell::new(false),
            version: Cell::new(0),
            in_files: RefCell::default(),
        })
    }

    /// Sets the run mode; the default is [`Way::Live`].
    ///
    /// # Errors
    /// Returns an error if the model or the spec does not support batches and the mode is
    /// [`Way::Batch`].
    pub fn by(mut self, way: Way) -> Result<Self, MaterializeError> {
        if way == Way::Batch && self.spec.model.provider == Provider::Replay {
            return Err(MaterializeError::NoBatches);
        }
        let other = self.spec.expansions.iter().find_map(|e| Some((e, e.model.as_deref()?)));
        if way == Way::Batch
            && let Some((expansion, model)) = other
            && self.model.other(model).is_some()
        {
            let expansion = expansion.name.clone();
            return Err(MaterializeError::BatchesOfOther { expansion, model: model.to_owned() });
        }
        if way == Way::Batch {
            self.shows_no_images()?;
        }
        self.way = way;
        Ok(self)
    }

    /// Returns an error if an expansion sends images. A batch may be sent by another process a day
    /// later, but images are read when the request is sent.
    pub(super) fn shows_no_images(&self) -> Result<(), MaterializeError> {
        match self.spec.expansions.iter().find(|e| e.has_images()) {
            Some(expansion) => Err(MaterializeError::BatchesOfImages(expansion.name.clone())),
            None => Ok(()),
        }
    }

    /// Returns the model name under which the run's facts are stored.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.model.name()
    }

    /// Returns the plan of a run and its warnings, without making a request.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if keys or facts cannot be read.
    pub fn plan(&self) -> Result<(Plan, Vec<String>), MaterializeError> {
        let mut plan = Plan {
            counted: self.counts_exactly(),
            price_notes: self.spec.reserved_price_notes(),
            ..Plan::default()
        };
        let (mut warnings, mut surveys) = (Vec::new(), Vec::new());
        let target = Database::open(self.spec.target()).ok();
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            let mut survey = self.survey(n, true)?;
            warnings.extend(
                survey
                    .keys
                    .report
                    .run_remarks()
                    .into_iter()
                    .map(|r| format!("{}: {r}", expansion.name)),
            );
            if let Some(target) = &target {
                survey.plan.orphaned = orphans(target, expansion, &survey.keys)?;
            }
            if survey.under_way() > 0 {
                warnings.push(format!(
                    "{}: running batches ask for {}, which the plan leaves out",
                    expansion.name,
                    count_noun(survey.under_way(), "cell")
                ));
            }
            plan.expansions.push(survey.plan.clone());
            plan.expansions.extend(self.unify_plan(n, &survey)?);
            surveys.push(survey);
        }
        warnings.extend(self.rounds_gone_on_with(&surveys));
        warnings.extend(self.overrides.warnings.iter().cloned());
        warnings.extend(self.strangers(&surveys));
        warnings.extend(self.passed_over(&surveys)?);
        self.price(&mut plan)?;
        Ok((plan, warnings))
    }

    /// Materializes the spec: requests the missing cells, stores the answers and publishes the
    /// tables. If `interrupt` becomes true, the run ends early and keeps all answers.
    ///
    /// # Errors
    /// Returns [`MaterializeError`]. If the run stops early, this function succeeds and the report
    /// contains the reason, because the answers are stored and published.
    pub fn materialize(
        &self,
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Report, MaterializeError> {
        let mut report = Report {
            priced: self.spec.is_priced(),
            target: self.spec.target().clone(),
            ..Report::of(&self.spec)
        };
        let batches = match self.way {
            Way::Batch => Some(self.batches_alone(listener, interrupt)?),
            _ => None,
        };
        let mut run = None;
        let stands =
            self.bring(&mut run, batches.is_some(), command, listener, interrupt, &mut report);
        self.end(run, matches!(stands, Ok(true)), &mut report);
        stands.map(|_| report)
    }

    /// Requests the missing cells and publishes the tables. Returns true if the tables are up to
    /// date. `run` receives the run once it is started; the caller ends it.
    #[expect(clippy::too_many_lines, reason = "a run from its beginning to its end")]
    fn bring(
        &self,
        run: &mut Option<Run>,
        alone: bool,
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<bool, MaterializeError> {
        if let Some(output) = &self.spec.output {
            sweep(output);
        }
        *run = self.recover(alone, command, listener, interrupt, report)?;
        self.version.set(self.database.version()?);
        let mut surveys = Vec::new();
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            let survey = self.survey(n, false)?;
            for remark in survey.keys.report.run_remarks() {
                listener(&Event::Warning(format!("{}: {remark}", expansion.name)));
            }
            report.reused += survey.known;
            surveys.push(survey);
        }
        let under_way: u64 = surveys.iter().map(Survey::under_way).sum();
        if under_way > 0 && self.way == Way::Live {
            listener(&Event::Warning(format!(
                "running batches ask for {}, which this run skips: `--batch` waits for them",
                count_noun(under_way, "cell")
            )));
        }
        let mut said = self.rounds_gone_on_with(&surveys);
        said.extend(self.overrides.warnings.iter().cloned());
        said.extend(self.strangers(&surveys));
        said.extend(self.passed_over(&surveys)?);
        for said in &said {
            listener(&Event::Warning(said.clone()));
        }
        let target = OutputTarget::look(self.database, self.spec.output.as_deref())?;
        let missing: u64 = surveys.iter().map(Survey::missing).sum();
        let strangers = surveys.iter().any(|s| !s.strangers.is_empty());
        let ask = report.stopped.is_none()
            && match self.way {
                Way::Live => missing > 0 || strangers,
                Way::Batch => missing > 0 || under_way > 0,
                Way::Kept => false,
            };
        if !ask && missing == 0 {
            self.end_rounds(&surveys, report)?;
        }
        let stands = target.standing(self.database);
        if let Some(db) = target.before(self.database) {
            self.tell_of_edits(db, listener)?;
        }
        if !ask && stands.is_some_and(|db| self.stands(db, &surveys)) {
            self.settle(run.as_ref(), report);
            report.as_surveyed(&surveys);
            return Ok(true);
        }
        // Check write access before any request is paid for.
        target.try_writing()?;
        let mut learned = Vec::new();
        if ask {
            surveys = self.warn_of_budget(surveys, listener)?;
        }
        if let Some(db) = target.before(self.database) {
            self.look_for_differences(db, &mut surveys)?;
        }
        if ask {
            self.begin_rounds(&surveys)?;
            // From here on, failures go into the report: the run still reports its cost and
            // publishes its answers.
            let run = match run {
                Some(run) => run,
                None => run.insert(self.start(command, listener)?),
            };
            match self.way {
                Way::Batch => self.send(run, &surveys, interrupt, report),
                _ => self.fill(run, &surveys, interrupt, report),
            }
            if let Err(error) = self.end_rounds(&surveys, report) {
                report.failed.get_or_insert(error.into());
            }
            if self.way == Way::Live && report.stopped.is_none() && report.failed.is_none() {
                match self.unify(run, interrupt, report) {
                    Ok(all) if all.is_empty() => {}
                    Ok(all) => match self.look_again(&all, &mut surveys, &target) {
                        Ok(()) => learned = all,
                        Err(error) => report.failed = Some(error),
                    },
                    Err(error) => report.failed = Some(error),
                }
            }
        }
        self.settle(run.as_ref(), report);
        self.tell_unified(&learned, &surveys, report);
        report.reused += report.found;
        // If no request succeeded, keep the published tables: they may contain another model's
        // values, which are better than NULLs.
        let nothing = missing > 0
            && self.way != Way::Kept
            && report.found == 0
            && report.asked.total() == report.asked.get(State::Error);
        let keeps = |db: &Database| self.is_published_at_all(db) && !self.stands_as_ours(db);
        if nothing && target.standing(self.database).is_some_and(keeps) {
            report.as_surveyed(&surveys);
            listener(&Event::Warning(
                "the model answered nothing, so the published tables are unchanged".to_owned(),
            ));
            return Ok(true);
        }
        if report.asked.total() > 0 && report.asked.total() == report.asked.get(State::Invalid) {
            listener(&Event::Warning(self.unreadable_advice()));
        }
        match self.publish(&surveys, listener, interrupt, report) {
            Err(MaterializeError::Stopped(why)) => {
                report.as_surveyed(&surveys);
                listener(&Event::Warning(
                    "another run publishes into the same database, so this run leaves the tables unchanged".to_owned(),
                ));
                report.stopped.get_or_insert(Arc::new(why));
            }
            published => report.failed = report.failed.take().or(published.err()),
        }
        Ok(report.published)
    }

    /// Returns the advice for a run whose answers were all unreadable.
    fn unreadable_advice(&self) -> String {
        let is_csv = self.spec.expansions.iter().any(|e| e.format == Some(Format::Csv));
        let advice = if is_csv {
            "small models often answer in JSON only: set `format = \"json\"` in the expansion"
        } else {
            "look at one with `hqdl why`, and try `rows_per_request = 1` or another model"
        };
        format!("hqdl could not read any answer of this run; {advice}, then pass --retry-failed")
    }

    /// Returns true if the database contains published tables of all expansions.
    fn is_published_at_all(&self, db: &Database) -> bool {
        let before = db.published().unwrap_or_default();
        self.spec
            .expansions
            .iter()
            .all(|e| before.iter().any(|p| p.expansion.eq_ignore_ascii_case(&e.name)))
    }

    fn choice(&self, expansion: &Expansion) -> ModelChoice {
        model::choose(&self.spec, Some(&*self.model), expansion)
    }
}

/// Reasons to end a walk over the keys.
enum Halt {
    Sqlite(rusqlite::Error),
    Store(StoreError),
    Facts(FactsError),
    /// The receiver of the batches was dropped.
    Closed,
}

impl Halt {
    fn into_error(self, db: &Database) -> MaterializeError {
        match self {
            Self::Sqlite(e) => db.error(&e).into(),
            Self::Store(e) => e.into(),
            Self::Facts(e) => e.into(),
            Self::Closed => MaterializeError::Stopped(Stopped::Interrupted),
        }
    }
}

impl From<rusqlite::Error> for Halt {
    fn from(e: rusqlite::Error) -> Self {
        Self::Sqlite(e)
    }
}

impl From<StoreError> for Halt {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<FactsError> for Halt {
    fn from(e: FactsError) -> Self {
        Self::Facts(e)
    }
}
