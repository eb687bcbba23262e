//! Documents, as questions about texts are asked of them: a text, or the texts
//! of an array. A document is known by its content, wherever it stands.

use rusqlite::types::ValueRef;
use serde_json::Value as Json;

use crate::value::{Unreadable, Value};

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
