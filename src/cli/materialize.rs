//! `hqdl materialize`

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::failure::{Failure, INCOMPLETE};
use super::progress::{Progress, duration, in_brackets};
use super::{ModelFlags, Talk, interrupt, session};
use crate::cell::State;
use crate::format::{count_noun, thousands};
use crate::generate::Event;
use crate::materialize::{Exported, InFile, Report, Selection, Way};
use crate::model;
use crate::spec::{Provider, Spec};

/// Maximum number of restarts of a run whose database is replaced while it runs.
const REPLACED: usize = 3;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    #[command(flatten)]
    select: SelectionFlags,
    /// Most USD that this run may spend.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::budget)]
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
    /// Exit with 1 if a cell has no value because the model does not know it. By default such a
    /// cell counts as answered.
    #[arg(long)]
    require_values: bool,
    #[command(flatten)]
    flags: ModelFlags,
}

/// Flags that select the cells to ask for.
#[derive(Debug, Clone, clap::Args)]
pub struct SelectionFlags {
    /// Ask only about the first N keys with missing cells. The next run continues after them.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Ask only for these columns.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// Ask only about keys of source rows that match this SQL condition.
    #[arg(long = "where", value_name = "SQL")]
    filter: Option<String>,
    /// Ask again for all cells of a column. If the run ends early, the next one continues.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    refresh: Vec<String>,
    /// Ask again for cells that were answered without a value.
    #[arg(long)]
    retry_failed: bool,
}

impl SelectionFlags {
    /// Returns the selection in the library's form.
    pub fn selection(&self) -> Selection {
        Selection {
            limit: self.limit,
            columns: self
                .columns
                .as_ref()
                .map(|all| all.iter().map(|c| c.trim().to_owned()).collect()),
            filter: self.filter.clone(),
            refresh: self.refresh.iter().map(|c| c.trim().to_owned()).collect(),
            retry_failed: self.retry_failed,
        }
    }
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let (progress, listener) = Progress::new(talk);
    let command = format!("materialize {}", options.spec.display());
    let open = || session::open(&options.spec, &options.flags, options.budget, &command);
    let mut session = open()?;
    session::warn(&session.warnings, talk);
    session::tell(session.facts()?, talk);
    let interrupt = interrupt::watch(Some(interrupt::FINISHING));
    let selection = options.select.selection();
    let mut earlier: Vec<Report> = Vec::new();
    let mut report = loop {
        let model = match (&options.batch_file, session.spec.model.provider) {
            // The user who submits the files has the key.
            (Some(_), Provider::Openai) => model::for_files(&session.spec)?,
            _ => session.model()?,
        };
        let way = if options.batch { Way::Batch } else { Way::Live };
        let work = session.work(model, &selection, way)?;
        if talk.verbose {
            anstream::eprintln!("database   {}", session.spec.database.display());
            anstream::eprintln!("model      {}", work.model_name());
        }
        if let Some(dir) = &options.batch_file {
            let written = work.export((dir, options.again), &command, &listener, &interrupt)?;
            progress.finish();
            print_written(&written, session.spec.model.price.is_some(), talk);
            return Ok(ExitCode::SUCCESS);
        }
        // A run that failed to start gets an empty report.
        let report = work
            .materialize(&command, &listener, &interrupt)
            .unwrap_or_else(|failed| Report { failed: Some(failed), ..Report::default() });
        drop(work);
        if !report.is_of_another_file() || earlier.len() >= REPLACED {
            break report;
        }
        // Continue the same run over the new file.
        let path = session.spec.database.display();
        listener(&Event::Warning(format!(
            "{path} was replaced by another file; hqdl reads the new one"
        )));
        earlier.push(report);
        session = session.again(open()?);
    };
    progress.finish();
    earlier.iter().for_each(|before| report.goes_on_from(before));
    let seconds = progress.seconds();
    // Print no summary of a run that ended before it asked anything.
    let nothing = report.stopped.is_some() && report.asked.total() == 0;
    let began = report.usage.requests > 0 || report.failed.is_none() && !nothing;
    // With --json, `done` is always the last line.
    let failure = Failure::of_run(&mut report);
    let exit = match &failure {
        Some(failure) => failure.print(talk.json),
        None if report.is_fulfilled(&selection, options.require_values) => ExitCode::SUCCESS,
        None => ExitCode::from(INCOMPLETE),
    };
    if talk.json || began {
        show(&report, &session.spec, seconds, talk);
    }
    Ok(exit)
}

/// Prints a run's results.
pub fn show(report: &Report, spec: &Spec, seconds: f64, talk: Talk) {
    if talk.json {
        anstream::println!("{}", report.to_json(seconds));
    } else if !talk.quiet {
        if talk.verbose || report.asked.total() > 0 {
            print_columns(report);
        }
        print(report, spec, seconds);
    }
}

