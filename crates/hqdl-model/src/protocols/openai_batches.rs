//! `OpenAI`'s Batch API for chat completions and responses: uploads a file, creates a batch from
//! it, polls it until it finishes, and downloads its output.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value as Json, json};

use super::{BatchApi, BatchClient, BatchLine};
use crate::batch::{Batch, BatchFuture, BatchQuery};
use crate::file_body::FileBody;
use crate::transport::{TRANSFER_TIMEOUT, file_error, unexpected_reply_error};
use crate::wire::{ErrorResponse, to_model_error};
use crate::{MAX_ATTEMPTS, ModelError, Reply, retry_with_backoff};
use hqdl_prompt::Prompt;
use hqdl_spec::ModelParameters;

const COMPLETION_WINDOW: &str = "24h";
/// Number of batches per page of the list.
const PAGE_SIZE: usize = 100;
/// Maximum number of pages of a list that are searched.
const MAX_PAGES: usize = 200;
/// Metadata field that marks hqdl's batches.
const METADATA_FIELD: &str = "hqdl";

/// Batches that are created from files with one request per line.
pub(super) struct FileBatches<'e> {
    pub(super) client: &'e dyn BatchClient,
    /// Path of a request after the base URL.
    pub(super) path: &'static str,
}

impl FileBatches<'_> {
    /// Returns the path of every request of a batch.
    fn request_path(&self) -> String {
        format!("/v1{}", self.path)
    }

    async fn upload(&self, path: &Path, name: &str) -> Result<Option<String>, ModelError> {
        // The file name contains a hash, so no line of the file can contain the boundary.
        let boundary = format!("hqdl-{}", blake3::hash(name.as_bytes()).to_hex());
        retry_with_backoff(MAX_ATTEMPTS, || async {
            let head = format!(
                "--{boundary}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
                 --{boundary}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
                 content-type: application/jsonl\r\n\r\n"
            );
            let tail = format!("\r\n--{boundary}--\r\n");
            let body = FileBody::open(path, head, tail).map_err(|e| file_error(path, &e))?;
            let request = self.client.transport()
                .new_request(Method::POST, "/files")
                .timeout(TRANSFER_TIMEOUT)
                .header("content-type", format!("multipart/form-data; boundary={boundary}"))
                .header("content-length", body.byte_count())
                .body(reqwest::Body::wrap(body));
            let json = self.client.transport().fetch_json(request).await?;
            match json.get("id").and_then(Json::as_str) {
                Some(id) => Ok(Some(id.to_owned())),
                None => Err(unexpected_reply_error("a file", &json)),
            }
        })
        .await
    }

    async fn find_file(&self, name: &str, size: u64) -> Result<Option<String>, ModelError> {
        let json = self.client.transport().get_json("/files?purpose=batch").await?;
        let found = json.get("data").and_then(Json::as_array).into_iter().flatten().find(|f| {
            f.get("filename").and_then(Json::as_str) == Some(name)
                && f.get("bytes").and_then(Json::as_u64) == Some(size)
        });
        Ok(found.and_then(|f| f.get("id")).and_then(Json::as_str).map(str::to_owned))
    }

    async fn create(&self, file: Option<&str>, token: &str) -> Result<Batch, ModelError> {
        let body = json!({
            "input_file_id": file, "endpoint": self.request_path(),
            "completion_window": COMPLETION_WINDOW, "metadata": { METADATA_FIELD: token },
        });
        let request = self
            .client
            .transport()
            .new_request(Method::POST, "/batches")
            .header("content-type", "application/json")
            .body(body.to_string());
        parse_batch(&self.client.transport().fetch_json(request).await?)
    }

    /// Returns the batch with a token in its metadata.
    async fn find_batch_by_token(&self, token: &str) -> Result<Option<Batch>, ModelError> {
        let mut after = String::new();
        for _ in 0..MAX_PAGES {
            let path = format!("/batches?limit={PAGE_SIZE}{after}");
            let page = self.client.transport().get_json(&path).await?;
            let batches = page.get("data").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
            let has_token = |b: &&Json| {
                b.pointer(&format!("/metadata/{METADATA_FIELD}")).and_then(Json::as_str)
                    == Some(token)
            };
            if let Some(found) = batches.iter().find(has_token) {
                return parse_batch(found).map(Some);
            }
            let last = batches.last().and_then(|b| b.get("id")).and_then(Json::as_str);
            match last.filter(|_| page.get("has_more").and_then(Json::as_bool) == Some(true)) {
                Some(last) => after = format!("&after={last}"),
                None => break,
            }
        }
        Ok(None)
    }
}

