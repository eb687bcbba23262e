//! Documents that questions ask about: one text, or all texts of an array. A document is identified
//! by a hash of its content, not by its table or row.

use foldhash::{HashMap, HashSet};
use rusqlite::types::ValueRef;
use serde_json::Value as Json;

use hqdl_spec::Expansion;
use hqdl_values::value::{UnreadableValue, Value};

/// Name of the expansion whose entities are documents.
pub const DOCUMENTS_EXPANSION: &str = "documents";
/// Name of the context column of [`DOCUMENTS_EXPANSION`].
pub const DOCUMENT_CONTEXT: &str = "text";

/// Number of leading characters of a document that are part of its key.
const KEY_PREFIX_CHARS: usize = 32;
/// Number of hexadecimal digits of the digest that are part of a document's key.
const KEY_DIGEST_DIGITS: usize = 24;

/// A text, or the texts of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Non-empty texts.
    pub texts: Vec<String>,
}

impl Document {
    /// Converts a value to a document: the elements of a JSON array, or the text of any other
    /// value. Returns `None` for NULL, and for a value without any text.
    ///
    /// # Errors
    /// Returns [`UnreadableValue`] for blobs and for text that is not UTF-8.
    pub fn from_value(value: ValueRef<'_>) -> Result<Option<Self>, UnreadableValue> {
        let texts: Vec<String> = match Value::from_sqlite(value)? {
            Value::Text(text) => match parse_array(&text) {
                Some(elements) => elements.iter().map(Value::from_json).collect(),
                None => vec![Value::Text(text)],
            },
            other => vec![other],
        }
        .iter()
        .filter_map(Value::canonical_text)
        .filter(|text| !text.is_empty())
        .map(std::borrow::Cow::into_owned)
        .collect();
        Ok(Some(Self { texts }).filter(|d| !d.texts.is_empty()))
    }

    /// Returns the document's key: its beginning, so that people can recognize it, and a digest of
    /// its content.
    #[must_use]
    pub fn entity_key(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("hqdl document v1");
        for text in &self.texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let digest = hasher.finalize().to_hex();
        // Read only the beginning, because a text may be megabytes long.
        let head: String =
            self.texts.iter().flat_map(|t| t.chars().chain([' '])).take(200).collect();
        let words = head.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = words.chars().take(KEY_PREFIX_CHARS).collect();
        let more = if short.len() < words.len() { "…" } else { "" };
        format!("{}{more} #{}", short.trim_end(), &digest.as_str()[..KEY_DIGEST_DIGITS])
    }

    /// Returns the whole document as the model sees it.
    #[must_use]
    pub fn full_text(&self) -> String {
        self.texts.join("\n\n")
    }

    /// Returns the approximate size in bytes.
    #[must_use]
    pub fn approximate_size(&self) -> usize {
        self.texts.iter().map(|t| t.len() + 2).sum()
    }
}

/// Parses the elements of a JSON array. Returns `None` for any other text.
fn parse_array(text: &str) -> Option<Vec<Json>> {
    text.trim_start().starts_with('[').then(|| serde_json::from_str(text).ok())?
}

/// Maximum size of the documents that one pass stores, in bytes.
const MAX_STORED_BYTES: usize = 256 << 20;

/// Documents that a pass demands. If the documents exceed the size limit, the next pass stores the
/// rest.
#[derive(Debug, Default)]
pub struct StoredDocuments {
    stored: HashMap<usize, Document>,
    bytes: usize,
    /// Documents that the query needed but that were not stored.
    missed: HashSet<usize>,
    /// Documents to store in this pass; `None` for all.
    only: Option<HashSet<usize>>,
}

impl StoredDocuments {
    /// Stores a document unless the limit is reached.
    pub fn store_document(&mut self, entity: usize, document: Document) {
        let is_wanted = match &self.only {
            Some(only) => only.contains(&entity),
            None => self.bytes < MAX_STORED_BYTES,
        };
        if is_wanted && !self.stored.contains_key(&entity) {
            self.bytes += document.approximate_size();
            self.stored.insert(entity, document);
        }
    }

    /// Returns a stored document.
    #[must_use]
    pub fn get(&self, entity: usize) -> Option<&Document> {
        self.stored.get(&entity)
    }

    /// Returns true if a document is stored. Otherwise marks it to be stored in the next pass.
    pub fn check_or_request_document(&mut self, entity: usize) -> bool {
        let is_stored = self.stored.contains_key(&entity);
        if !is_stored {
            self.missed.insert(entity);
        }
        is_stored
    }

    /// Starts a pass: discards the stored documents and selects the missed documents to store next.
    pub fn start_pass(&mut self) {
        self.stored.clear();
        self.bytes = 0;
        let missed = std::mem::take(&mut self.missed);
        self.only = (!missed.is_empty()).then_some(missed);
    }
}

/// Returns true if an expansion asks about documents.
#[must_use]
pub fn asks_about_documents(expansion: &Expansion) -> bool {
    expansion.sources.is_empty()
        && expansion.name == DOCUMENTS_EXPANSION
        && expansion.context == [DOCUMENT_CONTEXT]
}
