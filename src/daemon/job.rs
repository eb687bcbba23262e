//! Long-running jobs, each on its own thread: checking a spec and running one. A thread reports its
//! result to the loop as an event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::event::{After, Checked, DaemonEvent, EndedRun};
use super::house::DaemonContext;
use super::listing::Stamp;
use super::loaded::{self, ActiveSpec};
use super::metrics::Metrics;
use super::status::Cause;
use crate::cell::State;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::generate::{self, Listener, Stopped};
use crate::materialize::{Report, Selection, Way, Work};
use crate::model::{self, ModelError};
use crate::query::QueryError;
use crate::query::guard::Guard;
use crate::spec::Spec;
use crate::usage::Usage;

/// Minimum interval between progress events of a run.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// Reads and checks a spec on a new thread.
pub(super) fn check(
    name: String,
    path: PathBuf,
    cause: Cause,
    before: Option<Arc<ActiveSpec>>,
    house: &DaemonContext,
) {
    let (facts, metrics) = (Arc::clone(&house.facts), Arc::clone(&house.metrics));
    let events = house.events.clone();
    std::thread::spawn(move || {
        let read = || loaded::read(&path, before.as_deref(), &facts, &metrics);
        let (files, result) = match catch_unwind(AssertUnwindSafe(read)) {
            Ok(reading) => (reading.files, reading.spec.map(Arc::new).map_err(Arc::new)),
            Err(_) => (vec![(path.clone(), Stamp::of(&path))], Err(Arc::new(bug()))),
        };
        drop(facts);
        let checked = Checked { name, cause, files, result };
        let _ = events.blocking_send(DaemonEvent::Checked(Box::new(checked)));
    });
}

/// Parameters of a run.
pub(super) struct RunOrder {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) loaded: Arc<ActiveSpec>,
    pub(super) cause: Cause,
    pub(super) selection: Selection,
    pub(super) budget: Option<f64>,
    /// Time limit of the database for the keys of the selection's SQL.
    pub(super) timeout: Option<Duration>,
    /// Whether the run may ask the model. If not, it publishes the known values and plans the rest.
    pub(super) spend: bool,
}

/// Progress of a run, shared with the loop.
#[derive(Default)]
pub(super) struct RunProgress(Mutex<Going>);

/// Counters of a run in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct Going {
    pub(super) cells: u64,
    pub(super) done: u64,
    pub(super) usage: Usage,
    pub(super) failed: u64,
    pub(super) last_error: Option<String>,
    told: Option<Instant>,
    /// Whether something happened since the last progress event.
    owed: bool,
}

