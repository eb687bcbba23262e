//! Any OpenAI-compatible endpoint: `OpenAI`, Azure, vLLM, Ollama, llama.cpp.
//!
//! Answers are parsed while they stream (`stream.rs`); if an endpoint does not stream, hqdl
//! requests whole answers. Nothing is retried here: that is the task of [`super::RetryingRequest`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_openai::types::chat::{
    ChatCompletionRequestSystemMessage, ChatCompletionRequestUserMessage,
    CreateChatCompletionRequest,
};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value as Json;
use tracing::debug;

use super::limits::{Need, PerMinute, retry_after};
use super::prompt_cache::PrefixGate;
use super::providers::{self, Habits, PromptCaching};
use super::request_form::RequestForm;
use super::usage_check::UsageGate;
use super::wire::{WireFailure, error_of_chat, failed};
use super::{
    Admitting, Model, ModelError, RemainingPause, Reply, ReplyFuture, SetupError, images, reply,
    stream, tls,
};
use hqdl_facts::{Facts, FactsError, Throttle};
use hqdl_prompt::Prompt;
use hqdl_spec::{
    CHAT, LimitScope, ModelParameters, ModelSettings, OPENAI, SERVICE_TIER, parameters_text,
};
use hqdl_values::key::tagged_text;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence before the first byte or between two chunks.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// An OpenAI-compatible endpoint and its model.
pub struct Endpoint {
    pub(super) http: reqwest::Client,
    /// The headers of every request.
    pub(super) headers: HeaderMap,
    /// The base URL as the user gave it.
    pub(super) base: String,
    url: Url,
    habits: &'static Habits,
    pub(super) throttle: Arc<Throttle>,
    model: String,
    temperature: Option<f64>,
    /// Additional fields of the request body.
    parameters: ModelParameters,
    /// Features of requests, without those that the endpoint has rejected.
    form: Mutex<RequestForm>,
    /// Delays requests until the first one has written their prefix to the prompt cache.
    prefixes: PrefixGate,
    memory: Option<EndpointMemory>,
    /// Delays requests until the endpoint has reported plausible usage.
    usage_gate: UsageGate,
    /// Whether the features were loaded from the history and no request has succeeded with them
    /// yet.
    untried: AtomicBool,
    /// Warnings that were not shown to the user yet.
    remarks: Mutex<Vec<String>>,
    /// Whether the endpoint has ever answered.
    reached: AtomicBool,
    key: EndpointKey,
}

/// Storage for facts about an endpoint, which are kept for a day.
struct EndpointMemory {
    facts: Facts,
    /// Hash under which the request features are stored.
    form: String,
    /// Hash under which the proof of plausible usage is stored.
    usage: String,
}

impl Endpoint {
    /// Creates the endpoint of the settings, with rate limits of its own. The API key is read from
    /// the environment and stays in memory that is zeroed on drop.
    ///
    /// # Errors
    /// [`SetupError::NoKey`] if the environment variable of the key is not set: the one that
    /// `api_key_env` names, otherwise the one of the provider. For an unknown provider, no key is
    /// required.
    pub fn new(settings: &ModelSettings, limits: PerMinute) -> Result<Self, SetupError> {
        Self::with_key(settings, EndpointKey::read(settings)?, Throttle::alone(limits))
    }

