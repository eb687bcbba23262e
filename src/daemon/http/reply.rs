//! Builds error responses, with the same message and hint as on the command line and an HTTP
//! status.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use crate::failure::{BUDGET, Failure, INTERRUPTED, REFUSED};
use crate::format::{format_name_list, parse_json_object};

/// Maximum size of a request's body, in bytes.
const MAX_BODY: usize = 1 << 20;
/// Time limit for reading a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// An error response.
#[derive(Debug)]
pub(super) struct HttpError {
    pub(super) status: StatusCode,
    pub(super) failure: Failure,
}

impl HttpError {
    pub(super) fn new(status: StatusCode, message: String, hint: &str) -> Self {
        Self { status, failure: Failure::wrong_input(message, hint) }
    }

    /// Returns the response for a bad request.
    pub(super) fn bad_request(message: impl Into<String>, hint: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message.into(), hint)
    }

    /// Returns the response for a busy server.
    pub(super) fn server_busy(why: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why.to_owned(), "retry in a second")
    }
}

impl From<Failure> for HttpError {
    fn from(failure: Failure) -> Self {
        let status = match failure.exit_code() {
            BUDGET => StatusCode::PAYMENT_REQUIRED,
            REFUSED => StatusCode::BAD_GATEWAY,
            INTERRUPTED => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self { status, failure }
    }
}

/// Returns the error object of a response body and of the last line of rows.
pub(super) fn error_to_json(failure: &Failure) -> Json {
    let mut json = failure.clone().with_request_fields().to_json();
    if let Some(object) = json.as_object_mut() {
        object.shift_remove("event");
        if let Failure::Problems(_) = failure {
            object.insert("message".to_owned(), failure.message().into());
            object.insert("hint".to_owned(), failure.clone().with_request_fields().hint().into());
        }
    }
    json
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let body = json!({ "error": error_to_json(&self.failure) });
        let mut response = (self.status, axum::Json(body)).into_response();
        let mut set =
            |name, value| response.headers_mut().insert(name, HeaderValue::from_static(value));
        match self.status {
            StatusCode::UNAUTHORIZED => set(header::WWW_AUTHENTICATE, "Basic realm=\"hqdl\""),
            StatusCode::SERVICE_UNAVAILABLE => {
                // Free the connection for other clients.
                set(header::CONNECTION, "close");
                set(header::RETRY_AFTER, "1")
            }
            _ => None,
        };
        response
    }
}

/// Returns the response for an unknown path.
pub(super) fn reject_route(uri: &Uri) -> HttpError {
    HttpError::new(
        StatusCode::NOT_FOUND,
        format!("there is no {}", uri.path()),
        "/v1/openapi.json lists the paths",
    )
}

/// Returns the response for an unsupported method.
pub(super) async fn reject_method(method: axum::http::Method, uri: Uri) -> HttpError {
    HttpError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} does not support {method}", uri.path()),
        "/v1/openapi.json lists the methods",
    )
}

pub(in crate::daemon) fn unknown_spec_failure<'a>(
    name: &str,
    all: impl Iterator<Item = &'a String>,
) -> Failure {
    let all: Vec<&str> = all.map(String::as_str).collect();
    let hint = if all.is_empty() {
        "the daemon has no spec: put one into the directory that it watches".to_owned()
    } else {
        format_name_list("spec", all)
    };
    Failure::wrong_input(format!("no spec `{name}`"), hint)
}

/// Reads a body, within the size and time limits.
pub(super) async fn read_bytes(body: Body) -> Result<axum::body::Bytes, HttpError> {
    let too_large = || {
        HttpError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is longer than {MAX_BODY} bytes"),
            "send several smaller requests",
        )
    };
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(HttpError::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time".to_owned(),
            "send the whole body at once",
        )),
    }
}

pub(super) async fn read_json_body<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, HttpError> {
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    // This check also blocks forms of other sites.
    if !content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .eq_ignore_ascii_case("application/json")
    {
        let message = match content_type {
            "" => "the request has no Content-Type".to_owned(),
            _ => format!("the body is of type `{content_type}`"),
        };
        return Err(HttpError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            message,
            "send JSON with `Content-Type: application/json`",
        ));
    }
    let bytes = read_bytes(body).await?;
    parse_json_object(&bytes).map_err(|reason| {
        HttpError::bad_request(format!("the body is invalid: {reason}"), "see /v1/openapi.json")
    })
}
