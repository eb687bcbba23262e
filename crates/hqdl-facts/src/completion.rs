//! What a request brought, and how a run ended.

use serde::{Deserialize, Serialize};

use crate::ids::RunId;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All was asked.
    Complete,
    /// It was interrupted.
    Interrupted,
    /// It stopped on an error.
    Stopped,
}

impl Outcome {
    /// The word that the journal uses.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
            Self::Stopped => "stopped",
        }
    }
}

/// A request that was sent: what came back and what it cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The run it belongs to.
    pub run: RunId,
    /// The model, by its id in the journal.
    pub model: u32,
    /// The hash of the prompt.
    pub prompt_hash: String,
    /// The parameters of the spec that were sent with it, as JSON.
    pub parameters: Option<String>,
    /// What the model wrote.
    pub content: Option<String>,
    /// Why there is no content.
    pub error: Option<String>,
    /// Input tokens.
    pub input_tokens: u64,
    /// Those of them that the endpoint had cached.
    pub cached_input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Price in USD.
    pub cost_usd: f64,
    /// When it was asked, RFC 3339.
    pub asked_at: String,
    /// How long it took.
    pub seconds: f64,
    /// Cells it was asked for.
    pub cells: u64,
}

impl Completion {
    /// Tokens, input and output.
    pub(super) fn tokens(&self) -> u64 {
        self.input_tokens + self.output_tokens
    }
}
