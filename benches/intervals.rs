//! How often the intervals of `hqdl query --interval` contain the truth: `cargo bench --bench
//! intervals`, with the recordings of SWAN beside the project (`../shared`, or `HQDL_SHARED`).
//!
//! * Counts: all samples are enumerated, so the coverage is exact. One cell is a model, a sample
//!   size, and a true value of a column (or a conjunction of two). The leverage design is that of
//!   the average height of the same rows.
//! * Sums, averages and ratios: `HQDL_BENCH_DRAWS` samples of each cell [default: 10000], for
//!   the values of at least 10 rows, and at most 1000 samples for rarer values.
//!
//! `HQDL_BENCH_RECORDINGS` names other recordings of the same database, separated by `:`.
//! `HQDL_BENCH_CHART` names an SVG file to write.

// A bench that cannot be set up has nothing to measure.
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hqdl::materialize::{RunMode, Selection};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;
use hqdl::swan::chart::{Axis, Chart, Series, Stroke};
use hqdl_statistics::{
    CountCoverage, CoveredTable, ResidualStratum, SampledRow, draw_rows, estimate_ratio,
    estimate_sum,
};
use hqdl_testkit::engine::shared_folder;
use hqdl_testkit::repository_root;

const CONFIDENCE: f64 = 0.95;
const SIZES: [u64; 3] = [50, 100, 200];

/// True and answered values of the seven columns, with height and weight.
const ROWS: &str = "
    SELECT e.colour, h.colour, k.colour, p.publisher_name, r.race, g.gender, a.alignment,
           l.eye_color, l.hair_color, l.skin_color, l.publisher_name, l.race, l.gender, l.moral_alignment,
           s.height_cm, s.weight_kg
    FROM superhero AS s JOIN llm AS l ON l.superhero_name = s.superhero_name AND l.full_name IS s.full_name
    JOIN colour AS e ON e.id = s.eye_colour_id JOIN colour AS h ON h.id = s.hair_colour_id
    JOIN colour AS k ON k.id = s.skin_colour_id JOIN publisher AS p ON p.id = s.publisher_id
    JOIN race AS r ON r.id = s.race_id JOIN gender AS g ON g.id = s.gender_id
    JOIN alignment AS a ON a.id = s.alignment_id ORDER BY s.id";

const COLUMNS: [&str; 7] = ["eye", "hair", "skin", "publisher", "race", "gender", "alignment"];

/// Conjunctions of two values.
const CONJUNCTIONS: [[(usize, &str); 2]; 8] = [
    [(6, "Good"), (5, "Male")],
    [(3, "DC Comics"), (6, "Bad")],
    [(4, "Human"), (5, "Female")],
    [(0, "Blue"), (3, "Marvel Comics")],
    [(1, "Black"), (6, "Good")],
    [(4, "Mutant"), (3, "Marvel Comics")],
    [(0, "Blue"), (1, "Blond")],
    [(2, "Green"), (6, "Good")],
];

/// A hero: true values, answers, height and weight.
struct Hero {
    truth: Vec<Option<String>>,
    answers: Vec<Option<String>>,
    numbers: [Option<f64>; 2],
}

/// A condition: columns with their values.
type Condition = Vec<(usize, String)>;

fn holds(values: &[Option<String>], condition: &Condition) -> bool {
    condition.iter().all(|(column, value)| values[*column].as_ref() == Some(value))
}

fn main() {
    let Some(swan) = shared_folder("swan") else { return };
    let recordings: Vec<PathBuf> = match std::env::var_os("HQDL_BENCH_RECORDINGS") {
        Some(paths) => std::env::split_paths(&paths).collect(),
        None => ["gpt35", "gpt4turbo"]
            .map(|m| swan.join(format!("recordings/superhero_{m}_5shot.jsonl.gz")))
            .to_vec(),
    };
    let mut chart = Vec::new();
    for recording in &recordings {
        let heroes = load_heroes(&swan, recording);
        let name = recording.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_start_matches("superhero_").trim_end_matches(".jsonl.gz").to_owned();
        println!("\n{name}: {} rows", heroes.len());
        chart.extend(measure_counts(&name, &heroes, chart.len() / 2));
        let draws = std::env::var("HQDL_BENCH_DRAWS").ok().and_then(|d| d.parse().ok());
        let draws: u64 = draws.unwrap_or(10_000);
        measure_sums(&heroes, 10..=heroes.len(), draws);
        measure_sums(&heroes, 1..=9, draws.min(1000));
    }
    if let Some(path) = std::env::var_os("HQDL_BENCH_CHART") {
        let sizes = SIZES.map(|n| n as f64).to_vec();
        let chart = Chart {
            title: "Counts: how far the interval reaches, at 95 %".to_owned(),
            x: Axis { label: "audited rows".to_owned(), ticks: Some(sizes), minimum: 210.0 },
            y: Axis { label: "mean half-width, rows".to_owned(), ticks: None, minimum: 40.0 },
            series: chart,
        };
        std::fs::write(path, chart.to_svg()).expect("a chart");
    }
}

