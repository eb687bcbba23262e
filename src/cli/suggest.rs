//! `hqdl suggest`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::failure::Failure;
use super::{CacheFlags, Talk, session};
use crate::database::Database;
use crate::format::{count_noun, thousands};
use crate::session::{Cache, Session, SpecOverrides};
use crate::spec::Draft;
use crate::suggest::edit::{self, Added};
use crate::suggest::{BoundQuestion, ColumnPlace, Suggestion, Suggestions, suggest};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec to which the columns would be added.
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Add the columns to the spec.
    #[arg(long, requires = "spec")]
    write: bool,
    #[command(flatten)]
    cache: CacheFlags,
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let facts = session::cache(&options.cache, "suggest").open()?;
    session::tell(&facts, talk);
    let open = |spec: &Path| -> Result<Session, Failure> {
        let cache = Cache::Open(facts.clone());
        Ok(Session::open(Draft::read(spec)?, &SpecOverrides::default(), cache)?)
    };
    let opened = options.spec.as_deref().map(open).transpose()?;
    let all = match &opened {
        Some(session) => session.suggest()?,
        None => suggest(&facts, None)?,
    };
    let added = match (&options.spec, &opened) {
        (Some(path), Some(session)) if options.write => Some(write(path, &session.database, &all)?),
        _ => None,
    };
    if talk.json {
        anstream::println!("{}", all.to_json(added.as_ref()));
        return Ok(ExitCode::SUCCESS);
    }
    for question in &all.questions {
        anstream::println!("{}", told(question));
    }
    for bound in &all.bound {
        anstream::println!("{}", told_bound(bound));
    }
    if talk.quiet {
        return Ok(ExitCode::SUCCESS);
    }
    if all.questions.is_empty() && all.bound.is_empty() {
        anstream::eprintln!("no query has asked a live question yet");
    }
    match (&options.spec, added) {
        (Some(path), Some(added)) => said(path, &added),
        (Some(path), None) if !all.questions.is_empty() || !all.bound.is_empty() => {
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

/// Adds the suggestions to the spec. Writes nothing that would not pass `hqdl check`.
fn write(path: &Path, database: &Database, all: &Suggestions) -> Result<Added, Failure> {
    let failed = |e: &std::io::Error| {
        Failure::input(format!("cannot write {}: {e}", path.display()), "nothing was added")
    };
    let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
    let by_hand = |e: edit::EditError| {
        Failure::input(
            e.to_string(),
            "nothing was added; copy the TOML that is printed without --write",
        )
    };
    let (written, added) = edit::write(&text, all).map_err(by_hand)?;
    if added.is_empty() {
        return Ok(added);
    }
    Draft::parse(path, written.clone())?.check(database)?;
    // Resolve links first, and replace the file atomically.
    let file = path.canonicalize().map_err(|e| failed(&e))?;
    let part = file.with_extension("toml.part");
    let mode = std::fs::metadata(&file).map_err(|e| failed(&e))?.permissions();
    std::fs::write(&part, written)
        .and_then(|()| std::fs::set_permissions(&part, mode))
        .and_then(|()| std::fs::rename(&part, &file))
        .map_err(|e| failed(&e))?;
    Ok(added)
}

/// Formats a suggestion for the terminal.
fn told(question: &Suggestion) -> String {
    let asked = &question.asked;
    let mut out = format!("{}\n", question.question);
    let mut line = |name: &str, text: &str| out.push_str(&format!("  {name:<9} {text}\n"));
    let origins: Vec<String> =
        asked.origins.iter().map(|o| format!("{}.{}", o.table, o.column)).collect();
    let of = if origins.is_empty() { String::new() } else { format!(" of {}", origins.join(", ")) };
    line("values", &format!("{}{of}", thousands(asked.values)));
    line(
        "cost",
        &format!(
            "{}, {} tokens in, {} out, ${:.4}",
            count_noun(asked.requests, "request"),
            thousands(asked.input_tokens.round() as u64),
            thousands(asked.output_tokens.round() as u64),
            asked.cost_usd
        ),
    );
    line("asked", &format!("last {} of {}", asked.last_asked, asked.models.join(", ")));
    match &question.place {
        ColumnPlace::NoSpec => {}
        ColumnPlace::Nowhere => line("joins", "no expansion: none of its values is a key"),
        ColumnPlace::Asked(expansion, column) => {
            line("joins", &format!("nothing: `{expansion}.{column}` answers it already"));
        }
        ColumnPlace::Joins(joins) => {
            line(
                "joins",
                &format!(
                    "{} by {}: {} of its {} values ({:.0} %) are keys there",
                    joins.expansion,
                    joins.key,
                    thousands(joins.found),
                    thousands(joins.of),
                    joins.share() * 100.0
                ),
            );
            line("materialize", &asks(joins.asks, &joins.expansion));
        }
    }
    if asked.meaning.key.len() > 1 {
        line(
            "note",
            "the question uses several values, but a column sees only the key and the context",
        );
    }
    if !matches!(question.place, ColumnPlace::NoSpec | ColumnPlace::Asked(..))
        && let Err(why) = question.writable()
    {
        line("note", &format!("--write skips it: {why}"));
    }
    if !matches!(question.place, ColumnPlace::Asked(..)) {
        out.push('\n');
        out.push_str(&edit::toml(&question.column));
    }
    out
}

fn asks(keys: u64, expansion: &str) -> String {
    if keys == 0 {
        return "sends no request: the stored answers become this column's".to_owned();
    }
    format!(
        "asks about {}, including answered ones: `{expansion}` stores its answers by its own key",
        count_noun(keys, "key")
    )
}

fn told_bound(bound: &BoundQuestion) -> String {
    let learned = &bound.learned;
    let mut out = format!("{}\n", bound.binding.ask);
    let done = if bound.in_spec { ", in the spec" } else { "" };
    let at = format!("{}.{}{done}", bound.expansion, learned.column);
    let date = learned.bound_at.get(..10).unwrap_or_default();
    out.push_str(&format!("  {:<9} {at}\n  {:<9} {}, {date}\n", "bound", "by", learned.model));
    if !bound.in_spec {
        out.push_str(&format!("\nquestions = [{}]\n", edit::question(bound)));
    }
    out
}

fn said(path: &Path, added: &Added) {
    let path = path.display();
    if added.is_empty() {
        anstream::eprintln!("nothing to add to {path}");
        return;
    }
    for (expansion, column) in &added.columns {
        anstream::eprintln!("added the column `{expansion}.{column}` to {path}");
    }
    for (expansion, column, ask) in &added.questions {
        anstream::eprintln!("added the question \"{ask}\" to `{expansion}.{column}` in {path}");
    }
    if !added.columns.is_empty() {
        anstream::eprintln!("hint: `hqdl plan {path}` prints the price of materializing them");
    }
}
