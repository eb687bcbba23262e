//! Selects passages of a document that is too long for one question: the passages most similar to
//! the question, as many as fit, in document order.

use crate::query::cells::documents::Document;
use crate::query::request::error::QueryError;
use crate::retrieval::passages::split_passages;
use hqdl_values::tokens::Tokenizer;

/// Maximum number of tokens of a passage.
const MAX_PASSAGE_TOKENS: u64 = 200;
/// Number of tokens of the separator between two passages.
const SEPARATOR_TOKENS: u64 = 3;

/// Function that returns the similarity of passages to a question.
pub(in crate::query) type CompareFn<'c> =
    dyn FnMut(&str, &[&str]) -> Result<Vec<f64>, QueryError> + 'c;

/// Selects the passages of a document that the model sees with a question.
pub(in crate::query) struct PassageSelector<'c> {
    /// Maximum number of tokens of all passages.
    pub max_tokens: u64,
    /// Name of the model whose tokenizer counts the tokens.
    pub model: &'c str,
    /// Function that returns the similarity of passages to a question.
    pub compare: &'c mut CompareFn<'c>,
}

impl PassageSelector<'_> {
    /// Loads the tokenizer. Loading is slow, so call this only if tokens must be counted.
    fn load_tokenizer(&self) -> Tokenizer {
        Tokenizer::for_model(self.model)
    }

    /// Returns true if the whole document fits.
    pub fn fits_entirely(&self, document: &Document) -> bool {
        // A token has at least one byte, so the size in bytes bounds the number of tokens.
        document.approximate_size() as u64 <= self.max_tokens
            || self.load_tokenizer().count_tokens(&document.full_text()) <= self.max_tokens
    }

    /// Returns the passages of a document that the model sees with a question.
    ///
    /// # Errors
    /// Fails if the passages cannot be compared with the question.
    pub fn select_passages(
        &mut self,
        document: &Document,
        question: &str,
    ) -> Result<String, QueryError> {
        let tokenizer = self.load_tokenizer();
        let passages: Vec<(usize, usize, &str)> = document
            .texts
            .iter()
            .enumerate()
            .flat_map(|(text, full_text)| {
                let pieces =
                    split_passages(full_text, tokenizer, MAX_PASSAGE_TOKENS.min(self.max_tokens));
                pieces.into_iter().enumerate().map(move |(at, passage)| (text, at, passage))
            })
            .collect();
        let texts: Vec<&str> = passages.iter().map(|(_, _, passage)| *passage).collect();
        let similarities = (self.compare)(question, &texts)?;
        // The context around a similar passage matters, so each passage also gets half the
        // similarity of its more similar neighbor.
        let neighbor_similarity = |n: usize, other: Option<usize>| {
            let other = other.filter(|o| passages.get(*o).is_some_and(|p| p.0 == passages[n].0));
            other.map_or(0.0, |o| similarities[o].max(0.0))
        };
        let combined: Vec<f64> = (0..passages.len())
            .map(|n| {
                similarities[n]
                    + neighbor_similarity(n, n.checked_sub(1))
                        .max(neighbor_similarity(n, Some(n + 1)))
                        / 2.0
            })
            .collect();
        let mut order: Vec<usize> = (0..passages.len()).collect();
        // Among equally similar passages, passages at the beginning of their texts come first.
        order.sort_by(|a, b| {
            let sort_key = |n: usize| (passages[n].1, passages[n].0);
            combined[*b].total_cmp(&combined[*a]).then(sort_key(*a).cmp(&sort_key(*b)))
        });
        let (mut remaining, mut chosen) = (self.max_tokens, Vec::new());
        for n in order {
            let tokens = tokenizer.count_tokens(passages[n].2) + SEPARATOR_TOKENS;
            if tokens > remaining {
                // A shorter passage further down might fit, but would be less similar.
                break;
            }
            remaining -= tokens;
            chosen.push(n);
        }
        chosen.sort_unstable();
        let mut shown = String::new();
        for (n, at) in chosen.iter().enumerate() {
            let (text, position, passage) = passages[*at];
            if n > 0 {
                let (before, last_position, _) = passages[chosen[n - 1]];
                shown.push_str(match (before == text, last_position + 1 == position) {
                    (true, true) => " ",
                    (true, false) => " … ",
                    (false, _) => "\n\n",
                });
            }
            shown.push_str(passage);
        }
        Ok(shown)
    }
}
