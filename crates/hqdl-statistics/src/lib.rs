//! Confidence intervals for numbers computed from the true values of a finite table, based on a
//! random sample of its rows.
//!
//! Each row has the model's answer; sampled rows also have a true value. The intervals depend only
//! on how the rows were drawn and assume nothing about the model.

mod cascade;
mod count;
mod coverage;
mod draw;
mod extremes;
mod hypergeometric;
mod normal;
mod ratio;

pub use cascade::{CascadeChoice, CascadeLevel, CascadeSample};
pub use count::{Class, CountMethod, CountStratum, estimate_count, estimate_positive_rows};
pub use coverage::{CountCoverage, CoveredTable};
pub use draw::{DrawnRow, draw_rows};
pub use extremes::Extremes;
pub use hypergeometric::{Hypergeometric, bound_positives};
pub use normal::normal_quantile;
pub use ratio::{NoInterval, ResidualStratum, SampledRow, estimate_ratio, estimate_sum};

/// An estimate with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The estimate; NaN if the sample allows none.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Returns half the interval's width.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Returns true if the interval contains a value.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}
