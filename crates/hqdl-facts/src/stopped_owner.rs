//! Detects that the process that owns a cache is stopped (Ctrl-Z, SIGSTOP, a debugger). Its clients
//! then wait indefinitely, so they report the process that they wait for.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::postgres::StatusCallback;

/// Polling interval.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A watch over the owner of a cache, which ends when this is dropped. It works only on Linux,
/// because it reads `/proc`.
pub(super) struct StoppedOwner {
    _end: Sender<()>,
}

impl StoppedOwner {
    /// Watches an owner, given by the description in its lock (`process 4711 (hqdl daemon specs)`).
    pub(super) fn watch(dir: &Path, owner: &str, say: StatusCallback) -> Self {
        let (end, ended) = channel();
        let (dir, owner) = (dir.to_owned(), owner.to_owned());
        if let Some(process) = find_process(&owner) {
            std::thread::spawn(move || {
                let mut was_stopped = false;
                loop {
                    let now = is_stopped(&process);
                    if now && !was_stopped {
                        let name = process.file_name().unwrap_or_default().to_string_lossy();
                        say(&format!(
                            "{owner} owns the cache {} and is stopped; this command waits until it \
                             continues (kill -CONT {name})",
                            dir.display()
                        ));
                    }
                    was_stopped = now;
                    if ended.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            });
        }
        Self { _end: end }
    }
}

/// Returns the process's folder in `/proc`, if the text names a process.
fn find_process(owner: &str) -> Option<PathBuf> {
    let number: u32 = owner.strip_prefix("process ")?.split(' ').next()?.parse().ok()?;
    let folder = Path::new("/proc").join(number.to_string());
    folder.exists().then_some(folder)
}

/// Returns whether a process is stopped. In its `stat` line, the state follows the name, which is
/// in parentheses.
fn is_stopped(process: &Path) -> bool {
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}
