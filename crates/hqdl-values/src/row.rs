//! What is asked about: an entity's key, and what is told of it.

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// A row to be asked about: its key and its context, as the source spells them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Values of the key columns, in the spec's order.
    pub key: Vec<Value>,
    /// Values of the context columns, in the spec's order.
    pub context: Vec<Value>,
}
