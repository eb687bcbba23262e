//! Rows of a request: an entity's key, and its context.

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// Row of a request: its key and its context, as the source contains them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Values of the key columns, in the spec's order.
    pub key: Vec<Value>,
    /// Values of the context columns, in the spec's order.
    pub context: Vec<Value>,
}
