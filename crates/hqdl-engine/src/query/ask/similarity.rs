//! Similarity of texts to a question: by embeddings if the spec names a model for them and its
//! endpoint works, otherwise by words.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tokio::task::JoinSet;

use crate::query::ask::QueryRun;
use crate::query::request::error::QueryError;
use crate::retrieval::text_index::TextIndex;
use crate::retrieval::vectors::{PassageDigest, VectorStore, cosine_similarity, hash_passage};
use hqdl_facts::{CommitUnit, Completion, ReservationId};
use hqdl_model::embeddings::EmbeddingsEndpoint;
use hqdl_model::generate::{ModelRun, Slots, StopReason};
use hqdl_model::{
    ImplausibleUsage, Ledger, ModelError, PlausibleTokens, Reply, RequestError, RetryingRequest,
    Tokens,
};
use hqdl_spec::PriceTable;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::SpentAmount;

/// Maximum number of texts per request.
const MAX_TEXTS: usize = 96;
/// Maximum number of tokens per request.
const MAX_TOKENS: u64 = 40_000;
/// Maximum number of attempts per request.
const MAX_ATTEMPTS: u32 = 2;

/// Computes similarities during one run.
#[derive(Default)]
pub(in crate::query) struct SimilaritySource {
    endpoint_and_vectors: Option<(Arc<EmbeddingsEndpoint>, VectorStore)>,
    /// Reason why the run stopped using embeddings.
    failure: Option<String>,
}

/// Reason why there are no embeddings.
enum NoEmbeddings {
    /// Texts are compared by words instead, for this reason.
    CompareByWords(String),
    /// The query fails.
    QueryFailed(QueryError),
}

impl From<rusqlite::Error> for NoEmbeddings {
    fn from(error: rusqlite::Error) -> Self {
        Self::CompareByWords(format!("the file of embeddings: {error}"))
    }
}

/// Returns the similarity of each passage to a question, based on words only.
pub(in crate::query) fn similarity_by_words(question: &str, passages: &[&str]) -> Vec<f64> {
    // If the comparison fails, all passages count as equally similar.
    let similarities = TextIndex::index_texts(passages.iter().copied())
        .and_then(|w| w.compute_similarities(question));
    similarities.unwrap_or_else(|_| vec![0.0; passages.len()])
}

