//! Implements `hqdl cache`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value as Json, json};

use super::failure::{Failure, INCOMPLETE};
use super::progress::parenthesize_notes;
use super::{CacheFlags, OutputOptions, session};
use crate::cell::Tally;
use crate::facts::{Facts, FactsError};
use crate::format::{
    format_cost, format_count, format_thousands, format_usd_bound, to_single_line,
};
use crate::key::ColumnIdentity;
use crate::session::Cache;

/// Maximum size of the line that is read to recognize an export.
const MAX_EXPORT_LINE: u64 = 1 << 26;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    cache: CacheFlags,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List facts: entity, column, state, value, model.
    List {
        /// List only entities whose key contains this text.
        #[arg(value_name = "TEXT")]
        filter: Option<String>,
        /// Maximum number of facts to list.
        #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = super::parse_count::<u32>)]
        limit: Option<u32>,
        /// List nothing instead of failing if there is no cache yet.
        #[arg(long)]
        allow_missing: bool,
    },
    /// Count facts by column and state, and print the total cost.
    Stats,
    /// Write every fact as a JSON line.
    Export {
        /// Output file [default: stdout].
        file: Option<PathBuf>,
    },
    /// Import facts that `cache export` wrote.
    Import {
        /// Input file, or - for stdin.
        file: PathBuf,
    },
    /// Verify the checksum of every stored answer.
    Check,
    /// Rebuild the records from the journal.
    Rebuild,
}

