//! The journal's side of requests that go through the Batch API: what each one
//! asks, about whom, and whether it was answered. [`super::batch_jobs`] says where
//! it is.

use crate::ids::RunId;
use hqdl_values::Row;
use hqdl_values::key::Entity;
use hqdl_values::usage::Spent;

/// A request that is to be sent, or was, in a parcel.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchedRequest {
    /// Its id in the journal; 0 until it is there.
    pub id: i64,
    /// The form that its prompt and its answer hang on.
    pub form: i64,
    /// The model, by its id in the journal.
    pub model: u32,
    /// Positions of the columns asked for.
    pub columns: Vec<usize>,
    /// Positions of all columns that the rows' sources ask for.
    pub whole: Vec<usize>,
    /// What the columns asked for mean, by id in the journal.
    pub meanings: Vec<u32>,
    /// The rows, with whom they are about.
    pub rows: Vec<(Entity, Row)>,
    /// How often its rows were asked about, this time included.
    pub attempt: u32,
    /// How often this very request was sent.
    pub sent: u32,
    /// The run that sent it; 0 while it waits.
    pub run: RunId,
    /// When it was sent, RFC 3339; empty while it waits.
    pub sent_at: String,
    /// The most it may cost; nothing while it waits.
    pub worst: Spent,
}

/// What the journal knows of a `custom_id`.
#[derive(Debug, Clone, PartialEq)]
pub enum KnownRequest {
    /// A request that waits for its answer.
    Open(Box<BatchedRequest>),
    /// A request that needs no answer any more.
    Done,
    /// No request of this journal.
    Unknown,
}
