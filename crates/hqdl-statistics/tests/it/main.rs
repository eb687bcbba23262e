//! Property tests of the intervals, by enumeration if the samples can be enumerated.

#![allow(clippy::unwrap_used, clippy::float_cmp)]

use hqdl_statistics::{
    Class, CountMethod, CoveredTable, Extremes, Hypergeometric, NoInterval, ResidualStratum,
    SampledRow, bound_positives, draw_rows, estimate_count, estimate_ratio, estimate_share,
    estimate_sum, normal_quantile,
};
use proptest::prelude::*;

/// Expected figures are exact fractions, and values from tables of the normal distribution.
#[test]
fn probabilities_and_quantiles_are_exact() {
    let sample = Hypergeometric { population: 699, positives: 213, draws: 100 };
    assert!((sample.probability(30) - 0.093_099_114_418_978_11).abs() < 1e-13);
    assert!((sample.at_most(20) - 0.008_146_738_219_040_698).abs() < 1e-14);
    assert!((normal_quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-12);
    assert!((normal_quantile(0.5)).abs() < 1e-15);
    assert!((normal_quantile(0.999_5) - 3.290_526_731_491_925_5).abs() < 1e-11);
    assert!((normal_quantile(1e-10) + 6.361_340_902_404_056).abs() < 1e-10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn probabilities_add_up_to_one(population in 1..400_u64, a in 0.0..1.0, b in 0.0..1.0) {
        let part = |share: f64| (population as f64 * share) as u64;
        let sample = Hypergeometric { population, positives: part(a), draws: part(b) };
        let (least, most) = sample.support();
        let sum: f64 = (least..=most).map(|k| sample.probability(k)).sum();
        prop_assert!((sum - 1.0).abs() < 1e-10, "{sum}");
        for k in least..=most {
            let both = sample.at_least(k) + sample.at_most(k) - sample.probability(k);
            prop_assert!((both - 1.0).abs() < 1e-10, "{both}");
        }
    }

    /// Exact bounds contain the truth with at least the nominal probability, for every truth.
    #[test]
    fn exact_bounds_cover_every_truth(population in 1..60_u64, a in 0.0..1.0, alpha in 0.01..0.5) {
        let draws = ((population as f64 * a) as u64).max(1);
        for positives in 0..=population {
            let sample = Hypergeometric { population, positives, draws };
            let (least, most) = sample.support();
            let covered: f64 = (least..=most)
                .filter(|hits| {
                    let (low, high) = bound_positives(population, draws, *hits, alpha);
                    low <= positives && positives <= high
                })
                .map(|hits| sample.probability(hits))
                .sum();
            prop_assert!(covered >= 1.0 - alpha - 1e-9, "{positives}: {covered}");
        }
    }

    /// The interval of a count lies within what the sampled rows allow, around its estimate.
    #[test]
    fn counts_stay_within_what_is_known(
        sizes in prop::array::uniform2(0..300_u64),
        shares in prop::array::uniform4(0.0..=1.0_f64),
        confidence in 0.5..0.999,
    ) {
        let class = |size: u64, sampled: f64, positives: f64| {
            let sampled = (size as f64 * sampled) as u64;
            Class { size, sampled, positives: (sampled as f64 * positives) as u64 }
        };
        let classes =
            [class(sizes[0], shares[0], shares[1]), class(sizes[1], shares[2], shares[3])];
        let sampled = classes[0].sampled + classes[1].sampled;
        let found = estimate_count(&[classes], confidence);
        prop_assert_eq!(found.is_none(), sampled == 0 && sizes != [0, 0]);
        if let Some((interval, _)) = found {
            let positives = (classes[0].positives + classes[1].positives) as f64;
            let negatives = sampled as f64 - positives;
            prop_assert!(positives <= interval.low && interval.low <= interval.high);
            prop_assert!(interval.high <= (sizes[0] + sizes[1]) as f64 - negatives);
            prop_assert!(interval.low <= interval.estimate.ceil());
            prop_assert!(interval.high >= interval.estimate.floor());
        }
    }

    /// A sample of all rows leaves no uncertainty.
    #[test]
    fn the_whole_table_has_its_own_numbers(rows in prop::collection::vec((0..2_u8, 0..2_u8), 1..50)) {
        let class = |answer: u8| {
            let of_class = rows.iter().filter(|(model, _)| *model == answer);
            let positives = of_class.clone().filter(|(_, truth)| *truth == 1).count() as u64;
            let size = of_class.count() as u64;
            Class { size, sampled: size, positives }
        };
        let truth = rows.iter().filter(|(_, truth)| *truth == 1).count() as f64;
        let (interval, _) = estimate_count(&[[class(1), class(0)]], 0.95).unwrap();
        prop_assert_eq!((interval.low, interval.estimate, interval.high), (truth, truth, truth));
        let sample: Vec<SampledRow> = rows
            .iter()
            .map(|(model, truth)| SampledRow {
                y: f64::from(*truth) * 7.0,
                x: f64::from(*truth),
                model_y: f64::from(*model) * 7.0,
                model_x: f64::from(*model),
            })
            .collect();
        let stratum = stratum_of(sample.len() as u64, sample.clone(), &sample);
        let sum = estimate_sum(std::slice::from_ref(&stratum), 0.95).unwrap();
        prop_assert!((sum.low - 7.0 * truth).abs() < 1e-9 && (sum.high - 7.0 * truth).abs() < 1e-9);
        if truth > 0.0 {
            let ratio = estimate_ratio(&[stratum], 0.95).unwrap();
            prop_assert!((ratio.low - 7.0).abs() < 1e-6 && (ratio.high - 7.0).abs() < 1e-6);
        }
    }

    #[test]
    fn samples_have_the_requested_rows_of_each_stratum(
        strata in prop::collection::vec(0..3_usize, 30..80),
        seed: u64,
    ) {
        let count = |h: usize| strata.iter().filter(|s| **s == h).count();
        let sizes = [count(0) / 2, count(1), count(2).min(3)];
        let drawn = draw_rows(&strata, &sizes, seed);
        prop_assert_eq!(&drawn, &draw_rows(&strata, &sizes, seed));
        for (h, size) in sizes.into_iter().enumerate() {
            prop_assert_eq!(drawn.iter().filter(|d| d.stratum == h).count(), size);
        }
        let mut rows: Vec<usize> = drawn.iter().map(|d| d.row).collect();
        prop_assert!(drawn.iter().all(|d| strata[d.row] == d.stratum));
        rows.sort_unstable();
        rows.dedup();
        prop_assert_eq!(rows.len(), drawn.len());
    }
}

/// Returns a stratum whose rows can be positive or not, each with its own value.
fn stratum_of(size: u64, sample: Vec<SampledRow>, rows: &[SampledRow]) -> ResidualStratum {
    let mut extremes = Extremes::default();
    for row in rows {
        extremes.add(SampledRow { y: 0.0, x: 0.0, ..*row });
        extremes.add(SampledRow { y: 7.0, x: 1.0, ..*row });
    }
    ResidualStratum {
        size,
        sample,
        model_y: rows.iter().map(|r| r.model_y).sum(),
        model_x: rows.iter().map(|r| r.model_x).sum(),
        extremes,
    }
}

/// Without the exact bounds of the whole sample, a rare value that the model never names would not
/// be covered.
#[test]
fn rare_values_are_covered() {
    for positives in 1..12 {
        for draws in [20, 50] {
            let covered =
                CoveredTable::new((0, 0), (200, positives)).compute_uniform_coverage(draws, 0.95);
            assert!(covered.coverage >= 0.95, "{positives} {draws}: {covered:?}");
            let covered =
                CoveredTable::new((9, 4), (191, positives)).compute_uniform_coverage(draws, 0.95);
            assert!(covered.coverage >= 0.95, "{positives} {draws}: {covered:?}");
        }
    }
}

#[test]
fn the_model_makes_a_count_more_precise() {
    let covered = CoveredTable::new((200, 180), (500, 20)).compute_uniform_coverage(100, 0.95);
    assert!(covered.coverage >= 0.95, "{covered:?}");
    assert!(covered.half_width < 0.65 * covered.audit_half_width, "{covered:?}");
}

#[test]
fn several_sampled_strata_share_the_error() {
    let class = |size, sampled, positives| Class { size, sampled, positives };
    let strata = [[class(50, 20, 15), class(50, 20, 5)], [class(50, 20, 15), class(50, 20, 5)]];
    let (interval, method) = estimate_count(&strata, 0.95).unwrap();
    assert_eq!(method, CountMethod::WholeSample);
    let (low, high) = bound_positives(100, 40, 20, 0.025);
    assert_eq!((interval.low, interval.high), (2.0 * low as f64, 2.0 * high as f64));
    // A stratum that was sampled as a whole adds no uncertainty.
    let strata = [strata[0], [class(5, 5, 3), class(5, 5, 1)]];
    let (interval, method) = estimate_count(&strata, 0.95).unwrap();
    let (alone, _) = estimate_count(&strata[..1], 0.95).unwrap();
    assert_eq!(method, CountMethod::TwoClasses);
    assert_eq!((interval.low, interval.high), (alone.low + 4.0, alone.high + 4.0));
    assert_eq!(estimate_share(&[class(10, 0, 0)], 0.95), None);
}

/// A sample without errors does not claim that there are none.
#[test]
fn a_perfect_sample_leaves_uncertainty() {
    let row = SampledRow { y: 7.0, x: 1.0, model_y: 7.0, model_x: 1.0 };
    let rows = vec![row; 100];
    let sum = estimate_sum(&[stratum_of(100, rows[..20].to_vec(), &rows)], 0.95).unwrap();
    assert!(sum.low < 700.0 && sum.high > 700.0, "{sum:?}");
}

#[test]
fn a_ratio_is_bounded_by_its_rows_or_refused() {
    let row = |y, x| SampledRow { y, x, model_y: 0.0, model_x: 0.0 };
    let rows = [vec![row(0.0, 0.0); 99], vec![row(7.0, 1.0)]].concat();
    let ratio = estimate_ratio(&[stratum_of(100, rows[90..].to_vec(), &rows)], 0.95).unwrap();
    assert_eq!((ratio.low, ratio.high), (7.0, 7.0));
    let mut unbounded = stratum_of(100, rows[90..].to_vec(), &rows);
    unbounded.extremes.add(row(1.0, 0.0));
    assert_eq!(estimate_ratio(&[unbounded], 0.95), Err(NoInterval::DenominatorNearZero));
    let empty = ResidualStratum { size: 3, ..ResidualStratum::default() };
    assert_eq!(estimate_sum(&[empty], 0.95), Err(NoInterval::NoSample));
}
