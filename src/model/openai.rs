//! Any OpenAI-compatible endpoint: `OpenAI`, Azure, vLLM, Ollama, llama.cpp.
//!
//! Answers are read as they stream (`stream.rs`); an endpoint that does not
//! stream is asked without. One request is one exchange: [`super::Errand`] retries
//! outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_openai::config::{Config, OpenAIConfig};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value as Json, json};
use tracing::debug;

use super::limits::{Need, PerMinute, retry_after};
use super::wire::{Failure, error_of_chat, failed};
use super::{Admitting, Asking, Model, ModelError, Reply, SetupError, reply, stream, tls};
use crate::facts::{Facts, Throttle};
use crate::key::tagged_text;
use crate::prompt::Prompt;
use crate::spec::ModelSettings;

/// The endpoint when the spec names none.
const OPENAI: &str = "https://api.openai.com/v1";
/// The variable that holds its key.
const OPENAI_KEY: &str = "OPENAI_API_KEY";
/// What is sent where no key is wanted.
const NO_KEY: &str = "none";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest silence, before the first byte or between two.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// An OpenAI-compatible endpoint and the model asked there.
pub struct Endpoint {
    pub(super) http: reqwest::Client,
    /// The headers that every request carries.
    pub(super) headers: reqwest::header::HeaderMap,
    pub(super) base: String,
    pub(super) throttle: Arc<Throttle>,
    model: String,
    temperature: Option<f64>,
    max_output_name: &'static str,
    /// The endpoint has said that it does not take `response_format`.
    no_schema: AtomicBool,
    /// The endpoint has said that it does not stream.
    no_stream: AtomicBool,
    key: SecretString,
}

impl Endpoint {
    /// The endpoint that the settings name, asked under limits of its own. The key
    /// is read from the environment and stays in memory that is wiped.
    ///
    /// # Errors
    /// [`SetupError::NoKey`] when the named variable is not set. An endpoint of
    /// one's own (`base_url`) without `api_key_env` is asked without a key.
    pub fn new(settings: &ModelSettings, limits: PerMinute) -> Result<Self, SetupError> {
        Self::with_key(settings, key(settings)?, Throttle::alone(limits))
    }

    /// The same endpoint, asked under the limits of all who ask it with these
    /// facts.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn shared(
        settings: &ModelSettings,
        limits: PerMinute,
        facts: &Facts,
    ) -> Result<Self, SetupError> {
        let key = key(settings)?;
        // Endpoint and key are told apart from others, and not told.
        let parts = [base(settings).to_owned(), key.expose_secret().to_owned()];
        let id = tagged_text("hqdl endpoint v1", &parts);
        let throttle = facts.throttle(&id, &settings.name, limits)?;
        Self::with_key(settings, key, throttle)
    }

    /// The same endpoint for requests that somebody else sends.
    ///
    /// # Errors
    /// [`SetupError::Client`].
    pub fn without_a_key(settings: &ModelSettings) -> Result<Self, SetupError> {
        let throttle = Throttle::alone(PerMinute::default());
        Self::with_key(settings, SecretString::from(NO_KEY), throttle)
    }

    fn with_key(
        settings: &ModelSettings,
        key: SecretString,
        throttle: Throttle,
    ) -> Result<Self, SetupError> {
        let throttle = Arc::new(throttle);
        // The first endpoint of the process says it; who says it again is told no.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tls = tls::config().map_err(|e| SetupError::Client(e.to_string()))?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .user_agent(concat!("hqdl/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| SetupError::Client(e.to_string()))?;
        let base = base(settings);
        let config = OpenAIConfig::new().with_api_base(base).with_api_key(key.expose_secret());
        Ok(Self {
            http,
            headers: config.headers(),
            base: base.to_owned(),
            throttle,
            model: settings.name.clone(),
            temperature: settings.temperature,
            // OpenAI's newer models take the new name alone, other servers the old.
            max_output_name: if base == OPENAI { "max_completion_tokens" } else { "max_tokens" },
            no_schema: false.into(),
            no_stream: false.into(),
            key,
        })
    }

    /// An endpoint that does not take `response_format` is asked without: the
    /// prompt says the form, too, and answers are checked all the same.
    pub(super) fn without_schema(&self, prompt: &Prompt, error: ModelError) -> ModelError {
        let ModelError::Refused { status: 400 | 422, message } = &error else { return error };
        let about = ["response_format", "json_schema", "response format"]
            .iter()
            .any(|w| message.contains(w));
        if prompt.schema.is_none() || !about {
            return error;
        }
        self.no_schema.store(true, Ordering::Relaxed);
        at_once(&format!("the endpoint does not take response_format: {message}"))
    }

    /// An endpoint that does not stream is asked without from here on.
    fn without_stream(&self, streamed: bool, error: ModelError) -> ModelError {
        let ModelError::Refused { status: 400..=499 | 501, message } = &error else { return error };
        let mut words = message.split(|c: char| !c.is_alphanumeric());
        if !streamed || !words.any(|w| ["stream", "streaming"].contains(&&*w.to_lowercase())) {
            return error;
        }
        self.no_stream.store(true, Ordering::Relaxed);
        at_once(&format!("the endpoint does not stream: {message}"))
    }

    /// Endpoints say keys back in their errors; messages are shown and kept.
    pub(super) fn without_key(&self, mut error: ModelError) -> ModelError {
        let key = self.key.expose_secret();
        if let ModelError::Refused { message, .. }
        | ModelError::Passing { message, .. }
        | ModelError::TooLong(message)
        | ModelError::Filtered(message)
        | ModelError::Unfinished(message)
        | ModelError::NoAnswer(message) = &mut error
            && key != NO_KEY
        {
            *message = message.replace(key, "(the key)");
        }
        error
    }

    /// What a chat request says.
    pub(super) fn body(&self, prompt: &Prompt) -> Json {
        let mut body = json!({
            "model": self.model,
            "messages": [
                { "role": "system", "content": &*prompt.system },
                { "role": "user", "content": prompt.user },
            ],
        });
        body[self.max_output_name] = prompt.max_output.into();
        if let Some(temperature) = self.temperature {
            body["temperature"] = temperature.into();
        }
        if let Some(schema) =
            prompt.schema.as_ref().filter(|_| !self.no_schema.load(Ordering::Relaxed))
        {
            body["response_format"] = json!({
                "type": "json_schema",
                "json_schema": { "name": "rows", "strict": true, "schema": **schema },
            });
        }
        body
    }
}

