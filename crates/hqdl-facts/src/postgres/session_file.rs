//! A session's file on its own machine, locked as long as its process lives: what a
//! killed process held is free when another of the machine looks, not only when its
//! lease ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Names this start of this kernel: locks of files hold between its processes, in
/// whatever containers they are, and perhaps not between machines that share a folder.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The file of a session that lives; it goes with this.
pub(super) struct SessionFile {
    path: PathBuf,
    _locked: File,
    /// Whether the file stays: the next process of this machine ends the session.
    abandoned: bool,
}

impl SessionFile {
    /// Makes the file of a session. `None` where the system does not say which start of
    /// it this is, or where locks do not hold: then a lease is all there is.
    pub(super) fn hold(dir: &Path, id: &str) -> Option<Self> {
        let folder = folder(dir)?;
        fs::create_dir_all(&folder).ok()?;
        // Locked before it has its name: who finds it unlocked knows that it is left.
        let (made, path) = (folder.join(format!(".{id}")), folder.join(id));
        let locked = File::create(&made).ok()?;
        let holds = locked.try_lock().is_ok() && File::open(&made).is_ok_and(|f| !is_left(&f));
        if holds && fs::rename(&made, &path).is_ok() {
            return Some(Self { path, _locked: locked, abandoned: false });
        }
        let _ = fs::remove_file(made);
        None
    }

    /// Leaves the file to the next process of this machine, which ends the session.
    pub(super) fn abandon(mut self) {
        self.abandoned = true;
    }

    /// Sessions whose process is gone, by their ids.
    pub(super) fn left(dir: &Path) -> Vec<String> {
        let Some(Ok(files)) = folder(dir).map(fs::read_dir) else { return Vec::new() };
        let left =
            files.flatten().filter(|file| File::open(file.path()).is_ok_and(|f| is_left(&f)));
        let name = |file: fs::DirEntry| file.file_name().into_string().ok();
        left.filter_map(name).filter(|id| !id.starts_with('.')).collect()
    }

    /// Takes the file of a session away that is told to be over.
    pub(super) fn forget(dir: &Path, id: &str) {
        let _ = folder(dir).map(|folder| fs::remove_file(folder.join(id)));
    }
}

impl Drop for SessionFile {
    fn drop(&mut self) {
        if !self.abandoned {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn folder(dir: &Path) -> Option<PathBuf> {
    let boot = fs::read_to_string(BOOT).ok()?;
    Some(dir.join("sessions").join(boot.trim()))
}

/// Whether nobody holds the lock of a file.
fn is_left(file: &File) -> bool {
    file.try_lock_shared().is_ok()
}
