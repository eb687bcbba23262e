//! Anthropic's Message Batches: the requests are sent when the batch is created, and the results
//! are one file. A batch has no metadata, so a batch whose creation is unconfirmed is recognized by
//! its time, its number of requests and, once it has ended, the ids of its requests.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::{Value as Json, json};

use super::{BatchApi, BatchClient, BatchLine};
use crate::batch::{Batch, BatchFuture, BatchQuery};
use crate::file_body::FileBody;
use crate::transport::{TRANSFER_TIMEOUT, file_error, unexpected_reply_error};
use crate::wire::{ErrorResponse, to_model_error};
use crate::{ModelError, Reply};
use hqdl_prompt::Prompt;
use hqdl_spec::ModelParameters;

/// Path of the batches after the base URL.
const PATH: &str = "/messages/batches";
/// Number of batches per page of the list.
const PAGE_SIZE: usize = 100;
/// Maximum number of pages of a list that are searched.
const MAX_PAGES: usize = 200;
/// Maximum difference between the clocks of this machine and of the endpoint.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

pub(super) struct MessageBatches<'e> {
    pub(super) client: &'e dyn BatchClient,
}

impl MessageBatches<'_> {
    async fn create(&self, path: &Path) -> Result<Batch, ModelError> {
        let body = FileBody::open_lines(path, "{\"requests\":[".to_owned(), "]}".to_owned())
            .map_err(|e| file_error(path, &e))?;
        let request = self
            .client
            .transport()
            .new_request(Method::POST, PATH)
            .timeout(TRANSFER_TIMEOUT)
            .header("content-type", "application/json")
            .header("content-length", body.byte_count())
            .body(reqwest::Body::wrap(body));
        parse_batch(&self.client.transport().fetch_json(request).await?)
    }

    /// Returns the batches that contain this number of requests and were created at or after
    /// `since`, newest first.
    async fn list_batches_since(
        &self,
        requests: u64,
        since: Timestamp,
    ) -> Result<Vec<Batch>, ModelError> {
        let mut found = Vec::new();
        let mut after = String::new();
        for _ in 0..MAX_PAGES {
            let path = format!("{PATH}?limit={PAGE_SIZE}{after}");
            let page = self.client.transport().get_json(&path).await?;
            let batches = page.get("data").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
            for json in batches {
                let created = json.get("created_at").and_then(Json::as_str);
                let created = created.and_then(|text| text.parse::<Timestamp>().ok());
                if created.is_some_and(|created| created < since) {
                    return Ok(found);
                }
                let batch = parse_batch(json)?;
                if batch.total == requests {
                    found.push(batch);
                }
            }
            match page.get("last_id").and_then(Json::as_str) {
                Some(last) if page.get("has_more").and_then(Json::as_bool) == Some(true) => {
                    after = format!("&after_id={last}");
                }
                _ => break,
            }
        }
        Ok(found)
    }

    async fn find_sent_batch(&self, sought: &BatchQuery<'_>) -> Result<Option<Batch>, ModelError> {
        let since = sought.sent_at.and_then(|at| at.checked_sub(CLOCK_SKEW).ok());
        let candidates =
            self.list_batches_since(sought.requests, since.unwrap_or(Timestamp::MIN)).await?;
        let mut running = Vec::new();
        for batch in candidates {
            if !batch.has_ended() {
                running.push(batch);
            } else if self.has_results_of(&batch, sought).await? {
                return Ok(Some(batch));
            }
        }
        match running.len() {
            0 | 1 => Ok(running.pop()),
            count => Err(ModelError::Temporary {
                message: format!(
                    "{count} batches in progress may be the one whose creation was not confirmed; \
                     run this again when they have ended"
                ),
                wait: None,
                in_doubt: true,
            }),
        }
    }

    /// Returns whether the first result of an ended batch belongs to the sought batch.
    async fn has_results_of(
        &self,
        batch: &Batch,
        sought: &BatchQuery<'_>,
    ) -> Result<bool, ModelError> {
        let request = self.client.transport().new_request(Method::GET, &results_path(&batch.id));
        let mut response = match self.client.transport().send_http(request).await {
            Ok(response) => response,
            // The endpoint has deleted the results of an old batch.
            Err(ModelError::Refused { status: 404, .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut line = Vec::new();
        while !line.contains(&b'\n')
            && let Ok(Some(chunk)) = response.chunk().await
        {
            line.extend_from_slice(&chunk);
        }
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
        let json: Json = serde_json::from_slice(line).unwrap_or_default();
        let id = json.get("custom_id").and_then(Json::as_str);
        Ok(id.is_some_and(|id| (sought.has_request)(&to_custom_id(id))))
    }
}

impl BatchApi for MessageBatches<'_> {
    fn base_url(&self) -> &str {
        &self.client.transport().base_url
    }

    fn format_request_line(
        &self,
        custom_id: &str,
        prompt: &Prompt,
        parameters: &ModelParameters,
    ) -> String {
        let body = self.client.build_batch_request_body(prompt, parameters);
        format!("{}\n", json!({ "custom_id": to_sent_id(custom_id), "params": body }))
    }

    fn upload_file<'a>(&'a self, _: &'a Path, _: &'a str) -> BatchFuture<'a, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn find_upload<'a>(&'a self, _: &'a str, _: u64) -> BatchFuture<'a, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn create_batch<'a>(
        &'a self,
        path: &'a Path,
        _: Option<&'a str>,
        _: &'a str,
    ) -> BatchFuture<'a, Batch> {
        Box::pin(self.create(path))
    }

    fn find_batch<'a>(&'a self, sought: &'a BatchQuery<'a>) -> BatchFuture<'a, Option<Batch>> {
        Box::pin(self.find_sent_batch(sought))
    }

    fn get_batch<'a>(&'a self, id: &'a str) -> BatchFuture<'a, Batch> {
        Box::pin(async move {
            parse_batch(&self.client.transport().get_json(&format!("{PATH}/{id}")).await?)
        })
    }

    fn download_file<'a>(&'a self, file: &'a str, to: &'a Path) -> BatchFuture<'a, ()> {
        Box::pin(
            async move { self.client.transport().download_path(&results_path(file), to).await },
        )
    }

    fn delete_file<'a>(&'a self, _: &'a str) -> BatchFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn interpret_error(&self, error: ModelError) -> ModelError {
        self.client.update_features_from_error(error)
    }
}

