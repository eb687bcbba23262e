//! Quantiles of the standard normal distribution and of Student's distribution.

/// Returns the quantile for a probability between 0 and 1.
///
/// Uses Acklam's rational approximation with one step of Halley's method, which is exact to about
/// 1e-15.
#[must_use]
pub fn normal_quantile(probability: f64) -> f64 {
    let estimate = approximate_quantile(probability);
    let error = complementary_error(-estimate / std::f64::consts::SQRT_2) / 2.0 - probability;
    let step = error * std::f64::consts::TAU.sqrt() * (estimate * estimate / 2.0).exp();
    estimate - step / (1.0 + estimate * step / 2.0)
}

/// Returns the quantile of Student's distribution for a probability between 0 and 1.
///
/// Uses the expansion of Cornish and Fisher, whose error is below 1 % from 5 degrees of freedom on.
pub(crate) fn student_quantile(probability: f64, degrees_of_freedom: f64) -> f64 {
    let z = normal_quantile(probability);
    let square = z * z;
    let terms = [
        (square + 1.0) / 4.0,
        ((5.0 * square + 16.0) * square + 3.0) / 96.0,
        (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0,
    ];
    let series = terms.iter().rev().fold(0.0, |sum, term| (sum + term) / degrees_of_freedom);
    z * (1.0 + series)
}

fn approximate_quantile(probability: f64) -> f64 {
    const CENTER: ([f64; 6], [f64; 6]) = (
        [
            -3.969_683_028_665_376e1,
            2.209_460_984_245_205e2,
            -2.759_285_104_469_687e2,
            1.383_577_518_672_69e2,
            -3.066_479_806_614_716e1,
            2.506_628_277_459_239,
        ],
        [
            -5.447_609_879_822_406e1,
            1.615_858_368_580_409e2,
            -1.556_989_798_598_866e2,
            6.680_131_188_771_972e1,
            -1.328_068_155_288_572e1,
            1.0,
        ],
    );
    const TAIL: ([f64; 6], [f64; 5]) = (
        [
            -7.784_894_002_430_293e-3,
            -3.223_964_580_411_365e-1,
            -2.400_758_277_161_838,
            -2.549_732_539_343_734,
            4.374_664_141_464_968,
            2.938_163_982_698_783,
        ],
        [
            7.784_695_709_041_462e-3,
            3.224_671_290_700_398e-1,
            2.445_134_137_142_996,
            3.754_408_661_907_416,
            1.0,
        ],
    );
    let evaluate = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    if probability > 0.5 {
        return -approximate_quantile(1.0 - probability);
    }
    if probability < 0.024_25 {
        let x = (-2.0 * probability.ln()).sqrt();
        return evaluate(&TAIL.0, x) / evaluate(&TAIL.1, x);
    }
    let x = probability - 0.5;
    x * evaluate(&CENTER.0, x * x) / evaluate(&CENTER.1, x * x)
}

/// Returns the complementary error function, computed with a series or, in the tail, a continued
/// fraction.
fn complementary_error(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - complementary_error(-x);
    }
    let scale = (-x * x).exp() / std::f64::consts::PI.sqrt();
    if x < 2.0 {
        let (mut term, mut sum, mut n) = (x, x, 0.5);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= x * x / n;
            sum += term;
        }
        return 1.0 - 2.0 * scale * sum;
    }
    let fraction = (1..=60).rev().fold(x, |below, n| x + f64::from(n) / 2.0 / below);
    scale / fraction
}
