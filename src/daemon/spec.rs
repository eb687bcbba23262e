//! State of a spec in the loop: the version in force, the pending work, and the results.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::event::{After, Checked, EndedRun};
use super::job::RunOrder;
use super::listing::Stamp;
use super::loaded::ActiveSpec;
use super::status::{Cause, SpecStatus};
use crate::failure::Failure;
use crate::format::count_noun;
use crate::materialize::{ColumnReport, Selection};

/// Maximum number of runs that clients may queue for one spec.
const WISHES: usize = 64;
/// First pause before a failed run is retried; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// Longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
const DAY: i64 = 86_400;
/// A database that changes constantly is checked only part of the time: after a run, the next one
/// waits for this multiple of its duration.
const REST: u32 = 4;

/// State of a spec.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Spec in force.
    pub(super) loaded: Option<Arc<ActiveSpec>>,
    /// Reason why the current file is not in force.
    pub(super) problem: Option<Arc<Failure>>,
    /// Files the spec depends on, with their fingerprints at the last check. The spec's own file is
    /// the first.
    pub(super) files: Vec<(PathBuf, Stamp)>,
    /// Start of the check in progress.
    pub(super) reading: Option<Instant>,
    /// Reason for the next check. During a check, it requests another one.
    pub(super) unread: Option<Cause>,
    pub(super) running: Option<u64>,
    /// Whether the run in progress asks for all missing cells.
    whole: bool,
    /// Time and cause of the next run.
    pub(super) due: Option<(Instant, Cause)>,
    /// Number of consecutive failed runs.
    pub(super) failures: u32,
    /// Reason why the spec waits for approval.
    pub(super) held: Option<Held>,
    /// Failure of the last run, if it may be temporary.
    trouble: Option<Arc<Failure>>,
    /// Cause of a run that is to start as soon as possible.
    look: Option<Cause>,
    wishes: VecDeque<WantedRun>,
    rests_until: Option<Instant>,
    columns: Arc<Vec<ColumnReport>>,
    plan: Option<Arc<serde_json::Value>>,
    last: Option<u64>,
    looked: bool,
}

/// Reason why a spec asks for nothing without approval.
pub(super) struct Held {
    why: String,
    /// End of the hold, if it ends by itself: the next day has a new budget.
    until: Option<Timestamp>,
}

impl Held {
    /// Holds the spec until a client approves a run.
    fn by(why: impl Into<String>) -> Self {
        Self { why: why.into(), until: None }
    }

    /// Holds the spec until the next day begins in UTC.
    fn today(why: String) -> Self {
        let midnight = (Timestamp::now().as_second().div_euclid(DAY) + 1) * DAY;
        Self { why, until: Timestamp::from_second(midnight).ok() }
    }
}

/// A run that a client requested.
pub(super) struct WantedRun {
    pub(super) id: u64,
    pub(super) cause: Cause,
    pub(super) selection: Selection,
    pub(super) budget: Option<f64>,
    pub(super) timeout: Option<Duration>,
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// A run to start, and the channel that is notified of its end.
pub(super) struct Begin {
    pub(super) order: RunOrder,
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// Result of applying a check.
pub(super) struct Taken {
    /// Line to print.
    pub(super) said: Option<String>,
    /// Run of the replaced version, to be interrupted.
    pub(super) replaced: Option<u64>,
}

impl Entry {
    /// Returns the state of a spec that was not checked yet.
    pub(super) fn new(name: &str, path: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            path,
            loaded: None,
            problem: None,
            files: Vec::new(),
            reading: None,
            unread: None,
            running: None,
            whole: false,
            due: None,
            failures: 0,
            held: None,
            trouble: None,
            look: None,
            wishes: VecDeque::new(),
            rests_until: None,
            columns: Arc::default(),
            plan: None,
            last: None,
            looked: false,
        }
    }

    /// Applies the result of a check. Schedules a run, unless the daemon is shutting down.
    pub(super) fn take(&mut self, checked: Checked, ending: bool) -> Taken {
        self.reading = None;
        self.files = checked.files;
        let mut taken = Taken { said: None, replaced: None };
        match checked.result {
            Ok(loaded) => {
                if self.loaded.as_ref().is_none_or(|l| l.meaning != loaded.meaning) {
                    // A changed spec gets another chance; a reformatted one does not.
                    self.held = None;
                    self.failures = 0;
                    taken.replaced = self.running;
                }
                self.loaded = Some(loaded);
                if self.problem.take().is_some() {
                    taken.said = Some(format!("{}: good again", self.name));
                }
                if !ending {
                    self.look(checked.cause);
                }
            }
            Err(failure) => {
                let stays = match self.loaded {
                    Some(_) => "; the daemon keeps the last valid spec",
                    None => "",
                };
                taken.said = Some(format!("{}: broken{stays}\n{}", self.name, failure.text()));
                self.problem = Some(failure);
            }
        }
        taken
    }

    /// Schedules a run: now, or at the end of the rest period.
    fn look(&mut self, cause: Cause) {
        match self.rests_until.filter(|at| cause == Cause::Files && *at > Instant::now()) {
            Some(at) => self.due = Some((at, cause)),
            None => self.look = Some(cause),
        }
    }

    /// Schedules a run now, because a timer expired.
    pub(super) fn again(&mut self, cause: Cause) {
        self.look = Some(cause);
    }

    /// Returns the end of the hold, if it ends by itself.
    pub(super) fn held_until(&self) -> Option<Timestamp> {
        self.held.as_ref()?.until
    }

    /// Ends the hold and schedules a run.
    pub(super) fn resume(&mut self) {
        self.held = None;
        self.again(Cause::Day);
    }