impl BatchApi for FileBatches<'_> {
    fn base_url(&self) -> &str {
        &self.client.transport().base_url
    }

    fn format_request_line(
        &self,
        custom_id: &str,
        prompt: &Prompt,
        parameters: &ModelParameters,
    ) -> String {
        let line = json!({
            "custom_id": custom_id, "method": "POST", "url": self.request_path(),
            "body": self.client.build_batch_request_body(prompt, parameters),
        });
        format!("{line}\n")
    }

    fn upload_file<'a>(&'a self, path: &'a Path, name: &'a str) -> BatchFuture<'a, Option<String>> {
        Box::pin(self.upload(path, name))
    }

    fn find_upload<'a>(&'a self, name: &'a str, size: u64) -> BatchFuture<'a, Option<String>> {
        Box::pin(self.find_file(name, size))
    }

    fn create_batch<'a>(
        &'a self,
        _: &'a Path,
        uploaded_file: Option<&'a str>,
        token: &'a str,
    ) -> BatchFuture<'a, Batch> {
        Box::pin(self.create(uploaded_file, token))
    }

    fn find_batch<'a>(&'a self, sought: &'a BatchQuery<'a>) -> BatchFuture<'a, Option<Batch>> {
        Box::pin(self.find_batch_by_token(sought.token))
    }

    fn get_batch<'a>(&'a self, id: &'a str) -> BatchFuture<'a, Batch> {
        Box::pin(async move {
            parse_batch(&self.client.transport().get_json(&format!("/batches/{id}")).await?)
        })
    }

    fn download_file<'a>(&'a self, file: &'a str, to: &'a Path) -> BatchFuture<'a, ()> {
        Box::pin(async move {
            self.client.transport().download_path(&format!("/files/{file}/content"), to).await
        })
    }

    fn delete_file<'a>(&'a self, file: &'a str) -> BatchFuture<'a, ()> {
        let request =
            self.client.transport().new_request(Method::DELETE, &format!("/files/{file}"));
        Box::pin(async move { self.client.transport().send_http(request).await.map(drop) })
    }

    fn interpret_error(&self, error: ModelError) -> ModelError {
        self.client.update_features_from_error(error)
    }
}

fn parse_batch(json: &Json) -> Result<Batch, ModelError> {
    let text = |pointer: &str| {
        json.pointer(pointer).and_then(Json::as_str).filter(|t| !t.is_empty()).map(str::to_owned)
    };
    let number = |pointer: &str| json.pointer(pointer).and_then(Json::as_u64).unwrap_or(0);
    let (Some(id), Some(status)) = (text("/id"), text("/status")) else {
        return Err(unexpected_reply_error("a batch", json));
    };
    let first = |field: &str| text(&format!("/errors/data/0/{field}"));
    let error = first("message")
        .or_else(|| first("code"))
        .map(|message| (first("code").unwrap_or_default(), message));
    let completed = number("/request_counts/completed");
    Ok(Batch {
        id,
        status,
        output_file: text("/output_file_id"),
        output_lines: completed,
        error_file: text("/error_file_id"),
        error,
        completed,
        failed: number("/request_counts/failed"),
        total: number("/request_counts/total"),
    })
}

/// Parses a line of an output file. `created_field` names the field of a reply that contains its
/// creation time; `parse_body` returns `None` for the reply of another protocol.
pub(super) fn parse_output_line(
    line: &Json,
    created_field: &str,
    parse_body: impl Fn(&Json) -> Option<Result<Reply, ModelError>>,
) -> Option<BatchLine> {
    let custom_id = line.get("custom_id")?.as_str()?.to_owned();
    let error = line.get("error").filter(|e| !e.is_null());
    let body = line.pointer("/response/body").unwrap_or(&Json::Null);
    let status = line.pointer("/response/status_code").and_then(Json::as_u64);
    let reply = match (status, error) {
        (Some(200), None) => parse_body(body)?,
        (Some(status), _) if !(200..300).contains(&status) => {
            let status = u16::try_from(status).unwrap_or_default();
            Err(to_model_error(ErrorResponse::from_body(status, body, &body.to_string())))
        }
        (_, Some(error)) => {
            let text = |field: &str| error.get(field).and_then(Json::as_str).unwrap_or_default();
            let message = format!("{}: {}", text("code"), text("message"));
            // The request was never processed, so it was not billed.
            Err(ModelError::Temporary { message, wait: None, in_doubt: false })
        }
        _ => return None,
    };
    // The Responses API reports the time with a fraction.
    let created = body.get(created_field).and_then(Json::as_f64).map(|seconds| seconds as i64);
    Some(BatchLine { custom_id, reply, created })
}
