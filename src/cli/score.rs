//! Implements `hqdl score`.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value as Json, json};

use super::failure::Failure;
use super::{CacheFlags, ModelFlags, OutputOptions, session};
use crate::database::Database;
use crate::spec::is_server;
use crate::truth::{self, ColumnScore, Share, Truth};

/// Default number of differences to print for each column.
const DIFFERENCES: usize = 5;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    /// Reference values: a CSV file whose header names key columns and columns of the spec. Empty
    /// fields are skipped; `|` separates the values of a list.
    #[arg(long, value_name = "CSV")]
    truth: PathBuf,
    /// Maximum number of differences to print per column.
    #[arg(long, value_name = "N", default_value_t = DIFFERENCES, allow_hyphen_values = true, value_parser = super::parse_whole_number::<usize>)]
    differences: usize,
    /// Database with the published tables, to use instead of the spec's.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Copy with the published tables, to use instead of the spec's `output`.
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
}

impl Options {
    /// Returns the options for `hqdl audit --report --truth`.
    pub fn new(
        spec: PathBuf,
        truth: PathBuf,
        db: Option<PathBuf>,
        output: Option<PathBuf>,
    ) -> Self {
        Self { spec, truth, differences: DIFFERENCES, db, output }
    }
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let flags = ModelFlags {
        db: options.db.clone(),
        output: options.output.clone(),
        cache: CacheFlags::default(),
        ..ModelFlags::default()
    };
    let session = session::open_spec(&options.spec, &flags, None, "score")?;
    let (spec, target) = (&session.spec, session.spec.target());
    if !target.exists() && !is_server(target) {
        return Err(Failure::wrong_input(
            format!("{} does not exist yet", target.display()),
            "create it with `hqdl materialize`",
        ));
    }
    let truth = Truth::read_csv(&options.truth, spec)
        .map_err(|e| Failure::wrong_input(format!("--truth: {e}"), e.hint()))?;
    let expanded = Database::open(target)?;
    if !expanded.has_bookkeeping() {
        return Err(Failure::wrong_input(
            format!("{} has no published tables", target.display()),
            "create them with `hqdl materialize`, or name another database with --output",
        ));
    }
    let scores = truth::score_columns(spec, &expanded, &truth)?;
    if output_options.json {
        anstream::println!("{}", truth::scores_to_json(&scores));
        return Ok(ExitCode::SUCCESS);
    }
    if !truth.ignored.is_empty() && !output_options.quiet {
        let names = truth.ignored.join(", ");
        anstream::eprintln!(
            "note: ignored columns that belong to no expansion of this file: {names}"
        );
    }
    let absent: u64 = scores
        .iter()
        .filter_map(|score| score.states.get(truth::ABSENT))
        .map(|share| share.total)
        .max()
        .unwrap_or_default();
    if absent > 0 && !output_options.quiet {
        anstream::eprintln!(
            "note: no row is published for {} of {}, so their cells count as wrong: check the keys",
            crate::format::format_count(absent, "line"),
            options.truth.display()
        );
    }
    anstream::println!("{}", build_summary_table(&scores));
    for score in &scores {
        print_column(score, options.differences);
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a share with its interval: `56.2 % (52.5 to 59.8)`.
fn format_share(share: Share) -> String {
    let (low, high) = share.interval();
    format!("{:.1} % ({low:.1} to {high:.1})", share.percent())
}

/// Returns a table with one row per column.
fn build_summary_table(scores: &[ColumnScore]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["column", "truths", "right", "accuracy (95 %)", "F1 (95 %)"]);
    for score in scores {
        table.add_row([
            format!("{}.{}", score.expansion, score.column),
            score.accuracy.total.to_string(),
            format!("{:.0}", score.accuracy.correct),
            format_share(score.accuracy),
            format_share(score.f1),
        ]);
    }
    for at in 1..5 {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints a column's results by state and model, and its differences.
fn print_column(score: &ColumnScore, max_differences: usize) {
    anstream::println!("\n{}.{}", score.expansion, score.column);
    for (what, shares) in [("state", &score.states), ("model", &score.models)] {
        for (name, share) in shares {
            anstream::println!("  {what} {name}: {:.0} of {} right", share.correct, share.total);
        }
    }
    for differs in score.differs.iter().take(max_differences) {
        let value = match &differs.value {
            Json::Null => differs.state.clone(),
            value => value.to_string(),
        };
        anstream::println!("  {}: {value} instead of {}", json!(differs.key), differs.truth);
    }
    if score.differs.len() > max_differences {
        anstream::println!("  … {} more", score.differs.len() - max_differences);
    }
}
