//! Implements `hqdl swan prepare`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::super::OutputOptions;
use super::super::failure::Failure;
use crate::format::format_count;
use crate::swan::benchmark::ALL;
use crate::swan::prepare::{PreparedDatabase, find_database, prepare_database};

/// Describes the source of the databases, for messages.
const BIRD: &str = "they are part of BIRD's dev set (https://bird-bench.github.io)";
/// Describes the source of the questions, for messages.
const SWAN: &str = "the questions are in SWAN's repository, which its paper names \
                    (https://arxiv.org/abs/2408.00884): two CSV files per database, with HQDL's \
                    and BlendSQL's SQL";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// BIRD's directory `dev_databases`, its parent, or a directory that contains the databases.
    #[arg(long, value_name = "DIR")]
    bird: PathBuf,
    /// Output directory. The true values go into its subdirectory `gold`.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Prepare only these databases [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Replace copies that already exist.
    #[arg(long)]
    force: bool,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let names = || ALL.map(|b| b.name).join(", ");
    if let Some(unknown) = options.only.iter().find(|n| ALL.iter().all(|b| b.name != n.as_str())) {
        let hint = format!("they are {}", names());
        return Err(Failure::wrong_input(format!("SWAN has no database `{unknown}`"), hint));
    }
    if !options.bird.is_dir() {
        let message = format!("{} is not a directory", options.bird.display());
        return Err(Failure::wrong_input(message, "pass BIRD's directory dev_databases"));
    }
    let (mut prepared, mut absent) = (Vec::new(), Vec::new());
    for benchmark in ALL {
        let named = options.only.iter().any(|n| n == benchmark.name);
        if !options.only.is_empty() && !named {
            continue;
        }
        match find_database(&options.bird, benchmark.name) {
            Some(source) => {
                let done = prepare_database(benchmark, &source, &options.out, options.force)?;
                print_prepared_database(&done, output_options);
                prepared.push(done);
            }
            None if named => return Err(missing_database_failure(options, benchmark.name)),
            None => absent.push(benchmark.name),
        }
    }
    if prepared.is_empty() {
        return Err(missing_database_failure(options, &names()));
    }
    if !absent.is_empty() && !output_options.quiet {
        let (absent, folder) = (absent.join(", "), options.bird.display());
        anstream::eprintln!("note: no {absent} in {folder}; {BIRD}");
    }
    if !output_options.quiet && !output_options.json {
        anstream::eprintln!("next: `hqdl swan run --db … --questions CSV`; {SWAN}");
    }
    Ok(ExitCode::SUCCESS)
}

fn missing_database_failure(options: &Options, names: &str) -> Failure {
    Failure::wrong_input(
        format!("{} contains no BIRD database: {names}", options.bird.display()),
        "pass BIRD's directory dev_databases, with databases at <name>/<name>.sqlite; docs/guides/swan.md explains where to download it",
    )
}

fn print_prepared_database(done: &PreparedDatabase, output_options: OutputOptions) {
    if output_options.json {
        let removed: serde_json::Map<String, serde_json::Value> =
            done.removed.iter().map(|(table, n)| (table.clone(), (*n).into())).collect();
        let line = json!({
            "event": "prepared", "database": done.name, "path": done.path, "gold": done.gold,
            "shots": done.shots, "hidden": done.hidden, "left": done.left, "rows_removed": removed,
        });
        anstream::println!("{line}");
        return;
    }
    anstream::println!("{}: {}", done.name, done.path.display());
    if output_options.quiet {
        return;
    }
    anstream::eprintln!("  hidden   {}", done.hidden.join(", "));
    if !done.left.is_empty() {
        anstream::eprintln!("  left     {}: HQDL's published SQL reads it", done.left.join(", "));
    }
    for (table, rows) in &done.removed {
        anstream::eprintln!("  removed  {} of {table}", format_count(*rows, "row"));
    }
    anstream::eprintln!("  truth    {}", done.gold.display());
    anstream::eprintln!("  shots    {}", done.shots.display());
}
