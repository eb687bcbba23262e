//! Similarity of texts to a question: by embeddings if the spec names a model for them and its
//! endpoint works, otherwise by words.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tokio::task::JoinSet;

use crate::query::QueryError;
use crate::query::ask::Asker;
use crate::retrieval::vectors::{Digest, Vectors, cosine, digest};
use crate::retrieval::words::Words;
use hqdl_facts::{CommitUnit, Completion, ReservationId};
use hqdl_model::embeddings::EmbeddingsEndpoint;
use hqdl_model::generate::{ModelRun, Slots, Stopped};
use hqdl_model::{
    ImplausibleUsage, Ledger, ModelError, PlausibleTokens, Reply, RequestError, RetryingRequest,
    Tokens,
};
use hqdl_spec::PriceTable;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::Spent;

/// Maximum number of texts per request.
const TEXTS: usize = 96;
/// Maximum number of tokens per request.
const TOKENS: u64 = 40_000;
/// Maximum number of attempts per request.
const TRIES: u32 = 2;

/// Source of similarities during one run.
#[derive(Default)]
pub(in crate::query) struct Likeness {
    open: Option<(Arc<EmbeddingsEndpoint>, Vectors)>,
    /// Reason why embeddings are no longer used.
    broken: Option<String>,
}

/// Reason why there are no embeddings.
enum NoEmbeddings {
    /// Compare by words instead.
    Instead(String),
    /// The query fails.
    Ends(QueryError),
}

impl From<rusqlite::Error> for NoEmbeddings {
    fn from(error: rusqlite::Error) -> Self {
        Self::Instead(format!("the file of embeddings: {error}"))
    }
}

/// Returns the similarity of each passage to a question, by words alone.
pub(in crate::query) fn by_words(question: &str, passages: &[&str]) -> Vec<f64> {
    // If the comparison fails, all passages count as equally similar.
    let words = Words::of(passages.iter().copied()).and_then(|w| w.likeness(question));
    words.unwrap_or_else(|_| vec![0.0; passages.len()])
}

