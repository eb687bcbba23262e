//! Implements `hqdl why`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value as Json;

use super::failure::Failure;
use super::progress::parenthesize_notes;
use super::{CacheFlags, OutputOptions, cache, session};
use crate::database::Database;
use crate::database::provenance::{CellProvenance, ProvenanceError};
use crate::evidence::ShownEvidence;
use crate::format::to_single_line;
use crate::key::ColumnIdentity;
use crate::spec::{Catalog, UncheckedSpec};

/// Tables that `hqdl explain` prints for the ad-hoc questions of queries.
const QUESTION_TABLES: [&str; 2] = ["values", "documents"];

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Table of an expansion or of a one-to-many column, or a joined view (`SOURCE_expanded`); or
    /// `values` for an ad-hoc question of a query, whose text is then the column.
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
    #[command(flatten)]
    cache: CacheFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let Some((column, key)) = options.key_and_column.split_last() else {
        return Err(Failure::wrong_input("no column", "hqdl why TABLE KEY… COLUMN"));
    };
    let cells = match find_published_cells(options, key, column) {
        Err(LookupError::NotPublished(error))
            if QUESTION_TABLES.contains(&options.table.as_str()) =>
        {
            let answers = find_question_answers(options, key, column)?;
            if answers.is_empty() {
                return Err(error);
            }
            answers
        }
        published => published?,
    };
    if output_options.json {
        let all: Vec<_> = cells.iter().map(CellProvenance::to_json).collect();
        anstream::println!("{}", Json::Array(all));
    } else {
        cells.iter().for_each(print_provenance);
    }
    Ok(ExitCode::SUCCESS)
}

/// Reason why no published cell was found.
enum LookupError {
    /// No published database has the cell.
    NotPublished(Failure),
    /// The options are wrong, or the database cannot be read.
    Failed(Failure),
}

impl From<Failure> for LookupError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::NotPublished(failure) | LookupError::Failed(failure) => failure,
        }
    }
}

fn find_published_cells(
    options: &Options,
    key: &[String],
    column: &str,
) -> Result<Vec<CellProvenance>, LookupError> {
    let database = match &options.db {
        Some(db) => session::open_flag_database(db).map_err(|failure| {
            if exists(db) {
                LookupError::Failed(failure)
            } else {
                LookupError::NotPublished(failure)
            }
        })?,
        None => Database::open(&find_target(options)?).map_err(Failure::from)?,
    };
    database.find_provenance(&options.table, key, column).map_err(|error| match error {
        ProvenanceError::Store(_) | ProvenanceError::Key { .. } => {
            LookupError::Failed(error.into())
        }
        _ => LookupError::NotPublished(error.into()),
    })
}

/// Returns the stored answers about a value to an ad-hoc question, oldest first.
fn find_question_answers(
    options: &Options,
    key: &[String],
    question: &str,
) -> Result<Vec<CellProvenance>, Failure> {
    let cache = session::select_cache(&options.cache, "why");
    if cache::find_missing_dir(&cache)?.is_some() {
        return Ok(Vec::new());
    }
    let facts = cache.open()?;
    let history = facts.history();
    let is_asked = |text: &str| {
        serde_json::from_str::<ColumnIdentity>(text).is_ok_and(|identity| {
            identity.question().is_some_and(|text| to_single_line(text) == to_single_line(question))
        })
    };
    let identities = history.list_column_identities()?;
    let asked: Vec<u32> =
        identities.into_iter().filter(|(_, text)| is_asked(text)).map(|(id, _)| id).collect();
    let is_key = |entity: &Json| {
        let parts: Vec<&str> = entity
            .as_object()
            .into_iter()
            .flat_map(|parts| parts.values().map(|part| part.as_str().unwrap_or("NULL")))
            .collect();
        parts.len() == key.len() && parts.iter().zip(key).all(|(a, b)| a.eq_ignore_ascii_case(b))
    };
    let mut cells = Vec::new();
    for entry in facts.sync().iter() {
        let (entity, record) = entry?;
        let entity: Json = serde_json::from_str(entity.as_str()).unwrap_or(Json::Null);
        if !is_key(&entity) {
            continue;
        }
        for fact in record.facts.iter().filter(|fact| asked.contains(&fact.identity_id)) {
            let Some((completion, model)) = history.load_completion(fact.completion)? else {
                continue;
            };
            let share = |amount: f64| Some(amount / completion.cells.max(1) as f64);
            let parts = entity.as_object().into_iter().flat_map(|parts| parts.values());
            let key: Json = parts.cloned().collect();
            cells.push(CellProvenance {
                expansion: options.table.clone(),
                table: options.table.clone(),
                column: question.to_owned(),
                key: key.to_string(),
                state: fact.answer.state.name().to_owned(),
                value: fact.answer.value.to_json(),
                raw: fact.answer.raw.clone(),
                repair: fact.answer.repair.clone(),
                note: None,
                model: Some(model),
                parameters: completion.parameters.clone(),
                evidence: completion.evidence.as_deref().and_then(ShownEvidence::parse),
                run: Some(completion.run.get()),
                asked_at: Some(completion.asked_at.clone()),
                prompt_hash: Some(completion.prompt_hash.clone()),
                input_tokens: share(completion.input_tokens as f64),
                output_tokens: share(completion.output_tokens as f64),
                cost_usd: share(completion.cost_usd),
                assumed_cache_writes: share(completion.assumed_cache_writes as f64),
                error: completion.error.clone(),
            });
        }
    }
    Ok(cells)
}

/// Returns the path of the database to read: the database that was passed, or the target of a spec.
fn find_target(options: &Options) -> Result<PathBuf, LookupError> {
    let target_of = |draft: &UncheckedSpec| draft.output().unwrap_or_else(|| draft.database());
    if let Some(spec) = &options.spec {
        return require_output(target_of(&UncheckedSpec::read(spec).map_err(Failure::from)?));
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
        [] => Err(LookupError::NotPublished(Failure::wrong_input(
            format!("no spec in specs/ defines a table `{}`", options.table),
            "name the table first, and the published database with --db or its spec with --spec",
        ))),
        several => Err(Failure::wrong_input(
            format!("{} specs in specs/ define a table `{}`", several.len(), options.table),
            "name the published database with --db, or its spec with --spec",
        )
        .into()),
    }
}

/// Returns whether a database exists. A server counts as existing.
fn exists(database: &Path) -> bool {
    database.exists() || crate::spec::is_server(database)
}

/// Returns the path of the published database. Fails if the database does not exist yet.
fn require_output(target: PathBuf) -> Result<PathBuf, LookupError> {
    if exists(&target) {
        return Ok(target);
    }
    Err(LookupError::NotPublished(Failure::wrong_input(
        format!("{} does not exist yet", target.display()),
        "create it with `hqdl materialize`",
    )))
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
        Json::Null => None,
        Json::String(text) => Some(text.clone()),
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
