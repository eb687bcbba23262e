//! The confidence interval for a sum, and for a ratio of two sums, by the difference estimator.
//!
//! The sum over the model's answers is corrected by the mean residual of the sampled rows. The
//! variance includes the finite-population correction. In each stratum, two residuals that were not
//! observed are added: plus and minus the greatest residual that a row in the stratum can have. So
//! a sample without errors does not imply that the table has none. Three more rules keep the normal
//! approximation honest for rare errors:
//!
//! - The quantile is that of Student's distribution.
//! - Above a confidence of 95 %, the two residuals count more than once.
//! - The interval reaches at least as far as the errors can go that a sample without errors misses.
//!
//! A ratio R is in the interval if the sum of `y - R x` can be 0 (Fieller's construction). Near the
//! estimate, the interval agrees with the linearised estimator. Unlike the linearised estimator, it
//! is also valid if the denominator is uncertain.

use crate::Interval;
use crate::extremes::Extremes;
use crate::hypergeometric::bound_positives;
use crate::normal::{normal_quantile, student_quantile};

/// Contributions of one row to the numerator `y` and the denominator `x`, according to its true
/// values and to the model's answers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SampledRow {
    /// Numerator according to the true values.
    pub y: f64,
    /// Denominator according to the true values.
    pub x: f64,
    /// Numerator according to the model's answers.
    pub model_y: f64,
    /// Denominator according to the model's answers.
    pub model_x: f64,
}

/// A stratum of the sampling design.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResidualStratum {
    /// Number of rows in the table.
    pub size: u64,
    /// Sampled rows.
    pub sample: Vec<SampledRow>,
    /// Numerator over all rows, according to the model's answers.
    pub model_y: f64,
    /// Denominator over all rows, according to the model's answers.
    pub model_x: f64,
    /// Extremes of the rows, based on what is known about their values.
    pub extremes: Extremes,
}

/// Reason why a sum or ratio has no interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoInterval {
    /// A stratum has rows, but none of them is in the sample.
    NoSample,
    /// Judging by the sample, the denominator can be 0, and nothing else bounds the ratio.
    DenominatorNearZero,
}

/// Returns the confidence interval for the sum of `y` over the true values.
///
/// # Errors
/// [`NoInterval::NoSample`] if a nonempty stratum has no sampled row.
pub fn estimate_sum(strata: &[ResidualStratum], confidence: f64) -> Result<Interval, NoInterval> {
    let Total { value: estimate, half_width } =
        estimate_total(strata, &Precision::new(strata, confidence)?, 0.0);
    Ok(Interval { estimate, low: estimate - half_width, high: estimate + half_width })
}

/// Returns the confidence interval for the sum of `y` divided by the sum of `x`, both over the true
/// values.
///
/// # Errors
/// [`NoInterval::NoSample`] if a nonempty stratum has no sampled row;
/// [`NoInterval::DenominatorNearZero`] if the denominator can be 0 and nothing else bounds the
/// ratio.
pub fn estimate_ratio(strata: &[ResidualStratum], confidence: f64) -> Result<Interval, NoInterval> {
    let precision = Precision::new(strata, confidence)?;
    let numerator = estimate_total(strata, &precision, 0.0).value;
    let denominator = numerator - estimate_total(strata, &precision, 1.0).value;
    let is_possible = |ratio: f64| {
        // Even without any uncertainty, a rounding error remains.
        let rounding = 1e-12 * (numerator.abs() + (ratio * denominator).abs());
        let total = estimate_total(strata, &precision, ratio);
        total.value.abs() <= total.half_width + rounding
    };
    let bounds = Extremes::bound_ratio(strata.iter().map(|s| &s.extremes));
    let estimate = numerator / denominator;
    if let Some((least, most)) = bounds {
        let inside = if estimate.is_finite() { estimate.clamp(least, most) } else { least };
        // An estimate outside the range of possible values is invalid.
        let is_inside = (least..=most).contains(&estimate);
        let estimate = if is_inside { estimate } else { f64::NAN };
        let ends_meet = is_possible(least) && is_possible(most);
        let (low, high) = if ends_meet || !is_possible(inside) {
            (least, most)
        } else {
            (
                find_farthest_ratio(inside, least, is_possible),
                find_farthest_ratio(inside, most, is_possible),
            )
        };
        return Ok(Interval { estimate, low, high });
    }
    // At so large a ratio, only the denominator matters: if the ratio is possible, the denominator
    // can be 0.
    let far = estimate.abs().max(1.0) * 1e9;
    if !estimate.is_finite() || is_possible(far) || is_possible(-far) {
        return Err(NoInterval::DenominatorNearZero);
    }
    let (low, high) = (
        find_farthest_ratio(estimate, -far, is_possible),
        find_farthest_ratio(estimate, far, is_possible),
    );
    Ok(Interval { estimate, low, high })
}

