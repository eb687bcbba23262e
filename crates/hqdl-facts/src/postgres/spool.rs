//! What was answered while the server could not be reached: it is paid for, so it
//! is in a file before anything else is tried, until the server has it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use tracing::warn;

use crate::FactsError;
use crate::postgres::Server;
use crate::postgres::keep::KeptUnit;
use crate::store::CommitUnit;

/// A unit as it stands in a file.
#[derive(Serialize, Deserialize)]
struct Spooled {
    token: i64,
    unit: CommitUnit,
}

impl Server {
    /// Commits units. Where the server does not take them at once, they are in a
    /// file of this machine's until it does.
    pub(super) async fn keep_safely(&self, units: &[KeptUnit]) -> Result<(), FactsError> {
        if self.commit(units, true).await.is_ok() {
            return Ok(());
        }
        // One by one from here: another process may send one of them, too.
        for (path, unit) in self.spool(units)?.into_iter().zip(units) {
            self.commit(std::slice::from_ref(unit), false).await?;
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    /// Commits what another process, or this one, could not.
    pub(super) async fn keep_spooled(&self) -> Result<(), FactsError> {
        let Ok(files) = fs::read_dir(self.spool_dir()) else { return Ok(()) };
        for path in files.flatten().map(|file| file.path()) {
            let whole = path.extension().is_some_and(|e| e == "answer");
            let Some(bytes) = whole.then(|| fs::read(&path).ok()).flatten() else { continue };
            let spooled: Spooled = serde_json::from_slice(&bytes).map_err(|e| {
                let error = std::io::Error::other(format!("an answer that cannot be read: {e}"));
                FactsError::File { path: path.clone(), error }
            })?;
            let unit = KeptUnit { token: spooled.token, unit: spooled.unit };
            match self.commit(&[unit], false).await {
                Ok(()) => drop(fs::remove_file(path)),
                Err(gone @ FactsError::Unreachable { .. }) => return Err(gone),
                // It stays where it is, and keeps nobody from work.
                Err(error) => warn!(%error, path = %path.display(), "an answer is not taken"),
            }
        }
        Ok(())
    }

    fn spool_dir(&self) -> PathBuf {
        self.dir.join("unsent")
    }

    fn spool(&self, units: &[KeptUnit]) -> Result<Vec<PathBuf>, FactsError> {
        let dir = self.spool_dir();
        let write = |KeptUnit { token, unit }: &KeptUnit| -> std::io::Result<PathBuf> {
            fs::create_dir_all(&dir)?;
            let name = dir.join(format!("{:016x}", token.cast_unsigned()));
            let (part, whole) = (name.with_extension("part"), name.with_extension("answer"));
            let spooled = Spooled { token: *token, unit: unit.clone() };
            let mut file = fs::File::create(&part)?;
            file.write_all(&serde_json::to_vec(&spooled)?)?;
            file.sync_all()?;
            fs::rename(part, &whole)?;
            Ok(whole)
        };
        let failed = |error| FactsError::File { path: dir.clone(), error };
        units.iter().map(|unit| write(unit).map_err(failed)).collect()
    }
}