/// Replays a recording into a copy of the database, and reads truth and answers.
fn load_heroes(swan: &Path, recording: &Path) -> Vec<Hero> {
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("expanded.sqlite");
    let overrides = SpecOverrides {
        database: Some(swan.join("superhero.sqlite")),
        output: Some(output.clone()),
        recordings: vec![recording.to_owned()],
        ..SpecOverrides::default()
    };
    let spec = repository_root().join("crates/hqdl-swan/specs/superhero.toml");
    let spec = UncheckedSpec::read(&spec).expect("a spec");
    let session = Session::open(spec, &overrides, Cache::Temporary).expect("a sound spec");
    let model = session.connect_model().expect("recordings");
    let selection = Selection::default();
    let work = session.new_materializer(model, &selection, RunMode::Live).expect("work");
    let (_keep, interrupt) = tokio::sync::watch::channel(false);
    let listener: hqdl::generate::Listener = Arc::new(|_| {});
    work.materialize("bench", &listener, &interrupt).expect("a report");
    let expanded = rusqlite::Connection::open(output).expect("a database");
    let mut statement = expanded.prepare(ROWS).expect("tables");
    let heroes = statement.query_map([], |row| {
        let texts = |from: usize| {
            (from..from + 7).map(|n| row.get(n)).collect::<rusqlite::Result<Vec<Option<String>>>>()
        };
        Ok(Hero { truth: texts(0)?, answers: texts(7)?, numbers: [row.get(14)?, row.get(15)?] })
    });
    heroes.expect("rows").collect::<Result<_, _>>().expect("rows")
}

/// Returns every true value of every column.
fn true_values(heroes: &[Hero]) -> Vec<Condition> {
    let values = |column: usize| {
        let all = heroes.iter().filter_map(move |hero| hero.truth[column].clone());
        all.collect::<BTreeSet<_>>().into_iter().map(move |value| vec![(column, value)])
    };
    (0..COLUMNS.len()).flat_map(values).collect()
}

/// Returns the true values that occur in this number of rows.
fn find_values(heroes: &[Hero], rows: &RangeInclusive<usize>) -> Vec<Condition> {
    let mut all = true_values(heroes);
    let count =
        |condition: &Condition| heroes.iter().filter(|h| holds(&h.truth, condition)).count();
    all.retain(|condition| rows.contains(&count(condition)));
    all
}

/// Applies a function to all items, on as many threads as there are processors.
fn map_on_threads<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let chunk = items.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let work = &work;
        let chunks = items.chunks(chunk);
        let running: Vec<_> = chunks
            .map(|chunk| scope.spawn(move || chunk.iter().map(work).collect::<Vec<R>>()))
            .collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    })
}

/// Prints the exact coverage of the counts in both designs, and returns the lines of the chart.
fn measure_counts(name: &str, heroes: &[Hero], style: usize) -> Vec<Series> {
    let mut conditions = true_values(heroes);
    conditions.extend(CONJUNCTIONS.map(|c| c.map(|(n, value)| (n, value.to_owned())).to_vec()));
    let mut lines = [Vec::new(), Vec::new()];
    println!(
        "  {:<9} {:>6} {:>6} {:>22} {:>16} {:>12}",
        "count", "rows", "cells", "worst coverage", "mean half-width", "audit alone"
    );
    for is_leverage in [false, true] {
        for size in SIZES {
            let covered = map_on_threads(&conditions, |condition| {
                enumerate_count(heroes, condition, size, is_leverage)
            });
            let (mut worst, mut frequent) = ((1.0, String::new()), 0.0);
            let (mut width, mut alone) = (0.0, 0.0);
            for (condition, found) in conditions.iter().zip(covered) {
                if found.coverage < worst.0 {
                    let label: Vec<String> =
                        condition.iter().map(|(n, v)| format!("{}={v}", COLUMNS[*n])).collect();
                    worst = (found.coverage, label.join(" and "));
                }
                if heroes.iter().filter(|h| holds(&h.truth, condition)).count() >= 10 {
                    frequent += 1.0;
                    width += found.half_width;
                    alone += found.audit_half_width;
                }
            }
            println!(
                "  {:<9} {size:>6} {:>6} {:>8.2} % {:<24} {:>6.2} {:>12.2} (ratio {:.3})",
                design_name(is_leverage),
                conditions.len(),
                100.0 * worst.0,
                worst.1,
                width / frequent,
                alone / frequent,
                width / alone
            );
            if !is_leverage {
                lines[0].push((size as f64, width / frequent));
                lines[1].push((size as f64, alone / frequent));
            }
        }
    }
    let [with_answers, alone] = lines;
    let series = |name: String, points, line, hollow| Series {
        name,
        points,
        labels: Vec::new(),
        line,
        style,
        hollow,
    };
    vec![
        series(format!("{name}, with the answers"), with_answers, Stroke::Solid, false),
        series(format!("{name}, audit alone"), alone, Stroke::Dashed, true),
    ]
}

