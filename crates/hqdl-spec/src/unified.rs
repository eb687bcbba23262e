//! The model's decisions about words outside a value list: the value that each means, or none. They
//! are added while checkers are in use, so all clones of one share them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Repair note for a word that the model mapped to a value.
pub(super) const UNIFIED: &str = "unified by the model: other words";

/// Decisions about words outside a list.
#[derive(Debug, Clone, Default)]
pub struct Unified(Arc<RwLock<HashMap<String, Option<String>>>>);

impl Unified {
    /// Adds the value that a word means; `None` if it means none.
    pub fn learn(&self, word: &str, value: Option<String>) {
        let mut words = self.0.write().unwrap_or_else(PoisonError::into_inner);
        words.insert(folded(word), value);
    }

    /// Returns true if there is a decision about a word.
    #[must_use]
    pub fn knows(&self, word: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&folded(word))
    }

    /// Returns the value that a word means.
    #[must_use]
    pub fn value(&self, word: &str) -> Option<String> {
        let words = self.0.read().unwrap_or_else(PoisonError::into_inner);
        words.get(&folded(word)).cloned().flatten()
    }
}

/// Normalizes case, which does not matter in value lists.
fn folded(word: &str) -> String {
    word.trim().to_lowercase()
}
