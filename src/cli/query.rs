//! `hqdl query`

use std::process::ExitCode;

use super::failure::{Failure, INCOMPLETE};
use super::input::{self, Input};
use super::progress::Progress;
use super::rows::{self, RowsFormat, RowsOut};
use super::{OutputOptions, interrupt, meta};
use crate::format::{count_noun, format_thousands};
use crate::query::{self, Meta, QueryError};

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: input::Options,
    /// Output format [default: table]. --json is --format json.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<RowsFormat>,
    /// Print routes, requests, price and the executed SQL on stderr.
    #[arg(long)]
    meta: bool,
    /// Exit with 1 if a value is NULL because the model does not know it. By default such a value
    /// counts as answered.
    #[arg(long)]
    require_values: bool,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let format = options.format.unwrap_or(if output_options.json {
        RowsFormat::Json
    } else {
        RowsFormat::Table
    });
    if output_options.json && format != RowsFormat::Json {
        return Err(Failure::wrong_input("--json and another --format", "remove one of them"));
    }
    let input = Input::open(&options.input, "query", output_options)?;
    let mut rows = rows::stdout_writer(format);
    match run_query(&input, rows.as_mut(), output_options) {
        Ok(meta) => Ok(print_notes(&meta, &input, options, output_options)),
        // A closed pipe (`| head`) is not an error.
        Err(QueryExit::PipeClosed) => Ok(ExitCode::SUCCESS),
        Err(QueryExit::Failed(failure)) => {
            // If the output has begun, the failure is reported in it; otherwise as for every other
            // command.
            let is_reported = rows.close_output(Err(&failure.to_json())).unwrap_or(false);
            Ok(failure.print_error(output_options.json && !is_reported))
        }
    }
}

/// Reasons why a query ended without a result.
enum QueryExit {
    /// The reader closed the pipe.
    PipeClosed,
    Failed(Failure),
}

impl From<Failure> for QueryExit {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Runs the query and writes its rows. Opens facts and model only if the query has calls.
fn run_query(
    input: &Input<'_>,
    rows: &mut dyn RowsOut,
    output_options: OutputOptions,
) -> Result<Meta, QueryExit> {
    let mut no_model = None;
    let ran = if input.has_calls() {
        input.open_facts(output_options)?;
        let model = input.model()?.map_err(|why| no_model = Some(why)).ok();
        let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
        let request = input.build_request(model, Progress::for_query(output_options), interrupt)?;
        query::run(&request, rows)
    } else {
        input.plain_query(interrupt::watch_ctrl_c(None)).run(rows)
    };
    let closed = ran.and_then(|meta| {
        rows.close_output(Ok(&meta.to_json())).map_err(QueryError::Output)?;
        Ok(meta)
    });
    closed.map_err(|error| match error {
        QueryError::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {
            QueryExit::PipeClosed
        }
        error => QueryExit::Failed(input.to_failure(error, no_model)),
    })
}

/// Prints the notes of a successful query and returns its exit code.
fn print_notes(
    meta: &Meta,
    input: &Input<'_>,
    options: &Options,
    output_options: OutputOptions,
) -> ExitCode {
    if options.meta {
        anstream::eprint!("{}", meta::format_finished(meta, &input.session.spec));
    }
    for note in meta.notes.iter().filter(|_| !output_options.quiet) {
        anstream::eprintln!("note: {}", note.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let (missing, unknown) = (meta.values_missing, meta.values_unknown);
    let tried = missing - meta.values_unanswered;
    if tried > 0 && !output_options.quiet {
        let without = match tried - unknown {
            0 => format!("the model does not know {}", count_noun(unknown, "value")),
            failed if unknown == 0 => {
                format!("hqdl could not read {}", count_noun(failed, "value"))
            }
            failed => format!(
                "hqdl could not read {}, and the model does not know {}",
                count_noun(failed, "value"),
                format_thousands(unknown)
            ),
        };
        anstream::eprintln!("note: {without}; they are NULL. --retry-failed asks again");
    }
    if missing == unknown && !(options.require_values && unknown > 0) {
        return ExitCode::SUCCESS;
    }
    ExitCode::from(INCOMPLETE)
}
