//! Statistics that determine the order of conditions.

use std::collections::HashMap;

/// Statistics of conditions and calls, collected from earlier answers.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// Outcomes of each condition, by its offset in the text.
    pub selectivities: HashMap<usize, Selectivity>,
    /// Distinct values per row, by the call's number.
    pub values_per_row: HashMap<usize, f64>,
}

/// Outcomes of a condition.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selectivity {
    /// Number of rows for which the condition was true.
    pub passed: u64,
    /// Number of rows for which the condition was not true.
    pub failed: u64,
}

impl Selectivity {
    /// Returns the estimated share of rows for which the condition is true; 0.5 without
    /// observations.
    #[must_use]
    pub fn estimated_share(self) -> f64 {
        (self.passed as f64 + 0.5) / (self.passed as f64 + self.failed as f64 + 1.0)
    }
}
