//! Stores all specs, and indexes their names by state: to check, waiting for a run, scheduled, on
//! hold or changed. Each change updates one spec in the sets, so the cost of an event does not
//! depend on the number of specs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::spec::SpecState;
use super::status::Cause;

/// Maximum number of concurrent checks.
const MAX_CONCURRENT_CHECKS: usize = 4;
/// Time after which a check no longer occupies a slot, so that a slow check does not block the
/// others.
const SLOW_CHECK: Duration = Duration::from_secs(2);
/// Maximum interval between checks of the date while a spec waits for the next day. A single timer
/// is not enough, because the clock can be changed, or stop while the machine is suspended.
const DATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// All specs, by name.
#[derive(Default)]
pub(super) struct Specs {
    states: BTreeMap<String, SpecState>,
    sets: SpecSets,
    /// Names of the specs that were changed, added or removed since the last publication.
    changed: BTreeSet<String>,
}

/// Names of specs, by state.
#[derive(Default)]
struct SpecSets {
    /// Specs that must be checked and have no check in progress.
    unchecked: BTreeSet<String>,
    /// Specs that are being checked, by the start of the check.
    being_checked: BTreeSet<(Instant, String)>,
    /// Specs that wait for a run.
    waiting: BTreeSet<String>,
    /// Specs that wait for a run and have none in progress.
    startable: BTreeSet<String>,
    /// Specs with a scheduled run, by start time.
    due: BTreeSet<(Instant, String)>,
    /// Specs on hold, by the end of the hold.
    held: BTreeSet<(Timestamp, String)>,
}

impl SpecSets {
    /// Removes a spec from all sets, before it changes.
    fn remove_spec(&mut self, spec: &SpecState) {
        let name = &spec.name;
        self.unchecked.remove(name);
        self.waiting.remove(name);
        self.startable.remove(name);
        spec.reading_since.map(|at| self.being_checked.remove(&(at, name.clone())));
        spec.due.map(|(at, _)| self.due.remove(&(at, name.clone())));
        spec.hold_expiry().map(|until| self.held.remove(&(until, name.clone())));
    }

    fn add_spec(&mut self, spec: &SpecState) {
        let name = || spec.name.clone();
        if spec.check_cause.is_some() && spec.reading_since.is_none() {
            self.unchecked.insert(name());
        }
        if spec.has_pending_run() {
            self.waiting.insert(name());
            if spec.running.is_none() {
                self.startable.insert(name());
            }
        }
        spec.reading_since.map(|at| self.being_checked.insert((at, name())));
        spec.due.map(|(at, _)| self.due.insert((at, name())));
        spec.hold_expiry().map(|until| self.held.insert((until, name())));
    }
}

impl Specs {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&SpecState> {
        self.states.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.states.keys()
    }

    /// Adds a spec that has not been checked yet.
    pub(super) fn insert(&mut self, name: &str, path: PathBuf) {
        let spec = SpecState::new(name, path);
        self.changed.insert(name.to_owned());
        self.sets.add_spec(&spec);
        self.states.insert(name.to_owned(), spec);
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<SpecState> {
        let spec = self.states.remove(name)?;
        self.changed.insert(name.to_owned());
        self.sets.remove_spec(&spec);
        Some(spec)
    }

    /// Changes a spec. All changes go through this method, so that the sets stay up to date.
    /// Returns the result of `change`, or `None` if there is no spec with this name.
    pub(super) fn update_spec<T>(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut SpecState) -> T,
    ) -> Option<T> {
        let spec = self.states.get_mut(name)?;
        self.sets.remove_spec(spec);
        let changed = change(spec);
        self.sets.add_spec(spec);
        if !self.changed.contains(name) {
            self.changed.insert(name.to_owned());
        }
        Some(changed)
    }

    pub(super) fn update_all_specs(&mut self, mut change: impl FnMut(&mut SpecState)) {
        let names: Vec<String> = self.names().cloned().collect();
        names.iter().for_each(|name| {
            self.update_spec(name, &mut change);
        });
    }

    /// Returns and clears the names of the specs that changed since the last call.
    pub(super) fn take_changed_names(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the number of specs that wait for a run.
    pub(super) fn count_waiting_specs(&self) -> usize {
        self.sets.waiting.len()
    }

    /// Returns a spec whose run may start.
    pub(super) fn next_startable_spec(&self) -> Option<&str> {
        self.sets.startable.first().map(String::as_str)
    }

    /// Returns the next spec to check, if a slot is free.
    pub(super) fn next_unchecked_spec(&self) -> Option<&str> {
        let next = self.sets.unchecked.first()?;
        self.next_slot_time().is_none().then_some(next)
    }

    /// Returns the time when a slot for a check becomes free, if all are in use.
    fn next_slot_time(&self) -> Option<Instant> {
        let (began, _) = self.sets.being_checked.iter().rev().nth(MAX_CONCURRENT_CHECKS - 1)?;
        let until = *began + SLOW_CHECK;
        (until > Instant::now()).then_some(until)
    }

    /// Returns the time of the next timer.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let due = self.sets.due.first().map(|(at, _)| *at);
        let held = self.sets.held.first().map(|(until, _)| {
            let left = until.duration_since(Timestamp::now());
            Instant::now() + Duration::try_from(left).unwrap_or_default().min(DATE_CHECK_INTERVAL)
        });
        let slot = self.next_slot_time().filter(|_| !self.sets.unchecked.is_empty());
        [due, held, slot].into_iter().flatten().min()
    }

    /// Runs all expired timers.
    pub(super) fn run_timers(&mut self) {
        let (now, today) = (Instant::now(), Timestamp::now());
        let first =
            |sets: &SpecSets| Some(sets.due.first().filter(|(at, _)| *at <= now)?.1.clone());
        while let Some(name) = first(&self.sets) {
            self.update_spec(&name, |spec| {
                let cause = spec.due.take().map_or(Cause::Retry, |(_, cause)| cause);
                spec.schedule_run_now(cause);
            });
        }
        let first =
            |sets: &SpecSets| Some(sets.held.first().filter(|(at, _)| *at <= today)?.1.clone());
        while let Some(name) = first(&self.sets) {
            self.update_spec(&name, SpecState::end_hold);
        }
    }
}