    /// Returns the cause of a new check if a file changed since the last one.
    pub(super) fn changed(&self) -> Option<Cause> {
        let at = self.files.iter().position(|(file, stamp)| Stamp::of(file) != *stamp);
        // The spec's own file is the first, the overrides are the second.
        at.map(|n| match n {
            0 => Cause::Spec,
            1 => Cause::Overrides,
            _ => Cause::Files,
        })
    }

    /// Queues a client's run.
    pub(super) fn wish(&mut self, wanted: WantedRun) -> Result<(), Failure> {
        if self.loaded.is_none() {
            return Err(match &self.problem {
                Some(problem) => Failure::clone(problem),
                None => Failure::input(
                    format!("the daemon is still loading the spec {}", self.name),
                    "ask again in a moment",
                ),
            });
        }
        if self.wishes.len() >= WISHES {
            return Err(Failure::input(
                format!("too many runs of {} are waiting", self.name),
                "ask again later",
            ));
        }
        self.wishes.push_back(wanted);
        Ok(())
    }

    /// Cancels all pending work, for shutdown.
    pub(super) fn forget_wishes(&mut self) {
        self.wishes.clear();
        self.look = None;
        self.due = None;
        self.unread = None;
    }

    /// Returns true if a run is pending.
    pub(super) fn waits(&self) -> bool {
        self.loaded.is_some() && (self.look.is_some() || !self.wishes.is_empty())
    }

    /// Returns the next run, if one is pending and none is in progress.
    pub(super) fn next(&mut self, spend: bool, number: impl FnOnce() -> u64) -> Option<Begin> {
        let loaded = Arc::clone(self.loaded.as_ref().filter(|_| self.running.is_none())?);
        let name = self.name.clone();
        let order = move |id, cause, selection, budget, timeout, spend| RunOrder {
            id,
            name,
            loaded,
            cause,
            selection,
            budget,
            timeout,
            spend,
        };
        if let Some(wanted) = self.wishes.pop_front() {
            // A client's request counts as approval.
            let WantedRun { id, cause, selection, budget, timeout, ended } = wanted;
            self.running = Some(id);
            self.whole = selection == Selection::default();
            return Some(Begin {
                order: order(id, cause, selection, budget, timeout, true),
                ended,
            });
        }
        let cause = self.look.take()?;
        let spend = spend && self.held.is_none();
        self.whole = true;
        self.due = None;
        let id = number();
        self.running = Some(id);
        let order = order(id, cause, Selection::default(), None, None, spend);
        Some(Begin { order, ended: None })
    }

    /// Updates the fingerprint of the output copy after a run. Only runs write it, and a deleted
    /// copy is made again.
    pub(super) fn knows_its_copy(&mut self) -> Option<PathBuf> {
        let copy = self.loaded.as_ref()?.spec.output.clone()?;
        for (path, stamp) in self.files.iter_mut().filter(|(path, _)| *path == copy) {
            // A copy that was deleted in the meantime must still be detected as a change.
            let now = Stamp::of(path);
            if now != Stamp::Missing {
                *stamp = now;
            }
        }
        Some(copy)
    }

    /// Holds the spec after a client cancelled its run. A partial run does not affect the rest.
    pub(super) fn ended_by_a_client(&mut self) {
        if self.whole {
            self.held = Some(Held::by("a client stopped the run"));
        }
    }

    /// Applies the result of a run.
    pub(super) fn ended(&mut self, ended: EndedRun, shown: bool) {
        let now = Instant::now();
        self.running = None;
        self.last = shown.then_some(ended.id).or(self.last);
        let took = Duration::from_secs_f64(ended.seconds.max(0.0));
        self.rests_until = Some(now + took * REST);
        if let Some(columns) = ended.columns {
            self.columns = Arc::new(columns);
            self.looked = true;
            self.plan = ended.plan.map(Arc::new);
        }
        if !self.whole {
            // The result of a partial run does not apply to the rest.
            return;
        }
        self.trouble = match ended.after {
            After::Retry => ended.failure.clone().map(Arc::new),
            After::Rest | After::Hold | After::Tomorrow => None,
        };
        match ended.after {
            After::Rest => {
                self.failures = 0;
                let unasked: u64 = self.columns.iter().map(|c| c.unasked).sum();
                self.held = match (&self.plan, unasked) {
                    (Some(_), 1..) => Some(self.held.take().unwrap_or_else(|| {
                        let verb = if unasked == 1 { "is" } else { "are" };
                        let missing = format!("{} {verb} missing", count_noun(unasked, "cell"));
                        Held::by(format!("{missing}, and the daemon sends no requests on its own"))
                    })),
                    // The reason from before the last run is obsolete.
                    _ if ended.interrupted => self.held.take(),
                    _ => None,
                };
            }
            After::Retry => {
                let pause = FIRST_PAUSE * 2u32.saturating_pow(self.failures.min(10));
                self.failures += 1;
                self.due = Some((now + pause.min(LONGEST_PAUSE), Cause::Retry));
            }
            After::Hold => {
                self.held = ended.failure.map(|f| Held::by(f.message()));
            }
            After::Tomorrow => {
                self.held = ended.failure.map(|f| Held::today(f.message()));
            }
        }
    }

    /// Returns the published status.
    pub(super) fn status(&self) -> SpecStatus {
        SpecStatus {
            name: self.name.clone(),
            path: self.path.display().to_string(),
            loaded: self.loaded.clone(),
            problem: self.problem.clone(),
            trouble: self.trouble.clone(),
            columns: Arc::clone(&self.columns),
            plan: self.plan.clone(),
            held: self.held.as_ref().map(|h| h.why.clone()),
            resumes: self.held.as_ref().and_then(|h| h.until).map(|t| t.to_string()),
            run: self.running,
            last: self.last,
            looked: self.looked,
        }
    }
}
