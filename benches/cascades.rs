//! How often a cascade holds its target, and what it costs: `cargo bench --bench cascades`, with the
//! recordings of SWAN beside the project (`../shared`, or `HQDL_SHARED`).
//!
//! GPT-3.5 with five shots answers first. Its confidence in a cell is the number of its four
//! recordings (zero, one, three and five shots) that have the same answer, so it is paid for four
//! times. GPT-4 is the stronger model, with five, zero, one and three shots. A price is compared
//! with that of GPT-4 for all cells ("/ strong") and of GPT-3.5 with five shots for all cells
//! ("/ cheap"). `HQDL_BENCH_DRAWS` is the number of samples of each column [default: 1000].
//!
//! * "halves": a random half of the rows chooses the threshold, and the other half tests it.
//! * "sample": 100 rows choose the threshold, as in a run, and the whole table tests it.

// A bench that cannot be set up has nothing to measure.
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;

use hqdl::materialize::{RunMode, Selection};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;
use hqdl_statistics::{CascadeLevel, CascadeSample, draw_rows};
use hqdl_testkit::engine::shared_folder;
use hqdl_testkit::repository_root;

const CONFIDENCE: f64 = 0.95;
const TARGETS: [f64; 2] = [0.9, 0.95];
const SHOTS: [&str; 4] = ["5", "0", "1", "3"];
/// Prices of 2024 in USD per million tokens, input and output.
const PRICES: [(f64, f64); 2] = [(0.5, 1.5), (10.0, 30.0)];

const COLUMNS: [(&str, &str); 7] = [
    ("eye", "eye_color"),
    ("hair", "hair_color"),
    ("skin", "skin_color"),
    ("publisher", "publisher_name"),
    ("race", "race"),
    ("gender", "gender"),
    ("alignment", "moral_alignment"),
];

/// Answers of a recording: the values of each row, and the tokens of all requests.
struct Recording {
    rows: Vec<Vec<Option<String>>>,
    tokens: (u64, u64),
}

impl Recording {
    fn cost(&self, (input, output): (f64, f64)) -> f64 {
        (self.tokens.0 as f64 * input + self.tokens.1 as f64 * output) / 1e6
    }
}

/// A cell: its level (0 if all recordings agree), and whether GPT-4 answers differently. `None` if
/// the first answer is not usable, so that GPT-4 is always asked.
type Cell = Option<(usize, bool)>;

fn main() {
    let Some(swan) = shared_folder("swan") else { return };
    let cheap = SHOTS.map(|shots| load_recording(&swan, "gpt35", shots));
    let mut worst = 1.0_f64;
    for shots in SHOTS {
        let strong = load_recording(&swan, "gpt4turbo", shots);
        worst = worst.min(measure_cascade(&cheap, &strong, shots));
    }
    println!("worst share of draws in which the target was held: {:.1} %", 100.0 * worst);
}

/// Prints the results of all columns, and returns the smallest share of draws in which the target
/// was held.
fn measure_cascade(cheap: &[Recording], strong: &Recording, shots: &str) -> f64 {
    let cheap_cost: f64 = cheap.iter().map(|recording| recording.cost(PRICES[0])).sum();
    let strong_cost = strong.cost(PRICES[1]);
    println!(
        "\nshots of GPT-4: {shots}; it costs {:.1} times as much as GPT-3.5 with {} shots, and four recordings of GPT-3.5 cost {:.1} % of it",
        strong_cost / cheap[0].cost(PRICES[0]),
        SHOTS[0],
        100.0 * cheap_cost / strong_cost
    );
    println!(
        "{:<7} {:>6} {:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}",
        "test",
        "target",
        "column",
        "cheap",
        "held",
        "refused",
        "by GPT-4",
        "agreement",
        "/ strong",
        "/ cheap"
    );
    let (mut worst, rows) = (1.0_f64, strong.rows.len());
    for (is_halves, size) in [(true, rows / 2), (false, 100)] {
        for target in TARGETS {
            for (column, (name, _)) in COLUMNS.iter().enumerate() {
                let cells: Vec<Cell> =
                    (0..rows).map(|n| to_cell(cheap, strong, n, column)).collect();
                let found = simulate(&cells, size, target, is_halves);
                worst = worst.min(found.held);
                let cost = found.escalated * strong_cost + cheap_cost;
                println!(
                    "{:<7} {target:>6} {name:<10} {:>7.1} % {:>7.1} % {:>7.1} % {:>7.1} % {:>7.1} % {:>8.1} % {:>9.2}",
                    if is_halves { "halves" } else { "sample" },
                    100.0 * found.cheap,
                    100.0 * found.held,
                    100.0 * found.refused,
                    100.0 * found.escalated,
                    100.0 * found.agreement,
                    100.0 * cost / strong_cost,
                    cost / cheap[0].cost(PRICES[0]),
                );
            }
        }
    }
    worst
}

