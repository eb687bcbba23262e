//! Selects what is shown of a document that is too long for one question: the passages most similar
//! to the question, in their order, as many as fit.

use super::QueryError;
use super::documents::Document;
use crate::retrieval::passages::cut;
use hqdl_values::tokens::Tokenizer;

/// Maximum number of tokens of a passage.
const PASSAGE: u64 = 200;
/// Number of tokens between two passages.
const BETWEEN: u64 = 3;

/// Function that returns the similarity of passages to a question.
pub(super) type Compare<'c> = dyn FnMut(&str, &[&str]) -> Result<Vec<f64>, QueryError> + 'c;

/// Selects the passages of a document that a question is shown.
pub(super) struct ShownPassages<'c> {
    /// Maximum number of tokens of all passages.
    pub most: u64,
    /// Model whose tokens are counted.
    pub model: &'c str,
    /// Returns the similarity of passages to the question.
    pub compare: &'c mut Compare<'c>,
}

impl ShownPassages<'_> {
    /// Returns the tokenizer. It is loaded only if tokens must be counted.
    fn tokenizer(&self) -> Tokenizer {
        Tokenizer::of(self.model)
    }

    /// Returns whether the whole document fits.
    pub fn fits(&self, document: &Document) -> bool {
        // Every token has at least one byte.
        document.bytes() as u64 <= self.most
            || self.tokenizer().count(&document.text()) <= self.most
    }

    /// Returns the passages of a document that a question is shown.
    ///
    /// # Errors
    /// Those of `compare`.
    pub fn of(&mut self, document: &Document, question: &str) -> Result<String, QueryError> {
        let tokenizer = self.tokenizer();
        let passages: Vec<(usize, usize, &str)> = document
            .texts
            .iter()
            .enumerate()
            .flat_map(|(text, whole)| {
                let cut = cut(whole, tokenizer, PASSAGE.min(self.most));
                cut.into_iter().enumerate().map(move |(at, passage)| (text, at, passage))
            })
            .collect();
        let texts: Vec<&str> = passages.iter().map(|(_, _, passage)| *passage).collect();
        let alone = (self.compare)(question, &texts)?;
        // The context around a similar passage matters, so neighbors add half of their similarity.
        let beside = |n: usize, other: Option<usize>| {
            let other = other.filter(|o| passages.get(*o).is_some_and(|p| p.0 == passages[n].0));
            other.map_or(0.0, |o| alone[o].max(0.0))
        };
        let likeness: Vec<f64> = (0..passages.len())
            .map(|n| alone[n] + beside(n, n.checked_sub(1)).max(beside(n, Some(n + 1))) / 2.0)
            .collect();
        let mut order: Vec<usize> = (0..passages.len()).collect();
        // If all are equally similar, the beginnings of all texts come first.
        order.sort_by(|a, b| {
            let place = |n: usize| (passages[n].1, passages[n].0);
            likeness[*b].total_cmp(&likeness[*a]).then(place(*a).cmp(&place(*b)))
        });
        let (mut left, mut chosen) = (self.most, Vec::new());
        for n in order {
            let tokens = tokenizer.count(passages[n].2) + BETWEEN;
            if tokens > left {
                // A later, shorter passage may fit, but would be less similar.
                break;
            }
            left -= tokens;
            chosen.push(n);
        }
        chosen.sort_unstable();
        let mut shown = String::new();
        for (n, at) in chosen.iter().enumerate() {
            let (text, place, passage) = passages[*at];
            if n > 0 {
                let (before, last, _) = passages[chosen[n - 1]];
                shown.push_str(match (before == text, last + 1 == place) {
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
