//! The model's decisions about words outside a value list: the value that each word means, or that
//! it means none. They are added while checkers are in use, so all clones share them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Repair note for a word that the model mapped to a value.
pub(super) const UNIFIED_NOTE: &str = "unified by the model: other words";

/// Decisions about words outside a list.
#[derive(Debug, Clone, Default)]
pub struct WordDecisions(Arc<RwLock<HashMap<String, Option<String>>>>);

impl WordDecisions {
    /// Adds a decision: the value that a word means; `None` if the word means no value.
    pub fn add_decision(&self, word: &str, value: Option<String>) {
        let mut words = self.0.write().unwrap_or_else(PoisonError::into_inner);
        words.insert(normalize_word(word), value);
    }

    /// Returns true if there is a decision about a word.
    #[must_use]
    pub fn has_decision(&self, word: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&normalize_word(word))
    }

    /// Returns the value that a word means.
    #[must_use]
    pub fn find_value(&self, word: &str) -> Option<String> {
        let words = self.0.read().unwrap_or_else(PoisonError::into_inner);
        words.get(&normalize_word(word)).cloned().flatten()
    }
}

/// Normalizes the case of a word, because value lists ignore case.
fn normalize_word(word: &str) -> String {
    word.trim().to_lowercase()
}
