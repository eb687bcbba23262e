//! Implements `hqdl override`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::OutputOptions;
use super::failure::Failure;
use crate::overrides::{self, NO_VALUE, read_lines};
use crate::problem::find_nearest;
use crate::session::{Cache, Session, SpecOverrides, override_cell};
use crate::spec::{Column, Spec, UncheckedSpec};

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Set a cell. Your value takes precedence over the model's answer.
    Set {
        /// Spec file.
        spec: PathBuf,
        /// Table of an expansion or of a one-to-many column.
        table: String,
        /// Values of the key columns in their order (NULL for NULL), then the column's name, then
        /// the value (`|` separates the values of a list, `""` is the empty text).
        #[arg(required = true, num_args = 2.., value_names = ["KEY", "COLUMN", "VALUE"])]
        words: Vec<String>,
        /// Set the cell to no value, for example because the model's answer is made up. Omit VALUE.
        #[arg(long)]
        unknown: bool,
        /// Reason for the override, stored with it. Without a reason, the override keeps the
        /// reason of the one that it replaces.
        #[arg(long, default_value = "")]
        note: String,
        /// Accept a key that no source contains, or a value that is not in the value list.
        #[arg(long)]
        force: bool,
    },
    /// Remove an override, so that the model's answer applies again.
    Unset {
        /// Spec file.
        spec: PathBuf,
        /// Table of an expansion or of a one-to-many column.
        table: String,
        /// Values of the key columns in their order (NULL for NULL), then the column's name.
        #[arg(required = true, num_args = 2.., value_names = ["KEY", "COLUMN"])]
        words: Vec<String>,
    },
    /// List the overrides of a spec.
    List {
        /// Spec file.
        spec: PathBuf,
    },
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    match &options.command {
        Command::Set { spec, table, words, unknown, note, force } => {
            let (key, column, value) = match words.as_slice() {
                [key @ .., column] if *unknown => (key, column, NO_VALUE),
                [key @ .., column, value] if !key.is_empty() => (key, column, value.as_str()),
                _ => {
                    let hint = "expected KEY… COLUMN VALUE, or KEY… COLUMN --unknown";
                    return Err(Failure::wrong_input("a key, column or value is missing", hint));
                }
            };
            let Session { spec, database, .. } = open_spec(spec)?;
            if !*unknown && overrides::lacks_value(&spec, table, words) {
                return Err(Failure::wrong_input(
                    format!("the value of `{value}` is missing"),
                    "write KEY… COLUMN VALUE, or KEY… COLUMN --unknown",
                ));
            }
            if *unknown {
                if overrides::has_value_after_column(&spec, table, words) {
                    let value = words.last().map_or("", String::as_str);
                    return Err(Failure::wrong_input(
                        format!("--unknown and the value `{value}` exclude each other"),
                        "remove one of them: write KEY… COLUMN VALUE, or KEY… COLUMN --unknown",
                    ));
                }
                overrides::check_no_value(&spec, table, column)?;
            }
            let cell = (table.as_str(), key, column.as_str(), value);
            let stored = override_cell(&spec, &database, cell, note, *force)?;
            if let Some(nearest) = find_similar_value(&spec, table, column, &stored)
                && !*unknown
                && !output_options.quiet
            {
                anstream::eprintln!(
                    "note: \"{stored}\" is not in the value list of `{column}`; did you mean \"{nearest}\"?"
                );
            }
            let what = if stored == value { "set in" } else { &*format!("set to `{stored}` in") };
            Ok(report_change(output_options, "set", what, &spec.overrides_path()))
        }
        Command::Unset { spec, table, words } => {
            let [key @ .., column] = words.as_slice() else {
                return Err(Failure::wrong_input("no column", "KEY… COLUMN"));
            };
            let spec = &open_spec(spec)?.spec;
            overrides::remove_override(spec, table, key, column)?;
            Ok(report_change(output_options, "unset", "removed from", &spec.overrides_path()))
        }
        Command::List { spec } => {
            let path = UncheckedSpec::read(spec)?.path().with_extension("overrides.csv");
            let lines = read_lines(&path)?;
            if lines.is_empty() && !output_options.quiet && !output_options.json {
                anstream::eprintln!("no overrides in {}", path.display());
            }
            for (number, l) in lines {
                let key: Vec<&str> = l.key.iter().map(|(_, v)| v.as_str()).collect();
                if output_options.json {
                    let key: serde_json::Map<_, _> =
                        l.key.iter().map(|(n, v)| (n.clone(), v.as_str().into())).collect();
                    let line = json!({ "line": number, "key": key, "column": l.column, "value": l.value, "note": l.note, "replaced": l.replaced });
                    anstream::println!("{line}");
                } else {
                    let reason = match l.describe_reason() {
                        reason if reason.is_empty() => reason,
                        reason => format!("  ({reason})"),
                    };
                    anstream::println!("{}  {} = {}{reason}", key.join(", "), l.column, l.value);
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the value of a column's open list that an unlisted value may misspell.
fn find_similar_value<'s>(
    spec: &'s Spec,
    table: &str,
    column: &str,
    value: &str,
) -> Option<&'s str> {
    let is_table = |name: &str| name.eq_ignore_ascii_case(table);
    let is_named = |c: &Column| c.name.eq_ignore_ascii_case(column);
    let column = spec.expansions.iter().find_map(|e| {
        let is_many = |c: &Column| c.many.as_ref().is_some_and(|many| is_table(&many.table));
        e.columns.iter().find(|c| is_named(c) && (is_table(&e.name) || is_many(c)))
    })?;
    let list = column.values.as_ref()?;
    let is_listed = list.values.iter().any(|listed| listed.eq_ignore_ascii_case(value));
    find_nearest(value, list.values.iter().map(String::as_str)).filter(|_| !is_listed)
}

/// Prints the name of the changed file: as an event on stdout with --json, otherwise on stderr.
fn report_change(
    output_options: OutputOptions,
    event: &str,
    what: &str,
    path: &std::path::Path,
) -> ExitCode {
    if output_options.json {
        anstream::println!("{}", json!({ "event": event, "file": path.display().to_string() }));
    } else if !output_options.quiet {
        anstream::eprintln!("{what} {}; the next `hqdl materialize` publishes it", path.display());
    }
    ExitCode::SUCCESS
}

fn open_spec(path: &std::path::Path) -> Result<Session, Failure> {
    Ok(Session::open(UncheckedSpec::read(path)?, &SpecOverrides::default(), Cache::Temporary)?)
}