fn design_name(is_leverage: bool) -> &'static str {
    if is_leverage { "leverage" } else { "uniform" }
}

/// Enumerates all samples of this size, and returns the properties of a count's interval.
fn enumerate_count(
    heroes: &[Hero],
    condition: &Condition,
    size: u64,
    is_leverage: bool,
) -> CountCoverage {
    let average = Aggregate::Average(0);
    let rows: Vec<_> = heroes.iter().map(|h| describe_hero(average, h, condition)).collect();
    let certain = if is_leverage { size / 4 } else { 0 };
    let strata = take_greatest(&rows, guess_ratio(&rows), certain as usize);
    let mut classes = [[(0, 0); 2]; 2];
    for (hero, stratum) in heroes.iter().zip(strata) {
        let class = &mut classes[stratum][usize::from(!holds(&hero.answers, condition))];
        class.0 += 1;
        class.1 += u64::from(holds(&hero.truth, condition));
    }
    let [[named, others], [certain_named, certain_others]] = classes;
    let table = CoveredTable::new(named, others);
    let mut table = table.with_certain_rows(certain_named, certain_others);
    table.compute_uniform_coverage(size - certain, CONFIDENCE)
}

/// An aggregate over the heroes that satisfy a condition.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum(usize),
    Average(usize),
    /// Share of good heroes.
    Ratio,
}

/// Returns what a hero adds to the numerator and the denominator.
fn add_hero(aggregate: Aggregate, hero: &Hero, is_good: bool, is_chosen: bool) -> (f64, f64) {
    let (y, x) = match aggregate {
        Aggregate::Sum(n) => (hero.numbers[n].unwrap_or(0.0), 0.0),
        Aggregate::Average(n) => {
            (hero.numbers[n].unwrap_or(0.0), f64::from(u8::from(hero.numbers[n].is_some())))
        }
        Aggregate::Ratio => (f64::from(u8::from(is_good)), 1.0),
    };
    if is_chosen { (y, x) } else { (0.0, 0.0) }
}

/// Returns a hero's contributions, and all possible ones.
fn describe_hero(
    aggregate: Aggregate,
    hero: &Hero,
    condition: &Condition,
) -> (SampledRow, Vec<SampledRow>) {
    let good = |values: &[Option<String>]| values[6].as_deref() == Some("Good");
    let (model_y, model_x) =
        add_hero(aggregate, hero, good(&hero.answers), holds(&hero.answers, condition));
    let row = |(y, x)| SampledRow { y, x, model_y, model_x };
    let possible = [(false, false), (false, true), (true, true)]
        .map(|(is_good, is_chosen)| row(add_hero(aggregate, hero, is_good, is_chosen)));
    let truth = add_hero(aggregate, hero, good(&hero.truth), holds(&hero.truth, condition));
    (row(truth), possible.to_vec())
}

/// Returns the ratio of the answers; 0 if it is not a number.
fn guess_ratio(rows: &[(SampledRow, Vec<SampledRow>)]) -> f64 {
    let total = |number: fn(&SampledRow) -> f64| rows.iter().map(|r| number(&r.0)).sum::<f64>();
    let guess = total(|r| r.model_y) / total(|r| r.model_x);
    if guess.is_finite() { guess } else { 0.0 }
}

