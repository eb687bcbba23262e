//! Cells that calls read: entities of an expansion, documents, or the rows of a context.

pub mod call_target;
pub mod canonical_bytes;
pub mod context;
pub mod documents;
pub mod entity_store;
pub mod reduction;
pub mod targets;
