//! An endpoint of any provider. Its protocol (`protocols`) writes the requests and reads the
//! replies.
//!
//! Answers are parsed while they stream (`stream.rs`); if an endpoint does not stream, hqdl
//! requests whole answers. This module retries nothing; [`super::RetryingRequest`] does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Method, Url};
use serde_json::Value as Json;
use tracing::debug;

use super::batch::{BatchApi, BatchClient};
use super::limits::{Need, PerMinute, RateLimitHint};
use super::prompt_cache::PrefixGate;
use super::protocols::{self, Protocol, RequestParts};
use super::providers::PromptCaching;
use super::rate_headers::parse_retry_after;
use super::request_features::RequestFeatures;
use super::transport::{EndpointKey, ResolvedUrl, Transport, base_url};
use super::usage_check::UsageGate;
use super::wire::{ErrorResponse, NO_TLS, to_chat_error, to_model_error};
use super::{
    Model, ModelError, PermitFuture, Reply, ReplyFuture, SetupError, WaitFuture, media, stream,
};
use hqdl_facts::{Facts, FactsError, Throttle};
use hqdl_prompt::Prompt;
use hqdl_spec::media::MediaKind;
use hqdl_spec::{
    LimitScope, ModelParameters, ModelSettings, Provider, SERVICE_TIER, format_parameters,
};
use hqdl_values::key::hash_tagged_parts;

/// An endpoint and its model.
pub struct Endpoint {
    pub(super) transport: Transport,
    protocol: &'static dyn Protocol,
    /// Rate limits; `None` if the endpoint has no API key.
    throttle: Option<Throttle>,
    model: String,
    temperature: Option<f64>,
    /// Additional fields of the request body.
    parameters: ModelParameters,
    /// Features that requests use: all except those that the endpoint has rejected.
    features: Mutex<RequestFeatures>,
    /// Holds back requests until the first one has written their prefix to the prompt cache.
    prefixes: PrefixGate,
    memory: Option<EndpointMemory>,
    /// Holds back requests until the endpoint has reported plausible usage.
    usage_gate: UsageGate,
    /// Whether the features were loaded from the history and no request has succeeded with them
    /// yet.
    features_untested: AtomicBool,
    /// Warnings that have not been shown to the user yet.
    warnings: Mutex<Vec<String>>,
    /// Whether the endpoint has ever answered.
    has_answered: AtomicBool,
}

/// Storage for properties of an endpoint, which hqdl remembers for a day.
struct EndpointMemory {
    facts: Facts,
    /// Hash under which the request features are stored.
    features_hash: String,
    /// Hash under which hqdl records that the endpoint reports plausible usage.
    usage_hash: String,
}

impl Endpoint {
    /// Creates an endpoint from its settings, with rate limits shared by all users of these facts.
    /// The API key is read from the environment and stays in memory that is zeroed on drop.
    ///
    /// # Errors
    /// [`SetupError`] if the API key is missing, if the settings are invalid, or if the stored
    /// limits or features cannot be read.
    pub fn with_shared_limits(
        settings: &ModelSettings,
        limits: PerMinute,
        per: LimitScope,
        facts: &Facts,
    ) -> Result<Self, SetupError> {
        let key = EndpointKey::from_settings(settings, &resolve_url(settings)?)?;
        let shared_key = match per {
            LimitScope::Endpoint => "",
            LimitScope::Key => key.secret_text(),
        };
        // The hash identifies endpoint and key without revealing them.
        let key_hash = hash_tagged_parts("hqdl API key v1", &[key.secret_text().to_owned()]);
        let parts = [base_url(settings).to_owned(), shared_key.to_owned()];
        let id = hash_tagged_parts("hqdl endpoint v1", &parts);
        let throttle = facts.open_throttle(&id, &settings.name, limits)?.with_api_key(&key_hash);
        let mut endpoint = Self::with_key(settings, key, Some(throttle))?;
        endpoint.load_features(settings, facts)?;
        Ok(endpoint)
    }

