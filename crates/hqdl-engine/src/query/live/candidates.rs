//! Order in which candidate rows are asked about, if a query needs any few of the rows that
//! qualify: the rows whose documents are most similar to the questions come first. The order saves
//! requests; it does not change which rows qualify.

use std::borrow::Cow;

use foldhash::{HashMap, HashMapExt};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::QueryError;
use crate::query::documents::Document;
use crate::query::live::{Live, int};
use crate::query::targets::spell;
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;

/// Maximum number of candidates to order; beyond it, rows keep their original order.
const MOST: usize = 20_000;
/// Maximum size of all candidates together, in bytes.
const BYTES: usize = 128 << 20;
/// Maximum number of bytes of a document that are compared.
const COMPARED: usize = 32 << 10;

/// Digest of the documents of a row.
type DocumentsDigest = [u8; 32];
/// Documents of a row, each with the number of its call.
type RowDocuments = Vec<(usize, Document)>;

/// Candidate rows, with their order once it is known.
#[derive(Default)]
pub struct Candidates {
    ranks: HashMap<DocumentsDigest, i64>,
    waiting: Vec<(DocumentsDigest, RowDocuments)>,
    bytes: usize,
    ranked: bool,
}

impl Candidates {
    /// Returns whether candidates have no order yet.
    #[must_use]
    pub fn wait(&self) -> bool {
        !self.ranked && !self.waiting.is_empty()
    }

    /// Returns whether there are too many candidates to order.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        !self.ranked && (self.waiting.len() > MOST || self.bytes > BYTES)
    }

    /// Returns the number of candidates without an order.
    #[must_use]
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the rank of a row by the digest of its documents.
    fn rank(&mut self, digest: DocumentsDigest, documents: impl FnOnce() -> RowDocuments) -> i64 {
        let next = i64::try_from(self.ranks.len()).unwrap_or(i64::MAX);
        let rank = *self.ranks.entry(digest).or_insert(next);
        if rank == next && !self.ranked {
            let documents = documents();
            self.bytes += documents.iter().map(|(_, d)| d.bytes()).sum::<usize>();
            self.waiting.push((digest, documents));
        }
        rank
    }

    /// Orders the candidates by the sum of the similarities of their documents to the questions.
    /// The similarity of a document is that of its most similar passage.
    ///
    /// # Errors
    /// Those of `compare`.
    pub fn order(
        &mut self,
        question: impl Fn(usize) -> String,
        passages: impl Fn(&str) -> Vec<String>,
        mut compare: impl FnMut(&str, &[&str]) -> Result<Vec<f64>, QueryError>,
    ) -> Result<(), QueryError> {
        let mut scores = vec![0.0; self.waiting.len()];
        let mut calls: Vec<usize> =
            self.waiting.iter().flat_map(|(_, d)| d.iter().map(|(call, _)| *call)).collect();
        calls.sort_unstable();
        calls.dedup();
        for call in calls {
            let mut texts: Vec<(usize, String)> = Vec::new();
            for (n, (_, documents)) in self.waiting.iter().enumerate() {
                for (_, document) in documents.iter().filter(|(c, _)| *c == call) {
                    texts.extend(document.texts.iter().flat_map(|t| passages(t)).map(|p| (n, p)));
                }
            }
            let compared: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
            let likeness = compare(&question(call), &compared)?;
            let mut best: HashMap<usize, f64> = HashMap::new();
            for ((n, _), likeness) in texts.iter().zip(likeness) {
                let best = best.entry(*n).or_insert(likeness);
                *best = best.max(likeness);
            }
            best.into_iter().for_each(|(n, likeness)| scores[n] += likeness);
        }
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        // The sort is stable: rows with equal scores keep their order.
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        for (rank, n) in order.into_iter().enumerate() {
            self.ranks.insert(self.waiting[n].0, i64::try_from(rank).unwrap_or(i64::MAX));
        }
        self.settled();
        Ok(())
    }

    /// Fixes the current order.
    pub fn settled(&mut self) {
        self.waiting = Vec::new();
        self.ranked = true;
    }
}

impl Live {
    /// Implements [`Function::Rank`].
    pub(in crate::query) fn rank(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        if self.candidates.are_too_many() {
            return Err(self.filled());
        }
        let mut hasher = blake3::Hasher::new();
        for value in values {
            let mut spelling = Vec::new();
            match value {
                ValueRef::Text(bytes) => {
                    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
                }
                other => {
                    spell(&[*other], &mut spelling);
                    hasher.update(&spelling);
                }
            }
        }
        let documents = || {
            let read = |pair: &[ValueRef<'_>]| {
                let call = usize::try_from(int(pair, 0)).ok()?;
                let value = pair.get(1).map(|v| beginning(*v))?;
                let value = match &value {
                    Cow::Borrowed(text) => ValueRef::Text(text.as_bytes()),
                    Cow::Owned(text) => ValueRef::Text(text.as_bytes()),
                };
                Some((call, Document::read(value).ok()??))
            };
            values.chunks(2).filter_map(read).collect()
        };
        Ok(Sql::Integer(self.candidates.rank(*hasher.finalize().as_bytes(), documents)))
    }
}

/// Returns the prefix of a text that is compared. For an array, each element is shortened, so that
/// it remains an array.
fn beginning(value: ValueRef<'_>) -> Cow<'_, str> {
    let ValueRef::Text(bytes) = value else { return Cow::Borrowed("") };
    let Ok(text) = std::str::from_utf8(bytes) else { return Cow::Borrowed("") };
    if text.len() <= COMPARED {
        return Cow::Borrowed(text);
    }
    match Document::read(value) {
        Ok(Some(document)) if document.texts.len() > 1 => {
            let each = COMPARED / document.texts.len().min(COMPARED / 64);
            let texts: Vec<&str> = document.texts.iter().map(|t| head(t, each)).take(512).collect();
            Cow::Owned(serde_json::Value::from(texts).to_string())
        }
        _ => Cow::Borrowed(head(text, COMPARED)),
    }
}

fn head(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|n| text.is_char_boundary(*n));
    &text[..end.unwrap_or(0)]
}
