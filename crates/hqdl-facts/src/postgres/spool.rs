//! Spool: files of answers that the server could not store yet. An answer is paid for, so it stays
//! in a file until the server has stored it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::FactsError;
use crate::postgres::Server;
use crate::postgres::commit::{QueuedUnit, TaggedUnit};
use crate::store::CommitUnit;

/// How long an answer may wait in memory for its commit before it is written to a file.
const SPOOL_DELAY: Duration = Duration::from_secs(1);

/// A commit unit in the format of its file.
#[derive(Serialize, Deserialize)]
struct SpooledUnit {
    token: i64,
    unit: CommitUnit,
}

impl Server {
    /// Commits a unit. If that takes longer than a second, the unit is also written to a local file
    /// until the server has it. So a killed process loses no answer older than a second.
    pub(super) async fn commit_or_spool(
        &self,
        commits: Option<mpsc::Sender<QueuedUnit>>,
        unit: CommitUnit,
    ) -> Result<(), FactsError> {
        let ended = || self.server_error("its commit task has ended");
        let unit = Arc::new(TaggedUnit::new(unit));
        let (reply, kept) = oneshot::channel();
        let waiting = (Arc::clone(&unit), reply);
        let mut commit = Box::pin(async move {
            let commits = commits.ok_or_else(ended)?;
            commits.send(waiting).await.map_err(|_| ended())?;
            drop(commits);
            kept.await.map_err(|_| ended())?
        });
        let first_try = tokio::time::timeout(SPOOL_DELAY, commit.as_mut()).await;
        if let Ok(Ok(())) = first_try {
            return Ok(());
        }
        let path = self.write_spool_file(unit).await?;
        match first_try {
            Ok(failed) => failed,
            Err(_) => {
                commit.await?;
                drop(fs::remove_file(path));
                Ok(())
            }
        }
    }

    /// Commits the units that this process or another one left in files.
    pub(super) async fn commit_spooled_units(&self) -> Result<(), FactsError> {
        let Ok(files) = fs::read_dir(self.spool_dir()) else { return Ok(()) };
        for path in files.flatten().map(|file| file.path()) {
            let whole = path.extension().is_some_and(|e| e == "answer");
            let Some(bytes) = whole.then(|| fs::read(&path).ok()).flatten() else { continue };
            let Ok(spooled) = serde_json::from_slice::<SpooledUnit>(&bytes) else {
                self.rename_damaged_file(&path);
                continue;
            };
            let unit = Arc::new(TaggedUnit { token: spooled.token, unit: spooled.unit });
            match self.commit_units(&[unit]).await {
                Ok(()) => drop(fs::remove_file(path)),
                Err(gone @ FactsError::Unreachable { .. }) => return Err(gone),
                // Keep the file; it does not block the other answers.
                Err(error) => warn!(%error, path = %path.display(), "the server rejects an answer"),
            }
        }
        Ok(())
    }

    /// Renames a file that contains no answer, so that it does not block the others.
    fn rename_damaged_file(&self, path: &Path) {
        let aside = path.with_extension("damaged");
        // Another process may have renamed it already.
        if fs::rename(path, &aside).is_ok() {
            self.link.report_status(&format!(
                "an answer that was waiting for the server is damaged, so its cells are requested again: {}",
                aside.display()
            ));
        }
    }

    fn spool_dir(&self) -> PathBuf {
        self.dir.join("unsent")
    }

    /// Writes a unit to a file, on a thread that may block.
    async fn write_spool_file(&self, unit: Arc<TaggedUnit>) -> Result<PathBuf, FactsError> {
        let dir = self.spool_dir();
        let error_path = dir.clone();
        let write = move || -> std::io::Result<PathBuf> {
            fs::create_dir_all(&dir)?;
            let name = dir.join(format!("{:016x}", unit.token.cast_unsigned()));
            let (part, whole) = (name.with_extension("part"), name.with_extension("answer"));
            let spooled = SpooledUnit { token: unit.token, unit: unit.unit.clone() };
            let mut file = fs::File::create(&part)?;
            file.write_all(&serde_json::to_vec(&spooled)?)?;
            file.sync_all()?;
            fs::rename(part, &whole)?;
            Ok(whole)
        };
        let written = self.link.handle.spawn_blocking(write).await;
        written
            .unwrap_or_else(|e| Err(std::io::Error::other(e)))
            .map_err(|error| FactsError::File { path: error_path, error })
    }
}
