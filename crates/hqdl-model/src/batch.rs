//! The Batch API of an endpoint: files go up, a batch is made of one, looked at
//! until it ends, and its output comes down. A file of 200 MB never stands in
//! memory, in either direction.

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
use super::wire::{self, WireFailure, error, failed, shown};
use super::{ModelError, TRIES, persistently};
use hqdl_prompt::Prompt;
use hqdl_spec::ModelParameters;

/// Where every request of a batch goes.
const PATH: &str = "/v1/chat/completions";
/// How long a batch may take.
const WINDOW: &str = "24h";
/// A file of 200 MB on a slow line.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);
/// Bytes of a file that are read at a time.
const PIECE: usize = 64 << 10;
/// Batches that a page of the list has.
const PAGE: usize = 100;
/// Pages of a list that are looked through at most.
const PAGES: usize = 200;
/// The name of our mark in a batch's metadata.
const MARK: &str = "hqdl";

/// How a batch stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Its id at the endpoint.
    pub id: String,
    /// `validating`, `in_progress`, `finalizing`, `completed`, `failed`,
    /// `expired`, `cancelling` or `cancelled`.
    pub status: String,
    /// The file of what was answered, when there is one.
    pub output_file: Option<String>,
    /// The file of what was not, when there is one.
    pub error_file: Option<String>,
    /// Why it failed as a whole: code and words of the first error.
    pub error: Option<(String, String)>,
    /// Requests answered so far.
    pub completed: u64,
    /// Requests failed so far.
    pub failed: u64,
    /// Requests in it.
    pub total: u64,
}

impl Batch {
    fn read(json: &Json) -> Result<Self, ModelError> {
        let text = |pointer: &str| {
            json.pointer(pointer)
                .and_then(Json::as_str)
                .filter(|t| !t.is_empty())
                .map(str::to_owned)
        };
        let number = |pointer: &str| json.pointer(pointer).and_then(Json::as_u64).unwrap_or(0);
        let (Some(id), Some(status)) = (text("/id"), text("/status")) else {
            return Err(unlike("a batch", json));
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

    /// Whether the endpoint is done with it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "expired" | "cancelled")
    }
}

impl Endpoint {
    /// The base URL of the endpoint.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// A line of a batch's file.
    #[must_use]
    pub fn line(&self, custom_id: &str, prompt: &Prompt, parameters: &ModelParameters) -> String {
        let line = json!({
            "custom_id": custom_id, "method": "POST", "url": PATH, "body": self.body(prompt, parameters),
        });
        format!("{line}\n")
    }

    /// Sends a file up; returns what the endpoint calls it.
    ///
    /// # Errors
    /// [`ModelError`]; [`ModelError::NoAnswer`] when the file cannot be read.
    pub async fn upload(&self, path: &Path, name: &str) -> Result<String, ModelError> {
        persistently(TRIES, || async {
            let (form, body) = FileForm::open(path, name)
                .map_err(|e| ModelError::NoAnswer(format!("{}: {e}", path.display())))?;
            let request = self
                .request(Method::POST, "/files")
                .timeout(TRANSFER_TIMEOUT)
                .header("content-type", form)
                .header("content-length", body.left)
                .body(reqwest::Body::wrap(body));
            let json = self.json(request).await?;
            let id = json.get("id").and_then(Json::as_str);
            id.map(str::to_owned).ok_or_else(|| unlike("a file", &json))
        })
        .await
    }

    /// The file of that name and size that the endpoint has already.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn find_upload(&self, name: &str, size: u64) -> Result<Option<String>, ModelError> {
        let json =
            persistently(TRIES, || self.json(self.request(Method::GET, "/files?purpose=batch")))
                .await?;
        let found = json.get("data").and_then(Json::as_array).into_iter().flatten().find(|f| {
            f.get("filename").and_then(Json::as_str) == Some(name)
                && f.get("bytes").and_then(Json::as_u64) == Some(size)
        });
        Ok(found.and_then(|f| f.get("id")).and_then(Json::as_str).map(str::to_owned))
    }

