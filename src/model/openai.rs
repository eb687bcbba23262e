//! Any OpenAI-compatible endpoint: `OpenAI`, Azure, vLLM, Ollama, llama.cpp.
//!
//! async-openai speaks the API; one tower service of ours sits below it and
//! keeps what it would lose: the status of failures whose body is no `OpenAI`
//! error, and how long the endpoint asks to wait. Its own retry is not in play;
//! [`super::Errand`] retries outside.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_openai::config::{Config, OpenAIConfig};
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value as Json, json};
use tracing::debug;

use super::limits::{Need, PerMinute, retry_after};
use super::{Admitting, Asking, Model, ModelError, Reply, SetupError, Tokens, tls};
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
/// Most of an error's body that is shown.
const SHOWN: usize = 400;

/// An OpenAI-compatible endpoint and the model asked there.
pub struct Endpoint {
    client: async_openai::Client<OpenAIConfig>,
    /// For what is no chat: files and batches.
    pub(super) http: reqwest::Client,
    pub(super) base: String,
    pub(super) throttle: Arc<Throttle>,
    model: String,
    temperature: Option<f64>,
    max_output_name: &'static str,
    /// The endpoint has said that it does not take `response_format`.
    no_schema: AtomicBool,
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
        let client = async_openai::Client::with_config(config)
            .with_http_service(Wire { http: http.clone(), throttle: Arc::clone(&throttle) });
        Ok(Self {
            client,
            http,
            base: base.to_owned(),
            throttle,
            model: settings.name.clone(),
            temperature: settings.temperature,
            // OpenAI's newer models take the new name alone, other servers the old.
            max_output_name: if base == OPENAI { "max_completion_tokens" } else { "max_tokens" },
            no_schema: false.into(),
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
        let message = format!("the endpoint does not take response_format: {message}");
        ModelError::Passing { message, wait: Some(Duration::ZERO), in_doubt: false }
    }

    /// Endpoints say keys back in their errors; messages are shown and kept.
    pub(super) fn without_key(&self, mut error: ModelError) -> ModelError {
        let key = self.key.expose_secret();
        if let ModelError::Refused { message, .. }
        | ModelError::Passing { message, .. }
        | ModelError::TooLong(message)
        | ModelError::NoAnswer(message) = &mut error
            && key != NO_KEY
        {
            *message = message.replace(key, "(the key)");
        }
        error
    }

    /// The headers that every request carries.
    pub(super) fn headers(&self) -> reqwest::header::HeaderMap {
        self.client.config().headers()
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
            let reply: Result<Json, OpenAIError> =
                self.client.chat().create_byot(self.body(prompt)).await;
            let reply =
                reply.map_err(error).and_then(|json| read(&json)).map_err(|e| self.without_key(e));
            let reply = reply.map_err(|e| self.without_schema(prompt, e));
            if let Err(ModelError::Passing { wait: Some(wait), .. }) = &reply {
                self.throttle.pause(*wait);
            }
            reply
        })
    }
}

/// Tokens that a prompt is admitted for: what it takes, and likely an answer of a
/// quarter of its bound.
fn need(prompt: &Prompt) -> Need {
    let Prompt { input_tokens: input, max_output, .. } = prompt;
    Need { likely: input + max_output / 4, most: input + max_output }
}

/// Reads a chat completion.
///
/// # Errors
/// [`ModelError::Passing`] when it is none.
pub fn read(json: &Json) -> Result<Reply, ModelError> {
    let choice = json.pointer("/choices/0").ok_or_else(|| ModelError::Passing {
        message: format!(
            "the endpoint's reply is no chat completion: {}",
            shown(&json.to_string())
        ),
        wait: None,
        in_doubt: true,
    })?;
    let text = |pointer: &str| choice.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
    let refusal = text("/message/refusal");
    let finish = text("/finish_reason");
    let content = text("/message/content");
    let number = |pointer: &str| json.pointer(pointer).and_then(Json::as_u64);
    let tokens = number("/usage/prompt_tokens").map(|input| Tokens {
        input,
        cached_input: number("/usage/prompt_tokens_details/cached_tokens").unwrap_or(0),
        output: number("/usage/completion_tokens").unwrap_or(0),
    });
    Ok(Reply {
        content: if content.is_empty() { refusal } else { content }.to_owned(),
        truncated: finish == "length",
        partial: false,
        refused: !refusal.is_empty() || finish == "content_filter",
        tokens,
    })
}

