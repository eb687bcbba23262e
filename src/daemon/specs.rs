//! All specs, and beside them what follows from how each one stands: which are
//! to be read, which wait for a run, which moments are waited for, which have to
//! be shown. It is brought up to date spec by spec, so that an event costs the
//! same however many specs there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::spec::Entry;
use super::status::Cause;

/// Specs that are read at once.
const READING: usize = 4;
/// One that takes longer does not hold up the others: its place is free again.
const SLOW: Duration = Duration::from_secs(2);
/// How often at least it is looked whether a day is over, when one is waited for:
/// the clock of the day may be set, or have stood still in a sleep.
const GLANCE: Duration = Duration::from_secs(60);

/// All specs, by name.
#[derive(Default)]
pub(super) struct Specs {
    all: BTreeMap<String, Entry>,
    sets: Sets,
    /// Changed, come or gone since they were shown.
    changed: BTreeSet<String>,
}

/// The names of specs, by how they stand.
#[derive(Default)]
struct Sets {
    /// To be read, and not being read.
    unread: BTreeSet<String>,
    /// Being read, by when that began.
    reading: BTreeSet<(Instant, String)>,
    /// Waiting for a run.
    waiting: BTreeSet<String>,
    /// Of these, those without a run under way.
    startable: BTreeSet<String>,
    /// To be looked at again, by when.
    due: BTreeSet<(Instant, String)>,
    /// Held, by until when.
    held: BTreeSet<(Timestamp, String)>,
}

impl Sets {
    /// Takes a spec out of all sets, before it changes.
    fn leave(&mut self, entry: &Entry) {
        let name = &entry.name;
        self.unread.remove(name);
        self.waiting.remove(name);
        self.startable.remove(name);
        entry.reading.map(|at| self.reading.remove(&(at, name.clone())));
        entry.due.map(|(at, _)| self.due.remove(&(at, name.clone())));
        entry.held_until().map(|until| self.held.remove(&(until, name.clone())));
    }

    /// Puts a spec into the sets where it belongs.
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

    /// A new spec of which nothing is known yet.
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

    /// Changes a spec: the only way to, so that nothing that follows from it is
    /// forgotten.
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

    /// Changes all of them.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut Entry)) {
        let names: Vec<String> = self.names().cloned().collect();
        names.iter().for_each(|name| {
            self.change(name, &mut change);
        });
    }

    /// What is to be shown since this was asked for last.
    pub(super) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// How many wait for a run.
    pub(super) fn waiting(&self) -> usize {
        self.sets.waiting.len()
    }

    /// One whose run may begin.
    pub(super) fn startable(&self) -> Option<&str> {
        self.sets.startable.first().map(String::as_str)
    }

    /// The next to be read, when there is a place.
    pub(super) fn unread(&self) -> Option<&str> {
        let next = self.sets.unread.first()?;
        self.full_until().is_none().then_some(next)
    }

    /// Until when all places to read in are taken.
    fn full_until(&self) -> Option<Instant> {
        let (began, _) = self.sets.reading.iter().rev().nth(READING - 1)?;
        let until = *began + SLOW;
        (until > Instant::now()).then_some(until)
    }

    /// The next moment that is waited for.
    pub(super) fn wakes(&self) -> Option<Instant> {
        let due = self.sets.due.first().map(|(at, _)| *at);
        let held = self.sets.held.first().map(|(until, _)| {
            let left = until.duration_since(Timestamp::now());
            Instant::now() + Duration::try_from(left).unwrap_or_default().min(GLANCE)
        });
        let place = self.full_until().filter(|_| !self.sets.unread.is_empty());
        [due, held, place].into_iter().flatten().min()
    }

    /// A moment has come: what was waited for until now is to be done.
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
