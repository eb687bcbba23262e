//! Rows of a query, and what is reported about them.

pub mod headers;
pub mod json;
pub mod query_result;
pub mod row_buffer;