    /// Creates the endpoint of the settings, with rate limits shared by all users of these facts.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn shared(
        settings: &ModelSettings,
        limits: PerMinute,
        per: LimitScope,
        facts: &Facts,
    ) -> Result<Self, SetupError> {
        let key = EndpointKey::read(settings)?;
        let shared_key = match per {
            LimitScope::Endpoint => "",
            LimitScope::Key => key.text(),
        };
        // The hash identifies endpoint and key without revealing them.
        let parts = [base(settings).to_owned(), shared_key.to_owned()];
        let id = tagged_text("hqdl endpoint v1", &parts);
        let throttle = facts.throttle(&id, &settings.name, limits)?;
        let mut endpoint = Self::with_key(settings, key, throttle)?;
        endpoint.remember(settings, facts)?;
        Ok(endpoint)
    }

    /// Loads the request features that the endpoint has accepted before, and stores later changes.
    /// They apply to the same endpoint, model, temperature and parameters only.
    fn remember(&mut self, settings: &ModelSettings, facts: &Facts) -> Result<(), FactsError> {
        let temperature = settings.temperature.map(|t| t.to_string()).unwrap_or_default();
        let mut parts = vec![self.base.clone(), self.model.clone(), temperature];
        parts.extend(parameters_text(&self.parameters));
        let place = tagged_text("hqdl request form v1", &parts);
        let known = facts.history().request_form(&place)?;
        let form = known.and_then(|text| serde_json::from_str(&text).ok());
        let remembered = |form| RequestForm::remembered(form, self.habits, &self.model);
        if let Some(form) = form.as_ref().and_then(remembered) {
            self.form = form.into();
            self.untried = true.into();
        }
        let usage =
            tagged_text("hqdl plausible usage v1", &[self.base.clone(), self.model.clone()]);
        if facts.history().request_form(&usage)?.is_some() {
            self.usage_gate = UsageGate::proven();
        }
        self.memory = Some(EndpointMemory { facts: facts.clone(), form: place, usage });
        Ok(())
    }

    /// Creates the endpoint for writing requests that the user sends.
    ///
    /// # Errors
    /// [`SetupError::Client`].
    pub fn without_a_key(settings: &ModelSettings) -> Result<Self, SetupError> {
        let throttle = Throttle::alone(PerMinute::default());
        Self::with_key(settings, EndpointKey::default(), throttle)
    }

    fn with_key(
        settings: &ModelSettings,
        key: EndpointKey,
        throttle: Throttle,
    ) -> Result<Self, SetupError> {
        let throttle = Arc::new(throttle);
        // The first endpoint of the process installs the provider; later calls fail, which is
        // harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tls = tls::config().map_err(|e| SetupError::Client(e.to_string()))?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // Send prompts and keys to the configured endpoint only.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .user_agent(concat!("hqdl/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| SetupError::Client(e.to_string()))?;
        let (url, habits) = place(settings)?;
        Ok(Self {
            http,
            headers: headers(habits, &key)?,
            base: base(settings).to_owned(),
            url,
            habits,
            throttle,
            model: settings.name.clone(),
            temperature: settings.temperature,
            parameters: settings.parameters.clone(),
            form: RequestForm::new(habits, &settings.name).into(),
            prefixes: PrefixGate::default(),
            memory: None,
            usage_gate: UsageGate::default(),
            untried: false.into(),
            remarks: Mutex::default(),
            reached: false.into(),
            key,
        })
    }

    /// Returns the URL of a path below the base URL.
    pub(super) fn at(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let batches = path.starts_with("/files") || path.starts_with("/batches");
        let root = batches.then(|| (self.habits.batches)(&url)).flatten();
        let root = root.unwrap_or_else(|| url.path().trim_end_matches('/').to_owned());
        url.set_path(&format!("{root}{path}"));
        if !query.is_empty() {
            let both: Vec<&str> = url.query().into_iter().chain([query]).collect();
            let both = both.join("&");
            url.set_query(Some(&both));
        }
        url
    }

    /// Returns the current request features.
    fn form(&self) -> RequestForm {
        *self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the rejection of a request. If it names a feature, later requests leave that feature
    /// out. Returns the error to report: a retryable one if a retry without the feature may
    /// succeed.
    fn learn(&self, form: RequestForm, error: ModelError) -> ModelError {
        let refused = matches!(&error, ModelError::Refused { status: 400 | 422, .. });
        let Some((next, told)) = form.without_refused(&error) else {
            // The stored features may be outdated, so try all features again, once.
            if refused && self.untried.swap(false, Ordering::Relaxed) {
                *self.form.lock().unwrap_or_else(PoisonError::into_inner) =
                    RequestForm::new(self.habits, &self.model);
                self.keep_in_mind(None);
                return at_once(&error.to_string());
            }
            return error;
        };
        if self.change(form, next) {
            let remark = format!("{told} ({error})");
            self.remarks.lock().unwrap_or_else(PoisonError::into_inner).push(remark);
        }
        at_once(&format!("{told}: {error}"))
    }

    /// Replaces the request features and stores them. Concurrent requests may all be rejected; only
    /// the first one changes the features. Returns whether this call did.
    fn change(&self, form: RequestForm, next: RequestForm) -> bool {
        let first = {
            let mut now = self.form.lock().unwrap_or_else(PoisonError::into_inner);
            let first = *now == form;
            if first {
                *now = next;
            }
            first
        };
        if first {
            self.keep_in_mind(Some(next));
        }
        first
    }

    fn takes_no_images(&self, message: &str) -> ModelError {
        ModelError::NoImages { model: self.model.clone(), message: message.to_owned() }
    }

    /// Stores the request features, or deletes them. If that fails, the next command repeats one
    /// rejected request.
    fn keep_in_mind(&self, form: Option<RequestForm>) {
        let Some(memory) = &self.memory else { return };
        let form = form.map(|form| form.to_json().to_string());
        let history = memory.facts.history();
        if let Err(error) = history.note_request_form(&memory.form, form.as_deref()) {
            debug!(%error, "what the endpoint refused is not remembered");
        }
    }

    /// Learns the request features from the failure of a batch request.
    pub(super) fn learn_from_batch(&self, error: ModelError) -> ModelError {
        self.learn(self.form(), error)
    }

    /// Adds advice for the user to an error: which key was sent, which server may not be running,
    /// which parameter of the spec the endpoint rejects.
    fn explained(&self, error: ModelError) -> ModelError {
        match error {
            ModelError::Refused { status: status @ (400 | 422), message } => {
                let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let named = |name: &&String| message.split(|c| !of_word(c)).any(|w| w == **name);
                let message = match self.parameters.keys().find(named) {
                    Some(name) => {
                        format!("{message} (`{name}` is set in [model.parameters] of the spec)")
                    }
                    None => message,
                };
                ModelError::Refused { status, message }
            }
            ModelError::Refused { status: status @ (401 | 403), message } => {
                let message = format!("{} ({})", message.trim_end_matches('.'), self.key.named());
                ModelError::Refused { status, message }
            }
            ModelError::NoConnection { message, hint, lasting } => {
                let (name, start) = (self.habits.name, self.habits.start);
                let asks = start.map_or(String::new(), |_| format!("; is {name} running?"));
                let hint = start.map_or(hint, |start| format!("if this is {name}, {start}"));
                let lasting = lasting && !self.reached.load(Ordering::Relaxed);
                ModelError::NoConnection { message: format!("{message}{asks}"), hint, lasting }
            }
            other => other,
        }
    }

    /// Removes the API key from an error. Some endpoints repeat the key in their errors, and
    /// messages are shown and stored.
    pub(super) fn without_key(&self, mut error: ModelError) -> ModelError {
        let key = self.key.text();
        if let ModelError::Refused { message, .. }
        | ModelError::Passing { message, .. }
        | ModelError::TooLong(message)
        | ModelError::Filtered(message)
        | ModelError::Unfinished(message)
        | ModelError::NoAnswer(message) = &mut error
            && !key.is_empty()
        {
            *message = message.replace(key, "(the key)");
        }
        error
    }

    /// Returns the body of a chat request of a batch.
    pub(super) fn body(&self, prompt: &Prompt, parameters: &ModelParameters) -> Json {
        let mut body = self.messages(prompt, parameters);
        self.form().write(&mut body, prompt, self.temperature);
        body
    }

    fn messages(&self, prompt: &Prompt, parameters: &ModelParameters) -> Json {
        let request = CreateChatCompletionRequest {
            model: self.model.clone(),
            messages: vec![
                ChatCompletionRequestSystemMessage::from(&*prompt.system).into(),
                ChatCompletionRequestUserMessage::from(prompt.user.as_str()).into(),
            ],
            ..CreateChatCompletionRequest::default()
        };
        // The request contains only texts, which always convert to JSON.
        let mut body = serde_json::to_value(request).unwrap_or_default();
        images::write(&mut body, prompt);
        for (name, value) in parameters {
            body[name] = value.clone();
        }
        body
    }
}

