//! Implements `hqdl status`.

use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value as Json;

use super::failure::Failure;
use super::progress::format_duration;
use super::{CacheFlags, OutputOptions, session};
use crate::daemon;
use crate::facts::FactsError;
use crate::format::{format_cost, format_thousands};

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    cache: CacheFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    if session::server_url(&options.cache).is_some() {
        return Err(Failure::wrong_input(
            "a cache on a server has no single daemon",
            "ask a machine's daemon over HTTP: `curl http://127.0.0.1:4735/v1/specs`",
        ));
    }
    let cache = session::find_cache_dir(&options.cache)?;
    let no_answer = |error| FactsError::File { path: cache.clone(), error };
    let status_text = daemon::request_status(&cache).map_err(no_answer)?.ok_or_else(|| {
        Failure::wrong_input(
            format!("no daemon runs on the cache {}", cache.display()),
            "start one with `hqdl daemon`, or name another cache with --cache",
        )
    })?;
    let json: Json = serde_json::from_str(&status_text).unwrap_or_default();
    if output_options.json {
        anstream::println!("{json}");
    } else {
        print_status(&json);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_status(status: &Json) {
    let text = |json: &Json| json.as_str().unwrap_or_default().to_owned();
    anstream::println!(
        "hqdl {}, process {}, {}",
        text(&status["version"]),
        status["pid"],
        text(&status["url"])
    );
    anstream::println!("since     {}", text(&status["began"]));
    anstream::println!("specs     {}", text(&status["watched"]));
    anstream::println!("cache     {}", text(&status["cache"]));
    if status["spend"] == false {
        anstream::println!("asks      only on request (--no-spend)");
    }
    if let Some(why) = status["blind"].as_str() {
        anstream::println!("warning   the daemon does not notice changes: {why}");
    }
    let all = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    anstream::println!();
    print_specs(&all("specs"), &text(&status["url"]));
    let runs = all("runs");
    if !runs.is_empty() {
        anstream::println!();
        print_runs(&runs);
    }
}

fn print_specs(specs: &[Json], url: &str) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["spec", "state", "cells", "with a value", "missing"]);
    let mut notes = Vec::new();
    for spec in specs {
        let columns = spec["columns"].as_array().cloned().unwrap_or_default();
        let (mut cells, mut shown, mut unasked) = (0, 0, 0);
        for column in &columns {
            let of = |state: &str| column["cells"][state].as_u64().unwrap_or(0);
            let states = column["cells"].as_object().into_iter().flatten();
            cells += states.filter_map(|(_, n)| n.as_u64()).sum::<u64>();
            shown += of("ok") + of("overridden");
            unasked += column["cells_unasked"].as_u64().unwrap_or(0);
        }
        let name = spec["name"].as_str().unwrap_or_default();
        table.add_row([
            name.to_owned(),
            spec["state"].as_str().unwrap_or_default().to_owned(),
            format_thousands(cells + unasked),
            format_thousands(shown),
            format_thousands(unasked),
        ]);
        if let Some(held) = spec["held"].as_str() {
            notes.push(format!("{name} is waiting for approval: {held}; start a run at {url}"));
        }
        if let Some(usd) = spec["plan"]["totals"]["cost_usd"]["likely"].as_f64() {
            notes.push(format!("{name}: the missing cells cost about {}", format_cost(usd)));
        }
        for problem in spec["problem"]["problems"].as_array().into_iter().flatten() {
            let position =
                |n: &str| problem[n].as_u64().map(|n| format!(":{n}")).unwrap_or_default();
            let file = problem["file"].as_str().unwrap_or_default();
            let message = problem["message"].as_str().unwrap_or_default();
            notes.push(format!("{file}{}{}: {message}", position("line"), position("column")));
        }
        if let Some(message) = spec["problem"]["message"].as_str() {
            notes.push(format!("{name}: {message}"));
        }
        if spec["state"] == "broken" && spec["in_force"] == true {
            notes.push(format!("{name}: the daemon keeps the last valid spec"));
        }
    }
    for column in 2..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    anstream::println!("{table}");
    notes.iter().for_each(|n| anstream::println!("{n}"));
}

fn print_runs(runs: &[Json]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["run", "spec", "why", "state", "asked", "requests", "cost", "time"]);
    for run in runs.iter().take(10) {
        let text = |name: &str| run[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| format_thousands(run[name].as_u64().unwrap_or(0));
        table.add_row([
            run["run"].to_string(),
            text("spec"),
            text("cause"),
            text("state"),
            format!("{} of {}", number("cells_done"), number("cells")),
            number("requests"),
            format_cost(run["cost_usd"].as_f64().unwrap_or(0.0)),
            format_duration(run["seconds"].as_f64().unwrap_or(0.0)),
        ]);
    }
    anstream::println!("{table}");
    let failed = runs
        .iter()
        .take(10)
        .filter_map(|r| Some((r["run"].as_u64()?, r["error"]["message"].as_str()?)));
    failed.for_each(|(run, why)| anstream::println!("run {run}: {why}"));
    for run in runs.iter().filter(|run| run["state"] == "running") {
        if let Some(warning) = run["last_warning"].as_str() {
            anstream::println!("run {}: {warning}", run["run"]);
        }
    }
    for run in runs.iter().take(10) {
        for note in run["price_notes"].as_array().into_iter().flatten().filter_map(Json::as_str) {
            anstream::println!("run {}: {note}", run["run"]);
        }
    }
}
