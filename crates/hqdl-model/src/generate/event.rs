//! What is told of a run while it goes on, and why it stopped.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::ModelError;
use hqdl_facts::FactsError;
use hqdl_values::cell::Tally;
use hqdl_values::usage::Usage;

/// What happens while a run goes on.
#[derive(Debug, Clone)]
pub enum Event {
    /// An expansion begins; so many cells are to be asked.
    Begin {
        /// Its name.
        expansion: String,
        /// Cells to be asked.
        cells: u64,
    },
    /// A request was answered and its facts are safe.
    Kept {
        /// Cells that ended, by state.
        cells: Tally,
        /// Everything used so far.
        usage: Usage,
    },
    /// A request failed for good; the run goes on without it.
    Failed(String),
    /// A batch is with the endpoint.
    Submitted {
        /// The batch, as the endpoint calls it.
        batch: String,
        /// Requests in it.
        requests: u64,
    },
    /// A batch was looked at.
    Polled {
        /// The batch, as the endpoint calls it.
        batch: String,
        /// What the endpoint says of it.
        status: String,
        /// Requests answered.
        completed: u64,
        /// Requests that failed.
        failed: u64,
        /// Requests in it.
        requests: u64,
    },
    /// What a batch brought is kept.
    Collected {
        /// The batch, as the endpoint calls it.
        batch: String,
        /// How it ended, as the endpoint says.
        status: String,
        /// Requests answered.
        answered: u64,
        /// Requests that failed or were never answered.
        failed: u64,
    },
    /// Something the user should know.
    Warning(String),
}

impl Event {
    /// As an event of `materialize --json`: a stable contract. That adds what is done
    /// so far to `kept`, which it alone counts.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Self::Begin { expansion, cells } => {
                json!({ "event": "begin", "expansion": expansion, "cells": cells })
            }
            Self::Kept { cells, usage } => json!({
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
            Self::Warning(message) => json!({ "event": "warning", "message": message }),
        }
    }
}

/// Who is told.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Why a run stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The endpoint refuses.
    #[error(transparent)]
    Endpoint(#[from] ModelError),
    /// No request gets an answer, however often it is tried.
    #[error("no request is answered: {0}")]
    Gone(String),
    /// What was answered cannot be kept.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// A request ended in a bug of ours.
    #[error("internal error while handling a request: {0}")]
    Bug(String),
    /// The user interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The user interrupted while batches are with the endpoint.
    #[error("interrupted; the endpoint continues with {}", .0.join(", "))]
    Left(Vec<String>),
}
