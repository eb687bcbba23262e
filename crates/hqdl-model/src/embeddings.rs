//! `/v1/embeddings` of an OpenAI-compatible endpoint, as a [`Model`] with the usual budgets and
//! rate limits. The prompt is a JSON array of texts, the reply a JSON array of vectors in their
//! order.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::limits::Need;
use super::openai::Endpoint;
use super::reply::SaidTokens;
use super::wire::{self, WireFailure};
use super::{
    Admitting, Model, ModelError, RemainingPause, Reply, ReplyFuture, SetupError, UsageGate,
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
    /// Creates the endpoint of the settings, with rate limits shared by all users of these facts.
    ///
    /// # Errors
    /// [`SetupError`] if the API key is missing.
    pub fn new(settings: &Settings, limits: &Limits, facts: &Facts) -> Result<Self, SetupError> {
        let endpoint =
            Endpoint::shared(&settings.model, super::per_minute(limits), limits.per, facts)?;
        Ok(Self { endpoint, timeout: settings.timeout })
    }

    /// Returns the prompt for the vectors of some texts.
    #[must_use]
    pub fn prompt(texts: &[&str], tokens: u64) -> Prompt {
        Prompt {
            images: Vec::new(),
            system: Arc::from(""),
            user: Json::from(texts).to_string(),
            schema: None,
            planned_output: 0,
            max_output: 0,
            input_tokens: tokens,
            with_keys: None,
            answers: AnswerForm::default(),
            rows: 1,
            temperature: None,
        }
    }

    /// Returns the vectors of a reply, in the order of the texts.
    #[must_use]
    pub fn vectors(reply: &Reply) -> Option<Vec<Vec<f32>>> {
        serde_json::from_str(&reply.content).ok()
    }

    async fn send(&self, prompt: &Prompt) -> Result<Reply, ModelError> {
        let passing = |e: reqwest::Error| wire::error(&e);
        let texts: Json = serde_json::from_str(&prompt.user).unwrap_or_default();
        let count = texts.as_array().map_or(0, Vec::len);
        let body =
            json!({ "model": self.endpoint.name(), "input": texts, "encoding_format": "float" });
        let sent = self
            .endpoint
            .http
            .post(self.endpoint.at("/embeddings"))
            .headers(self.endpoint.headers.clone())
            .header("content-type", "application/json")
            .timeout(self.timeout)
            .body(body.to_string())
            .send();
        let response = sent.await.map_err(passing)?;
        self.endpoint.throttle.observe(response.headers());
        if !response.status().is_success() {
            return Err(wire::failed(WireFailure::read(response).await));
        }
        let body = wire::body(response, wire::EMBEDDINGS).await?;
        let json: Json = serde_json::from_slice(&body).unwrap_or_default();
        let mut vectors: Vec<Option<Json>> = vec![None; count];
        for (n, item) in json["data"].as_array().into_iter().flatten().enumerate() {
            let at = item["index"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(n);
            if let Some(place) = vectors.get_mut(at) {
                *place = Some(item["embedding"].clone());
            }
        }
        let whole = |v: &Option<Json>| {
            let numbers = v.as_ref().and_then(Json::as_array);
            numbers.is_some_and(|n| !n.is_empty() && n.iter().all(Json::is_number))
        };
        if !vectors.iter().all(whole) {
            let shown = wire::shown(&String::from_utf8_lossy(&body));
            let message =
                format!("the endpoint's reply is not a list of {count} embeddings: {shown}");
            return Err(ModelError::Passing { message, wait: None, in_doubt: true });
        }
        // Embeddings have no output tokens, so all reported tokens are input.
        let said = json.get("usage").map(SaidTokens::read).unwrap_or_default();
        let said = SaidTokens {
            input: said.input.max(said.total),
            output: Some(0),
            ..SaidTokens::default()
        };
        let content = vectors.into_iter().flatten().collect::<Json>().to_string();
        Ok(Reply { content, said, ..Reply::default() })
    }
}

impl Model for EmbeddingsEndpoint {
    fn name(&self) -> &str {
        self.endpoint.name()
    }

    fn bills(&self) -> bool {
        true
    }

    fn usage_gate(&self) -> Option<&UsageGate> {
        self.endpoint.usage_gate()
    }

    fn note_usage(&self, is_plausible: bool) {
        self.endpoint.note_usage(is_plausible);
    }

    fn admit<'a>(&'a self, prompt: &'a Prompt) -> Admitting<'a> {
        let need = Need::exactly(prompt.input_tokens);
        Box::pin(async move { Some(self.endpoint.throttle.admit(need).await) })
    }

    fn remaining_pause(&self) -> RemainingPause<'_> {
        self.endpoint.remaining_pause()
    }

    fn ask<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move { self.send(prompt).await.map_err(|e| self.endpoint.without_key(e)) })
    }
}
