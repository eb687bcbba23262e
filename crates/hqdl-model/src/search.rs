//! A web search as a [`Model`]: its prompt is one query, and its answer is the list of results. So
//! searches use the same claims, budgets, retries and provenance as other requests.

use std::fmt::Write as _;
use std::sync::Arc;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::transport::create_client;
use super::wire::{self, ErrorResponse};
use super::{Model, ModelChoice, ModelError, Reply, ReplyFuture, SetupError, Tokens};
use hqdl_prompt::{Prompt, Question};
use hqdl_spec::evidence::SearchSettings;
use hqdl_spec::{Format, ModelParameters, PriceTable, Reuse};

/// Maximum number of results stored per search.
const MAX_RESULTS: usize = 10;
/// Maximum number of characters in a result's text, title or URL.
const MAX_CHARS: usize = 4_000;

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchResult {
    /// Title of the page.
    pub title: String,
    /// Text of the page, or a part of it.
    pub text: String,
    /// URL of the page.
    pub url: String,
}

/// Host that answers web searches.
pub struct SearchEndpoint {
    http: reqwest::Client,
    settings: SearchSettings,
    key: Option<SecretString>,
    name: String,
}

impl SearchEndpoint {
    /// Creates the endpoint, with the API key from the environment.
    ///
    /// # Errors
    /// [`SetupError`] if the key is missing.
    pub fn new(settings: &SearchSettings) -> Result<Self, SetupError> {
        let read = |variable: &String| match std::env::var(variable) {
            Ok(key) if !key.trim().is_empty() => Ok(SecretString::from(key.trim().to_owned())),
            _ => Err(SetupError::NoSearchKey(variable.clone())),
        };
        Ok(Self {
            http: create_client()?,
            key: settings.api_key_env.as_ref().map(read).transpose()?,
            name: search_host(settings),
            settings: settings.clone(),
        })
    }

    /// Returns the URL that requests the results for a query.
    fn build_query_url(&self, query: &str) -> Result<Url, ModelError> {
        let key = self.key.as_ref().map_or("", |key| key.expose_secret());
        let url = &self.settings.url;
        // Replace the query last, so that `{key}` in a row remains plain text.
        let url =
            url.replace("{key}", &percent_encode(key)).replace("{query}", &percent_encode(query));
        Url::parse(&url).map_err(|_| ModelError::NoAnswer("`search` is not a URL".to_owned()))
    }

    async fn search(&self, query: &str) -> Result<Vec<SearchResult>, ModelError> {
        let mut request =
            self.http.get(self.build_query_url(query)?).header("accept", "application/json");
        if let Some(key) = self.key.as_ref().filter(|_| !self.settings.url.contains("{key}")) {
            let (header, text) = match &self.settings.key_header {
                Some(header) => (HeaderName::try_from(header), key.expose_secret().to_owned()),
                None => (Ok(AUTHORIZATION), format!("Bearer {}", key.expose_secret())),
            };
            let (Ok(header), Ok(mut value)) = (header, HeaderValue::from_str(&text)) else {
                let message = "the search's key is not a valid header: check `api_key_env`";
                return Err(ModelError::NoAnswer(message.to_owned()));
            };
            value.set_sensitive(true);
            request = request.header(header, value);
        }
        let sent = request.send().await;
        let response = sent.map_err(|e| wire::to_exchange_error(&e.without_url()))?;
        if !response.status().is_success() {
            return Err(wire::to_model_error(ErrorResponse::from_response(response).await));
        }
        let body = wire::read_body(response, wire::MAX_REPLY_BYTES).await?;
        let reply = serde_json::from_slice(&body).map_err(|_| wire::not_json_error(&body))?;
        self.parse_results(&reply)
    }

    fn parse_results(&self, reply: &Json) -> Result<Vec<SearchResult>, ModelError> {
        let [results, title, text, url] = &self.settings.pointers;
        let Some(results) = reply.pointer(results).and_then(Json::as_array) else {
            let message = format!(
                "the reply of the {} has no list at {results:?}: correct `results` in [expansion.evidence]",
                self.name
            );
            return Err(ModelError::NoAnswer(message));
        };
        let read = |result: &Json, pointer: &str| -> String {
            let text = result.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
            text.chars().take(MAX_CHARS).collect()
        };
        let parse = |result: &Json| SearchResult {
            title: read(result, title),
            text: read(result, text),
            url: read(result, url),
        };
        let with_text = results.iter().map(parse).filter(|result| !result.text.trim().is_empty());
        Ok(with_text.take(MAX_RESULTS).collect())
    }

