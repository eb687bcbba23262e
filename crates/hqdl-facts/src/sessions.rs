//! Sessions: the processes that currently use these facts. If the session of a run is over, the run
//! was killed, and another process may resume it. Requests that were in flight when a session ended
//! count at their worst-case cost.

use std::path::{Path, PathBuf};

use crate::FactsError;
use crate::session_file::SessionFile;

/// A process that uses the facts of a directory. It is alive while its file is locked.
#[derive(Debug)]
pub(super) struct FactsSession {
    /// Id of the session in the journal.
    pub(super) id: String,
    /// Number of the session in claims.
    pub(super) number: i64,
    /// Description of the session for other processes.
    pub(super) description: String,
    folder: PathBuf,
    _file: SessionFile,
}

impl FactsSession {
    /// Starts a session in a cache directory.
    ///
    /// # Errors
    /// [`FactsError::Shared`] if file locks do not work in the cache directory.
    pub(super) fn start(dir: &Path, description: &str) -> Result<Self, FactsError> {
        let (id, folder) = (new_id(), dir.join("sessions"));
        let Some(file) = SessionFile::create(&folder, &id) else {
            return Err(FactsError::Shared { dir: dir.to_owned(), file_system: None });
        };
        let (description, number) = (description.to_owned(), fastrand::i64(1..1 << 40));
        Ok(Self { id, number, description, folder, _file: file })
    }

    /// Returns true if the session with this id is alive.
    pub(super) fn is_alive(&self, id: &str) -> bool {
        SessionFile::is_alive(&self.folder, id)
    }

    /// Deletes the files of sessions whose processes have ended and that are not in the journal.
    pub(super) fn delete_files(&self, is_known: impl Fn(&str) -> bool) {
        for id in
            SessionFile::find_abandoned_sessions(&self.folder).iter().filter(|id| !is_known(id))
        {
            SessionFile::delete(&self.folder, id);
        }
    }
}

/// Returns a unique session id.
pub(super) fn new_id() -> String {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..))
}
