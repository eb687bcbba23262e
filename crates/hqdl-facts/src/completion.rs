//! The result of a request, and how a run ended.

use serde::{Deserialize, Serialize};

use crate::ids::RunId;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every cell was asked for.
    Complete,
    /// The user interrupted the run.
    Interrupted,
    /// The run stopped on an error.
    Stopped,
}

impl Outcome {
    /// Returns the outcome's name in the journal.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
            Self::Stopped => "stopped",
        }
    }
}

/// A request with its response and its cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Id of the run that the request belongs to.
    pub run: RunId,
    /// Id of the model in the journal.
    pub model: u32,
    /// Hash of the prompt.
    pub prompt_hash: String,
    /// Parameters of the spec that were sent with the request, as JSON.
    pub parameters: Option<String>,
    /// Evidence in the prompt and the quotations in the answer, as JSON.
    pub evidence: Option<String>,
    /// Text that the model returned.
    pub content: Option<String>,
    /// Reason why there is no content; `None` if there is.
    pub error: Option<String>,
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Input tokens that the endpoint read from its prompt cache.
    pub cached_input_tokens: u64,
    /// Input tokens that were written to the endpoint's prompt cache and billed at an assumed rate.
    #[serde(default)]
    pub assumed_cache_writes: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Cost in USD.
    pub cost_usd: f64,
    /// Time at which the request was sent, RFC 3339.
    pub asked_at: String,
    /// Duration of the request in seconds.
    pub seconds: f64,
    /// Number of cells in the request.
    pub cells: u64,
}
