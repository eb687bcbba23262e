//! Implements `hqdl init`.

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use super::failure::Failure;
use super::progress::Progress;
use super::{ModelFlags, OutputOptions, interrupt, session};
use crate::database::{Database, StoreError};
use crate::format::{format_count, format_thousands, format_usd_bound};
use crate::init::SpecDraft;
use crate::init::advice::{self, TableAdvice};
use crate::init::csv_import;
use crate::model;
use crate::query::{self, QueryResult};
use crate::spec::is_server;

#[derive(Debug, clap::Args)]
#[command(mut_arg("db", |arg| arg.hide(true)), mut_arg("output", |arg| arg.hide(true)))]
pub struct Options {
    /// Database, CSV file, or directory of CSV files. hqdl imports CSV files into a database next
    /// to them.
    #[arg(value_name = "DB")]
    source: PathBuf,
    /// Output file [default: stdout]. An existing file is never overwritten.
    #[arg(long, short, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// For up to three tables, ask a model to propose a key, a description and three columns.
    /// Prints the maximum cost first.
    #[arg(long)]
    ask: bool,
    /// Maximum cost of --ask in USD.
    #[arg(long, value_name = "USD", requires = "ask", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

/// Default model of --ask, the same as in the spec that `init` writes.
const MODEL: &str = "gpt-4o-mini";

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let failed = |path: &Path, e: &std::io::Error| {
        let message = format!(
            "cannot write {}: {}",
            path.display(),
            crate::format::describe_write_error(path, e)
        );
        Failure::wrong_input(message, "choose another file with --spec")
    };
    // Check this before creating any file.
    if let Some(spec) = options.spec.as_ref().filter(|spec| spec.exists()) {
        let (message, hint) = if spec.is_dir() {
            ("is a directory", "name a file in it with --spec")
        } else {
            (
                "exists already, and `init` never overwrites a spec",
                "choose another file with --spec, or delete this one first",
            )
        };
        return Err(Failure::wrong_input(format!("{} {message}", spec.display()), hint));
    }
    let path = resolve_database(&options.source, output_options)?;
    let database = Database::open(&path).map_err(|e| match e {
        StoreError::Missing(path) => Failure::wrong_input(
            format!("there is no file at {}", path.display()),
            "name a SQLite database, a CSV file or a directory of CSV files",
        ),
        StoreError::NotADatabase(_) => Failure::wrong_input(
            e.to_string(),
            "`init` accepts a SQLite database, a CSV file or a directory of CSV files; export a spreadsheet as CSV first",
        ),
        other => other.into(),
    })?;
    if let Some(folder) = options.spec.as_deref().and_then(Path::parent) {
        std::fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
    }
    let mut spec_draft = SpecDraft::sample_database(&database)?;
    if options.ask {
        ask_for_advice(&mut spec_draft, &path, options, output_options)?;
    }
    let spec_path = choose_database_path(&path, options.spec.as_deref());
    let generated = spec_draft.write(&spec_path, &session::to_overrides(&options.flags))?;
    if let Some(spec) = &options.spec {
        let mut file = std::fs::File::create_new(spec).map_err(|e| failed(spec, &e))?;
        std::io::Write::write_all(&mut file, generated.toml.as_bytes())
            .map_err(|e| failed(spec, &e))?;
    }
    if output_options.json {
        anstream::println!(
            "{}",
            json!({ "spec": generated.toml, "notes": generated.notes, "file": options.spec })
        );
    } else if options.spec.is_none() {
        anstream::print!("{}", generated.toml);
    }
    if !output_options.quiet {
        generated.notes.iter().for_each(|n| anstream::eprintln!("note: {n}"));
        let has_expansion = generated.has_expansion;
        if let Some(spec) = &options.spec {
            let edit = if has_expansion { "" } else { "edit the example at its end, then run " };
            anstream::eprintln!("wrote {}; next: {edit}hqdl check {0}", spec.display());
        } else {
            let edit = if has_expansion { "" } else { " edit the example at its end," };
            anstream::eprintln!("next: save this as a file,{edit} then run `hqdl check FILE`");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the maximum cost, then asks a model for advice about the tables.
fn ask_for_advice(
    spec_draft: &mut SpecDraft<'_>,
    path: &Path,
    options: &Options,
    output_options: OutputOptions,
) -> Result<(), Failure> {
    if is_server(path) || options.flags.db.is_some() || options.flags.output.is_some() {
        return Err(Failure::wrong_input(
            "--ask works only with a SQLite database or CSV files, which `init` accepts as its first argument",
            "remove --db and --output; for a database on a server, leave out --ask",
        ));
    }
    let descriptions = spec_draft.describe_tables();
    if descriptions.is_empty() {
        return Ok(());
    }
    let mut flags = options.flags.clone();
    if flags.recordings.is_empty() {
        flags.model.get_or_insert_with(|| MODEL.to_owned());
    }
    let session = session::open_without_spec(path, &flags, options.budget, "init")?;
    session::print_cache_location(session.facts()?, output_options);
    let sql = advice::build_query(&descriptions);
    let mut request = session.new_query(path, &sql)?;
    request.model = Some(model::connect_for_planning(&session.spec)?);
    let planned = query::explain(&request)?;
    if !output_options.quiet {
        let price = if session.spec.is_priced() {
            format!("at most {}", format_usd_bound(planned.cost_usd))
        } else {
            "at an unknown price".to_owned()
        };
        anstream::eprintln!(
            "asking {} about {} in {}, {price}",
            session.spec.model.name,
            format_count(descriptions.len() as u64, "table"),
            format_count(planned.requests, "request"),
        );
    }
    request.model = Some(session.connect_model()?);
    request.listener = Progress::new_query_listener(output_options);
    request.interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
    let mut answers = QueryResult::default();
    query::run(&request, &mut answers)?;
    if answers.meta.values_missing > 0 && !output_options.quiet {
        anstream::eprintln!(
            "note: the model gave no usable answer to {} of the questions about the tables: complete the spec yourself, or try another --model",
            format_thousands(answers.meta.values_missing)
        );
    }
    let advised: Vec<TableAdvice> = answers.rows.iter().map(|row| TableAdvice::read(row)).collect();
    spec_draft.apply_advice(&advised);
    Ok(())
}

/// Returns the path of the database, after creating it if the path names CSV files.
fn resolve_database(path: &Path, output_options: OutputOptions) -> Result<PathBuf, Failure> {
    let Some(files) = csv_import::list_csv_files(path) else { return Ok(path.to_owned()) };
    let (created, notes) = csv_import::create_database(path, &files)
        .map_err(|e| Failure::wrong_input(e.to_string(), e.hint()))?;
    if !output_options.quiet {
        let files = format_count(files.len() as u64, "CSV file");
        anstream::eprintln!("created {} from {files}", created.display());
        notes.iter().for_each(|note| anstream::eprintln!("note: {note}"));
    }
    Ok(created)
}

/// Returns the path by which a spec refers to the database: relative to the spec's folder, or
/// absolute if the spec is not saved to a file.
fn choose_database_path(db: &Path, spec: Option<&Path>) -> String {
    if is_server(db) {
        return db.to_string_lossy().into_owned();
    }
    let full = db.canonicalize().unwrap_or_else(|_| db.to_owned());
    let folder = spec.and_then(|s| {
        let parent = s.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        parent.canonicalize().ok()
    });
    let path = folder.map_or_else(|| full.clone(), |folder| compute_relative_path(&folder, &full));
    path.display().to_string()
}

fn compute_relative_path(folder: &Path, file: &Path) -> PathBuf {
    let shared = folder.components().zip(file.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(file.components().skip(shared)).collect()
}