impl Asker<'_> {
    /// Returns the similarity of each passage to a question.
    ///
    /// # Errors
    /// [`QueryError`] for errors that stop the run. If the endpoint fails, the passages are
    /// compared by words.
    pub(in crate::query) fn likeness(
        &self,
        question: &str,
        passages: &[&str],
    ) -> Result<Vec<f64>, QueryError> {
        let mut likeness = self.likeness.lock().unwrap_or_else(PoisonError::into_inner);
        if self.request.spec.embeddings.is_none() || likeness.broken.is_some() {
            return Ok(by_words(question, passages));
        }
        match self.by_meaning(&mut likeness, question, passages) {
            Ok(found) => Ok(found),
            Err(NoEmbeddings::Ends(error)) => Err(error),
            Err(NoEmbeddings::Instead(why)) => {
                likeness.broken = Some(why);
                Ok(by_words(question, passages))
            }
        }
    }

    /// Returns a note if texts were compared by words although the spec names a model.
    pub(in crate::query) fn without_embeddings(&self) -> Option<String> {
        let likeness = self.likeness.lock().unwrap_or_else(PoisonError::into_inner);
        likeness.broken.as_ref().map(|why| {
            format!("texts are compared by their words, because there are no embeddings: {why}")
        })
    }

    fn by_meaning(
        &self,
        likeness: &mut Likeness,
        question: &str,
        passages: &[&str],
    ) -> Result<Vec<f64>, NoEmbeddings> {
        let Some(settings) = &self.request.spec.embeddings else {
            return Err(NoEmbeddings::Instead(String::new()));
        };
        if likeness.open.is_none() {
            let model =
                EmbeddingsEndpoint::new(settings, &self.request.spec.limits, self.request.facts)
                    .map_err(|e| NoEmbeddings::Instead(e.to_string()))?;
            let vectors = Vectors::open(self.request.facts.dir())?;
            likeness.open = Some((Arc::new(model), vectors));
        }
        let Some((model, vectors)) = &mut likeness.open else {
            return Err(NoEmbeddings::Instead(String::new()));
        };
        let name = settings.model.name.as_str();
        let mut lacking: Vec<(Digest, &str)> = Vec::new();
        let mut seen = HashSet::new();
        let digests: Vec<Digest> = passages.iter().map(|p| digest(p)).collect();
        let of_question = digest(question);
        let all = digests.iter().zip(passages).map(|(d, p)| (*d, *p));
        for (digest, text) in all.chain([(of_question, question)]) {
            if seen.insert(digest) && !vectors.has(name, &digest)? {
                lacking.push((digest, text));
            }
        }
        let dimension = vectors.dimension(name)?;
        self.embed(model, vectors, &lacking, dimension, settings.model.price.as_ref())?;
        let missing = || NoEmbeddings::Instead("an embedding is missing".to_owned());
        let question = vectors.get(name, &of_question)?.ok_or_else(missing)?;
        digests
            .iter()
            .map(|d| {
                let vector = vectors.get(name, d)?.ok_or_else(missing)?;
                Ok(cosine(&question, &vector))
            })
            .collect()
    }

    /// Requests the missing embeddings and stores them.
    fn embed(
        &self,
        model: &Arc<EmbeddingsEndpoint>,
        vectors: &mut Vectors,
        lacking: &[(Digest, &str)],
        mut dimension: Option<usize>,
        price: Option<&PriceTable>,
    ) -> Result<(), NoEmbeddings> {
        use hqdl_model::Model;
        let tokenizer = Tokenizer::of(model.name());
        let mut batches = cut(lacking, tokenizer).into_iter();
        let most = (self.request.spec.limits.concurrency as usize).max(1);
        // An implausible usage report closes the slots.
        let slots = Arc::new(Slots::new(most, false));
        let failed = |e: hqdl_facts::FactsError| NoEmbeddings::Ends(e.into());
        let number = self.request.facts.history().model(model.name()).map_err(failed)?;
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            let mut beyond = None;
            loop {
                while tasks.len() < most
                    && let Some(batch) = batches.next()
                {
                    if *self.request.interrupt.borrow() {
                        return Err(NoEmbeddings::Ends(Stopped::Interrupted.into()));
                    }
                    let errand = Sending {
                        model: Arc::clone(model),
                        price: price.copied(),
                        run: Arc::clone(&self.run),
                        slots: Arc::clone(&slots),
                    };
                    tasks.spawn(errand.run(batch));
                }
                let Some(ended) = tasks.join_next().await else { return Ok(()) };
                let sent = ended.map_err(|e| NoEmbeddings::Instead(e.to_string()))?;
                let (reply, note) = match sent.reply {
                    Ok(answered) => answered,
                    Err(RequestError::Facts(error)) => return Err(failed(error)),
                    // The reply that closed the slots reports the reason.
                    Err(RequestError::Unsent) => continue,
                    Err(error @ RequestError::Model(_)) => {
                        return Err(NoEmbeddings::Instead(error.to_string()));
                    }
                };
                let tokens = reply.tokens.unwrap_or_default();
                let completion = Completion {
                    run: self.run.id,
                    model: number,
                    content: Some(format!("{} embeddings", sent.batch.len())),
                    seconds: sent.seconds,
                    ..Completion::default()
                };
                self.keep_cost(completion, tokens, note, price).await.map_err(failed)?;
                beyond = beyond.or(ImplausibleUsage::of(
                    reply.implausible.unwrap_or(tokens),
                    tokens,
                    sent.worst,
                    price,
                ));
                let found = EmbeddingsEndpoint::vectors(&reply).ok_or_else(|| {
                    NoEmbeddings::Instead("the reply contains no vectors".to_owned())
                })?;
                let width = *dimension.get_or_insert(found.first().map_or(0, Vec::len));
                if let Some(other) = found.iter().find(|v| v.len() != width) {
                    // The name now refers to another model, so the stored vectors are useless.
                    vectors.forget(model.name())?;
                    return Err(NoEmbeddings::Instead(format!(
                        "`{}` returned vectors of {width} numbers before, and of {} now",
                        model.name(),
                        other.len()
                    )));
                }
                let digests = sent.batch.iter().map(|(digest, _)| *digest);
                let all: Vec<(Digest, Vec<f32>)> = digests.zip(found).collect();
                vectors.keep(model.name(), &all)?;
                if let Some(error) = beyond.take() {
                    return Err(NoEmbeddings::Ends(Stopped::Endpoint(error).into()));
                }
            }
        })
    }

    /// Commits the record of an embeddings request with its cost.
    async fn keep_cost(
        &self,
        completion: Completion,
        tokens: Tokens,
        note: Option<ReservationId>,
        price: Option<&PriceTable>,
    ) -> Result<(), hqdl_facts::FactsError> {
        let completion = Completion {
            input_tokens: tokens.input,
            cost_usd: Spent::of(tokens, price).usd,
            asked_at: hqdl_database::now(),
            ..completion
        };
        let batch = CommitUnit { completion, settles: note, ..CommitUnit::default() };
        self.request.facts.keep(batch).await?;
        self.run.events.usage.lock().unwrap_or_else(PoisonError::into_inner).add(tokens, price);
        Ok(())
    }
}

