//! Implements `hqdl swan score`.

use std::process::ExitCode;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::super::OutputOptions;
use super::super::failure::Failure;
use super::{ScoreFlags, format_run_name};
use crate::format::format_thousands;
use crate::swan::RunScore;
use crate::swan::report;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    flags: ScoreFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let scored = options.flags.score_runs()?;
    if output_options.json {
        anstream::println!("{}", report::to_json(&scored));
        return Ok(ExitCode::SUCCESS);
    }
    if let [run] = scored.as_slice() {
        anstream::println!("{}\n", build_questions_table(run));
    }
    anstream::println!("{}", build_summary_table(&scored));
    if !output_options.quiet {
        for run in &scored {
            run.notes
                .iter()
                .for_each(|n| anstream::eprintln!("note: {}: {n}", format_run_name(run)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a table with one row per run.
fn build_summary_table(scored: &[RunScore]) -> Table {
    let header = [
        "run",
        "EX",
        "strict",
        "graded",
        "cells true",
        "SWAN's count",
        "requests",
        "tokens in",
        "out",
        "cost",
    ];
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for run in scored {
        let total = run.spent;
        let percent = |p: f64| format!("{p:.1} %");
        let facts = run.factuality.as_ref();
        table.add_row([
            format_run_name(run),
            format!("{:.0}/{}", run.ex.correct, run.ex.total),
            format!("{:.0}/{}", run.ex_strict.correct, run.ex_strict.total),
            percent(run.graded),
            facts.map_or_else(|| "-".to_owned(), |f| percent(f.cells.percent())),
            facts.map_or_else(|| "-".to_owned(), |f| percent(f.swan.percent())),
            format_thousands(total.requests),
            format_thousands(total.input_tokens),
            format_thousands(total.output_tokens),
            if run.header.priced { format!("${:.4}", total.cost_usd) } else { "?".to_owned() },
        ]);
    }
    for at in 1..header.len() {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns a table with one row per question.
fn build_questions_table(run: &RunScore) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["question", "EX", "strict", "graded", "what differs"]);
    for q in &run.questions {
        let yes = |right: bool| if right { "yes" } else { "no" }.to_owned();
        let (swan, strict, graded) = match &q.grade {
            Some(g) => (yes(g.swan), yes(g.strict), format!("{:.2}", g.graded)),
            None => ("?".to_owned(), "?".to_owned(), "?".to_owned()),
        };
        let mut differs = q.difference().to_owned();
        if let Some(known) = &q.known {
            differs = format!("{differs} (the query itself: {known})");
        }
        table.add_row([q.qid.clone(), swan, strict, graded, differs]);
    }
    table
}
