//! Computes how many cells a cheap model may answer alone if the table must agree with a stronger
//! model.
//!
//! A random sample of the cells is answered by both models. The cells are ordered by confidence,
//! and the cheap model's answers are accepted from the most confident one down, until the sample
//! shows too many disagreements. Any order that does not depend on the sample is valid.
//!
//! Why this meets the target: let `a` be the number of disagreements that the table may have. The
//! table has more only if the accepted cells contain `a + 1` disagreements outside the sample. If
//! all disagreements are ordered by confidence, each set of positions is equally likely to be the
//! sampled one. So the number of sampled disagreements before the `a + 1`st disagreement outside
//! the sample has a known distribution (negative hypergeometric), regardless of the model, the
//! confidence and the threshold. If at most `c` sampled disagreements are accepted, the probability
//! of missing the target is at most the probability that this number is at most `c`.

use crate::hypergeometric::{Hypergeometric, bound_positives};

/// A random sample of a table's cells that both models answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CascadeSample {
    /// Number of cells in the table.
    pub population: u64,
    /// Number of cells in the sample.
    pub sampled: u64,
}

/// Cells with the same confidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CascadeLevel {
    /// Number of cells in the table.
    pub cells: u64,
    /// Number of cells in the sample.
    pub sampled: u64,
    /// Number of sampled cells on which the models disagree.
    pub disagreements: u64,
}

/// A possible threshold with its consequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CascadeChoice {
    /// Number of levels whose cheap answers are accepted, starting with the most confident level.
    pub accepted: usize,
    /// Number of cells outside the sample that the stronger model answers.
    pub escalated: u64,
    /// Estimated share of the table's cells that agree with the stronger model.
    pub expected: f64,
    /// Lower bound on the share of the table's cells that agree, at the given confidence.
    pub bound: f64,
}

impl CascadeSample {
    /// Returns the maximum number of disagreements among `cells` cells if at least the share
    /// `target` of them must agree.
    fn compute_allowed_misses(cells: u64, target: f64) -> u64 {
        // A share such as 0.95 is not represented exactly; without the correction, 5 of 100 could
        // become 4.
        ((1.0 - target) * cells as f64 + 1e-9).floor() as u64
    }

    /// Returns the probability that at most `accepted` sampled disagreements precede the `misses +
    /// 1`st disagreement outside the sample.
    fn compute_miss_probability(self, misses: u64, accepted: u64) -> f64 {
        if misses >= self.population - self.sampled {
            return 0.0;
        }
        let draws = misses + 1 + accepted;
        if draws > self.population {
            return 1.0;
        }
        let order = Hypergeometric { population: self.population, positives: self.sampled, draws };
        order.probability_at_most(accepted)
    }

    /// Returns the number of sampled disagreements that may be accepted so that, with probability
    /// `confidence`, at most `misses` cells outside the sample disagree. Returns `None` if no cell
    /// may be accepted.
    #[must_use]
    pub fn compute_acceptable_disagreements(self, misses: u64, confidence: f64) -> Option<u64> {
        let alpha = 1.0 - confidence;
        let holds =
            |accepted: u64| self.compute_miss_probability(misses, accepted) <= alpha + 1e-12;
        (0..=self.sampled).take_while(|accepted| holds(*accepted)).last()
    }

