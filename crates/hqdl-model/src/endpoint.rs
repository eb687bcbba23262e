//! An endpoint of any provider. Its protocol (`protocols`) writes the requests and reads the replies.
//!
//! Answers are parsed while they stream (`stream.rs`); if an endpoint does not stream, hqdl
//! requests whole answers. Nothing is retried here: that is the task of [`super::RetryingRequest`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value as Json;
use tracing::debug;

use super::batch::BatchApi;
use super::limits::{Need, PerMinute};
use super::prompt_cache::PrefixGate;
use super::protocols::{self, Protocol, RequestParts};
use super::providers::{self, PromptCaching, ProviderProfile};
use super::rate_headers::retry_after;
use super::request_features::RequestFeatures;
use super::usage_check::UsageGate;
use super::wire::{ErrorResponse, chat_error, failure_to_error};
use super::{
    Model, ModelError, PauseFuture, PermitFuture, Reply, ReplyFuture, SetupError, images, stream,
    tls,
};
use hqdl_facts::{Facts, FactsError, Throttle};
use hqdl_prompt::Prompt;
use hqdl_spec::{
    LimitScope, ModelParameters, ModelSettings, Provider, SERVICE_TIER, format_parameters,
};
use hqdl_values::key::tagged_hash;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence before the first byte or between two chunks.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// An endpoint and its model.
pub struct Endpoint {
    pub(super) http: reqwest::Client,
    /// The headers of every request.
    pub(super) headers: HeaderMap,
    /// The base URL as the user gave it.
    pub(super) base_url: String,
    url: Url,
    pub(super) protocol: &'static dyn Protocol,
    profile: &'static ProviderProfile,
    pub(super) throttle: Arc<Throttle>,
    model: String,
    temperature: Option<f64>,
    /// Additional fields of the request body.
    parameters: ModelParameters,
    /// Features of requests, without those that the endpoint has rejected.
    features: Mutex<RequestFeatures>,
    /// Delays requests until the first one has written their prefix to the prompt cache.
    prefixes: PrefixGate,
    memory: Option<EndpointMemory>,
    /// Delays requests until the endpoint has reported plausible usage.
    usage_gate: UsageGate,
    /// Whether the features were loaded from the history and no request has succeeded with them
    /// yet.
    features_untested: AtomicBool,
    /// Warnings that were not shown to the user yet.
    warnings: Mutex<Vec<String>>,
    /// Whether the endpoint has ever answered.
    has_answered: AtomicBool,
    key: EndpointKey,
}