/// The key of an endpoint.
fn key(settings: &ModelSettings) -> Result<SecretString, SetupError> {
    let variable = match (&settings.api_key_env, &settings.base_url) {
        (Some(name), _) => name.as_str(),
        (None, None) => OPENAI_KEY,
        (None, Some(_)) => return Ok(SecretString::from(NO_KEY)),
    };
    match std::env::var(variable) {
        Ok(key) if !key.trim().is_empty() => Ok(SecretString::from(key.trim().to_owned())),
        // A server on this machine seldom wants one.
        _ if settings.base_url.as_deref().is_some_and(is_loopback) => {
            Ok(SecretString::from(NO_KEY))
        }
        _ => Err(SetupError::NoKey(variable.to_owned())),
    }
}

/// Where an endpoint is.
fn base(settings: &ModelSettings) -> &str {
    settings.base_url.as_deref().unwrap_or(OPENAI).trim_end_matches('/')
}

impl Model for Endpoint {
    fn name(&self) -> &str {
        &self.model
    }

    fn batches(&self) -> Option<&Endpoint> {
        Some(self)
    }

    fn bills(&self) -> bool {
        true
    }

    fn admit<'a>(&'a self, prompt: &'a Prompt) -> Admitting<'a> {
        Box::pin(async { Some(self.throttle.admit(need(prompt)).await) })
    }

    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Asking<'a> {
        Box::pin(async move {
            let streamed = !self.no_stream.load(Ordering::Relaxed);
            let reply = match self.chat(prompt, streamed).await {
                Ok(mut reply) => {
                    reply.broken = reply.broken.map(|e| Box::new(self.without_key(*e)));
                    return Ok(reply);
                }
                Err(error) => self.without_key(error),
            };
            let error = self.without_stream(streamed, self.without_schema(prompt, reply));
            if let ModelError::Passing { wait: Some(wait), .. } = &error {
                self.throttle.pause(*wait);
            }
            Err(error)
        })
    }
}

impl Endpoint {
    async fn chat(&self, prompt: &Prompt, streamed: bool) -> Result<Reply, ModelError> {
        let mut body = self.body(prompt);
        if streamed {
            body["stream"] = true.into();
            body["stream_options"] = json!({ "include_usage": true });
        }
        let request = self
            .http
            .post(format!("{}/chat/completions", self.base))
            .headers(self.headers.clone())
            .header("content-type", "application/json")
            .body(body.to_string());
        let response = request.send().await.map_err(|e| error_of_chat(&e))?;
        // Headers that say how fast to go; never the request's own.
        debug!(
            status = response.status().as_u16(),
            retry_after = ?retry_after(response.headers()),
            "the endpoint answers"
        );
        self.throttle.observe(response.headers());
        if !response.status().is_success() {
            return Err(failed(Failure::read(response).await));
        }
        stream::read(response, prompt).await
    }
}

/// Trouble that is over at once, when the request is made in another way.
fn at_once(message: &str) -> ModelError {
    let message = message.to_owned();
    ModelError::Passing { message, wait: Some(Duration::ZERO), in_doubt: false }
}

/// Tokens that a prompt is admitted for: what it takes, and likely an answer of a
/// quarter of its bound.
fn need(prompt: &Prompt) -> Need {
    let Prompt { input_tokens: input, max_output, .. } = prompt;
    Need { likely: input + max_output / 4, most: input + max_output }
}

/// Reads an output line of a batch: its `custom_id`, and the reply or why there
/// is none. `None` when it is no such line.
#[must_use]
pub fn read_line(json: &Json) -> Option<(String, Result<Reply, ModelError>)> {
    let id = json.get("custom_id")?.as_str()?.to_owned();
    let error = json.get("error").filter(|e| !e.is_null());
    let body = json.pointer("/response/body").unwrap_or(&Json::Null);
    let status = json.pointer("/response/status_code").and_then(Json::as_u64);
    let reply = match (status, error) {
        (Some(200), None) => reply::read(body),
        (Some(status), _) if !(200..300).contains(&status) => {
            let status = u16::try_from(status).unwrap_or_default();
            Err(failed(Failure::of(status, body, &body.to_string())))
        }
        (_, Some(error)) => {
            let text = |field: &str| error.get(field).and_then(Json::as_str).unwrap_or_default();
            let message = format!("{}: {}", text("code"), text("message"));
            // Never begun, so never billed.
            Err(ModelError::Passing { message, wait: None, in_doubt: false })
        }
        _ => return None,
    };
    Some((id, reply))
}

fn is_loopback(url: &str) -> bool {
    let host = url.split("://").nth(1).unwrap_or_default();
    ["127.", "localhost", "[::1]"].iter().any(|h| host.starts_with(h))
}