/// The API key of an endpoint, and the environment variable that it comes from.
#[derive(Default)]
struct EndpointKey {
    secret: Option<SecretString>,
    variable: Option<String>,
}

impl EndpointKey {
    /// Reads the API key from the environment.
    fn read(settings: &ModelSettings) -> Result<Self, SetupError> {
        let (url, habits) = place(settings)?;
        let of_provider = habits.key_variable.map(str::to_owned);
        let Some(variable) = settings.api_key_env.clone().or(of_provider) else {
            return Ok(Self::default());
        };
        let secret = match std::env::var(&variable) {
            Ok(key) if !key.trim().is_empty() => Some(SecretString::from(key.trim().to_owned())),
            // A server on this machine rarely requires a key.
            _ if providers::is_loopback(&url) => None,
            _ => return Err(SetupError::NoKey(variable)),
        };
        Ok(Self { secret, variable: Some(variable) })
    }

    /// The key, or an empty string.
    fn text(&self) -> &str {
        self.secret.as_ref().map_or("", |key| key.expose_secret())
    }

    /// Describes which key was sent.
    fn named(&self) -> String {
        match (&self.variable, &self.secret) {
            (Some(variable), Some(_)) => format!("hqdl sent the key in {variable}"),
            (Some(variable), None) => format!("hqdl sent no key, because {variable} is not set"),
            (None, _) => {
                "hqdl sent no key, because the spec names no variable (`api_key_env`)".to_owned()
            }
        }
    }
}

