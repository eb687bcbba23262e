//! Implements `hqdl plan`.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::failure::{Failure, INCOMPLETE};
use super::materialize::SelectionFlags;
use super::meta::WITHOUT_REPEATS;
use super::{ModelFlags, OutputOptions, progress, session};
use crate::facts::Reason;
use crate::format::{format_cost, format_count, format_thousands, format_usd_bound};
use crate::materialize::RunMode;
use crate::plan::{BudgetLeft, CascadePlan, ModelPart, Plan, describe_reasoning};
use crate::sample_prompts::{SamplePrompt, build_sample_prompts};
use crate::session::Session;
use crate::spec::Spec;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    #[command(flatten)]
    select: SelectionFlags,
    /// Plan a run that uses the Batch API.
    #[arg(long)]
    batch: bool,
    /// Print the prompt for the first rows of each expansion.
    #[arg(long)]
    show_prompt: bool,
    /// Exit with code 1 if a run would ask for any cell, for use in scripts.
    #[arg(long)]
    check: bool,
    /// Maximum cost of the run in USD.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let command = format!("plan {}", options.spec.display());
    let session = session::open_spec(&options.spec, &options.flags, options.budget, &command)?;
    session::print_warnings(&session.warnings, output_options);
    session::print_cache_location(session.facts()?, output_options);
    if options.show_prompt {
        return print_prompts(&session, output_options);
    }
    let run_mode = if options.batch { RunMode::Batch } else { RunMode::Live };
    let (plan, warnings) = session.plan_requests(&options.select.to_selection(), run_mode)?;
    if !output_options.quiet {
        warnings.iter().for_each(|r| anstream::eprintln!("note: {r}"));
    }
    if output_options.json {
        anstream::println!("{}", plan.to_json());
    } else {
        print_plan(&plan, &session.spec, options.batch);
        if plan.request_count() > 0 && !output_options.quiet {
            print_reasoning_notes(&session)?;
        }
    }
    let missing = options.check && plan.cell_count() > 0;
    Ok(if missing { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

/// Prints why the maximum number of output tokens is high.
pub fn print_reasoning_notes(session: &Session) -> Result<(), Failure> {
    for note in describe_reasoning(session.facts()?.history(), &session.spec)? {
        anstream::eprintln!("note: {note}");
    }
    Ok(())
}

/// Prints the prompt for the first rows of each expansion.
fn print_prompts(session: &Session, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    for SamplePrompt { expansion, title, system, user } in
        build_sample_prompts(&session.spec, &session.database, session.facts()?, None)?
    {
        if output_options.json {
            let line = json!({ "expansion": expansion, "system": system, "user": user });
            anstream::println!("{line}");
        } else {
            anstream::println!("── {title}: system ──\n{system}\n── {title}: user ──\n{user}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the number of cells to ask for in each column, with its model if the plan uses several.
fn print_columns(plan: &Plan) {
    let has_models = plan.list_model_parts().len() > 1;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec!["expansion", "column", "known", "to ask", "why"];
    if has_models {
        header.insert(2, "model");
    }
    let first_number = header.len() - 3;
    table.set_header(header);
    for expansion in &plan.expansions {
        for column in &expansion.columns {
            let why: Vec<String> = Reason::ALL
                .iter()
                .filter_map(|r| {
                    column.missing.get(r).map(|n| format!("{} {n}", r.name().replace('_', " ")))
                })
                .collect();
            let mut row = vec![
                expansion.name.clone(),
                column.name.clone(),
                column.known.to_string(),
                column.cell_count().to_string(),
                why.join(", "),
            ];
            if has_models {
                row.insert(2, expansion.model.clone());
            }
            table.add_row(row);
        }
    }
    for column in [first_number, first_number + 1] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    anstream::println!("{table}");
}

/// Prints the number of requests, by model if the plan uses several.
fn print_requests(plan: &Plan) {
    let models = plan.list_model_parts();
    if let [only] = models.as_slice() {
        anstream::println!("requests  {} to {}", plan.request_count(), only.model);
        return;
    }
    anstream::println!("requests  {}", plan.request_count());
    let width = models.iter().map(|m| m.model.chars().count()).max().unwrap_or(0);
    for ModelPart { model, requests, cost_usd } in &models {
        let cost = match cost_usd {
            Some(cost) => format!(
                "{} likely, at most {}",
                format_cost(cost.likely),
                format_usd_bound(cost.max)
            ),
            None => "price unknown".to_owned(),
        };
        anstream::println!("  {model:width$}  {}, {cost}", format_count(*requests, "request"));
    }
}

fn print_plan(plan: &Plan, spec: &Spec, batch: bool) {
    print_columns(plan);
    plan.cascades.iter().for_each(print_cascade);
    for expansion in plan.expansions.iter().filter(|e| e.orphaned > 0) {
        anstream::println!(
            "{}: the source no longer has the keys of {}",
            expansion.name,
            format_count(expansion.orphaned, "published row")
        );
    }
    let output = plan.output_tokens();
    let counted =
        if plan.is_counted { "" } else { " (estimated: the tokenizer of this model is not known)" };
    anstream::println!();
    anstream::println!("cells     {}", plan.cell_count());
    print_requests(plan);
    anstream::println!(
        "tokens    {} in, {} out{counted}",
        format_thousands(plan.input_tokens()),
        format_thousands(output.likely.round() as u64)
    );
    let without_repeats = describe_repeats(plan);
    if plan.has_price {
        anstream::println!(
            "cost      {} likely, {} to {}{}{}",
            format_cost(plan.cost_usd.likely),
            format_cost(plan.cost_usd.low),
            format_usd_bound(plan.cost_usd.max),
            if plan.request_count() > 0 { format!(" {without_repeats}") } else { String::new() },
            progress::parenthesize_notes(&plan.price_notes)
        );
    } else {
        let notes = progress::parenthesize_notes(&plan.price_notes);
        let table = spec.find_unpriced_table();
        anstream::println!("cost      unknown: set `price` in {table}{notes}");
    }
    if plan.budget_left != BudgetLeft::default() {
        let enough = || format!("enough, even for the maximum {without_repeats}");
        anstream::println!("budget    {}", plan.budget_warning().unwrap_or_else(enough));
    }
    if let Some((requests, repeats)) = plan.measured_requests() {
        let again = if is_repeated(repeats) {
            format!("; each cell was requested {repeats:.2} times on average")
        } else {
            String::new()
        };
        let requests = format_count(requests, "request");
        anstream::println!("estimate  based on the last {requests}{again}");
    }
    let about = if batch { "within" } else { "about" };
    anstream::println!("time      {about} {}", progress::format_duration(plan.seconds));
}

/// Describes how many repeated requests the maximum cost includes.
fn describe_repeats(plan: &Plan) -> String {
    match plan.measured_requests() {
        Some((_, repeats)) if is_repeated(repeats) => {
            "if no more requests are repeated than in the last run".to_owned()
        }
        _ => WITHOUT_REPEATS.to_owned(),
    }
}

/// Returns true if a figure of the last run shows that cells were requested again.
fn is_repeated(repeats: f64) -> bool {
    repeats >= 1.005
}

/// Prints the possible thresholds of a column with a target, with their cost and agreement.
fn print_cascade(cascade: &CascadePlan) {
    if cascade.thresholds.is_empty() {
        return;
    }
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let share = if cascade.is_truth { "true" } else { "agreement" };
    table.set_header(["accepted", "to ask", "cost", share, "at least", ""]);
    for threshold in &cascade.thresholds {
        table.add_row([
            cascade.describe_threshold(threshold),
            threshold.cells.to_string(),
            threshold.cost_usd.map_or_else(|| "?".to_owned(), format_cost),
            percent(threshold.expected),
            percent(threshold.bound),
            if threshold.is_chosen { "chosen".to_owned() } else { String::new() },
        ]);
    }
    anstream::println!(
        "\n{}.{}: {}, target {}, sample of {}\n{table}",
        cascade.expansion,
        cascade.column,
        if cascade.is_truth {
            "truth".to_owned()
        } else {
            format!("agreement with {}", cascade.to)
        },
        percent(cascade.target),
        format_count(cascade.sampled, "cell")
    );
}