    /// Returns an upper bound on the number of disagreements outside the sample, given that there
    /// are `disagreements` sampled disagreements among the accepted cells.
    #[must_use]
    pub fn bound_misses(self, disagreements: u64, confidence: f64) -> u64 {
        let alpha = 1.0 - confidence;
        let (mut low, mut high) = (0, self.population - self.sampled);
        // The probability decreases as the number of disagreements outside the sample increases.
        while low < high {
            let middle = low + (high - low) / 2;
            if self.compute_miss_probability(middle, disagreements) <= alpha + 1e-12 {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Returns the number of levels whose cheap answers are accepted so that, with probability
    /// `confidence`, at least the share `target` of all cells agrees with the stronger model.
    /// `levels` starts with the most confident level. Sampled cells, and cells in no level, contain
    /// the stronger model's answer.
    #[must_use]
    pub fn choose_levels(self, levels: &[CascadeLevel], target: f64, confidence: f64) -> usize {
        self.choose_levels_with_misses(
            levels,
            Self::compute_allowed_misses(self.population, target),
            confidence,
        )
    }

    /// Like [`Self::choose_levels`], but the target applies only to the cells outside the sample.
    #[must_use]
    pub fn choose_levels_outside(
        self,
        levels: &[CascadeLevel],
        target: f64,
        confidence: f64,
    ) -> usize {
        let outside = self.population - self.sampled;
        self.choose_levels_with_misses(
            levels,
            Self::compute_allowed_misses(outside, target),
            confidence,
        )
    }

    fn choose_levels_with_misses(
        self,
        levels: &[CascadeLevel],
        misses: u64,
        confidence: f64,
    ) -> usize {
        let acceptable = self.compute_acceptable_disagreements(misses, confidence);
        let (mut disagreements, mut outside) = (0, 0);
        let is_accepted = |level: &&CascadeLevel| {
            disagreements += level.disagreements;
            outside += level.cells - level.sampled;
            // This few cells meet the target even if all of them disagree.
            outside <= misses || acceptable.is_some_and(|most| disagreements <= most)
        };
        levels.iter().take_while(is_accepted).count()
    }

    /// Returns the number of levels whose cheap answers are accepted so that, with probability
    /// `confidence`, at least the share `target` of all cells is correct. `wrong[n]` is the number
    /// of sampled cells that are wrong if `n` levels are accepted. Returns `None` if even the
    /// stronger model's answers do not reach the target.
    ///
    /// Tests increasing numbers of levels until a test fails. The table can miss the target only if
    /// the smallest number of levels that misses the target passes its exact test.
    #[must_use]
    pub fn choose_true_levels(self, wrong: &[u64], target: f64, confidence: f64) -> Option<usize> {
        let allowed = Self::compute_allowed_misses(self.population, target);
        let strong = wrong.first().copied().unwrap_or_default();
        // The table contains the stronger model's answers for the sampled cells. The bound applies
        // to them only if they are not less accurate than the answers under test.
        let holds =
            |wrong: &&u64| **wrong >= strong && self.bound_wrong(**wrong, confidence) <= allowed;
        wrong.iter().take_while(holds).count().checked_sub(1)
    }

    /// Returns an upper bound on the number of wrong cells in the table, given that `wrong` sampled
    /// cells are wrong.
    #[must_use]
    pub fn bound_wrong(self, wrong: u64, confidence: f64) -> u64 {
        // The bound is one side of a two-sided interval, so the error probability is doubled.
        bound_positives(self.population, self.sampled, wrong, 2.0 * (1.0 - confidence)).1
    }

    /// Like [`Self::list_choices`], but for the share of correct cells.
    #[must_use]
    pub fn list_true_choices(
        self,
        levels: &[CascadeLevel],
        wrong: &[u64],
        confidence: f64,
    ) -> Vec<CascadeChoice> {
        let (population, sampled) = (self.population.max(1) as f64, self.sampled.max(1) as f64);
        let choose = |(choice, wrong): (CascadeChoice, &u64)| CascadeChoice {
            expected: 1.0 - *wrong as f64 / sampled,
            bound: 1.0 - self.bound_wrong(*wrong, confidence) as f64 / population,
            ..choice
        };
        self.list_choices(levels, confidence).into_iter().zip(wrong).map(choose).collect()
    }

    /// Returns all possible thresholds, from the most expensive to the cheapest. Each bound
    /// individually holds with probability `confidence`.
    #[must_use]
    pub fn list_choices(self, levels: &[CascadeLevel], confidence: f64) -> Vec<CascadeChoice> {
        let outside = |level: &CascadeLevel| level.cells - level.sampled;
        let population = self.population.max(1) as f64;
        let choose = |accepted: usize| {
            let (kept, others) = levels.split_at(accepted);
            let disagreements: u64 = kept.iter().map(|level| level.disagreements).sum();
            let estimate = |level: &CascadeLevel| match level.sampled {
                0 => outside(level) as f64,
                sampled => outside(level) as f64 * level.disagreements as f64 / sampled as f64,
            };
            let unsampled: u64 = kept.iter().map(outside).sum();
            let misses = self.bound_misses(disagreements, confidence).min(unsampled);
            CascadeChoice {
                accepted,
                escalated: others.iter().map(outside).sum(),
                expected: 1.0 - kept.iter().map(estimate).sum::<f64>() / population,
                bound: 1.0 - misses as f64 / population,
            }
        };
        (0..=levels.len()).map(choose).collect()
    }
}
