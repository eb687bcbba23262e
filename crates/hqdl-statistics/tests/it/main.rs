//! Property tests of the intervals, by enumeration if the samples can be enumerated.

#![allow(clippy::unwrap_used, clippy::float_cmp)]

use hqdl_statistics::{
    CascadeLevel, CascadeSample, Class, CountMethod, CoveredTable, Extremes, Hypergeometric,
    NoInterval, ResidualStratum, SampledRow, bound_positives, draw_rows, estimate_count,
    estimate_positive_rows, estimate_ratio, estimate_sum, normal_quantile,
};
use proptest::prelude::*;

/// Expected figures are exact fractions, and values from tables of the normal distribution.
#[test]
fn probabilities_and_quantiles_are_exact() {
    let sample = Hypergeometric { population: 699, positives: 213, draws: 100 };
    assert!((sample.probability(30) - 0.093_099_114_418_978_11).abs() < 1e-13);
    assert!((sample.probability_at_most(20) - 0.008_146_738_219_040_698).abs() < 1e-14);
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
            let both = sample.probability_at_least(k) + sample.probability_at_most(k) - sample.probability(k);
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

/// Rows that every sample contains are known, so that they change neither coverage nor width.
#[test]
fn certain_rows_are_known() {
    let rest = || CoveredTable::new((60, 40), (140, 20));
    let without = rest().compute_uniform_coverage(50, 0.95);
    let mut table = rest().with_certain_rows((10, 4), (15, 15));
    let with = table.compute_uniform_coverage(50, 0.95);
    assert!((with.coverage - without.coverage).abs() < 1e-9, "{with:?} {without:?}");
    assert!((with.half_width - without.half_width).abs() < 1e-9, "{with:?} {without:?}");
}

/// MOVER alone covers as little as 46 % of these samples: it loses up to one row at each end, and
/// it has no bounds of its own for rare errors.
#[test]
fn counts_of_small_tables_are_covered() {
    for (rows, draws, step) in [
        (20, 10, 3),
        (20, 15, 3),
        (30, 15, 3),
        (40, 15, 2),
        (40, 30, 5),
        (60, 20, 10),
        (60, 40, 10),
    ] {
        for named in (0..=rows / 2).step_by(step) {
            for a in (0..=named).step_by(step) {
                for b in (0..=rows - named).step_by(step) {
                    let covered = CoveredTable::new((named, a), (rows - named, b))
                        .compute_uniform_coverage(draws, 0.95);
                    let coverage = covered.coverage;
                    assert!(coverage >= 0.95, "{draws} of {rows}, {a} of {named}, {b}: {coverage}");
                }
            }
        }
    }
    for (named, others, draws) in [
        ((10, 9), (10, 9), 15),
        ((15, 14), (15, 14), 15),
        ((18, 15), (22, 21), 30),
        ((30, 28), (30, 28), 20),
        ((36, 6), (39, 9), 15),
        ((144, 132), (156, 144), 43),
        ((72, 64), (128, 112), 29),
        ((400, 23), (400, 26), 110),
        ((71, 2), (140, 3), 113),
        ((23, 3), (134, 2), 86),
        ((165, 3), (99, 3), 104),
        ((31, 29), (35, 32), 35),
        ((670, 608), (1147, 1067), 126),
        ((443, 43), (1459, 155), 94),
        ((154, 132), (267, 247), 34),
        ((121, 110), (385, 188), 18),
        ((330, 170), (330, 160), 66),
    ] {
        let covered =
            CoveredTable::new(named, others).compute_uniform_coverage(draws, 0.95).coverage;
        assert!(covered >= 0.949_9, "{draws} of {named:?} and {others:?}: {covered}");
    }
}

/// Bounds for 1.2 α cover the truth only in samples and at levels for which they were measured.
#[test]
fn counts_of_large_samples_and_below_90_percent_are_covered() {
    for (named, others, draws, confidence) in [
        ((208, 134), (640, 370), 130, 0.5),
        ((500, 400), (1000, 450), 400, 0.9),
        ((4000, 2000), (16_000, 8000), 300, 0.95),
    ] {
        let covered =
            CoveredTable::new(named, others).compute_uniform_coverage(draws, confidence).coverage;
        assert!(covered >= confidence, "{draws} of {named:?} and {others:?}: {covered}");
    }
}

/// With few positive rows, MOVER misses about 1 % of the samples at every confidence.
#[test]
fn counts_are_covered_above_95_percent() {
    for (named, others, draws) in [
        ((60, 4), (60, 5), 60),
        ((45, 4), (405, 4), 110),
        ((80, 5), (370, 9), 58),
        ((60, 8), (60, 9), 60),
        ((60, 15), (60, 6), 60),
        ((40, 36), (200, 4), 60),
        ((60, 56), (60, 55), 60),
        ((100, 8), (300, 20), 80),
        ((100, 16), (300, 20), 80),
        ((30, 25), (90, 3), 40),
        ((200, 30), (200, 6), 90),
    ] {
        let mut table = CoveredTable::new(named, others);
        for confidence in [0.99, 0.9975, 0.999] {
            let covered = table.compute_uniform_coverage(draws, confidence).coverage;
            assert!(covered >= confidence, "{draws} of {named:?} and {others:?}: {covered}");
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
    assert_eq!(estimate_positive_rows(&[class(10, 0, 0)], 0.95), None);
}

/// Returns the exact coverage of a sum in which some rows have the greatest possible error, and the
/// others have none.
fn compute_sum_coverage(rows: u64, errors: u64, draws: u64, confidence: f64) -> f64 {
    let row = |y: f64| SampledRow { y, x: 0.0, model_y: 0.0, model_x: 0.0 };
    let mut extremes = Extremes::default();
    [0.0, 1.0].into_iter().for_each(|y| extremes.add(row(y)));
    let sampled = Hypergeometric { population: rows, positives: errors, draws };
    let (least, most) = sampled.support();
    let is_covered = |hits: &u64| {
        let y = |n: u64| f64::from(u8::from(n < *hits));
        let stratum = ResidualStratum {
            size: rows,
            sample: (0..draws).map(|n| row(y(n))).collect(),
            model_y: 0.0,
            model_x: 0.0,
            extremes: extremes.clone(),
        };
        let found = estimate_sum(&[stratum], confidence).unwrap();
        found.low - 1e-9 <= errors as f64 && errors as f64 <= found.high + 1e-9
    };
    (least..=most).filter(is_covered).map(|hits| sampled.probability(hits)).sum()
}

/// A normal approximation alone covers 90 % of the samples of 90 of 100 rows, and 99.1 % at a
/// confidence of 99.9 %.
#[test]
fn rare_errors_of_a_sum_are_covered() {
    for (rows, draws) in [(20, 5), (20, 15), (60, 20), (60, 50), (100, 50), (100, 90), (700, 50)] {
        for errors in (0..rows).step_by(if rows > 100 { 7 } else { 1 }) {
            for (confidence, least) in [(0.95, 0.93), (0.99, 0.985), (0.999, 0.998)] {
                let coverage = compute_sum_coverage(rows, errors, draws, confidence);
                assert!(
                    coverage >= least,
                    "{draws} of {rows}, {errors} at {confidence}: {coverage}"
                );
            }
        }
    }
}

/// The squares of these numbers are 0 or infinite.
#[test]
fn an_interval_does_not_depend_on_the_unit() {
    let interval_in = |unit: f64| {
        let row = |y: f64, model_y: f64| SampledRow {
            y: y * unit,
            x: 1.0,
            model_y: model_y * unit,
            model_x: 1.0,
        };
        let rows: Vec<SampledRow> = (0..40).map(|n| row(f64::from(n), f64::from(n % 7))).collect();
        let mut extremes = Extremes::default();
        rows.iter().for_each(|r| extremes.add(SampledRow { y: 0.0, ..*r }));
        rows.iter().for_each(|r| extremes.add(SampledRow { y: 50.0 * unit, ..*r }));
        let model_y = rows.iter().map(|r| r.model_y).sum();
        let sample = rows[..15].to_vec();
        let stratum = ResidualStratum { size: 40, sample, model_y, model_x: 40.0, extremes };
        [estimate_sum, estimate_ratio].map(|estimate| {
            let found = estimate(std::slice::from_ref(&stratum), 0.95).unwrap();
            [found.low / unit, found.high / unit]
        })
    };
    let expected = interval_in(1.0);
    assert!(expected.iter().all(|[low, high]| high - low > 1.0), "{expected:?}");
    for unit in [1e-300, 1e-170, 1e150, 1e290] {
        for (found, expected) in interval_in(unit).iter().zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                    "{unit}: {found} {expected}"
                );
            }
        }
    }
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

/// Returns the levels of a cascade: `cells` has the level of each cell, and whether the models
/// disagree. Bit n of `sample` says whether cell n is sampled.
fn to_levels(cells: &[(usize, bool)], sample: u32) -> Vec<CascadeLevel> {
    let mut levels = vec![CascadeLevel::default(); 4];
    for (n, (level, disagrees)) in cells.iter().enumerate() {
        let is_sampled = sample >> n & 1 == 1;
        levels[*level].cells += 1;
        levels[*level].sampled += u64::from(is_sampled);
        levels[*level].disagreements += u64::from(is_sampled && *disagrees);
    }
    levels
}

/// Returns the number of accepted cells that disagree and are not in the sample.
fn count_misses(cells: &[(usize, bool)], sample: u32, accepted: usize) -> usize {
    let is_miss = |(n, (level, disagrees)): &(usize, &(usize, bool))| {
        *level < accepted && *disagrees && sample >> n & 1 == 0
    };
    cells.iter().enumerate().filter(is_miss).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Over all samples, the target is missed with at most the nominal probability, wherever the
    /// disagreements are: in the confident part, in one level, in all cells.
    #[test]
    fn cascades_hold_their_target(
        cells in prop::collection::vec((0..4_usize, any::<bool>()), 2..13),
        share in 0.1..1.0_f64,
        target in 0.4..1.0_f64,
        confidence in 0.6..0.97_f64,
    ) {
        let population = cells.len() as u64;
        let sampled = ((population as f64 * share) as u32).max(1);
        let cascade = CascadeSample { population, sampled: sampled.into() };
        let allowed = (1.0 - target) * population as f64 + 1e-9;
        let allowed_outside = (1.0 - target) * f64::from(population as u32 - sampled) + 1e-9;
        let (mut samples, mut missed, mut missed_outside) = (0.0, 0.0, 0.0);
        let mut missed_bounds = vec![0.0; 5];
        for sample in (0..1_u32 << population).filter(|s| s.count_ones() == sampled) {
            samples += 1.0;
            let levels = to_levels(&cells, sample);
            let misses = |accepted| count_misses(&cells, sample, accepted) as f64;
            let chosen = cascade.choose_levels(&levels, target, confidence);
            missed += f64::from(u8::from(misses(chosen) > allowed));
            let chosen = cascade.choose_levels_outside(&levels, target, confidence);
            missed_outside += f64::from(u8::from(misses(chosen) > allowed_outside));
            for (n, choice) in cascade.list_choices(&levels, confidence).iter().enumerate() {
                prop_assert_eq!(choice.accepted, n);
                let share = 1.0 - misses(n) / population as f64;
                missed_bounds[n] += f64::from(u8::from(share < choice.bound - 1e-9));
            }
        }
        let most = (1.0 - confidence) * samples + 1e-6;
        prop_assert!(missed <= most, "{missed} of {samples}");
        prop_assert!(missed_outside <= most, "{missed_outside} of {samples}");
        prop_assert!(missed_bounds.iter().all(|missed| *missed <= most), "{missed_bounds:?}");
    }

    /// Choices become cheaper in order, and the chosen one has a bound that reaches the target.
    #[test]
    fn the_chosen_levels_are_the_most_that_reach_the_target(
        levels in prop::collection::vec((1..400_u64, 0.0..=1.0_f64, 0.0..=0.3_f64), 1..6),
        target in 0.5..=1.0_f64,
    ) {
        let to_level = |(cells, sampled, wrong): (u64, f64, f64)| {
            let sampled = (cells as f64 * sampled) as u64;
            CascadeLevel { cells, sampled, disagreements: (sampled as f64 * wrong) as u64 }
        };
        let levels: Vec<_> = levels.into_iter().map(to_level).collect();
        let sum = |of: fn(&CascadeLevel) -> u64| levels.iter().map(of).sum::<u64>();
        let cascade = CascadeSample { population: sum(|l| l.cells), sampled: sum(|l| l.sampled) };
        let choices = cascade.list_choices(&levels, 0.95);
        prop_assert!(choices.windows(2).all(|pair| pair[0].escalated >= pair[1].escalated));
        prop_assert!(choices.windows(2).all(|pair| pair[0].bound >= pair[1].bound));
        prop_assert_eq!((choices[0].bound, choices[0].expected), (1.0, 1.0));
        prop_assert_eq!(choices.last().unwrap().escalated, 0);
        let chosen = cascade.choose_levels(&levels, target, 0.95);
        prop_assert!(choices[chosen].bound >= target - 1e-6);
        if let Some(next) = choices.get(chosen + 1) {
            prop_assert!(next.bound < target + 1e-6, "{next:?}");
        }
    }
}

#[test]
fn a_cascade_needs_a_sample_that_is_large_enough() {
    let cascade = |population, sampled| CascadeSample { population, sampled };
    // Without a sampled disagreement, 5 % of 1,000 cells need 59 or so sampled cells.
    assert_eq!(cascade(1000, 40).compute_acceptable_disagreements(50, 0.95), None);
    assert_eq!(cascade(1000, 60).compute_acceptable_disagreements(50, 0.95), Some(0));
    assert_eq!(cascade(1000, 200).compute_acceptable_disagreements(50, 0.95), Some(6));
    // A target of 1 accepts an answer only if almost all cells are in the sample.
    let levels = [CascadeLevel { cells: 1000, sampled: 900, disagreements: 0 }];
    assert_eq!(cascade(1000, 900).choose_levels(&levels, 1.0, 0.95), 0);
    let levels = [CascadeLevel { cells: 1000, sampled: 960, disagreements: 0 }];
    assert_eq!(cascade(1000, 960).choose_levels(&levels, 1.0, 0.95), 1);
    // A sample of all cells leaves nothing to choose.
    let levels = [CascadeLevel { cells: 3, sampled: 3, disagreements: 3 }];
    assert_eq!(cascade(3, 3).choose_levels(&levels, 1.0, 0.95), 1);
    assert_eq!(cascade(0, 0).list_choices(&[], 0.95)[0].bound, 1.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Over all samples, a table below the target is accepted with at most the nominal probability,
    /// wherever the models are wrong.
    #[test]
    fn cascades_hold_a_target_of_true_cells(
        cells in prop::collection::vec((0..3_usize, any::<bool>(), any::<bool>()), 2..13),
        share in 0.1..1.0_f64,
        target in 0.2..1.0_f64,
        confidence in 0.6..0.97_f64,
    ) {
        let population = cells.len() as u64;
        let sampled = ((population as f64 * share) as u32).max(1);
        let cascade = CascadeSample { population, sampled: sampled.into() };
        let allowed = (1.0 - target) * population as f64 + 1e-9;
        let is_wrong = |(level, cheap, strong): &(usize, bool, bool), accepted: usize| {
            if *level < accepted { *cheap } else { *strong }
        };
        let (mut samples, mut missed) = (0.0, 0.0);
        for sample in (0..1_u32 << population).filter(|s| s.count_ones() == sampled) {
            samples += 1.0;
            let is_sampled = |n: usize| sample >> n & 1 == 1;
            let wrong = |accepted| {
                let all = cells.iter().enumerate();
                all.filter(|(n, cell)| is_sampled(*n) && is_wrong(cell, accepted)).count() as u64
            };
            let wrong: Vec<u64> = (0..=3).map(wrong).collect();
            let Some(accepted) = cascade.choose_true_levels(&wrong, target, confidence) else {
                continue;
            };
            // The sampled cells have the strong model's answers.
            let all = cells.iter().enumerate();
            let published = all.filter(|(n, cell)| is_wrong(cell, if is_sampled(*n) { 0 } else { accepted }));
            missed += f64::from(u8::from(published.count() as f64 > allowed));
        }
        prop_assert!(missed <= (1.0 - confidence) * samples + 1e-6, "{missed} of {samples}");
    }
}

#[test]
fn a_target_that_the_strong_model_misses_is_refused() {
    let cascade = CascadeSample { population: 699, sampled: 100 };
    assert_eq!(cascade.choose_true_levels(&[9, 9, 30], 0.95, 0.95), None);
    assert_eq!(cascade.choose_true_levels(&[1, 1, 30], 0.95, 0.95), Some(1));
    // The sampled cells would become worse.
    assert_eq!(cascade.choose_true_levels(&[1, 0, 0], 0.95, 0.95), Some(0));
}
