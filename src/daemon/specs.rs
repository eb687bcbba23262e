//! All specs, and sets of their names by state: specs to check, specs that wait for a run, timers,
//! and changed ones. The sets are updated spec by spec, so the cost of an event does not depend on
//! the number of specs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::spec::Entry;
use super::status::Cause;

/// Maximum number of concurrent checks.
const READING: usize = 4;
/// A check that takes longer no longer counts as concurrent, so that it does not block the others.
const SLOW: Duration = Duration::from_secs(2);
/// Maximum interval between checks of the date while a spec waits for the next day: the clock may
/// be set, or may have stopped during a suspend.
const GLANCE: Duration = Duration::from_secs(60);

/// All specs, by name.
#[derive(Default)]
pub(super) struct Specs {
    all: BTreeMap<String, Entry>,
    sets: Sets,
    /// Specs that were changed, added or removed since the last publication.
    changed: BTreeSet<String>,
}

/// Names of specs, by state.
#[derive(Default)]
struct Sets {
    /// To be checked, with no check in progress.
    unread: BTreeSet<String>,
    /// Check in progress, by its start.
    reading: BTreeSet<(Instant, String)>,
    /// Waiting for a run.
    waiting: BTreeSet<String>,
    /// Waiting for a run, with none in progress.
    startable: BTreeSet<String>,
    /// Scheduled runs, by time.
    due: BTreeSet<(Instant, String)>,
    /// On hold, by the end of the hold.
    held: BTreeSet<(Timestamp, String)>,
}

impl Sets {
    /// Removes a spec from all sets, before it changes.
    fn leave(&mut self, entry: &Entry) {
        let name = &entry.name;
        self.unread.remove(name);
        self.waiting.remove(name);
        self.startable.remove(name);
        entry.reading.map(|at| self.reading.remove(&(at, name.clone())));
        entry.due.map(|(at, _)| self.due.remove(&(at, name.clone())));
        entry.held_until().map(|until| self.held.remove(&(until, name.clone())));
    }

    /// Adds a spec to the sets of its state.
    fn enter(&mut self, entry: &Entry) {
        let name = || entry.name.clone();
        if entry.unread.is_some() && entry.reading.is_none() {
            self.unread.insert(name());
        }
        if entry.waits() {
            self.waiting.insert(name());
            if entry.running.is_none() {
                self.startable.insert(name());
            }
        }
        entry.reading.map(|at| self.reading.insert((at, name())));
        entry.due.map(|(at, _)| self.due.insert((at, name())));
        entry.held_until().map(|until| self.held.insert((until, name())));
    }
}

impl Specs {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.all.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.all.keys()
    }

    /// Adds a spec that was not checked yet.
    pub(super) fn insert(&mut self, name: &str, path: PathBuf) {
        let entry = Entry::new(name, path);
        self.changed.insert(name.to_owned());
        self.sets.enter(&entry);
        self.all.insert(name.to_owned(), entry);
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.all.remove(name)?;
        self.changed.insert(name.to_owned());
        self.sets.leave(&entry);
        Some(entry)
    }

    /// Changes a spec. All changes go through this method, so that the sets stay up to date.
    pub(super) fn change<T>(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let entry = self.all.get_mut(name)?;
        self.sets.leave(entry);
        let changed = change(entry);
        self.sets.enter(entry);
        if !self.changed.contains(name) {
            self.changed.insert(name.to_owned());
        }
        Some(changed)
    }

    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut Entry)) {
        let names: Vec<String> = self.names().cloned().collect();
        names.iter().for_each(|name| {
            self.change(name, &mut change);
        });
    }

    /// Takes the names that changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the number of specs that wait for a run.
    pub(super) fn waiting(&self) -> usize {
        self.sets.waiting.len()
    }

    /// Returns a spec whose run may start.
    pub(super) fn startable(&self) -> Option<&str> {
        self.sets.startable.first().map(String::as_str)
    }

    /// Returns the next spec to check, if a slot is free.
    pub(super) fn unread(&self) -> Option<&str> {
        let next = self.sets.unread.first()?;
        self.full_until().is_none().then_some(next)
    }

    /// Returns the time when a check slot becomes free, if all are taken.
    fn full_until(&self) -> Option<Instant> {
        let (began, _) = self.sets.reading.iter().rev().nth(READING - 1)?;
        let until = *began + SLOW;
        (until > Instant::now()).then_some(until)
    }

    /// Returns the time of the next timer.
    pub(super) fn wakes(&self) -> Option<Instant> {
        let due = self.sets.due.first().map(|(at, _)| *at);
        let held = self.sets.held.first().map(|(until, _)| {
            let left = until.duration_since(Timestamp::now());
            Instant::now() + Duration::try_from(left).unwrap_or_default().min(GLANCE)
        });
        let place = self.full_until().filter(|_| !self.sets.unread.is_empty());
        [due, held, place].into_iter().flatten().min()
    }

    /// Runs all expired timers.
    pub(super) fn clock(&mut self) {
        let (now, today) = (Instant::now(), Timestamp::now());
        let first = |sets: &Sets| Some(sets.due.first().filter(|(at, _)| *at <= now)?.1.clone());
        while let Some(name) = first(&self.sets) {
            self.change(&name, |entry| {
                let cause = entry.due.take().map_or(Cause::Retry, |(_, cause)| cause);
                entry.again(cause);
            });
        }
        let first = |sets: &Sets| Some(sets.held.first().filter(|(at, _)| *at <= today)?.1.clone());
        while let Some(name) = first(&self.sets) {
            self.change(&name, Entry::resume);
        }
    }
}