    /// Loads the request features that the endpoint accepted earlier, and stores later changes.
    /// Stored features apply only to the same endpoint, model, temperature and parameters.
    fn load_features(&mut self, settings: &ModelSettings, facts: &Facts) -> Result<(), FactsError> {
        let temperature = settings.temperature.map(|t| t.to_string()).unwrap_or_default();
        let mut parts = vec![self.transport.base_url.clone(), self.model.clone(), temperature];
        parts.extend(format_parameters(&self.parameters));
        let provider = self.protocol.provider();
        if provider != Provider::Openai {
            parts.push(format!("provider {}", provider.name()));
        }
        let features_hash = hash_tagged_parts("hqdl request form v1", &parts);
        let stored = facts.history().load_endpoint_features(&features_hash)?;
        let features = stored.and_then(|text| serde_json::from_str(&text).ok());
        let initial = self.initial_features();
        let parse_features = |features| RequestFeatures::from_json(features, initial);
        if let Some(features) = features.as_ref().and_then(parse_features) {
            self.features = features.into();
            self.features_untested = true.into();
        }
        let usage_hash = hash_tagged_parts(
            "hqdl plausible usage v1",
            &[self.transport.base_url.clone(), self.model.clone()],
        );
        if facts.history().load_endpoint_features(&usage_hash)?.is_some() {
            self.usage_gate = UsageGate::with_proven_usage();
        }
        self.memory = Some(EndpointMemory { facts: facts.clone(), features_hash, usage_hash });
        Ok(())
    }

    /// Creates an endpoint without an API key and without rate limits, to write requests that the
    /// user will send.
    ///
    /// # Errors
    /// [`SetupError`] if the base URL is invalid or the HTTP client cannot be created.
    pub fn without_key(settings: &ModelSettings) -> Result<Self, SetupError> {
        Self::with_key(settings, EndpointKey::default(), None)
    }

    fn with_key(
        settings: &ModelSettings,
        key: EndpointKey,
        throttle: Option<Throttle>,
    ) -> Result<Self, SetupError> {
        let (provider, _) = settings.provider.resolve_url(settings.base_url.as_deref());
        let protocol = protocols::find_protocol(provider);
        let api = (protocol.headers(), protocol.key_header());
        let transport = Transport::new(settings, key, api, resolve_url(settings)?)?;
        let features = protocol.initial_features(transport.profile, &settings.name);
        Ok(Self {
            transport,
            protocol,
            throttle,
            model: settings.name.clone(),
            temperature: settings.temperature,
            parameters: settings.parameters.clone(),
            features: features.into(),
            prefixes: PrefixGate::default(),
            memory: None,
            usage_gate: UsageGate::default(),
            features_untested: false.into(),
            warnings: Mutex::default(),
            has_answered: false.into(),
        })
    }

    fn initial_features(&self) -> RequestFeatures {
        self.protocol.initial_features(self.transport.profile, &self.model)
    }

