//! Implements `hqdl check`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::failure::{Failure, WRONG_INPUT};
use super::{OutputOptions, session};
use crate::database::Database;
use crate::database::keys::{KeyReport, Keys};
use crate::database::output;
use crate::facts::Facts;
use crate::key::Fingerprint;
use crate::overrides::Overrides;
use crate::problem::{Problem, Problems, Severity};
use crate::query::{self, QueryError, Request};
use crate::session::{Cache, Session, SpecOverrides};
use crate::spec::evidence::Documents;
use crate::spec::{Expansion, ReadError, SourceRows, Spec, UncheckedSpec};
use crate::sql::quote_name;

/// Time limit for planning the query of an example.
const EXAMPLE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec files, or directories whose *.toml files are specs.
    #[arg(required_unless_present = "schema")]
    spec: Vec<PathBuf>,
    /// Database to check against instead of the spec's.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Print the JSON Schema of specs, for editors.
    #[arg(long, conflicts_with = "spec")]
    schema: bool,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    if options.schema {
        let schema = crate::spec::file::json_schema();
        anstream::println!("{}", serde_json::to_string_pretty(&schema).unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    let mut failed = false;
    let mut reports = Vec::new();
    for path in &expand_directories(&options.spec)? {
        let (problems, summary) = check_spec(path, options)?;
        let has_errors = problems.problems.iter().any(|p| p.severity == Severity::Error);
        failed |= has_errors;
        session::print_warnings(
            &problems,
            OutputOptions { quiet: output_options.quiet && !has_errors, ..output_options },
        );
        if output_options.json {
            reports
                .push(json!({ "spec": path, "ok": !has_errors, "problems": problems.to_json() }));
        } else if !has_errors && !output_options.quiet {
            anstream::println!("{}: {summary}", path.display());
        }
    }
    if output_options.json {
        anstream::println!("{}", json!({ "ok": !failed, "specs": reports }));
    }
    Ok(if failed { ExitCode::from(WRONG_INPUT) } else { ExitCode::SUCCESS })
}

/// Replaces each directory with its spec files, sorted by name.
fn expand_directories(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut specs = Vec::new();
    for path in paths {
        if !path.is_dir() {
            specs.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|e| {
            let why = crate::format::describe_io_error(&e);
            let message = format!("cannot read {}: {why}", path.display());
            Failure::wrong_input(message, "pass a spec file, or a directory of specs")
        })?;
        let files = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let mut found: Vec<PathBuf> =
            files.filter(|file| file.extension().is_some_and(|ends| ends == "toml")).collect();
        if found.is_empty() {
            let message = format!("{} has no *.toml file", path.display());
            return Err(Failure::wrong_input(message, "`hqdl init DB` writes a first spec"));
        }
        found.sort();
        specs.append(&mut found);
    }
    Ok(specs)
}

/// Checks one spec. Returns its problems, and a summary if it is valid.
fn check_spec(path: &std::path::Path, options: &Options) -> Result<(Problems, String), Failure> {
    let draft = match UncheckedSpec::read(path) {
        // `ask`, `chat` and `query` accept a spec without expansions.
        Ok(draft) if draft.file.has_ask_settings() => draft.allow_no_expansions(),
        Ok(draft) => draft,
        Err(ReadError::Problems(problems)) => return Ok((problems, String::new())),
        Err(error) => return Err(error.into()),
    };
    if let Some(database) = options.db.as_deref().filter(|db| !crate::spec::is_server(db)) {
        // The path comes from a flag, so open the database here: the error message must not name
        // the spec.
        session::open_flag_database(database)?;
    }
    let overrides = SpecOverrides { database: options.db.clone(), ..SpecOverrides::default() };
    let session = match Session::open(draft, &overrides, Cache::Temporary) {
        Ok(session) => session,
        Err(problems) => return Ok((problems, String::new())),
    };
    let Session { spec, unchecked_spec: draft, database, warnings: mut problems, .. } = session;
    if spec.expansions.is_empty() {
        let message = "the spec has no expansion, so it fills no table";
        let help = "use it with `hqdl ask`, `hqdl chat` and `hqdl query`, or add an [[expansion]]";
        problems.problems.push(draft.warning_at(&["database".into()], message.to_owned(), help));
    }
    let publishes = !spec.expansions.is_empty() && spec.output.is_none();
    if publishes && let Some(message) = database.find_missing_permission()? {
        let message = format!("{message}, so a run cannot publish");
        let help = "docs/reference/postgresql.md lists the permissions that a run needs";
        problems.problems.push(draft.warning_at(&["database".into(), "url".into()], message, help));
    }
    let mut keys = 0;
    for (n, expansion) in spec.expansions.iter().enumerate() {
        let gathered = Keys::collect(&database, expansion, None)?;
        keys += gathered.report.keys;
        let location = ["expansion".into(), n.into(), "key".into()];
        let help = if expansion.key.names().iter().any(|key| expansion.is_media(key)) {
            "write an image or a recording in a key as a path or a URL; use a BLOB only in `context`"
        } else {
            "a key should identify one entity, by names that the model knows"
        };
        let warnings = gathered.report.warnings();
        problems
            .problems
            .extend(warnings.into_iter().map(|r| draft.warning_at(&location, r, help)));
        if gathered.report.keys == 0 {
            let message = format!(
                "the source of `{}` has no row with a key, so a run asks nothing",
                expansion.name
            );
            let location = ["expansion".into(), n.into(), "source".into()];
            let help = "check the table or the condition of `source`";
            problems.problems.push(draft.warning_at(&location, message, help));
        }
        problems.problems.extend(gathered.report.placeholders_warning().map(|message| {
            let help = suggest_filtered_source(expansion, &gathered.report);
            draft.warning_at(&location, message, &help)
        }));
        problems.problems.extend(gathered.report.duplicates_note().map(|message| {
            let help = "if these rows are different entities, add another column to the key";
            let problem = draft.warning_at(&location, message, help);
            Problem { severity: Severity::Note, ..problem }
        }));
    }
    problems.problems.extend(find_shared_columns(&spec, &draft));
    problems.problems.extend(find_word_rankings(&spec, &draft));
    if let Err(error) = output::check_support(spec.output.as_deref()) {
        let location = ["database".into(), "output".into()];
        let problem = draft.warning_at(&location, error.to_string(), error.hint());
        problems.problems.push(Problem { severity: Severity::Error, ..problem });
    }
    if let Ok(target) = Database::open(spec.target()) {
        for (n, expansion) in spec.expansions.iter().enumerate() {
            let Some(edited) = target.build_edit_warning(expansion)? else { continue };
            let location = ["expansion".into(), n.into(), "name".into()];
            let help =
                "the next run restores them; use `hqdl override set` to change a cell permanently";
            problems.problems.push(draft.warning_at(&location, edited, help));
        }
    }
    match Overrides::read(&spec) {
        Ok(overrides) => {
            let help = "correct the overrides file";
            let warnings = overrides.warnings.into_iter();
            problems.problems.extend(warnings.map(|message| draft.warning_at(&[], message, help)));
        }
        Err(error) => {
            let problem = draft.warning_at(&[], error.to_string(), error.hint());
            problems.problems.push(Problem { severity: Severity::Error, ..problem });
        }
    }
    problems.problems.extend(check_examples(&spec, &draft, &database)?);
    let columns: usize = spec.expansions.iter().map(|e| e.columns.len()).sum();
    let summary =
        format!("valid; expansions {}, columns {columns}, keys {keys}", spec.expansions.len());
    Ok((problems, summary))
}

/// Returns a note for each expansion whose documents hqdl ranks by words, although the spec has
/// `[embeddings]`.
fn find_word_rankings(spec: &Spec, draft: &UncheckedSpec) -> Vec<Problem> {
    let is_ranked = |expansion: &Expansion| {
        let evidence = expansion.evidence.as_ref().map(|evidence| &evidence.documents);
        evidence.is_some_and(|documents| !matches!(documents, Documents::Search(_)))
    };
    let expansions = spec.expansions.iter().enumerate();
    let ranked = expansions.filter(|(_, e)| spec.embeddings.is_some() && is_ranked(e));
    let to_note = |(n, expansion): (usize, &Expansion)| {
        let message = format!(
            "hqdl chooses the passages of `{}` by words (BM25), not by [embeddings]",
            expansion.name
        );
        let help = "only queries use [embeddings]; name the words of the documents in `about`";
        let location = ["expansion".into(), n.into(), "evidence".into()];
        let problem = draft.warning_at(&location, message, help);
        Problem { severity: Severity::Note, ..problem }
    };
    ranked.map(to_note).collect()
}

/// Returns a warning for each column that asks the same question as a column of an earlier
/// expansion with different rows, because rows with equal keys then share one answer.
fn find_shared_columns(spec: &Spec, draft: &UncheckedSpec) -> Vec<Problem> {
    let mut columns: HashMap<&Fingerprint, (&Expansion, &str)> = HashMap::new();
    let mut problems = Vec::new();
    for (n, expansion) in spec.expansions.iter().enumerate() {
        let rows = |e: &Expansion| e.sources.iter().map(|s| s.rows.clone()).collect::<Vec<_>>();
        for (m, column) in expansion.columns.iter().enumerate() {
            let (first, name) =
                *columns.entry(&column.fingerprint).or_insert((expansion, &column.name));
            if rows(first) == rows(expansion) || expansion.has_row_context() {
                continue;
            }
            let location = ["expansion".into(), n.into(), "column".into(), m.into(), "name".into()];
            let message = format!(
                "`{}.{}` is the same question as `{}.{name}`, so rows with equal keys share an answer",
                expansion.name, column.name, first.name
            );
            let help =
                "if the rows are different things, say in `about` of the columns what they are";
            problems.push(draft.warning_at(&location, message, help));
        }
    }
    problems
}

/// Returns a hint with a SELECT that leaves out the placeholder keys, such as `N/A`.
fn suggest_filtered_source(expansion: &Expansion, report: &KeyReport) -> String {
    let quote = |text: &String| format!("'{}'", text.replace('\'', "''"));
    let texts: Vec<String> = report.placeholders.1.iter().map(quote).collect();
    match (expansion.key.names(), expansion.sources.as_slice()) {
        ([column], [source]) => {
            let condition = format!("{} NOT IN ({})", quote_name(column), texts.join(", "));
            match &source.rows {
                SourceRows::Table(table) => format!(
                    "to leave them out, write source = \"\"\"SELECT * FROM {} WHERE {condition}\"\"\"",
                    quote_name(table)
                ),
                SourceRows::Select(_) => {
                    format!("to leave them out, add to the SELECT of the source: WHERE {condition}")
                }
            }
        }
        _ => "to leave them out, write a SELECT with a WHERE as the source".to_owned(),
    }
}

/// Returns an error for each `[[example]]` whose query fails. The query may read tables that a run
/// publishes later.
fn check_examples(
    spec: &Spec,
    draft: &UncheckedSpec,
    database: &Database,
) -> Result<Vec<Problem>, Failure> {
    if spec.ask.examples.is_empty() {
        return Ok(Vec::new());
    }
    // A locked or unrelated output is not an error of the spec.
    let Ok((target, _)) = output::find_expanded_database(database, spec.output.as_deref()) else {
        return Ok(Vec::new());
    };
    let facts = Facts::open_temporary()?;
    let explain = |sql: &str| {
        let request = Request {
            command: "check",
            timeout: Some(EXAMPLE_TIMEOUT),
            ..Request::new(spec, &target, &facts, sql)
        };
        if query::may_need_model(spec, sql, request.dialect, false) {
            query::explain(&request)
        } else {
            request.to_plain().explain()
        }
    };
    let is_published = |table: &str, column: &str| {
        explain(&format!("SELECT {} FROM {}", quote_name(column), quote_name(table))).is_ok()
    };
    let mut problems = Vec::new();
    for (n, example) in spec.ask.examples.iter().enumerate() {
        if let Err(QueryError::Sql(problem)) = explain(&example.sql) {
            if is_about_unpublished_object(spec, &problem.message, &is_published) {
                continue;
            }
            let message = format!("the query of this example fails: {}", problem.message);
            let location = ["example".into(), n.into(), "sql".into()];
            let help =
                problem.help.as_deref().unwrap_or("correct the query, or remove the example");
            let problem = draft.warning_at(&location, message, help);
            problems.push(Problem { severity: Severity::Error, ..problem });
        }
    }
    Ok(problems)
}

/// Returns true if the error of a query is about a table or column that a run publishes later.
/// `is_published` returns whether a table has a column. The messages are those of `SQLite` and
/// `PostgreSQL`.
fn is_about_unpublished_object(
    spec: &Spec,
    message: &str,
    is_published: &dyn Fn(&str, &str) -> bool,
) -> bool {
    let sqlite = ["no such table: ", "no such column: "];
    let name = sqlite.iter().find_map(|prefix| message.strip_prefix(prefix)).or_else(|| {
        let object = message.strip_suffix(" does not exist")?;
        object.strip_prefix("relation ").or_else(|| object.strip_prefix("column "))
    });
    let Some(name) = name.map(|name| name.replace('"', "")) else { return false };
    let name = name.rsplit('.').next().unwrap_or_default();
    let is_unpublished_column = |expansion: &Expansion| {
        expansion.columns.iter().any(|column| {
            let (table, own) = match &column.many {
                Some(many) => (&many.table, &many.column),
                None => (&expansion.name, &column.name),
            };
            own.eq_ignore_ascii_case(name) && !is_published(table, own)
        })
    };
    spec.publishes_table(name)
        || ["hqdl_cell", "hqdl_evidence"].iter().any(|own| own.eq_ignore_ascii_case(name))
        || spec.expansions.iter().any(is_unpublished_column)
}
