//! The Batch API of an endpoint: uploads a file, creates a batch from it, polls it until it
//! finishes, and downloads its output. Files are streamed in both directions, so a file of 200 MB
//! is never in memory as a whole.

use std::io::{Read, Write};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value as Json, json};

use super::openai::Endpoint;
use super::wire::{self, ErrorResponse, exchange_error, failure_to_error, shorten_text};
use super::{MAX_ATTEMPTS, ModelError, retry_with_backoff};
use hqdl_prompt::Prompt;
use hqdl_spec::ModelParameters;

/// Path of every request of a batch.
const CHAT_PATH: &str = "/v1/chat/completions";
/// Completion window of a batch.
const COMPLETION_WINDOW: &str = "24h";
/// Long enough for a file of 200 MB on a slow connection.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);
/// Size in bytes of the chunks in which a file is read.
const CHUNK_BYTES: usize = 64 << 10;
/// Number of batches per page of the list.
const PAGE_SIZE: usize = 100;
/// Maximum number of pages of a list that are searched.
const MAX_PAGES: usize = 200;
/// Metadata field that marks hqdl's batches.
const METADATA_FIELD: &str = "hqdl";

/// State of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The id of the batch at the endpoint.
    pub id: String,
    /// `validating`, `in_progress`, `finalizing`, `completed`, `failed`,
    /// `expired`, `cancelling` or `cancelled`.
    pub status: String,
    /// The id of the output file, if there is one.
    pub output_file: Option<String>,
    /// The id of the error file, if there is one.
    pub error_file: Option<String>,
    /// Why the batch failed as a whole: code and message of the first error.
    pub error: Option<(String, String)>,
    /// Number of answered requests so far.
    pub completed: u64,
    /// Number of failed requests so far.
    pub failed: u64,
    /// Number of requests in the batch.
    pub total: u64,
}

impl Batch {
    fn from_json(json: &Json) -> Result<Self, ModelError> {
        let text = |pointer: &str| {
            json.pointer(pointer)
                .and_then(Json::as_str)
                .filter(|t| !t.is_empty())
                .map(str::to_owned)
        };
        let number = |pointer: &str| json.pointer(pointer).and_then(Json::as_u64).unwrap_or(0);
        let (Some(id), Some(status)) = (text("/id"), text("/status")) else {
            return Err(unexpected_reply("a batch", json));
        };
        let first = |field: &str| text(&format!("/errors/data/0/{field}"));
        let error = first("message")
            .or_else(|| first("code"))
            .map(|message| (first("code").unwrap_or_default(), message));
        Ok(Self {
            id,
            status,
            output_file: text("/output_file_id"),
            error_file: text("/error_file_id"),
            error,
            completed: number("/request_counts/completed"),
            failed: number("/request_counts/failed"),
            total: number("/request_counts/total"),
        })
    }

    /// Returns whether the batch has finished.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "expired" | "cancelled")
    }
}

impl Endpoint {
    /// The base URL of the endpoint.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Returns a line of a batch's input file.
    #[must_use]
    pub fn batch_line(
        &self,
        custom_id: &str,
        prompt: &Prompt,
        parameters: &ModelParameters,
    ) -> String {
        let line = json!({
            "custom_id": custom_id, "method": "POST", "url": CHAT_PATH, "body": self.request_body(prompt, parameters),
        });
        format!("{line}\n")
    }

    /// Uploads a file and returns its id at the endpoint.
    ///
    /// # Errors
    /// [`ModelError`]; [`ModelError::NoAnswer`] if the file cannot be read.
    pub async fn upload_file(&self, path: &Path, name: &str) -> Result<String, ModelError> {
        retry_with_backoff(MAX_ATTEMPTS, || async {
            let (content_type, body) = FileForm::open(path, name)
                .map_err(|e| ModelError::NoAnswer(format!("{}: {e}", path.display())))?;
            let request = self
                .new_request(Method::POST, "/files")
                .timeout(TRANSFER_TIMEOUT)
                .header("content-type", content_type)
                .header("content-length", body.remaining_bytes)
                .body(reqwest::Body::wrap(body));
            let json = self.fetch_json(request).await?;
            let id = json.get("id").and_then(Json::as_str);
            id.map(str::to_owned).ok_or_else(|| unexpected_reply("a file", &json))
        })
        .await
    }