    fn current_features(&self) -> RequestFeatures {
        *self.features.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the rejection of a request. If it names a feature, later requests leave that feature
    /// out. Returns the error to report: a retryable one if a retry without the feature may
    /// succeed.
    fn update_features(&self, features: RequestFeatures, error: ModelError) -> ModelError {
        let is_rejected = matches!(&error, ModelError::Refused { status: 400 | 422, .. });
        let Some((next, warning)) =
            features.without_rejected_feature(&error, |form| self.protocol.schema_rejection(form))
        else {
            // The stored features may be outdated, so try all features once again.
            if is_rejected && self.features_untested.swap(false, Ordering::Relaxed) {
                *self.features.lock().unwrap_or_else(PoisonError::into_inner) =
                    self.initial_features();
                self.store_features(None);
                return immediate_retry_error(&error.to_string());
            }
            return error;
        };
        if self.replace_features(features, next) {
            let message_with_error = format!("{warning} ({error})");
            self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(message_with_error);
        }
        immediate_retry_error(&format!("{warning}: {error}"))
    }

    /// Replaces the request features and stores them. Concurrent requests may all be rejected; only
    /// the first one changes the features. Returns true if this call changed them.
    fn replace_features(&self, features: RequestFeatures, next: RequestFeatures) -> bool {
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

    fn no_media_error(&self, kind: &MediaKind, message: String) -> ModelError {
        ModelError::NoMedia { model: self.model.clone(), media: kind.plural, message }
    }

    /// Returns an error if the API or the model accepts no media of a kind in the prompt.
    fn check_media(&self, prompt: &Prompt, features: RequestFeatures) -> Result<(), ModelError> {
        let provider = self.protocol.provider();
        let unsendable =
            media::media_kinds(prompt).find(|kind| !kind.providers.contains(&provider));
        if let Some(kind) = unsendable {
            let message = format!("{} has no such input", self.protocol.api_name());
            return Err(self.no_media_error(kind, message));
        }
        let refused = media::media_kinds(prompt).find(|kind| !features.accepts_media(kind));
        refused.map_or(Ok(()), |kind| {
            let message = "it refused one less than a day ago".to_owned();
            Err(self.no_media_error(kind, message))
        })
    }

    /// Stores the request features, or deletes them if `features` is `None`. If that fails, the
    /// next command repeats one rejected request.
    fn store_features(&self, features: Option<RequestFeatures>) {
        let Some(memory) = &self.memory else { return };
        let features = features.map(|form| form.to_json().to_string());
        let history = memory.facts.history();
        if let Err(error) =
            history.store_endpoint_features(&memory.features_hash, features.as_deref())
        {
            debug!(%error, "cannot store the endpoint's features");
        }
    }

    /// Adds advice for the user to an error: which key was sent, which server may not be running,
    /// which parameter of the spec the endpoint rejects.
    fn add_advice(&self, error: ModelError) -> ModelError {
        match error {
            ModelError::Refused { endpoint, status: status @ (400 | 422), message } => {
                let is_word_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let is_named =
                    |name: &&String| message.split(|c| !is_word_char(c)).any(|w| w == **name);
                let message = match self.parameters.keys().find(is_named) {
                    Some(name) => {
                        format!("{message} (`{name}` is set in [model.parameters] of the spec)")
                    }
                    None => message,
                };
                ModelError::Refused { endpoint, status, message }
            }
            ModelError::Refused { endpoint, status: status @ (401 | 403), message } => {
                let message = format!(
                    "{} ({})",
                    message.trim_end_matches('.'),
                    self.transport.key.describe()
                );
                ModelError::Refused { endpoint, status, message }
            }
            ModelError::NoConnection { message, hint, is_permanent } => {
                let name = self.transport.profile.name;
                // A server that fails in the TLS handshake is running.
                let start_hint =
                    self.transport.profile.start_hint.filter(|_| !message.starts_with(NO_TLS));
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

    fn build_request_body(
        &self,
        prompt: &Prompt,
        parameters: &ModelParameters,
        features: RequestFeatures,
        is_streamed: bool,
    ) -> Json {
        let temperature = self.temperature;
        let model = &self.model;
        let parts = RequestParts { model, prompt, parameters, features, temperature, is_streamed };
        self.protocol.build_request_body(&parts)
    }
}

/// Returns the prepared URL of the endpoint, and the profile of its provider.
fn resolve_url(settings: &ModelSettings) -> Result<ResolvedUrl, SetupError> {
    let (_, base_url) = settings.provider.resolve_url(settings.base_url.as_deref());
    let mut url = Url::parse(&base_url).map_err(|_| SetupError::NoUrl(base_url))?;
    let profile = protocols::find_profile(&url);
    (profile.prepare_url)(&mut url);
    Ok((url, profile))
}

impl BatchClient for Endpoint {
    fn transport(&self) -> &Transport {
        &self.transport
    }

    fn build_batch_request_body(&self, prompt: &Prompt, parameters: &ModelParameters) -> Json {
        self.build_request_body(prompt, parameters, self.current_features(), false)
    }

    fn update_features_from_error(&self, error: ModelError) -> ModelError {
        self.update_features(self.current_features(), self.transport.sanitize_error(error))
    }
}

impl Model for Endpoint {
    fn name(&self) -> &str {
        &self.model
    }

    fn batch_api(&self) -> Option<Box<dyn BatchApi + '_>> {
        self.protocol.batch_api(self)
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
            debug!(%error, "cannot store whether the endpoint's usage is plausible");
        }
    }

    fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn acquire_permit<'a>(&'a self, prompt: &'a Prompt) -> PermitFuture<'a> {
        self.acquire_permit_for(estimate_permit_need(prompt))
    }

    fn remaining_wait(&self) -> WaitFuture<'_> {
        Box::pin(async { self.throttle.as_ref()?.remaining_wait().await })
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move {
            let features = self.current_features();
            self.check_media(prompt, features)?;
            let error = match self.send_chat(prompt, features).await {
                Ok(mut reply) => {
                    self.features_untested.store(false, Ordering::Relaxed);
                    if self.temperature.is_none() && features.temperature && reply.has_reasoning() {
                        // Reasoning models answer worse at temperature 0.
                        self.replace_features(features, features.without_temperature());
                    }
                    reply.broken =
                        reply.broken.map(|e| Box::new(self.transport.sanitize_error(*e)));
                    reply.set_billed_tier(self.parameters.get(SERVICE_TIER).and_then(Json::as_str));
                    return Ok(reply);
                }
                Err(error) => self.add_advice(self.transport.sanitize_error(error)),
            };
            if let Some(kind) = media::find_unsupported_kind(prompt, &error) {
                self.replace_features(features, features.without_media(kind));
                return Err(self.no_media_error(kind, error.to_string()));
            }
            // First, because an error about a feature can also mention media.
            let error = self.update_features(features, error);
            let error = media::to_row_error(prompt, &self.model, error);
            if let ModelError::Temporary { wait: Some(wait), .. } = &error
                && let Some(throttle) = &self.throttle
            {
                throttle.pause_for(*wait);
            }
            Err(error)
        })
    }
}

impl Endpoint {
    /// Waits for a permit for a request.
    pub(super) fn acquire_permit_for(&self, need: Need) -> PermitFuture<'_> {
        Box::pin(async move { Some(self.throttle.as_ref()?.acquire_permit(need).await) })
    }

