//! The loop: it owns what changes, and acts on one event after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch as channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep_until};
use tracing::info;

use super::clients::Clients;
use super::event::{Event, Wish};
use super::job::{self, Checked};
use super::listing::{self, Stamp, concerns, names};
use super::metrics::Metrics;
use super::runs::Runs;
use super::spec::{Entry, Wanted};
use super::status::{Cause, Status};
use super::watch::{Watch, look_later, poll};
use super::{Settings, http, notify, signals};
use crate::facts::Facts;
use crate::facts::lend::{self, Lending};
use crate::failure::Failure;

/// Events that may wait; who has one more waits.
const QUEUE: usize = 256;
/// How long those who borrow the cache may take at least, however short the grace.
const LAST: Duration = Duration::from_secs(2);
/// How often at least it is looked whether a day is over, when one is waited for.
const GLANCE: Duration = Duration::from_secs(60);
/// Changes that a slow subscriber may be behind before it misses some.
const BEHIND: usize = 256;

/// What subscribers are told: the event's name and its data.
pub(super) type Told = (&'static str, Arc<str>);

/// All that others may use beside the loop.
#[derive(Clone)]
pub(super) struct House {
    pub(super) facts: Arc<Facts>,
    pub(super) settings: Arc<Settings>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) status: channel::Receiver<Arc<Status>>,
    pub(super) told: broadcast::Sender<Told>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clients: Clients,
}

/// The state of the loop.
struct Loop {
    house: House,
    publish: channel::Sender<Arc<Status>>,
    frame: Status,
    specs: BTreeMap<String, Entry>,
    runs: Runs,
    watch: Option<Watch>,
    /// When everything must have ended.
    deadline: Option<Instant>,
    /// Until it ends.
    lending: Option<Lending>,
    /// The end of the lending: those who borrow have the grace, too.
    lent: Option<JoinHandle<()>>,
}

/// Opens everything, runs until it is told to end, and closes it in order.
pub(super) async fn run(facts: Arc<Facts>, settings: Settings) -> Result<(), Failure> {
    let (events, mut queue) = mpsc::channel(QUEUE);
    let mut settings = settings;
    settings.specs = std::path::absolute(&settings.specs).unwrap_or(settings.specs);
    let listener = http::bind(settings.listen).await?;
    let listens = listener.local_addr().unwrap_or(settings.listen);
    signals::listen(events.clone())
        .map_err(|e| Failure::input(format!("cannot listen to signals: {e}"), ""))?;
    let watch = match settings.poll {
        None => Some(Watch::new(events.clone())),
        Some(every) => {
            tokio::spawn(poll(every, events.clone()));
            None
        }
    };
    let frame = Status {
        url: format!("http://{listens}"),
        began: crate::store::now(),
        cache: facts.dir().display().to_string(),
        watched: settings.specs.display().to_string(),
        spend: settings.spend,
        ..Status::default()
    };
    let (publish, status) = channel::channel(Arc::new(frame.clone()));
    let house = House {
        facts: Arc::clone(&facts),
        settings: Arc::new(settings),
        events,
        status,
        told: broadcast::channel(BEHIND).0,
        metrics: Arc::default(),
        clients: Clients::default(),
    };
    let url = frame.url.clone();
    let mut state = Loop {
        house: house.clone(),
        publish,
        frame,
        specs: BTreeMap::new(),
        runs: Runs::default(),
        watch: None,
        deadline: None,
        lending: None,
        lent: None,
    };
    match watch {
        Some(Ok(watch)) => state.watch = Some(watch),
        Some(Err(why)) => state.is_blind(why),
        None => {}
    }
    let (close, closing) = channel::channel(false);
    state.lending = Some(lend(&house)?);
    let serving = tokio::spawn(http::serve(listener, house.clone(), closing));
    state.rescan(Cause::Begin);
    state.show();
    (house.settings.say)(&format!("listening on {url}"));
    if state.specs.is_empty() {
        state.say(&format!("no spec in {} yet; it is watched", state.frame.watched));
    }
    notify::ready(&format!("{} specs, {url}", state.specs.len()));
    state.live(&mut queue, &close).await;
    close.send_replace(true);
    let _ = tokio::time::timeout(Duration::from_secs(1), serving).await;
    state.lend_no_more(LAST);
    if let Some(lent) = state.lent {
        let _ = lent.await;
    }
    let _ = facts.index().flush();
    Ok(())
}