/// Returns the possible ratio farthest from `inside` in the direction of `end`.
fn find_farthest_ratio(inside: f64, end: f64, is_possible: impl Fn(f64) -> bool) -> f64 {
    if is_possible(end) {
        return end;
    }
    let (mut inside, mut outside) = (inside, end);
    for _ in 0..60 {
        // The result is published with fewer digits.
        if (outside - inside).abs() <= 1e-12 * inside.abs().max(outside.abs()) {
            break;
        }
        let middle = f64::midpoint(inside, outside);
        if is_possible(middle) { inside = middle } else { outside = middle }
    }
    outside
}

/// Figures of a sample that do not depend on the residuals.
struct Precision {
    /// Number of standard deviations to each end.
    quantile: f64,
    /// Number of times that the two unobserved residuals count.
    weight: f64,
    /// For each stratum, the number of greatest residuals that a sample without any can miss.
    missed: Vec<f64>,
}

impl Precision {
    fn new(strata: &[ResidualStratum], confidence: f64) -> Result<Self, NoInterval> {
        let sizes = |stratum: &ResidualStratum| (stratum.size, stratum.sample.len() as u64);
        let is_unsampled = |(size, sampled): (u64, u64)| size > 0 && sampled == 0;
        if strata.iter().map(sizes).any(is_unsampled) {
            return Err(NoInterval::NoSample);
        }
        let uncertain = strata.iter().map(sizes).filter(|(size, sampled)| sampled < size);
        let fewest = uncertain.map(|(_, sampled)| sampled).min().unwrap_or(1);
        let probability = 0.5 + confidence / 2.0;
        let missed = |(size, sampled): (u64, u64)| {
            if sampled < size {
                bound_positives(size, sampled, 0, 2.0 * (1.0 - confidence)).1 as f64
            } else {
                0.0
            }
        };
        Ok(Self {
            quantile: student_quantile(probability, fewest as f64 + 1.0),
            weight: (normal_quantile(probability) / normal_quantile(0.975)).powi(2).max(1.0),
            missed: strata.iter().map(sizes).map(missed).collect(),
        })
    }
}

/// Estimate of a sum over the table, with half the width of its interval.
struct Total {
    value: f64,
    half_width: f64,
}

/// Estimates the sum of `y - ratio x` over the true values.
fn estimate_total(strata: &[ResidualStratum], precision: &Precision, ratio: f64) -> Total {
    let (mut value, mut variance) = (0.0, 0.0);
    let (mut missed, mut rounding) = (0.0_f64, 0.0_f64);
    // The squares of very small and very large numbers are not representable, so the residuals are
    // divided by the greatest one.
    let all = strata.iter().filter(|s| s.size > 0);
    let greatest = all.map(|s| s.extremes.compute_greatest_residual(ratio)).fold(0.0, f64::max);
    let unit = if greatest > 0.0 { greatest } else { 1.0 };
    for (stratum, missed_rows) in strata.iter().zip(&precision.missed) {
        if stratum.size == 0 {
            continue;
        }
        let (size, sampled) = (stratum.size as f64, stratum.sample.len() as f64);
        let residual = |row: &SampledRow| (row.y - row.model_y) - ratio * (row.x - row.model_x);
        let sum: f64 = stratum.sample.iter().map(residual).sum();
        value += stratum.model_y - ratio * stratum.model_x + size * sum / sampled;
        if sampled >= size {
            continue;
        }
        // The unobserved residuals have opposite signs, so they do not change the sum.
        let weight = precision.weight;
        let center = sum / (sampled + 2.0 * weight);
        let square = |residual: f64| ((residual - center) / unit).powi(2);
        let unobserved = stratum.extremes.compute_greatest_residual(ratio);
        let spread: f64 = stratum.sample.iter().map(|row| square(residual(row))).sum();
        let spread = spread + weight * (square(unobserved) + square(-unobserved));
        let mean_square = spread / (sampled + 2.0 * weight - 1.0);
        variance += size * (size - sampled) * mean_square / sampled;
        missed = missed.max(missed_rows * unobserved);
        // The estimate moves in steps, which matter if only few rows were not sampled.
        rounding = rounding.max(unobserved * sampled / size / 2.0);
    }
    let normal = precision.quantile * unit * variance.sqrt() + rounding;
    Total { value, half_width: normal.max(missed) }
}
