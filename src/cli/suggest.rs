//! Implements `hqdl suggest`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::failure::Failure;
use super::{CacheFlags, OutputOptions, session};
use crate::database::Database;
use crate::format::{format_cost, format_count, format_thousands};
use crate::session::{Cache, Session, SpecOverrides};
use crate::spec::UncheckedSpec;
use crate::spec_file;
use crate::suggest::edit::{self, Additions};
use crate::suggest::{BoundQuestion, ColumnLocation, Suggestion, Suggestions, suggest_columns};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec to suggest columns for.
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Add the columns to the spec.
    #[arg(long, requires = "spec")]
    write: bool,
    #[command(flatten)]
    cache: CacheFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let facts = session::select_cache(&options.cache, "suggest").open()?;
    session::print_cache_location(&facts, output_options);
    let open = |spec: &Path| -> Result<Session, Failure> {
        let cache = Cache::Open(facts.clone());
        Ok(Session::open(UncheckedSpec::read(spec)?, &SpecOverrides::default(), cache)?)
    };
    let opened = options.spec.as_deref().map(open).transpose()?;
    let all = match &opened {
        Some(session) => session.suggest()?,
        None => suggest_columns(&facts, None)?,
    };
    let additions = match (&options.spec, &opened) {
        (Some(path), Some(session)) if options.write => {
            Some(write_spec(path, &session.database, &all)?)
        }
        _ => None,
    };
    if output_options.json {
        anstream::println!("{}", all.to_json(additions.as_ref()));
        return Ok(ExitCode::SUCCESS);
    }
    for question in &all.questions {
        anstream::println!("{}", format_suggestion(question));
    }
    for bound in &all.bound_questions {
        anstream::println!("{}", format_bound_question(bound));
    }
    if output_options.quiet {
        return Ok(ExitCode::SUCCESS);
    }
    if all.questions.is_empty() && all.bound_questions.is_empty() {
        anstream::eprintln!("no query has asked an ad-hoc question yet");
    }
    match (&options.spec, additions) {
        (Some(path), Some(additions)) => print_additions(path, &additions),
        (Some(path), None) if !all.questions.is_empty() || !all.bound_questions.is_empty() => {
            anstream::eprintln!("hint: --write adds the columns to {}", path.display());
        }
        (None, _) if !all.questions.is_empty() => {
            anstream::eprintln!(
                "hint: with --spec SPEC hqdl shows the expansion that each would join"
            );
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds the suggestions to the spec. Writes nothing if the edited spec would fail `hqdl check`.
fn write_spec(path: &Path, database: &Database, all: &Suggestions) -> Result<Additions, Failure> {
    let mut added = Additions::default();
    spec_file::edit_spec(path, database, |text| {
        let (edited, additions) = edit::add_suggestions(text, all)?;
        added = additions;
        Ok(edited)
    })?;
    Ok(added)
}

/// Formats a suggestion for the terminal.
fn format_suggestion(question: &Suggestion) -> String {
    let asked = &question.live_question;
    let mut out = format!("{}\n", question.question);
    let mut line = |name: &str, text: &str| out.push_str(&format!("  {name:<9} {text}\n"));
    let origins: Vec<String> =
        asked.origins.iter().map(|o| format!("{}.{}", o.table, o.column)).collect();
    let of = if origins.is_empty() { String::new() } else { format!(" of {}", origins.join(", ")) };
    line("values", &format!("{}{of}", format_thousands(asked.values)));
    line(
        "cost",
        &format!(
            "{}, {} tokens in, {} out, {}",
            format_count(asked.requests, "request"),
            format_thousands(asked.input_tokens.round() as u64),
            format_thousands(asked.output_tokens.round() as u64),
            format_cost(asked.cost_usd)
        ),
    );
    line("asked", &format!("last {} of {}", asked.last_asked, asked.models.join(", ")));
    match &question.location {
        ColumnLocation::NoSpec => {}
        ColumnLocation::NoMatch => line("joins", "no expansion: none of its values is a key"),
        ColumnLocation::Existing(expansion, column) => {
            line("joins", &format!("nothing: `{expansion}.{column}` answers it already"));
        }
        ColumnLocation::Expansion(expansion_match) => {
            line(
                "joins",
                &format!(
                    "{expansion} on {}: {} of the {} values ({:.0} %) are keys of `{expansion}`",
                    expansion_match.key,
                    format_thousands(expansion_match.match_count),
                    format_thousands(expansion_match.value_count),
                    expansion_match.matching_share() * 100.0,
                    expansion = expansion_match.expansion,
                ),
            );
            line(
                "materialize",
                &describe_requests(expansion_match.requested_keys, &expansion_match.expansion),
            );
        }
    }
    if asked.identity.key.len() > 1 {
        line(
            "note",
            "the question uses several values, but a column sees only the key and the context",
        );
    }
    if !matches!(question.location, ColumnLocation::NoSpec | ColumnLocation::Existing(..))
        && let Err(why) = question.check_writable()
    {
        line("note", &format!("--write skips it: {why}"));
    }
    if !matches!(question.location, ColumnLocation::Existing(..)) {
        out.push('\n');
        out.push_str(&edit::format_column_toml(&question.column));
    }
    out
}

fn describe_requests(keys: u64, expansion: &str) -> String {
    if keys == 0 {
        return "sends no request: the stored answers become this column's".to_owned();
    }
    format!(
        "asks about {}, including answered ones: `{expansion}` stores answers by key, not by value",
        format_count(keys, "key")
    )
}

fn format_bound_question(bound: &BoundQuestion) -> String {
    let learned = &bound.question_binding;
    let mut out = format!("{}\n", bound.binding.ask);
    let done = if bound.in_spec { ", in the spec" } else { "" };
    let at = format!("{}.{}{done}", bound.expansion, learned.column);
    let date = learned.bound_at.get(..10).unwrap_or_default();
    out.push_str(&format!("  {:<9} {at}\n  {:<9} {}, {date}\n", "bound", "by", learned.model));
    if !bound.in_spec {
        out.push_str(&format!("\nquestions = [{}]\n", edit::format_question_toml(bound)));
    }
    out
}

fn print_additions(path: &Path, additions: &Additions) {
    let path = path.display();
    if additions.is_empty() {
        anstream::eprintln!("nothing to add to {path}");
        return;
    }
    for (expansion, column) in &additions.columns {
        anstream::eprintln!("added the column `{expansion}.{column}` to {path}");
    }
    for (expansion, column, ask) in &additions.questions {
        anstream::eprintln!("added the question \"{ask}\" to `{expansion}.{column}` in {path}");
    }
    if !additions.columns.is_empty() {
        anstream::eprintln!("hint: `hqdl plan {path}` prints the cost of materializing them");
    }
}
