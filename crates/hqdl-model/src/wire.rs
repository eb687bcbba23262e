//! One HTTP exchange without retries: reads a body up to a limit, and converts a failure to an
//! error with its status and the pause that the endpoint requests.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value as Json;

use super::ModelError;
use super::rate_headers::parse_retry_after;

/// Maximum number of characters shown from an error body.
const MAX_SHOWN_CHARS: usize = 400;
/// Placeholder for the model and its URL, which [`super::transport::Transport::sanitize_error`]
/// fills in.
pub(super) const UNNAMED_ENDPOINT: &str = "the endpoint";
/// Maximum number of bytes read from an error body.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Maximum size of a reply in bytes, streamed or not: a hundred times the size of an answer with
/// 16,000 tokens.
pub(super) const MAX_REPLY_BYTES: usize = 16 << 20;
/// Maximum size of an embeddings reply in bytes: a batch of the longest vectors.
pub(super) const MAX_EMBEDDINGS_BYTES: usize = 64 << 20;

/// Error codes with which endpoints reject a request's content.
const FILTER_CODES: [&str; 8] = [
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",
    "data_inspection_failed",
    "moderation_blocked",
    "bio_policy",
    "misalignment_policy_violation",
    "image_content_policy_violation",
];
/// Phrases in content rejections by endpoints without such a code.
const FILTER_PHRASES: [&str; 3] =
    ["content management policy", "your input was flagged", "your prompt was flagged"];
/// Codes and phrases with which endpoints report that a prompt exceeds the model's context.
const TOO_LONG_PHRASES: [&str; 7] = [
    "context_length_exceeded",
    "maximum context length",
    "exceed_context_size",
    "context size",
    "context window",
    "prompt is too long",
    "input is too long",
];

/// Reads a response body.
///
/// # Errors
/// [`ModelError::Unfinished`] if the body has more than `max_bytes` bytes.
pub(super) async fn read_body(
    mut response: Response,
    max_bytes: usize,
) -> Result<Vec<u8>, ModelError> {
    let content_length = response.content_length().unwrap_or(0);
    if content_length > max_bytes as u64 {
        return Err(too_large_error(max_bytes));
    }
    let mut body = Vec::with_capacity(content_length as usize);
    while let Some(chunk) = response.chunk().await.map_err(|e| to_exchange_error(&e))? {
        if body.len() + chunk.len() > max_bytes {
            return Err(too_large_error(max_bytes));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Returns the error for a reply larger than `max_bytes` bytes.
pub(super) fn too_large_error(max_bytes: usize) -> ModelError {
    ModelError::Unfinished(format!(
        "the endpoint sent a reply larger than hqdl's limit of {} MiB",
        max_bytes >> 20
    ))
}

#[derive(Debug)]
pub(super) struct ErrorResponse {
    status: u16,
    message: String,
    codes: Vec<String>,
    wait: Option<Duration>,
}

impl ErrorResponse {
    /// Reads an error response.
    pub(super) async fn from_response(mut response: Response) -> Self {
        let status = response.status().as_u16();
        let wait = parse_retry_after(response.headers());
        if let Some(location) = find_redirect_location(&response) {
            let message = format!(
                "the endpoint redirects to {location}, and hqdl does not follow redirects: if you \
                 trust that address, set `base_url` to it"
            );
            return Self { status, message, codes: Vec::new(), wait };
        }
        let mut body = Vec::new();
        while body.len() < MAX_ERROR_BYTES
            && let Ok(Some(chunk)) = response.chunk().await
        {
            body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR_BYTES - body.len())]);
        }
        let body = String::from_utf8_lossy(&body);
        let json: Json = serde_json::from_str(&body).unwrap_or(Json::Null);
        Self { wait, ..Self::from_body(status, &json, &body) }
    }

    /// Parses the body of an error response.
    pub(super) fn from_body(status: u16, json: &Json, body: &str) -> Self {
        // Gemini's errors are lists of one element.
        let json = json.get(0).unwrap_or(json);
        let text = |pointer: &str| json.pointer(pointer).and_then(Json::as_str).map(str::to_owned);
        let message =
            text("/error/message").or_else(|| text("/error")).or_else(|| text("/message"));
        // FastAPI's errors contain a list of details, each with the path of a field.
        let message = message.or_else(|| text("/detail")).or_else(|| {
            let path = json.pointer("/detail/0/loc")?.as_array()?;
            let field = path.iter().filter_map(Json::as_str).next_back()?;
            Some(format!("{}: {}", field, text("/detail/0/msg")?))
        });
        let mut message = message.map_or_else(|| describe_error_body(body), |m| shorten_text(&m));
        if let Some(param) = text("/error/param").filter(|p| !message.contains(&**p)) {
            message = format!("{message} ({param})");
        }
        let codes = ["/error/code", "/error/type", "/error/innererror/code", "/code"];
        Self { status, message, codes: codes.into_iter().filter_map(text).collect(), wait: None }
    }
}