impl QueryRun<'_> {
    /// Returns the similarity of each passage to a question. If the endpoint fails, compares the
    /// passages by words.
    ///
    /// # Errors
    /// [`QueryError`] for errors that stop the run.
    pub(in crate::query) fn similarity_to(
        &self,
        question: &str,
        passages: &[&str],
    ) -> Result<Vec<f64>, QueryError> {
        let mut source = self.similarity_source.lock().unwrap_or_else(PoisonError::into_inner);
        if self.request.spec.embeddings.is_none() || source.failure.is_some() {
            return Ok(similarity_by_words(question, passages));
        }
        match self.similarity_by_embeddings(&mut source, question, passages) {
            Ok(found) => Ok(found),
            Err(NoEmbeddings::QueryFailed(error)) => Err(error),
            Err(NoEmbeddings::CompareByWords(why)) => {
                source.failure = Some(why);
                Ok(similarity_by_words(question, passages))
            }
        }
    }

    /// Returns a note if texts were compared by words although the spec names a model.
    pub(in crate::query) fn missing_embeddings_note(&self) -> Option<String> {
        let source = self.similarity_source.lock().unwrap_or_else(PoisonError::into_inner);
        source.failure.as_ref().map(|why| {
            format!(
                "hqdl compares texts by their words, because embeddings are not available: {why}"
            )
        })
    }

    fn similarity_by_embeddings(
        &self,
        source: &mut SimilaritySource,
        question: &str,
        passages: &[&str],
    ) -> Result<Vec<f64>, NoEmbeddings> {
        let Some(settings) = &self.request.spec.embeddings else {
            return Err(NoEmbeddings::CompareByWords(String::new()));
        };
        if source.endpoint_and_vectors.is_none() {
            let model =
                EmbeddingsEndpoint::new(settings, &self.request.spec.limits, self.request.facts)
                    .map_err(|e| NoEmbeddings::CompareByWords(e.to_string()))?;
            let vectors = VectorStore::open(self.request.facts.dir())?;
            source.endpoint_and_vectors = Some((Arc::new(model), vectors));
        }
        let Some((model, vectors)) = &mut source.endpoint_and_vectors else {
            return Err(NoEmbeddings::CompareByWords(String::new()));
        };
        let name = settings.model.name.as_str();
        let mut missing: Vec<(PassageDigest, &str)> = Vec::new();
        let mut seen = HashSet::new();
        let digests: Vec<PassageDigest> = passages.iter().map(|p| hash_passage(p)).collect();
        let question_digest = hash_passage(question);
        let all = digests.iter().zip(passages).map(|(d, p)| (*d, *p));
        for (digest, text) in all.chain([(question_digest, question)]) {
            if seen.insert(digest) && !vectors.contains_vector(name, &digest)? {
                missing.push((digest, text));
            }
        }
        let dimension = vectors.vector_dimension(name)?;
        self.store_embeddings(model, vectors, &missing, dimension, settings.model.price.as_ref())?;
        let missing_error = || NoEmbeddings::CompareByWords("an embedding is missing".to_owned());
        let question = vectors.get_vector(name, &question_digest)?.ok_or_else(missing_error)?;
        digests
            .iter()
            .map(|d| {
                let vector = vectors.get_vector(name, d)?.ok_or_else(missing_error)?;
                Ok(cosine_similarity(&question, &vector))
            })
            .collect()
    }

    /// Requests the missing embeddings and stores them.
    fn store_embeddings(
        &self,
        model: &Arc<EmbeddingsEndpoint>,
        vectors: &mut VectorStore,
        missing: &[(PassageDigest, &str)],
        mut dimension: Option<usize>,
        price: Option<&PriceTable>,
    ) -> Result<(), NoEmbeddings> {
        use hqdl_model::Model;
        let tokenizer = Tokenizer::for_model(model.name());
        let mut batches = split_into_batches(missing, tokenizer).into_iter();
        let max_in_flight = (self.request.spec.limits.concurrency as usize).max(1);
        // An implausible usage report closes the slots.
        let slots = Arc::new(Slots::new(max_in_flight, false));
        let failed = |e: hqdl_facts::FactsError| NoEmbeddings::QueryFailed(e.into());
        let number = self.request.facts.history().model_id(model.name()).map_err(failed)?;
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            let mut usage_error = None;
            loop {
                while tasks.len() < max_in_flight
                    && let Some(batch) = batches.next()
                {
                    if *self.request.interrupt.borrow() {
                        return Err(NoEmbeddings::QueryFailed(StopReason::Interrupted.into()));
                    }
                    let request = EmbeddingsRequest {
                        model: Arc::clone(model),
                        price: price.copied(),
                        run: Arc::clone(&self.run),
                        slots: Arc::clone(&slots),
                    };
                    tasks.spawn(request.send_batch(batch));
                }
                let Some(joined) = tasks.join_next().await else { return Ok(()) };
                let outcome = joined.map_err(|e| NoEmbeddings::CompareByWords(e.to_string()))?;
                let (reply, reservation) = match outcome.reply {
                    Ok(answered) => answered,
                    // The reply that closed the slots carries the reason.
                    Err(RequestError::Unsent) => continue,
                    Err(RequestError::Facts(error)) => return Err(failed(error)),
                    Err(error @ RequestError::Model(_)) => {
                        return Err(NoEmbeddings::CompareByWords(error.to_string()));
                    }
                };
                let tokens = reply.tokens.unwrap_or_default();
                let completion = Completion {
                    run: self.run.id,
                    model: number,
                    content: Some(format!("{} embeddings", outcome.batch.len())),
                    seconds: outcome.seconds,
                    ..Completion::default()
                };
                self.commit_cost(completion, tokens, reservation, price).await.map_err(failed)?;
                usage_error = usage_error.or(ImplausibleUsage::check_report(
                    reply.implausible.unwrap_or(tokens),
                    tokens,
                    outcome.worst_cost,
                    price,
                ));
                let found = EmbeddingsEndpoint::parse_vectors(&reply).ok_or_else(|| {
                    NoEmbeddings::CompareByWords("the reply contains no vectors".to_owned())
                })?;
                let width = *dimension.get_or_insert(found.first().map_or(0, Vec::len));
                if let Some(other) = found.iter().map(Vec::len).find(|len| *len != width) {
                    return Err(discard_other_vectors(vectors, model.name(), width, other));
                }
                let digests = outcome.batch.iter().map(|(digest, _)| *digest);
                let all: Vec<(PassageDigest, Vec<f32>)> = digests.zip(found).collect();
                vectors.store_vectors(model.name(), &all)?;
                if let Some(error) = usage_error.take() {
                    return Err(NoEmbeddings::QueryFailed(StopReason::Endpoint(error).into()));
                }
            }
        })
    }

    /// Commits the record of an embeddings request with its cost.
    async fn commit_cost(
        &self,
        completion: Completion,
        tokens: Tokens,
        reservation: Option<ReservationId>,
        price: Option<&PriceTable>,
    ) -> Result<(), hqdl_facts::FactsError> {
        let completion = Completion {
            input_tokens: tokens.input,
            cost_usd: SpentAmount::from_tokens(tokens, price).usd,
            asked_at: hqdl_database::current_timestamp(),
            ..completion
        };
        let batch = CommitUnit { completion, settles: reservation, ..CommitUnit::default() };
        self.request.facts.commit_unit(batch).await?;
        self.run
            .events
            .usage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add_request(tokens, price);
        Ok(())
    }
}

