//! Watching files: always the directories they are in, since an editor's atomic
//! save puts another file in the old one's place, and a watch of the file itself
//! would go with it. A directory that is not there yet is waited for in the
//! nearest one above it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::EventKind;
use notify::{Config, ErrorKind, RecommendedWatcher, RecursiveMode};
use notify_debouncer_full::{DebounceEventResult, Debouncer, NoCache, new_debouncer_opt};
use tokio::sync::mpsc;

use super::event::Event;
use super::listing::names;

/// A file is told of when it was quiet for so long.
const QUIET: Duration = Duration::from_millis(100);
/// How often it is looked whether one is.
const TICK: Duration = Duration::from_millis(25);

/// Watches directories for the loop.
pub(super) struct Watch {
    watcher: Debouncer<RecommendedWatcher, NoCache>,
    watched: BTreeSet<PathBuf>,
}

impl Watch {
    /// Begins to watch nothing.
    ///
    /// # Errors
    /// Why it cannot, and what to do.
    pub(super) fn new(events: mpsc::Sender<Event>) -> Result<Self, String> {
        let tell = move |result: DebounceEventResult| {
            let event = match result {
                // The system had more to tell than it could hold.
                Ok(all) if all.iter().any(|e| e.need_rescan()) => Event::Look,
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
                    Event::Files(paths)
                }
                Err(errors) => Event::Blind(errors.iter().map(said).collect::<Vec<_>>().join("; ")),
            };
            let _ = events.blocking_send(event);
        };
        let watcher = new_debouncer_opt(QUIET, Some(TICK), tell, NoCache, Config::default())
            .map_err(|e| said(&e))?;
        Ok(Self { watcher, watched: BTreeSet::new() })
    }

    /// Watches the directories of these files, and no others; tells whether some
    /// were not watched before, so that a change may have gone unseen.
    ///
    /// # Errors
    /// Why not all can be watched, and what to do; the others are.
    pub(super) fn only(&mut self, files: &BTreeSet<PathBuf>) -> Result<bool, String> {
        let wanted: BTreeSet<PathBuf> =
            files.iter().flat_map(|f| names(f)).filter_map(|f| nearest(&f)).collect();
        for gone in self.watched.difference(&wanted) {
            let _ = self.watcher.unwatch(gone);
        }
        let mut failed = Vec::new();
        let mut watched = BTreeSet::new();
        for dir in wanted {
            if self.watched.contains(&dir) {
                watched.insert(dir);
                continue;
            }
            match self.watcher.watch(&dir, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    watched.insert(dir);
                }
                Err(error) => failed.push(format!("{}: {}", dir.display(), said(&error))),
            }
        }
        let more = !watched.is_subset(&self.watched);
        self.watched = watched;
        if failed.is_empty() { Ok(more) } else { Err(failed.join("; ")) }
    }

    /// Forgets directories that were taken away or put in another's place: the
    /// system's watch went with the old one.
    pub(super) fn forget(&mut self, changed: &[PathBuf]) {
        let lost: Vec<PathBuf> =
            self.watched.iter().filter(|dir| changed.contains(dir)).cloned().collect();
        for dir in lost {
            let _ = self.watcher.unwatch(&dir);
            self.watched.remove(&dir);
        }
    }
}

/// Has all files looked at every so often.
pub(super) async fn poll(every: Duration, events: mpsc::Sender<Event>) {
    loop {
        tokio::time::sleep(every).await;
        if events.send(Event::Look).await.is_err() {
            return;
        }
    }
}

/// Has a file looked at once more when the system has told what it will: of one
/// that is made and taken away at once it tells nothing.
pub(super) fn look_later(file: PathBuf, events: mpsc::Sender<Event>) {
    tokio::spawn(async move {
        tokio::time::sleep(3 * QUIET).await;
        let _ = events.send(Event::Files(vec![file])).await;
    });
}

/// The directory to watch for a file: its own, or the nearest above that is there.
fn nearest(file: &Path) -> Option<PathBuf> {
    file.ancestors().skip(1).find(|dir| dir.is_dir()).map(Path::to_owned)
}

/// What went wrong, and what to do.
fn said(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => "the system's limit of watches is reached: raise \
             fs.inotify.max_user_watches, or start with --poll"
            .to_owned(),
        ErrorKind::Io(e) if e.raw_os_error() == Some(24) => "the system's limit of watchers is \
             reached: raise fs.inotify.max_user_instances, or start with --poll"
            .to_owned(),
        _ => error.to_string(),
    }
}
