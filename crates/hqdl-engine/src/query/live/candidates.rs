//! In which order rows are asked about, where a query needs any few of those
//! that qualify: those whose documents are most like the questions first. The
//! order saves requests; it decides nothing.

use std::borrow::Cow;

use foldhash::{HashMap, HashMapExt};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::QueryError;
use crate::query::documents::Document;
use crate::query::live::{Live, int};
use crate::query::targets::spell;
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;

/// Candidates that are put in an order; of more, rows come as they are.
const MOST: usize = 20_000;
/// Bytes of all of them together.
const BYTES: usize = 128 << 20;
/// Bytes of a document that are compared.
const COMPARED: usize = 32 << 10;

/// A row, as the digest of its documents.
type DocumentsDigest = [u8; 32];
/// A row's documents, by the call that asks of them.
type RowDocuments = Vec<(usize, Document)>;

/// Rows that may be asked about, and their order once it is known.
#[derive(Default)]
pub struct Candidates {
    ranks: HashMap<DocumentsDigest, i64>,
    waiting: Vec<(DocumentsDigest, RowDocuments)>,
    bytes: usize,
    ranked: bool,
}

impl Candidates {
    /// Whether candidates wait for their order.
    #[must_use]
    pub fn wait(&self) -> bool {
        !self.ranked && !self.waiting.is_empty()
    }

    /// Whether there are more than are put in an order.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        !self.ranked && (self.waiting.len() > MOST || self.bytes > BYTES)
    }

    /// How many wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// The place of a row by the digest of its documents.
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

    /// Puts the candidates in order: the sum of how much each document is like
    /// its question, of a document that of the passage most like it.
    ///
    /// # Errors
    /// What comparing ended in.
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
        // Equals keep the order in which they came.
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        for (rank, n) in order.into_iter().enumerate() {
            self.ranks.insert(self.waiting[n].0, i64::try_from(rank).unwrap_or(i64::MAX));
        }
        self.settled();
        Ok(())
    }

    /// The order is the one in which they came.
    pub fn settled(&mut self) {
        self.waiting = Vec::new();
        self.ranked = true;
    }
}

impl Live {
    /// [`Function::Rank`]
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

/// The beginning of a text, as far as it is compared; of an array the beginnings
/// of its elements, so that it stays one.
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
