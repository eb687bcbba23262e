//! Events of a run, and the reasons why it stops.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::ModelError;
use hqdl_facts::FactsError;
use hqdl_values::cell::Tally;
use hqdl_values::usage::Usage;

/// An event of a run.
#[derive(Debug, Clone)]
pub enum Event {
    /// Requests for an expansion begin.
    Begin {
        /// Name of the expansion.
        expansion: String,
        /// Number of cells to ask for.
        cells: u64,
    },
    /// A request was answered and its facts are stored.
    Stored {
        /// Finished cells, by state.
        cells: Tally,
        /// Usage of the run so far.
        usage: Usage,
    },
    /// A request failed permanently; the run continues without it.
    Failed(String),
    /// A batch was submitted to the endpoint.
    Submitted {
        /// Id of the batch at the endpoint.
        batch: String,
        /// Number of requests in the batch.
        requests: u64,
    },
    /// A batch was polled.
    Polled {
        /// Id of the batch at the endpoint.
        batch: String,
        /// Status of the batch at the endpoint.
        status: String,
        /// Number of answered requests.
        completed: u64,
        /// Number of failed requests.
        failed: u64,
        /// Number of requests in the batch.
        requests: u64,
    },
    /// The results of a batch are stored.
    Collected {
        /// Id of the batch at the endpoint.
        batch: String,
        /// Final status of the batch at the endpoint.
        status: String,
        /// Number of answered requests.
        answered: u64,
        /// Number of requests that failed or have no answer.
        failed: u64,
    },
    /// The requests of a query's pass have ended.
    PassEnded,
    /// A warning for the user.
    Warning(String),
}

impl Event {
    /// Returns the event as JSON for `materialize --json`, a stable format. That command adds its
    /// progress to the event `kept`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Self::Begin { expansion, cells } => {
                json!({ "event": "begin", "expansion": expansion, "cells": cells })
            }
            Self::Stored { cells, usage } => json!({
                "event": "kept", "cells": cells.to_json(), "requests": usage.requests,
                "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
                "cost_usd": usage.cost_usd,
            }),
            Self::Failed(message) => json!({ "event": "failed", "message": message }),
            Self::Submitted { batch, requests } => {
                json!({ "event": "submitted", "batch": batch, "requests": requests })
            }
            Self::Polled { batch, status, completed, failed, requests } => json!({
                "event": "polled", "batch": batch, "status": status, "completed": completed,
                "failed": failed, "requests": requests,
            }),
            Self::Collected { batch, status, answered, failed } => json!({
                "event": "collected", "batch": batch, "status": status, "answered": answered,
                "failed": failed,
            }),
            Self::PassEnded => json!({ "event": "pass" }),
            Self::Warning(message) => json!({ "event": "warning", "message": message }),
        }
    }
}

/// Callback for events.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Reason why a run stopped early.
#[derive(Debug, thiserror::Error)]
pub enum StopReason {
    /// The endpoint rejects all requests.
    #[error(transparent)]
    Endpoint(#[from] ModelError),
    /// No request gets an answer, even with retries.
    #[error("no request got an answer: {0}")]
    Gone(String),
    /// The facts cannot be stored.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// A request failed because of a bug in hqdl.
    #[error("internal error while handling a request: {0}")]
    Bug(String),
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
    /// The user interrupted the run while the endpoint was processing batches.
    #[error("interrupted; the endpoint continues with {}", .0.join(", "))]
    BatchesPending(Vec<String>),
}
