//! Checks and runs specs, each in its own thread. A thread reports its result to the loop as an
//! event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::active_spec::{self, ActiveSpec};
use super::context::DaemonContext;
use super::event::{DaemonEvent, FollowUp, RunResult, SpecChecked};
use super::metrics::Metrics;
use super::spec_files::FileFingerprint;
use super::status::Cause;
use crate::cell::State;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::generate::{self, Listener, StopReason};
use crate::materialize::{Materializer, Report, RunMode, Selection};
use crate::model::{self, ModelError};
use crate::query::QueryError;
use crate::query::connection::guard::GuardedConnection;
use crate::spec::Spec;
use crate::usage::Usage;

/// Minimum interval between progress events of a run.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Reads and checks a spec on a new thread.
pub(super) fn check_spec(
    name: String,
    path: PathBuf,
    cause: Cause,
    previous: Option<Arc<ActiveSpec>>,
    context: &DaemonContext,
) {
    let (facts, metrics) = (Arc::clone(&context.facts), Arc::clone(&context.metrics));
    let events = context.events.clone();
    std::thread::spawn(move || {
        let read = || active_spec::read_spec(&path, previous.as_deref(), &facts, &metrics);
        let (files, result) = match catch_unwind(AssertUnwindSafe(read)) {
            Ok(reading) => (reading.files, reading.spec.map(Arc::new).map_err(Arc::new)),
            Err(_) => (
                vec![(path.clone(), FileFingerprint::read(&path))],
                Err(Arc::new(internal_failure())),
            ),
        };
        drop(facts);
        let checked = SpecChecked { name, cause, files, result };
        let _ = events.blocking_send(DaemonEvent::SpecChecked(Box::new(checked)));
    });
}

/// Parameters of a run.
pub(super) struct RunParameters {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) active_spec: Arc<ActiveSpec>,
    pub(super) cause: Cause,
    pub(super) selection: Selection,
    pub(super) budget: Option<f64>,
    /// Time limit for the database to evaluate the selection's SQL.
    pub(super) timeout: Option<Duration>,
    /// Whether the run may ask the model. If not, it publishes the known values and plans the rest.
    pub(super) spend: bool,
    /// Whether the run fails if the published tables come from another cache. Otherwise it replaces
    /// them.
    pub(super) keep_other_tables: bool,
}

/// Progress of a run, shared with the event loop.
#[derive(Default)]
pub(super) struct RunProgress(Mutex<RunCounters>);

/// Counters of a run in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct RunCounters {
    pub(super) cells: u64,
    pub(super) done: u64,
    pub(super) usage: Usage,
    pub(super) failed: u64,
    pub(super) last_error: Option<String>,
    pub(super) last_warning: Option<String>,
    last_event_at: Option<Instant>,
    /// Whether the counters have changed since the last progress event.
    has_unreported: bool,
}