/// Texts of a batch with their digests.
pub(in crate::query) type DigestedTexts = Vec<(PassageDigest, String)>;

/// Splits texts into batches. Returns the texts and the token count of each batch.
pub(in crate::query) fn split_into_batches(
    texts: &[(PassageDigest, &str)],
    tokenizer: Tokenizer,
) -> Vec<(DigestedTexts, u64)> {
    let mut batches: Vec<(DigestedTexts, u64)> = Vec::new();
    for (digest, text) in texts {
        let count = tokenizer.count_tokens(text).max(1);
        match batches.last_mut() {
            Some((batch, tokens)) if batch.len() < MAX_TEXTS && *tokens + count <= MAX_TOKENS => {
                batch.push((*digest, (*text).to_owned()));
                *tokens += count;
            }
            _ => batches.push((vec![(*digest, (*text).to_owned())], count)),
        }
    }
    batches
}

/// A request for one batch of embeddings.
struct EmbeddingsRequest {
    model: Arc<EmbeddingsEndpoint>,
    price: Option<PriceTable>,
    run: Arc<ModelRun>,
    slots: Arc<Slots>,
}

/// Result of the request.
struct EmbeddingsOutcome {
    batch: DigestedTexts,
    worst_cost: SpentAmount,
    reply: Result<(Reply, Option<ReservationId>), RequestError>,
    seconds: f64,
}

impl EmbeddingsRequest {
    async fn send_batch(self, (batch, tokens): (DigestedTexts, u64)) -> EmbeddingsOutcome {
        use hqdl_model::Model;
        let texts: Vec<&str> = batch.iter().map(|(_, text)| text.as_str()).collect();
        let max_tokens = Tokenizer::for_model(self.model.name()).max_tokens(tokens + 8);
        let prompt = EmbeddingsEndpoint::vector_prompt(&texts, max_tokens);
        let count = |_: &Reply| Tokens { input: max_tokens, ..Tokens::default() };
        let tokenizer = Tokenizer::for_model(self.model.name());
        let bills = self.price.is_some_and(|price| price.is_billed());
        let min_tokens = if bills { tokenizer.min_reported_tokens(tokens) } else { 0 };
        let of_input = |input| Tokens { input, ..Tokens::default() };
        let (min_tokens, max_input) = (of_input(min_tokens), of_input(max_tokens));
        let plausible =
            |_: &Reply| PlausibleTokens { min: min_tokens, max: max_input, is_counted: true };
        let request = RetryingRequest {
            model: &*self.model,
            prompt: &prompt,
            budget: &self.run.budget,
            price: self.price.as_ref(),
            count_tokens: &count,
            plausible_tokens: &plausible,
            has_answers: &|_: &Reply| true,
            on_wire: AtomicBool::new(false),
            max_attempts: 1,
            attempts: AtomicU32::new(0),
            slots: Some(&self.slots),
            ledger: Some(Ledger { facts: &self.run.facts, run: self.run.id }),
            report_wait: &|wait| self.run.report_wait(self.model.name(), wait),
        };
        let began = Instant::now();
        let mut reply = request.run_once().await;
        for _ in 1..MAX_ATTEMPTS {
            let Err(RequestError::Model(ModelError::Temporary { wait, .. })) = &reply else {
                break;
            };
            // If the endpoint demands a long pause, compare by words instead.
            let Some(pause) = wait.filter(|w| w.as_secs() < 10) else { break };
            tokio::time::sleep(pause).await;
            reply = request.run_once().await;
        }
        let seconds = began.elapsed().as_secs_f64();
        let worst_cost = SpentAmount::worst_case(max_tokens, 0, self.price.as_ref());
        EmbeddingsOutcome { batch, worst_cost, reply, seconds }
    }
}

/// Deletes a model's vectors if its name now refers to a different model. Returns the reason why
/// texts are not compared by these vectors.
fn discard_other_vectors(
    vectors: &VectorStore,
    model: &str,
    before: usize,
    now: usize,
) -> NoEmbeddings {
    match vectors.delete_vectors(model) {
        Ok(()) => NoEmbeddings::CompareByWords(format!(
            "`{model}` returned vectors of {before} numbers before, and of {now} now"
        )),
        Err(error) => error.into(),
    }
}
