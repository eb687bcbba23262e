//! What embeddings take at the most, where a query would compare texts by them:
//! compares by words instead, and counts.

use std::collections::{HashMap, HashSet};

use super::Request;
use super::ask::likeness::{by_words, cut};
use crate::retrieval::vectors::{Digest, Vectors, digest};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::{Spent, Usage};

/// Texts that would be compared.
#[derive(Default)]
pub(super) struct Compared {
    texts: HashMap<Digest, String>,
    /// Those of each comparison: it sends what it lacks by itself.
    comparisons: Vec<HashSet<Digest>>,
}

impl Compared {
    /// How much each passage is like a question, by their words.
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

    /// What the embeddings of these texts take at the most that are not kept yet;
    /// nothing where the spec names no model for them.
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
            // In the worst order texts fill twice as many requests, less one.
            (2 * cut(&texts.collect::<Vec<_>>(), tokenizer).len() as u64).saturating_sub(1)
        });
        let requests = requests.sum::<u64>();
        let tokens: u64 = lacking.values().map(|text| tokenizer.count(text).max(1)).sum();
        let input = tokenizer.at_most(tokens + 8 * requests) + requests;
        let spent = Spent::worst(input, 0, settings.model.price.as_ref());
        Usage { requests, input_tokens: input, cost_usd: spent.usd, ..Usage::default() }
    }

    /// Texts whose embeddings are not kept.
    fn lacking(&self, model: &str, request: &Request<'_>) -> HashMap<Digest, &str> {
        let kept = Vectors::open(request.facts.dir());
        let mut lacking = HashMap::new();
        for (digest, text) in &self.texts {
            // What cannot be read is counted as not kept.
            let known = kept.as_ref().is_ok_and(|v| v.has(model, digest).unwrap_or(false));
            if !known {
                lacking.insert(*digest, text.as_str());
            }
        }
        lacking
    }
}
