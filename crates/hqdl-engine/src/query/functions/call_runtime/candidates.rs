//! Order in which hqdl asks about candidate rows if a query needs just a few qualifying rows, no
//! matter which ones. The rows whose documents are most similar to the questions come first. The
//! order saves requests; it does not change which rows qualify.

use std::borrow::Cow;

use foldhash::{HashMap, HashMapExt};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::documents::Document;
use crate::query::functions::call_runtime::{CallRuntime, integer_argument};
use crate::query::request::error::QueryError;
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;

/// Maximum number of candidates to order. If there are more, the rows keep their original order.
const MAX_CANDIDATES: usize = 20_000;
/// Maximum size of all candidates together, in bytes.
const MAX_TOTAL_BYTES: usize = 128 << 20;
/// Maximum number of bytes of a document that are compared.
const MAX_COMPARED_BYTES: usize = 32 << 10;

/// Digest of the documents of a row.
type DocumentsDigest = [u8; 32];
/// Documents of a row, each with the number of its call.
type RowDocuments = Vec<(usize, Document)>;

/// Candidate rows, and their order once it is known.
#[derive(Default)]
pub struct Candidates {
    ranks: HashMap<DocumentsDigest, i64>,
    unordered: Vec<(DocumentsDigest, RowDocuments)>,
    bytes: usize,
    is_ordered: bool,
}

impl Candidates {
    /// Returns true if there are unordered candidates.
    #[must_use]
    pub fn needs_order(&self) -> bool {
        !self.is_ordered && !self.unordered.is_empty()
    }

    /// Returns true if the candidates are too many or too large to be ordered.
    #[must_use]
    pub fn exceeds_limit(&self) -> bool {
        !self.is_ordered && (self.unordered.len() > MAX_CANDIDATES || self.bytes > MAX_TOTAL_BYTES)
    }

    /// Returns the number of unordered candidates.
    #[must_use]
    pub fn unordered_count(&self) -> usize {
        self.unordered.len()
    }

    /// Returns the rank of the row whose documents have this digest. Adds the row if it is new.
    fn find_rank(
        &mut self,
        digest: DocumentsDigest,
        documents: impl FnOnce() -> RowDocuments,
    ) -> i64 {
        let next = i64::try_from(self.ranks.len()).unwrap_or(i64::MAX);
        let rank = *self.ranks.entry(digest).or_insert(next);
        if rank == next && !self.is_ordered {
            let documents = documents();
            self.bytes += documents.iter().map(|(_, d)| d.approximate_size()).sum::<usize>();
            self.unordered.push((digest, documents));
        }
        rank
    }

    /// Orders the candidates by the sum of their documents' similarities to the questions. The
    /// similarity of a document is the similarity of its most similar passage.
    ///
    /// # Errors
    /// Fails if `compare` fails.
    pub fn sort_by_similarity(
        &mut self,
        question: impl Fn(usize) -> String,
        passages: impl Fn(&str) -> Vec<String>,
        mut compare: impl FnMut(&str, &[&str]) -> Result<Vec<f64>, QueryError>,
    ) -> Result<(), QueryError> {
        let mut scores = vec![0.0; self.unordered.len()];
        let mut calls: Vec<usize> =
            self.unordered.iter().flat_map(|(_, d)| d.iter().map(|(call, _)| *call)).collect();
        calls.sort_unstable();
        calls.dedup();
        for call in calls {
            let mut texts: Vec<(usize, String)> = Vec::new();
            for (n, (_, documents)) in self.unordered.iter().enumerate() {
                for (_, document) in documents.iter().filter(|(c, _)| *c == call) {
                    texts.extend(document.texts.iter().flat_map(|t| passages(t)).map(|p| (n, p)));
                }
            }
            let compared: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
            let similarities = compare(&question(call), &compared)?;
            let mut best: HashMap<usize, f64> = HashMap::new();
            for ((n, _), similarity) in texts.iter().zip(similarities) {
                let best = best.entry(*n).or_insert(similarity);
                *best = best.max(similarity);
            }
            best.into_iter().for_each(|(n, similarity)| scores[n] += similarity);
        }
        let mut order: Vec<usize> = (0..self.unordered.len()).collect();
        // The sort is stable: rows with equal scores keep their order.
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        for (rank, n) in order.into_iter().enumerate() {
            self.ranks.insert(self.unordered[n].0, i64::try_from(rank).unwrap_or(i64::MAX));
        }
        self.freeze_order();
        Ok(())
    }

    /// Keeps the current order for the rest of the query.
    pub fn freeze_order(&mut self) {
        self.unordered = Vec::new();
        self.is_ordered = true;
    }
}

impl CallRuntime {
    /// Implements [`Function::Rank`].
    pub(in crate::query) fn rank_row(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        if self.candidates.exceeds_limit() {
            return Err(self.abort_pass());
        }
        let mut hasher = blake3::Hasher::new();
        for value in values {
            let mut canonical_bytes = Vec::new();
            match value {
                ValueRef::Text(bytes) => {
                    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
                }
                other => {
                    write_canonical_bytes(&[*other], &mut canonical_bytes);
                    hasher.update(&canonical_bytes);
                }
            }
        }
        let documents = || {
            let read = |pair: &[ValueRef<'_>]| {
                let call = usize::try_from(integer_argument(pair, 0)).ok()?;
                let value = pair.get(1).map(|v| shorten_for_comparison(*v))?;
                let value = match &value {
                    Cow::Borrowed(text) => ValueRef::Text(text.as_bytes()),
                    Cow::Owned(text) => ValueRef::Text(text.as_bytes()),
                };
                Some((call, Document::from_value(value).ok()??))
            };
            values.chunks(2).filter_map(read).collect()
        };
        Ok(Sql::Integer(self.candidates.find_rank(*hasher.finalize().as_bytes(), documents)))
    }
}

/// Returns the prefix of a text that the comparison uses. In an array, each element is shortened,
/// so that the text remains an array.
fn shorten_for_comparison(value: ValueRef<'_>) -> Cow<'_, str> {
    let ValueRef::Text(bytes) = value else { return Cow::Borrowed("") };
    let Ok(text) = std::str::from_utf8(bytes) else { return Cow::Borrowed("") };
    if text.len() <= MAX_COMPARED_BYTES {
        return Cow::Borrowed(text);
    }
    match Document::from_value(value) {
        Ok(Some(document)) if document.texts.len() > 1 => {
            let each = MAX_COMPARED_BYTES / document.texts.len().min(MAX_COMPARED_BYTES / 64);
            let texts: Vec<&str> =
                document.texts.iter().map(|t| truncate_text(t, each)).take(512).collect();
            Cow::Owned(serde_json::Value::from(texts).to_string())
        }
        _ => Cow::Borrowed(truncate_text(text, MAX_COMPARED_BYTES)),
    }
}

fn truncate_text(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|n| text.is_char_boundary(*n));
    &text[..end.unwrap_or(0)]
}
