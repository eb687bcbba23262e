//! Rows of a query, and the report about them.

pub mod headers;
pub mod json;
pub mod query_result;
pub mod row_buffer;
