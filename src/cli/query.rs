//! Implements `hqdl query`.

use std::process::ExitCode;

use super::failure::{Failure, INCOMPLETE};
use super::input::{self, Input};
use super::progress::Progress;
use super::rows::{self, RowsFormat, RowsOut};
use super::{OutputOptions, interrupt, meta};
use crate::format::{format_count, format_thousands};
use crate::interval::{IntervalRequest, run_with_intervals};
use crate::query::{self, Meta, QueryError};

/// Default confidence of `--interval`, in percent.
const DEFAULT_CONFIDENCE: f64 = 95.0;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: input::Options,
    /// Output format [default: table]. --json is --format json.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<RowsFormat>,
    /// Print routes, requests, cost and the executed SQL on stderr.
    #[arg(long)]
    meta: bool,
    /// Exit with code 1 if the model does not know a value. By default, such a value is NULL and
    /// counts as answered.
    #[arg(long)]
    require_values: bool,
    /// Add a confidence interval to each aggregate `x`, as columns `x_low`, `x_high` and
    /// `x_estimate`. It covers the aggregate over the true values, which the spec's audit
    /// estimates. PERCENT is the confidence (95 if omitted).
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "95")]
    interval: Option<String>,
    /// With --interval and GROUP BY: apply the confidence to all groups together instead of to
    /// each.
    #[arg(long, requires = "interval")]
    simultaneous: bool,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let format = options.format.unwrap_or(if output_options.json {
        RowsFormat::Json
    } else {
        RowsFormat::Table
    });
    if output_options.json && format != RowsFormat::Json {
        return Err(Failure::wrong_input(
            "--json cannot be combined with another --format",
            "remove one of them",
        ));
    }
    let mut input_options = options.input.clone();
    let interval = parse_interval(options, &mut input_options)?;
    let input = Input::open(&input_options, "query", output_options)?;
    if interval.is_some() && input.has_tables_without_spec() {
        return Err(Failure::wrong_input(
            "--interval needs --spec",
            "name the spec that published the tables of this database; its audit measures the errors",
        ));
    }
    let mut rows = rows::new_stdout_writer(format);
    match run_query(&input, interval, rows.as_mut(), output_options) {
        Ok(meta) => Ok(print_notes(&meta, &input, options, output_options)),
        // A closed pipe (`| head`) is not an error.
        Err(QueryExit::PipeClosed) => Ok(ExitCode::SUCCESS),
        Err(QueryExit::Failed(failure)) => {
            // If the output has begun, it also contains the failure.
            let is_reported = rows.close_output(Err(&failure.to_json())).unwrap_or(false);
            Ok(failure.print_error(output_options.json && !is_reported))
        }
    }
}

/// Parses `--interval`. If the query follows the flag directly, clap reads it as the flag's value.
fn parse_interval(
    options: &Options,
    input: &mut input::Options,
) -> Result<Option<IntervalRequest>, Failure> {
    let Some(given) = &options.interval else { return Ok(None) };
    let percent = match given.parse::<f64>() {
        Ok(percent) => percent,
        Err(_) if !input.has_query() => {
            input.set_query(given.clone());
            DEFAULT_CONFIDENCE
        }
        Err(_) => f64::NAN,
    };
    let request = IntervalRequest::from_percent(percent, options.simultaneous);
    request.map(Some).ok_or_else(|| {
        Failure::wrong_input(
            "--interval needs a confidence in percent, from 50 to less than 100",
            "write --interval 95",
        )
    })
}

/// Reason why a query ended without a result.
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
    interval: Option<IntervalRequest>,
    rows: &mut dyn RowsOut,
    output_options: OutputOptions,
) -> Result<Meta, QueryExit> {
    let mut no_model = None;
    let ran = if let Some(interval) = interval {
        let query = input.build_plain_query(interrupt::watch_ctrl_c(None));
        run_with_intervals(&input.session.spec, &query, interval, rows)
    } else if input.has_calls() {
        input.open_facts(output_options)?;
        let model = input.connect_model()?.map_err(|why| no_model = Some(why)).ok();
        let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
        let request =
            input.build_request(model, Progress::new_query_listener(output_options), interrupt)?;
        query::run(&request, rows)
    } else {
        input.build_plain_query(interrupt::watch_ctrl_c(None)).run(rows)
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
        anstream::eprint!("{}", meta::format_finished_query(meta, &input.session.spec));
    }
    for note in meta.notes.iter().filter(|_| !output_options.quiet) {
        anstream::eprintln!("note: {}", note.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let (missing, unknown) = (meta.values_missing, meta.values_unknown);
    let tried = missing - meta.values_unanswered;
    if tried > 0 && !output_options.quiet {
        let without = match tried - unknown {
            0 => format!("the model does not know {}", format_count(unknown, "value")),
            failed if unknown == 0 => {
                format!("no usable answer for {}", format_count(failed, "value"))
            }
            failed => format!(
                "no usable answer for {}, and the model does not know {}",
                format_count(failed, "value"),
                format_thousands(unknown)
            ),
        };
        let subject = if tried == 1 { "it is" } else { "they are" };
        anstream::eprintln!("note: {without}; {subject} NULL. --retry-failed asks again");
    }
    if missing == unknown && !(options.require_values && unknown > 0) {
        return ExitCode::SUCCESS;
    }
    ExitCode::from(INCOMPLETE)
}
