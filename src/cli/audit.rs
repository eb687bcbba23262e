//! Implements `hqdl audit`.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::failure::Failure;
use super::materialize::print_report as print_run;
use super::progress::Progress;
use super::{CacheFlags, ModelFlags, OutputOptions, interrupt, score, session};
use crate::audit::sheet::{format_cell, parse_truth};
use crate::audit::{
    Audit, AuditReport, CellTruth, ColumnAudit, Design, Draw, DrawRequest, Evidence, ReferenceFill,
    ReportSettings, format_person, generate_seed, sheet_path,
};
use crate::database::Database;
use crate::format::format_count;
use crate::interval::design_for_query;
use crate::materialize::{RunMode, Selection};
use crate::problem::{Problems, find_nearest};
use crate::query::QueryError;
use crate::session::Session;
use crate::spec::checker::Checker;
use crate::spec::{Expansion, Reuse, is_server};
use crate::value::Value;

/// Environment variables that contain the user's login name.
const LOGIN_VARIABLES: [&str; 3] = ["USER", "LOGNAME", "USERNAME"];
/// Maximum number of keys that a report prints.
const MAX_KEYS: usize = 10;

#[derive(Debug, clap::Args)]
#[group(id = "step", multiple = true)]
pub struct Options {
    /// Spec file.
    spec: PathBuf,
    /// Columns to audit, all from the same expansion [default: all].
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    columns: Vec<String>,
    /// Number of rows to draw.
    #[arg(long, value_name = "N", default_value = "100", allow_hyphen_values = true,
          value_parser = super::parse_count::<u32>)]
    sample: u32,
    /// Sampling design. `leverage` always includes the rows that can change the result of --for the
    /// most [default: leverage if --for has SUM or AVG].
    #[arg(long, value_enum, value_name = "DESIGN")]
    design: Option<DesignName>,
    /// Query whose result you want to judge. hqdl chooses the columns and the design for it.
    #[arg(long = "for", value_name = "SQL")]
    query: Option<String>,
    /// Random seed. The same seed draws the same rows again.
    #[arg(long, value_name = "S", allow_hyphen_values = true,
          value_parser = super::parse_whole_number::<u64>)]
    seed: Option<u64>,
    /// Enter the true values in the terminal, one cell at a time: type a value, Enter to confirm
    /// the answer, `none` if there is no value, `""` for the empty text, `?` if the truth cannot be
    /// known, Ctrl-D to stop.
    #[arg(long, conflicts_with_all = ["truth", "report", "apply"])]
    ask_me: bool,
    /// Your name, which --ask-me stores with each true value [default: your login name].
    #[arg(long, value_name = "NAME", requires = "ask_me",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    who: Option<String>,
    /// Fill the sheet from a reference: a CSV file whose header names key columns and columns of
    /// the spec. With --report, compare all published cells with it, as `hqdl score` does.
    #[arg(long, value_name = "CSV", conflicts_with = "apply")]
    truth: Option<PathBuf>,
    /// Print the accuracy of each audited column.
    #[arg(long, conflicts_with = "apply")]
    report: bool,
    /// With --report: half-width of the interval, in percentage points, for which hqdl computes the
    /// number of rows to audit.
    #[arg(long, value_name = "POINTS", default_value = "5", requires = "report",
          conflicts_with = "truth", allow_hyphen_values = true, value_parser = parse_half_width)]
    half_width: f64,
    /// Write the true values that differ from the answers as overrides. Intervals still use the
    /// answers.
    #[arg(long)]
    apply: bool,
    /// Fill the sheet with answers from the model that the flags name, as --model alone does. The report counts them as
    /// agreement between models, never as true values.
    #[arg(long, conflicts_with_all = ["truth", "report", "apply", "ask_me"])]
    ask_model: bool,
    /// Maximum cost of --ask-model in USD.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DesignName {
    Uniform,
    Leverage,
}