/// Lends the cache to other processes of hqdl, as long as the daemon runs.
fn lend(house: &House) -> Result<Lending, Failure> {
    let status = house.status.clone();
    let told = Arc::new(move || status.borrow().to_json());
    Ok(lend::lend(Arc::clone(&house.facts), told)?)
}

impl Loop {
    /// One event after the other, until all has ended or the grace is over.
    async fn live(&mut self, queue: &mut mpsc::Receiver<Event>, close: &channel::Sender<bool>) {
        let mut alive = notify::watchdog().map(interval);
        loop {
            let wake = self.wakes();
            let event = tokio::select! {
                event = queue.recv() => event,
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => Some(Event::Clock),
                () = tick(alive.as_mut()), if alive.is_some() => {
                    notify::alive();
                    continue;
                }
            };
            let Some(event) = event else { return };
            let ending = matches!(event, Event::Stop);
            self.act(event);
            if ending {
                close.send_replace(true);
            }
            self.begin_runs();
            self.show();
            if let Some(deadline) = self.deadline {
                let borrowed = self.lent.as_ref().is_some_and(|lent| !lent.is_finished());
                if self.runs.under_way() == 0 && self.house.clients.count() == 0 && !borrowed {
                    return;
                }
                if Instant::now() >= deadline {
                    self.say(
                        "the grace is over: what is still in flight is left, and counts as spent",
                    );
                    return;
                }
            }
        }
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Files(paths) => self.changed(&paths),
            Event::Look => self.look(),
            Event::Blind(why) => self.is_blind(why),
            Event::Clock => self.clock(),
            Event::Start(wish) => self.wish(*wish),
            Event::Interrupt(run, reply) => {
                let entry = self.specs.values_mut().find(|e| e.running == Some(run));
                entry.into_iter().for_each(Entry::ended_by_a_client);
                let _ = reply.send(self.runs.interrupt(run));
            }
            Event::Checked(checked) => self.checked(*checked),
            Event::Progress(run) => {
                self.runs.progress(run);
                self.tell_run(run);
            }
            Event::Ended(ended) => self.ended(*ended),
            Event::Reload => {
                notify::reloading();
                (self.house.settings.reopen_log)();
                info!("reads everything again");
                self.say("reading everything again");
                self.reload();
                notify::ready(&format!("{} specs", self.specs.len()));
            }
            Event::Stop => self.stop(),
        }
    }

    /// The next moment that is waited for.
    fn wakes(&self) -> Option<Instant> {
        let due = self.specs.values().filter_map(|e| e.due.map(|(at, _)| at));
        // The clock of the day may be set, or have stood still in a sleep.
        let held = self.specs.values().filter_map(Entry::held_for).min();
        let held = held.map(|left| Instant::now() + left.min(GLANCE));
        // While it ends, clients that go are looked for.
        let ending = self.deadline.map(|d| d.min(Instant::now() + Duration::from_millis(50)));
        due.chain(held).chain(ending).min()
    }

    fn clock(&mut self) {
        if self.deadline.is_some() {
            return;
        }
        let now = Instant::now();
        for entry in self.specs.values_mut() {
            if let Some((_, cause)) = entry.due.take_if(|(at, _)| *at <= now) {
                entry.again(cause);
            }
            entry.resume();
        }
    }

    fn stop(&mut self) {
        notify::stopping();
        info!("ends");
        self.say("ending: what is in flight is finished");
        self.deadline = Some(Instant::now() + self.house.settings.grace);
        self.specs.values_mut().for_each(Entry::forget_wishes);
        self.runs.interrupt_all();
        self.house.clients.end_all();
        self.lend_no_more(self.house.settings.grace.max(LAST));
    }

    /// Lends to nobody new; who borrows now may go on for a while.
    fn lend_no_more(&mut self, patience: Duration) {
        if let Some(lending) = self.lending.take() {
            self.lent = Some(tokio::task::spawn_blocking(move || lending.end(patience)));
        }
    }

    fn reload(&mut self) {
        for entry in self.specs.values_mut() {
            entry.files.clear();
        }
        self.rescan(Cause::Files);
    }

    /// Files changed: which specs do they concern?
    fn changed(&mut self, paths: &[PathBuf]) {
        if let Some(watch) = &mut self.watch {
            watch.forget(paths);
        }
        let place = &self.house.settings.specs;
        let all = names(place);
        if paths.iter().any(|p| all.iter().any(|n| p.starts_with(n) || n.starts_with(p))) {
            self.rescan(Cause::Spec);
        }
        self.check_changed(|file| concerns(paths, file));
        self.watch_all();
    }

    /// Looks at all files.
    fn look(&mut self) {
        self.rescan(Cause::Spec);
        self.check_changed(|_| true);
    }

    /// Has the specs read of whose files some are not what they were.
    fn check_changed(&mut self, concerned: impl Fn(&Path) -> bool) {
        let names: Vec<String> = self
            .specs
            .values()
            .filter(|e| e.files.iter().any(|(file, _)| concerned(file)))
            .filter(|e| e.files.iter().any(|(file, stamp)| Stamp::of(file) != *stamp))
            .map(|e| e.name.clone())
            .collect();
        names.iter().for_each(|name| self.check(name, Cause::Files));
    }

    /// Looks which specs there are.
    fn rescan(&mut self, cause: Cause) {
        let found = listing::specs(&self.house.settings.specs);
        let gone: Vec<String> =
            self.specs.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        for name in gone {
            if let Some(entry) = self.specs.remove(&name) {
                entry.running.iter().for_each(|run| {
                    self.runs.interrupt(*run);
                });
                self.say(&format!("{name}: its file has gone"));
            }
        }
        for (name, path) in found {
            let stamp = Stamp::of(&path);
            let entry =
                self.specs.entry(name.clone()).or_insert_with(|| Entry::new(&name, path.clone()));
            if entry.files.first().map(|(_, s)| s) != Some(&stamp) {
                self.check(&name, cause);
            }
        }
        self.watch_all();
    }

    fn watch_all(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let place = &self.house.settings.specs;
        // The directory itself, and where it would appear.
        let mut files = BTreeSet::from([place.join("x.toml"), place.clone()]);
        files.extend(self.specs.values().flat_map(|e| e.files.iter().map(|(f, _)| f.clone())));
        match watch.only(&files) {
            Ok(more) => {
                self.frame.blind = None;
                if more {
                    // What changed before they were watched.
                    let _ = self.house.events.try_send(Event::Look);
                }
            }
            Err(why) => self.is_blind(why),
        }
    }

    fn is_blind(&mut self, why: String) {
        if self.frame.blind.as_ref() != Some(&why) {
            self.say(&format!("warning: changes are not seen: {why}"));
        }
        self.frame.blind = Some(why);
    }

    /// Has a spec read, once at a time.
    fn check(&mut self, name: &str, cause: Cause) {
        let Some(entry) = self.specs.get_mut(name) else { return };
        if entry.checking {
            entry.recheck = Some(cause);
            return;
        }
        entry.checking = true;
        let before = entry.loaded.clone();
        job::check(name.to_owned(), entry.path.clone(), cause, before, &self.house);
    }

    fn checked(&mut self, checked: Checked) {
        let Some(entry) = self.specs.get_mut(&checked.name) else { return };
        entry.checking = false;
        entry.files = checked.files;
        let mut said = None;
        match checked.result {
            Ok(loaded) => {
                let other = entry.loaded.as_ref().is_none_or(|l| l.meaning != loaded.meaning);
                entry.loaded = Some(loaded);
                if entry.problem.take().is_some() {
                    said = Some(format!("{}: good again", checked.name));
                }
                if other {
                    // Another spec is another chance; the same in other words is not.
                    entry.held = None;
                    entry.failures = 0;
                    entry.running.iter().for_each(|run| {
                        self.runs.interrupt(*run);
                    });
                }
                if self.deadline.is_none() {
                    entry.look(checked.cause);
                }
            }
            Err(failure) => {
                let stays = match entry.loaded {
                    Some(_) => "; the last good one stays in force",
                    None => "",
                };
                said = Some(format!("{}: broken{stays}\n{}", checked.name, failure.text()));
                entry.problem = Some(failure);
            }
        }
        if let Some(cause) = entry.recheck.take() {
            self.check(&checked.name, cause);
        }
        said.iter().for_each(|s| self.say(s));
        self.tell_spec(&checked.name);
        self.watch_all();
    }

    fn wish(&mut self, wish: Wish) {
        let answer = match self.specs.get_mut(&wish.spec) {
            _ if self.deadline.is_some() => Err(ending()),
            None => Err(http::no_spec(&wish.spec, self.specs.keys())),
            Some(entry) => {
                let id = self.runs.number();
                let wanted = Wanted {
                    id,
                    cause: wish.cause,
                    selection: wish.selection,
                    budget: wish.budget,
                    timeout: wish.timeout,
                    ended: wish.ended,
                };
                entry.wish(wanted).map(|()| id)
            }
        };
        let _ = wish.begun.send(answer);
    }

    /// Begins what is wanted, as far as there are places.
    fn begin_runs(&mut self) {
        if self.deadline.is_some() {
            return;
        }
        let spend = self.house.settings.spend;
        for entry in self.specs.values_mut() {
            if !self.runs.has_room() {
                break;
            }
            if let Some(order) = entry.next(spend, || self.runs.number()) {
                entry.running = Some(order.order.id);
                self.runs.begin(order, &self.house);
            }
        }
    }

    fn ended(&mut self, ended: job::Ended) {
        let id = ended.id;
        let name = self.runs.spec_of(id);
        if let Some(line) = self.runs.ended(&ended) {
            self.say(&line);
        }
        if let Some(entry) = name.as_ref().and_then(|name| self.specs.get_mut(name)) {
            let published = ended.published;
            entry.ended(ended, self.runs.is_shown(id));
            if let Some(copy) = entry.knows_its_copy().filter(|_| published) {
                look_later(copy, self.house.events.clone());
            }
        }
        self.tell_run(id);
        name.iter().for_each(|name| self.tell_spec(name));
    }

    fn say(&self, line: &str) {
        info!("{line}");
        (self.house.settings.say)(line);
    }

    fn tell_run(&self, id: u64) {
        if let Some(run) = self.runs.shown(id) {
            let _ = self.house.told.send(("run", run.to_json().to_string().into()));
        }
    }

    fn tell_spec(&self, name: &str) {
        if let Some(entry) = self.specs.get(name) {
            let _ = self.house.told.send(("spec", entry.status().to_json().to_string().into()));
        }
    }

    /// Makes what has become of all this known.
    fn show(&mut self) {
        let queued = self.specs.values().filter(|e| e.waits()).count();
        let status = Status {
            specs: self.specs.values().map(|e| Arc::new(e.status())).collect(),
            runs: self.runs.all(),
            queued,
            ..self.frame.clone()
        };
        self.publish.send_replace(Arc::new(status));
        self.runs.release();
    }
}

/// Why nothing begins any more.
pub(super) fn ending() -> Failure {
    Failure::input("the daemon is ending", "ask again when it is back")
}

async fn tick(alive: Option<&mut tokio::time::Interval>) {
    match alive {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
