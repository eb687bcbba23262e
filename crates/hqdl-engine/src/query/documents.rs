//! Documents, as questions about texts are asked of them: a text, or the texts
//! of an array. A document is known by its content, wherever it stands.

use foldhash::{HashMap, HashSet};
use rusqlite::types::ValueRef;
use serde_json::Value as Json;

use hqdl_spec::Expansion;
use hqdl_values::value::{Unreadable, Value};

/// What the expansion is called whose entities are documents, and their context.
pub const NAME: &str = "documents";
/// See [`NAME`].
pub const TEXT: &str = "text";

/// Characters of a document that its key begins with.
const BEGINNING: usize = 32;
/// Hexadecimal digits of the digest that its key ends with.
const DIGITS: usize = 24;

/// A text, or the texts of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its texts, none of them empty.
    pub texts: Vec<String>,
}

impl Document {
    /// Reads a value: a JSON array is its elements, anything else the text it
    /// is. `None` for NULL and where there is no text at all: there is nothing
    /// to ask about.
    ///
    /// # Errors
    /// [`Unreadable`] for blobs and for text that is not UTF-8.
    pub fn read(value: ValueRef<'_>) -> Result<Option<Self>, Unreadable> {
        let texts: Vec<String> = match Value::read(value)? {
            Value::Text(text) => match elements(&text) {
                Some(elements) => elements.iter().map(Value::from_json).collect(),
                None => vec![Value::Text(text)],
            },
            other => vec![other],
        }
        .iter()
        .filter_map(Value::canonical)
        .filter(|text| !text.is_empty())
        .map(std::borrow::Cow::into_owned)
        .collect();
        Ok(Some(Self { texts }).filter(|d| !d.texts.is_empty()))
    }

    /// What it is known by: its beginning, for people, and the digest of its
    /// content.
    #[must_use]
    pub fn key(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("hqdl document v1");
        for text in &self.texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let digest = hasher.finalize().to_hex();
        // No more than what is shown is read: a text may be megabytes long.
        let head: String =
            self.texts.iter().flat_map(|t| t.chars().chain([' '])).take(200).collect();
        let words = head.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = words.chars().take(BEGINNING).collect();
        let more = if short.len() < words.len() { "…" } else { "" };
        format!("{}{more} #{}", short.trim_end(), &digest.as_str()[..DIGITS])
    }

    /// All of it, as it is shown to a model.
    #[must_use]
    pub fn text(&self) -> String {
        self.texts.join("\n\n")
    }

    /// Its bytes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.texts.iter().map(|t| t.len() + 2).sum()
    }
}

/// The elements of a JSON array; an array that is broken is a text.
fn elements(text: &str) -> Option<Vec<Json>> {
    text.trim_start().starts_with('[').then(|| serde_json::from_str(text).ok())?
}

/// Bytes of documents that are kept in one pass.
const KEPT: usize = 256 << 20;

/// The documents that a pass demands to be asked about. Of more than there is
/// room for, the next pass keeps those that were missed.
#[derive(Debug, Default)]
pub struct Documents {
    kept: HashMap<usize, Document>,
    bytes: usize,
    /// What was not at hand when it was to be asked about.
    missed: HashSet<usize>,
    /// What alone is kept in this pass.
    alone: Option<HashSet<usize>>,
}

impl Documents {
    /// Keeps a document, while there is room.
    pub fn keep(&mut self, entity: usize, document: Document) {
        let wanted = match &self.alone {
            Some(alone) => alone.contains(&entity),
            None => self.bytes < KEPT,
        };
        if wanted && !self.kept.contains_key(&entity) {
            self.bytes += document.bytes();
            self.kept.insert(entity, document);
        }
    }

    /// A document that was kept.
    #[must_use]
    pub fn get(&self, entity: usize) -> Option<&Document> {
        self.kept.get(&entity)
    }

    /// Whether a document is there; one that is not is kept in the next pass.
    pub fn has(&mut self, entity: usize) -> bool {
        let there = self.kept.contains_key(&entity);
        if !there {
            self.missed.insert(entity);
        }
        there
    }

    /// A pass begins.
    pub fn forget(&mut self) {
        self.kept.clear();
        self.bytes = 0;
        let missed = std::mem::take(&mut self.missed);
        self.alone = (!missed.is_empty()).then_some(missed);
    }
}

/// Whether an expansion asks of documents.
#[must_use]
pub fn is_of_documents(expansion: &Expansion) -> bool {
    expansion.sources.is_empty() && expansion.name == NAME && expansion.context == [TEXT]
}