    /// Returns the id of an uploaded file with this name and size.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn find_upload(&self, name: &str, size: u64) -> Result<Option<String>, ModelError> {
        let json = retry_with_backoff(MAX_ATTEMPTS, || {
            self.fetch_json(self.new_request(Method::GET, "/files?purpose=batch"))
        })
        .await?;
        let found = json.get("data").and_then(Json::as_array).into_iter().flatten().find(|f| {
            f.get("filename").and_then(Json::as_str) == Some(name)
                && f.get("bytes").and_then(Json::as_u64) == Some(size)
        });
        Ok(found.and_then(|f| f.get("id")).and_then(Json::as_str).map(str::to_owned))
    }

    /// Creates a batch, without retries: if the result is unconfirmed, the caller must look for the
    /// batch before it asks again.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn create_batch(&self, file: &str, token: &str) -> Result<Batch, ModelError> {
        let body = json!({
            "input_file_id": file, "endpoint": CHAT_PATH, "completion_window": COMPLETION_WINDOW,
            "metadata": { METADATA_FIELD: token },
        });
        let request = self
            .new_request(Method::POST, "/batches")
            .header("content-type", "application/json")
            .body(body.to_string());
        Batch::from_json(&self.fetch_json(request).await?)
    }

    /// Returns the batch that was created with this token, if it exists.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn find_batch(&self, token: &str) -> Result<Option<Batch>, ModelError> {
        let mut after = String::new();
        for _ in 0..MAX_PAGES {
            let path = format!("/batches?limit={PAGE_SIZE}{after}");
            let page = retry_with_backoff(MAX_ATTEMPTS, || {
                self.fetch_json(self.new_request(Method::GET, &path))
            })
            .await?;
            let batches = page.get("data").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
            let has_token = |b: &&Json| {
                b.pointer(&format!("/metadata/{METADATA_FIELD}")).and_then(Json::as_str)
                    == Some(token)
            };
            if let Some(found) = batches.iter().find(has_token) {
                return Batch::from_json(found).map(Some);
            }
            let last = batches.last().and_then(|b| b.get("id")).and_then(Json::as_str);
            match last.filter(|_| page.get("has_more").and_then(Json::as_bool) == Some(true)) {
                Some(last) => after = format!("&after={last}"),
                None => break,
            }
        }
        Ok(None)
    }

    /// Returns the state of a batch.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn get_batch(&self, id: &str) -> Result<Batch, ModelError> {
        let path = format!("/batches/{id}");
        Batch::from_json(
            &retry_with_backoff(MAX_ATTEMPTS, || {
                self.fetch_json(self.new_request(Method::GET, &path))
            })
            .await?,
        )
    }

    /// Downloads a file.
    ///
    /// # Errors
    /// [`ModelError`]; [`ModelError::NoAnswer`] if `to` cannot be written.
    pub async fn download_file(&self, file: &str, to: &Path) -> Result<(), ModelError> {
        let path = format!("/files/{file}/content");
        let io_error = |e: std::io::Error| ModelError::NoAnswer(format!("{}: {e}", to.display()));
        retry_with_backoff(MAX_ATTEMPTS, || async {
            let request = self.new_request(Method::GET, &path).timeout(TRANSFER_TIMEOUT);
            let mut response = self.send_http(request).await?;
            let mut out = std::fs::File::create(to).map_err(io_error)?;
            while let Some(chunk) = response.chunk().await.map_err(|e| exchange_error(&e))? {
                out.write_all(&chunk).map_err(io_error)?;
            }
            Ok(())
        })
        .await
    }

    /// Deletes a file at the endpoint and ignores errors.
    pub async fn delete_file(&self, file: &str) {
        let _ = self.send_http(self.new_request(Method::DELETE, &format!("/files/{file}"))).await;
    }

    /// Interprets the error of a batch request like that of a live request: if it names an
    /// unsupported feature, later requests leave that out.
    #[must_use]
    pub fn interpret_batch_error(&self, _: &Prompt, error: ModelError) -> ModelError {
        self.learn_from_batch(self.without_key(error))
    }

    fn new_request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url_of(path)).headers(self.headers.clone())
    }

    async fn send_http(&self, request: RequestBuilder) -> Result<Response, ModelError> {
        let sent = async {
            let response = request.send().await.map_err(|e| exchange_error(&e))?;
            if response.status().is_success() {
                return Ok(response);
            }
            Err(failure_to_error(ErrorResponse::from_response(response).await))
        };
        sent.await.map_err(|e| self.without_key(e))
    }

    async fn fetch_json(&self, request: RequestBuilder) -> Result<Json, ModelError> {
        let body = wire::read_body(self.send_http(request).await?, wire::MAX_REPLY_BYTES).await?;
        serde_json::from_slice(&body).map_err(|_| ModelError::Temporary {
            message: format!(
                "the endpoint's reply is not JSON: {}",
                shorten_text(&String::from_utf8_lossy(&body))
            ),
            wait: None,
            in_doubt: true,
        })
    }
}

fn unexpected_reply(what: &str, json: &Json) -> ModelError {
    let message =
        format!("the endpoint's reply is not {what}: {}", shorten_text(&json.to_string()));
    ModelError::Temporary { message, wait: None, in_doubt: true }
}

/// A multipart form with a file, read while it is sent.
struct FileForm {
    head: Option<Bytes>,
    file: std::fs::File,
    tail: Option<Bytes>,
    /// Number of bytes still to be sent.
    remaining_bytes: u64,
}

impl FileForm {
    /// Opens a file. Returns the content type and the form.
    fn open(path: &Path, name: &str) -> std::io::Result<(String, Self)> {
        let file = std::fs::File::open(path)?;
        let size = file.metadata()?.len();
        // The file name contains a hash, so no line of the file can contain the boundary.
        let boundary = format!("hqdl-{}", blake3::hash(name.as_bytes()).to_hex());
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --{boundary}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             content-type: application/jsonl\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        let remaining_bytes = head.len() as u64 + size + tail.len() as u64;
        let form = Self { head: Some(head.into()), file, tail: Some(tail.into()), remaining_bytes };
        Ok((format!("multipart/form-data; boundary={boundary}"), form))
    }

    fn next_chunk(&mut self) -> std::io::Result<Option<Bytes>> {
        if let Some(head) = self.head.take() {
            return Ok(Some(head));
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        let from_json = self.file.read(&mut chunk)?;
        if from_json == 0 {
            return Ok(self.tail.take());
        }
        chunk.truncate(from_json);
        Ok(Some(chunk.into()))
    }
}

impl http_body::Body for FileForm {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let next = self.next_chunk().transpose();
        if let Some(Ok(chunk)) = &next {
            self.remaining_bytes = self.remaining_bytes.saturating_sub(chunk.len() as u64);
        }
        Poll::Ready(next.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none() && self.tail.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining_bytes)
    }
}
