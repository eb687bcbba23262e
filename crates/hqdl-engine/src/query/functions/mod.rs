//! SQL functions that replace calls, and what they record during a pass.

pub mod call_runtime;
pub mod call_stats;
pub mod entities;
pub mod reduce;
pub mod register;
