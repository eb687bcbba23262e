//! Implements `hqdl import`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::failure::{Failure, INCOMPLETE};
use super::materialize::print_report;
use super::progress::Progress;
use super::{CacheFlags, ModelFlags, OutputOptions, interrupt, session};
use crate::format::format_count;
use crate::materialize::{ImportResult, RunMode, Selection};
use crate::model;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    /// Output and error files of the batches: JSON lines, plain or .gz.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Database to use instead of the spec's.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Publish into a copy of the database at this path.
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Exit with code 1 if the model does not know a value. By default, such a cell counts as
    /// answered.
    #[arg(long)]
    require_values: bool,
    #[command(flatten)]
    cache: CacheFlags,
}

/// Checks that a file can be the output of a batch.
fn check_batch_output(file: &Path) -> Result<(), Failure> {
    let hint = "name the output files of batches: JSON lines with `custom_id` and `response`";
    let mut start = [0; 16];
    let opened = std::fs::File::open(file).and_then(|mut f| f.read(&mut start));
    let message = match opened {
        Err(error) => crate::format::describe_read_error(file, &error),
        Ok(_) if start == *b"SQLite format 3\0" => {
            format!("{} is a SQLite database, not the output of a batch", file.display())
        }
        Ok(_)
            if file.extension().is_some_and(|e| e == "gz") && !start.starts_with(&[0x1f, 0x8b]) =>
        {
            format!("{} is not a gzip file, although its name ends in .gz", file.display())
        }
        Ok(_) => return Ok(()),
    };
    Err(Failure::wrong_input(message, hint))
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let (progress, listener) = Progress::new(output_options);
    let flags = ModelFlags {
        db: options.db.clone(),
        output: options.output.clone(),
        cache: options.cache.clone(),
        ..ModelFlags::default()
    };
    for file in &options.files {
        check_batch_output(file)?;
    }
    let command = format!("import {}", options.spec.display());
    let session = session::open_spec(&options.spec, &flags, None, &command)?;
    session::print_warnings(&session.warnings, output_options);
    session::print_cache_location(session.facts()?, output_options);
    let selection = Selection::default();
    let materializer = session.new_materializer(
        model::connect_for_planning(&session.spec)?,
        &selection,
        RunMode::CachedOnly,
    )?;
    let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
    let imported = materializer.import_answers(&options.files, &command, &listener, &interrupt)?;
    let lines = &imported.lines;
    if lines.answered + lines.failed + lines.known + lines.unknown == 0 {
        let files: Vec<String> = options.files.iter().map(|f| f.display().to_string()).collect();
        let have = if files.len() == 1 { "has" } else { "have" };
        let content = match lines.unreadable {
            0 => "no line".to_owned(),
            1 => "1 line, which is not from a batch".to_owned(),
            count => format!("{}, but none of them is from a batch", format_count(count, "line")),
        };
        return Err(Failure::wrong_input(
            format!("nothing to import: {} {have} {content}", files.join(", ")),
            "name the output files of batches: JSON lines with `custom_id` and `response`",
        ));
    }
    print_import_result(&imported, output_options);
    let mut report = materializer.materialize(&command, &listener, &interrupt)?;
    report.usage = imported.usage;
    report.requested = imported.cells;
    report.add_usage(&imported.columns);
    report.reused = report.reused.saturating_sub(imported.cells.total());
    progress.finish();
    let seconds = progress.elapsed_seconds();
    let exit = match Failure::take_from_report(&mut report) {
        Some(failure) => failure.print_error(output_options.json),
        None if report.is_fulfilled(&selection, options.require_values) => ExitCode::SUCCESS,
        None => ExitCode::from(INCOMPLETE),
    };
    print_report(&report, &session.spec, &[], seconds, output_options);
    Ok(exit)
}

fn print_import_result(imported: &ImportResult, output_options: OutputOptions) {
    let lines = &imported.lines;
    if output_options.json {
        let line = serde_json::json!({
            "event": "imported", "answered": lines.answered, "failed": lines.failed,
            "known": lines.known, "unknown": lines.unknown, "unreadable": lines.unreadable,
        });
        anstream::println!("{line}");
        return;
    }
    if output_options.quiet {
        return;
    }
    anstream::println!("imported   {}", format_count(lines.answered, "answer"));
    let notes = [
        (lines.known, "imported before"),
        (lines.failed, "of failed requests: their cells stay missing, and the next run asks again"),
        (
            lines.unknown,
            "with answers to requests that are not in this cache: pass the --cache with which hqdl wrote the batch",
        ),
        (
            lines.unreadable,
            "that hqdl cannot read as output of a batch: name the files that the endpoint returned",
        ),
    ];
    for (n, what) in notes.into_iter().filter(|(n, _)| *n > 0) {
        anstream::eprintln!("note: skipped {} {what}", format_count(n, "line"));
    }
}
