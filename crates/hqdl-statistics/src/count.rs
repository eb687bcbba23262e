//! The confidence interval for a count.
//!
//! The rows have two classes: the model's answer satisfies the condition, or it does not. Exact
//! bounds for each class are combined by MOVER (the method of variance estimates recovery). If one
//! class is empty or has too few sampled rows for this, if the sample has too few positive or too
//! few negative rows, or if several strata were sampled, the exact bounds of each stratum are used
//! without classes.

use std::collections::HashMap;

use crate::Interval;
use crate::hypergeometric::bound_positives;

/// Minimum number of sampled rows per class, and of positive and negative rows in the sample, for
/// MOVER at a confidence of at most 95 %.
const FEWEST_ROWS: u64 = 5;
/// Rows added to [`FEWEST_ROWS`] each time the error probability falls by a factor of e.
const ADDED_ROWS: f64 = 4.0;
/// Number of positive or negative rows in the sample below which the normal approximation is poor.
const FEW_ROWS: u64 = 12;
/// Number of positive and negative rows in the sample from which the normal approximation is good.
const MANY_ROWS: u64 = 20;
/// Minimum number of positive and negative rows per class for less conservative bounds.
const MIXED_CLASS: u64 = 3;
/// Number of sampled rows below which a sample is small.
const SMALL_SAMPLE: u64 = 25;
/// Number of sampled rows above which the bounds of the classes have steps that are too fine for less
/// conservative bounds.
const COARSE_SAMPLE: u64 = 150;
/// Greatest error probability for which less conservative bounds were measured.
const MEASURED_ALPHA: f64 = 0.1;
/// Number of rows below which a table is small.
const SMALL_TABLE: u64 = 400;

/// Rows for which the model gave the same answer to a condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Class {
    /// Number of rows in the table.
    pub size: u64,
    /// Number of rows in the sample.
    pub sampled: u64,
    /// Number of sampled rows that truly satisfy the condition.
    pub positives: u64,
}

/// A stratum of the design: the rows that satisfy the condition according to the model, and the
/// others.
pub type CountStratum = [Class; 2];

/// Cache of exact bounds, so that they are computed only once for each sample of a class.
#[derive(Debug, Default)]
pub(crate) struct BoundCache {
    known: HashMap<(Class, u64), (u64, u64)>,
}

impl BoundCache {
    fn bound_class(&mut self, class: &Class, alpha: f64) -> (u64, u64) {
        *self
            .known
            .entry((*class, alpha.to_bits()))
            .or_insert_with(|| bound_positives(class.size, class.sampled, class.positives, alpha))
    }
}

/// Method used for a count's interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountMethod {
    /// Exact bounds for two classes, combined by MOVER.
    TwoClasses,
    /// Exact bounds for the sample, without classes.
    WholeSample,
}

/// Returns the confidence interval for the number of rows that truly satisfy a condition; `None` if
/// a nonempty stratum has no sampled row. The bounds are whole numbers.
#[must_use]
pub fn estimate_count(strata: &[CountStratum], confidence: f64) -> Option<(Interval, CountMethod)> {
    estimate_count_with_cache(&mut BoundCache::default(), strata, confidence)
}

/// Like [`estimate_count`], but with a cache, for many samples of the same table.
pub(crate) fn estimate_count_with_cache(
    bounds: &mut BoundCache,
    strata: &[CountStratum],
    confidence: f64,
) -> Option<(Interval, CountMethod)> {
    let alpha = 1.0 - confidence;
    let whole: Vec<Class> = strata.iter().map(merge_classes).collect();
    let sampled: Vec<(&CountStratum, &Class)> =
        strata.iter().zip(&whole).filter(|(_, whole)| whole.sampled < whole.size).collect();
    let [(classes, stratum)] = sampled.as_slice() else {
        return Some((bound_strata(bounds, &whole, alpha)?, CountMethod::WholeSample));
    };
    let classes = || classes.iter().filter(|c| c.size > 0);
    let is_one_class = classes().count() < 2;
    let required = required_rows(alpha);
    let is_rare = count_rarer_rows(stratum) < required;
    if is_one_class || is_rare || classes().any(|c| c.sampled < required) {
        return Some((bound_strata(bounds, &whole, alpha)?, CountMethod::WholeSample));
    }
    // In a fully sampled stratum, all rows are known.
    let known: u64 = whole.iter().filter(|w| w.sampled == w.size).map(|w| w.positives).sum();
    let is_mixed = classes().all(|c| count_rarer_rows(c) >= MIXED_CLASS);
    let class_alpha = alpha * class_error_factor(stratum, is_mixed, alpha);
    let (mut estimate, mut below, mut above) = (known as f64, 0.0, 0.0);
    for class in classes() {
        let (low, high) = bounds.bound_class(class, class_alpha);
        let center = estimate_positives(class);
        estimate += center;
        below += (center - low as f64).powi(2);
        above += (high as f64 - center).powi(2);
    }
    let (least, most) = bound_count_from_sample(&whole);
    let rounding = rounding_allowance(stratum, alpha);
    let low = (estimate - below.sqrt() - rounding).ceil().max(least);
    let high = (estimate + above.sqrt() + rounding).floor().min(most);
    Some((Interval { estimate, low, high }, CountMethod::TwoClasses))
}

