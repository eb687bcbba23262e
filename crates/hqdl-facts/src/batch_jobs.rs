//! Batch jobs as the journal stores them: the queued requests, the jobs that contain them, and the
//! stage of each job. A job is a batch of the Batch API, or an exported file that the user sends.
//! Every step is committed before the next one starts, so another process can resume a killed run
//! at any point.

use crate::ids::RunId;
use hqdl_values::usage::SpentAmount;

/// A request that is packed into a batch job.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRequest {
    /// Id of the request in the journal.
    pub id: i64,
    /// Custom id of the request in the batch file. The answer carries the same id.
    pub custom_id: String,
    /// Worst-case cost of the request.
    pub worst_case: SpentAmount,
}

/// Stage of a batch job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The job's file has been written.
    Written,
    /// The file has been uploaded to the endpoint.
    Uploaded,
    /// Creation was requested but not confirmed; query the endpoint before retrying.
    Creating,
    /// The endpoint is processing the job.
    Open,
    /// All results of the job have been stored.
    Closed,
    /// The job is an exported file that the user sends.
    Exported,
}

impl Stage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Uploaded => "uploaded",
            Self::Creating => "creating",
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Exported => "exported",
        }
    }

    pub(super) fn from_name(name: &str) -> Self {
        let all = [Self::Written, Self::Uploaded, Self::Creating, Self::Open, Self::Exported];
        all.into_iter().find(|s| s.name() == name).unwrap_or(Self::Closed)
    }
}

/// A batch of requests that are sent together.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchJob {
    /// Id of the job in the journal; 0 until the job is stored there.
    pub id: i64,
    /// Token in the batch's metadata that identifies the job at the endpoint.
    pub token: String,
    /// Id of the run that created the job.
    pub run: RunId,
    /// Spec that the job belongs to.
    pub spec: String,
    /// Base URL of the endpoint.
    pub endpoint: String,
    /// Stage that the job has reached.
    pub stage: Stage,
    /// Number of requests in the job.
    pub requests: u64,
    /// Id of the job's uploaded file at the endpoint.
    pub input_file: Option<String>,
    /// Id of the batch at the endpoint.
    pub batch: Option<String>,
    /// Path of the exported file, if the user sends it.
    pub file: Option<String>,
}
