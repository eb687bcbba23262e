//! The event loop: it owns all mutable state and handles one event after another.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch as channel};
use tokio::time::{Instant, interval, sleep_until};
use tracing::info;

use super::clients::Clients;
use super::context::DaemonContext;
use super::event::{DaemonEvent, RunResult, SpecChecked, StartRun, shutdown_failure};
use super::files::FileIndex;
use super::http::{self, HttpListener};
use super::job;
use super::runs::DaemonRuns;
use super::spec::{AppliedCheck, RequestedRun, SpecState};
use super::spec_files::{self, FileFingerprint, resolve_reported_paths};
use super::specs::Specs;
use super::status::{Cause, DaemonStatus};
#[cfg(unix)]
use super::status_socket::{self, StatusSocket};
use super::watch::{Watch, poll_files, poll_servers, schedule_file_check};
use super::{Settings, notify, signals};
use crate::facts::{Facts, FactsError};
use crate::failure::Failure;

/// Capacity of the event queue; a sender waits when it is full.
const QUEUE_CAPACITY: usize = 256;
/// Name under which the file index registers the spec directory. No spec has this name.
const SPECS_DIRECTORY: &str = "";
/// Number of events that a slow subscriber can lag behind before it misses some.
const MAX_LAG: usize = 256;

/// State of the loop.
struct EventLoop {
    context: DaemonContext,
    publish: channel::Sender<DaemonStatus>,
    /// Reason why the system does not report some changes, if any.
    watch_error: Option<String>,
    specs: Specs,
    files: FileIndex,
    /// Resolved paths of the spec directory.
    specs_paths: Vec<PathBuf>,
    runs: DaemonRuns,
    /// End of the grace period, during shutdown.
    deadline: Option<Instant>,
    /// Socket for `hqdl status`, until shutdown.
    #[cfg(unix)]
    status_socket: Option<StatusSocket>,
}

