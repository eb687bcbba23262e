//! `hqdl query`

use std::process::ExitCode;

use super::failure::{Failure, INCOMPLETE};
use super::input::{self, Input};
use super::progress::Progress;
use super::rows::{self, RowsFormat, RowsOut};
use super::{Talk, interrupt, meta};
use crate::format::{count_noun, thousands};
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

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let format =
        options.format.unwrap_or(if talk.json { RowsFormat::Json } else { RowsFormat::Table });
    if talk.json && format != RowsFormat::Json {
        return Err(Failure::input("--json and another --format", "remove one of them"));
    }
    let input = Input::open(&options.input, "query", talk)?;
    let mut rows = rows::to_stdout(format);
    match ask(&input, rows.as_mut(), talk) {
        Ok(meta) => Ok(told(&meta, &input, options, talk)),
        // A closed pipe (`| head`) is not an error.
        Err(EndedQuery::Enough) => Ok(ExitCode::SUCCESS),
        Err(EndedQuery::Failed(failure)) => {
            // If the output has begun, the failure is reported in it; otherwise as for every other
            // command.
            let told = rows.close(Err(&failure.to_json())).unwrap_or(false);
            Ok(failure.print(talk.json && !told))
        }
    }
}

/// Reasons why a query ended without a result.
enum EndedQuery {
    /// The reader closed the pipe.
    Enough,
    Failed(Failure),
}

impl From<Failure> for EndedQuery {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Runs the query and writes its rows. Opens facts and model only if the query has calls.
fn ask(input: &Input<'_>, rows: &mut dyn RowsOut, talk: Talk) -> Result<Meta, EndedQuery> {
    let mut no_model = None;
    let ran = if input.has_calls() {
        input.open_facts(talk)?;
        let model = input.model()?.map_err(|why| no_model = Some(why)).ok();
        let interrupt = interrupt::watch(Some(interrupt::FINISHING));
        let request = input.request(model, Progress::of_passes(talk), interrupt)?;
        query::run(&request, rows)
    } else {
        input.plain(interrupt::watch(None)).run(rows)
    };
    let closed = ran.and_then(|meta| {
        rows.close(Ok(&meta.to_json())).map_err(QueryError::Output)?;
        Ok(meta)
    });
    closed.map_err(|error| match error {
        QueryError::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe => EndedQuery::Enough,
        error => EndedQuery::Failed(input.failure(error, no_model)),
    })
}

/// Prints the notes of a successful query and returns its exit code.
fn told(meta: &Meta, input: &Input<'_>, options: &Options, talk: Talk) -> ExitCode {
    if options.meta {
        anstream::eprint!("{}", meta::ran(meta, &input.session.spec));
    }
    for note in meta.notes.iter().filter(|_| !talk.quiet) {
        anstream::eprintln!("note: {}", note.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let (missing, unknown) = (meta.values_missing, meta.values_unknown);
    let tried = missing - meta.values_unanswered;
    if tried > 0 && !talk.quiet {
        let without = match tried - unknown {
            0 => format!("the model does not know {}", count_noun(unknown, "value")),
            failed if unknown == 0 => format!("hqdl could not read {}", count_noun(failed, "value")),
            failed => format!(
                "hqdl could not read {}, and the model does not know {}",
                count_noun(failed, "value"),
                thousands(unknown)
            ),
        };
        anstream::eprintln!("note: {without}; they are NULL. --retry-failed asks again");
    }
    if missing == unknown && !(options.require_values && unknown > 0) {
        return ExitCode::SUCCESS;
    }
    ExitCode::from(INCOMPLETE)
}
