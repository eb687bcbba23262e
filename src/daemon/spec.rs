//! A spec as the loop knows it: what is in force, what is wanted, what came of it.

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

/// Runs that clients may have waiting for one spec.
const WISHES: usize = 64;
/// The first pause before what failed is tried again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Seconds of a day.
const DAY: i64 = 86_400;
/// A database that changes all the time is looked at for a part of the time only:
/// after a look, this many times as long as it took passes before the next.
const REST: u32 = 4;

/// A spec.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The spec in force.
    pub(super) loaded: Option<Arc<ActiveSpec>>,
    /// Why the file as it is is not.
    pub(super) problem: Option<Arc<Failure>>,
    /// The files it depends on as they were at the last check, its own first.
    pub(super) files: Vec<(PathBuf, Stamp)>,
    /// Since when it is being read.
    pub(super) reading: Option<Instant>,
    /// It is to be read, for this reason; when it is being read, once more.
    pub(super) unread: Option<Cause>,
    pub(super) running: Option<u64>,
    /// Whether that asks for all that is missing.
    whole: bool,
    /// When it is to be looked at again, and why.
    pub(super) due: Option<(Instant, Cause)>,
    /// Runs that failed one after another.
    pub(super) failures: u32,
    /// Why it waits for a go.
    pub(super) held: Option<Held>,
    /// Why the last run failed, when that may pass.
    trouble: Option<Arc<Failure>>,
    /// It is to be looked at, for this reason.
    look: Option<Cause>,
    wishes: VecDeque<WantedRun>,
    rests_until: Option<Instant>,
    columns: Arc<Vec<ColumnReport>>,
    plan: Option<Arc<serde_json::Value>>,
    last: Option<u64>,
    looked: bool,
}

/// Why a spec asks for nothing by itself.
pub(super) struct Held {
    why: String,
    /// When that is over: the budget of a day is.
    until: Option<Timestamp>,
}

impl Held {
    /// Until somebody says go.
    fn by(why: impl Into<String>) -> Self {
        Self { why: why.into(), until: None }
    }

    /// Until the next day begins, UTC.
    fn today(why: String) -> Self {
        let midnight = (Timestamp::now().as_second().div_euclid(DAY) + 1) * DAY;
        Self { why, until: Timestamp::from_second(midnight).ok() }
    }
}

/// A run that a client wants.
pub(super) struct WantedRun {
    pub(super) id: u64,
    pub(super) cause: Cause,
    pub(super) selection: Selection,
    pub(super) budget: Option<f64>,
    pub(super) timeout: Option<Duration>,
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// A run to begin, and who waits for its end.
pub(super) struct Begin {
    pub(super) order: RunOrder,
    pub(super) ended: Option<oneshot::Sender<()>>,
}

/// What became of a reading.
pub(super) struct Taken {
    /// What is to be said.
    pub(super) said: Option<String>,
    /// The run of a spec that is no longer in force.
    pub(super) replaced: Option<u64>,
}

impl Entry {
    /// A spec of which nothing is known yet.
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

    /// Takes what a reading brought; it is looked at, unless the daemon ends.
    pub(super) fn take(&mut self, checked: Checked, ending: bool) -> Taken {
        self.reading = None;
        self.files = checked.files;
        let mut taken = Taken { said: None, replaced: None };
        match checked.result {
            Ok(loaded) => {
                if self.loaded.as_ref().is_none_or(|l| l.meaning != loaded.meaning) {
                    // Another spec is another chance; the same in other words is not.
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

    /// It is to be looked at: now, or when it has rested.
    fn look(&mut self, cause: Cause) {
        match self.rests_until.filter(|at| cause == Cause::Files && *at > Instant::now()) {
            Some(at) => self.due = Some((at, cause)),
            None => self.look = Some(cause),
        }
    }

    /// A moment that was waited for has come.
    pub(super) fn again(&mut self, cause: Cause) {
        self.look = Some(cause);
    }

    /// Until when it is held, when that ends by itself.
    pub(super) fn held_until(&self) -> Option<Timestamp> {
        self.held.as_ref()?.until
    }

    /// Goes on: what held it is over.
    pub(super) fn resume(&mut self) {
        self.held = None;
        self.again(Cause::Day);
    }

    /// Whether a file is not what it was when the spec was read, and why it is
    /// to be read again then.
    pub(super) fn changed(&self) -> Option<Cause> {
        let at = self.files.iter().position(|(file, stamp)| Stamp::of(file) != *stamp);
        // Its own file is the first, the overrides are the second.
        at.map(|n| match n {
            0 => Cause::Spec,
            1 => Cause::Overrides,
            _ => Cause::Files,
        })
    }

    /// Takes a client's wish.
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

    /// Drops all that is wanted: the daemon ends.
    pub(super) fn forget_wishes(&mut self) {
        self.wishes.clear();
        self.look = None;
        self.due = None;
        self.unread = None;
    }

    /// Whether something waits for a run to end.
    pub(super) fn waits(&self) -> bool {
        self.loaded.is_some() && (self.look.is_some() || !self.wishes.is_empty())
    }

    /// The next run, when one is wanted and none is under way.
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
            // A go: what held it back is settled by whoever says so.
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

    /// The copy is as the run left it, from now on: nobody else writes it, and
    /// when it is taken away it is made again.
    pub(super) fn knows_its_copy(&mut self) -> Option<PathBuf> {
        let copy = self.loaded.as_ref()?.spec.output.clone()?;
        for (path, stamp) in self.files.iter_mut().filter(|(path, _)| *path == copy) {
            // One that has gone meanwhile is yet to be seen to have.
            let now = Stamp::of(path);
            if now != Stamp::Missing {
                *stamp = now;
            }
        }
        Some(copy)
    }

    /// A client has ended its run. What becomes of a part says nothing of the rest.
    pub(super) fn ended_by_a_client(&mut self) {
        if self.whole {
            self.held = Some(Held::by("a client stopped the run"));
        }
    }

    /// A run has ended.
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
            // What became of a part says nothing of the rest.
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
                    // What was said before the last run no longer holds.
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

    /// As everyone sees it.
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