/// Returns the headers of every request.
fn headers(habits: &Habits, key: &EndpointKey) -> Result<HeaderMap, SetupError> {
    let mut headers = HeaderMap::new();
    let unfit = |_| SetupError::UnfitKey(key.variable.clone().unwrap_or_default());
    for (header, variable) in habits.headers {
        let value = std::env::var(variable).ok().filter(|v| !v.is_empty());
        if let Some(value) = value.and_then(|v| HeaderValue::from_str(&v).ok()) {
            headers.insert(HeaderName::from_static(header), value);
        }
    }
    if key.secret.is_some() {
        let (header, text) = match habits.key_header {
            Some(header) => (HeaderName::from_static(header), key.text().to_owned()),
            None => (reqwest::header::AUTHORIZATION, format!("Bearer {}", key.text())),
        };
        let mut value = HeaderValue::from_str(&text).map_err(unfit)?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// Returns the URL of the endpoint and the profile of its provider.
fn place(settings: &ModelSettings) -> Result<(Url, &'static Habits), SetupError> {
    let base = base(settings);
    let mut url = Url::parse(base).map_err(|_| SetupError::NoUrl(base.to_owned()))?;
    // Users often copy the URL of the chat endpoint.
    let path = url.path().trim_end_matches('/').trim_end_matches(CHAT).to_owned();
    url.set_path(&path);
    let habits = providers::of(&url);
    (habits.base)(&mut url);
    Ok((url, habits))
}

/// Returns the base URL of the settings.
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

    fn usage_gate(&self) -> Option<&UsageGate> {
        Some(&self.usage_gate)
    }

    fn note_usage(&self, is_plausible: bool) {
        if !self.usage_gate.note(is_plausible) {
            return;
        }
        let Some(memory) = &self.memory else { return };
        let proof = is_plausible.then_some("{}");
        if let Err(error) = memory.facts.history().note_request_form(&memory.usage, proof) {
            debug!(%error, "whether the endpoint's usage is plausible is not remembered");
        }
    }

    fn remarks(&self) -> Vec<String> {
        std::mem::take(&mut *self.remarks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn admit<'a>(&'a self, prompt: &'a Prompt) -> Admitting<'a> {
        Box::pin(async { Some(self.throttle.admit(need(prompt)).await) })
    }

    fn remaining_pause(&self) -> RemainingPause<'_> {
        Box::pin(self.throttle.remaining_pause())
    }

    fn ask<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move {
            let form = self.form();
            let shows = !prompt.images.is_empty();
            if shows && !form.images {
                return Err(self.takes_no_images("it refused one less than a day ago"));
            }
            let error = match self.chat(prompt, form).await {
                Ok(mut reply) => {
                    self.untried.store(false, Ordering::Relaxed);
                    if self.temperature.is_none() && form.temperature && reply.has_reasoning() {
                        // Reasoning models answer worse at temperature 0.
                        self.change(form, form.without_temperature());
                    }
                    reply.broken = reply.broken.map(|e| Box::new(self.without_key(*e)));
                    reply.check_tier(self.parameters.get(SERVICE_TIER).and_then(Json::as_str));
                    return Ok(reply);
                }
                Err(error) => self.explained(self.without_key(error)),
            };
            if shows && images::is_blind(&error) {
                self.change(form, form.blind());
                return Err(self.takes_no_images(&error.to_string()));
            }
            let error = if shows { images::explained(error) } else { error };
            let error = self.learn(form, error);
            if let ModelError::Passing { wait: Some(wait), .. } = &error {
                self.throttle.pause(*wait);
            }
            Err(error)
        })
    }
}