    /// Applies the rate limits that a response reports.
    pub(super) fn apply_hint(&self, hint: RateLimitHint) {
        if let Some(throttle) = &self.throttle {
            throttle.apply_hint(hint);
        }
    }

    async fn send_chat(
        &self,
        prompt: &Prompt,
        features: RequestFeatures,
    ) -> Result<Reply, ModelError> {
        let is_streamed = features.stream;
        let body = self.build_request_body(prompt, &self.parameters, features, is_streamed);
        let uses_cache = features.caching != PromptCaching::default();
        let mut turn =
            if uses_cache { self.prefixes.wait_for_turn(&prompt.system).await } else { None };
        let request = self
            .transport
            .new_request(Method::POST, self.protocol.provider().request_path())
            .header("content-type", "application/json")
            .body(body.to_string());
        let response = request.send().await.map_err(|e| to_chat_error(&e))?;
        self.has_answered.store(true, Ordering::Relaxed);
        // Log only the response's rate-limit headers, never the request's headers.
        debug!(
            status = response.status().as_u16(),
            retry_after = ?parse_retry_after(response.headers()),
            "the endpoint answers"
        );
        self.apply_hint(self.protocol.parse_rate_limits(response.headers()));
        if !response.status().is_success() {
            return Err(to_model_error(ErrorResponse::from_response(response).await));
        }
        stream::read_reply(self.protocol, response, prompt, &mut turn).await
    }
}

/// Returns a temporary error that makes the caller retry a changed request immediately.
fn immediate_retry_error(message: &str) -> ModelError {
    let message = message.to_owned();
    ModelError::Temporary { message, wait: Some(Duration::ZERO), in_doubt: false }
}

/// Returns the number of tokens that a request needs a permit for. Assumes that the answer uses a
/// quarter of its maximum length.
pub(crate) fn estimate_permit_need(prompt: &Prompt) -> Need {
    let Prompt { input_tokens: input, max_output, .. } = prompt;
    Need { likely: input + max_output / 4, max: input + max_output }
}
