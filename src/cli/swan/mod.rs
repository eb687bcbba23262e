//! Implements `hqdl swan`, which evaluates hqdl on the SWAN benchmark.

mod prepare;
mod report;
mod run;
mod score;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::failure::Failure;
use super::{OutputOptions, input, interrupt};
use crate::swan::score::score_runs;
use crate::swan::{RunScore, SwanError};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create SWAN's databases from BIRD's: remove the hidden columns, and store their true values
    /// separately.
    Prepare(prepare::Options),
    /// Materialize a database with a model and answer every question.
    Run(Box<run::Options>),
    /// Compare the answers of runs with the gold answers.
    Score(score::Options),
    /// Write the scores of runs as Markdown, JSON and charts, together with the published figures.
    Report(report::Options),
}

pub fn run(command: &Command, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    match command {
        Command::Prepare(options) => prepare::run(options, output_options),
        Command::Run(options) => run::run(options, output_options),
        Command::Score(options) => score::run(options, output_options),
        Command::Report(options) => report::run(options, output_options),
    }
}

impl From<SwanError> for Failure {
    fn from(error: SwanError) -> Self {
        match error {
            SwanError::Spec(error) => error.into(),
            SwanError::Model(error) => error.into(),
            SwanError::Facts(error) => error.into(),
            SwanError::Interrupted => Self::interrupted(),
            other => Self::wrong_input(other.to_string(), other.hint()),
        }
    }
}

/// Flags that name the runs to score.
#[derive(Debug, clap::Args)]
struct ScoreFlags {
    /// Directories of the runs.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Database with the true values, or the directory that `prepare` wrote.
    #[arg(long, value_name = "PATH")]
    gold: PathBuf,
    /// File with the questions [default: the run's].
    #[arg(long, value_name = "CSV")]
    questions: Option<PathBuf>,
    /// Time limit of a gold query.
    #[arg(long, value_name = "SECONDS", value_parser = input::parse_seconds, default_value = "300")]
    timeout: Duration,
}

impl ScoreFlags {
    fn score_runs(&self) -> Result<Vec<RunScore>, Failure> {
        let interrupt = interrupt::watch_ctrl_c(None);
        let questions = self.questions.as_deref();
        Ok(score_runs(&self.runs, questions, &self.gold, self.timeout, &interrupt)?)
    }
}

/// Returns a run's name for tables.
fn format_run_name(run: &RunScore) -> String {
    run.dir.file_name().unwrap_or(run.dir.as_os_str()).to_string_lossy().into_owned()
}