impl Endpoint {
    async fn chat(&self, prompt: &Prompt, form: RequestForm) -> Result<Reply, ModelError> {
        let mut body = self.messages(prompt, &self.parameters);
        form.write(&mut body, prompt, self.temperature);
        form.write_stream(&mut body);
        let caches = form.caching != PromptCaching::default();
        let mut turn = if caches { self.prefixes.enter(&prompt.system).await } else { None };
        let request = self
            .http
            .post(self.at(CHAT))
            .headers(self.headers.clone())
            .header("content-type", "application/json")
            .body(body.to_string());
        let response = request.send().await.map_err(|e| error_of_chat(&e))?;
        self.reached.store(true, Ordering::Relaxed);
        // Log only the response's rate-limit headers, never the request's headers.
        debug!(
            status = response.status().as_u16(),
            retry_after = ?retry_after(response.headers()),
            "the endpoint answers"
        );
        self.throttle.observe(response.headers());
        if !response.status().is_success() {
            return Err(failed(WireFailure::read(response).await));
        }
        stream::read(response, prompt, &mut turn).await
    }
}

/// Returns an error for an immediate retry of a changed request.
fn at_once(message: &str) -> ModelError {
    let message = message.to_owned();
    ModelError::Passing { message, wait: Some(Duration::ZERO), in_doubt: false }
}

/// Returns the tokens that a permit is acquired for: the input, and likely a quarter of the maximum
/// output.
fn need(prompt: &Prompt) -> Need {
    let Prompt { input_tokens: input, max_output, .. } = prompt;
    Need { likely: input + max_output / 4, most: input + max_output }
}

/// Parses a batch output line: its `custom_id`, and the reply or the error. `None` if the line is
/// not batch output.
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
            Err(failed(WireFailure::of(status, body, &body.to_string())))
        }
        (_, Some(error)) => {
            let text = |field: &str| error.get(field).and_then(Json::as_str).unwrap_or_default();
            let message = format!("{}: {}", text("code"), text("message"));
            // It was never processed, so it was not billed.
            Err(ModelError::Passing { message, wait: None, in_doubt: false })
        }
        _ => return None,
    };
    Some((id, reply))
}