    /// Adds the host and the search field to an error, and removes the key, which some hosts repeat
    /// in their errors.
    fn sanitize_error(&self, error: ModelError) -> ModelError {
        let mut error = self.without_key(error);
        let search = format!("the {}", self.name.replacen("search ", "search at ", 1));
        match &mut error {
            ModelError::Refused { endpoint, message, .. } => {
                *endpoint = search;
                *message = message.replace("`base_url`", "`search`");
                *message = message.replace(wire::UNNAMED_ENDPOINT, "it");
            }
            ModelError::Temporary { message, .. }
            | ModelError::Unfinished(message)
            | ModelError::NoAnswer(message) => {
                if let Some(rest) = message.strip_prefix(wire::UNNAMED_ENDPOINT) {
                    *message = format!("{search}{rest}");
                } else if let Some(rest) = message.strip_prefix("no connection: ") {
                    *message = format!("no connection to {search}: {rest}");
                }
            }
            ModelError::NoConnection { message, hint, .. } => {
                *message = message.replacen("connection:", &format!("connection to {search}:"), 1);
                *hint = hint
                    .replace("endpoint of `base_url`", "host of `search` in [expansion.evidence]");
                *hint = hint.replace("`base_url`", "`search` in [expansion.evidence]");
            }
            _ => {}
        }
        error
    }

    /// Removes the key from an error.
    fn without_key(&self, mut error: ModelError) -> ModelError {
        if let (
            Some(key),
            ModelError::Refused { message, .. }
            | ModelError::Temporary { message, .. }
            | ModelError::TooLong(message)
            | ModelError::Filtered(message)
            | ModelError::Unfinished(message)
            | ModelError::NoAnswer(message),
        ) = (&self.key, &mut error)
        {
            let key = key.expose_secret();
            *message = message.replace(key, "(the key)").replace(&percent_encode(key), "(the key)");
        }
        error
    }
}

impl Model for SearchEndpoint {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_billed(&self) -> bool {
        true
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(async move {
            let question = Question::parse(&prompt.system, &prompt.user);
            let query = question.as_ref().and_then(|q| q.rows.first()?.key.first()?.as_str());
            let Some(query) = query else {
                return Err(ModelError::NoAnswer("the query cannot be read".to_owned()));
            };
            let results = self.search(query).await.map_err(|error| self.sanitize_error(error))?;
            let answer = serde_json::to_string(&results).unwrap_or_default();
            // A search is billed like one output token.
            let tokens = Some(Tokens { output: 1, ..Tokens::default() });
            Ok(Reply {
                content: json!({ "answer": answer }).to_string(),
                tokens,
                ..Reply::default()
            })
        })
    }
}

/// Returns the model choice for searches about the rows of [`SearchSettings::to_expansion`].
/// Without an endpoint, answers can only be looked up.
#[must_use]
pub fn build_search_choice(
    settings: &SearchSettings,
    endpoint: Option<Arc<SearchEndpoint>>,
) -> ModelChoice {
    let name = search_host(settings);
    ModelChoice {
        model: None,
        tokenizer: name.clone(),
        name,
        endpoint: endpoint.map(|endpoint| endpoint as Arc<dyn Model>),
        reuse: Reuse::SameModel,
        price: Some(PriceTable { output: settings.price_usd * 1e6, ..PriceTable::default() }),
        is_free: false,
        lacks_audio_price: false,
        max_output: 1,
        extra_input: 0,
        parameters: ModelParameters::new(),
        format: Format::Json,
        rows: 1,
        logprob_columns: Vec::new(),
    }
}

/// Returns the name of the host, under which the results are stored.
fn search_host(settings: &SearchSettings) -> String {
    let host = settings.url.split("://").nth(1).unwrap_or_default();
    format!("search {}", host.split(['/', '?', '#']).next().unwrap_or_default())
}

/// Percent-encodes a text so that it can be used in any part of a URL.
fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
