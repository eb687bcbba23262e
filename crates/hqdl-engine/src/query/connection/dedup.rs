//! The functions of `LLMDedup`: an aggregate that builds clusters from pairs, a function that
//! returns the canonical value of a text, and the trigram similarity that selects candidate pairs.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::ValueRef;
use serde::{Deserialize, Serialize};

use hqdl_sql::blendsql::runtime::{
    CANONICAL_FUNCTION, CLUSTERS_AGGREGATE, PAIR_ORDER_FUNCTION, TRIGRAMS_FUNCTION,
    TRIMMED_FUNCTION,
};
use hqdl_statistics::bound_positives;
use hqdl_values::value::Value;

/// Registers the functions with a connection. `add_note` receives the text of each call, and a note
/// about its clusters.
///
/// # Errors
/// Fails if `SQLite` rejects a registration.
pub fn register_dedup_functions(
    connection: &Connection,
    add_note: impl Fn(String, String) + Send + 'static,
) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8;
    connection.create_aggregate_function(CLUSTERS_AGGREGATE, 4, flags, ClustersAggregate)?;
    let trigrams: Mutex<TrigramCache> = Mutex::default();
    let is_pure = FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function(TRIGRAMS_FUNCTION, 2, flags | is_pure, move |ctx| {
        let texts = (ctx.get_raw(0).as_str()?, ctx.get_raw(1).as_str()?);
        let mut trigrams = trigrams.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(trigrams.compute_similarity(texts.0, texts.1).unwrap_or_default())
    })?;
    connection.create_scalar_function(PAIR_ORDER_FUNCTION, 2, flags | is_pure, |ctx| {
        let mut hasher = blake3::Hasher::new();
        for n in 0..2 {
            let text = ctx.get_raw(n).as_str()?;
            hasher.update(&text.len().to_le_bytes()).update(text.as_bytes());
        }
        Ok(hasher.finalize().as_bytes().to_vec())
    })?;
    connection.create_scalar_function(TRIMMED_FUNCTION, 1, flags | is_pure, |ctx| {
        let value = match ctx.get_raw(0) {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                Value::Text(String::from_utf8_lossy(bytes).into_owned())
            }
            other => Value::from_sqlite(other).unwrap_or(Value::Null),
        };
        let text = value.canonical_text().map(Cow::into_owned);
        Ok(text.filter(|text| !text.is_empty()))
    })?;
    // Cache the most recently read clusters, because all rows of a query read the same clusters.
    let latest: Mutex<(String, Clusters)> = Mutex::default();
    connection.create_scalar_function(CANONICAL_FUNCTION, 4, flags, move |ctx: &Context<'_>| {
        let value: Option<String> = ctx.get(2)?;
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
        let json = ctx.get_raw(3).as_str()?;
        let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.0 != json {
            let clusters = serde_json::from_str(json)
                .map_err(|e| rusqlite::Error::UserFunctionError(e.into()))?;
            *latest = (json.to_owned(), clusters);
        }
        let clusters = &latest.1;
        let (call, value_count): (String, u64) = (ctx.get(0)?, ctx.get(1)?);
        add_note(call, clusters.format_note(value_count));
        Ok(Some(clusters.canonical.get(&value).cloned().unwrap_or(value)))
    })
}

/// Clusters of a column's values.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Clusters {
    /// Number of candidate pairs.
    pairs: u64,
    /// Number of candidate pairs without an answer.
    unanswered: u64,
    /// Maps each non-canonical value to its canonical value.
    canonical: BTreeMap<String, String>,
    /// Pairs in the same cluster that the model judged to be different.
    conflicts: Vec<(String, String)>,
    /// Answers about a random sample of the excluded pairs; empty without an audit.
    audit: BlockAudit,
}

/// Answers about a simple random sample of the pairs that blocking excluded.
#[derive(Debug, Default, Serialize, Deserialize)]
struct BlockAudit {
    /// Number of pairs in the sample.
    sampled: u64,
    /// Sampled pairs that the model judged to be the same.
    same: Vec<(String, String)>,
    /// Number of sampled pairs without an answer.
    unanswered: u64,
}

/// Probability that the number of lost pairs exceeds the bound of a [`BlockAudit`].
const AUDIT_ALPHA: f64 = 0.05;

