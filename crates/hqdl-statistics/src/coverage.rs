//! Computes how often the confidence interval for a count contains the true count, over all
//! possible samples.

use crate::count::{BoundCache, Class, CountStratum, estimate_count_with_cache, merge_classes};
use crate::hypergeometric::Hypergeometric;

/// Probability below which a sample is not enumerated and counts as not covered.
const NEGLIGIBLE: f64 = 1e-12;

/// A table whose true values are known. Its rows are divided by the model's answer to a condition;
/// for each part, the number of rows that truly satisfy the condition is known.
#[derive(Debug, Default)]
pub struct CoveredTable {
    /// Number of rows that satisfy the condition according to the model, and how many of them truly
    /// satisfy it.
    named: (u64, u64),
    /// Number of other rows, and how many of them truly satisfy the condition.
    others: (u64, u64),
    /// Rows that every sample contains, in the same two parts.
    certain: CountStratum,
    bounds: BoundCache,
}

/// Properties of the confidence interval for a count, over all samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CountCoverage {
    /// Probability that the interval contains the true count.
    pub coverage: f64,
    /// Expected half-width of the interval.
    pub half_width: f64,
    /// Expected half-width of the exact interval that ignores the model's answers.
    pub audit_half_width: f64,
}

impl CoveredTable {
    /// Creates a table from two classes of rows. Each pair contains the number of rows in the class
    /// and the number of truly positive rows among them.
    #[must_use]
    pub fn new(named: (u64, u64), others: (u64, u64)) -> Self {
        Self { named, others, ..Self::default() }
    }

    /// Adds rows that every sample contains. The pairs are those of [`Self::new`].
    #[must_use]
    pub fn with_certain_rows(mut self, named: (u64, u64), others: (u64, u64)) -> Self {
        let to_class = |(size, positives)| Class { size, sampled: size, positives };
        self.certain = [named, others].map(to_class);
        self
    }

    /// Returns the coverage over all uniform samples of `draws` rows that are not certain.
    #[must_use]
    pub fn compute_uniform_coverage(&mut self, draws: u64, confidence: f64) -> CountCoverage {
        let named = Hypergeometric {
            population: self.named.0 + self.others.0,
            positives: self.named.0,
            draws,
        };
        let (least, most) = named.support();
        let mut sum = CountCoverage::default();
        for sampled in least..=most {
            let probability = named.probability(sampled);
            self.add_samples([sampled, draws - sampled], probability, confidence, &mut sum);
        }
        sum
    }

    /// Adds the properties of all samples with these numbers of rows from the two classes to `sum`.
    fn add_samples(
        &mut self,
        sampled: [u64; 2],
        probability: f64,
        confidence: f64,
        sum: &mut CountCoverage,
    ) {
        if probability < NEGLIGIBLE {
            return;
        }
        let certain: u64 = self.certain.iter().map(|class| class.positives).sum();
        let truth = (self.named.1 + self.others.1 + certain) as f64;
        let outcomes = |(population, positives): (u64, u64), draws: u64| {
            let sample = Hypergeometric { population, positives, draws };
            let (least, most) = sample.support();
            (least..=most).map(|hits| (hits, sample.probability(hits))).collect::<Vec<_>>()
        };
        let others = outcomes(self.others, sampled[1]);
        for (a, probability_a) in outcomes(self.named, sampled[0]) {
            for (b, probability_b) in &others {
                let probability = probability * probability_a * probability_b;
                if probability < NEGLIGIBLE {
                    continue;
                }
                let named = Class { size: self.named.0, sampled: sampled[0], positives: a };
                let other = Class { size: self.others.0, sampled: sampled[1], positives: *b };
                let strata = [[named, other], self.certain];
                let found = estimate_count_with_cache(&mut self.bounds, &strata, confidence);
                let Some((interval, _)) = found else { continue };
                sum.coverage += probability * f64::from(u8::from(interval.contains(truth)));
                sum.half_width += probability * interval.half_width();
                let merged = strata.map(|stratum| [merge_classes(&stratum), Class::default()]);
                let audit = estimate_count_with_cache(&mut self.bounds, &merged, confidence);
                sum.audit_half_width += probability * audit.map_or(0.0, |(i, _)| i.half_width());
            }
        }
    }
}