/// Returns the stratum of each row: 1 for the rows of greatest leverage, and 0 for the others.
fn take_greatest(rows: &[(SampledRow, Vec<SampledRow>)], guess: f64, count: usize) -> Vec<usize> {
    let residual = |row: &SampledRow| (row.y - row.model_y - guess * (row.x - row.model_x)).abs();
    let leverage = |n: &usize| rows[*n].1.iter().map(residual).fold(0.0, f64::max);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| leverage(b).total_cmp(&leverage(a)));
    let mut strata = vec![0; rows.len()];
    order[..count].iter().for_each(|n| strata[*n] = 1);
    strata
}

/// Prints the coverage of sums, averages and ratios in simulated samples, for the true values that
/// occur in this number of rows.
fn measure_sums(heroes: &[Hero], counts: RangeInclusive<usize>, draws: u64) {
    println!("  values of {} to {} rows, {draws} draws", counts.start(), counts.end());
    println!(
        "  {:<22} {:>5} {:>6} {:>22} {:>28}",
        "", "rows", "cells", "worst coverage", "median half-width, relative"
    );
    let conditions = find_values(heroes, &counts);
    for (label, aggregate) in [
        ("sum(height)", Aggregate::Sum(0)),
        ("avg(height)", Aggregate::Average(0)),
        ("sum(weight)", Aggregate::Sum(1)),
        ("avg(weight)", Aggregate::Average(1)),
        ("share of the good", Aggregate::Ratio),
    ] {
        for is_leverage in [false, true] {
            for size in SIZES {
                let (mut worst, mut cells, mut widths) = ((1.0, String::new()), 0, Vec::new());
                let simulated = map_on_threads(&conditions, |condition| {
                    simulate(aggregate, heroes, condition, size as usize, is_leverage, draws)
                });
                for (condition, found) in conditions.iter().zip(simulated) {
                    let Some((coverage, width)) = found else { continue };
                    cells += 1;
                    widths.push(width);
                    if coverage < worst.0 {
                        worst = (coverage, condition[0].1.clone());
                    }
                }
                widths.sort_by(f64::total_cmp);
                let design = design_name(is_leverage);
                println!(
                    "  {label:<13} {design:<8} {size:>5} {cells:>6} {:>8.2} % {:<24} {:>10.3}",
                    100.0 * worst.0,
                    worst.1,
                    widths[widths.len() / 2]
                );
            }
        }
    }
}

/// Returns the coverage and the relative half-width of an aggregate's interval; `None` if the truth
/// is not a number.
fn simulate(
    aggregate: Aggregate,
    heroes: &[Hero],
    condition: &Condition,
    size: usize,
    is_leverage: bool,
    draws: u64,
) -> Option<(f64, f64)> {
    let rows: Vec<_> = heroes.iter().map(|h| describe_hero(aggregate, h, condition)).collect();
    let total = |number: fn(&SampledRow) -> f64| rows.iter().map(|r| number(&r.0)).sum::<f64>();
    let is_ratio = !matches!(aggregate, Aggregate::Sum(_));
    let (y, x) = (total(|r| r.y), total(|r| r.x));
    let truth = if is_ratio { y / x } else { y };
    if !truth.is_finite() || truth == 0.0 {
        return None;
    }
    let guess = if is_ratio { guess_ratio(&rows) } else { 0.0 };
    let certain = if is_leverage { size / 4 } else { 0 };
    let strata = take_greatest(&rows, guess, certain);
    let sizes = if is_leverage { vec![size - certain, certain] } else { vec![size] };
    let mut frame = vec![ResidualStratum::default(); sizes.len()];
    for ((row, possible), stratum) in rows.iter().zip(&strata) {
        let stratum = &mut frame[*stratum];
        stratum.size += 1;
        stratum.model_y += row.model_y;
        stratum.model_x += row.model_x;
        possible.iter().for_each(|row| stratum.extremes.add(*row));
    }
    let (mut covered, mut width) = (0, 0.0);
    for seed in 0..draws {
        frame.iter_mut().for_each(|stratum| stratum.sample.clear());
        for drawn in draw_rows(&strata, &sizes, seed) {
            frame[drawn.stratum].sample.push(rows[drawn.row].0);
        }
        let found = if is_ratio {
            estimate_ratio(&frame, CONFIDENCE)
        } else {
            estimate_sum(&frame, CONFIDENCE)
        };
        let interval = found.expect("an interval");
        covered += u64::from(interval.contains(truth));
        width += interval.half_width();
    }
    Some((covered as f64 / draws as f64, width / draws as f64 / truth.abs()))
}
