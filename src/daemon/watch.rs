//! Watching files: always the directories they are in, since an editor's atomic
//! save puts another file in the old one's place, and a watch of the file itself
//! would go with it. A directory that is not there yet is waited for in the
//! nearest one above it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::EventKind;
use notify::{Config, ErrorKind, RecommendedWatcher, RecursiveMode};
use notify_debouncer_full::{DebounceEventResult, Debouncer, NoCache, new_debouncer_opt};
use tokio::sync::mpsc;

use super::event::DaemonEvent;
use super::servers::Servers;

/// A file is told of when it was quiet for so long.
const QUIET: Duration = Duration::from_millis(100);
/// How often it is looked whether one is.
const TICK: Duration = Duration::from_millis(25);

/// Watches directories for the loop.
pub(super) struct Watch {
    watcher: Debouncer<RecommendedWatcher, NoCache>,
    directories: BTreeMap<PathBuf, Directory>,
    /// Why directories are not watched that should be.
    failed: BTreeMap<PathBuf, String>,
}

/// A directory that is asked for.
struct Directory {
    /// By how many.
    asked: usize,
    /// Whether the system tells of it.
    watched: bool,
}

impl Watch {
    /// Begins to watch nothing.
    ///
    /// # Errors
    /// Why it cannot, and what to do.
    pub(super) fn new(events: mpsc::Sender<DaemonEvent>) -> Result<Self, String> {
        let tell = move |result: DebounceEventResult| {
            let event = match result {
                // The system had more to tell than it could hold.
                Ok(all) if all.iter().any(|e| e.need_rescan()) => DaemonEvent::Look,
                Ok(all) => {
                    let changes = all.into_iter().filter(|e| {
                        // Reading a file is no change; the daemon would wake itself.
                        !matches!(e.kind, EventKind::Access(_) | EventKind::Other)
                    });
                    let mut paths: Vec<PathBuf> = changes.flat_map(|e| e.event.paths).collect();
                    paths.sort();
                    paths.dedup();
                    if paths.is_empty() {
                        return;
                    }
                    DaemonEvent::Files(paths)
                }
                Err(errors) => {
                    DaemonEvent::Blind(errors.iter().map(said).collect::<Vec<_>>().join("; "))
                }
            };
            let _ = events.blocking_send(event);
        };
        let watcher = new_debouncer_opt(QUIET, Some(TICK), tell, NoCache, Config::default())
            .map_err(|e| said(&e))?;
        Ok(Self { watcher, directories: BTreeMap::new(), failed: BTreeMap::new() })
    }

    /// Watches a directory, as long as it is not released as often as it was asked
    /// for. What is asked for once more counts only when it is `anew`.
    pub(super) fn ask(&mut self, dir: &Path, anew: bool) {
        let new = || Directory { asked: 0, watched: false };
        let known = match self.directories.get_mut(dir) {
            Some(known) => known,
            None => self.directories.entry(dir.to_owned()).or_insert_with(new),
        };
        known.asked += usize::from(anew);
        if known.watched {
            return;
        }
        match self.watcher.watch(dir, RecursiveMode::NonRecursive) {
            Ok(()) => {
                known.watched = true;
                self.failed.remove(dir);
            }
            Err(error) => {
                self.failed.insert(dir.to_owned(), said(&error));
            }
        }
    }

    /// Watches a directory no more, unless others ask for it.
    pub(super) fn release(&mut self, dir: &Path) {
        let Some(known) = self.directories.get_mut(dir) else { return };
        known.asked = known.asked.saturating_sub(1);
        if known.asked > 0 {
            return;
        }
        let _ = self.watcher.unwatch(dir);
        self.directories.remove(dir);
        self.failed.remove(dir);
        // There is room for another one.
        if let Some(next) = self.failed.first_key_value().map(|(dir, _)| dir.clone()) {
            self.ask(&next, false);
        }
    }

    /// Directories that were taken away or put in another's place: the system's
    /// watch went with the old one.
    pub(super) fn lost(&mut self, changed: &[PathBuf]) {
        for dir in changed {
            if let Some(known) = self.directories.get_mut(dir) {
                let _ = self.watcher.unwatch(dir);
                known.watched = false;
                if dir.is_dir() {
                    self.ask(dir, false);
                }
            }
        }
    }

    /// Why not all are watched, and what to do.
    pub(super) fn failed(&self) -> Option<String> {
        let (dir, why) = self.failed.first_key_value()?;
        let more = match self.failed.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        Some(format!("{}{more}: {why}", dir.display()))
    }
}

/// Has all files looked at every so often.
pub(super) async fn poll(every: Duration, events: mpsc::Sender<DaemonEvent>) {
    loop {
        tokio::time::sleep(every).await;
        if events.send(DaemonEvent::Look).await.is_err() {
            return;
        }
    }
}

/// Has servers asked every so often whether somebody has written there.
pub(super) fn ask_servers(every: Duration, events: mpsc::Sender<DaemonEvent>) {
    std::thread::spawn(move || {
        let mut servers = Servers::default();
        while !events.is_closed() {
            std::thread::sleep(every);
            let changed = servers.changed();
            if !changed.is_empty() && events.blocking_send(DaemonEvent::Files(changed)).is_err() {
                return;
            }
        }
    });
}

/// Has a file looked at once more when the system has told what it will: of one
/// that is made and taken away at once it tells nothing.
pub(super) fn look_later(file: PathBuf, events: mpsc::Sender<DaemonEvent>) {
    tokio::spawn(async move {
        tokio::time::sleep(3 * QUIET).await;
        let _ = events.send(DaemonEvent::Files(vec![file])).await;
    });
}

/// What went wrong, and what to do.
fn said(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => "the system's limit for watched files is reached: raise fs.inotify.max_user_watches, or start with --poll"
            .to_owned(),
        ErrorKind::Io(e) if e.raw_os_error() == Some(24) => "the system's limit for file watchers is reached: raise fs.inotify.max_user_instances, or start with --poll"
            .to_owned(),
        _ => error.to_string(),
    }
}
