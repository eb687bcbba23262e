//! State of a spec in the loop: the active version, the pending work, and the results.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::active_spec::ActiveSpec;
use super::event::{FollowUp, RunResult, SpecChecked};
use super::job::RunParameters;
use super::spec_files::FileFingerprint;
use super::status::{Cause, SpecStatus};
use crate::failure::Failure;
use crate::format::format_count;
use crate::materialize::{ColumnReport, Selection};

/// Maximum number of runs that clients may queue for one spec.
const MAX_QUEUED: usize = 64;
/// First pause before a failed run is retried; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// Longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
const SECONDS_PER_DAY: i64 = 86_400;
/// The next run waits for this multiple of the previous run's duration, so that a database that
/// changes constantly does not keep the daemon busy.
const REST_FACTOR: u32 = 4;
/// If tables of another cache replace this daemon's tables within this multiple of a run's
/// duration, another process publishes the same tables. The other process may be a daemon that
/// rests between its runs.
const CONTEST_FACTOR: u32 = 5 * REST_FACTOR;
/// Shortest time in which replaced tables show another publisher.
const SHORTEST_CONTEST: Duration = Duration::from_secs(600);

pub(super) struct SpecState {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The last valid version of the spec.
    pub(super) active_spec: Option<Arc<ActiveSpec>>,
    /// Failure of the last check. While it is set, the current file is not active.
    pub(super) problem: Option<Arc<Failure>>,
    /// Files the spec depends on, with their fingerprints at the last check. The spec's own file is
    /// the first.
    pub(super) files: Vec<(PathBuf, FileFingerprint)>,
    /// Start time of the check in progress.
    pub(super) reading_since: Option<Instant>,
    /// Reason for the next check. If it is set during a check, another check follows.
    pub(super) check_cause: Option<Cause>,
    pub(super) running: Option<u64>,
    /// Whether the run in progress asks for all missing cells.
    is_full_run: bool,
    /// Time and cause of the next run.
    pub(super) due: Option<(Instant, Cause)>,
    /// Number of consecutive failed runs.
    pub(super) failures: u32,
    /// Set while the spec waits for approval.
    pub(super) held: Option<Hold>,
    /// Failure of the last run, if it may be temporary.
    retried_failure: Option<Arc<Failure>>,
    /// Cause of a run that should start as soon as possible.
    pending_cause: Option<Cause>,
    requested_runs: VecDeque<RequestedRun>,
    paused_until: Option<Instant>,
    other_cache: Option<OtherCache>,
    columns: Arc<Vec<ColumnReport>>,
    plan: Option<Arc<serde_json::Value>>,
    cascades: Arc<serde_json::Value>,
    last_run: Option<u64>,
    has_run: bool,
}

/// Tables of another cache that a run found in the output.
enum OtherCache {
    /// The run replaced them. If they come back before this time, another process publishes them.
    ReplacedUntil(Instant),
    /// Another process publishes them, so runs that no user requested leave them unchanged.
    Contested,
}

impl OtherCache {
    /// Returns true if a run must not replace tables of another cache.
    fn is_contested(&self) -> bool {
        match self {
            Self::ReplacedUntil(time) => *time > Instant::now(),
            Self::Contested => true,
        }
    }
}

/// A hold on a spec: while it lasts, the spec sends no requests without a client's approval.
pub(super) struct Hold {
    /// Reason for the hold, for the user.
    why: String,
    /// Time at which the hold ends by itself, because the next day has a new budget. `None` if only
    /// an approval ends it.
    until: Option<Timestamp>,
}

impl Hold {
    /// Returns a hold that lasts until a client approves a run.
    fn until_approved(why: impl Into<String>) -> Self {
        Self { why: why.into(), until: None }
    }

    /// Returns a hold that lasts until the next day begins in UTC.
    fn until_tomorrow(why: String) -> Self {
        let midnight =
            (Timestamp::now().as_second().div_euclid(SECONDS_PER_DAY) + 1) * SECONDS_PER_DAY;
        Self { why, until: Timestamp::from_second(midnight).ok() }
    }
}

/// A run that a client requested.
pub(super) struct RequestedRun {
    pub(super) id: u64,
    pub(super) cause: Cause,
    pub(super) selection: Selection,
    pub(super) budget: Option<f64>,
    pub(super) timeout: Option<Duration>,
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// A run to start, and the channel that is notified of its end.
pub(super) struct RunStart {
    pub(super) parameters: RunParameters,
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// Effects of applying a check, which the caller must carry out.
pub(super) struct AppliedCheck {
    /// Line to print.
    pub(super) message: Option<String>,
    /// Run of the replaced version, which the caller must interrupt; `None` if there is none.
    pub(super) replaced_run: Option<u64>,
}

impl SpecState {
    /// Returns the state of a spec that has not been checked yet.
    pub(super) fn new(name: &str, path: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            path,
            active_spec: None,
            problem: None,
            files: Vec::new(),
            reading_since: None,
            check_cause: None,
            running: None,
            is_full_run: false,
            due: None,
            failures: 0,
            held: None,
            retried_failure: None,
            pending_cause: None,
            requested_runs: VecDeque::new(),
            paused_until: None,
            other_cache: None,
            columns: Arc::default(),
            plan: None,
            cascades: Arc::default(),
            last_run: None,
            has_run: false,
        }
    }

