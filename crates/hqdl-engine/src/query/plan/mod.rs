//! Prepares a query: parses it, routes its calls, and rewrites it into the statement to run.

pub mod engine;
mod meta;
pub mod nested;
pub mod prepare;
pub mod stored_values;
pub mod validation;
