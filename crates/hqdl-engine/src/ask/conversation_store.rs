//! Stores conversations as files in a directory, so that they can be continued later.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::conversation::Turn;
use crate::private_dir::{FileError, create_private_dir, read_json, write_json};

/// Number of conversations that are kept; the oldest are deleted.
const MAX_KEPT: usize = 100;

/// A conversation about one database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// Absolute path or URL of the database.
    pub database: String,
    /// Questions of the conversation, oldest first.
    pub turns: Vec<Turn>,
}

/// Directory that contains the conversations.
#[derive(Debug, Clone)]
pub struct ConversationStore {
    dir: PathBuf,
}

impl ConversationStore {
    /// Opens the directory, creates it if necessary, and deletes the oldest conversations.
    ///
    /// # Errors
    /// [`FileError`] if the directory cannot be created or made private.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        create_private_dir(dir)?;
        let store = Self { dir: dir.to_owned() };
        for id in store.list_ids().iter().rev().skip(MAX_KEPT) {
            // Another process may have deleted the file.
            let _ = fs::remove_file(store.path(id));
        }
        Ok(store)
    }

    /// Returns an id for a new conversation. Ids sort by time, so `now` must be the current time.
    #[must_use]
    pub fn create_id(now: jiff::Timestamp) -> String {
        format!("{}-{}", now.strftime("%Y%m%dT%H%M%S-%6fZ"), std::process::id())
    }

    /// Stores a conversation, replacing its earlier state.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be written.
    pub fn save(&self, id: &str, conversation: &Conversation) -> Result<(), FileError> {
        write_json(&self.path(id), conversation)
    }

    /// Returns a conversation; `None` if it does not exist.
    ///
    /// # Errors
    /// [`FileError`] if its file cannot be read.
    pub fn load(&self, id: &str) -> Result<Option<Conversation>, FileError> {
        if !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Ok(None);
        }
        read_json(&self.path(id))
    }

    /// Returns the id of the newest conversation about a database; `None` if there is none.
    ///
    /// # Errors
    /// [`FileError`] if a file cannot be read.
    pub fn find_newest(&self, database: &str) -> Result<Option<String>, FileError> {
        for id in self.list_ids().into_iter().rev() {
            if self.load(&id)?.is_some_and(|found| found.database == database) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Returns the ids, oldest first.
    fn list_ids(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
        ids.sort();
        ids
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}
