//! The providers' API protocols: building requests, and parsing replies, rate limits and batch
//! results. Each protocol has a file and an entry in [`find_protocol`]; its Batch API may be in a
//! separate `_batches` file.

mod anthropic;
mod anthropic_batches;
mod openai_batches;
mod openai_chat;
mod openai_responses;

use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::Value as Json;

use super::batch::{BatchApi, BatchClient, BatchLine};
use super::limits::RateLimitHint;
use super::providers::{DEFAULT_PROFILE, PROFILES, ProviderProfile};
use super::reply::{Reply, ReplyDraft};
use super::request_features::{RequestFeatures, SchemaForm, SchemaRejection};
use super::{ModelError, rate_headers, wire};
use hqdl_prompt::Prompt;
use hqdl_spec::{ModelParameters, Provider};

/// Returns the protocol of a provider. Recordings contain chat completions.
pub(super) fn find_protocol(provider: Provider) -> &'static dyn Protocol {
    match provider {
        Provider::Openai | Provider::Replay => &openai_chat::OpenAiChat,
        Provider::OpenaiResponses => &openai_responses::OpenAiResponses,
        Provider::Anthropic => &anthropic::Anthropic,
    }
}

/// Returns the profile of the provider that a base URL belongs to.
#[must_use]
pub fn find_profile(base: &Url) -> &'static ProviderProfile {
    let profiles = Provider::ALL.into_iter().filter_map(|p| find_protocol(p).profile());
    let mut profiles = profiles.chain(PROFILES);
    profiles.find(|profile| (profile.matches_url)(base)).unwrap_or(&DEFAULT_PROFILE)
}

/// Parses a line of a batch's results; `None` if it follows no protocol. All protocols are tried,
/// because the results of a file that the user submitted do not name their endpoint.
#[must_use]
pub fn parse_batch_line(line: &Json) -> Option<BatchLine> {
    Provider::ALL.into_iter().find_map(|provider| find_protocol(provider).parse_batch_line(line))
}

/// Parses a chat completion, as recordings contain it.
///
/// # Errors
/// [`ModelError::Temporary`] if the body is not a completion; the endpoint's error if the body
/// contains one.
pub fn parse_completion(json: &Json) -> Result<Reply, ModelError> {
    parse_reply(&openai_chat::OpenAiChat, json)
}

/// Parses a reply that was not streamed.
///
/// # Errors
/// [`ModelError::Temporary`] if the body is not a reply; the endpoint's error if the body contains
/// one.
pub(super) fn parse_reply(protocol: &dyn Protocol, json: &Json) -> Result<Reply, ModelError> {
    if let Some(error) = wire::find_reply_error(json) {
        return Err(error);
    }
    let mut draft = ReplyDraft::default();
    protocol.apply_event(json, &mut draft)?;
    if draft.has_begun {
        return Ok(draft.to_reply());
    }
    let body = wire::shorten_text(&json.to_string());
    let message =
        format!("the endpoint sent a reply that does not follow {}: {body}", protocol.api_name());
    Err(ModelError::Temporary { message, wait: None, in_doubt: true })
}

/// All parts of a request that determine its body.
pub(super) struct RequestParts<'r> {
    pub(super) model: &'r str,
    pub(super) prompt: &'r Prompt,
    /// Additional fields of the body.
    pub(super) parameters: &'r ModelParameters,
    pub(super) features: RequestFeatures,
    pub(super) temperature: Option<f64>,
    /// Whether the reply is streamed.
    pub(super) is_streamed: bool,
}

impl RequestParts<'_> {
    /// Returns the temperature to send, if any.
    pub(super) fn sent_temperature(&self) -> Option<f64> {
        self.temperature.or(self.prompt.temperature).filter(|_| self.features.temperature)
    }

    /// Returns true if the request asks for log-probabilities.
    pub(super) fn asks_for_logprobs(&self) -> bool {
        self.prompt.wants_logprobs && self.features.logprobs
    }

    /// Returns the parts of the message that contain the prompt's media.
    pub(super) fn media_parts(&self, provider: Provider) -> impl Iterator<Item = Json> {
        self.prompt.media.iter().filter_map(move |medium| medium.build_message_part(provider))
    }

    /// Returns the schema to send, unless the endpoint rejects this form of it.
    pub(super) fn sent_schema(&self, form: SchemaForm) -> Option<&Json> {
        self.prompt.schema.as_deref().filter(|_| self.features.schema == form)
    }
}

/// The API of a provider.
pub(super) trait Protocol: Send + Sync {
    /// Returns the provider that has this API.
    fn provider(&self) -> Provider;

    /// Returns the API's name for use in messages.
    fn api_name(&self) -> &'static str;

    /// Returns the profile of the API's own endpoint, unless `providers` has one.
    fn profile(&self) -> Option<&'static ProviderProfile> {
        None
    }

    /// Returns the header of the API key, unless the provider has its own; `None` for a bearer
    /// token.
    fn key_header(&self) -> Option<&'static str> {
        None
    }

    /// Returns the constant headers of every request.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Returns the features of requests to a model, until the endpoint rejects one.
    fn initial_features(&self, profile: &ProviderProfile, model: &str) -> RequestFeatures;

    /// Returns how to recognize that an endpoint rejects a form of the schema, and the form to try
    /// next.
    fn schema_rejection(&self, form: SchemaForm) -> SchemaRejection;

    /// Returns the maximum number of input tokens that the endpoint adds to a request by itself.
    fn extra_input_tokens(&self) -> u64 {
        0
    }

    fn build_request_body(&self, request: &RequestParts<'_>) -> Json;

    /// Adds an event of a stream, or a whole reply, to a draft. Returns whether it is the last one.
    ///
    /// # Errors
    /// Fails with the endpoint's error if the event reports one.
    fn apply_event(&self, event: &Json, draft: &mut ReplyDraft) -> Result<bool, ModelError>;

    /// Returns the rate limits that a response reports.
    fn parse_rate_limits(&self, headers: &HeaderMap) -> RateLimitHint {
        rate_headers::parse_openai_limits(headers)
    }

    /// Parses a line of a batch's results; `None` if it does not follow this protocol.
    fn parse_batch_line(&self, _line: &Json) -> Option<BatchLine> {
        None
    }

    /// Returns the Batch API of an endpoint, if the protocol has one.
    fn batch_api<'e>(&self, _client: &'e dyn BatchClient) -> Option<Box<dyn BatchApi + 'e>> {
        None
    }
}
