//! HTTP requests to an endpoint, independent of its protocol: URLs, headers and the API key.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value as Json;

use super::providers::{self, ProviderProfile};
use super::wire::{self, ErrorResponse, shorten_text, to_exchange_error, to_model_error};
use super::{MAX_ATTEMPTS, ModelError, SetupError, retry_with_backoff};
use hqdl_database::tls;
use hqdl_spec::ModelSettings;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time without data, before the first byte or between two chunks.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout for a file transfer, long enough for 200 MB on a slow connection.
pub(super) const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// URL of an endpoint, and the profile of its provider.
pub(super) type ResolvedUrl = (Url, &'static ProviderProfile);

/// Connections to an endpoint.
pub(super) struct Transport {
    http: reqwest::Client,
    /// Headers sent with every request.
    headers: HeaderMap,
    /// Base URL as the user wrote it.
    pub(super) base_url: String,
    url: Url,
    pub(super) profile: &'static ProviderProfile,
    pub(super) key: EndpointKey,
    /// Model and URL, for messages.
    endpoint_name: String,
}

impl Transport {
    /// Prepares connections to the configured endpoint. `api` contains the protocol's headers, and
    /// the name of the key's header unless the key is a bearer token.
    pub(super) fn new(
        settings: &ModelSettings,
        key: EndpointKey,
        api: (&[(&'static str, &'static str)], Option<&'static str>),
        (url, profile): ResolvedUrl,
    ) -> Result<Self, SetupError> {
        let http = create_client()?;
        let headers = build_request_headers(api, profile, &key)?;
        let base_url = base_url(settings).to_owned();
        let shown_url = hqdl_values::format::hide_secrets(&base_url);
        let endpoint_name = format!("{} at {shown_url}", settings.name);
        Ok(Self { http, headers, base_url, url, profile, key, endpoint_name })
    }

    /// Replaces "the endpoint" at the beginning of one of hqdl's own messages with the endpoint's
    /// name.
    fn insert_endpoint_name(&self, message: &mut String) {
        for own_words in ["", "the connection to "] {
            if let Some(rest) =
                message.strip_prefix(own_words).and_then(|m| m.strip_prefix(wire::UNNAMED_ENDPOINT))
            {
                *message = format!("{own_words}{}{rest}", self.endpoint_name);
                return;
            }
        }
    }

    /// Returns the URL of a path below the base URL.
    pub(super) fn build_url(&self, path: &str) -> Url {
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

    pub(super) fn new_request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.build_url(path)).headers(self.headers.clone())
    }

    pub(super) async fn send_http(&self, request: RequestBuilder) -> Result<Response, ModelError> {
        let sent = async {
            let response = request.send().await.map_err(|e| to_exchange_error(&e))?;
            if response.status().is_success() {
                return Ok(response);
            }
            Err(to_model_error(ErrorResponse::from_response(response).await))
        };
        sent.await.map_err(|e| self.sanitize_error(e))
    }

    pub(super) async fn fetch_json(&self, request: RequestBuilder) -> Result<Json, ModelError> {
        let body = wire::read_body(self.send_http(request).await?, wire::MAX_REPLY_BYTES).await?;
        serde_json::from_slice(&body).map_err(|_| wire::not_json_error(&body))
    }

    /// Returns the JSON document at a path, with retries.
    pub(super) async fn get_json(&self, path: &str) -> Result<Json, ModelError> {
        retry_with_backoff(MAX_ATTEMPTS, || self.fetch_json(self.new_request(Method::GET, path)))
            .await
    }

    /// Downloads a path to a file, with retries.
    pub(super) async fn download_path(&self, path: &str, to: &Path) -> Result<(), ModelError> {
        let io_error = |e: std::io::Error| file_error(to, &e);
        retry_with_backoff(MAX_ATTEMPTS, || async {
            let request = self.new_request(Method::GET, path).timeout(TRANSFER_TIMEOUT);
            let mut response = self.send_http(request).await?;
            let mut out = std::fs::File::create(to).map_err(io_error)?;
            while let Some(chunk) = response.chunk().await.map_err(|e| to_exchange_error(&e))? {
                out.write_all(&chunk).map_err(io_error)?;
            }
            Ok(())
        })
        .await
    }

    /// Adds the model and the endpoint to an error and removes the API key from it. Some endpoints
    /// repeat the key in their errors, and messages are shown and stored.
    pub(super) fn sanitize_error(&self, mut error: ModelError) -> ModelError {
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
        match &mut error {
            ModelError::Refused { endpoint, .. } => self.insert_endpoint_name(endpoint),
            ModelError::Temporary { message, .. }
            | ModelError::Unfinished(message)
            | ModelError::NoAnswer(message) => self.insert_endpoint_name(message),
            _ => {}
        }
        error
    }
}

/// Returns an HTTP client that follows no redirects.
pub(super) fn create_client() -> Result<reqwest::Client, SetupError> {
    // The first endpoint in the process installs the provider; later calls fail, which is harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut tls = tls::system_config().map_err(|e| SetupError::Client(e.to_string()))?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // Send prompts and keys to the configured endpoint only.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .user_agent(concat!("hqdl/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| SetupError::Client(e.to_string()))
}

/// Returns the error for a local file that cannot be read or written.
pub(super) fn file_error(path: &Path, error: &std::io::Error) -> ModelError {
    ModelError::NoAnswer(format!(
        "{}: {}",
        path.display(),
        hqdl_values::format::describe_io_error(error)
    ))
}

/// Returns the error for a reply that does not match its request.
pub(super) fn unexpected_reply_error(what: &str, json: &Json) -> ModelError {
    let message = format!(
        "the endpoint sent a reply that is not {what}: {}",
        shorten_text(&json.to_string())
    );
    ModelError::Temporary { message, wait: None, in_doubt: true }
}

/// The API key for an endpoint, and the environment variable that contains it.
#[derive(Default)]
pub(super) struct EndpointKey {
    secret: Option<SecretString>,
    variable: Option<String>,
}

impl EndpointKey {
    /// Reads the API key from the environment.
    pub(super) fn from_settings(
        settings: &ModelSettings,
        (url, profile): &ResolvedUrl,
    ) -> Result<Self, SetupError> {
        let of_provider = profile.key_variable.map(str::to_owned);
        let Some(variable) = settings.api_key_env.clone().or(of_provider) else {
            return Ok(Self::default());
        };
        let secret = match std::env::var(&variable) {
            Ok(key) if !key.trim().is_empty() => Some(SecretString::from(key.trim().to_owned())),
            // A server on this machine rarely requires a key.
            _ if providers::is_loopback(url) => None,
            _ => return Err(SetupError::NoKey(variable)),
        };
        Ok(Self { secret, variable: Some(variable) })
    }

    /// Returns the key, or an empty string if there is none.
    pub(super) fn secret_text(&self) -> &str {
        self.secret.as_ref().map_or("", |key| key.expose_secret())
    }

    /// Describes which key was sent, for messages.
    pub(super) fn describe(&self) -> String {
        match (&self.variable, &self.secret) {
            (Some(variable), Some(_)) => format!("hqdl sent the key in {variable}"),
            (Some(variable), None) => format!("hqdl sent no key, because {variable} is not set"),
            (None, _) => {
                "hqdl sent no key, because neither --api-key-env nor `api_key_env` names one"
                    .to_owned()
            }
        }
    }
}

fn build_request_headers(
    (api_headers, api_key_header): (&[(&'static str, &'static str)], Option<&'static str>),
    profile: &ProviderProfile,
    key: &EndpointKey,
) -> Result<HeaderMap, SetupError> {
    let mut headers = HeaderMap::new();
    for (header, value) in api_headers {
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
        let (header, text) = match profile.key_header.or(api_key_header) {
            Some(header) => (HeaderName::from_static(header), key.secret_text().to_owned()),
            None => (reqwest::header::AUTHORIZATION, format!("Bearer {}", key.secret_text())),
        };
        let mut value = HeaderValue::from_str(&text).map_err(invalid_key)?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

pub(super) fn base_url(settings: &ModelSettings) -> &str {
    let default = settings.provider.default_base_url();
    settings.base_url.as_deref().unwrap_or(default).trim_end_matches('/')
}
