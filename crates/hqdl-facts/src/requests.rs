//! Batch requests as the journal stores them: columns, rows, and whether they were answered.
//! [`super::batch_jobs`] stores the jobs that contain them.

use crate::ids::RunId;
use hqdl_values::Row;
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

/// A request that was sent in a batch job, or is queued for one.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchedRequest {
    /// Id of the request in the journal; 0 until the request is stored there.
    pub id: i64,
    /// Id of the template from which the request's prompt is built and its answer parsed.
    pub template: i64,
    /// Id of the model in the journal.
    pub model: u32,
    /// Positions of the requested columns.
    pub columns: Vec<usize>,
    /// Positions of all columns requested from the sources of the request's rows.
    pub source_columns: Vec<usize>,
    /// Ids of the requested columns' identities in the journal.
    pub identity_ids: Vec<u32>,
    /// The rows with their entities.
    pub rows: Vec<(Entity, Row)>,
    /// Number of attempts for the request's rows, including this one.
    pub attempt: u32,
    /// Number of times this request was sent.
    pub sent_count: u32,
    /// Run that sent the request; 0 while the request is queued.
    pub run: RunId,
    /// Time at which the request was sent, RFC 3339; empty while the request is queued.
    pub sent_at: String,
    /// Worst-case cost of the request; zero while the request is queued.
    pub worst_case: SpentAmount,
}

/// State of a request, looked up by its `custom_id`.
#[derive(Debug, Clone, PartialEq)]
pub enum KnownRequest {
    /// The request has no answer yet.
    Open(Box<BatchedRequest>),
    /// The request is settled; further answers are ignored.
    Done,
    /// The journal has no such request.
    Unknown,
}
