//! Words outside a value list that a model was asked about: which value each means, or
//! that it means none. They are learned while checkers are in use, so all clones of one
//! share them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// How a repair tells that a model said which value a word means.
pub(super) const UNIFIED: &str = "unified by the model: other words";

/// What is known of the words outside a list.
#[derive(Debug, Clone, Default)]
pub struct Unified(Arc<RwLock<HashMap<String, Option<String>>>>);

impl Unified {
    /// Learns which value a word means; `None` is that it means none.
    pub fn learn(&self, word: &str, value: Option<String>) {
        let mut words = self.0.write().unwrap_or_else(PoisonError::into_inner);
        words.insert(folded(word), value);
    }

    /// Whether a word was asked about.
    #[must_use]
    pub fn knows(&self, word: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&folded(word))
    }

    /// The value that a word means.
    #[must_use]
    pub fn value(&self, word: &str) -> Option<String> {
        let words = self.0.read().unwrap_or_else(PoisonError::into_inner);
        words.get(&folded(word)).cloned().flatten()
    }
}

/// Case tells no words apart, as in value lists.
fn folded(word: &str) -> String {
    word.trim().to_lowercase()
}
