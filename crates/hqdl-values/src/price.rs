//! What a model costs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Price in USD per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct PriceTable {
    /// Input tokens.
    pub input: f64,
    /// Input tokens that the endpoint had cached; `input` when left out.
    pub cached_input: Option<f64>,
    /// Output tokens.
    pub output: f64,
    /// The part of these prices that a request of a batch is billed; 0.5 when
    /// left out, as `OpenAI` does.
    pub batch: Option<f64>,
}

impl PriceTable {
    /// The prices of a request that goes through the Batch API.
    #[must_use]
    pub fn batched(&self) -> Self {
        let part = self.batch.unwrap_or(BATCH_PART);
        Self {
            input: self.input * part,
            cached_input: self.cached_input.map(|c| c * part),
            output: self.output * part,
            batch: Some(1.0),
        }
    }
}

/// See [`PriceTable::batch`].
const BATCH_PART: f64 = 0.5;