/// Texts of a batch with their digests.
pub(in crate::query) type Texts = Vec<(Digest, String)>;

/// Splits texts into batches. Returns the texts and the token count of each batch.
pub(in crate::query) fn cut(lacking: &[(Digest, &str)], tokenizer: Tokenizer) -> Vec<(Texts, u64)> {
    let mut batches: Vec<(Texts, u64)> = Vec::new();
    for (digest, text) in lacking {
        let count = tokenizer.count(text).max(1);
        match batches.last_mut() {
            Some((batch, tokens)) if batch.len() < TEXTS && *tokens + count <= TOKENS => {
                batch.push((*digest, (*text).to_owned()));
                *tokens += count;
            }
            _ => batches.push((vec![(*digest, (*text).to_owned())], count)),
        }
    }
    batches
}

/// A request for one batch of embeddings.
struct Sending {
    model: Arc<EmbeddingsEndpoint>,
    price: Option<PriceTable>,
    run: Arc<ModelRun>,
    slots: Arc<Slots>,
}

/// Result of the request.
struct Sent {
    batch: Texts,
    worst: Spent,
    reply: Result<(Reply, Option<ReservationId>), RequestError>,
    seconds: f64,
}

impl Sending {
    async fn run(self, (batch, tokens): (Texts, u64)) -> Sent {
        use hqdl_model::Model;
        let texts: Vec<&str> = batch.iter().map(|(_, text)| text.as_str()).collect();
        let most = Tokenizer::of(self.model.name()).at_most(tokens + 8);
        let prompt = EmbeddingsEndpoint::prompt(&texts, most);
        let count = |_: &Reply| Tokens { input: most, ..Tokens::default() };
        let tokenizer = Tokenizer::of(self.model.name());
        let bills = self.price.is_some_and(|price| price.bills());
        let least = if bills { tokenizer.least_report(tokens) } else { 0 };
        let of_input = |input| Tokens { input, ..Tokens::default() };
        let (least, most_input) = (of_input(least), of_input(most));
        let plausible = |_: &Reply| PlausibleTokens { least, most: most_input, is_counted: true };
        let errand = RetryingRequest {
            model: &*self.model,
            prompt: &prompt,
            budget: &self.run.budget,
            price: self.price.as_ref(),
            count: &count,
            plausible: &plausible,
            holds: &|_: &Reply| true,
            on_wire: AtomicBool::new(false),
            most_tries: 1,
            tries: AtomicU32::new(0),
            slots: Some(&self.slots),
            ledger: Some(Ledger { facts: &self.run.facts, run: self.run.id }),
            tell_pause: &|pause| self.run.tell_pause(self.model.name(), pause),
        };
        let began = Instant::now();
        let mut reply = errand.once().await;
        for _ in 1..TRIES {
            let Err(RequestError::Model(ModelError::Passing { wait, .. })) = &reply else { break };
            // If the endpoint demands a long pause, compare by words instead.
            let Some(pause) = wait.filter(|w| w.as_secs() < 10) else { break };
            tokio::time::sleep(pause).await;
            reply = errand.once().await;
        }
        let seconds = began.elapsed().as_secs_f64();
        let worst = Spent::worst(most, 0, self.price.as_ref());
        Sent { batch, worst, reply, seconds }
    }
}