/// Prints the files that the user is to submit.
fn print_written(exported: &Exported, priced: bool, talk: Talk) {
    let written = &exported.written;
    for file in &exported.before {
        print_before(file, talk);
    }
    for file in written {
        let path = file.path.display();
        if talk.json {
            let line = json!({
                "event": "written", "file": file.path, "requests": file.requests,
                "most_tokens": file.most.tokens, "most_usd": priced.then_some(file.most.usd),
            });
            anstream::println!("{line}");
        } else {
            anstream::println!("written    {path}: {}", count_noun(file.requests, "request"));
        }
    }
    if talk.json || talk.quiet {
        return;
    }
    if written.is_empty() {
        let more = if exported.before.is_empty() { "" } else { " beside these" };
        anstream::eprintln!("no cell is missing{more}, so hqdl wrote no file");
        return;
    }
    let most: f64 = written.iter().map(|w| w.most.usd).sum();
    if priced {
        anstream::println!(
            "price      ${most:.4} at most; `hqdl plan --batch` prints the likely price"
        );
    }
    anstream::eprintln!(
        "submit them as batches for /v1/chat/completions, then run `hqdl import SPEC OUTPUT...`"
    );
}

/// Prints an earlier file whose cells were left out.
fn print_before(file: &InFile, talk: Talk) {
    let is_there = file.path.as_ref().is_some_and(|p| p.exists());
    if talk.json {
        let line = json!({
            "event": "unanswered", "file": file.path, "exists": is_there, "cells": file.cells,
            "requests": file.requests, "unanswered": file.unanswered,
        });
        anstream::println!("{line}");
    } else if !talk.quiet {
        let path = file.path.as_ref().map_or("a file".to_owned(), |p| p.display().to_string());
        let gone = if is_there { "" } else { " (deleted since)" };
        anstream::eprintln!(
            "note: {path}{gone} already contains {}: {} of {} have no answer yet. `hqdl import` reads its answers; --again writes these cells again",
            count_noun(file.cells, "cell"),
            thousands(file.unanswered),
            count_noun(file.requests, "request")
        );
    }
}

/// Prints the states and usage of each column on stderr.
fn print_columns(report: &Report) {
    let states: Vec<State> = State::ALL.into_iter().filter(|s| report.cells.get(*s) > 0).collect();
    let mut header = vec!["expansion", "column"];
    header.extend(states.iter().map(|s| s.name()));
    if report.unasked > 0 {
        header.push("not asked");
    }
    header.extend(["requests", "tokens in", "out", "price"]);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(&header);
    let number = |n: f64| thousands(n.round() as u64);
    for c in report.columns.iter().flatten() {
        let mut row = vec![c.expansion.clone(), c.column.clone()];
        row.extend(states.iter().map(|s| thousands(c.cells.get(*s))));
        if report.unasked > 0 {
            row.push(thousands(c.unasked));
        }
        row.push(thousands(c.usage.requests));
        row.push(number(c.usage.input_tokens));
        row.push(number(c.usage.output_tokens));
        row.push(if report.priced { format!("${:.4}", c.usage.cost_usd) } else { "?".to_owned() });
        table.add_row(row);
    }
    for at in 2..header.len() {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    anstream::eprintln!("{table}");
}

fn print(report: &Report, spec: &Spec, seconds: f64) {
    let tables: Vec<&str> = spec
        .expansions
        .iter()
        .flat_map(|e| {
            let many = e.columns.iter().filter_map(|c| c.many.as_ref().map(|m| m.table.as_str()));
            std::iter::once(e.name.as_str()).chain(many)
        })
        .collect();
    let verb = if report.published { "published" } else { "unchanged" };
    anstream::println!("{verb}  {} in {}", tables.join(", "), report.target.display());
    let mut states: Vec<String> = State::ALL
        .iter()
        .filter(|s| report.cells.get(**s) > 0)
        .map(|s| format!("{} {}", s.name(), thousands(report.cells.get(*s))))
        .collect();
    if report.unasked > 0 {
        states.push(format!("not asked {}", thousands(report.unasked)));
    }
    anstream::println!(
        "cells      {}: {}",
        thousands(report.cells.total() + report.unasked),
        states.join(", ")
    );
    let errors = report.asked.get(State::Error);
    if let Some(why) = report.last_error.as_ref().filter(|_| errors > 0) {
        anstream::println!(
            "failed     {}, asked again by the next run: {why}",
            count_noun(errors, "cell")
        );
    }
    // Cells that got no value this time although the table shows one: they kept an earlier answer.
    let kept = report.asked.without_value().saturating_sub(report.cells.without_value() + errors);
    if kept > 0 {
        anstream::println!(
            "unchanged  {} got no value when asked again and keep the earlier one",
            count_noun(kept, "cell")
        );
    }
    anstream::println!("reused     {}", thousands(report.reused));
    anstream::println!("requests   {}", thousands(report.usage.requests));
    anstream::println!(
        "tokens     {} in, {} out",
        thousands(report.usage.input_tokens),
        thousands(report.usage.output_tokens)
    );
    let price = if report.priced {
        format!("${:.4}", report.usage.cost_usd)
    } else {
        "unknown (no `price` in [model])".to_owned()
    };
    anstream::println!("price      {price}{}", in_brackets(&report.price_notes()));
    if report.in_doubt.requests > 0 {
        let most = if report.priced {
            format!("${:.4}", report.in_doubt.most.usd)
        } else {
            format!("{} tokens", thousands(report.in_doubt.most.tokens))
        };
        anstream::println!(
            "in doubt   {most} at most, for {} that ended without an answer",
            count_noun(report.in_doubt.requests, "request")
        );
    }
    anstream::println!("time       {}", duration(seconds));
}
