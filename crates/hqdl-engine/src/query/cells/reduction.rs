//! Reduces a document that is too long for one question. hqdl splits its texts into parts that fit,
//! asks the question about each part, and combines the answers in groups until one is left.
//!
//! The parts depend only on the set of texts. The texts are sorted, and the sequence is split
//! before the text with the smallest digest until each part fits. An additional text therefore
//! changes only the parts next to it, usually one or two, and the combinations above them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::query::cells::context::Contexts;
use crate::query::cells::documents::Document;
use crate::query::cells::targets::Demand;
use crate::retrieval::passages::split_passages;

/// Maximum number of answers that one question combines.
pub const MAX_COMBINED: u64 = 8;
/// Maximum number of tokens of the separator between two texts of a document.
const SEPARATOR_TOKENS: u64 = 3;

/// Columns of the questions about the parts of a document, in addition to the question about a
/// document that fits.
#[derive(Debug, Clone, Copy)]
pub struct ReductionColumns {
    /// Index of the column that asks about a part; its answers are texts.
    pub part: usize,
    /// Index of the column that combines several answers into a text.
    pub combined: usize,
    /// Index of the column that combines the last answers into the result.
    pub result: usize,
}

/// Returns a question whose answer combines the answers to `question`.
#[must_use]
pub fn build_combining_question(question: &str) -> String {
    format!("{question} (Each text answers this about a part of the texts: combine the answers.)")
}

/// Outcome of reducing a document: the location of the answer about the whole document.
pub(in crate::query) enum ReductionOutcome {
    /// The cell that contains the answer, with the document if hqdl may have to ask for the cell.
    Cell(Demand, Option<Document>),
    /// Unknown: answers about parts are missing and have been demanded.
    Pending,
    /// The document has no answer.
    Nothing,
}

/// A call that reduces a document.
#[derive(Clone, Copy)]
pub(in crate::query) struct Reduction {
    /// Number of the call.
    pub call: usize,
    /// Index of the expansion among those that the query uses.
    pub target: usize,
    /// Index of the column that asks about a document that fits.
    pub column: usize,
    /// Columns that ask about parts.
    pub columns: ReductionColumns,
}

/// A part of a document.
#[derive(Debug)]
pub struct DocumentPart {
    /// Digest of the part's first text. The sequence is split first before the texts with the
    /// smallest digests.
    pub priority: u64,
    /// The part as a document.
    pub document: Document,
}

/// Reductions of a query.
#[derive(Debug, Default)]
pub struct Reductions {
    /// Parts of the documents, by their digests.
    parts: HashMap<[u8; 32], Arc<Vec<DocumentPart>>>,
    /// Cells with the answers about documents, by call and digest.
    pub results: HashMap<(usize, [u8; 32]), Demand>,
    /// Parts without a readable answer, by call.
    pub unreadable_parts: BTreeMap<usize, BTreeSet<Demand>>,
    /// Groups of answers that are too long to be combined, by call.
    pub long_answers: BTreeMap<usize, BTreeSet<[u8; 32]>>,
}

impl Reductions {
    /// Returns the parts of a document, in order.
    pub fn get_or_split_parts(
        &mut self,
        digest: [u8; 32],
        document: &Document,
        contexts: &Contexts,
    ) -> Arc<Vec<DocumentPart>> {
        let split = || Arc::new(split_document(document, contexts));
        Arc::clone(self.parts.entry(digest).or_insert_with(split))
    }

    /// Returns notes that explain why documents have no answer, each with its call number. A call
    /// can have two notes.
    #[must_use]
    pub fn notes(&self) -> Vec<(usize, String)> {
        let count = |n: usize, one: &str, more: &str| match n {
            1 => format!("1 {one}"),
            n => format!("{n} {more}"),
        };
        let unreadable = self.unreadable_parts.iter().map(|(call, parts)| {
            let parts = count(parts.len(), "part", "parts");
            (*call, format!("no value, because {parts} of the texts got no readable answer"))
        });
        let long = self.long_answers.iter().map(|(call, answers)| {
            let groups = count(answers.len(), "group", "groups");
            let why = "is longer than `passage_tokens` in [limits]";
            (*call, format!("no value, because {groups} of answers to be combined {why}"))
        });
        unreadable.chain(long).collect()
    }
}