/// Returns the target of a redirect without its query, which may contain secrets.
fn find_redirect_location(response: &Response) -> Option<String> {
    if !response.status().is_redirection() {
        return None;
    }
    let location = response.headers().get(reqwest::header::LOCATION)?;
    let location = String::from_utf8_lossy(location.as_bytes());
    Some(shorten_text(location.split(['?', '#']).next().unwrap_or_default()))
}

/// Converts an error response to a [`ModelError`].
pub(super) fn to_model_error(failure: ErrorResponse) -> ModelError {
    let ErrorResponse { status, message, codes, wait } = failure;
    let codes: Vec<String> = codes.iter().map(|c| c.to_lowercase()).collect();
    let lower = message.to_lowercase();
    let has_code = |words: &[&str]| words.iter().any(|w| codes.iter().any(|c| c == w));
    let is_filtered = has_code(&FILTER_CODES) || FILTER_PHRASES.iter().any(|w| lower.contains(w));
    let is_too_long =
        TOO_LONG_PHRASES.iter().any(|w| lower.contains(w) || codes.iter().any(|c| c.contains(w)));
    match status {
        400..=499 if status != 429 && is_filtered => ModelError::Filtered(message),
        400 | 413 if is_too_long || status == 413 => ModelError::TooLong(message),
        // Waiting does not restore an exhausted quota.
        429 if has_code(&["insufficient_quota"]) => refused_error(status, message),
        408 | 409 | 425 | 429 | 500..=599 => ModelError::Temporary {
            message: format!("the endpoint answers {status}: {message}"),
            wait,
            in_doubt: false,
        },
        _ => refused_error(status, message),
    }
}

/// Returns the error for a rejected request. `Transport::sanitize_error` names the endpoint.
pub(super) fn refused_error(status: u16, message: String) -> ModelError {
    ModelError::Refused { endpoint: UNNAMED_ENDPOINT.to_owned(), status, message }
}

/// Returns the error contained in a reply with a success status; `None` if there is none. Such a
/// request may have been billed.
pub(super) fn find_reply_error(json: &Json) -> Option<ModelError> {
    let error = json.get("error").filter(|e| !e.is_null())?;
    let failure = ErrorResponse::from_body(400, json, &error.to_string());
    let message = format!("the endpoint replied with an error: {}", failure.message);
    Some(match to_model_error(failure) {
        same @ (ModelError::Filtered(_) | ModelError::TooLong(_)) => same,
        _ => ModelError::Temporary { message, wait: None, in_doubt: true },
    })
}

/// Converts a failed exchange to an error. If the request was sent, it may have been billed.
pub(super) fn to_exchange_error(error: &reqwest::Error) -> ModelError {
    if error.is_builder() {
        return refused_error(0, format_error_chain(error));
    }
    match to_connection_error(error) {
        Some(ModelError::NoConnection { message, .. }) => {
            ModelError::Temporary { message, wait: None, in_doubt: false }
        }
        _ => ModelError::Temporary {
            message: describe_broken_exchange(error),
            wait: None,
            in_doubt: true,
        },
    }
}

/// Describes why an exchange failed after the connection was established.
fn describe_broken_exchange(error: &reqwest::Error) -> String {
    let chain = format_error_chain(error);
    if error.is_timeout() {
        "the endpoint does not answer in time".to_owned()
    } else if chain.contains("end of file before message length")
        || chain.contains("unexpected EOF")
    {
        "the endpoint closed the connection in the middle of its reply".to_owned()
    } else if chain.contains("(SendRequest)") {
        "the endpoint closed the connection without a reply".to_owned()
    } else {
        // The outermost message contains only the URL.
        let source = std::error::Error::source(error);
        let cause = source.map_or(chain, format_error_chain);
        format!("the connection to the endpoint broke: {cause}")
    }
}

/// Like [`to_exchange_error`], but for a chat request: if it times out, a smaller request may
/// succeed.
pub(super) fn to_chat_error(error: &reqwest::Error) -> ModelError {
    if error.is_timeout() && !error.is_connect() {
        return ModelError::Unfinished("the endpoint does not answer in time".to_owned());
    }
    to_connection_error(error).unwrap_or_else(|| to_exchange_error(error))
}

/// Start of the message for a connection that fails in the TLS handshake.
pub(super) const NO_TLS: &str = "no TLS connection";

