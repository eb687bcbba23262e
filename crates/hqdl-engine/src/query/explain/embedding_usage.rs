//! Computes an upper bound on a query's embedding usage. The estimate compares texts by words and
//! counts the texts that need an embedding.

use std::collections::{HashMap, HashSet};

use crate::query::ask::embeddings::split_into_batches;
use crate::query::ask::similarity::compute_word_similarities;
use crate::query::request::Request;
use crate::retrieval::vectors::{PassageDigest, VectorStore, hash_passage};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::{SpentAmount, Usage};

/// Texts that a query would compare.
#[derive(Default)]
pub(in crate::query) struct ComparedTexts {
    texts: HashMap<PassageDigest, String>,
    /// Texts of each comparison, kept apart because each comparison requests its missing embeddings
    /// separately.
    comparisons: Vec<HashSet<PassageDigest>>,
}

impl ComparedTexts {
    /// Returns the similarity of each passage to a question, based on words, and records the texts.
    pub fn compute_and_record_similarities(
        &mut self,
        question: &str,
        passages: &[&str],
    ) -> Vec<f64> {
        let mut comparison = HashSet::new();
        for text in passages.iter().copied().chain([question]) {
            let digest = hash_passage(text);
            comparison.insert(digest);
            self.texts.entry(digest).or_insert_with(|| text.to_owned());
        }
        self.comparisons.push(comparison);
        compute_word_similarities(question, passages)
    }

    /// Records texts whose embeddings a query reads. If `is_single_request` is false, each text may
    /// need its own request.
    pub fn add_embedded_texts(&mut self, texts: Vec<String>, is_single_request: bool) {
        let mut comparison = HashSet::new();
        for text in texts {
            let digest = hash_passage(&text);
            comparison.insert(digest);
            self.texts.entry(digest).or_insert(text);
        }
        if is_single_request {
            self.comparisons.push(comparison);
        } else {
            let single = comparison.into_iter().map(|digest| HashSet::from([digest]));
            self.comparisons.extend(single);
        }
    }

    /// Returns an upper bound on the usage for embeddings that are not stored yet. The bound is
    /// zero if the spec names no embeddings model.
    pub fn compute_usage_bound(&self, request: &Request<'_>) -> Usage {
        let Some(settings) = &request.spec.embeddings else { return Usage::default() };
        if request.model.is_none() || self.texts.is_empty() {
            return Usage::default();
        }
        let name = settings.model.name.as_str();
        let missing = self.find_missing_texts(name, request);
        let tokenizer = Tokenizer::for_model(name);
        let requests = self.comparisons.iter().map(|comparison| {
            let texts = comparison.iter().filter_map(|d| Some((*d, *missing.get(d)?)));
            // If the texts come in the worst order, they need up to twice as many requests, minus
            // one.
            (2 * split_into_batches(&texts.collect::<Vec<_>>(), tokenizer).len() as u64)
                .saturating_sub(1)
        });
        let requests = requests.sum::<u64>();
        let tokens: u64 = missing.values().map(|text| tokenizer.count_tokens(text).max(1)).sum();
        let input = tokenizer.max_tokens(tokens + 8 * requests) + requests;
        let spent = SpentAmount::worst_case(input, 0, settings.model.price.as_ref());
        Usage { requests, input_tokens: input, cost_usd: spent.usd, ..Usage::default() }
    }

    /// Returns the texts without a stored embedding.
    fn find_missing_texts(
        &self,
        model: &str,
        request: &Request<'_>,
    ) -> HashMap<PassageDigest, &str> {
        let vectors = VectorStore::open(request.facts.dir());
        let mut missing = HashMap::new();
        for (digest, text) in &self.texts {
            // An embedding that cannot be read counts as missing.
            let is_stored =
                vectors.as_ref().is_ok_and(|v| v.contains_vector(model, digest).unwrap_or(false));
            if !is_stored {
                missing.insert(*digest, text.as_str());
            }
        }
        missing
    }
}
