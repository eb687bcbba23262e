//! Upper bound of the usage for embeddings of a query. The estimate compares texts by words and
//! counts those that need an embedding.

use std::collections::{HashMap, HashSet};

use super::Request;
use super::ask::likeness::{by_words, cut};
use crate::retrieval::vectors::{Digest, Vectors, digest};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::{Spent, Usage};

/// Texts that a query would compare.
#[derive(Default)]
pub(super) struct Compared {
    texts: HashMap<Digest, String>,
    /// Texts of each comparison, since each one requests its missing embeddings separately.
    comparisons: Vec<HashSet<Digest>>,
}

impl Compared {
    /// Returns the similarity of each passage to a question, by words, and records the texts.
    pub fn compare(&mut self, question: &str, passages: &[&str]) -> Vec<f64> {
        let mut comparison = HashSet::new();
        for text in passages.iter().copied().chain([question]) {
            let digest = digest(text);
            comparison.insert(digest);
            self.texts.entry(digest).or_insert_with(|| text.to_owned());
        }
        self.comparisons.push(comparison);
        by_words(question, passages)
    }

    /// Returns an upper bound of the usage for embeddings that are not stored yet. It is zero if
    /// the spec names no model for them.
    pub fn usage(&self, request: &Request<'_>) -> Usage {
        let Some(settings) = &request.spec.embeddings else { return Usage::default() };
        if request.model.is_none() || self.texts.is_empty() {
            return Usage::default();
        }
        let name = settings.model.name.as_str();
        let lacking = self.lacking(name, request);
        let tokenizer = Tokenizer::of(name);
        let requests = self.comparisons.iter().map(|comparison| {
            let texts = comparison.iter().filter_map(|d| Some((*d, *lacking.get(d)?)));
            // In the worst order, texts need twice as many requests minus one.
            (2 * cut(&texts.collect::<Vec<_>>(), tokenizer).len() as u64).saturating_sub(1)
        });
        let requests = requests.sum::<u64>();
        let tokens: u64 = lacking.values().map(|text| tokenizer.count(text).max(1)).sum();
        let input = tokenizer.at_most(tokens + 8 * requests) + requests;
        let spent = Spent::worst(input, 0, settings.model.price.as_ref());
        Usage { requests, input_tokens: input, cost_usd: spent.usd, ..Usage::default() }
    }

    /// Returns the texts without a stored embedding.
    fn lacking(&self, model: &str, request: &Request<'_>) -> HashMap<Digest, &str> {
        let kept = Vectors::open(request.facts.dir());
        let mut lacking = HashMap::new();
        for (digest, text) in &self.texts {
            // An embedding that cannot be read counts as missing.
            let known = kept.as_ref().is_ok_and(|v| v.has(model, digest).unwrap_or(false));
            if !known {
                lacking.insert(*digest, text.as_str());
            }
        }
        lacking
    }
}