impl BlockAudit {
    /// Returns a note about what blocking lost among `excluded` pairs; `None` without an audit.
    fn format_note(&self, excluded: u64) -> Option<String> {
        if self.sampled == 0 {
            return None;
        }
        // An unanswered pair may be the same.
        let hits = self.same.len() as u64 + self.unanswered;
        // The bound is one-sided, so the other side's half of alpha is not used.
        let (_, most) =
            bound_positives(excluded.max(self.sampled), self.sampled, hits, 2.0 * AUDIT_ALPHA);
        let mut note = format!(
            "{} of {} audited pairs mean the same thing, so blocking lost at most {most} of the \
             {excluded} pairs (95 % confidence)",
            self.same.len(),
            self.sampled
        );
        if !self.same.is_empty() {
            note.push_str(&format!(": {}", format_pairs(&self.same)));
        }
        if self.unanswered > 0 {
            note.push_str(&format!("; audited pairs without an answer: {}", self.unanswered));
        }
        Some(note)
    }
}

/// Formats the first pairs for a note.
fn format_pairs(pairs: &[(String, String)]) -> String {
    let shown: Vec<String> =
        pairs.iter().take(MAX_SHOWN).map(|(a, b)| format!("'{a}' and '{b}'")).collect();
    shown.join(", ")
}

/// Maximum number of pairs in a list of a note.
const MAX_SHOWN: usize = 3;

impl Clusters {
    /// Returns a note about the excluded pairs, the unanswered pairs and the conflicts.
    fn format_note(&self, value_count: u64) -> String {
        let all = value_count * value_count.saturating_sub(1) / 2;
        let mut note = format!(
            "{} of {all} pairs are candidates; the other {} count as different without a question",
            self.pairs,
            all.saturating_sub(self.pairs)
        );
        if self.unanswered > 0 {
            note.push_str(&format!("; without an answer, and so different: {}", self.unanswered));
        }
        if !self.conflicts.is_empty() {
            let (pairs, were) =
                if self.conflicts.len() == 1 { ("pair", "was") } else { ("pairs", "were") };
            note.push_str(&format!(
                "; {} {pairs} within a cluster {were} answered as different: {}",
                self.conflicts.len(),
                format_pairs(&self.conflicts)
            ));
        }
        if let Some(audit) = self.audit.format_note(all.saturating_sub(self.pairs)) {
            note.push_str("; ");
            note.push_str(&audit);
        }
        note
    }
}

/// Implements [`CLUSTERS_AGGREGATE`].
struct ClustersAggregate;

/// Pairs collected so far.
#[derive(Default)]
struct CollectedPairs {
    same: Vec<(String, String)>,
    different: Vec<(String, String)>,
    unanswered: u64,
    audit: BlockAudit,
}

impl Aggregate<CollectedPairs, String> for ClustersAggregate {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<CollectedPairs> {
        Ok(CollectedPairs::default())
    }

    fn step(&self, ctx: &mut Context<'_>, state: &mut CollectedPairs) -> rusqlite::Result<()> {
        let (a, b, is_same): (String, String, Option<i64>) =
            (ctx.get(0)?, ctx.get(1)?, ctx.get(2)?);
        if ctx.get::<i64>(3)? == 0 {
            // The answers of an audit change no cluster, so that a query with an audit returns the
            // same rows.
            state.audit.sampled += 1;
            match is_same {
                Some(0) => {}
                Some(_) => state.audit.same.push((a, b)),
                None => state.audit.unanswered += 1,
            }
            return Ok(());
        }
        match is_same {
            Some(0) => state.different.push((a, b)),
            Some(_) => state.same.push((a, b)),
            None => state.unanswered += 1,
        }
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        state: Option<CollectedPairs>,
    ) -> rusqlite::Result<String> {
        let clusters = build_clusters(state.unwrap_or_default());
        serde_json::to_string(&clusters).map_err(|e| rusqlite::Error::UserFunctionError(e.into()))
    }
}

/// Merges pairs that share a value into clusters. The canonical value of a cluster is the first of
/// its values in text order.
fn build_clusters(pairs: CollectedPairs) -> Clusters {
    let CollectedPairs { same, mut different, unanswered, mut audit } = pairs;
    let texts: BTreeSet<&String> = same.iter().flat_map(|(a, b)| [a, b]).collect();
    let texts: Vec<&String> = texts.into_iter().collect();
    let numbers: HashMap<&String, usize> = texts.iter().enumerate().map(|(n, t)| (*t, n)).collect();
    let mut parents: Vec<usize> = (0..texts.len()).collect();
    for (a, b) in &same {
        let (a, b) = (find_root(&mut parents, numbers[a]), find_root(&mut parents, numbers[b]));
        // The text that sorts first becomes the root.
        parents[a.max(b)] = a.min(b);
    }
    let mut canonical = BTreeMap::new();
    for (n, text) in texts.iter().enumerate() {
        let root = find_root(&mut parents, n);
        if root != n {
            canonical.insert((*text).clone(), texts[root].clone());
        }
    }
    let pairs = (same.len() + different.len()) as u64 + unanswered;
    let root = |text: &String| canonical.get(text).unwrap_or(text).clone();
    different.retain(|(a, b)| root(a) == root(b));
    different.sort_unstable();
    audit.same.sort_unstable();
    Clusters { pairs, unanswered, canonical, conflicts: different, audit }
}

