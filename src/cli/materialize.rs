//! Implements `hqdl materialize`.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::failure::{Failure, INCOMPLETE};
use super::progress::{Progress, format_duration, parenthesize_notes};
use super::{ModelFlags, OutputOptions, interrupt, session};
use crate::cell::State;
use crate::format::{format_cost, format_count, format_thousands, format_usd_bound};
use crate::generate::Event;
use crate::materialize::{ExportResult, Report, RunMode, Selection, UnansweredFile};
use crate::model;
use crate::spec::{ModelSettings, Provider, Spec, is_server};

/// Maximum number of restarts of a run whose database is replaced while it runs.
const MAX_RESTARTS: usize = 3;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    #[command(flatten)]
    select: SelectionFlags,
    /// Maximum cost of this run in USD.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    /// Ask through the endpoint's Batch API: answers within a day, usually at half the price. If
    /// the command is interrupted or killed, the next one resumes the batch.
    #[arg(long)]
    batch: bool,
    /// Write the requests into batch files in DIR instead of sending them. `hqdl import` reads the
    /// answers.
    #[arg(long, value_name = "DIR", conflicts_with = "batch")]
    batch_file: Option<PathBuf>,
    /// Include cells that an earlier, unanswered batch file already contains (if you submit both
    /// files, you pay twice).
    #[arg(long, requires = "batch_file")]
    again: bool,
    /// Exit with code 1 if the model does not know a value. By default, such a cell counts as
    /// answered.
    #[arg(long)]
    require_values: bool,
    #[command(flatten)]
    flags: ModelFlags,
}

/// Flags that select the cells to ask for.
#[derive(Debug, Clone, clap::Args)]
pub struct SelectionFlags {
    /// Ask only about the first N keys with missing cells. The next run continues after them.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = super::parse_whole_number::<u64>)]
    limit: Option<u64>,
    /// Ask only for these columns.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    columns: Option<Vec<String>>,
    /// Ask only about keys of source rows that match this SQL condition.
    #[arg(long = "where", value_name = "SQL")]
    filter: Option<String>,
    /// Ask again for all cells of a column. If the run ends early, the next one continues.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    refresh: Vec<String>,
    /// Ask again for cells whose passages from the documents of [expansion.evidence] have changed
    /// since the answer.
    #[arg(long)]
    refresh_evidence: bool,
    /// Ask again for cells that were answered without a value.
    #[arg(long)]
    retry_failed: bool,
}

impl SelectionFlags {
    /// Returns the flags that ask again for cells with an answer.
    fn list_repeating_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if !self.refresh.is_empty() {
            flags.push(format!("--refresh {}", self.refresh.join(",")));
        }
        if self.refresh_evidence {
            flags.push("--refresh-evidence".to_owned());
        }
        if self.retry_failed {
            flags.push("--retry-failed".to_owned());
        }
        flags
    }

    /// Converts the flags to a selection.
    pub fn to_selection(&self) -> Selection {
        Selection {
            limit: self.limit,
            columns: self
                .columns
                .as_ref()
                .map(|all| all.iter().map(|c| c.trim().to_owned()).collect()),
            filter: self.filter.clone(),
            refresh: self.refresh.iter().map(|c| c.trim().to_owned()).collect(),
            refresh_evidence: self.refresh_evidence,
            retry_failed: self.retry_failed,
        }
    }
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let (progress, listener) = Progress::new(output_options);
    let command = format!("materialize {}", options.spec.display());
    let open = || session::open_spec(&options.spec, &options.flags, options.budget, &command);
    let mut session = open()?;
    session::print_warnings(&session.warnings, output_options);
    session::print_cache_location(session.facts()?, output_options);
    let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
    let selection = options.select.to_selection();
    let mut earlier: Vec<Report> = Vec::new();
    let mut report = loop {
        let model = match (&options.batch_file, session.spec.model.provider) {
            // Writing batch files needs no API key; only submitting the files does.
            (Some(_), provider) if provider != Provider::Replay => {
                model::connect_for_export(&session.spec)?
            }
            _ => session.connect_model()?,
        };
        let run_mode = if options.batch { RunMode::Batch } else { RunMode::Live };
        let materializer = session.new_materializer(model, &selection, run_mode)?;
        if output_options.verbose {
            anstream::eprintln!("database   {}", session.spec.database.display());
            anstream::eprintln!("model      {}", materializer.model_name());
        }
        if let Some(dir) = &options.batch_file {
            if dir.is_file() {
                let message = format!("--batch-file: {} is a file", dir.display());
                return Err(Failure::wrong_input(message, "name a directory for the batch files"));
            }
            let exported = materializer.export_batches(
                (dir, options.again),
                &command,
                &listener,
                &interrupt,
            )?;
            progress.finish();
            print_exported_files(&exported, &session.spec.model, output_options);
            return Ok(ExitCode::SUCCESS);
        }
        // A run that failed to start gets an empty report.
        let report = materializer
            .materialize(&command, &listener, &interrupt)
            .unwrap_or_else(|failed| Report { failure: Some(failed), ..Report::default() });
        drop(materializer);
        if !report.is_database_replaced() || earlier.len() >= MAX_RESTARTS {
            break report;
        }
        // Continue the same run with the new file.
        let path = session.spec.database.display();
        listener(&Event::Warning(format!(
            "{path} was replaced by another file; hqdl reads the new one"
        )));
        earlier.push(report);
        session = session.with_reloaded_spec(open()?);
    };
    progress.finish();
    earlier.iter().for_each(|before| report.merge_previous_report(before));
    let seconds = progress.elapsed_seconds();
    // Print no summary if the run was stopped before it got any answer.
    let nothing = report.stop_reason.is_some() && report.requested.total() == 0;
    let began = report.usage.requests > 0 || report.failure.is_none() && !nothing;
    // With --json, `done` is always the last line.
    let failure = Failure::take_from_report(&mut report);
    let exit = match &failure {
        Some(failure) => failure.print_error(output_options.json),
        None if report.is_fulfilled(&selection, options.require_values) => ExitCode::SUCCESS,
        None => ExitCode::from(INCOMPLETE),
    };
    if output_options.json || began {
        let flags = options.select.list_repeating_flags();
        print_report(&report, &session.spec, &flags, seconds, output_options);
    }
    if failure.is_none() && !output_options.json && !output_options.quiet {
        print_failed_cells(&report);
    }
    Ok(exit)
}