/// Returns the directory of a local cache if no cache has been created there yet.
///
/// # Errors
/// Fails if the directory cannot be read, or contains only a part of a cache.
pub fn find_missing_dir(cache: &Cache) -> Result<Option<&Path>, Failure> {
    let Cache::Dir { dir: Some(dir), .. } = cache else { return Ok(None) };
    // Opening the cache rejects a URL.
    if dir.to_string_lossy().contains("://") {
        return Ok(None);
    }
    let Err(error) = std::fs::metadata(dir.join("journal.sqlite")) else { return Ok(None) };
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        let message = format!("cannot use the cache {}: permission denied", dir.display());
        return Err(Failure::wrong_input(message, "give this user the right to read it"));
    }
    if dir.join("index.sqlite").exists() || dir.join("index").exists() {
        return Err(Failure::wrong_input(
            format!("the cache {} has an index, but no journal.sqlite", dir.display()),
            "restore journal.sqlite, which has the answers, from a backup",
        ));
    }
    if dir.is_file() {
        return Err(Failure::wrong_input(
            format!("{} is a file, but a cache is a directory", dir.display()),
            "name the directory of a cache with --cache or HQDL_CACHE",
        ));
    }
    Ok(Some(dir))
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let cache = session::select_cache(&options.cache, "cache");
    // `import` creates the cache.
    if !matches!(options.command, Command::Import { .. })
        && let Some(dir) = find_missing_dir(&cache)?
    {
        if let Command::List { allow_missing: true, .. } = options.command {
            return Ok(ExitCode::SUCCESS);
        }
        return Err(Failure::wrong_input(
            format!("there is no cache at {}", dir.display()),
            "check the spelling of --cache or HQDL_CACHE",
        ));
    }
    let facts = cache.open()?;
    session::print_cache_location(&facts, output_options);
    match &options.command {
        Command::List { filter, limit, .. } => {
            list_facts(
                &facts,
                filter.as_deref(),
                limit.map_or(usize::MAX, |n| n as usize),
                output_options,
            )?;
        }
        Command::Stats => print_stats(&facts, output_options)?,
        Command::Export { file } => export_facts(&facts, file.as_ref(), output_options)?,
        Command::Import { file } => import_facts(&facts, file, output_options)?,
        Command::Check => return check_journal(&facts, output_options),
        Command::Rebuild => {
            let entities = facts.rebuild_records()?;
            let damage = facts.history().find_damage(0)?;
            if output_options.json {
                let damaged = damage.fact_rows.len();
                anstream::println!("{}", json!({ "entities": entities, "damaged": damaged }));
            } else if !output_options.quiet {
                anstream::println!("{} entities indexed", format_thousands(entities));
                damage.warning().iter().for_each(|r| anstream::eprintln!("warning: {r}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports whether the journal and the stored answers are intact.
fn check_journal(facts: &Facts, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    facts.history().check_file()?;
    let damage = facts.history().find_damage(0)?;
    if output_options.json {
        anstream::println!(
            "{}",
            json!({
                "ok": damage.is_empty(), "damaged": damage.fact_rows,
                "damaged_entries": damage.entries.iter().map(|e| json!({ "table": e.table, "id": e.id })).collect::<Vec<_>>(),
            })
        );
    } else if let Some(warning) = damage.warning() {
        anstream::println!("{warning}");
    } else if !output_options.quiet {
        anstream::println!("sound");
    }
    Ok(if damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// Names of columns and models by their ids, and the texts of ad-hoc questions.
struct IdNames {
    columns: BTreeMap<u32, String>,
    questions: BTreeMap<u32, String>,
    models: BTreeMap<u32, String>,
}

impl IdNames {
    fn from_facts(facts: &Facts) -> Result<Self, Failure> {
        let history = facts.history();
        let (mut columns, mut questions) = (BTreeMap::new(), BTreeMap::new());
        for (id, text) in history.list_column_identities()? {
            let Ok(identity) = serde_json::from_str::<ColumnIdentity>(&text) else { continue };
            if let Some(question) = identity.question() {
                questions.insert(id, to_single_line(question));
            }
            columns.insert(id, identity.column);
        }
        Ok(Self { columns, questions, models: history.list_models()?.into_iter().collect() })
    }
}

fn list_facts(
    facts: &Facts,
    filter: Option<&str>,
    limit: usize,
    output_options: OutputOptions,
) -> Result<(), Failure> {
    let names = IdNames::from_facts(facts)?;
    let name = |map: &BTreeMap<u32, String>, id: u32| map.get(&id).cloned().unwrap_or_default();
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut shown, mut entities) = (0, 0_u64);
    for entry in facts.sync().iter() {
        let (entity, record) = entry?;
        entities += 1;
        if filter.is_some_and(|f| !entity.as_str().to_lowercase().contains(&f.to_lowercase())) {
            continue;
        }
        for fact in record.facts {
            if shown == limit {
                return Ok(());
            }
            shown += 1;
            let (column, model) =
                (name(&names.columns, fact.identity_id), name(&names.models, fact.model));
            let value = fact.answer.value.to_json();
            let question = names.questions.get(&fact.identity_id);
            let write_result = if output_options.json {
                let entity: Json = serde_json::from_str(entity.as_str()).unwrap_or(Json::Null);
                let mut line = json!({ "entity": entity, "column": column, "state": fact.answer.state.name(), "value": value, "model": model });
                if let Some(question) = question {
                    line["question"] = question.as_str().into();
                }
                writeln!(out, "{line}")
            } else {
                let value = if value.is_null() { String::new() } else { format!(" {value}") };
                let question = question.map(|text| format!(" \"{text}\"")).unwrap_or_default();
                let state = fact.answer.state.name();
                writeln!(out, "{entity} {column}{question}: {state}{value} ({model})")
            };
            // A closed pipe (`| head`) is not an error.
            if write_result.is_err() {
                return Ok(());
            }
        }
    }
    let _ = out.flush();
    if let Some(text) = filter.filter(|_| shown == 0 && entities > 0 && !output_options.quiet) {
        let (keys, location) = (format_count(entities, "key"), facts.location());
        anstream::eprintln!("note: no key contains `{text}` ({keys} in {location})");
    } else if entities == 0 && !output_options.quiet {
        anstream::eprintln!("note: no facts are stored in {}", facts.location());
    }
    Ok(())
}

fn print_stats(facts: &Facts, output_options: OutputOptions) -> Result<(), Failure> {
    let names = IdNames::from_facts(facts)?;
    let mut entities = 0u64;
    let mut columns: BTreeMap<(String, String), Tally> = BTreeMap::new();
    for entry in facts.sync().iter() {
        let (_, record) = entry?;
        entities += 1;
        for fact in record.facts {
            let column = names.columns.get(&fact.identity_id).cloned().unwrap_or_default();
            let model = names.models.get(&fact.model).cloned().unwrap_or_default();
            columns.entry((column, model)).or_default().add(fact.answer.state, 1);
        }
    }
    let totals = facts.history().load_totals()?;
    let damage = facts.history().find_damage(0)?;
    if output_options.json {
        let columns: Vec<Json> = columns
            .iter()
            .map(|((column, model), tally)| json!({ "column": column, "model": model, "cells": tally.to_json() }))
            .collect();
        let all = json!({
            "directory": facts.location(), "entities": entities, "columns": columns, "runs": totals.runs,
            "requests": totals.requests, "input_tokens": totals.input_tokens,
            "output_tokens": totals.output_tokens, "cost_usd": totals.cost_usd,
            "price_notes": totals.price_note().as_slice(),
            "cost_in_doubt_usd": totals.in_doubt_usd, "damaged": damage.fact_rows.len(),
        });
        anstream::println!("{all}");
        return Ok(());
    }
    anstream::println!("facts in {}", facts.location());
    anstream::println!("entities  {}", format_thousands(entities));
    for ((column, model), tally) in &columns {
        let states: Vec<String> = crate::cell::State::ALL
            .iter()
            .filter(|s| tally.get(**s) > 0)
            .map(|s| format!("{} {}", s.name(), format_thousands(tally.get(*s))))
            .collect();
        anstream::println!("  {column}: {} ({model})", states.join(", "));
    }
    anstream::println!("runs      {}", format_thousands(totals.runs));
    anstream::println!("requests  {}", format_thousands(totals.requests));
    anstream::println!(
        "tokens    {} in, {} out",
        format_thousands(totals.input_tokens),
        format_thousands(totals.output_tokens)
    );
    anstream::println!(
        "cost      {}{}",
        format_cost(totals.cost_usd),
        parenthesize_notes(totals.price_note().as_slice())
    );
    if totals.in_doubt_usd > 0.0 {
        anstream::println!(
            "in doubt  up to {}, for requests without an answer",
            format_usd_bound(totals.in_doubt_usd)
        );
    }
    if let Some(warning) = damage.warning() {
        anstream::println!("damaged   {warning}");
    }
    Ok(())
}

fn export_facts(
    facts: &Facts,
    file: Option<&PathBuf>,
    output_options: OutputOptions,
) -> Result<(), Failure> {
    let failed = |e: std::io::Error| {
        let name = file.map_or("stdout".to_owned(), |file| file.display().to_string());
        let reason = file.map_or_else(
            || crate::format::describe_io_error(&e),
            |path| crate::format::describe_write_error(path, &e),
        );
        let message = format!("cannot write {name}: {reason}");
        Failure::wrong_input(message, "choose another file")
    };
    let count = match file {
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
            match facts.export(&mut out) {
                // A closed pipe (`| head`) is not an error.
                Err(FactsError::File { error, .. }) if closed(&error) => return Ok(()),
                exported => {
                    out.flush()
                        .or_else(|e| if closed(&e) { Ok(()) } else { Err(e) })
                        .map_err(failed)?;
                    exported?
                }
            }
        }
        Some(path) => {
            if !may_replace(path) {
                return Err(Failure::wrong_input(
                    format!("{} exists and is not an export of a cache", path.display()),
                    "choose another file, or delete this one first",
                ));
            }
            let mut out = BufWriter::new(File::create(path).map_err(failed)?);
            let count = facts.export(&mut out)?;
            out.flush().map_err(failed)?;
            count
        }
    };
    if !output_options.quiet {
        anstream::eprintln!("{} facts exported", format_thousands(count));
    }
    Ok(())
}

/// Returns true if an export may replace a file: the file is empty, an earlier export, or not a
/// regular file.
fn may_replace(path: &Path) -> bool {
    if !path.is_file() {
        return true;
    }
    let mut first_line = String::new();
    let read = File::open(path)
        .and_then(|file| BufReader::new(file.take(MAX_EXPORT_LINE)).read_line(&mut first_line));
    match read {
        Ok(0) => true,
        Ok(_) => serde_json::from_str::<Json>(&first_line)
            .is_ok_and(|line| line.get("entity").is_some() && line.get("meaning").is_some()),
        Err(_) => false,
    }
}

fn import_facts(
    facts: &Facts,
    file: &PathBuf,
    output_options: OutputOptions,
) -> Result<(), Failure> {
    let failed = |e: std::io::Error| {
        let message =
            format!("cannot read {}: {}", file.display(), crate::format::describe_io_error(&e));
        Failure::wrong_input(message, "pass a file that `hqdl cache export` wrote, or - for stdin")
    };
    if file.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    let imported = if file.as_os_str() == "-" {
        facts.import_facts(&mut std::io::stdin().lock())
    } else {
        facts.import_facts(&mut BufReader::new(File::open(file).map_err(failed)?))
    };
    let count = imported.map_err(|error| match &error {
        FactsError::Import { .. } => {
            let name =
                if file.as_os_str() == "-" { "stdin".into() } else { file.display().to_string() };
            Failure::wrong_input(format!("{name}, {error}"), error.hint())
        }
        _ => error.into(),
    })?;
    if count == 0 && !output_options.quiet {
        anstream::eprintln!("note: {} contains no facts", file.display());
    }
    if output_options.json {
        anstream::println!("{}", json!({ "imported": count }));
    } else if !output_options.quiet {
        anstream::println!("{} facts imported", format_thousands(count));
    }
    Ok(())
}
