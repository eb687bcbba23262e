//! Implements `hqdl why`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::OutputOptions;
use super::failure::Failure;
use super::progress::parenthesize_notes;
use crate::database::Database;
use crate::database::provenance::CellProvenance;
use crate::evidence::ShownEvidence;
use crate::spec::{Catalog, UncheckedSpec};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Table of an expansion or of a one-to-many column, or a joined view (`SOURCE_expanded`).
    table: String,
    /// Values of the key columns in their order (NULL for NULL), then the column's name.
    #[arg(required = true, num_args = 2.., value_names = ["KEY", "COLUMN"])]
    key_and_column: Vec<String>,
    /// Database with the published tables.
    #[arg(long, value_name = "PATH", conflicts_with = "spec")]
    db: Option<PathBuf>,
    /// Spec that made the table [default: the spec in specs/ that makes a table of this name].
    #[arg(long, value_name = "PATH")]
    spec: Option<PathBuf>,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let database = match &options.db {
        Some(db) => super::session::open_flag_database(db)?,
        None => Database::open(&find_target(options)?)?,
    };
    let Some((column, key)) = options.key_and_column.split_last() else {
        return Err(Failure::wrong_input("no column", "hqdl why TABLE KEY… COLUMN"));
    };
    let cells = database.find_provenance(&options.table, key, column)?;
    if output_options.json {
        let all: Vec<_> = cells.iter().map(CellProvenance::to_json).collect();
        anstream::println!("{}", serde_json::Value::Array(all));
    } else {
        cells.iter().for_each(print_provenance);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of the database to read: the database that was passed, or the target of a spec.
fn find_target(options: &Options) -> Result<PathBuf, Failure> {
    let target_of = |draft: &UncheckedSpec| draft.output().unwrap_or_else(|| draft.database());
    if let Some(spec) = &options.spec {
        return require_output(target_of(&UncheckedSpec::read(spec)?));
    }
    let drafts: Vec<UncheckedSpec> = std::fs::read_dir("specs")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .filter_map(|path| UncheckedSpec::read(&path).ok())
        .collect();
    let found: Vec<PathBuf> = drafts
        .iter()
        .filter(|draft| {
            draft.file.expansion.iter().any(|e| {
                let many = e.column.iter().filter_map(|c| c.many.as_ref().map(|m| &m.table));
                std::iter::once(&e.name).chain(many).any(|t| t.eq_ignore_ascii_case(&options.table))
            }) || publishes_view(draft, &options.table)
        })
        .map(target_of)
        .collect();
    match found.as_slice() {
        [one] => require_output(one.clone()),
        [] => Err(Failure::wrong_input(
            format!("no spec in specs/ defines a table `{}`", options.table),
            "name the table first, and the published database with --db or its spec with --spec",
        )),
        several => Err(Failure::wrong_input(
            format!("{} specs in specs/ define a table `{}`", several.len(), options.table),
            "name the published database with --db, or its spec with --spec",
        )),
    }
}

/// Returns the path of the published database. Fails if the database does not exist yet.
fn require_output(target: PathBuf) -> Result<PathBuf, Failure> {
    if target.exists() || crate::spec::is_server(&target) {
        return Ok(target);
    }
    Err(Failure::wrong_input(
        format!("{} does not exist yet", target.display()),
        "create it with `hqdl materialize`",
    ))
}

/// Returns whether the spec's target contains this joined view.
fn publishes_view(draft: &UncheckedSpec, view: &str) -> bool {
    let target = draft.output().unwrap_or_else(|| draft.database());
    view.to_lowercase().ends_with("_expanded")
        && Database::open(&target).is_ok_and(|db| db.table_columns(view).is_some())
}

fn print_provenance(cell: &CellProvenance) {
    anstream::println!("{} {} {}", cell.expansion, cell.key, cell.column);
    let line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            anstream::println!("  {name:<12} {value}");
        }
    };
    line("state", Some(cell.state.clone()));
    let value = match &cell.value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    line("value", value);
    line("raw answer", cell.raw.clone());
    let shows = matches!(cell.state.as_str(), "ok" | "overridden");
    line(if shows { "repaired" } else { "reason" }, cell.repair.clone());
    line("note", cell.note.clone());
    line("error", cell.error.clone());
    line("model", cell.model.clone());
    line("parameters", cell.parameters.clone());
    line("asked", cell.asked_at.clone());
    line("run", cell.run.map(|r| r.to_string()));
    line("prompt", cell.prompt_hash.clone());
    if let Some(evidence) = &cell.evidence {
        line("evidence", Some(evidence.digest.clone()));
        print_evidence(evidence);
    }
    if let (Some(input), Some(output), Some(cost)) =
        (cell.input_tokens, cell.output_tokens, cell.cost_usd)
    {
        let notes = parenthesize_notes(cell.price_note().as_slice());
        line(
            "cost share",
            Some(format!("{input:.1} tokens in, {output:.1} out, ${cost:.6}{notes}")),
        );
    }
}

/// Prints the passages that the cell's request contained, each with the model's quotes.
fn print_evidence(evidence: &ShownEvidence) {
    for passage in &evidence.passages {
        anstream::println!("    {} {}", passage.id, passage.source);
        for quote in evidence.quotes.iter().filter(|quote| quote.passage == passage.id) {
            let item = quote.item.as_ref().map(|item| format!("{item}: ")).unwrap_or_default();
            anstream::println!("      quoted     {item}\"{}\"", join_lines(&quote.quote));
        }
        anstream::println!("      text       {}", join_lines(&passage.text));
    }
    if evidence.passages.is_empty() {
        anstream::println!("    no passage of the documents was found");
    }
}

fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