/// Parses a half-width in percentage points.
fn parse_half_width(text: &str) -> Result<f64, String> {
    let points: Option<f64> = text.parse().ok();
    points
        .filter(|points| *points > 0.0 && *points < 50.0)
        .ok_or_else(|| "expected a number of percentage points between 0 and 50".to_owned())
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    if let (true, Some(truth)) = (options.report, &options.truth) {
        let (spec, db, output) =
            (options.spec.clone(), options.flags.db.clone(), options.flags.output.clone());
        return score::run(&score::Options::new(spec, truth.clone(), db, output), output_options);
    }
    let session = open_session(options)?;
    // If no other step is requested, naming a model implies `--ask-model`.
    let has_step = options.ask_me || options.report || options.apply || options.truth.is_some();
    let asks_model = options.ask_model || !has_step && options.flags.model.is_some();
    if options.budget.is_some() && !asks_model {
        return Err(Failure::wrong_input(
            "--budget has no effect without --ask-model",
            "remove --budget, or pass --ask-model --model NAME",
        ));
    }
    let is_fill =
        options.ask_me || asks_model || options.report || options.apply || options.truth.is_some();
    if !is_fill {
        return draw_sample(options, &session, output_options);
    }
    let (n, expansion) = find_expansion(&session, &options.columns)?;
    let mut audit = Audit::read(&session.spec, expansion)?;
    if options.report {
        let published = open_published_database(&session)?;
        let half_width = options.half_width / 100.0;
        let settings = ReportSettings { half_width, ..ReportSettings::default() };
        let report = audit.build_report(&session.database, &published, expansion, settings)?;
        print_report(&report, output_options);
    } else if let Some(reference) = &options.truth {
        let result = audit.fill_from_reference(&session.spec, n, reference)?;
        report_reference(output_options, result, reference, &sheet_path(&session.spec, expansion));
    } else if asks_model {
        let filled = ask_other_model(options, &session, n, &mut audit, output_options)?;
        let file = sheet_path(&session.spec, expansion);
        let what = format!("filled {}", format_count(filled, "cell"));
        report_step(output_options, "filled", &what, filled, &file);
    } else if options.apply {
        let applied = audit.apply_truths(&session.spec, expansion)?;
        let file = session.spec.overrides_path();
        let what = format!("wrote {}", format_count(applied, "override"));
        report_step(output_options, "applied", &what, applied, &file);
        if applied == 0 && !output_options.quiet {
            anstream::eprintln!(
                "note: {} has no truth to write: a truth is missing, equals the answer, or is an override already",
                sheet_path(&session.spec, expansion).display()
            );
        }
    } else {
        let login = || LOGIN_VARIABLES.iter().find_map(|name| std::env::var(name).ok());
        let who = options.who.clone().or_else(login).unwrap_or_default();
        if !output_options.quiet {
            anstream::eprintln!(
                "Enter confirms the answer in brackets. Otherwise type the true value: \"\" for the empty text, none for no value, ? if it cannot be known. Ctrl-D stops."
            );
        }
        ask_person(&session, expansion, &mut audit, &who)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn open_session(options: &Options) -> Result<Session, Failure> {
    // Only --ask-model sends requests; the other steps need neither an API key nor the cache.
    let flags = ModelFlags {
        db: options.flags.db.clone(),
        output: options.flags.output.clone(),
        cache: CacheFlags::default(),
        ..ModelFlags::default()
    };
    session::open_spec(&options.spec, &flags, None, "audit")
}

/// Asks another model about the sampled rows, and writes its answers into the sheet.
fn ask_other_model(
    options: &Options,
    audited: &Session,
    expansion: usize,
    audit: &mut Audit,
    output_options: OutputOptions,
) -> Result<u64, Failure> {
    if options.flags.model.is_none() && options.flags.recordings.is_empty() {
        return Err(Failure::wrong_input(
            "--ask-model needs another model",
            "name it with --model",
        ));
    }
    // Publish the other model's answers only into a temporary copy.
    let directory = std::env::temp_dir().join(format!("hqdl-audit-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|e| {
        let message = format!("{}: {}", directory.display(), crate::format::describe_io_error(&e));
        Failure::wrong_input(message, "set TMPDIR to a directory that you can write to")
    })?;
    let flags =
        ModelFlags { output: Some(directory.join("expanded.sqlite")), ..options.flags.clone() };
    let filled = fill_from_model(options, audited, &flags, expansion, audit, output_options);
    let _ = std::fs::remove_dir_all(&directory);
    filled
}

fn fill_from_model(
    options: &Options,
    audited: &Session,
    flags: &ModelFlags,
    expansion: usize,
    audit: &mut Audit,
    output_options: OutputOptions,
) -> Result<u64, Failure> {
    let command = format!("audit {}", options.spec.display());
    let mut session = session::open_spec(&options.spec, flags, options.budget, &command)?;
    session.spec.model.reuse = Reuse::SameModel;
    session::print_cache_location(session.facts()?, output_options);
    let expansion = session.spec.expansions[expansion].clone();
    let selection = Selection {
        columns: Some(audit.draw.columns.clone()),
        filter: Some(audit.build_sample_condition(&expansion)),
        ..Selection::default()
    };
    let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
    let (progress, listener) = Progress::new(output_options);
    let materializer =
        session.new_materializer(session.connect_model()?, &selection, RunMode::Live)?;
    let name = materializer.model_name().to_owned();
    if audit.is_answered_by(&open_published_database(audited)?, &expansion, &name)? {
        return Err(Failure::wrong_input(
            format!(
                "{} produced the answers that this audit checks",
                options
                    .flags
                    .model
                    .as_ref()
                    .map_or_else(|| "this model".to_owned(), |model| format!("--model {model}"))
            ),
            "name another model",
        ));
    }
    let mut report = materializer.materialize(&command, &listener, &interrupt)?;
    drop(materializer);
    progress.finish();
    if let Some(failure) = Failure::take_from_report(&mut report) {
        return Err(failure);
    }
    print_run(&report, &session.spec, &[], progress.elapsed_seconds(), output_options);
    let published = Database::open(session.spec.target())?;
    let databases = (&session.database, &published);
    Ok(audit.fill_from_model(&session.spec, &expansion, databases, &name)?)
}

fn open_published_database(session: &Session) -> Result<Database, Failure> {
    let target = session.spec.target();
    if !target.exists() && !is_server(target) {
        return Err(Failure::wrong_input(
            format!("{} does not exist yet", target.display()),
            "create it with `hqdl materialize`",
        ));
    }
    Ok(Database::open(target)?)
}

/// Returns the expansion that has the named columns. Without names, returns the only audited
/// expansion, or the spec's only expansion.
fn find_expansion<'s>(
    session: &'s Session,
    columns: &[String],
) -> Result<(usize, &'s Expansion), Failure> {
    let expansions = &session.spec.expansions;
    let has_all = |e: &&(usize, &Expansion)| columns.iter().all(|c| e.1.find_column(c).is_some());
    let found: Vec<(usize, &Expansion)> = expansions.iter().enumerate().collect();
    let mut found: Vec<&(usize, &Expansion)> = found.iter().filter(has_all).collect();
    let has_audit = |e: &&(usize, &Expansion)| sheet_path(&session.spec, e.1).exists();
    if found.iter().filter(|e| has_audit(e)).count() == 1 && columns.is_empty() {
        found.retain(has_audit);
    }
    let all: Vec<&str> =
        expansions.iter().flat_map(|e| &e.columns).map(|c| c.name.as_str()).collect();
    let unknown = columns.iter().find(|c| !all.iter().any(|a| a.eq_ignore_ascii_case(c)));
    match found.as_slice() {
        [only] => Ok(**only),
        [] => Err(Failure::wrong_input(
            match unknown {
                Some(name) => format!("--columns: no expansion has a column `{name}`"),
                None => {
                    format!("--columns: no single expansion has the columns {}", columns.join(", "))
                }
            },
            match unknown.and_then(|name| find_nearest(name, all.iter().copied())) {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => format!("name columns of one expansion: {}", all.join(", ")),
            },
        )),
        _ => Err(Failure::wrong_input(
            "the spec has several expansions",
            "name the columns to audit with --columns",
        )),
    }
}

/// Draws a sample and writes its files.
fn draw_sample(
    options: &Options,
    session: &Session,
    output_options: OutputOptions,
) -> Result<ExitCode, Failure> {
    let published = open_published_database(session)?;
    let sample = options.sample as usize;
    let mut request = DrawRequest {
        sample,
        seed: options.seed.unwrap_or_else(generate_seed),
        ..DrawRequest::default()
    };
    let (mut n, mut chosen) = (None, Vec::new());
    if let Some(query) = &options.query {
        let design = design_for_query(&session.spec, &session.database, &published, query, sample)
            .map_err(|e| to_failure(e, query))?;
        (n, chosen) = (Some(design.expansion), design.columns);
        if options.design != Some(DesignName::Uniform) && !design.certain.is_empty() {
            request.certain = design.certain;
            request.design = Design::Leverage { query: query.clone() };
        }
    }
    if options.design == Some(DesignName::Leverage) && request.certain.is_empty() {
        return Err(Failure::wrong_input(
            "the leverage design needs a query with SUM or AVG",
            "name it with --for",
        ));
    }
    let (n, expansion) = match n {
        Some(n) => (n, &session.spec.expansions[n]),
        None => find_expansion(session, &options.columns)?,
    };
    request.columns = options.columns.iter().filter_map(|c| expansion.find_column(c)).collect();
    request.columns.extend(chosen);
    if request.columns.is_empty() {
        request.columns = (0..session.spec.expansions[n].columns.len()).collect();
    }
    request.columns.sort_unstable();
    request.columns.dedup();
    let draw = Draw::sample_rows(&session.database, &published, expansion, &request)?;
    let file = Audit::create(&draw, &session.spec, expansion)?;
    if output_options.json {
        let json = json!({
            "event": "drawn", "audit": draw.id, "expansion": expansion.name, "columns": draw.columns,
            "design": draw.design.name(), "sample": draw.sample().len(),
            "population": draw.frame.len(), "seed": draw.seed, "file": file.display().to_string(),
        });
        anstream::println!("{json}");
    } else if !output_options.quiet {
        anstream::eprintln!(
            "drew {} of {} ({}, seed {}) into {}",
            format_count(draw.sample().len() as u64, "row"),
            draw.frame.len(),
            draw.design.name(),
            draw.seed,
            file.display()
        );
        anstream::eprintln!(
            "fill in `truth`, or answer in the terminal with `hqdl audit {} --ask-me`",
            options.spec.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the failure for a query error, pointing into the query's text.
fn to_failure(error: QueryError, sql: &str) -> Failure {
    match error {
        QueryError::Sql(problem) => Failure::Problems(Problems {
            path: PathBuf::from("<query>"),
            text: sql.to_owned(),
            problems: vec![*problem],
        }),
        error => error.into(),
    }
}

fn report_step(output_options: OutputOptions, event: &str, what: &str, cells: u64, file: &Path) {
    if output_options.json {
        let file = file.display().to_string();
        anstream::println!("{}", json!({ "event": event, "cells": cells, "file": file }));
    } else if !output_options.quiet {
        anstream::eprintln!("{what} in {}", file.display());
    }
}

/// Reports the cells that a reference filled, and the reasons why it did not fill the others.
fn report_reference(
    output_options: OutputOptions,
    result: ReferenceFill,
    reference: &Path,
    sheet: &Path,
) {
    let ReferenceFill { filled, known, absent, empty } = result;
    if output_options.json {
        let file = sheet.display().to_string();
        let json = json!({
            "event": "filled", "cells": filled, "known": known, "absent": absent, "empty": empty,
            "file": file,
        });
        anstream::println!("{json}");
        return;
    }
    let what = format!("filled {}", format_count(filled, "cell"));
    report_step(output_options, "filled", &what, filled, sheet);
    let (reference, left) = (reference.display(), known + absent + empty);
    if left == 0 || output_options.quiet {
        return;
    }
    let help = "(write \"\" for the empty text, none for no value, or ? if it cannot be known)";
    let reasons = [
        (known, "already filled".to_owned()),
        (absent, format!("without a line or a column in {reference}")),
        (empty, format!("with an empty field in {reference} {help}")),
    ];
    let reasons = reasons.into_iter().filter(|(cells, _)| *cells > 0);
    let reasons: Vec<String> = reasons.map(|(cells, why)| format!("{cells} {why}")).collect();
    let left = format_count(left, "other cell");
    anstream::eprintln!("note: {left} of the sample: {}", reasons.join(", "));
}

/// Asks the user for each missing truth, in the order of the sheet, and stores each immediately.
fn ask_person(
    session: &Session,
    expansion: &Expansion,
    audit: &mut Audit,
    who: &str,
) -> Result<(), Failure> {
    let mut lines = std::io::stdin().lock().lines();
    let sample = audit.draw.sample().to_vec();
    for (n, row) in sample.iter().enumerate() {
        for (column, audited) in audit.draw.find_expansion_columns(expansion) {
            let known = audit.sheet.truth(*row, column);
            if known.is_some_and(|truth| truth.evidence() == Evidence::Truth) {
                continue;
            }
            let frame_row = &audit.draw.frame[*row];
            let key: Vec<String> = frame_row.key.iter().map(ToString::to_string).collect();
            let answer = frame_row.answers[audited].clone();
            let name = &expansion.columns[column].name;
            let checker = Checker::new(&expansion.columns[column]);
            let value = loop {
                let shown = format_cell(&answer);
                let row = format!("{}/{} {}", n + 1, sample.len(), key.join(", "));
                anstream::eprint!("{row}: {name} [{shown}] ");
                let Some(Ok(line)) = lines.next() else {
                    anstream::eprintln!();
                    return Ok(());
                };
                if line.trim().is_empty() && !shown.is_empty() {
                    break Some(answer);
                }
                match parse_truth(&checker, name, &line) {
                    Ok(value) => break value,
                    Err(message) => anstream::eprintln!("{message}"),
                }
            };
            let (source, note) = (format_person(who), String::new());
            let truth = CellTruth { value, source, note };
            audit.record_truth(&session.spec, expansion, (*row, column), truth)?;
        }
    }
    Ok(())
}

fn print_report(report: &AuditReport, output_options: OutputOptions) {
    if output_options.json {
        anstream::println!("{}", report.to_json());
        return;
    }
    anstream::println!(
        "audit {} of {}: {} sample of {}",
        report.id,
        report.expansion,
        report.design,
        format_count(report.sample, "row")
    );
    match report.missing_rows {
        0 => {}
        1 => anstream::println!("1 of these rows no longer exists"),
        rows => anstream::println!("{rows} of these rows no longer exist"),
    }
    print_changed_rows(&report.changed_keys);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "column",
        "compared with",
        "rows",
        "right",
        "accuracy (95 %)",
        &format!("rows for ± {}", (1e6 * report.half_width).round() / 1e4),
    ]);
    for column in &report.columns {
        table.add_row([
            column.column.clone(),
            match column.evidence {
                Evidence::Truth => "truth".to_owned(),
                Evidence::Model => "a model".to_owned(),
            },
            column.rows.to_string(),
            column.right.to_string(),
            format_accuracy(column),
            column.rows_needed.to_string(),
        ]);
    }
    for at in 2..6 {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    anstream::println!("{table}");
    report.columns.iter().for_each(print_column);
}

/// Prints the rows whose answers have changed since the draw.
fn print_changed_rows(keys: &[Vec<Value>]) {
    if keys.is_empty() {
        return;
    }
    let format_key = |key: &Vec<Value>| {
        let parts: Vec<String> = key.iter().map(ToString::to_string).collect();
        parts.join(", ")
    };
    let mut shown: Vec<String> = keys.iter().take(MAX_KEYS).map(format_key).collect();
    if keys.len() > MAX_KEYS {
        shown.push(format!("and {} more", keys.len() - MAX_KEYS));
    }
    let answers = if keys.len() == 1 { "answer" } else { "answers" };
    anstream::println!(
        "the {answers} of {} of these rows changed since the draw (the report uses the answers at the draw): {}",
        keys.len(),
        shown.join("; ")
    );
}

fn format_accuracy(column: &ColumnAudit) -> String {
    column.accuracy.map_or_else(
        || "not known yet".to_owned(),
        |shares| {
            let [accuracy, low, high] = shares.map(|share| 100.0 * share);
            format!("{accuracy:.1} % ({low:.1} to {high:.1})")
        },
    )
}

/// Prints how many of a column's answers are right, by state, and the values that the model
/// confused.
fn print_column(column: &ColumnAudit) {
    if column.rows == 0 {
        return;
    }
    anstream::println!("\n{}", column.column);
    for (state, (right, rows)) in &column.states {
        anstream::println!("  state {state}: {right} of {rows} right");
    }
    if column.cannot_be_known > 0 {
        anstream::println!("  {} cannot be known", format_count(column.cannot_be_known, "row"));
    }
    for pair in &column.confusions {
        let times = format_count(pair.rows, "row");
        anstream::println!("  {} instead of {}: {times}", pair.answer, pair.truth);
    }
}
