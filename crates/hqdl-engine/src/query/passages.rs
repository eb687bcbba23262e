//! What is shown of a document that is too long for one question: the passages
//! that are most like it, in their order, as many as fit.

use super::QueryError;
use super::documents::Document;
use crate::retrieval::passages::cut;
use hqdl_values::tokens::Tokenizer;

/// The most tokens of a passage.
const PASSAGE: u64 = 200;
/// Tokens that stand between two passages.
const BETWEEN: u64 = 3;

/// Compares passages with a question.
pub(super) type Compare<'c> = dyn FnMut(&str, &[&str]) -> Result<Vec<f64>, QueryError> + 'c;

/// What is shown of a document that a question is asked of.
pub(super) struct ShownPassages<'c> {
    /// The most tokens of it.
    pub most: u64,
    /// Whose tokens they are.
    pub model: &'c str,
    /// Says which passages are like the question.
    pub compare: &'c mut Compare<'c>,
}

impl ShownPassages<'_> {
    /// Counts tokens; asked for only where there is something to count.
    fn tokenizer(&self) -> Tokenizer {
        Tokenizer::of(self.model)
    }

    /// Whether a document may be shown whole.
    pub fn fits(&self, document: &Document) -> bool {
        // No token is shorter than a byte.
        document.bytes() as u64 <= self.most
            || self.tokenizer().count(&document.text()) <= self.most
    }

    /// The passages of a document that a question is shown.
    ///
    /// # Errors
    /// What comparing them ended in.
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
        // What stands beside a passage goes on with it.
        let beside = |n: usize, other: Option<usize>| {
            let other = other.filter(|o| passages.get(*o).is_some_and(|p| p.0 == passages[n].0));
            other.map_or(0.0, |o| alone[o].max(0.0))
        };
        let likeness: Vec<f64> = (0..passages.len())
            .map(|n| alone[n] + beside(n, n.checked_sub(1)).max(beside(n, Some(n + 1))) / 2.0)
            .collect();
        let mut order: Vec<usize> = (0..passages.len()).collect();
        // Where nothing tells them apart, the beginnings of all texts.
        order.sort_by(|a, b| {
            let place = |n: usize| (passages[n].1, passages[n].0);
            likeness[*b].total_cmp(&likeness[*a]).then(place(*a).cmp(&place(*b)))
        });
        let (mut left, mut chosen) = (self.most, Vec::new());
        for n in order {
            let tokens = tokenizer.count(passages[n].2) + BETWEEN;
            if tokens > left {
                // A shorter one may fit, but would be less like it.
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
