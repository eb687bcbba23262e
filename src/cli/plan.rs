//! `hqdl plan`

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};

use super::failure::{Failure, INCOMPLETE};
use super::materialize::SelectionFlags;
use super::{ModelFlags, Talk, progress, session};
use crate::facts::Reason;
use crate::materialize::Way;
use crate::plan::{Plan, Room};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The spec.
    spec: PathBuf,
    #[command(flatten)]
    select: SelectionFlags,
    /// What it takes through the Batch API.
    #[arg(long)]
    batch: bool,
    /// Exit with 1 when anything is missing or stale, for scripts.
    #[arg(long)]
    check: bool,
    /// USD that the run may spend.
    #[arg(long, value_name = "USD")]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let command = format!("plan {}", options.spec.display());
    let session = session::open(&options.spec, &options.flags, options.budget, &command)?;
    session::warn(&session.warnings, talk);
    session::tell(session.facts()?, talk);
    let way = if options.batch { Way::Batch } else { Way::Live };
    let (plan, remarks) = session.plan(&options.select.selection(), way)?;
    if !talk.quiet {
        remarks.iter().for_each(|r| anstream::eprintln!("note: {r}"));
    }
    if talk.json {
        anstream::println!("{}", plan.to_json());
    } else {
        print(&plan, &session.spec.model.name, options.batch);
    }
    let missing = options.check && plan.cells() > 0;
    Ok(if missing { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

fn print(plan: &Plan, model: &str, batch: bool) {
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
                column.cells().to_string(),
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
            "{}: {} published rows have no key in the source any more",
            expansion.name,
            expansion.orphaned
        );
    }
    let output = plan.output_tokens();
    let counted =
        if plan.counted { "" } else { " (estimated: the tokenizer of this model is not known)" };
    anstream::println!();
    anstream::println!("cells     {}", plan.cells());
    anstream::println!("requests  {} to {model}", plan.requests());
    anstream::println!(
        "tokens    {} in, {} out{counted}",
        progress::thousands(plan.input_tokens()),
        progress::thousands(output.likely.round() as u64)
    );
    if plan.priced {
        anstream::println!(
            "price     ${:.4} likely, ${:.4} to ${:.4}",
            plan.cost_usd.likely,
            plan.cost_usd.low,
            plan.cost_usd.most
        );
    } else {
        anstream::println!("price     unknown: set `price` in [model]");
    }
    if plan.room != Room::default() {
        let enough = || "enough, even for the most".to_owned();
        anstream::println!("budget    {}", plan.warning().unwrap_or_else(enough));
    }
    let about = if batch { "within" } else { "about" };
    anstream::println!("time      {about} {}", progress::duration(plan.seconds));
}