/// Returns the minimum number of sampled rows per class, and of positive and negative rows in the
/// sample, for MOVER.
///
/// The normal approximation in MOVER fails first in the tails: with few positive rows, the
/// probability of a miss stays near 1 %, whatever the confidence. The number therefore grows with
/// the logarithm of the error probability.
fn required_rows(alpha: f64) -> u64 {
    let added = if is_strict(alpha) { ADDED_ROWS * (0.05 / alpha).ln() } else { 0.0 };
    FEWEST_ROWS + added.ceil() as u64
}

/// Returns true if the confidence is above 95 %. The tolerance is for the rounding of `alpha`.
fn is_strict(alpha: f64) -> bool {
    alpha < 0.05 - 1e-9
}

/// Returns the number by which the error probability is multiplied for the bounds of the classes.
/// All factors were measured by enumerating the samples of random tables.
fn class_error_factor(stratum: &Class, is_mixed: bool, alpha: f64) -> f64 {
    if is_strict(alpha) {
        // Combined bounds miss the truth up to 1.2 times as often as those of the classes.
        0.75
    } else if stratum.sampled < SMALL_SAMPLE {
        0.7
    } else if is_mixed
        && count_rarer_rows(stratum) >= MANY_ROWS
        && stratum.sampled <= COARSE_SAMPLE
        && alpha <= MEASURED_ALPHA + 1e-9
    {
        // The bounds of both classes allow for whole rows, but their sum has finer steps.
        1.2
    } else {
        1.0
    }
}

/// Returns the distance by which each end of a MOVER interval moves before it is rounded inward.
///
/// The bounds of the classes are whole numbers. MOVER loses up to one row of them at each end, which
/// matters if the interval is short, or if the error probability is small. With few positive or few
/// negative rows, the normal approximation is off by another half row.
fn rounding_allowance(stratum: &Class, alpha: f64) -> f64 {
    let rarer = count_rarer_rows(stratum);
    let rows = if is_strict(alpha) {
        1.0
    } else if rarer < FEW_ROWS {
        1.5
    } else if rarer < MANY_ROWS || stratum.size < SMALL_TABLE {
        1.0
    } else {
        stratum.sampled as f64 / stratum.size as f64
    };
    rows + 1e-9
}

/// Returns the number of sampled rows that are positive, or negative, whichever is smaller.
fn count_rarer_rows(class: &Class) -> u64 {
    class.positives.min(class.sampled - class.positives)
}

/// Returns the exact confidence interval for the number of positive rows; `None` if a nonempty
/// stratum has no sampled row.
#[must_use]
pub fn estimate_positive_rows(strata: &[Class], confidence: f64) -> Option<Interval> {
    bound_strata(&mut BoundCache::default(), strata, 1.0 - confidence)
}

/// Adds up the exact bounds of all strata. The error probability is divided evenly among the
/// strata.
fn bound_strata(bounds: &mut BoundCache, strata: &[Class], alpha: f64) -> Option<Interval> {
    let sampled_strata = strata.iter().filter(|s| s.sampled < s.size).count().max(1);
    let mut sum = Interval { estimate: 0.0, low: 0.0, high: 0.0 };
    for stratum in strata.iter().filter(|s| s.size > 0) {
        if stratum.sampled == 0 {
            return None;
        }
        let share = alpha / sampled_strata as f64;
        let (low, high) = bounds.bound_class(stratum, share);
        sum.estimate += estimate_positives(stratum);
        sum.low += low as f64;
        sum.high += high as f64;
    }
    Some(sum)
}

/// Returns the class of all rows of a stratum.
pub(crate) fn merge_classes(classes: &CountStratum) -> Class {
    let [a, b] = classes;
    Class {
        size: a.size + b.size,
        sampled: a.sampled + b.sampled,
        positives: a.positives + b.positives,
    }
}

fn estimate_positives(class: &Class) -> f64 {
    class.size as f64 * class.positives as f64 / class.sampled as f64
}

/// Returns the minimum and maximum count that are consistent with the sampled rows.
fn bound_count_from_sample(strata: &[Class]) -> (f64, f64) {
    let positives: u64 = strata.iter().map(|s| s.positives).sum();
    let others: u64 = strata.iter().map(|s| s.size - (s.sampled - s.positives)).sum();
    (positives as f64, others as f64)
}