/// Replays a recording into a copy of the database, and reads the answers.
fn load_recording(swan: &Path, model: &str, shots: &str) -> Recording {
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("expanded.sqlite");
    let recording = swan.join(format!("recordings/superhero_{model}_{shots}shot.jsonl.gz"));
    let overrides = SpecOverrides {
        database: Some(swan.join("superhero.sqlite")),
        output: Some(output.clone()),
        recordings: vec![recording],
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
    let report = work.materialize("bench", &listener, &interrupt).expect("a report");
    let expanded = rusqlite::Connection::open(output).expect("a database");
    let names: Vec<&str> = COLUMNS.iter().map(|(_, column)| *column).collect();
    let sql = format!("SELECT {} FROM llm ORDER BY superhero_name, full_name", names.join(", "));
    let mut statement = expanded.prepare(&sql).expect("tables");
    let rows = statement.query_map([], |row| (0..names.len()).map(|n| row.get(n)).collect());
    Recording {
        rows: rows.expect("rows").collect::<Result<_, _>>().expect("rows"),
        tokens: (report.usage.input_tokens, report.usage.output_tokens),
    }
}

fn to_cell(cheap: &[Recording], strong: &Recording, row: usize, column: usize) -> Cell {
    let first = cheap[0].rows[row][column].as_ref()?;
    let differs = |r: &&Recording| r.rows[row][column].as_ref() != Some(first);
    Some((cheap.iter().filter(differs).count(), differs(&strong)))
}

/// Results of all draws.
#[derive(Default)]
struct Found {
    /// Agreement if the cheap model answers all cells that it can.
    cheap: f64,
    held: f64,
    refused: f64,
    /// Share of the tested cells that GPT-4 answers.
    escalated: f64,
    agreement: f64,
}

fn simulate(cells: &[Cell], size: usize, target: f64, is_halves: bool) -> Found {
    let draws = std::env::var("HQDL_BENCH_DRAWS").ok().and_then(|d| d.parse().ok());
    let draws: u64 = draws.unwrap_or(1000);
    let sample = CascadeSample { population: cells.len() as u64, sampled: size as u64 };
    let differing = cells.iter().filter(|cell| matches!(cell, Some((_, true)))).count();
    let mut found =
        Found { cheap: 1.0 - differing as f64 / cells.len() as f64, ..Found::default() };
    for seed in 0..draws {
        let mut is_sampled = vec![false; cells.len()];
        for drawn in draw_rows(&vec![0; cells.len()], &[size], seed) {
            is_sampled[drawn.row] = true;
        }
        let mut levels = vec![CascadeLevel::default(); SHOTS.len()];
        for (cell, is_sampled) in cells.iter().zip(&is_sampled) {
            let Some((level, differs)) = cell else { continue };
            levels[*level].cells += 1;
            levels[*level].sampled += u64::from(*is_sampled);
            levels[*level].disagreements += u64::from(*is_sampled && *differs);
        }
        let accepted = if is_halves {
            sample.choose_levels_outside(&levels, target, CONFIDENCE)
        } else {
            sample.choose_levels(&levels, target, CONFIDENCE)
        };
        let (mut misses, mut escalated) = (0.0, 0.0);
        for (cell, _) in cells.iter().zip(&is_sampled).filter(|(_, is_sampled)| !**is_sampled) {
            match cell {
                Some((level, differs)) if *level < accepted => misses += f64::from(*differs),
                _ => escalated += 1.0,
            }
        }
        let tested = if is_halves { cells.len() - size } else { cells.len() } as f64;
        let answered = if is_halves { 0.0 } else { size as f64 };
        let agreement = 1.0 - misses / tested;
        found.held += f64::from(agreement >= target - 1e-9) / draws as f64;
        found.refused += f64::from(accepted == 0) / draws as f64;
        found.escalated += (escalated + answered) / tested / draws as f64;
        found.agreement += agreement / draws as f64;
    }
    found
}
