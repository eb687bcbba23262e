//! Implements `hqdl plan`.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::failure::{Failure, INCOMPLETE};
use super::materialize::SelectionFlags;
use super::{ModelFlags, OutputOptions, progress, session};
use crate::Row;
use crate::database::keys::{KeyRow, Keys};
use crate::facts::Reason;
use crate::format::{count_noun, format_thousands};
use crate::materialize::{MaterializeError, RunMode};
use crate::model;
use crate::plan::{BudgetLeft, Plan};
use crate::prompt::PromptFrame;
use crate::retrieval::evidence::load_evidence;
use crate::session::Session;

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
    /// Exit with code 1 if any cell is missing or stale, for use in scripts.
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
        return show_prompts(&session, output_options);
    }
    let run_mode = if options.batch { RunMode::Batch } else { RunMode::Live };
    let (plan, warnings) = session.plan_requests(&options.select.to_selection(), run_mode)?;
    if !output_options.quiet {
        warnings.iter().for_each(|r| anstream::eprintln!("note: {r}"));
    }
    if output_options.json {
        anstream::println!("{}", plan.to_json());
    } else {
        print_plan(&plan, options.batch);
    }
    let missing = options.check && plan.cell_count() > 0;
    Ok(if missing { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

/// Prints the prompt for the first rows of each expansion.
fn show_prompts(session: &Session, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let connected = model::connect_for_planning(&session.spec)?;
    for expansion in &session.spec.expansions {
        let max_rows = if expansion.has_images() { 1 } else { expansion.rows_per_request as usize };
        let mut rows: Vec<Row> = Vec::new();
        let mut add_row = |key: &KeyRow| {
            // A request contains only rows of the same partition.
            let is_same_partition = rows.first().is_none_or(|first| {
                expansion.key_part(&first.key) == expansion.key_part(&key.row.key)
            });
            if is_same_partition && rows.len() < max_rows {
                rows.push(key.row.clone());
            }
            Ok::<_, rusqlite::Error>(())
        };
        let keys = Keys::collect(&session.database, expansion, None)?;
        keys.for_each(&mut add_row).map_err(|e| session.database.store_error_for(&e))?;
        let Some(first) = rows.first() else { continue };
        load_evidence(&session.spec, expansion, &session.database).map_err(|message| {
            MaterializeError::Evidence { expansion: expansion.name.clone(), message }
        })?;
        let asked = expansion.for_key(&first.key);
        let shown: Vec<_> = rows.iter().map(|row| expansion.shown_row(row)).collect();
        let models = model::choose_models(&session.spec, Some(&*connected), expansion);
        for (m, choice) in models.choices().iter().enumerate() {
            let columns: Vec<usize> = models.columns_of(m).collect();
            let frame = PromptFrame::new(&asked, &columns, choice.format);
            let prompt = frame.build_prompt(shown.iter().map(AsRef::as_ref));
            if output_options.json {
                let line = json!({
                    "expansion": expansion.name, "system": &*prompt.system, "user": prompt.user,
                });
                anstream::println!("{line}");
            } else {
                let name = &expansion.name;
                let title = match models.choices() {
                    [_] => name.clone(),
                    _ => format!("{name} ({})", choice.name),
                };
                anstream::println!(
                    "── {title}: system ──\n{}\n── {title}: user ──\n{}",
                    prompt.system,
                    prompt.user
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_plan(plan: &Plan, batch: bool) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["expansion", "column", "known", "to ask", "why"]);
    for expansion in &plan.expansions {
        for column in &expansion.columns {
            let why: Vec<String> = Reason::ALL
                .iter()
                .filter_map(|r| {
                    column.missing.get(r).map(|n| format!("{} {n}", r.name().replace('_', " ")))
                })
                .collect();
            table.add_row([
                expansion.name.clone(),
                column.name.clone(),
                column.known.to_string(),
                column.cell_count().to_string(),
                why.join(", "),
            ]);
        }
    }
    for column in [2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    anstream::println!("{table}");
    for expansion in plan.expansions.iter().filter(|e| e.orphaned > 0) {
        anstream::println!(
            "{}: the source no longer has the keys of {}",
            expansion.name,
            count_noun(expansion.orphaned, "published row")
        );
    }
    let output = plan.output_tokens();
    let counted =
        if plan.is_counted { "" } else { " (estimated: the tokenizer of this model is not known)" };
    anstream::println!();
    anstream::println!("cells     {}", plan.cell_count());
    let mut models: Vec<&str> = plan.expansions.iter().map(|e| e.model.as_str()).collect();
    models.dedup();
    anstream::println!("requests  {} to {}", plan.request_count(), models.join(" and "));
    anstream::println!(
        "tokens    {} in, {} out{counted}",
        format_thousands(plan.input_tokens()),
        format_thousands(output.likely.round() as u64)
    );
    if plan.has_price {
        anstream::println!(
            "price     ${:.4} likely, ${:.4} to ${:.4}{}",
            plan.cost_usd.likely,
            plan.cost_usd.low,
            plan.cost_usd.max,
            progress::parenthesize(&plan.price_notes)
        );
    } else {
        let notes = progress::parenthesize(&plan.price_notes);
        anstream::println!("price     unknown: set the `price` of the model{notes}");
    }
    if plan.budget_left != BudgetLeft::default() {
        let enough = || "enough, even for the maximum".to_owned();
        anstream::println!("budget    {}", plan.budget_warning().unwrap_or_else(enough));
    }
    let about = if batch { "within" } else { "about" };
    anstream::println!("time      {about} {}", progress::format_duration(plan.seconds));
}
