//! SQL functions that replace calls, and the state that they record during a pass.

pub mod call_runtime;
pub mod call_stats;
pub mod entities;
pub mod reduce;
pub mod register;