    /// Applies the result of a check. Schedules a run, unless the daemon is shutting down.
    pub(super) fn apply_check(&mut self, checked: SpecChecked, ending: bool) -> AppliedCheck {
        self.reading_since = None;
        self.files = checked.files;
        let mut applied = AppliedCheck { message: None, replaced_run: None };
        match checked.result {
            Ok(active_spec) => {
                if self
                    .active_spec
                    .as_ref()
                    .is_none_or(|l| l.content_hash != active_spec.content_hash)
                {
                    // Release the hold only if the content changed, not if the file was merely
                    // reformatted.
                    self.held = None;
                    self.failures = 0;
                    applied.replaced_run = self.running;
                }
                self.active_spec = Some(active_spec);
                if self.problem.take().is_some() {
                    applied.message = Some(format!("{}: good again", self.name));
                }
                if !ending {
                    self.schedule_run(checked.cause);
                }
            }
            Err(failure) => {
                let suffix = match self.active_spec {
                    Some(_) => "; the daemon keeps the last valid spec",
                    None => "",
                };
                applied.message =
                    Some(format!("{}: broken{suffix}\n{}", self.name, failure.to_text()));
                self.problem = Some(failure);
            }
        }
        applied
    }

    /// Schedules a run. A run caused by a file change waits for the rest period, or for the pause
    /// after a failed run. Any other run starts as soon as possible.
    fn schedule_run(&mut self, cause: Cause) {
        // A failed run may change the database file itself. Such a change must not end the pause.
        if cause == Cause::Files && self.failures > 0 && self.due.is_some() {
            return;
        }
        match self.paused_until.filter(|at| cause == Cause::Files && *at > Instant::now()) {
            Some(at) => self.due = Some((at, cause)),
            None => self.pending_cause = Some(cause),
        }
    }

    /// Schedules a run immediately.
    pub(super) fn schedule_run_now(&mut self, cause: Cause) {
        self.pending_cause = Some(cause);
    }

    /// Returns the end of the hold, if it ends by itself.
    pub(super) fn hold_expiry(&self) -> Option<Timestamp> {
        self.held.as_ref()?.until
    }

    /// Ends the hold and schedules a run.
    pub(super) fn end_hold(&mut self) {
        self.held = None;
        self.schedule_run_now(Cause::NewDay);
    }

    /// Plans the missing cells again if the spec waits for approval, because another run has asked
    /// the model.
    pub(super) fn renew_plan(&mut self) {
        if self.held.is_some() && self.plan.is_some() {
            self.schedule_run_now(Cause::OtherRun);
        }
    }

    /// Returns the cause of a new check, if a file has changed since the last check.
    pub(super) fn find_change_cause(&self) -> Option<Cause> {
        let at = self
            .files
            .iter()
            .position(|(file, fingerprint)| FileFingerprint::read(file) != *fingerprint);
        // The first file is the spec itself, the second its overrides file.
        at.map(|n| match n {
            0 => Cause::Spec,
            1 => Cause::Overrides,
            _ => Cause::Files,
        })
    }

    /// Queues a client's run.
    pub(super) fn queue_run(&mut self, requested: RequestedRun) -> Result<(), Failure> {
        if self.active_spec.is_none() {
            return Err(match &self.problem {
                Some(problem) => Failure::clone(problem),
                None => Failure::wrong_input(
                    format!("the daemon is still loading the spec {}", self.name),
                    "ask again in a moment",
                ),
            });
        }
        if self.requested_runs.len() >= MAX_QUEUED {
            return Err(Failure::wrong_input(
                format!("too many runs of {} are waiting", self.name),
                "ask again later",
            ));
        }
        self.requested_runs.push_back(requested);
        Ok(())
    }

    /// Cancels all pending work, for shutdown.
    pub(super) fn cancel_pending_work(&mut self) {
        self.requested_runs.clear();
        self.pending_cause = None;
        self.due = None;
        self.check_cause = None;
    }

    pub(super) fn has_pending_run(&self) -> bool {
        self.active_spec.is_some()
            && (self.pending_cause.is_some() || !self.requested_runs.is_empty())
    }