/// What the endpoint answered instead of a completion.
#[derive(Debug, thiserror::Error)]
#[error("{status}: {message}")]
pub(super) struct Failure {
    status: u16,
    message: String,
    code: String,
    wait: Option<Duration>,
}

/// The wire: one HTTP request, no retry. A failure keeps its status and what
/// the endpoint says of waiting.
#[derive(Clone)]
struct Wire {
    http: reqwest::Client,
    throttle: Arc<Throttle>,
}

impl tower::Service<HttpRequestFactory> for Wire {
    type Response = reqwest::Response;
    type Error = OpenAIError;
    type Future = Pin<Box<dyn Future<Output = Result<reqwest::Response, OpenAIError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OpenAIError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, factory: HttpRequestFactory) -> Self::Future {
        let http = self.http.clone();
        let throttle = Arc::clone(&self.throttle);
        Box::pin(async move {
            let request = factory.build().await?;
            let response = http.execute(request).await.map_err(OpenAIError::Reqwest)?;
            // Headers that say how fast to go; never the request's own.
            debug!(
                status = response.status().as_u16(),
                retry_after = ?retry_after(response.headers()),
                "the endpoint answers"
            );
            throttle.observe(response.headers());
            if response.status().is_success() {
                return Ok(response);
            }
            Err(OpenAIError::Boxed(Box::new(Failure::read(response).await)))
        })
    }
}

impl Failure {
    /// Reads a response that is no success.
    pub(super) async fn read(response: reqwest::Response) -> Self {
        let status = response.status().as_u16();
        let wait = retry_after(response.headers());
        let body = response.text().await.unwrap_or_default();
        let json: Json = serde_json::from_str(&body).unwrap_or(Json::Null);
        Self { wait, ..Self::of(status, &json, &body) }
    }

    /// Reads the body of a response that is no success.
    fn of(status: u16, json: &Json, body: &str) -> Self {
        let text = |pointer: &str| json.pointer(pointer).and_then(Json::as_str).map(str::to_owned);
        let message =
            text("/error/message").or_else(|| text("/error")).or_else(|| text("/message"));
        let message = message.unwrap_or_else(|| shown(body));
        let code = text("/error/code").or_else(|| text("/error/type")).unwrap_or_default();
        Self { status, message, code, wait: None }
    }
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
        (Some(200), None) => read(body),
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

pub(super) fn error(error: OpenAIError) -> ModelError {
    // Sent and not answered: it may have been billed.
    let passing = |message: String| ModelError::Passing { message, wait: None, in_doubt: true };
    match error {
        OpenAIError::Boxed(inner) => match inner.downcast::<Failure>() {
            Ok(failure) => failed(*failure),
            Err(other) => match other.downcast::<OpenAIError>() {
                Ok(nested) => self::error(*nested),
                Err(other) => passing(other.to_string()),
            },
        },
        OpenAIError::Reqwest(e) if e.is_builder() => {
            ModelError::Refused { status: 0, message: chain(&e) }
        }
        OpenAIError::Reqwest(e) if e.is_connect() => {
            ModelError::Passing { message: chain(&e), wait: None, in_doubt: false }
        }
        OpenAIError::Reqwest(e) => passing(chain(&e)),
        OpenAIError::JSONDeserialize(_, content) => {
            passing(format!("the endpoint's reply is not JSON: {}", shown(&content)))
        }
        other => passing(other.to_string()),
    }
}

pub(super) fn failed(failure: Failure) -> ModelError {
    let Failure { status, message, code, wait } = failure;
    let too_long = code == "context_length_exceeded" || message.contains("maximum context length");
    match status {
        400 | 413 if too_long || status == 413 => ModelError::TooLong(message),
        // Money that has run out does not come back by waiting.
        429 if code == "insufficient_quota" => ModelError::Refused { status, message },
        408 | 409 | 425 | 429 | 500..=599 => ModelError::Passing {
            message: format!("the endpoint answers {status}: {message}"),
            wait,
            in_doubt: false,
        },
        _ => ModelError::Refused { status, message },
    }
}

/// An error with what caused it: reqwest's own text names only the URL.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

pub(super) fn shown(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(SHOWN).collect()
}

fn is_loopback(url: &str) -> bool {
    let host = url.split("://").nth(1).unwrap_or_default();
    ["127.", "localhost", "[::1]"].iter().any(|h| host.starts_with(h))
}
