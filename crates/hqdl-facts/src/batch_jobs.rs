//! The journal's side of batches: which requests wait, which are in which
//! *parcel* (a batch of the Batch API, or a file that somebody else sends), and
//! how far each parcel has come. Every step is written down before the next
//! one, so a process killed anywhere is gone on with.

use crate::ids::RunId;
use hqdl_values::usage::Spent;

/// A request that goes into a parcel.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRequest {
    /// Its id in the journal.
    pub id: i64,
    /// What its answer will be found by.
    pub custom_id: String,
    /// The most it may cost.
    pub worst: Spent,
}

/// How far a parcel has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its file is written.
    Written,
    /// The endpoint has its file.
    Uploaded,
    /// The batch was asked for; whether there is one must be looked up.
    Creating,
    /// The endpoint works on it.
    Open,
    /// Everything it brought is kept.
    Closed,
    /// Somebody else sends it.
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

/// Requests that are sent together.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchJob {
    /// Its id in the journal; 0 until it is there.
    pub id: i64,
    /// What it is found by at the endpoint.
    pub token: String,
    /// The run that sent it.
    pub run: RunId,
    /// The spec it belongs to.
    pub spec: String,
    /// The base URL of the endpoint.
    pub endpoint: String,
    /// How far it has come.
    pub stage: Stage,
    /// How many requests it holds.
    pub requests: u64,
    /// Its file, as the endpoint calls it.
    pub input_file: Option<String>,
    /// The batch, as the endpoint calls it.
    pub batch: Option<String>,
    /// Where its file is, when somebody else sends it.
    pub file: Option<String>,
}
