//! Requests the embeddings of texts and stores them in the embeddings file. Embeddings are optional
//! when hqdl ranks texts by similarity (module `similarity`), and required by the functions `embed`
//! and `similarity` of a query.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tokio::task::JoinSet;

use crate::query::ask::QueryRun;
use crate::query::cells::targets::{Counts, Demand, TargetExpansion};
use crate::query::request::error::QueryError;
use crate::retrieval::vectors::{PassageDigest, VectorStore, hash_passage};
use hqdl_facts::{CommitUnit, Completion, FactsError, ReservationId};
use hqdl_model::embeddings::EmbeddingsEndpoint;
use hqdl_model::generate::{ModelRun, Slots, StopReason};
use hqdl_model::{
    ImplausibleUsage, Ledger, Model, ModelError, PlausibleTokens, Reply, RequestError,
    RetryingRequest, SetupError, Tokens,
};
use hqdl_spec::PriceTable;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::SpentAmount;

/// Maximum number of texts per request.
const MAX_TEXTS: usize = 96;
/// Maximum number of tokens per request.
const MAX_TOKENS: u64 = 40_000;
/// Maximum number of attempts per request for optional embeddings.
const MAX_ATTEMPTS: u32 = 2;
/// Maximum number of attempts per request for required embeddings.
const MAX_REQUIRED_ATTEMPTS: usize = 3;

/// Whether a query can do without the embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EmbeddingNeed {
    /// Texts are compared by their words if there are no embeddings.
    Optional,
    /// The query fails without embeddings.
    Required,
}

/// Endpoint for the embeddings of a run, and the file that stores them.
pub(in crate::query) struct EmbeddingsClient {
    model: Arc<EmbeddingsEndpoint>,
    price: Option<PriceTable>,
    pub(super) vectors: VectorStore,
}

/// A run's source of embeddings, with the failures that the run reports.
#[derive(Default)]
pub(in crate::query) struct EmbeddingsSource {
    client: Option<EmbeddingsClient>,
    /// Reason why the run stopped comparing texts by their embeddings; `None` if it did not stop.
    pub(super) failure: Option<String>,
    /// Number of texts that the endpoint rejected, and the reason for the last rejection.
    pub(super) rejected: Option<(usize, String)>,
}

/// Reason why there are no embeddings.
pub(super) enum NoEmbeddings {
    /// A request failed.
    Request(ModelError),
    /// The endpoint, its replies or the embeddings file cannot be used.
    Unusable(QueryError),
    /// The query fails, even if the embeddings are optional.
    QueryFailed(QueryError),
}

impl From<rusqlite::Error> for NoEmbeddings {
    fn from(error: rusqlite::Error) -> Self {
        Self::Unusable(QueryError::from_vector_file_error(&error))
    }
}

impl From<SetupError> for NoEmbeddings {
    fn from(error: SetupError) -> Self {
        Self::Unusable(error.into())
    }
}

impl From<FactsError> for NoEmbeddings {
    fn from(error: FactsError) -> Self {
        Self::QueryFailed(error.into())
    }
}

impl NoEmbeddings {
    /// Converts the reason to the error of a query that requires embeddings of `model`.
    fn into_query_error(self, model: &str) -> QueryError {
        let error = match self {
            Self::Unusable(error) | Self::QueryFailed(error) => return error,
            Self::Request(error) => error,
        };
        match error {
            ModelError::Refused { endpoint, status, message } => {
                let message = format!("{message} (embeddings of `{model}`)");
                StopReason::Endpoint(ModelError::Refused { endpoint, status, message }).into()
            }
            ModelError::Temporary { message, .. } | ModelError::Unfinished(message) => {
                StopReason::Gone(format!("{message} (embeddings of `{model}`)")).into()
            }
            other => StopReason::Endpoint(other).into(),
        }
    }
}

impl EmbeddingsSource {
    /// Returns the endpoint and the embeddings file, which are opened on first use.
    pub(super) fn open_client(
        &mut self,
        query_run: &QueryRun<'_>,
    ) -> Result<&mut EmbeddingsClient, NoEmbeddings> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                let request = &query_run.request;
                let Some(settings) = &request.spec.embeddings else {
                    let message = "the spec has no [embeddings]";
                    return Err(NoEmbeddings::Unusable(QueryError::in_sql(message, None, "", "")));
                };
                let model = EmbeddingsEndpoint::new(settings, &request.spec.limits, request.facts)?;
                let vectors = VectorStore::open(request.facts.dir())?;
                EmbeddingsClient { model: Arc::new(model), price: settings.model.price, vectors }
            }
        };
        Ok(self.client.insert(client))
    }
}

