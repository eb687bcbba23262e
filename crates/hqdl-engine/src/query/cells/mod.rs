//! Cells that calls read: entities of an expansion, documents, or the rows of a context.

pub mod call_target;
pub mod context;
pub mod documents;
pub mod targets;