impl RunProgress {
    /// Returns the current counters.
    pub(super) fn counters(&self) -> RunCounters {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RunCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a listener that updates the counters and the metrics, and notifies the loop.
    fn new_counting_listener(
        self: &Arc<Self>,
        id: u64,
        metrics: &Arc<Metrics>,
        events: &mpsc::Sender<DaemonEvent>,
    ) -> Listener {
        let (progress, events) = (Arc::clone(self), events.clone());
        let metrics_listener = metrics.new_usage_listener();
        Arc::new(move |event: &generate::Event| {
            metrics_listener(event);
            let mut counters = progress.lock();
            let at_once = match event {
                generate::Event::Begin { cells, .. } => {
                    counters.cells += cells;
                    true
                }
                generate::Event::Stored { cells, usage } => {
                    counters.done += cells.total();
                    counters.usage = *usage;
                    false
                }
                generate::Event::Failed(message) => {
                    counters.failed += 1;
                    counters.last_error = Some(message.clone());
                    false
                }
                generate::Event::Warning(message) => {
                    counters.last_warning = Some(message.clone());
                    true
                }
                _ => return,
            };
            if at_once || counters.last_event_at.is_none_or(|t| t.elapsed() >= PROGRESS_INTERVAL) {
                // If the loop's queue is full, the next event notifies the loop.
                let is_sent = events.try_send(DaemonEvent::RunProgressed(id)).is_ok();
                counters.last_event_at = is_sent.then(Instant::now);
            } else {
                counters.has_unreported = true;
            }
        })
    }

    /// After a short delay, notifies the loop about events that were not reported yet. Without this
    /// notification, the last event before a long silence would never be shown.
    pub(super) fn notify_after_delay(
        self: &Arc<Self>,
        id: u64,
        events: &mpsc::Sender<DaemonEvent>,
    ) {
        let (progress, events) = (Arc::clone(self), events.clone());
        tokio::spawn(async move {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let has_unreported = std::mem::take(&mut progress.lock().has_unreported);
            if has_unreported {
                progress.lock().last_event_at = Some(Instant::now());
                let _ = events.send(DaemonEvent::RunProgressed(id)).await;
            }
        });
    }
}

/// Runs a spec on a new thread.
pub(super) fn start_run(
    parameters: RunParameters,
    facts: Arc<Facts>,
    interrupt: watch::Receiver<bool>,
    progress: &Arc<RunProgress>,
    metrics: &Arc<Metrics>,
    events: mpsc::Sender<DaemonEvent>,
) -> std::thread::JoinHandle<()> {
    let listener = progress.new_counting_listener(parameters.id, metrics, &events);
    let metrics = Arc::clone(metrics);
    std::thread::spawn(move || {
        let began = Instant::now();
        let id = parameters.id;
        let result = catch_unwind(AssertUnwindSafe(|| {
            execute_run(&parameters, &facts, &listener, &interrupt)
        }));
        let mut ended = match result {
            Ok(Ok(ended)) => ended,
            Ok(Err(failure)) => to_failed_result(failure, FollowUp::Retry),
            Err(_) => to_failed_result(internal_failure(), FollowUp::Hold),
        };
        drop(facts);
        metrics.count_reused_values(ended.reused);
        ended.id = id;
        ended.seconds = began.elapsed().as_secs_f64();
        let _ = events.blocking_send(DaemonEvent::RunEnded(Box::new(ended)));
    })
}

fn execute_run(
    parameters: &RunParameters,
    facts: &Facts,
    listener: &Listener,
    interrupt: &watch::Receiver<bool>,
) -> Result<RunResult, Failure> {
    let mut spec = parameters.active_spec.spec.clone();
    spec.set_budget(parameters.budget)?;
    let guard =
        GuardedConnection::open_for_sql(&spec.database, parameters.timeout, interrupt.clone())?;
    let model = match (&parameters.active_spec.model, parameters.spend) {
        (Ok(model), _) => Arc::clone(model),
        (Err(_), false) => model::connect_for_planning(&spec)?,
        // Publish the known values before reporting that no model is available.
        (Err(why), true) => {
            let published =
                execute_run(&copy_without_spending(parameters), facts, listener, interrupt)?;
            let missing = published.columns.iter().flatten().any(|c| c.unasked > 0);
            return Ok(if missing {
                RunResult {
                    failure: Some(Failure::clone(why)),
                    follow_up: FollowUp::Hold,
                    ..published
                }
            } else {
                published
            });
        }
    };
    let run_mode = if parameters.spend { RunMode::Live } else { RunMode::CachedOnly };
    let materializer =
        Materializer::new(&spec, guard.database(), facts, model, &parameters.selection)
            .and_then(|materializer| materializer.with_run_mode(run_mode));
    let materializer = match materializer {
        Ok(materializer) => materializer,
        Err(failure) => return Err(guard_failure(&guard).unwrap_or_else(|| failure.into())),
    };
    let other_table = materializer.find_table_of_other_cache()?;
    if let (Some(table), true) = (other_table, parameters.keep_other_tables) {
        let failure = other_cache_failure(table, &spec);
        return Ok(RunResult {
            had_other_tables: true,
            ..to_failed_result(failure, FollowUp::Hold)
        });
    }
    let command = format!("daemon {}", parameters.name);
    // When the run sends its first request, it has read all keys. Release the guard then, so that
    // an interrupted run still publishes its answers.
    let (inner_listener, release) = (Arc::clone(listener), guard.disarm_handle());
    let listener: Listener = Arc::new(move |event: &generate::Event| {
        if matches!(event, generate::Event::Begin { .. }) {
            release();
        }
        inner_listener(event);
    });
    let mut report = materializer
        .materialize(&command, &listener, interrupt)
        .unwrap_or_else(|failed| Report { failure: Some(failed), ..Report::default() });
    if report.failure.is_some() {
        match guard.abort_error() {
            Some(QueryError::Stopped(stopped)) => {
                report.failure = None;
                report.stop_reason = Some(Arc::new(stopped));
            }
            Some(_) => return Err(guard_failure(&guard).unwrap_or_else(internal_failure)),
            None => {}
        }
    }
    let follow_up = match choose_follow_up(&report) {
        FollowUp::Hold if is_daily_budget_reached(&report, &spec, facts)? => FollowUp::NextDay,
        follow_up => follow_up,
    };
    let has_columns = !report.columns.is_empty();
    let interrupted = matches!(report.stop_reason.as_deref(), Some(StopReason::Interrupted));
    let failure = Failure::take_from_report(&mut report);
    let needs_approval = !parameters.spend && report.unasked > 0 && failure.is_none();
    let plan = if needs_approval { Some(materializer.plan_requests()?.0.to_json()) } else { None };
    Ok(RunResult {
        id: 0,
        seconds: 0.0,
        columns: has_columns.then(|| report.columns.iter().flatten().cloned().collect()),
        report: Some(report.to_json(0.0)),
        published: report.published,
        had_other_tables: report.published && other_table.is_some(),
        reused: report.reused,
        complete: report.is_complete(),
        interrupted,
        failure,
        plan,
        follow_up,
    })
}

fn copy_without_spending(parameters: &RunParameters) -> RunParameters {
    RunParameters {
        id: parameters.id,
        name: parameters.name.clone(),
        active_spec: Arc::clone(&parameters.active_spec),
        cause: parameters.cause,
        selection: parameters.selection.clone(),
        budget: parameters.budget,
        timeout: parameters.timeout,
        spend: false,
        keep_other_tables: parameters.keep_other_tables,
    }
}

fn choose_follow_up(report: &Report) -> FollowUp {
    match (report.stop_reason.as_deref(), &report.failure) {
        (Some(StopReason::Interrupted | StopReason::BatchesPending(_)), _) => FollowUp::Nothing,
        (
            Some(
                StopReason::Endpoint(
                    ModelError::Refused { .. } | ModelError::Budget(_) | ModelError::Usage(_),
                )
                | StopReason::Bug(_),
            ),
            _,
        ) => FollowUp::Hold,
        (Some(_), _) | (None, Some(_)) => FollowUp::Retry,
        (None, None) if report.requested.get(State::Error) > 0 => FollowUp::Retry,
        (None, None) => FollowUp::Nothing,
    }
}

/// Returns true if the daily budget ended the run.
fn is_daily_budget_reached(report: &Report, spec: &Spec, facts: &Facts) -> Result<bool, Failure> {
    let (Some(day), Some(StopReason::Endpoint(ModelError::Budget(reached)))) =
        (spec.limits.budget_usd_per_day, report.stop_reason.as_deref())
    else {
        return Ok(false);
    };
    let is_its_own = reached.caps.usd == Some(day) && reached.caps.tokens.is_none();
    // The run's own budget may be equal to the daily one, so check today's spending too.
    Ok(is_its_own && facts.history().sum_cost_today()? + reached.next.usd > day)
}

fn to_failed_result(failure: Failure, follow_up: FollowUp) -> RunResult {
    RunResult {
        id: 0,
        seconds: 0.0,
        columns: None,
        report: None,
        published: false,
        had_other_tables: false,
        reused: 0,
        complete: false,
        interrupted: false,
        failure: Some(failure),
        plan: None,
        follow_up,
    }
}

/// Returns the reason why the guard interrupted the database, if it did.
pub(super) fn guard_failure(guard: &GuardedConnection) -> Option<Failure> {
    guard_failure_with_hint(guard, "simplify `where`, which runs for every key, or raise `timeout`")
}

/// Like [`guard_failure`]; `hint` is the advice after a timeout.
pub(super) fn guard_failure_with_hint(guard: &GuardedConnection, hint: &str) -> Option<Failure> {
    guard.abort_error().map(|broken| match broken {
        QueryError::Timeout(limit) => Failure::wrong_input(
            format!("the database took longer than {} s", limit.as_secs_f64()),
            hint,
        ),
        other => other.into(),
    })
}

/// Returns the failure for a run that would keep replacing the tables of another process.
fn other_cache_failure(table: &str, spec: &Spec) -> Failure {
    Failure::wrong_input(
        format!(
            "another process publishes `{table}` in {} from another cache, so this daemon leaves the tables unchanged",
            spec.target().display()
        ),
        "use the same --cache for both, or give each its own `output`; a run that you request publishes here again",
    )
}

fn internal_failure() -> Failure {
    Failure::wrong_input("this is a bug in hqdl", "all answers are kept; please report this")
}