/// Interval for polling database servers, if the settings specify none.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Opens the daemon's resources, runs the event loop until shutdown, and closes them in order.
pub(super) async fn run_daemon(facts: Arc<Facts>, settings: Settings) -> Result<(), Failure> {
    let (events, mut queue) = mpsc::channel(QUEUE_CAPACITY);
    let mut settings = settings;
    settings.specs = std::path::absolute(&settings.specs).unwrap_or(settings.specs);
    let mut listeners = vec![HttpListener::bind(settings.listen).await?];
    let address = listeners[0].local_addr().unwrap_or(settings.listen);
    if let Some(socket) = &settings.socket {
        listeners.push(HttpListener::bind_socket(socket)?);
    }
    signals::forward_signals(events.clone()).map_err(|e| {
        Failure::wrong_input(
            format!("cannot listen to signals: {}", crate::format::describe_io_error(&e)),
            "",
        )
    })?;
    poll_servers(settings.poll.unwrap_or(POLL_INTERVAL), events.clone());
    let watch = match settings.poll {
        None => Some(Watch::new(events.clone())),
        Some(every) => {
            tokio::spawn(poll_files(every, events.clone()));
            None
        }
    };
    let initial = DaemonStatus {
        url: format!("http://{address}"),
        began: crate::database::current_timestamp(),
        cache: facts.location(),
        watched: settings.specs.display().to_string(),
        spend: settings.spend,
        ..DaemonStatus::default()
    };
    let url = initial.url.clone();
    let (publish, status) = channel::channel(initial);
    let context = DaemonContext {
        facts: Arc::clone(&facts),
        settings: Arc::new(settings),
        events,
        status,
        subscribers: broadcast::channel(MAX_LAG).0,
        metrics: Arc::default(),
        clients: Clients::default(),
        spending: Arc::default(),
        uses: super::query_uses::QueryUses::default(),
    };
    let (watch, why) = match watch {
        Some(Ok(watch)) => (Some(watch), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let mut state = EventLoop {
        context: context.clone(),
        publish,
        watch_error: None,
        specs: Specs::default(),
        files: FileIndex::with_watch(watch),
        specs_paths: Vec::new(),
        runs: DaemonRuns::default(),
        deadline: None,
        #[cfg(unix)]
        status_socket: serve_status(&context)?,
    };
    why.into_iter().for_each(|why| state.set_watch_error(why));
    let (close, closing) = channel::channel(false);
    let serving = tokio::spawn(http::serve_http(listeners, context.clone(), closing));
    state.rescan_specs(Cause::DaemonStart);
    state.start_pending_work();
    (context.settings.status_callback)(&format!("listening on {url}"));
    if state.specs.len() == 0 {
        let directory = context.settings.specs.display();
        state.log_message(&format!(
            "no spec in {directory} yet; the daemon waits for the first one"
        ));
    }
    notify::notify_ready(&format!("{} specs, {url}", state.specs.len()));
    state.run_loop(&mut queue, &close).await;
    close.send_replace(true);
    let _ = tokio::time::timeout(Duration::from_secs(1), serving).await;
    let _ = facts.flush();
    Ok(())
}

/// Serves the status to `hqdl status`. Returns `None` if the cache is on a server, because there is
/// no local directory then.
#[cfg(unix)]
fn serve_status(context: &DaemonContext) -> Result<Option<StatusSocket>, Failure> {
    if context.facts.is_remote() {
        return Ok(None);
    }
    let (dir, status) = (context.facts.dir(), context.status.clone());
    let status_json = move || {
        // Clone the status and release the borrow immediately, because it blocks the loop.
        let now = status.borrow().clone();
        now.to_json()
    };
    let socket = status_socket::serve_status(dir, status_json)
        .map_err(|error| FactsError::File { path: dir.to_owned(), error })?;
    Ok(Some(socket))
}

impl EventLoop {
    /// Handles events until a shutdown is complete: all work has ended, or the grace period is
    /// over.
    async fn run_loop(
        &mut self,
        queue: &mut mpsc::Receiver<DaemonEvent>,
        close: &channel::Sender<bool>,
    ) {
        let mut watchdog = notify::watchdog_interval().map(interval);
        loop {
            let wake = self.next_timer();
            let event = tokio::select! {
                event = queue.recv() => event,
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => Some(DaemonEvent::TimerExpired),
                () = tick_watchdog(watchdog.as_mut()), if watchdog.is_some() => {
                    notify::notify_alive();
                    continue;
                }
            };
            let Some(event) = event else { return };
            let ending = matches!(event, DaemonEvent::Stop);
            self.handle_event(event);
            if ending {
                close.send_replace(true);
            }
            self.start_pending_work();
            if let Some(deadline) = self.deadline {
                if self.runs.count_running() == 0 && self.context.clients.count() == 0 {
                    return;
                }
                if Instant::now() >= deadline {
                    self.log_message(
                        "the grace period is over: the daemon abandons the requests in flight, which count as spent",
                    );
                    return;
                }
            }
        }
    }

    fn handle_event(&mut self, event: DaemonEvent) {
        match event {
            DaemonEvent::FilesChanged(paths) => self.apply_file_changes(&paths),
            DaemonEvent::CompareFiles => self.check_all_files(),
            DaemonEvent::WatchFailed(why) => self.set_watch_error(why),
            DaemonEvent::TimerExpired => self.run_timers(),
            DaemonEvent::StartRun(request) => self.queue_requested_run(*request),
            DaemonEvent::InterruptRun(run, reply) => {
                if let Some(name) = self.runs.find_spec_name(run) {
                    self.specs.update_spec(&name, |spec| {
                        if spec.running == Some(run) {
                            spec.hold_after_cancellation();
                        }
                    });
                }
                let _ = reply.send(self.runs.interrupt_run(run));
            }
            DaemonEvent::SpecChecked(checked) => self.apply_check(*checked),
            DaemonEvent::RunProgressed(run) => {
                self.runs.update_progress(run, &self.context.events);
                self.notify_run(run);
            }
            DaemonEvent::RunEnded(ended) => self.finish_run(*ended),
            DaemonEvent::Reload => {
                notify::notify_reloading();
                (self.context.settings.reopen_log)();
                info!("reads everything again");
                self.log_message("reloading all specs");
                self.reload_specs();
                notify::notify_ready(&format!("{} specs", self.specs.len()));
            }
            DaemonEvent::Stop => self.begin_shutdown(),
        }
    }

    /// Returns the time at which the loop must wake up next, if no event arrives earlier.
    fn next_timer(&self) -> Option<Instant> {
        // During shutdown, wake up often to notice that clients have disconnected.
        let ending = self.deadline.map(|d| d.min(Instant::now() + Duration::from_millis(50)));
        self.specs.next_timer().into_iter().chain(ending).min()
    }

    fn run_timers(&mut self) {
        if self.deadline.is_none() {
            self.specs.run_timers();
        }
    }

    fn begin_shutdown(&mut self) {
        notify::notify_stopping();
        info!("ends");
        self.log_message("shutting down after the requests in flight");
        self.deadline = Some(Instant::now() + self.context.settings.grace);
        self.specs.update_all_specs(SpecState::cancel_pending_work);
        self.runs.interrupt_all_runs();
        self.context.clients.interrupt_all_work();
        #[cfg(unix)]
        drop(self.status_socket.take());
    }

    fn reload_specs(&mut self) {
        self.specs.update_all_specs(|spec| spec.files.clear());
        self.rescan_specs(Cause::Reload);
    }

    /// Checks the specs that the changed files affect.
    fn apply_file_changes(&mut self, paths: &[PathBuf]) {
        self.files.renew_watches(paths);
        let mut affected = self.files.find_affected_specs(paths);
        if affected.remove(SPECS_DIRECTORY) {
            self.rescan_specs(Cause::Spec);
        } else {
            for path in paths {
                if let (Some(dir), Some(file)) = (path.parent(), path.file_name())
                    && self.specs_paths.iter().any(|p| p == dir)
                    && let Some(name) = spec_files::derive_spec_name(path)
                {
                    self.update_spec_file(
                        &name,
                        self.context.settings.specs.join(file),
                        Cause::Spec,
                    );
                }
            }
        }
        affected.iter().for_each(|name| self.check_changed_files(name));
        self.update_watch_state();
    }

    fn check_all_files(&mut self) {
        self.rescan_specs(Cause::Spec);
        let names: Vec<String> = self.specs.names().cloned().collect();
        names.iter().for_each(|name| self.check_changed_files(name));
        self.update_watch_state();
    }

    /// Schedules a check of a spec if one of its files has changed.
    fn check_changed_files(&mut self, name: &str) {
        let Some(spec) = self.specs.get(name) else { return };
        // Watch first, so that later changes are reported.
        self.files.set_files(name, spec.files.iter().map(|(file, _)| file.as_path()));
        if let Some(cause) = spec.find_change_cause() {
            self.schedule_check(name, cause);
        }
    }

    /// Updates the list of specs.
    fn rescan_specs(&mut self, cause: Cause) {
        let directory = self.context.settings.specs.clone();
        // Watch the directory itself, and its parent, in which it may be created or replaced.
        let inside = directory.join("x.toml");
        self.files.set_files(SPECS_DIRECTORY, [inside.as_path(), directory.as_path()].into_iter());
        self.specs_paths =
            resolve_reported_paths(&directory).into_iter().chain([directory.clone()]).collect();
        let found = spec_files::find_specs(&directory);
        let gone: Vec<String> =
            self.specs.names().filter(|name| !found.contains_key(*name)).cloned().collect();
        gone.iter().for_each(|name| self.remove_spec(name));
        for (name, path) in found {
            self.update_spec_file(&name, path, cause);
        }
        self.update_watch_state();
    }

    /// Handles a spec file that may have been added, changed or removed.
    fn update_spec_file(&mut self, name: &str, path: PathBuf, cause: Cause) {
        if !path.is_file() {
            return self.remove_spec(name);
        }
        let fingerprint = FileFingerprint::read(&path);
        if self.specs.get(name).is_none() {
            self.specs.insert(name, path);
        }
        let known = self.specs.get(name).and_then(|e| e.files.first());
        if known.is_none_or(|(_, known)| *known != fingerprint) {
            self.schedule_check(name, cause);
        }
    }

    fn remove_spec(&mut self, name: &str) {
        let Some(spec) = self.specs.remove(name) else { return };
        self.files.remove_spec(name);
        spec.running.iter().for_each(|run| {
            self.runs.interrupt_run(*run);
        });
        self.log_message(&format!("{name}: its file was deleted"));
    }

    /// Updates the state of the file watches, and prints a warning if changes are not reported.
    fn update_watch_state(&mut self) {
        match self.files.watch_error() {
            Some(why) => self.set_watch_error(why),
            None if self.files.is_watched() => self.watch_error = None,
            None => {}
        }
    }

    fn set_watch_error(&mut self, why: String) {
        if self.watch_error.is_none() {
            self.log_message(&format!("warning: the daemon does not notice changes: {why}"));
        }
        self.watch_error = Some(why);
    }

    /// Schedules a check. If a check is already in progress, the new one follows it.
    fn schedule_check(&mut self, name: &str, cause: Cause) {
        if self.deadline.is_none() {
            self.specs.update_spec(name, |spec| {
                spec.check_cause.get_or_insert(cause);
            });
        }
    }

    fn apply_check(&mut self, checked: SpecChecked) {
        let name = checked.name.clone();
        let ending = self.deadline.is_some();
        let applied = self.specs.update_spec(&name, |spec| spec.apply_check(checked, ending));
        let Some(AppliedCheck { message, replaced_run }) = applied else { return };
        replaced_run.iter().for_each(|run| {
            self.runs.interrupt_run(*run);
        });
        message.iter().for_each(|s| self.log_message(s));
        self.notify_spec(&name);
        let Some(spec) = self.specs.get(&name) else { return };
        self.files.set_files(&name, spec.files.iter().map(|(file, _)| file.as_path()));
        if spec.find_change_cause().is_some() {
            // A file may have changed during the check without an event.
            schedule_file_check(spec.path.clone(), self.context.events.clone());
        }
        self.update_watch_state();
    }

    fn queue_requested_run(&mut self, request: StartRun) {
        let id = self.runs.reserve_run_id();
        let StartRun { spec, selection, budget, timeout, cause, started, ended } = request;
        let requested = RequestedRun { id, cause, selection, budget, timeout, ended };
        let answer = if self.deadline.is_some() {
            Err(shutdown_failure())
        } else {
            let queued =
                self.specs.update_spec(&spec, |spec_state| spec_state.queue_run(requested));
            queued
                .unwrap_or_else(|| Err(http::unknown_spec_failure(&spec, self.specs.names())))
                .map(|()| id)
        };
        let _ = started.send(answer);
    }

    /// Starts pending work while slots are free, and publishes the new status.
    fn start_pending_work(&mut self) {
        if self.deadline.is_none() {
            self.start_checks();
            self.start_runs();
        }
        self.publish_status();
    }

    fn start_checks(&mut self) {
        while let Some(name) = self.specs.next_unchecked_spec().map(str::to_owned) {
            let started = self.specs.update_spec(&name, |spec| {
                spec.reading_since = Some(Instant::now());
                let cause = spec.check_cause.take().unwrap_or(Cause::Files);
                (spec.path.clone(), cause, spec.active_spec.clone())
            });
            let Some((path, cause, previous)) = started else { return };
            job::check_spec(name, path, cause, previous, &self.context);
        }
    }

    fn start_runs(&mut self) {
        let spend = self.context.settings.spend;
        while self.runs.has_free_slot() {
            let Some(name) = self.specs.next_startable_spec().map(str::to_owned) else { return };
            let runs = &mut self.runs;
            let started = self
                .specs
                .update_spec(&name, |spec| spec.take_next_run(spend, || runs.reserve_run_id()));
            let Some(Some(run_start)) = started else { return };
            self.runs.start_run(run_start, &self.context);
        }
    }

    fn finish_run(&mut self, ended: RunResult) {
        let id = ended.id;
        let name = self.runs.find_spec_name(id);
        if let Some(line) = self.runs.finish_run(&ended) {
            self.log_message(&line);
        }
        if let Some(name) = &name {
            let (published, is_listed) = (ended.published, self.runs.is_listed(id));
            let has_asked = ended.columns.iter().flatten().any(|c| c.usage.requests > 0);
            let copy = self.specs.update_spec(name, |spec| {
                spec.apply_result(ended, is_listed);
                spec.refresh_copy_fingerprint()
            });
            if let Some(copy) = copy.flatten().filter(|_| published) {
                schedule_file_check(copy, self.context.events.clone());
            }
            if has_asked && self.deadline.is_none() {
                self.specs.update_all_specs(|spec| {
                    if spec.name != *name {
                        spec.renew_plan();
                    }
                });
            }
        }
        self.notify_run(id);
        name.iter().for_each(|name| self.notify_spec(name));
    }

    fn log_message(&self, line: &str) {
        info!("{line}");
        (self.context.settings.status_callback)(line);
    }

    fn notify_run(&self, id: u64) {
        self.notify_subscribers("run", || Some(self.runs.find_listed_run(id)?.to_json()));
    }

    fn notify_spec(&self, name: &str) {
        self.notify_subscribers("spec", || Some(self.specs.get(name)?.to_status().to_json()));
    }

    /// Sends an event to the subscribers, if there are any.
    fn notify_subscribers(&self, event: &str, data: impl FnOnce() -> Option<serde_json::Value>) {
        if self.context.subscribers.receiver_count() > 0
            && let Some(data) = data()
        {
            let _ = self.context.subscribers.send(http::build_sse_event(event, &data));
        }
    }

    /// Publishes the new status.
    fn publish_status(&mut self) {
        let changed = self.specs.take_changed_names();
        let (specs, runs) = (&self.specs, self.runs.list_runs());
        self.publish.send_modify(|status| {
            for name in changed {
                match specs.get(&name) {
                    Some(spec) => status.specs.insert(name, Arc::new(spec.to_status())),
                    None => status.specs.remove(&name),
                };
            }
            status.runs = runs;
            status.queued = specs.count_waiting_specs();
            status.watch_error.clone_from(&self.watch_error);
        });
        self.runs.notify_waiters();
    }
}

async fn tick_watchdog(watchdog: Option<&mut tokio::time::Interval>) {
    match watchdog {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