    /// Returns the next run, if one is pending and none is in progress.
    pub(super) fn take_next_run(
        &mut self,
        spend: bool,
        reserve_run_id: impl FnOnce() -> u64,
    ) -> Option<RunStart> {
        let active_spec = Arc::clone(self.active_spec.as_ref().filter(|_| self.running.is_none())?);
        let name = self.name.clone();
        let is_contested = self.other_cache.as_ref().is_some_and(OtherCache::is_contested);
        let parameters = move |id, cause, selection, budget, timeout, spend| RunParameters {
            id,
            name,
            active_spec,
            cause,
            selection,
            budget,
            timeout,
            spend,
            keep_other_tables: is_contested
                && matches!(cause, Cause::Files | Cause::Retry | Cause::NewDay | Cause::OtherRun),
        };
        if let Some(requested) = self.requested_runs.pop_front() {
            // A client's request counts as approval.
            let RequestedRun { id, cause, selection, budget, timeout, ended } = requested;
            self.running = Some(id);
            self.is_full_run = selection == Selection::default();
            return Some(RunStart {
                parameters: parameters(id, cause, selection, budget, timeout, true),
                ended,
            });
        }
        let cause = self.pending_cause.take()?;
        let spend = spend && self.held.is_none();
        self.is_full_run = true;
        self.due = None;
        let id = reserve_run_id();
        self.running = Some(id);
        let parameters = parameters(id, cause, Selection::default(), None, None, spend);
        Some(RunStart { parameters, ended: None })
    }

    /// Updates the fingerprint of the output copy after a run. Only runs write the copy, so its
    /// change does not cause another run. Returns the path of the copy, if the spec has one.
    pub(super) fn refresh_copy_fingerprint(&mut self) -> Option<PathBuf> {
        let copy = self.active_spec.as_ref()?.spec.output.clone()?;
        for (path, fingerprint) in self.files.iter_mut().filter(|(path, _)| *path == copy) {
            // If the copy was deleted in the meantime, this must still be detected as a change.
            let now = FileFingerprint::read(path);
            if now != FileFingerprint::Missing {
                *fingerprint = now;
            }
        }
        Some(copy)
    }

    /// Holds the spec after a client cancelled its run, unless the run was partial.
    pub(super) fn hold_after_cancellation(&mut self) {
        if self.is_full_run {
            self.held = Some(Hold::until_approved("a client stopped the run"));
        }
    }

    pub(super) fn apply_result(&mut self, ended: RunResult, is_listed: bool) {
        let now = Instant::now();
        self.running = None;
        self.last_run = is_listed.then_some(ended.id).or(self.last_run);
        let took = Duration::from_secs_f64(ended.seconds.max(0.0));
        self.paused_until = Some(now + took * REST_FACTOR);
        if ended.had_other_tables {
            self.other_cache = Some(if ended.published {
                OtherCache::ReplacedUntil(now + SHORTEST_CONTEST.max(took * CONTEST_FACTOR))
            } else {
                OtherCache::Contested
            });
        }
        if let Some(columns) = ended.columns {
            self.columns = Arc::new(columns);
            self.has_run = true;
            self.plan = ended.plan.map(Arc::new);
            let cascades = ended.report.as_ref().map(|report| report["cascades"].clone());
            self.cascades = Arc::new(cascades.unwrap_or_default());
        }
        if !self.is_full_run {
            // A partial run does not show the state of the other cells.
            return;
        }
        self.retried_failure = match ended.follow_up {
            FollowUp::Retry => ended.failure.clone().map(Arc::new),
            FollowUp::Nothing | FollowUp::Hold | FollowUp::NextDay => None,
        };
        match ended.follow_up {
            FollowUp::Nothing => {
                self.failures = 0;
                let unasked: u64 = self.columns.iter().map(|c| c.unasked).sum();
                self.held = match (&self.plan, unasked) {
                    (Some(_), 1..) => Some(self.held.take().unwrap_or_else(|| {
                        let verb = if unasked == 1 { "is" } else { "are" };
                        let missing = format!("{} {verb} missing", format_count(unasked, "cell"));
                        Hold::until_approved(format!(
                            "{missing}, and the daemon sends no requests on its own"
                        ))
                    })),
                    // An interrupted run keeps the hold; any other run makes it obsolete.
                    _ if ended.interrupted => self.held.take(),
                    _ => None,
                };
            }
            FollowUp::Retry => {
                let pause = FIRST_PAUSE * 2u32.saturating_pow(self.failures.min(10));
                self.failures += 1;
                self.due = Some((now + pause.min(LONGEST_PAUSE), Cause::Retry));
            }
            FollowUp::Hold => {
                self.held = ended.failure.map(|f| Hold::until_approved(f.message()));
            }
            FollowUp::NextDay => {
                self.held = ended.failure.map(|f| Hold::until_tomorrow(f.message()));
            }
        }
    }

    /// Returns the published status.
    pub(super) fn to_status(&self) -> SpecStatus {
        SpecStatus {
            name: self.name.clone(),
            path: self.path.display().to_string(),
            active_spec: self.active_spec.clone(),
            problem: self.problem.clone(),
            retried_failure: self.retried_failure.clone(),
            columns: Arc::clone(&self.columns),
            plan: self.plan.clone(),
            cascades: Arc::clone(&self.cascades),
            held: self.held.as_ref().map(|h| h.why.clone()),
            resumes: self.held.as_ref().and_then(|h| h.until).map(|t| t.to_string()),
            run: self.running,
            last_run: self.last_run,
            has_run: self.has_run,
        }
    }
}
