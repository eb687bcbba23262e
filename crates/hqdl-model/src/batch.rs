//! Batch APIs: an endpoint answers many requests together, within a day, at a lower price.
//! `protocols` contains the two implementations. Files are streamed in both directions, so a 200 MB
//! file is never entirely in memory.

use std::path::Path;
use std::pin::Pin;

use serde_json::Value as Json;

use super::transport::Transport;
use super::{ModelError, Reply};
use hqdl_prompt::Prompt;
use hqdl_spec::ModelParameters;

/// State of a batch at the endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Id of the batch at the endpoint.
    pub id: String,
    /// `validating`, `in_progress`, `finalizing`, `completed`, `failed`,
    /// `expired`, `cancelling` or `cancelled`.
    pub status: String,
    /// Id of the output file, if there is one.
    pub output_file: Option<String>,
    /// Number of lines of the output file.
    pub output_lines: u64,
    /// Id of the error file, if there is one.
    pub error_file: Option<String>,
    /// Reason why the batch failed as a whole: code and message of the first error.
    pub error: Option<(String, String)>,
    /// Number of requests answered so far.
    pub completed: u64,
    /// Number of requests that have failed so far.
    pub failed: u64,
    /// Number of requests in the batch.
    pub total: u64,
}

impl Batch {
    /// Returns whether the batch has finished.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "expired" | "cancelled")
    }
}

/// A line of a batch's results.
#[derive(Debug)]
pub struct BatchLine {
    /// Custom id of the request.
    pub custom_id: String,
    /// Reply to the request, or its error.
    pub reply: Result<Reply, ModelError>,
    /// Time at which the reply was created, in seconds since 1970; `None` if the line does not
    /// contain it.
    pub created: Option<i64>,
}

/// A batch whose creation was requested but not confirmed.
pub struct BatchQuery<'s> {
    /// Token with which the batch was created, if the batch exists.
    pub token: &'s str,
    /// Number of requests in the batch.
    pub requests: u64,
    /// Time at which the batch's creation was requested; `None` if unknown.
    pub sent_at: Option<jiff::Timestamp>,
    /// Returns whether a request with this id belongs to the batch.
    pub has_request: &'s (dyn Fn(&str) -> bool + Sync),
}

/// Future of a Batch API call.
pub type BatchFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ModelError>> + Send + 'a>>;

/// The Batch API of an endpoint.
pub trait BatchApi: Send + Sync {
    /// Returns the base URL of the endpoint.
    fn base_url(&self) -> &str;

    /// Returns a line of a batch's input file, with its line break.
    fn format_request_line(
        &self,
        custom_id: &str,
        prompt: &Prompt,
        parameters: &ModelParameters,
    ) -> String;

    /// Uploads a batch's input file and returns its id at the endpoint; `None` if the requests are
    /// sent when the batch is created.
    fn upload_file<'a>(&'a self, path: &'a Path, name: &'a str) -> BatchFuture<'a, Option<String>>;

    /// Returns the id of the uploaded file with this name and size; `None` if there is none.
    fn find_upload<'a>(&'a self, name: &'a str, size: u64) -> BatchFuture<'a, Option<String>>;

    /// Creates a batch from its input file, without retries: if the result is unconfirmed, the
    /// caller must look for the batch before it tries again.
    fn create_batch<'a>(
        &'a self,
        path: &'a Path,
        uploaded_file: Option<&'a str>,
        token: &'a str,
    ) -> BatchFuture<'a, Batch>;

    /// Returns the batch whose creation is unconfirmed, if it exists.
    fn find_batch<'a>(&'a self, sought: &'a BatchQuery<'a>) -> BatchFuture<'a, Option<Batch>>;

    /// Returns the state of a batch.
    fn get_batch<'a>(&'a self, id: &'a str) -> BatchFuture<'a, Batch>;

    /// Downloads a results file; fails with [`ModelError::NoAnswer`] if `to` cannot be written.
    fn download_file<'a>(&'a self, file: &'a str, to: &'a Path) -> BatchFuture<'a, ()>;

    /// Deletes an uploaded file.
    fn delete_file<'a>(&'a self, file: &'a str) -> BatchFuture<'a, ()>;

    /// Interprets the error of a batch request like that of a live request: if the error names an
    /// unsupported feature, later requests omit the feature.
    fn interpret_error(&self, error: ModelError) -> ModelError;
}

/// The parts of an endpoint's client that a Batch API needs.
pub(super) trait BatchClient: Send + Sync {
    fn transport(&self) -> &Transport;

    fn build_batch_request_body(&self, prompt: &Prompt, parameters: &ModelParameters) -> Json;

    /// Updates the request features if a request's error rejects one of them. Returns the error to
    /// report.
    fn update_features_from_error(&self, error: ModelError) -> ModelError;
}