/// Splits a document into parts that fit into one question.
fn split_document(document: &Document, contexts: &Contexts) -> Vec<DocumentPart> {
    let (tokenizer, max_tokens) = (contexts.tokenizer(), contexts.max_document_tokens());
    let texts: BTreeSet<&String> = document.texts.iter().collect();
    let mut items: Vec<(&str, u64)> = Vec::with_capacity(texts.len());
    for text in texts {
        let tokens = tokenizer.count_tokens(text);
        if tokens <= max_tokens {
            items.push((text, tokens));
            continue;
        }
        let passages = split_passages(text, tokenizer, max_tokens);
        items.extend(passages.into_iter().map(|p| (p, tokenizer.count_tokens(p))));
    }
    let weights: Vec<(u64, u64)> = items
        .iter()
        .map(|(text, tokens)| (compute_text_priority(text), tokens + SEPARATOR_TOKENS))
        .collect();
    let part = |range: Range<usize>| DocumentPart {
        priority: weights[range.start].0,
        document: Document {
            texts: items[range].iter().map(|(text, _)| (*text).to_owned()).collect(),
        },
    };
    split_sequence(&weights, max_tokens).into_iter().map(part).collect()
}

/// Returns the first eight bytes of the text's digest, as a number.
fn compute_text_priority(text: &str) -> u64 {
    let digest = blake3::hash(text.as_bytes());
    digest.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Splits `(priority, weight)` items into ranges of at most `max_weight`. A range that is too heavy
/// is split before the item with the smallest priority among all but its first item. An item
/// heavier than `max_weight` gets its own range.
#[must_use]
pub fn split_sequence(items: &[(u64, u64)], max_weight: u64) -> Vec<Range<usize>> {
    let whole = 0..items.len();
    let mut stack = vec![whole];
    let mut ranges = Vec::new();
    while let Some(range) = stack.pop() {
        let weight: u64 = items[range.clone()].iter().map(|(_, weight)| weight).sum();
        let splits = range.clone().skip(1);
        match splits.min_by_key(|n| items[*n].0).filter(|_| weight > max_weight) {
            // Push the first half last, so that the ranges are produced in order.
            Some(at) => stack.extend([at..range.end, range.start..at]),
            None => ranges.push(range),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::{compute_text_priority, split_sequence};

    fn split_texts(texts: &[String]) -> Vec<&[String]> {
        let weights: Vec<(u64, u64)> =
            texts.iter().map(|text| (compute_text_priority(text), 1)).collect();
        let ranges = split_sequence(&weights, 100);
        ranges.into_iter().map(|range| &texts[range]).collect()
    }

    fn sort_texts(numbers: impl Iterator<Item = u32>) -> Vec<String> {
        let mut texts: Vec<String> = numbers.map(|n| format!("text {n}")).collect();
        texts.sort();
        texts
    }

    #[test]
    fn parts_fit_and_cover_the_sequence() {
        let texts = sort_texts(0..20_000);
        let parts = split_texts(&texts);
        assert!(parts.iter().all(|part| (1..=100).contains(&part.len())));
        assert!(parts.len() < 20_000 / 40, "{} parts", parts.len());
        assert_eq!(parts.concat(), texts);
    }

    #[test]
    fn another_text_changes_at_most_two_parts() {
        let before = sort_texts(0..20_000);
        let parts = split_texts(&before);
        for n in 20_000..20_050 {
            let after = sort_texts((0..20_000).chain([n]));
            let new = split_texts(&after);
            let changed = new.iter().filter(|part| !parts.contains(part)).count();
            assert!(changed <= 2, "text {n} changes {changed} parts");
        }
    }
}
