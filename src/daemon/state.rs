//! The event loop: it owns all mutable state and handles one event after another.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch as channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep_until};
use tracing::info;

use super::clients::Clients;
use super::event::{Checked, EndedRun};
use super::event::{DaemonEvent, RunWish};
use super::files::Files;
use super::house::DaemonContext;
use super::http::{self, Door};
use super::job;
use super::listing::{self, Stamp, names};
use super::runs::DaemonRuns;
use super::spec::{Entry, Taken, WantedRun};
use super::specs::Specs;
use super::status::{Cause, DaemonStatus};
use super::watch::{Watch, ask_servers, look_later, poll};
use super::{Settings, notify, signals};
use crate::facts::Facts;
use crate::facts::server::{self, CacheServer};
use crate::failure::Failure;

/// Capacity of the event queue; a sender waits when it is full.
const QUEUE: usize = 256;
/// Minimum grace period of the processes that use the cache.
const LAST: Duration = Duration::from_secs(2);
/// Name under which the directory of the specs is registered as a dependent of files. No spec has
/// this name.
const PLACE: &str = "";
/// Number of events that a slow subscriber may be behind before it misses some.
const BEHIND: usize = 256;

/// State of the loop.
struct Loop {
    house: DaemonContext,
    publish: channel::Sender<DaemonStatus>,
    /// Reason why changes are not reported.
    blind: Option<String>,
    specs: Specs,
    files: Files,
    /// Resolved paths of the directory of the specs.
    place: Vec<PathBuf>,
    runs: DaemonRuns,
    /// End of the grace period.
    deadline: Option<Instant>,
    /// Server of the cache, until shutdown.
    lending: Option<CacheServer>,
    /// Shutdown of the cache server; its clients have the grace period, too.
    lent: Option<JoinHandle<()>>,
}

/// Interval for polling database servers, if the settings have none.
const ASK_SERVERS: Duration = Duration::from_secs(5);

