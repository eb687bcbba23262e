//! Prepares a query: parses it, routes its calls, and rewrites it into the statement to run.

pub mod engine;
pub mod nested;
pub mod stored_values;
pub mod validation;
