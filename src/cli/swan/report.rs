//! Implements `hqdl swan report`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::super::OutputOptions;
use super::super::failure::Failure;
use super::ScoreFlags;
use crate::swan::report;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    flags: ScoreFlags,
    /// Output directory for report.md, report.json and the charts.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let scored = options.flags.score_runs()?;
    let written = report::write_report(&scored, &options.out)?;
    for path in written {
        if output_options.json {
            anstream::println!("{}", json!({ "event": "written", "file": path }));
        } else {
            anstream::println!("{}", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