impl EmbeddingsClient {
    /// Returns the distinct texts that have no stored embedding.
    pub(super) fn find_missing_texts<'t>(
        &self,
        texts: impl Iterator<Item = (PassageDigest, &'t str)>,
    ) -> rusqlite::Result<Vec<(PassageDigest, &'t str)>> {
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        for (digest, text) in texts {
            if seen.insert(digest) && !self.vectors.contains_vector(self.model.name(), &digest)? {
                missing.push((digest, text));
            }
        }
        Ok(missing)
    }

    /// Removes from a batch the texts whose embeddings another process has stored in the meantime.
    /// Returns `None` if no text is left.
    fn remove_stored_texts(
        &self,
        batch: (DigestedTexts, u64),
        tokenizer: Tokenizer,
    ) -> rusqlite::Result<Option<(DigestedTexts, u64)>> {
        let texts = batch.0.iter().map(|(digest, text)| (*digest, text.as_str()));
        let missing = self.find_missing_texts(texts)?;
        if missing.len() == batch.0.len() {
            return Ok(Some(batch));
        }
        // The remaining texts are fewer than before, so they still fit in one batch.
        Ok(split_into_batches(&missing, tokenizer).pop())
    }

    fn store_reply(
        &mut self,
        batch: &DigestedTexts,
        reply: &Reply,
        need: EmbeddingNeed,
    ) -> Result<(), NoEmbeddings> {
        let unusable = |message: String, help| {
            NoEmbeddings::Unusable(QueryError::in_sql(message, None, "", help))
        };
        let Some(found) = EmbeddingsEndpoint::parse_vectors(reply) else {
            return Err(unusable("the reply contains no vectors".to_owned(), ""));
        };
        let name = self.model.name();
        let width = match self.vectors.load_vector_dimension(name)? {
            Some(width) => width,
            None => found.first().map_or(0, Vec::len),
        };
        if let Some(other) = found.iter().map(Vec::len).find(|len| *len != width) {
            // The name now refers to another model.
            if need == EmbeddingNeed::Optional {
                self.vectors.delete_vectors(name)?;
            }
            return Err(unusable(
                format!("`{name}` returned vectors of {width} numbers before, and of {other} now"),
                "if the endpoint serves another model now, set its name in [embeddings], or delete `vectors.sqlite` in the cache folder",
            ));
        }
        let digests = batch.iter().map(|(digest, _)| *digest);
        let all: Vec<(PassageDigest, Vec<f32>)> = digests.zip(found).collect();
        Ok(self.vectors.store_vectors(self.model.name(), &all)?)
    }
}