fn find_root(parents: &mut [usize], mut n: usize) -> usize {
    while parents[n] != n {
        parents[n] = parents[parents[n]];
        n = parents[n];
    }
    n
}

/// Trigrams of a text, sorted.
type Trigrams = Vec<[char; 3]>;

/// Cache of trigrams, because each text is compared with many others.
#[derive(Debug, Default)]
pub(in crate::query) struct TrigramCache {
    by_text: HashMap<String, Trigrams>,
}

/// Maximum number of texts in a [`TrigramCache`].
const MAX_CACHED: usize = 100_000;

impl TrigramCache {
    /// Returns the share of trigrams that two texts have in common, from 0 to 1; `None` if a text
    /// has no letters or digits, and thus no trigrams. As in `PostgreSQL`'s `pg_trgm`, each word is
    /// in lower case, padded with two spaces before and one space after.
    pub(in crate::query) fn compute_similarity(&mut self, a: &str, b: &str) -> Option<f64> {
        if self.by_text.len() > MAX_CACHED {
            self.by_text.clear();
        }
        for text in [a, b] {
            if !self.by_text.contains_key(text) {
                self.by_text.insert(text.to_owned(), split_trigrams(text));
            }
        }
        let (a, b) = (&self.by_text[a], &self.by_text[b]);
        let common = count_common(a, b);
        let all = a.len() + b.len() - common;
        (!a.is_empty() && !b.is_empty()).then(|| common as f64 / all as f64)
    }
}

/// Returns the number of common elements of two sorted lists.
fn count_common(mut a: &[[char; 3]], mut b: &[[char; 3]]) -> usize {
    let mut common = 0;
    while let ([first, rest_a @ ..], [second, rest_b @ ..]) = (a, b) {
        match first.cmp(second) {
            Ordering::Less => a = rest_a,
            Ordering::Greater => b = rest_b,
            Ordering::Equal => {
                common += 1;
                (a, b) = (rest_a, rest_b);
            }
        }
    }
    common
}

fn split_trigrams(text: &str) -> Trigrams {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let mut trigrams = Vec::new();
    for word in words {
        let padded: Vec<char> = "  ".chars().chain(word.chars()).chain([' ']).collect();
        trigrams.extend(padded.windows(3).map(|window| [window[0], window[1], window[2]]));
    }
    trigrams.sort_unstable();
    trigrams.dedup();
    trigrams
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_pair(a: &str, b: &str) -> (String, String) {
        (a.to_owned(), b.to_owned())
    }

    #[test]
    fn clusters_do_not_depend_on_the_order_of_the_pairs() {
        let same = vec![to_pair("c", "d"), to_pair("a", "c"), to_pair("x", "y")];
        let different = vec![to_pair("a", "d"), to_pair("a", "x")];
        let build = |same: Vec<_>, different: Vec<_>| {
            build_clusters(CollectedPairs { same, different, unanswered: 1, ..Default::default() })
        };
        let clusters = build(same.clone(), different.clone());
        let canonical = [("c", "a"), ("d", "a"), ("y", "x")];
        assert_eq!(clusters.canonical, canonical.map(|(a, b)| to_pair(a, b)).into_iter().collect());
        assert_eq!((clusters.pairs, clusters.conflicts.clone()), (6, vec![to_pair("a", "d")]));
        let reversed =
            build(same.into_iter().rev().collect(), different.into_iter().rev().collect());
        assert_eq!(reversed.canonical, clusters.canonical);
        assert!(clusters.format_note(4).contains("6 of 6 pairs"), "{}", clusters.format_note(4));
    }

    #[test]
    fn trigrams_are_those_of_pg_trgm() {
        let per_mille = |a, b| {
            let similarity = TrigramCache::default().compute_similarity(a, b)?;
            Some((similarity * 1000.0).round().to_string())
        };
        // SELECT similarity('word', 'two words')
        assert_eq!(per_mille("word", "two words").as_deref(), Some("364"));
        assert_eq!(per_mille("word", "Word").as_deref(), Some("1000"));
        assert_eq!(per_mille("word", "!"), None);
    }
}