/// Opens everything, runs until the daemon is stopped, and closes it in order.
pub(super) async fn run(facts: Arc<Facts>, settings: Settings) -> Result<(), Failure> {
    let (events, mut queue) = mpsc::channel(QUEUE);
    let mut settings = settings;
    settings.specs = std::path::absolute(&settings.specs).unwrap_or(settings.specs);
    let mut doors = vec![Door::bind(settings.listen).await?];
    let listens = doors[0].local_addr().unwrap_or(settings.listen);
    if let Some(socket) = &settings.socket {
        doors.push(Door::bind_socket(socket)?);
    }
    signals::listen(events.clone())
        .map_err(|e| Failure::input(format!("cannot listen to signals: {e}"), ""))?;
    ask_servers(settings.poll.unwrap_or(ASK_SERVERS), events.clone());
    let watch = match settings.poll {
        None => Some(Watch::new(events.clone())),
        Some(every) => {
            tokio::spawn(poll(every, events.clone()));
            None
        }
    };
    let frame = DaemonStatus {
        url: format!("http://{listens}"),
        began: crate::database::now(),
        cache: facts.place(),
        watched: settings.specs.display().to_string(),
        spend: settings.spend,
        ..DaemonStatus::default()
    };
    let url = frame.url.clone();
    let (publish, status) = channel::channel(frame);
    let house = DaemonContext {
        facts: Arc::clone(&facts),
        settings: Arc::new(settings),
        events,
        status,
        told: broadcast::channel(BEHIND).0,
        metrics: Arc::default(),
        clients: Clients::default(),
        spent: Arc::default(),
    };
    let (watch, why) = match watch {
        Some(Ok(watch)) => (Some(watch), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let mut state = Loop {
        house: house.clone(),
        publish,
        blind: None,
        specs: Specs::default(),
        files: Files::watched_by(watch),
        place: Vec::new(),
        runs: DaemonRuns::default(),
        deadline: None,
        lending: None,
        lent: None,
    };
    why.into_iter().for_each(|why| state.is_blind(why));
    let (close, closing) = channel::channel(false);
    state.lending = lend(&house)?;
    let serving = tokio::spawn(http::serve(doors, house.clone(), closing));
    state.rescan(Cause::Begin);
    state.begin();
    (house.settings.say)(&format!("listening on {url}"));
    if state.specs.len() == 0 {
        let place = house.settings.specs.display();
        state.say(&format!("no spec in {place} yet; the daemon watches it"));
    }
    notify::ready(&format!("{} specs, {url}", state.specs.len()));
    state.live(&mut queue, &close).await;
    close.send_replace(true);
    let _ = tokio::time::timeout(Duration::from_secs(1), serving).await;
    state.lend_no_more(LAST);
    if let Some(lent) = state.lent {
        let _ = lent.await;
    }
    let _ = facts.flush();
    Ok(())
}

/// Serves the cache to other processes of hqdl. Returns `None` if the cache is on a server, which
/// other processes reach by themselves.
fn lend(house: &DaemonContext) -> Result<Option<CacheServer>, Failure> {
    if !house.facts.is_owned() {
        return Ok(None);
    }
    let status = house.status.clone();
    let told = Arc::new(move || {
        // Release the status at once: the loop waits for its readers.
        let now = status.borrow().clone();
        now.to_json()
    });
    Ok(Some(server::serve(&house.facts, told)?))
}

impl Loop {
    /// Handles events until all work has ended or the grace period is over.
    async fn live(
        &mut self,
        queue: &mut mpsc::Receiver<DaemonEvent>,
        close: &channel::Sender<bool>,
    ) {
        let mut alive = notify::watchdog().map(interval);
        loop {
            let wake = self.wakes();
            let event = tokio::select! {
                event = queue.recv() => event,
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => Some(DaemonEvent::Clock),
                () = tick(alive.as_mut()), if alive.is_some() => {
                    notify::alive();
                    continue;
                }
            };
            let Some(event) = event else { return };
            let ending = matches!(event, DaemonEvent::Stop);
            self.act(event);
            if ending {
                close.send_replace(true);
            }
            self.begin();
            if let Some(deadline) = self.deadline {
                let borrowed = self.lent.as_ref().is_some_and(|lent| !lent.is_finished());
                if self.runs.under_way() == 0 && self.house.clients.count() == 0 && !borrowed {
                    return;
                }
                if Instant::now() >= deadline {
                    self.say(
                        "the grace period is over: the daemon abandons the requests in flight, which count as spent",
                    );
                    return;
                }
            }
        }
    }

    fn act(&mut self, event: DaemonEvent) {
        match event {
            DaemonEvent::Files(paths) => self.changed(&paths),
            DaemonEvent::Look => self.look(),
            DaemonEvent::Blind(why) => self.is_blind(why),
            DaemonEvent::Clock => self.clock(),
            DaemonEvent::Start(wish) => self.wish(*wish),
            DaemonEvent::Interrupt(run, reply) => {
                if let Some(name) = self.runs.spec_of(run) {
                    self.specs.change(&name, |entry| {
                        if entry.running == Some(run) {
                            entry.ended_by_a_client();
                        }
                    });
                }
                let _ = reply.send(self.runs.interrupt(run));
            }
            DaemonEvent::Checked(checked) => self.checked(*checked),
            DaemonEvent::Progress(run) => {
                self.runs.progress(run, &self.house.events);
                self.tell_run(run);
            }
            DaemonEvent::Ended(ended) => self.ended(*ended),
            DaemonEvent::Reload => {
                notify::reloading();
                (self.house.settings.reopen_log)();
                info!("reads everything again");
                self.say("reloading all specs");
                self.reload();
                notify::ready(&format!("{} specs", self.specs.len()));
            }
            DaemonEvent::Stop => self.stop(),
        }
    }

    /// Returns the time of the next timer.
    fn wakes(&self) -> Option<Instant> {
        // During shutdown, poll for clients that leave.
        let ending = self.deadline.map(|d| d.min(Instant::now() + Duration::from_millis(50)));
        self.specs.wakes().into_iter().chain(ending).min()
    }

    fn clock(&mut self) {
        if self.deadline.is_none() {
            self.specs.clock();
        }
    }

    fn stop(&mut self) {
        notify::stopping();
        info!("ends");
        self.say("shutting down after the requests in flight");
        self.deadline = Some(Instant::now() + self.house.settings.grace);
        self.specs.change_all(Entry::forget_wishes);
        self.runs.interrupt_all();
        self.house.clients.end_all();
        self.lend_no_more(self.house.settings.grace.max(LAST));
    }

    /// Stops accepting cache clients; the connected ones get the grace period.
    fn lend_no_more(&mut self, patience: Duration) {
        if let Some(lending) = self.lending.take() {
            self.lent = Some(tokio::task::spawn_blocking(move || lending.end(patience)));
        }
    }

    fn reload(&mut self) {
        self.specs.change_all(|entry| entry.files.clear());
        self.rescan(Cause::Reload);
    }

    /// Checks the specs that the changed files affect.
    fn changed(&mut self, paths: &[PathBuf]) {
        self.files.lost(paths);
        let mut concerned = self.files.concerned(paths);
        if concerned.remove(PLACE) {
            self.rescan(Cause::Spec);
        } else {
            for path in paths {
                if let (Some(dir), Some(file)) = (path.parent(), path.file_name())
                    && self.place.iter().any(|p| p == dir)
                    && let Some(name) = listing::name(path)
                {
                    self.found(&name, self.house.settings.specs.join(file), Cause::Spec);
                }
            }
        }
        concerned.iter().for_each(|name| self.compare(name));
        self.see();
    }

    /// Compares all files.
    fn look(&mut self) {
        self.rescan(Cause::Spec);
        let names: Vec<String> = self.specs.names().cloned().collect();
        names.iter().for_each(|name| self.compare(name));
        self.see();
    }

    /// Checks a spec if one of its files changed.
    fn compare(&mut self, name: &str) {
        let Some(entry) = self.specs.get(name) else { return };
        // Watch first, so that later changes are reported.
        self.files.set(name, entry.files.iter().map(|(file, _)| file.as_path()));
        if let Some(cause) = entry.changed() {
            self.check(name, cause);
        }
    }

    /// Updates the list of specs.
    fn rescan(&mut self, cause: Cause) {
        let place = self.house.settings.specs.clone();
        // The directory itself, and the path where it would be created.
        let inside = place.join("x.toml");
        self.files.set(PLACE, [inside.as_path(), place.as_path()].into_iter());
        self.place = names(&place).into_iter().chain([place.clone()]).collect();
        let found = listing::specs(&place);
        let gone: Vec<String> =
            self.specs.names().filter(|name| !found.contains_key(*name)).cloned().collect();
        gone.iter().for_each(|name| self.gone(name));
        for (name, path) in found {
            self.found(&name, path, cause);
        }
        self.see();
    }

    /// Handles a spec file that may have been added, changed or removed.
    fn found(&mut self, name: &str, path: PathBuf, cause: Cause) {
        if !path.is_file() {
            return self.gone(name);
        }
        let stamp = Stamp::of(&path);
        if self.specs.get(name).is_none() {
            self.specs.insert(name, path);
        }
        let known = self.specs.get(name).and_then(|e| e.files.first());
        if known.is_none_or(|(_, known)| *known != stamp) {
            self.check(name, cause);
        }
    }

    fn gone(&mut self, name: &str) {
        let Some(entry) = self.specs.remove(name) else { return };
        self.files.forget(name);
        entry.running.iter().for_each(|run| {
            self.runs.interrupt(*run);
        });
        self.say(&format!("{name}: its file was deleted"));
    }

    /// Updates the state of the file watches, and prints a warning if changes are not reported.
    fn see(&mut self) {
        match self.files.blind() {
            Some(why) => self.is_blind(why),
            None if self.files.is_watched() => self.blind = None,
            None => {}
        }
    }

    fn is_blind(&mut self, why: String) {
        if self.blind.is_none() {
            self.say(&format!("warning: the daemon does not notice changes: {why}"));
        }
        self.blind = Some(why);
    }

    /// Schedules a check. During a check, it schedules another one.
    fn check(&mut self, name: &str, cause: Cause) {
        if self.deadline.is_none() {
            self.specs.change(name, |entry| {
                entry.unread.get_or_insert(cause);
            });
        }
    }

    fn checked(&mut self, checked: Checked) {
        let name = checked.name.clone();
        let ending = self.deadline.is_some();
        let taken = self.specs.change(&name, |entry| entry.take(checked, ending));
        let Some(Taken { said, replaced }) = taken else { return };
        replaced.iter().for_each(|run| {
            self.runs.interrupt(*run);
        });
        said.iter().for_each(|s| self.say(s));
        self.tell_spec(&name);
        let Some(entry) = self.specs.get(&name) else { return };
        self.files.set(&name, entry.files.iter().map(|(file, _)| file.as_path()));
        if entry.changed().is_some() {
            // A file may have changed during the check without an event.
            look_later(entry.path.clone(), self.house.events.clone());
        }
        self.see();
    }

    fn wish(&mut self, wish: RunWish) {
        let id = self.runs.number();
        let RunWish { spec, selection, budget, timeout, cause, begun, ended } = wish;
        let wanted = WantedRun { id, cause, selection, budget, timeout, ended };
        let answer = if self.deadline.is_some() {
            Err(ending())
        } else {
            let taken = self.specs.change(&spec, |entry| entry.wish(wanted));
            taken.unwrap_or_else(|| Err(http::no_spec(&spec, self.specs.names()))).map(|()| id)
        };
        let _ = begun.send(answer);
    }

    /// Starts pending work while slots are free, and publishes the new status.
    fn begin(&mut self) {
        if self.deadline.is_none() {
            self.begin_reading();
            self.begin_runs();
        }
        self.show();
    }

    fn begin_reading(&mut self) {
        while let Some(name) = self.specs.unread().map(str::to_owned) {
            let begun = self.specs.change(&name, |entry| {
                entry.reading = Some(Instant::now());
                let cause = entry.unread.take().unwrap_or(Cause::Files);
                (entry.path.clone(), cause, entry.loaded.clone())
            });
            let Some((path, cause, before)) = begun else { return };
            job::check(name, path, cause, before, &self.house);
        }
    }

    fn begin_runs(&mut self) {
        let spend = self.house.settings.spend;
        while self.runs.has_room() {
            let Some(name) = self.specs.startable().map(str::to_owned) else { return };
            let runs = &mut self.runs;
            let begun = self.specs.change(&name, |entry| entry.next(spend, || runs.number()));
            let Some(Some(begun)) = begun else { return };
            self.runs.begin(begun, &self.house);
        }
    }

    fn ended(&mut self, ended: EndedRun) {
        let id = ended.id;
        let name = self.runs.spec_of(id);
        if let Some(line) = self.runs.ended(&ended) {
            self.say(&line);
        }
        if let Some(name) = &name {
            let (published, shown) = (ended.published, self.runs.is_shown(id));
            let copy = self.specs.change(name, |entry| {
                entry.ended(ended, shown);
                entry.knows_its_copy()
            });
            if let Some(copy) = copy.flatten().filter(|_| published) {
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
        self.tell("run", || Some(self.runs.shown(id)?.to_json()));
    }

    fn tell_spec(&self, name: &str) {
        self.tell("spec", || Some(self.specs.get(name)?.status().to_json()));
    }

    /// Sends an event to the subscribers, if there are any.
    fn tell(&self, event: &str, data: impl FnOnce() -> Option<serde_json::Value>) {
        if self.house.told.receiver_count() > 0
            && let Some(data) = data()
        {
            let _ = self.house.told.send(http::told(event, &data));
        }
    }

    /// Publishes the new status.
    fn show(&mut self) {
        let changed = self.specs.take_changed();
        let (specs, runs) = (&self.specs, self.runs.all());
        self.publish.send_modify(|status| {
            for name in changed {
                match specs.get(&name) {
                    Some(entry) => status.specs.insert(name, Arc::new(entry.status())),
                    None => status.specs.remove(&name),
                };
            }
            status.runs = runs;
            status.queued = specs.waiting();
            status.blind.clone_from(&self.blind);
        });
        self.runs.release();
    }
}

/// Returns the failure of a request during shutdown.
pub(super) fn ending() -> Failure {
    Failure::input("the daemon is shutting down", "retry after its restart")
}

async fn tick(alive: Option<&mut tokio::time::Interval>) {
    match alive {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