impl QueryRun<'_> {
    /// Requests the embeddings that are not stored yet, and fills the demanded cells.
    ///
    /// # Errors
    /// Returns [`QueryError`] if an error stops the run. Embeddings received before the error
    /// are kept.
    pub(super) fn embed_texts(
        &self,
        target: &mut TargetExpansion,
        demands: &[Demand],
        counts: &mut Counts,
    ) -> Result<(), QueryError> {
        let mut source = self.embeddings.lock().unwrap_or_else(PoisonError::into_inner);
        let texts: Vec<String> = demands.iter().map(|d| target.entity_text(d.entity())).collect();
        let model = self.request.spec.embeddings.as_ref().map_or("", |e| e.model.name.as_str());
        let result = source.open_client(self).and_then(|client| {
            let texts = texts.iter().map(|text| (hash_passage(text), text.as_str()));
            let missing = client.find_missing_texts(texts)?;
            let rejected = self.request_embeddings(client, &missing, EmbeddingNeed::Required)?;
            Ok((missing.len(), rejected))
        });
        let (asked, rejected) = result.map_err(|error| error.into_query_error(model))?;
        counts.asked += asked as u64;
        counts.reused += (demands.len() - asked) as u64;
        if let Some((n, why)) = rejected {
            let before = source.rejected.take().map_or(0, |(n, _)| n);
            source.rejected = Some((before + n, why));
        }
        demands.iter().for_each(|demand| target.read_embedding(demand.entity(), counts));
        Ok(())
    }

    /// Requests missing embeddings and stores them. If they are required, splits a request that the
    /// endpoint rejects. Returns the number of rejected texts and the reason for the last
    /// rejection, or `None` if no text was rejected.
    pub(super) fn request_embeddings(
        &self,
        client: &mut EmbeddingsClient,
        missing: &[(PassageDigest, &str)],
        need: EmbeddingNeed,
    ) -> Result<Option<(usize, String)>, NoEmbeddings> {
        let tokenizer = Tokenizer::for_model(client.model.name());
        let mut batches = VecDeque::from(split_into_batches(missing, tokenizer));
        let max_in_flight = (self.request.spec.limits.concurrency as usize).max(1);
        // An implausible usage report closes the slots.
        let slots = Arc::new(Slots::new(max_in_flight, false));
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            let mut rejected: Option<(usize, String)> = None;
            // After a failure, only the replies to requests in flight are stored.
            let mut failure: Option<NoEmbeddings> = None;
            loop {
                while failure.is_none()
                    && tasks.len() < max_in_flight
                    && let Some(batch) = batches.pop_front()
                {
                    if *self.request.interrupt.borrow() {
                        failure = Some(NoEmbeddings::QueryFailed(StopReason::Interrupted.into()));
                        break;
                    }
                    let batch = match client.remove_stored_texts(batch, tokenizer) {
                        Ok(Some(batch)) => batch,
                        Ok(None) => continue,
                        Err(error) => {
                            failure = Some(error.into());
                            break;
                        }
                    };
                    let request = EmbeddingsRequest {
                        model: Arc::clone(&client.model),
                        price: client.price,
                        run: Arc::clone(&self.run),
                        slots: Arc::clone(&slots),
                        need,
                    };
                    tasks.spawn(request.send_batch(batch));
                }
                let Some(joined) = tasks.join_next().await else { break };
                let outcome = joined.map_err(|e| {
                    NoEmbeddings::QueryFailed(StopReason::Bug(e.to_string()).into())
                })?;
                let error = match outcome.reply {
                    Ok(answered) => {
                        let stored = self.store_outcome(client, outcome.request, answered, need);
                        failure = failure.or(stored.await.err());
                        continue;
                    }
                    // The slots were closed; the reply that closed them reports the reason.
                    Err(RequestError::Unsent) => continue,
                    Err(RequestError::Facts(error)) => {
                        failure = failure.or(Some(error.into()));
                        continue;
                    }
                    Err(RequestError::Model(error)) => error,
                };
                let (batch, _) = outcome.request.batch;
                let is_rejected = matches!(error, ModelError::TooLong(_) | ModelError::Filtered(_));
                let is_too_large = is_rejected || matches!(error, ModelError::Budget(_));
                match (need, batch.len()) {
                    (EmbeddingNeed::Required, 2..) if is_too_large => {
                        let halves = halve_batch(batch, tokenizer);
                        halves.into_iter().for_each(|half| batches.push_front(half));
                    }
                    (EmbeddingNeed::Required, _) if is_rejected => {
                        let count = rejected.take().map_or(0, |(count, _)| count);
                        let why = match error {
                            ModelError::TooLong(why) | ModelError::Filtered(why) => why,
                            other => other.to_string(),
                        };
                        rejected = Some((count + 1, why));
                    }
                    _ => failure = failure.or(Some(NoEmbeddings::Request(error))),
                }
            }
            failure.map_or(Ok(rejected), Err)
        })
    }

    /// Stores the reply to a request and its cost.
    async fn store_outcome(
        &self,
        client: &mut EmbeddingsClient,
        sent: SentRequest,
        (reply, reservation): (Reply, Option<ReservationId>),
        need: EmbeddingNeed,
    ) -> Result<(), NoEmbeddings> {
        let tokens = reply.tokens.unwrap_or_default();
        let price = client.price;
        let number = self.request.facts.history().intern_model(client.model.name())?;
        let completion = Completion {
            run: self.run.id,
            model: number,
            content: Some(format!("{} embeddings", sent.batch.0.len())),
            seconds: sent.seconds,
            ..Completion::default()
        };
        // Store the embeddings first, so that nothing is lost if the process is killed in between.
        let stored = client.store_reply(&sent.batch.0, &reply, need);
        self.commit_cost(completion, tokens, reservation, price.as_ref()).await?;
        let implausible = ImplausibleUsage::check_usage_report(
            reply.implausible.unwrap_or(tokens),
            tokens,
            sent.worst_cost,
            price.as_ref(),
        );
        match implausible {
            Some(error) => Err(NoEmbeddings::QueryFailed(StopReason::Endpoint(error).into())),
            None => stored,
        }
    }

    /// Commits the record of an embeddings request with its cost.
    async fn commit_cost(
        &self,
        completion: Completion,
        tokens: Tokens,
        reservation: Option<ReservationId>,
        price: Option<&PriceTable>,
    ) -> Result<(), FactsError> {
        let completion = Completion {
            input_tokens: tokens.input,
            cost_usd: SpentAmount::from_tokens(tokens, price).usd,
            asked_at: hqdl_database::current_timestamp(),
            ..completion
        };
        let batch = CommitUnit { completion, reservation, ..CommitUnit::default() };
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
        let count = count_tokens(text, tokenizer);
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

/// Returns the second and the first half of a batch, with their token counts.
fn halve_batch(mut batch: DigestedTexts, tokenizer: Tokenizer) -> [(DigestedTexts, u64); 2] {
    let second = batch.split_off(batch.len() / 2);
    [second, batch].map(|half| {
        let tokens = half.iter().map(|(_, text)| count_tokens(text, tokenizer)).sum();
        (half, tokens)
    })
}

fn count_tokens(text: &str, tokenizer: Tokenizer) -> u64 {
    tokenizer.count_tokens(text).max(1)
}

struct EmbeddingsRequest {
    model: Arc<EmbeddingsEndpoint>,
    price: Option<PriceTable>,
    run: Arc<ModelRun>,
    slots: Arc<Slots>,
    need: EmbeddingNeed,
}

struct SentRequest {
    /// The texts and their number of tokens.
    batch: (DigestedTexts, u64),
    worst_cost: SpentAmount,
    seconds: f64,
}

/// Result of a request.
struct EmbeddingsOutcome {
    request: SentRequest,
    reply: Result<(Reply, Option<ReservationId>), RequestError>,
}

impl EmbeddingsRequest {
    async fn send_batch(self, (batch, tokens): (DigestedTexts, u64)) -> EmbeddingsOutcome {
        let texts: Vec<&str> = batch.iter().map(|(_, text)| text.as_str()).collect();
        let max_tokens = Tokenizer::for_model(self.model.name()).max_tokens(tokens + 8);
        let prompt = EmbeddingsEndpoint::build_vector_prompt(&texts, max_tokens);
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
            max_attempts: MAX_REQUIRED_ATTEMPTS,
            attempts: AtomicU32::new(0),
            slots: Some(&self.slots),
            ledger: Some(Ledger { facts: &self.run.facts, run: self.run.id }),
            report_wait: &|wait| self.run.report_wait(self.model.name(), wait),
        };
        let began = Instant::now();
        let reply = match self.need {
            EmbeddingNeed::Optional => Self::run_with_short_pauses(&request).await,
            EmbeddingNeed::Required => request.run_with_retries().await,
        };
        let seconds = began.elapsed().as_secs_f64();
        let worst_cost = SpentAmount::worst_case(max_tokens, 0, self.price.as_ref());
        let request = SentRequest { batch: (batch, tokens), worst_cost, seconds };
        EmbeddingsOutcome { request, reply }
    }

    /// Runs a request with up to [`MAX_ATTEMPTS`] attempts. Retries only if the endpoint specifies
    /// a pause of less than 10 seconds.
    async fn run_with_short_pauses(
        request: &RetryingRequest<'_>,
    ) -> Result<(Reply, Option<ReservationId>), RequestError> {
        let mut reply = request.run_once().await;
        for _ in 1..MAX_ATTEMPTS {
            let Err(RequestError::Model(ModelError::Temporary { wait, .. })) = &reply else {
                break;
            };
            // Give up if the pause is long or unspecified; texts are then compared by words.
            let Some(pause) = wait.filter(|w| w.as_secs() < 10) else { break };
            tokio::time::sleep(pause).await;
            reply = request.run_once().await;
        }
        reply
    }
}
