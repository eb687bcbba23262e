//! `/v1/embeddings` of an OpenAI-compatible endpoint, as a [`Model`] with the usual budgets and
//! rate limits. The prompt is a JSON array of texts; the reply is a JSON array of their vectors, in
//! the same order.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value as Json, json};

use super::endpoint::Endpoint;
use super::limits::Need;
use super::rate_headers::parse_openai_limits;
use super::reply::ReportedUsage;
use super::wire::{self, ErrorResponse};
use super::{
    Model, ModelError, PermitFuture, Reply, ReplyFuture, SetupError, UsageGate, WaitFuture,
};
use hqdl_facts::Facts;
use hqdl_prompt::{AnswerForm, Prompt};
use hqdl_spec::{Embeddings as Settings, Limits};

/// An endpoint for embeddings.
pub struct EmbeddingsEndpoint {
    endpoint: Endpoint,
    timeout: Duration,
}

impl EmbeddingsEndpoint {
    /// Creates an endpoint from its settings, with rate limits shared by all users of these facts.
    ///
    /// # Errors
    /// [`SetupError`] if the API key is missing.
    pub fn new(settings: &Settings, limits: &Limits, facts: &Facts) -> Result<Self, SetupError> {
        let endpoint = Endpoint::with_shared_limits(
            &settings.model,
            super::to_per_minute(limits),
            limits.per,
            facts,
        )?;
        Ok(Self { endpoint, timeout: settings.timeout })
    }

    /// Builds the prompt that requests the vectors of some texts.
    #[must_use]
    pub fn build_vector_prompt(texts: &[&str], tokens: u64) -> Prompt {
        Prompt {
            media: Vec::new(),
            audio_tokens: 0,
            evidence: None,
            system: Arc::from(""),
            user: Json::from(texts).to_string(),
            schema: None,
            planned_output: 0,
            max_output: 0,
            input_tokens: tokens,
            full_key_hash: None,
            has_sets: false,
            wants_logprobs: false,
            answer_form: AnswerForm::default(),
            rows: 1,
            temperature: None,
        }
    }

    /// Parses the vectors of a reply, in the order of the texts; `None` if the reply contains no
    /// vectors.
    #[must_use]
    pub fn parse_vectors(reply: &Reply) -> Option<Vec<Vec<f32>>> {
        serde_json::from_str(&reply.content).ok()
    }

    async fn send_request(&self, prompt: &Prompt) -> Result<Reply, ModelError> {
        let to_temporary = |e: reqwest::Error| wire::to_exchange_error(&e);
        let texts: Json = serde_json::from_str(&prompt.user).unwrap_or_default();
        let count = texts.as_array().map_or(0, Vec::len);
        let body =
            json!({ "model": self.endpoint.name(), "input": texts, "encoding_format": "float" });
        let sent = self
            .endpoint
            .transport
            .new_request(Method::POST, "/embeddings")
            .header("content-type", "application/json")
            .timeout(self.timeout)
            .body(body.to_string())
            .send();
        let response = sent.await.map_err(to_temporary)?;
        self.endpoint.apply_hint(parse_openai_limits(response.headers()));
        if !response.status().is_success() {
            return Err(wire::to_model_error(ErrorResponse::from_response(response).await));
        }
        let body = wire::read_body(response, wire::MAX_EMBEDDINGS_BYTES).await?;
        let json: Json = serde_json::from_slice(&body).unwrap_or_default();
        let mut vectors: Vec<Option<Json>> = vec![None; count];
        for (n, item) in json["data"].as_array().into_iter().flatten().enumerate() {
            let index = item["index"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(n);
            if let Some(slot) = vectors.get_mut(index) {
                *slot = Some(item["embedding"].clone());
            }
        }
        let is_complete = |v: &Option<Json>| {
            let numbers = v.as_ref().and_then(Json::as_array);
            numbers.is_some_and(|n| !n.is_empty() && n.iter().all(Json::is_number))
        };
        if !vectors.iter().all(is_complete) {
            let shown = wire::shorten_text(&String::from_utf8_lossy(&body));
            let message = format!(
                "the endpoint sent a reply that is not a list of {count} embeddings: {shown}"
            );
            return Err(ModelError::Temporary { message, wait: None, in_doubt: true });
        }
        // Embeddings have no output tokens, so all reported tokens are input.
        let reported = json.get("usage").map(ReportedUsage::from_json).unwrap_or_default();
        let reported = ReportedUsage {
            input: reported.input.max(reported.total),
            output: Some(0),
            ..ReportedUsage::default()
        };
        let content = vectors.into_iter().flatten().collect::<Json>().to_string();
        Ok(Reply { content, reported, ..Reply::default() })
    }
}

impl Model for EmbeddingsEndpoint {
    fn name(&self) -> &str {
        self.endpoint.name()
    }

    fn is_billed(&self) -> bool {
        true
    }

    fn usage_gate(&self) -> Option<&UsageGate> {
        self.endpoint.usage_gate()
    }

    fn record_usage(&self, is_plausible: bool) {
        self.endpoint.record_usage(is_plausible);
    }

    fn acquire_permit<'a>(&'a self, prompt: &'a Prompt) -> PermitFuture<'a> {
        self.endpoint.acquire_permit_for(Need::from_tokens(prompt.input_tokens))
    }

    fn remaining_wait(&self) -> WaitFuture<'_> {
        self.endpoint.remaining_wait()
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move {
            self.send_request(prompt).await.map_err(|e| self.endpoint.transport.sanitize_error(e))
        })
    }
}