fn results_path(batch: &str) -> String {
    format!("{PATH}/{batch}/results")
}

/// Returns a request id in the form that Anthropic accepts: letters, digits, `_` and `-`.
fn to_sent_id(custom_id: &str) -> String {
    custom_id.replace(':', "_")
}

/// Returns the original id of a request that was sent with `sent_id`. The id contains a hash
/// without underscores.
fn to_custom_id(sent_id: &str) -> String {
    sent_id.replacen('_', ":", 1)
}

fn parse_batch(json: &Json) -> Result<Batch, ModelError> {
    let text = |field: &str| json.get(field).and_then(Json::as_str).filter(|t| !t.is_empty());
    let count = |state: &str| {
        json.pointer(&format!("/request_counts/{state}")).and_then(Json::as_u64).unwrap_or(0)
    };
    let (Some(id), Some(status)) = (text("id"), text("processing_status")) else {
        return Err(unexpected_reply_error("a message batch", json));
    };
    let (cancelled, expired) = (count("canceled"), count("expired"));
    let failed = count("errored") + cancelled + expired;
    let total = count("processing") + count("succeeded") + failed;
    let has_ended = status == "ended";
    let status = match status {
        "ended" if cancelled > 0 => "cancelled",
        "ended" if expired > 0 => "expired",
        "ended" => "completed",
        "canceling" => "cancelling",
        other => other,
    };
    Ok(Batch {
        id: id.to_owned(),
        status: status.to_owned(),
        output_file: has_ended.then(|| id.to_owned()),
        // The same file also contains the failed requests.
        output_lines: total,
        error_file: None,
        error: None,
        completed: count("succeeded"),
        failed,
        total,
    })
}

/// Parses a line of a batch's results.
pub(super) fn parse_result_line(
    line: &Json,
    parse_message: impl Fn(&Json) -> Result<Reply, ModelError>,
) -> Option<BatchLine> {
    let custom_id = to_custom_id(line.get("custom_id")?.as_str()?);
    let result = line.get("result")?;
    let reply = match result.get("type")?.as_str()? {
        "succeeded" => parse_message(result.get("message")?),
        "errored" => Err(parse_error(result.get("error")?)),
        // The request was never processed, so it was not billed.
        state @ ("canceled" | "expired") => Err(ModelError::Temporary {
            message: format!("the request is {state}"),
            wait: None,
            in_doubt: false,
        }),
        _ => return None,
    };
    Some(BatchLine { custom_id, reply, created: None })
}

/// Parses the error of a request. The error's type determines its HTTP status.
fn parse_error(error: &Json) -> ModelError {
    let status = match error.pointer("/error/type").and_then(Json::as_str).unwrap_or_default() {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "billing_error" => 402,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        "overloaded_error" => 529,
        _ => 500,
    };
    to_model_error(ErrorResponse::from_body(status, error, &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_parsed_by_their_type() {
        let parse = |result: Json| {
            let line = json!({ "custom_id": "p1_00ff", "result": result });
            let parse_message = |message: &Json| {
                let content = message["content"].as_str().unwrap_or_default().to_owned();
                Ok(Reply { content, ..Reply::default() })
            };
            let line = parse_result_line(&line, parse_message).unwrap();
            assert_eq!(line.custom_id, "p1:00ff");
            line.reply
        };
        let error = |kind: &str| {
            let error = json!({ "type": kind, "message": "prompt is too long: 9 tokens" });
            parse(json!({ "type": "errored", "error": { "type": "error", "error": error } }))
        };
        let message = json!({ "content": "x" });
        let reply = parse(json!({ "type": "succeeded", "message": message })).unwrap();
        assert_eq!(reply.content, "x");
        assert!(matches!(error("invalid_request_error"), Err(ModelError::TooLong(_))));
        assert!(matches!(error("overloaded_error"), Err(ModelError::Temporary { .. })));
        assert!(matches!(error("billing_error"), Err(ModelError::Refused { status: 402, .. })));
        let expired = parse(json!({ "type": "expired" }));
        assert!(matches!(expired, Err(ModelError::Temporary { in_doubt: false, .. })));
    }
}
