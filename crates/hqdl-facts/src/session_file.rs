//! The file of a session on its own machine, locked while the session's process is alive.
//! Other processes on the machine detect immediately that a process was killed, and end its
//! session.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::folder::{create_private_dir, restrict_access_or_warn};

/// Id of the current boot. Processes of one boot share file locks, even in different containers;
/// machines that share a directory may not.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The locked file of a running session. Dropping the value deletes the file.
#[derive(Debug)]
pub(super) struct SessionFile {
    path: PathBuf,
    _lock: File,
    /// Whether the file is kept when the value is dropped, so that the next process on this machine
    /// ends the session.
    is_abandoned: bool,
}

impl SessionFile {
    /// Creates and locks the file of a session. Returns `None` if file locks do not work in
    /// `folder`.
    pub(super) fn create(folder: &Path, id: &str) -> Option<Self> {
        create_private_dir(folder).ok()?;
        restrict_access_or_warn(folder, 0o700);
        // Lock the file before it gets its name. Otherwise another process could find it unlocked
        // and end the session.
        let (unnamed, path) = (folder.join(format!(".{id}")), folder.join(id));
        let lock = File::create(&unnamed).ok()?;
        let is_exclusive =
            lock.try_lock().is_ok() && File::open(&unnamed).is_ok_and(|f| !is_unlocked(&f));
        if is_exclusive && fs::rename(&unnamed, &path).is_ok() {
            return Some(Self { path, _lock: lock, is_abandoned: false });
        }
        let _ = fs::remove_file(unnamed);
        None
    }

    /// Leaves the file to the next process of this machine, which ends the session.
    pub(super) fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// Returns the ids of sessions whose processes have ended.
    pub(super) fn find_abandoned_sessions(folder: &Path) -> Vec<String> {
        let Ok(files) = fs::read_dir(folder) else { return Vec::new() };
        let ids = files.flatten().filter_map(|file| file.file_name().into_string().ok());
        ids.filter(|id| !id.starts_with('.') && !Self::is_alive(folder, id)).collect()
    }

    /// Returns true if the process of a session is alive.
    pub(super) fn is_alive(folder: &Path, id: &str) -> bool {
        File::open(folder.join(id)).is_ok_and(|file| !is_unlocked(&file))
    }

    /// Deletes the file of a session that has been ended.
    pub(super) fn delete(folder: &Path, id: &str) {
        let _ = fs::remove_file(folder.join(id));
    }
}

impl Drop for SessionFile {
    fn drop(&mut self) {
        if !self.is_abandoned {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the folder of the session files of this machine's current boot, for a directory that
/// several machines may share; `None` if the system does not report a boot id.
pub(super) fn choose_machine_folder(dir: &Path) -> Option<PathBuf> {
    let boot = fs::read_to_string(BOOT_ID).ok()?;
    Some(dir.join("sessions").join(boot.trim()))
}

fn is_unlocked(file: &File) -> bool {
    file.try_lock_shared().is_ok()
}
