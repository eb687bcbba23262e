//! The hypergeometric distribution: the number of positive rows in a sample drawn without
//! replacement.

/// Argument above which Stirling's series is exact to the last digits of a double. For smaller
/// arguments, `ln_factorial` adds logarithms.
const SERIES_FROM: u64 = 32;

/// Returns the natural logarithm of `n!`.
fn ln_factorial(n: u64) -> f64 {
    if n < SERIES_FROM {
        return (2..=n).map(|i| (i as f64).ln()).sum();
    }
    let x = n as f64;
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1260.0));
    (x + 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series
}

/// Distribution of the number of positive rows among `draws` rows, drawn from `population` rows of
/// which `positives` are positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hypergeometric {
    /// Number of rows in the table.
    pub population: u64,
    /// Number of positive rows in the table.
    pub positives: u64,
    /// Number of rows in the sample.
    pub draws: u64,
}

impl Hypergeometric {
    /// Returns the smallest and the greatest possible number of positive rows in the sample.
    #[must_use]
    pub fn support(self) -> (u64, u64) {
        let negatives = self.population - self.positives;
        (self.draws.saturating_sub(negatives), self.draws.min(self.positives))
    }

    /// Returns the probability of `hits` positive rows in the sample.
    #[must_use]
    pub fn probability(self, hits: u64) -> f64 {
        let (least, most) = self.support();
        if hits < least || hits > most {
            return 0.0;
        }
        let negatives = self.population - self.positives;
        let ln_choose = |n: u64, k: u64| ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k);
        (ln_choose(self.positives, hits) + ln_choose(negatives, self.draws - hits)
            - ln_choose(self.population, self.draws))
        .exp()
    }

    /// Returns the probability of at least `hits` positive rows in the sample.
    #[must_use]
    pub fn probability_at_least(self, hits: u64) -> f64 {
        let (least, most) = self.support();
        if hits <= least {
            return 1.0;
        }
        let negatives = self.population - self.positives;
        let next = |probability: f64, k: u64| {
            let rise = (self.positives - k) as f64 * (self.draws - k) as f64;
            let fall = (k + 1) as f64 * (negatives + k + 1 - self.draws) as f64;
            probability * rise / fall
        };
        sum_tail(self.probability(hits), hits..most, next)
    }

    /// Returns the probability of at most `hits` positive rows in the sample.
    #[must_use]
    pub fn probability_at_most(self, hits: u64) -> f64 {
        // The negative rows of this table are the positive rows of a mirrored table.
        let mirrored = Self { positives: self.population - self.positives, ..self };
        if hits >= self.draws { 1.0 } else { mirrored.probability_at_least(self.draws - hits) }
    }
}

/// Adds probabilities in order until they no longer change the sum.
fn sum_tail(first: f64, steps: std::ops::Range<u64>, next: impl Fn(f64, u64) -> f64) -> f64 {
    let (mut sum, mut probability) = (first, first);
    for k in steps {
        let following = next(probability, k);
        sum += following;
        // Probabilities increase up to the mode, so only a decreasing probability may end the sum.
        if following < probability && following < sum * 1e-17 {
            break;
        }
        probability = following;
    }
    sum.min(1.0)
}

/// Returns exact bounds for the number of positive rows in a table, given that `hits` of `draws`
/// sampled rows are positive. On each side, the bounds include all numbers that a one-sided test at
/// level `alpha / 2` does not reject.
#[must_use]
pub fn bound_positives(population: u64, draws: u64, hits: u64, alpha: f64) -> (u64, u64) {
    let at = |positives: u64| Hypergeometric { population, positives, draws };
    let (least, most) = (hits, population - (draws - hits));
    // Both probabilities are monotonic in the number of positive rows.
    let low = find_first_true(least, most, |positives| {
        at(positives).probability_at_least(hits) > alpha / 2.0
    });
    let high = most
        - find_first_true(0, most - least, |below| {
            at(most - below).probability_at_most(hits) > alpha / 2.0
        });
    (low, high.max(low))
}

/// Returns the first number in a range for which a monotonic condition holds; `to` if there is
/// none.
fn find_first_true(from: u64, to: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut from, mut to) = (from, to);
    while from < to {
        let middle = from + (to - from) / 2;
        if holds(middle) { to = middle } else { from = middle + 1 }
    }
    to
}