    /// Asks for a batch, once: whoever is left in doubt looks it up before
    /// asking again.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn create_batch(&self, file: &str, token: &str) -> Result<Batch, ModelError> {
        let body = json!({
            "input_file_id": file, "endpoint": PATH, "completion_window": WINDOW,
            "metadata": { MARK: token },
        });
        let request = self
            .request(Method::POST, "/batches")
            .header("content-type", "application/json")
            .body(body.to_string());
        Batch::read(&self.json(request).await?)
    }

    /// The batch that was made with this token, when there is one.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn find_batch(&self, token: &str) -> Result<Option<Batch>, ModelError> {
        let mut after = String::new();
        for _ in 0..PAGES {
            let path = format!("/batches?limit={PAGE}{after}");
            let page = persistently(TRIES, || self.json(self.request(Method::GET, &path))).await?;
            let batches = page.get("data").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
            let ours = |b: &&Json| {
                b.pointer(&format!("/metadata/{MARK}")).and_then(Json::as_str) == Some(token)
            };
            if let Some(found) = batches.iter().find(ours) {
                return Batch::read(found).map(Some);
            }
            let last = batches.last().and_then(|b| b.get("id")).and_then(Json::as_str);
            match last.filter(|_| page.get("has_more").and_then(Json::as_bool) == Some(true)) {
                Some(last) => after = format!("&after={last}"),
                None => break,
            }
        }
        Ok(None)
    }

    /// How a batch stands.
    ///
    /// # Errors
    /// [`ModelError`].
    pub async fn batch(&self, id: &str) -> Result<Batch, ModelError> {
        let path = format!("/batches/{id}");
        Batch::read(&persistently(TRIES, || self.json(self.request(Method::GET, &path))).await?)
    }

    /// Brings a file down.
    ///
    /// # Errors
    /// [`ModelError`]; [`ModelError::NoAnswer`] when `to` cannot be written.
    pub async fn download(&self, file: &str, to: &Path) -> Result<(), ModelError> {
        let path = format!("/files/{file}/content");
        let disk = |e: std::io::Error| ModelError::NoAnswer(format!("{}: {e}", to.display()));
        persistently(TRIES, || async {
            let request = self.request(Method::GET, &path).timeout(TRANSFER_TIMEOUT);
            let mut response = self.send(request).await?;
            let mut out = std::fs::File::create(to).map_err(disk)?;
            while let Some(piece) = response.chunk().await.map_err(|e| error(&e))? {
                out.write_all(&piece).map_err(disk)?;
            }
            Ok(())
        })
        .await
    }

    /// Takes a file away that nobody needs; nothing hangs on its success.
    pub async fn delete_file(&self, file: &str) {
        let _ = self.send(self.request(Method::DELETE, &format!("/files/{file}"))).await;
    }

    /// Takes the words of a batch's line for those of a live answer: what the
    /// endpoint does not take, it is asked without from here on.
    #[must_use]
    pub fn understood(&self, _: &Prompt, error: ModelError) -> ModelError {
        self.learn_from_batch(self.without_key(error))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.at(path)).headers(self.headers.clone())
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ModelError> {
        let sent = async {
            let response = request.send().await.map_err(|e| error(&e))?;
            if response.status().is_success() {
                return Ok(response);
            }
            Err(failed(WireFailure::read(response).await))
        };
        sent.await.map_err(|e| self.without_key(e))
    }

    async fn json(&self, request: RequestBuilder) -> Result<Json, ModelError> {
        let body = wire::body(self.send(request).await?, wire::REPLY).await?;
        serde_json::from_slice(&body).map_err(|_| ModelError::Passing {
            message: format!(
                "the endpoint's reply is not JSON: {}",
                shown(&String::from_utf8_lossy(&body))
            ),
            wait: None,
            in_doubt: true,
        })
    }
}

fn unlike(what: &str, json: &Json) -> ModelError {
    let message = format!("the endpoint's reply is not {what}: {}", shown(&json.to_string()));
    ModelError::Passing { message, wait: None, in_doubt: true }
}

/// A form with a file in it, read as it is sent.
struct FileForm {
    head: Option<Bytes>,
    file: std::fs::File,
    tail: Option<Bytes>,
    /// Bytes still to be sent.
    left: u64,
}

impl FileForm {
    /// The form and its content type.
    fn open(path: &Path, name: &str) -> std::io::Result<(String, Self)> {
        let file = std::fs::File::open(path)?;
        let size = file.metadata()?.len();
        // The name has a hash in it that no line of the file can have.
        let boundary = format!("hqdl-{}", blake3::hash(name.as_bytes()).to_hex());
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --{boundary}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             content-type: application/jsonl\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        let left = head.len() as u64 + size + tail.len() as u64;
        let form = Self { head: Some(head.into()), file, tail: Some(tail.into()), left };
        Ok((format!("multipart/form-data; boundary={boundary}"), form))
    }

    fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        if let Some(head) = self.head.take() {
            return Ok(Some(head));
        }
        let mut piece = vec![0; PIECE];
        let read = self.file.read(&mut piece)?;
        if read == 0 {
            return Ok(self.tail.take());
        }
        piece.truncate(read);
        Ok(Some(piece.into()))
    }
}

impl http_body::Body for FileForm {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let next = self.next().transpose();
        if let Some(Ok(piece)) = &next {
            self.left = self.left.saturating_sub(piece.len() as u64);
        }
        Poll::Ready(next.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none() && self.tail.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