/// Prints what to do about cells whose answers are not valid, unless the run has already done so.
fn print_failed_cells(report: &Report) {
    let failed = report.cells.count_failed_cells() - report.cells.get(State::Error);
    if failed > 0 && report.find_common_failure().is_none() {
        anstream::eprintln!(
            "note: {} got no valid answer; `hqdl why` shows the reason, and --retry-failed asks again",
            format_count(failed, "cell")
        );
    }
}

/// Prints the results of a run. `flags` are those of the run that ask again for known cells.
pub fn print_report(
    report: &Report,
    spec: &Spec,
    flags: &[String],
    seconds: f64,
    output_options: OutputOptions,
) {
    if output_options.json {
        anstream::println!("{}", report.to_json(seconds));
    } else if !output_options.quiet {
        if output_options.verbose || report.requested.total() > 0 {
            print_columns(report);
        }
        print_summary(report, spec, flags, seconds);
    }
}

/// Prints the batch files for the user to submit.
fn print_exported_files(
    exported: &ExportResult,
    model: &ModelSettings,
    output_options: OutputOptions,
) {
    let files = &exported.files;
    for file in &exported.unanswered_files {
        print_unanswered_file(file, output_options);
    }
    for file in files {
        let path = file.path.display();
        if output_options.json {
            let line = json!({
                "event": "written", "file": file.path, "requests": file.requests,
                "most_tokens": file.max_spent.tokens, "most_usd": model.price.is_some().then_some(file.max_spent.usd),
            });
            anstream::println!("{line}");
        } else {
            anstream::println!("written    {path}: {}", format_count(file.requests, "request"));
        }
    }
    if output_options.json || output_options.quiet {
        return;
    }
    if files.is_empty() {
        let more = if exported.unanswered_files.is_empty() { "" } else { " beside these" };
        anstream::eprintln!("no cell is missing{more}, so hqdl wrote no file");
        return;
    }
    let max_usd: f64 = files.iter().map(|w| w.max_spent.usd).sum();
    if model.price.is_some() {
        anstream::println!(
            "cost       at most {}; `hqdl plan --batch` prints the likely cost",
            format_usd_bound(max_usd)
        );
    }
    anstream::eprintln!(
        "submit them as batches for /v1{}, then run `hqdl import SPEC OUTPUT...`",
        model.provider.request_path()
    );
}

/// Prints an earlier export's unanswered file, whose cells this export skipped.
fn print_unanswered_file(file: &UnansweredFile, output_options: OutputOptions) {
    let is_there = file.path.as_ref().is_some_and(|p| p.exists());
    if output_options.json {
        let line = json!({
            "event": "unanswered", "file": file.path, "exists": is_there, "cells": file.cells,
            "requests": file.requests, "unanswered": file.unanswered_requests,
        });
        anstream::println!("{line}");
    } else if !output_options.quiet {
        let path = file.path.as_ref().map_or("a file".to_owned(), |p| p.display().to_string());
        let gone = if is_there { "" } else { " (deleted since)" };
        let have = if file.unanswered_requests == 1 { "has" } else { "have" };
        let advice = if is_there { "`hqdl import` reads its answers; " } else { "" };
        anstream::eprintln!(
            "note: {path}{gone} already contains {}: {} of {} {have} no answer yet. {advice}--again writes these cells again",
            format_count(file.cells, "cell"),
            format_thousands(file.unanswered_requests),
            format_count(file.requests, "request")
        );
    }
}

