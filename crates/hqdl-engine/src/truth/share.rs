//! A share with its confidence interval.

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// 97.5th percentile of the standard normal distribution, for a two-sided 95 % interval.
const Z: f64 = 1.959_963_984_540_054;

/// A share: the number of correct items out of a total.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    /// Number of correct items; fractional for F1.
    pub correct: f64,
    /// Total number of items.
    pub total: u64,
}

impl Share {
    /// Returns the share in percent; 0 if the total is 0.
    #[must_use]
    pub fn percent(self) -> f64 {
        if self.total == 0 { 0.0 } else { 100.0 * self.correct / self.total as f64 }
    }

    /// Returns the 95 % Wilson interval in percent; (0, 100) if the total is 0.
    #[must_use]
    pub fn interval(self) -> (f64, f64) {
        if self.total == 0 {
            return (0.0, 100.0);
        }
        let n = self.total as f64;
        let (p, z) = (self.correct / n, Z * Z / n);
        let middle = (p + z / 2.0) / (1.0 + z);
        let half = Z / (1.0 + z) * (p * (1.0 - p) / n + z / (4.0 * n)).max(0.0).sqrt();
        (100.0 * (middle - half).max(0.0), 100.0 * (middle + half).min(1.0))
    }

    /// Counts one more item.
    pub fn add(&mut self, is_correct: bool) {
        self.correct += f64::from(u8::from(is_correct));
        self.total += 1;
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut share = serializer.serialize_struct("Share", 4)?;
        share.serialize_field("right", &self.correct)?;
        share.serialize_field("of", &self.total)?;
        share.serialize_field("percent", &self.percent())?;
        share.serialize_field("interval_percent", &self.interval())?;
        share.end()
    }
}