impl RunProgress {
    /// Returns the current counters.
    pub(super) fn now(&self) -> Going {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Going> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a listener that updates the counters and the metrics, and notifies the loop.
    fn listener(
        self: &Arc<Self>,
        id: u64,
        metrics: &Arc<Metrics>,
        events: &mpsc::Sender<DaemonEvent>,
    ) -> Listener {
        let (progress, events) = (Arc::clone(self), events.clone());
        let metered = metrics.listener();
        Arc::new(move |event: &generate::Event| {
            metered(event);
            let mut going = progress.lock();
            let at_once = match event {
                generate::Event::Begin { cells, .. } => {
                    going.cells += cells;
                    true
                }
                generate::Event::Kept { cells, usage } => {
                    going.done += cells.total();
                    going.usage = *usage;
                    false
                }
                generate::Event::Failed(message) => {
                    going.failed += 1;
                    going.last_error = Some(message.clone());
                    false
                }
                _ => return,
            };
            if at_once || going.told.is_none_or(|t| t.elapsed() >= SHOWN_EVERY) {
                // If the loop's queue is full, the next event notifies it.
                let is_told = events.try_send(DaemonEvent::Progress(id)).is_ok();
                going.told = is_told.then(Instant::now);
            } else {
                going.owed = true;
            }
        })
    }

    /// Notifies the loop again after a short delay if something happens until then, so that the
    /// last event before a long silence is shown, too.
    pub(super) fn look_again(self: &Arc<Self>, id: u64, events: &mpsc::Sender<DaemonEvent>) {
        let (progress, events) = (Arc::clone(self), events.clone());
        tokio::spawn(async move {
            tokio::time::sleep(SHOWN_EVERY).await;
            let is_owed = std::mem::take(&mut progress.lock().owed);
            if is_owed {
                progress.lock().told = Some(Instant::now());
                let _ = events.send(DaemonEvent::Progress(id)).await;
            }
        });
    }
}

/// Runs a spec on a new thread.
pub(super) fn run(
    order: RunOrder,
    facts: Arc<Facts>,
    interrupt: watch::Receiver<bool>,
    progress: &Arc<RunProgress>,
    metrics: &Arc<Metrics>,
    events: mpsc::Sender<DaemonEvent>,
) -> std::thread::JoinHandle<()> {
    let listener = progress.listener(order.id, metrics, &events);
    let metrics = Arc::clone(metrics);
    std::thread::spawn(move || {
        let began = Instant::now();
        let id = order.id;
        let made = catch_unwind(AssertUnwindSafe(|| make(&order, &facts, &listener, &interrupt)));
        let mut ended = match made {
            Ok(Ok(ended)) => ended,
            Ok(Err(failure)) => failed(failure, After::Retry),
            Err(_) => failed(bug(), After::Hold),
        };
        drop(facts);
        metrics.reused(ended.reused);
        ended.id = id;
        ended.seconds = began.elapsed().as_secs_f64();
        let _ = events.blocking_send(DaemonEvent::Ended(Box::new(ended)));
    })
}

fn make(
    order: &RunOrder,
    facts: &Facts,
    listener: &Listener,
    interrupt: &watch::Receiver<bool>,
) -> Result<EndedRun, Failure> {
    let mut spec = order.loaded.spec.clone();
    spec.set_budget(order.budget)?;
    let guard = Guard::watch(&spec.database, order.timeout, interrupt.clone())?;
    let model = match (&order.loaded.model, order.spend) {
        (Ok(model), _) => Arc::clone(model),
        (Err(_), false) => model::for_planning(&spec)?,
        // Publish the known values before reporting that no model is available.
        (Err(why), true) => {
            let kept = make(&without_spending(order), facts, listener, interrupt)?;
            let missing = kept.columns.iter().flatten().any(|c| c.unasked > 0);
            return Ok(if missing {
                EndedRun { failure: Some(Failure::clone(why)), after: After::Hold, ..kept }
            } else {
                kept
            });
        }
    };
    let way = if order.spend { Way::Live } else { Way::Kept };
    let work = Work::new(&spec, guard.database(), facts, model, &order.selection)
        .and_then(|work| work.by(way));
    let work = match work {
        Ok(work) => work,
        Err(failure) => return Err(broken_off(&guard).unwrap_or_else(|| failure.into())),
    };
    let command = format!("daemon {}", order.name);
    // When the run starts to ask, its keys are complete. From then on the guard is released, so
    // that answers are published even if the run is interrupted.
    let (told, free) = (Arc::clone(listener), guard.freeing());
    let listener: Listener = Arc::new(move |event: &generate::Event| {
        if matches!(event, generate::Event::Begin { .. }) {
            free();
        }
        told(event);
    });
    let mut report = work
        .materialize(&command, &listener, interrupt)
        .unwrap_or_else(|failed| Report { failed: Some(failed), ..Report::default() });
    if report.failed.is_some() {
        match guard.broken() {
            Some(QueryError::Stopped(stopped)) => {
                report.failed = None;
                report.stopped = Some(Arc::new(stopped));
            }
            Some(_) => return Err(broken_off(&guard).unwrap_or_else(bug)),
            None => {}
        }
    }
    let after = match after(&report) {
        After::Hold if is_of_day(&report, &spec, facts)? => After::Tomorrow,
        after => after,
    };
    let surveyed = !report.columns.is_empty();
    let interrupted = matches!(report.stopped.as_deref(), Some(Stopped::Interrupted));
    let failure = Failure::of_run(&mut report);
    let waits = !order.spend && report.unasked > 0 && failure.is_none();
    let plan = if waits { Some(work.plan()?.0.to_json()) } else { None };
    Ok(EndedRun {
        id: 0,
        seconds: 0.0,
        columns: surveyed.then(|| report.columns.iter().flatten().cloned().collect()),
        report: Some(report.to_json(0.0)),
        published: report.published,
        reused: report.reused,
        complete: report.is_complete(),
        interrupted,
        failure,
        plan,
        after,
    })
}

fn without_spending(order: &RunOrder) -> RunOrder {
    RunOrder {
        id: order.id,
        name: order.name.clone(),
        loaded: Arc::clone(&order.loaded),
        cause: order.cause,
        selection: order.selection.clone(),
        budget: order.budget,
        timeout: order.timeout,
        spend: false,
    }
}

fn after(report: &Report) -> After {
    match (report.stopped.as_deref(), &report.failed) {
        (Some(Stopped::Interrupted | Stopped::Left(_)), _) => After::Rest,
        (
            Some(
                Stopped::Endpoint(
                    ModelError::Refused { .. } | ModelError::Budget(_) | ModelError::Usage(_),
                )
                | Stopped::Bug(_),
            ),
            _,
        ) => After::Hold,
        (Some(_), _) | (None, Some(_)) => After::Retry,
        (None, None) if report.asked.get(State::Error) > 0 => After::Retry,
        (None, None) => After::Rest,
    }
}

/// Returns true if the daily budget ended the run.
fn is_of_day(report: &Report, spec: &Spec, facts: &Facts) -> Result<bool, Failure> {
    let (Some(day), Some(Stopped::Endpoint(ModelError::Budget(reached)))) =
        (spec.limits.budget_usd_per_day, report.stopped.as_deref())
    else {
        return Ok(false);
    };
    let is_its_own = reached.caps.usd == Some(day) && reached.caps.tokens.is_none();
    // The run's own budget may have the same amount.
    Ok(is_its_own && facts.history().spent_today()? + reached.next.usd > day)
}

fn failed(failure: Failure, after: After) -> EndedRun {
    EndedRun {
        id: 0,
        seconds: 0.0,
        columns: None,
        report: None,
        published: false,
        reused: 0,
        complete: false,
        interrupted: false,
        failure: Some(failure),
        plan: None,
        after,
    }
}

/// Returns the reason why the guard interrupted the database, if it did.
pub(super) fn broken_off(guard: &Guard) -> Option<Failure> {
    guard.broken().map(|broken| match broken {
        QueryError::Timeout(limit) => Failure::input(
            format!("the database took longer than {} s", limit.as_secs_f64()),
            "simplify `where`, which runs for every key, or raise `timeout`",
        ),
        other => other.into(),
    })
}

fn bug() -> Failure {
    Failure::input("this is a bug in hqdl", "everything answered is kept; please report this")
}
