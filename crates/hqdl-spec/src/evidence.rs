//! Evidence of an expansion: the documents whose passages are shown with a row, and access to
//! them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Column, Expansion, Format, Task, Type};
use hqdl_values::Row;
use hqdl_values::evidence::{Passage, ShownEvidence};
use hqdl_values::format::{describe_io_error, describe_read_error};
use hqdl_values::key::ColumnIdentity;
use hqdl_values::value::Value;

/// Maximum number of rows whose passages are kept in memory.
const MAX_KEPT_ROWS: usize = 10_000;

/// Documents of an expansion.
#[derive(Debug, Clone, PartialEq)]
pub enum Documents {
    /// SELECT over the database that returns texts, or names and texts.
    Select(String),
    /// Folder of files.
    Folder(PathBuf),
    /// Results of a web search for each row.
    Search(SearchSettings),
}

/// A web search that returns JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchSettings {
    /// URL with `{query}`, and possibly `{key}`.
    pub url: String,
    /// JSON pointers to the list of results in a reply, and to the title, the text and the URL in a
    /// result.
    pub pointers: [String; 4],
    /// Environment variable that contains the API key; `None` if the search needs no key.
    pub api_key_env: Option<String>,
    /// Header that carries the API key; `None` to send the key as a bearer token.
    pub key_header: Option<String>,
    /// Price of a search in USD.
    pub price_usd: f64,
}

impl SearchSettings {
    /// Returns an expansion with one row per search query and a single column with the results, so
    /// that searches are claimed, reserved and stored like answers.
    #[must_use]
    pub fn to_expansion(&self) -> Expansion {
        let about = format!("results of {} at {}", self.url, self.pointers.join(" "));
        let identity = ColumnIdentity {
            key: vec!["query".to_owned()],
            column: "results".to_owned(),
            kind: Type::Text.name().to_owned(),
            about: about.clone(),
            many: false,
            list: "none".to_owned(),
            kinds: Vec::new(),
            requires_evidence: false,
            candidates: Vec::new(),
        };
        Expansion {
            rows_per_request: 1,
            format: Some(Format::Json),
            task: Task::Value,
            columns: vec![Column::new_ad_hoc(Type::Text, about, None, identity)],
            ..Expansion::new_ad_hoc("search", vec!["query".to_owned()])
        }
    }
}

/// Settings of `[expansion.evidence]`.
#[derive(Debug, Clone)]
pub struct EvidenceSettings {
    /// Source of the documents: a SELECT, a folder or a web search.
    pub documents: Documents,
    /// Maximum number of tokens of the passages that are shown with a row.
    pub max_tokens: u64,
    /// Whether a value without a quoted passage becomes unknown.
    pub require: bool,
    /// Passages of the documents, once they are loaded.
    pub index: EvidenceIndex,
}

/// Finds the passages that are shown with a row.
pub trait FindPassages: Send {
    /// Returns the best passages for the words of a key and of the columns, up to `max_tokens`
    /// tokens in total.
    ///
    /// # Errors
    /// Fails with a message for the user if the documents cannot be searched.
    fn find_passages(
        &self,
        key: &str,
        columns: &str,
        max_tokens: u64,
    ) -> Result<Vec<Passage>, String>;
}

/// Passages of an expansion's documents. All clones share the loaded passages.
#[derive(Clone, Default)]
pub struct EvidenceIndex(Arc<Mutex<LoadedPassages>>);

#[derive(Default)]
struct LoadedPassages {
    finder: Option<Box<dyn FindPassages>>,
    /// Evidence found so far, by the words of the key.
    found: HashMap<String, Arc<ShownEvidence>>,
}

impl std::fmt::Debug for EvidenceIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EvidenceIndex")
    }
}

impl EvidenceIndex {
    /// Replaces the documents' passages.
    pub fn replace_passages(&self, finder: Box<dyn FindPassages>) {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *loaded = LoadedPassages { finder: Some(finder), found: HashMap::new() };
    }
}

impl Expansion {
    /// Returns the query that searches for the evidence of a row: the row's key, without media.
    #[must_use]
    pub fn build_evidence_query(&self, row: &Row) -> String {
        let is_medium =
            |n: &usize| self.key.names().get(*n).is_some_and(|name| self.is_media(name));
        let parts = row.key.iter().enumerate().filter(|(n, _)| !is_medium(n)).map(|(_, v)| v);
        parts.filter_map(Value::to_text).collect::<Vec<_>>().join(" ")
    }

    /// Returns the settings of the web search for an expansion's evidence, if it has one.
    #[must_use]
    pub fn search_settings(&self) -> Option<&SearchSettings> {
        match &self.evidence.as_ref()?.documents {
            Documents::Search(settings) => Some(settings),
            Documents::Select(_) | Documents::Folder(_) => None,
        }
    }

    /// Returns the evidence of a row; `None` if the expansion has no documents. The passages depend
    /// on the row only, not on the columns that hqdl asks for.
    ///
    /// # Errors
    /// Fails with a message if the documents are not loaded or cannot be searched.
    pub fn find_evidence(&self, row: &Row) -> Result<Option<Arc<ShownEvidence>>, String> {
        let Some(settings) = &self.evidence else { return Ok(None) };
        let key = self.build_evidence_query(row);
        let mut loaded = settings.index.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loaded.found.get(&key) {
            return Ok(Some(Arc::clone(known)));
        }
        let finder =
            loaded.finder.as_ref().ok_or("the documents of its evidence are not loaded")?;
        let words = self.columns.iter().flat_map(|c| [c.name.as_str(), c.about.as_str()]);
        let words = words.collect::<Vec<_>>().join(" ").replace('_', " ");
        let evidence = Arc::new(ShownEvidence::new(finder.find_passages(
            &key,
            &words,
            settings.max_tokens,
        )?));
        if loaded.found.len() >= MAX_KEPT_ROWS {
            loaded.found.clear();
        }
        loaded.found.insert(key, Arc::clone(&evidence));
        Ok(Some(evidence))
    }
}

/// Returns the canonical path of a folder inside `parent`.
///
/// # Errors
/// Fails with a message if the path does not exist, is not a folder, or is outside `parent`.
pub fn resolve_folder(parent: &Path, folder: &str) -> Result<PathBuf, String> {
    let relative = Path::new(folder);
    let leaves = |c: std::path::Component<'_>| {
        !matches!(c, std::path::Component::Normal(_) | std::path::Component::CurDir)
    };
    // Check this before any access, so that the error does not reveal whether a file exists.
    if relative.components().any(leaves) {
        return Err(format!("{folder} is outside the spec's folder"));
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = parent.canonicalize().map_err(|e| describe_read_error(parent, &e))?;
    let full = parent.join(relative).canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("the folder {folder} does not exist"),
        _ => format!("{folder}: {}", describe_io_error(&e)),
    })?;
    if !full.starts_with(&parent) {
        return Err(format!("{folder} is outside the spec's folder"));
    }
    if full.is_dir() { Ok(full) } else { Err(format!("{folder} is not a folder")) }
}
