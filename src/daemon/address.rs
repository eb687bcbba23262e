//! Where the daemon of a cache can be reached: a small file in the cache, there
//! as long as the daemon is.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const NAME: &str = "daemon.json";

/// Where a daemon listens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Address {
    /// `http://127.0.0.1:4735`
    pub url: String,
    /// Its process.
    pub pid: u32,
    /// Whether clients must show a token.
    pub token: bool,
}

impl Address {
    /// The address that a daemon left in its cache; whether it still runs shows
    /// when it is asked.
    #[must_use]
    pub fn read(cache: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(cache.join(NAME)).ok()?).ok()
    }

    /// Leaves the address in the cache until the file is dropped.
    pub(super) fn leave(&self, cache: &Path) -> std::io::Result<Left> {
        let path = cache.join(NAME);
        let part = cache.join(format!("{NAME}.part"));
        std::fs::write(&part, serde_json::to_vec(self)?)?;
        std::fs::rename(&part, &path)?;
        Ok(Left(path))
    }
}

/// The file with the address; it goes with this.
pub(super) struct Left(PathBuf);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
