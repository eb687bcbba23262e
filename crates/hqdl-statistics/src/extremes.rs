//! Extremes of the rows whose true values are not known yet, for one stratum.

use crate::SampledRow;

/// Possible residuals of a stratum's rows, reduced to the corners of their convex hull.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extremes {
    /// Pairs of a residual in `x` and a residual in `y`.
    points: Vec<(f64, f64)>,
    /// Number of points above which `points` is reduced to its hull again.
    limit: usize,
    /// Minimum and maximum of a row's ratio of `y` to `x`; `None` before the first row with a
    /// ratio.
    ratio: Option<(f64, f64)>,
    /// Whether a row may have a negative `x`, or a nonzero `y` although its `x` is zero.
    is_unbounded: bool,
}

impl Extremes {
    /// Adds a possible row, given by its true values and the model's values.
    pub fn add(&mut self, row: SampledRow) {
        self.points.push((row.x - row.model_x, row.y - row.model_y));
        if self.points.len() > self.limit {
            self.points = reduce_to_hull(std::mem::take(&mut self.points));
            self.limit = 16 + 2 * self.points.len();
        }
        if row.x > 0.0 {
            let ratio = row.y / row.x;
            let (least, most) = self.ratio.unwrap_or((ratio, ratio));
            self.ratio = Some((least.min(ratio), most.max(ratio)));
        } else if row.x < 0.0 || row.y != 0.0 {
            self.is_unbounded = true;
        }
    }

    /// Returns the greatest absolute value of the residual of `y - ratio x`.
    pub(crate) fn compute_greatest_residual(&self, ratio: f64) -> f64 {
        self.points.iter().map(|(x, y)| (y - ratio * x).abs()).fold(0.0, f64::max)
    }

    /// Returns the minimum and maximum ratio of the sums of `y` and `x`; `None` if the rows do not
    /// bound the ratio. If no `x` is negative, a ratio of sums lies between the smallest and the
    /// largest ratio of a row.
    pub(crate) fn bound_ratio<'e>(
        all: impl Iterator<Item = &'e Self> + Clone,
    ) -> Option<(f64, f64)> {
        if all.clone().any(|e| e.is_unbounded) {
            return None;
        }
        all.filter_map(|e| e.ratio).reduce(|(a, b), (c, d)| (a.min(c), b.max(d)))
    }
}

/// Reduces points to the corners of their convex hull (Andrew's monotone chain algorithm).
fn reduce_to_hull(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    points.dedup();
    if points.len() < 3 {
        return points;
    }
    let half = |points: &mut dyn Iterator<Item = (f64, f64)>| {
        let mut chain: Vec<(f64, f64)> = Vec::new();
        for point in points {
            while let [.., a, b] = chain.as_slice() {
                let turn = (b.0 - a.0) * (point.1 - a.1) - (b.1 - a.1) * (point.0 - a.0);
                if turn > 0.0 {
                    break;
                }
                chain.pop();
            }
            chain.push(point);
        }
        chain.pop();
        chain
    };
    let mut hull = half(&mut points.iter().copied());
    hull.extend(half(&mut points.iter().rev().copied()));
    hull
}