/// Prints the states and usage of each column on stderr.
fn print_columns(report: &Report) {
    let states: Vec<State> = State::ALL.into_iter().filter(|s| report.cells.get(*s) > 0).collect();
    let mut header = vec!["expansion", "column"];
    header.extend(states.iter().map(|s| s.name()));
    if report.unasked > 0 {
        header.push("missing");
    }
    header.extend(["requests", "tokens in", "out", "cost"]);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(&header);
    let number = |n: f64| format_thousands(n.round() as u64);
    for c in report.columns.iter().flatten() {
        let mut row = vec![c.expansion.clone(), c.column.clone()];
        row.extend(states.iter().map(|s| format_thousands(c.cells.get(*s))));
        if report.unasked > 0 {
            row.push(format_thousands(c.unasked));
        }
        row.push(format_thousands(c.usage.requests));
        row.push(number(c.usage.input_tokens));
        row.push(number(c.usage.output_tokens));
        row.push(if report.has_price { format_cost(c.usage.cost_usd) } else { "?".to_owned() });
        table.add_row(row);
    }
    for at in 2..header.len() {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    anstream::eprintln!("{table}");
}

/// Returns a message about how to retry the cells whose requests failed. If a flag such as `--refresh`
/// selected such a cell, the cell keeps its earlier answer, so the retry needs the same flag.
fn describe_next_attempt(report: &Report, flags: &[String], errors: u64) -> String {
    let kept = errors.saturating_sub(report.cells.get(State::Error));
    if flags.is_empty() || kept == 0 {
        return "asked again by the next run".to_owned();
    }
    format!("asked again by the next run with {}", flags.join(" "))
}

fn print_summary(report: &Report, spec: &Spec, flags: &[String], seconds: f64) {
    let tables: Vec<&str> = spec
        .expansions
        .iter()
        .flat_map(|e| {
            let many = e.columns.iter().filter_map(|c| c.many.as_ref().map(|m| m.table.as_str()));
            std::iter::once(e.name.as_str()).chain(many)
        })
        .collect();
    let is_there = is_server(&report.target) || report.target.exists();
    let verb = match report.published {
        true => "published ",
        false if is_there => "unchanged ",
        false => "not published:",
    };
    anstream::println!("{verb} {} in {}", tables.join(", "), report.target.display());
    let mut states: Vec<String> = State::ALL
        .iter()
        .filter(|s| report.cells.get(**s) > 0)
        .map(|s| format!("{} {}", s.name(), format_thousands(report.cells.get(*s))))
        .collect();
    if report.unasked > 0 {
        states.push(format!("missing {}", format_thousands(report.unasked)));
    }
    let total = format_thousands(report.cells.total() + report.unasked);
    let colon = if states.is_empty() { "" } else { ": " };
    anstream::println!("cells      {total}{colon}{}", states.join(", "));
    let errors = report.requested.get(State::Error);
    if let Some(why) = report.last_error.as_ref().filter(|_| errors > 0) {
        anstream::println!(
            "failed     {}, {}: {why}",
            format_count(errors, "cell"),
            describe_next_attempt(report, flags, errors)
        );
    }
    // Number of cells that got no value in this run but keep the value of an earlier answer.
    let kept = report
        .requested
        .count_cells_without_value()
        .saturating_sub(report.cells.count_cells_without_value() + errors);
    if kept > 0 {
        anstream::println!(
            "unchanged  {} got no new value and kept the earlier one",
            format_count(kept, "cell")
        );
    }
    anstream::println!("reused     {}", format_thousands(report.reused));
    anstream::println!("requests   {}", format_thousands(report.usage.requests));
    anstream::println!(
        "tokens     {} in, {} out",
        format_thousands(report.usage.input_tokens),
        format_thousands(report.usage.output_tokens)
    );
    let cost = if report.has_price {
        format_cost(report.usage.cost_usd)
    } else {
        format!("unknown: set `price` in {}", spec.find_unpriced_table())
    };
    anstream::println!("cost       {cost}{}", parenthesize_notes(&report.price_notes()));
    if report.in_doubt.requests > 0 {
        let upper_bound = if report.has_price {
            format_usd_bound(report.in_doubt.max_spent.usd)
        } else {
            format!("{} tokens", format_thousands(report.in_doubt.max_spent.tokens))
        };
        anstream::println!(
            "in doubt   up to {upper_bound}, for {} that ended without an answer",
            format_count(report.in_doubt.requests, "request")
        );
    }
    anstream::println!("time       {}", format_duration(seconds));
}