/// Converts a connection failure to an error; `None` if the connection was established.
fn to_connection_error(error: &reqwest::Error) -> Option<ModelError> {
    if !error.is_connect() {
        return None;
    }
    let target = error.url().map_or_else(String::new, |url| {
        let port = url.port().map_or_else(String::new, |p| format!(":{p}"));
        format!(" to {}{port}", url.host_str().unwrap_or_default())
    });
    if let Some(tls) = find_cause::<rustls::Error>(error) {
        let (why, hint) = describe_tls_failure(tls);
        let message = format!("{NO_TLS}{target}: {why}");
        return Some(ModelError::NoConnection { message, hint, is_permanent: true });
    }
    let is_refused = find_cause::<std::io::Error>(error)
        .is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused);
    let chain = format_error_chain(error);
    // hyper has no public error type for a failed name lookup.
    let is_unresolved = chain.contains("failed to lookup address");
    let why = if is_refused {
        "connection refused"
    } else if is_unresolved {
        "the host name cannot be resolved"
    } else if error.is_timeout() {
        "timed out"
    } else {
        // The outer message repeats the URL, so omit it.
        chain.split_once("(Connect): ").map_or(&*chain, |(_, why)| why)
    };
    let proxy = find_proxy(error);
    let message = match &proxy {
        Some((variable, address)) if is_refused => {
            format!("no connection to the proxy {address} ({variable}): {why}")
        }
        _ => format!("no connection{target}: {why}"),
    };
    let hint = if is_unresolved {
        "check the spelling of `base_url` and that this machine is online".to_owned()
    } else if let Some((variable, _)) = proxy {
        format!("check that the proxy in {variable} and the endpoint of `base_url` are running")
    } else {
        "check that the endpoint of `base_url` is running".to_owned()
    };
    // A refused connection on this machine means that the server is not running, so do not retry.
    let lasting = is_refused && error.url().is_some_and(super::providers::is_loopback);
    Some(ModelError::NoConnection { message, hint, is_permanent: lasting })
}

/// Returns the environment variable that sets the proxy for requests to another machine, and the
/// proxy's host and port.
fn find_proxy(error: &reqwest::Error) -> Option<(&'static str, String)> {
    let url = error.url().filter(|url| !super::providers::is_loopback(url))?;
    let variables = match url.scheme() {
        "https" => ["HTTPS_PROXY", "https_proxy"],
        _ => ["HTTP_PROXY", "http_proxy"],
    };
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(|v| (name, v));
    let (name, value) = variables.into_iter().find_map(set)?;
    let address = value.split_once("://").map_or(&*value, |(_, address)| address);
    let address = address.rsplit('@').next().unwrap_or_default().trim_end_matches('/');
    Some((name, address.to_owned()))
}

/// Returns the description of a TLS failure and advice for the user.
fn describe_tls_failure(error: &rustls::Error) -> (String, String) {
    use rustls::{CertificateError, Error};
    let is_untrusted = match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        // A self-signed certificate that claims to be a certificate authority.
        Error::InvalidCertificate(CertificateError::Other(why)) => {
            why.to_string().contains("CaUsedAsEndEntity")
        }
        _ => false,
    };
    match error {
        _ if is_untrusted => (
            "this system does not trust the authority that signed its certificate".to_owned(),
            "add the authority (or the certificate) to the system's certificates, or name a file that contains it in SSL_CERT_FILE"
                .to_owned(),
        ),
        Error::InvalidMessage(_) => (
            "the server does not use TLS".to_owned(),
            "write http:// instead of https:// in `base_url` (--base-url)".to_owned(),
        ),
        other => (other.to_string(), "check the endpoint's certificate and `base_url`".to_owned()),
    }
}

/// Returns the first error of type `E` in the chain of causes.
fn find_cause<'e, E: std::error::Error + 'static>(
    error: &'e (dyn std::error::Error + 'static),
) -> Option<&'e E> {
    let mut next = Some(error);
    while let Some(error) = next {
        // An I/O error does not report the error that it wraps as its source.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let found = error.downcast_ref().or_else(|| inner.and_then(|e| find_cause(e)));
        if found.is_some() {
            return found;
        }
        next = error.source();
    }
    None
}

/// Returns an error's message with all its causes. reqwest's own message contains only the URL.
fn format_error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

pub(super) fn not_json_error(body: &[u8]) -> ModelError {
    let body = String::from_utf8_lossy(body);
    let message = if body.trim().is_empty() {
        "the endpoint sent an empty reply".to_owned()
    } else if serde_json::from_str::<Json>(&body).is_err_and(|e| e.is_eof()) {
        format!("the endpoint sent a reply that ends too early: {}", shorten_text(&body))
    } else {
        format!("the endpoint sent a reply that is not JSON: {}", describe_body(&body))
    };
    ModelError::Temporary { message, wait: None, in_doubt: true }
}

/// Describes an error response whose body has no JSON message.
fn describe_error_body(body: &str) -> String {
    if is_web_page(body) {
        return format!("it sent {}", describe_body(body));
    }
    match body.trim() {
        "" => "it sent no message".to_owned(),
        _ => shorten_text(body),
    }
}

fn is_web_page(body: &str) -> bool {
    let start = body.trim_start().to_ascii_lowercase();
    ["<!doctype html", "<html"].iter().any(|tag| start.starts_with(tag))
}

/// Returns the beginning of a body, or the title if the body is a web page.
fn describe_body(body: &str) -> String {
    if !is_web_page(body) {
        return shorten_text(body);
    }
    let lower = body.to_ascii_lowercase();
    let title = lower.find("<title>").map(|at| at + "<title>".len());
    let title = title.zip(lower.find("</title>")).and_then(|(start, end)| body.get(start..end));
    title.map_or_else(
        || "a web page".to_owned(),
        |title| format!("a web page, \"{}\"", shorten_text(title)),
    )
}

/// Returns the beginning of a text, on one line.
pub(super) fn shorten_text(text: &str) -> String {
    let mut end = text.len().min(8 * MAX_SHOWN_CHARS);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line: String = text[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_SHOWN_CHARS).collect()
}