/// Storage for facts about an endpoint, which are kept for a day.
struct EndpointMemory {
    facts: Facts,
    /// Hash under which the request features are stored.
    features_hash: String,
    /// Hash under which the proof of plausible usage is stored.
    usage_hash: String,
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
        Self::with_key(
            settings,
            EndpointKey::from_settings(settings)?,
            Throttle::standalone(limits),
        )
    }

    /// Creates the endpoint of the settings, with rate limits shared by all users of these facts.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn with_shared_limits(
        settings: &ModelSettings,
        limits: PerMinute,
        per: LimitScope,
        facts: &Facts,
    ) -> Result<Self, SetupError> {
        let key = EndpointKey::from_settings(settings)?;
        let shared_key = match per {
            LimitScope::Endpoint => "",
            LimitScope::Key => key.secret_text(),
        };
        // The hash identifies endpoint and key without revealing them.
        let parts = [base_url(settings).to_owned(), shared_key.to_owned()];
        let id = tagged_hash("hqdl endpoint v1", &parts);
        let throttle = facts.throttle(&id, &settings.name, limits)?;
        let mut endpoint = Self::with_key(settings, key, throttle)?;
        endpoint.load_features(settings, facts)?;
        Ok(endpoint)
    }

    /// Loads the request features that the endpoint has accepted before, and stores later changes.
    /// They apply to the same endpoint, model, temperature and parameters only.
    fn load_features(&mut self, settings: &ModelSettings, facts: &Facts) -> Result<(), FactsError> {
        let temperature = settings.temperature.map(|t| t.to_string()).unwrap_or_default();
        let mut parts = vec![self.base_url.clone(), self.model.clone(), temperature];
        parts.extend(format_parameters(&self.parameters));
        let provider = self.protocol.provider();
        if provider != Provider::Openai {
            parts.push(format!("provider {}", provider.name()));
        }
        let features_hash = tagged_hash("hqdl request form v1", &parts);
        let stored = facts.history().endpoint_features(&features_hash)?;
        let features = stored.and_then(|text| serde_json::from_str(&text).ok());
        let initial = self.protocol.initial_features(self.profile, &self.model);
        let parse_features = |features| RequestFeatures::from_json(features, initial);
        if let Some(features) = features.as_ref().and_then(parse_features) {
            self.features = features.into();
            self.features_untested = true.into();
        }
        let usage_hash =
            tagged_hash("hqdl plausible usage v1", &[self.base_url.clone(), self.model.clone()]);
        if facts.history().endpoint_features(&usage_hash)?.is_some() {
            self.usage_gate = UsageGate::new_proven();
        }
        self.memory = Some(EndpointMemory { facts: facts.clone(), features_hash, usage_hash });
        Ok(())
    }

    /// Creates the endpoint for writing requests that the user sends.
    ///
    /// # Errors
    /// [`SetupError::Client`].
    pub fn without_a_key(settings: &ModelSettings) -> Result<Self, SetupError> {
        let throttle = Throttle::standalone(PerMinute::default());
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
        let tls = tls::client_config().map_err(|e| SetupError::Client(e.to_string()))?;
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
        let (url, protocol, profile) = resolve_endpoint(settings)?;
        Ok(Self {
            http,
            headers: request_headers(protocol, profile, &key)?,
            base_url: base_url(settings).to_owned(),
            url,
            protocol,
            profile,
            throttle,
            model: settings.name.clone(),
            temperature: settings.temperature,
            parameters: settings.parameters.clone(),
            features: protocol.initial_features(profile, &settings.name).into(),
            prefixes: PrefixGate::default(),
            memory: None,
            usage_gate: UsageGate::default(),
            features_untested: false.into(),
            warnings: Mutex::default(),
            has_answered: false.into(),
            key,
        })
    }

    /// Returns the URL of a path below the base URL.
    pub(super) fn url_of(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let batches = path.starts_with("/files") || path.starts_with("/batches");
        let root = batches.then(|| (self.profile.batch_path)(&url)).flatten();
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
    fn current_features(&self) -> RequestFeatures {
        *self.features.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the rejection of a request. If it names a feature, later requests leave that feature
    /// out. Returns the error to report: a retryable one if a retry without the feature may
    /// succeed.
    fn learn_from_error(&self, features: RequestFeatures, error: ModelError) -> ModelError {
        let is_rejected = matches!(&error, ModelError::Refused { status: 400 | 422, .. });
        let Some((next, warning)) = features.without_rejected(self.protocol, &error) else {
            // The stored features may be outdated, so try all features again, once.
            if is_rejected && self.features_untested.swap(false, Ordering::Relaxed) {
                *self.features.lock().unwrap_or_else(PoisonError::into_inner) =
                    self.protocol.initial_features(self.profile, &self.model);
                self.store_features(None);
                return immediate_retry(&error.to_string());
            }
            return error;
        };
        if self.change_features(features, next) {
            let message_with_error = format!("{warning} ({error})");
            self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(message_with_error);
        }
        immediate_retry(&format!("{warning}: {error}"))
    }

    /// Replaces the request features and stores them. Concurrent requests may all be rejected; only
    /// the first one changes the features. Returns whether this call did.
    fn change_features(&self, features: RequestFeatures, next: RequestFeatures) -> bool {
        let is_first = {
            let mut current = self.features.lock().unwrap_or_else(PoisonError::into_inner);
            let is_first = *current == features;
            if is_first {
                *current = next;
            }
            is_first
        };
        if is_first {
            self.store_features(Some(next));
        }
        is_first
    }

    fn no_images_error(&self, message: &str) -> ModelError {
        ModelError::NoImages { model: self.model.clone(), message: message.to_owned() }
    }

    /// Stores the request features, or deletes them. If that fails, the next command repeats one
    /// rejected request.
    fn store_features(&self, features: Option<RequestFeatures>) {
        let Some(memory) = &self.memory else { return };
        let features = features.map(|form| form.to_json().to_string());
        let history = memory.facts.history();
        if let Err(error) =
            history.store_endpoint_features(&memory.features_hash, features.as_deref())
        {
            debug!(%error, "what the endpoint refused is not remembered");
        }
    }

    /// Learns the request features from the failure of a batch request.
    pub(super) fn learn_from_batch(&self, error: ModelError) -> ModelError {
        self.learn_from_error(self.current_features(), self.without_key(error))
    }

    /// Adds advice for the user to an error: which key was sent, which server may not be running,
    /// which parameter of the spec the endpoint rejects.
    fn add_advice(&self, error: ModelError) -> ModelError {
        match error {
            ModelError::Refused { status: status @ (400 | 422), message } => {
                let is_word_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let is_named =
                    |name: &&String| message.split(|c| !is_word_char(c)).any(|w| w == **name);
                let message = match self.parameters.keys().find(is_named) {
                    Some(name) => {
                        format!("{message} (`{name}` is set in [model.parameters] of the spec)")
                    }
                    None => message,
                };
                ModelError::Refused { status, message }
            }
            ModelError::Refused { status: status @ (401 | 403), message } => {
                let message =
                    format!("{} ({})", message.trim_end_matches('.'), self.key.describe());
                ModelError::Refused { status, message }
            }
            ModelError::NoConnection { message, hint, is_permanent } => {
                let (name, start_hint) = (self.profile.name, self.profile.start_hint);
                let question =
                    start_hint.map_or(String::new(), |_| format!("; is {name} running?"));
                let hint = start_hint.map_or(hint, |start| format!("if this is {name}, {start}"));
                let is_permanent = is_permanent && !self.has_answered.load(Ordering::Relaxed);
                ModelError::NoConnection {
                    message: format!("{message}{question}"),
                    hint,
                    is_permanent,
                }
            }
            other => other,
        }
    }

    /// Removes the API key from an error. Some endpoints repeat the key in their errors, and
    /// messages are shown and stored.
    pub(super) fn without_key(&self, mut error: ModelError) -> ModelError {
        let key = self.key.secret_text();
        if let ModelError::Refused { message, .. }
        | ModelError::Temporary { message, .. }
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

    /// Returns the body of a request of a batch.
    pub(super) fn batch_body(&self, prompt: &Prompt, parameters: &ModelParameters) -> Json {
        self.request_body(prompt, parameters, self.current_features(), false)
    }

    fn request_body(
        &self,
        prompt: &Prompt,
        parameters: &ModelParameters,
        features: RequestFeatures,
        is_streamed: bool,
    ) -> Json {
        let temperature = self.temperature;
        let model = &self.model;
        let parts = RequestParts { model, prompt, parameters, features, temperature, is_streamed };
        self.protocol.request_body(&parts)
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
    fn from_settings(settings: &ModelSettings) -> Result<Self, SetupError> {
        let (url, _, profile) = resolve_endpoint(settings)?;
        let of_provider = profile.key_variable.map(str::to_owned);
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
    fn secret_text(&self) -> &str {
        self.secret.as_ref().map_or("", |key| key.expose_secret())
    }

    /// Describes which key was sent.
    fn describe(&self) -> String {
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
fn request_headers(
    protocol: &dyn Protocol,
    profile: &ProviderProfile,
    key: &EndpointKey,
) -> Result<HeaderMap, SetupError> {
    let mut headers = HeaderMap::new();
    for (header, value) in protocol.headers() {
        headers.insert(HeaderName::from_static(header), HeaderValue::from_static(value));
    }
    let invalid_key = |_| SetupError::UnfitKey(key.variable.clone().unwrap_or_default());
    for (header, variable) in profile.headers {
        let value = std::env::var(variable).ok().filter(|v| !v.is_empty());
        if let Some(value) = value.and_then(|v| HeaderValue::from_str(&v).ok()) {
            headers.insert(HeaderName::from_static(header), value);
        }
    }
    if key.secret.is_some() {
        let (header, text) = match profile.key_header.or(protocol.key_header()) {
            Some(header) => (HeaderName::from_static(header), key.secret_text().to_owned()),
            None => (reqwest::header::AUTHORIZATION, format!("Bearer {}", key.secret_text())),
        };
        let mut value = HeaderValue::from_str(&text).map_err(invalid_key)?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// Returns the URL of the endpoint, its protocol and the profile of its provider.
fn resolve_endpoint(
    settings: &ModelSettings,
) -> Result<(Url, &'static dyn Protocol, &'static ProviderProfile), SetupError> {
    let (provider, base_url) = settings.provider.resolve_url(settings.base_url.as_deref());
    let mut url = Url::parse(&base_url).map_err(|_| SetupError::NoUrl(base_url))?;
    let profile = providers::profile_of(&url);
    (profile.prepare_url)(&mut url);
    Ok((url, protocols::protocol_of(provider), profile))
}

/// Returns the base URL of the settings.
fn base_url(settings: &ModelSettings) -> &str {
    let default = settings.provider.default_base_url();
    settings.base_url.as_deref().unwrap_or(default).trim_end_matches('/')
}

impl Model for Endpoint {
    fn name(&self) -> &str {
        &self.model
    }

    fn batch_api(&self) -> Option<Box<dyn BatchApi + '_>> {
        Some(self.protocol.batch_api(self))
    }

    fn is_billed(&self) -> bool {
        true
    }

    fn usage_gate(&self) -> Option<&UsageGate> {
        Some(&self.usage_gate)
    }

    fn record_usage(&self, is_plausible: bool) {
        if !self.usage_gate.record_report(is_plausible) {
            return;
        }
        let Some(memory) = &self.memory else { return };
        let proof = is_plausible.then_some("{}");
        if let Err(error) =
            memory.facts.history().store_endpoint_features(&memory.usage_hash, proof)
        {
            debug!(%error, "whether the endpoint's usage is plausible is not remembered");
        }
    }

    fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn acquire_permit<'a>(&'a self, prompt: &'a Prompt) -> PermitFuture<'a> {
        Box::pin(async { Some(self.throttle.acquire_permit(permit_need(prompt)).await) })
    }

    fn remaining_pause(&self) -> PauseFuture<'_> {
        Box::pin(self.throttle.remaining_pause())
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move {
            let features = self.current_features();
            let has_images = !prompt.images.is_empty();
            if has_images && !features.images {
                return Err(self.no_images_error("it refused one less than a day ago"));
            }
            let error = match self.send_chat(prompt, features).await {
                Ok(mut reply) => {
                    self.features_untested.store(false, Ordering::Relaxed);
                    if self.temperature.is_none() && features.temperature && reply.has_reasoning() {
                        // Reasoning models answer worse at temperature 0.
                        self.change_features(features, features.without_temperature());
                    }
                    reply.broken = reply.broken.map(|e| Box::new(self.without_key(*e)));
                    reply.check_tier(self.parameters.get(SERVICE_TIER).and_then(Json::as_str));
                    return Ok(reply);
                }
                Err(error) => self.add_advice(self.without_key(error)),
            };
            if has_images && images::is_unsupported_image_error(&error) {
                self.change_features(features, features.without_images());
                return Err(self.no_images_error(&error.to_string()));
            }
            let error = if has_images { images::image_error(error) } else { error };
            let error = self.learn_from_error(features, error);
            if let ModelError::Temporary { wait: Some(wait), .. } = &error {
                self.throttle.pause_for(*wait);
            }
            Err(error)
        })
    }
}

impl Endpoint {
    async fn send_chat(
        &self,
        prompt: &Prompt,
        features: RequestFeatures,
    ) -> Result<Reply, ModelError> {
        let is_streamed = features.stream;
        let body = self.request_body(prompt, &self.parameters, features, is_streamed);
        let uses_cache = features.caching != PromptCaching::default();
        let mut turn =
            if uses_cache { self.prefixes.wait_turn(&prompt.system).await } else { None };
        let request = self
            .http
            .post(self.url_of(self.protocol.provider().request_path()))
            .headers(self.headers.clone())
            .header("content-type", "application/json")
            .body(body.to_string());
        let response = request.send().await.map_err(|e| chat_error(&e))?;
        self.has_answered.store(true, Ordering::Relaxed);
        // Log only the response's rate-limit headers, never the request's headers.
        debug!(
            status = response.status().as_u16(),
            retry_after = ?retry_after(response.headers()),
            "the endpoint answers"
        );
        self.throttle.apply_hint(self.protocol.rate_limits(response.headers()));
        if !response.status().is_success() {
            return Err(failure_to_error(ErrorResponse::from_response(response).await));
        }
        stream::read_reply(self.protocol, response, prompt, &mut turn).await
    }
}

/// Returns an error for an immediate retry of a changed request.
fn immediate_retry(message: &str) -> ModelError {
    let message = message.to_owned();
    ModelError::Temporary { message, wait: Some(Duration::ZERO), in_doubt: false }
}

/// Returns the tokens that a permit is acquired for: the input, and likely a quarter of the maximum
/// output.
fn permit_need(prompt: &Prompt) -> Need {
    let Prompt { input_tokens: input, max_output, .. } = prompt;
    Need { likely: input + max_output / 4, max: input + max_output }
}
