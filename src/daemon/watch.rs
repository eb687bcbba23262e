//! Watches files through their directories, because an editor's atomic save replaces the file and
//! would end a watch of the file itself. If a directory does not exist yet, the nearest existing
//! ancestor is watched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::EventKind;
use notify::{Config, ErrorKind, RecommendedWatcher, RecursiveMode};
use notify_debouncer_full::{DebounceEventResult, Debouncer, NoCache, new_debouncer_opt};
use tokio::sync::mpsc;

use super::event::DaemonEvent;
use super::servers::Servers;

/// Time for which a file must not change before it is reported.
const QUIET_PERIOD: Duration = Duration::from_millis(100);
/// Interval between checks for such files.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// Watcher of directories, which sends events to the loop.
pub(super) struct Watch {
    watcher: Debouncer<RecommendedWatcher, NoCache>,
    directories: BTreeMap<PathBuf, Directory>,
    /// Directories that could not be watched, with the error messages.
    failed: BTreeMap<PathBuf, String>,
}

/// A directory that is watched for a spec's files.
struct Directory {
    /// Number of requests to watch the directory that have not been released yet.
    requests: usize,
    /// Whether the system watches the directory.
    is_watched: bool,
}

impl Watch {
    /// Creates a watcher without directories.
    ///
    /// # Errors
    /// Returns the reason and a suggestion if the system cannot watch files.
    pub(super) fn new(events: mpsc::Sender<DaemonEvent>) -> Result<Self, String> {
        let send_event = move |result: DebounceEventResult| {
            let event = match result {
                // The system's event queue overflowed.
                Ok(all) if all.iter().any(|e| e.need_rescan()) => DaemonEvent::CompareFiles,
                Ok(all) => {
                    let changes = all.into_iter().filter(|e| {
                        // Ignore read access; otherwise the daemon would trigger itself.
                        !matches!(e.kind, EventKind::Access(_) | EventKind::Other)
                    });
                    let mut paths: Vec<PathBuf> = changes.flat_map(|e| e.event.paths).collect();
                    paths.sort();
                    paths.dedup();
                    if paths.is_empty() {
                        return;
                    }
                    DaemonEvent::FilesChanged(paths)
                }
                Err(errors) => DaemonEvent::WatchFailed(
                    errors.iter().map(format_error).collect::<Vec<_>>().join("; "),
                ),
            };
            let _ = events.blocking_send(event);
        };
        let watcher = new_debouncer_opt(
            QUIET_PERIOD,
            Some(CHECK_INTERVAL),
            send_event,
            NoCache,
            Config::default(),
        )
        .map_err(|e| format_error(&e))?;
        Ok(Self { watcher, directories: BTreeMap::new(), failed: BTreeMap::new() })
    }

    /// Watches a directory. `is_new_request` is false if the call only retries a failed watch. New
    /// requests are counted, because each of them must be released.
    pub(super) fn watch_directory(&mut self, dir: &Path, is_new_request: bool) {
        let new = || Directory { requests: 0, is_watched: false };
        let known = match self.directories.get_mut(dir) {
            Some(known) => known,
            None => self.directories.entry(dir.to_owned()).or_insert_with(new),
        };
        known.requests += usize::from(is_new_request);
        if known.is_watched {
            return;
        }
        match self.watcher.watch(dir, RecursiveMode::NonRecursive) {
            Ok(()) => {
                known.is_watched = true;
                self.failed.remove(dir);
            }
            Err(error) => {
                self.failed.insert(dir.to_owned(), format_error(&error));
            }
        }
    }

    /// Releases one request for a directory. The directory stays watched while other requests
    /// remain.
    pub(super) fn release_directory(&mut self, dir: &Path) {
        let Some(known) = self.directories.get_mut(dir) else { return };
        known.requests = known.requests.saturating_sub(1);
        if known.requests > 0 {
            return;
        }
        let _ = self.watcher.unwatch(dir);
        self.directories.remove(dir);
        self.failed.remove(dir);
        // Retry a directory whose watch failed, because the system may have room for it now.
        if let Some(next) = self.failed.first_key_value().map(|(dir, _)| dir.clone()) {
            self.watch_directory(&next, false);
        }
    }

    /// Renews the watches of directories that were removed or replaced, because the system drops a
    /// watch together with its directory.
    pub(super) fn renew_watches(&mut self, changed: &[PathBuf]) {
        for dir in changed {
            if let Some(known) = self.directories.get_mut(dir) {
                let _ = self.watcher.unwatch(dir);
                known.is_watched = false;
                if dir.is_dir() {
                    self.watch_directory(dir, false);
                }
            }
        }
    }

    /// Returns the reason why some directories are not watched, with a suggestion; `None` if all
    /// are watched.
    pub(super) fn error_message(&self) -> Option<String> {
        let (dir, why) = self.failed.first_key_value()?;
        let more = match self.failed.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        Some(format!("{}{more}: {why}", dir.display()))
    }
}

/// Asks the loop to compare all files at a fixed interval.
pub(super) async fn poll_files(every: Duration, events: mpsc::Sender<DaemonEvent>) {
    loop {
        tokio::time::sleep(every).await;
        if events.send(DaemonEvent::CompareFiles).await.is_err() {
            return;
        }
    }
}

/// Polls the database servers at a fixed interval and reports the servers that changed.
pub(super) fn poll_servers(every: Duration, events: mpsc::Sender<DaemonEvent>) {
    std::thread::spawn(move || {
        let mut servers = Servers::default();
        while !events.is_closed() {
            std::thread::sleep(every);
            let changed = servers.poll_for_changes();
            if !changed.is_empty()
                && events.blocking_send(DaemonEvent::FilesChanged(changed)).is_err()
            {
                return;
            }
        }
    });
}

/// Reports a file as changed after a delay, because a file that is created and deleted in quick
/// succession causes no event.
pub(super) fn schedule_file_check(file: PathBuf, events: mpsc::Sender<DaemonEvent>) {
    tokio::spawn(async move {
        tokio::time::sleep(3 * QUIET_PERIOD).await;
        let _ = events.send(DaemonEvent::FilesChanged(vec![file])).await;
    });
}

/// Returns an error message with a suggestion.
fn format_error(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => "the system's limit for watched files is reached: raise fs.inotify.max_user_watches, or start with --poll"
            .to_owned(),
        ErrorKind::Io(e) if e.raw_os_error() == Some(24) => "the system's limit for file watchers is reached: raise fs.inotify.max_user_instances, or start with --poll"
            .to_owned(),
        _ => error.to_string(),
    }
}
