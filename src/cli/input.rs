//! Input of `query` and `explain`: a query, its parameters, and the spec or database to query.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tokio::sync::watch;

use super::failure::Failure;
use super::session;
use super::{ModelFlags, OutputOptions};
use crate::database::{find_write_only_output, output};
use crate::generate::{Listener, StopReason};
use crate::model::{Model, SetupError};
use crate::problem::Problems;
use crate::query::params::parse_literal;
use crate::query::{self, Dialect, Param, PlainQuery, QueryError, RefreshScope, Request};
use crate::session::Session;
use crate::spec::{Provider, UncheckedSpec, is_server};
use crate::value::Value;

fn build_dialect_parser() -> impl TypedValueParser<Value = Dialect> {
    let values = Dialect::ALL.map(|(name, dialect)| {
        PossibleValue::new(name).help(match dialect {
            Dialect::Sqlite => "SQLite with BlendSQL ingredients",
            Dialect::Suql => "PostgreSQL syntax, with answer and summary (SUQL)",
            Dialect::Snowflake => "SQLite with AI_FILTER, AI_CLASSIFY, AI_COMPLETE, AI_AGG …",
            Dialect::BigQuery => "SQLite with AI.IF, AI.CLASSIFY, AI.SCORE, AI.GENERATE …",
            Dialect::Databricks => "SQLite with ai_query, ai_classify, ai_summarize …",
            Dialect::Flock => "SQLite with llm_complete, llm_filter, llm_reduce (DuckDB's flock)",
            Dialect::AlloyDb => "PostgreSQL syntax, with ai.if, ai.rank, ai.generate …",
        })
    });
    PossibleValuesParser::new(values).map(|name| Dialect::from_name(&name).unwrap_or_default())
}

#[derive(Debug, Clone, clap::Args)]
#[group(id = "query", multiple = false, args = ["sql", "file"])]
pub struct Options {
    /// Query, or - to read it from stdin.
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// Read the query from this file.
    #[arg(long, value_name = "F")]
    file: Option<PathBuf>,
    /// Spec whose columns can answer the query's calls.
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Value of a query parameter. N is a name (with or without : @ $) or a position. V is a
    /// number, null or text; '…' is always text.
    #[arg(long, value_name = "N=V")]
    param: Vec<String>,
    /// SQL dialect of the query. `suql` accepts `PostgreSQL` syntax (`ILIKE`, `ANY`, `unnest`,
    /// `c::int`); the others accept the AI functions of the systems they are named after.
    #[arg(long, value_parser = build_dialect_parser(), default_value = "sqlite", value_name = "DIALECT")]
    dialect: Dialect,
    /// If a query compares a column of few distinct values with a word that is not among them, ask
    /// the model once which values the word means.
    #[arg(long)]
    classify: bool,
    /// If the rows of a question exceed `context_tokens`, cut them instead of failing.
    #[arg(long)]
    truncate: bool,
    /// Ask again for cells that this query needs and that were answered without a value.
    #[arg(long)]
    retry_failed: bool,
    /// Ask again for all cells that this query needs.
    #[arg(long)]
    refresh: bool,
    /// Time limit for the database's work in one pass. Waiting for the model, or for a client to
    /// read the rows, does not count.
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = parse_seconds)]
    timeout: Option<Duration>,
    /// Maximum cost of this query in USD.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

impl Options {
    /// Returns whether a query was passed.
    pub fn has_query(&self) -> bool {
        self.sql.is_some() || self.file.is_some()
    }

    /// Sets the text of the query.
    pub fn set_query(&mut self, sql: String) {
        self.sql = Some(sql);
    }
}

/// Parses a flag's number of seconds.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 30".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|d| !d.is_zero())
        .ok_or_else(|| "expected more than 0 seconds".to_owned())
}

/// A query with its parameters, spec and database, read and checked.
pub struct Input<'o> {
    options: &'o Options,
    flags: ModelFlags,
    /// Text of the query.
    pub sql: String,
    /// File the query was read from, for messages.
    origin: PathBuf,
    params: Vec<(Param, Value)>,
    /// Spec and its database.
    pub session: Session,
    /// Database to query.
    target: PathBuf,
    command: String,
}

impl<'o> Input<'o> {
    /// Reads and checks everything except the query itself.
    pub fn open(
        options: &'o Options,
        command: &str,
        output_options: OutputOptions,
    ) -> Result<Self, Failure> {
        let mut flags = options.flags.clone();
        let (sql, origin) = read_query(options, &mut flags)?;
        let params = parse_params(&options.param)?;
        let about = options.spec.as_deref().or(flags.db.as_deref());
        let command = about.map_or_else(String::new, |a| format!("{command} {}", a.display()));
        let (session, target) = open_for_query(
            options.spec.as_deref(),
            &flags,
            options.budget,
            &command,
            output_options,
        )?;
        Ok(Self { options, flags, sql, origin, params, session, target, command })
    }

    /// Returns true if the query may contain calls. Without calls, it needs neither facts nor a
    /// model.
    pub fn has_calls(&self) -> bool {
        let Options { dialect, classify, .. } = *self.options;
        query::may_need_model(&self.session.spec, &self.sql, dialect, classify)
    }

    /// Opens the facts and prints their warnings.
    pub fn open_facts(&self, output_options: OutputOptions) -> Result<(), Failure> {
        session::print_cache_location(self.session.facts()?, output_options);
        Ok(())
    }

    /// Connects to the model. A missing model name or API key is returned as the inner error,
    /// because it matters only if the query sends requests.
    pub fn connect_model(&self) -> Result<Result<Arc<dyn Model>, Failure>, Failure> {
        let settings = &self.session.spec.model;
        // An unnamed model has the default name `replay`, so check the flags, not the name.
        if settings.provider != Provider::Replay && self.lacks_model_name() {
            return Ok(Err(Failure::wrong_input(
                "this query needs a model, but none is named",
                "pass --model NAME (and --base-url URL), or --recordings FILE",
            )));
        }
        match self.session.connect_model() {
            Ok(model) => Ok(Ok(model)),
            Err(missing @ SetupError::NoKey(_)) => Ok(Err(missing.into())),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether the database contains hqdl's tables, but no spec describes them.
    pub fn has_tables_without_spec(&self) -> bool {
        self.options.spec.is_none() && self.session.database.has_bookkeeping()
    }

    fn lacks_model_name(&self) -> bool {
        self.options.spec.is_none() && self.flags.model.as_deref().unwrap_or_default().is_empty()
    }

    /// Returns the request for the query engine.
    pub fn build_request(
        &self,
        model: Option<Arc<dyn Model>>,
        listener: Listener,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Request<'_>, Failure> {
        let up_to = self.session.facts()?.history().load_last_completion_id()?;
        let again = self.options.refresh || self.options.retry_failed;
        let again = again.then_some(RefreshScope { up_to, failed_only: !self.options.refresh });
        Ok(Request {
            model,
            dialect: self.options.dialect,
            classify: self.options.classify,
            params: self.params.clone(),
            truncate: self.options.truncate,
            refresh: again,
            rows_per_request: self.flags.rows_per_request,
            timeout: self.options.timeout,
            command: &self.command,
            listener,
            interrupt,
            ..self.session.new_query(&self.target, &self.sql)?
        })
    }

    /// Returns the request for a query without calls.
    pub fn build_plain_query(&self, interrupt: watch::Receiver<bool>) -> PlainQuery<'_> {
        PlainQuery {
            database: &self.target,
            sql: &self.sql,
            dialect: self.options.dialect,
            params: &self.params,
            timeout: self.options.timeout,
            interrupt,
        }
    }

    /// Returns the help for a table that the spec publishes but that the queried database lacks.
    fn missing_table_help(&self) -> String {
        let spec = &self.session.spec;
        let output = spec.output.as_deref();
        match output.and_then(|output| Some((output, find_write_only_output(output)?))) {
            Some((output, kind)) => format!(
                "hqdl publishes this table into {}, {}: read it with another tool, or publish into a database, which requests no answer again: `hqdl materialize {} --output FILE.db`",
                kind.noun,
                output.display(),
                spec.path.display()
            ),
            None => format!("publish it first with `hqdl materialize {}`", spec.path.display()),
        }
    }

    /// Converts a query's error to the failure to print.
    pub fn to_failure(&self, error: QueryError, no_model: Option<Failure>) -> Failure {
        match (error, no_model) {
            (QueryError::Sql(mut problem), _) => {
                let relation = problem.message.strip_prefix("relation \"");
                let relation = relation.and_then(|rest| rest.strip_suffix("\" does not exist"));
                if let Some(table) = problem.message.strip_prefix("no such table: ").or(relation)
                    && self.session.spec.publishes_table(table)
                {
                    problem.help = Some(self.missing_table_help());
                }
                let dialect = format!("use `--dialect {}`", self.options.dialect.name());
                if problem.help.as_ref().is_some_and(|help| help.contains(&dialect)) {
                    problem.help = Some("correct the SQL here, or just after".to_owned());
                }
                Failure::Problems(Problems {
                    path: self.origin.clone(),
                    text: self.sql.clone(),
                    problems: vec![*problem],
                })
            }
            (QueryError::NoModel, Some(failure)) => failure,
            (QueryError::Stopped(StopReason::Interrupted), _) if !self.has_calls() => {
                Failure::interrupted()
            }
            (error, _) => error.into(),
        }
    }
}

/// Opens a spec or a database for queries. Returns the session and the path of the database to
/// query, which is the expanded copy if there is one.
pub fn open_for_query(
    spec: Option<&Path>,
    flags: &ModelFlags,
    budget: Option<f64>,
    command: &str,
    output_options: OutputOptions,
) -> Result<(Session, PathBuf), Failure> {
    let session = match (spec, &flags.db) {
        (Some(spec), _) => {
            let draft = UncheckedSpec::read(spec)?.allow_no_expansions();
            session::open_unchecked_spec(draft, flags, budget, command)?
        }
        (None, Some(db)) => session::open_without_spec(db, flags, budget, command)?,
        (None, None) => {
            return Err(Failure::wrong_input(
                "no database to query",
                "name one with --db, or a spec with --spec",
            ));
        }
    };
    session::print_warnings(&session.warnings, output_options);
    if let Some(path) = flags.output.as_deref()
        && !is_server(path)
        && find_write_only_output(path).is_none()
        && !path.exists()
    {
        return Err(Failure::wrong_input(
            format!("--output: there is no file {}", path.display()),
            "name a copy that `hqdl materialize` has made, or leave the flag out",
        ));
    }
    let output = session.spec.output.as_deref();
    let (target, stale) = output::find_expanded_database(&session.database, output)?;
    if stale && !output_options.quiet {
        anstream::eprintln!(
            "note: {} is older than its database; update it with `hqdl materialize`",
            target.display()
        );
    }
    Ok((session, target))
}

/// Returns the query's text and the file it was read from.
fn read_query(options: &Options, flags: &mut ModelFlags) -> Result<(String, PathBuf), Failure> {
    let failed = |name: &Path, e: &std::io::Error| {
        Failure::wrong_input(
            format!("cannot read {}: {}", name.display(), crate::format::describe_io_error(e)),
            "pass a file with a query in UTF-8 text",
        )
    };
    if let Some(failure) = options.sql.as_deref().and_then(describe_file_as_query) {
        return Err(failure);
    }
    let sql = options
        .sql
        .clone()
        .or_else(|| options.file.is_none().then(|| take_query_from_recordings(flags))?);
    match (&options.file, sql.as_deref()) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file).map_err(|e| failed(file, &e))?;
            Ok((text, file.clone()))
        }
        (None, Some("-")) => {
            let name = Path::new("<stdin>");
            let text = std::io::read_to_string(std::io::stdin()).map_err(|e| failed(name, &e))?;
            Ok((text, name.to_owned()))
        }
        (None, Some(sql)) => Ok((sql.to_owned(), PathBuf::from("<query>"))),
        (None, None) => Err(Failure::wrong_input(
            "no query",
            "pass it as an argument, with --file, or as - on stdin",
        )),
    }
}

/// Returns the failure if the query is the name of a file: a spec, a database or a query.
fn describe_file_as_query(sql: &str) -> Option<Failure> {
    let path = Path::new(sql.trim());
    let (kind, advice) = describe_input_file(path).filter(|_| path.is_file())?;
    let message = format!("{} is a {kind}, not a query", path.display());
    Some(Failure::wrong_input(message, advice))
}

/// Returns the kind of a file that was passed instead of a query, and how to pass it. Only the
/// file's extension counts.
pub fn describe_input_file(path: &Path) -> Option<(&'static str, String)> {
    let name = path.display();
    Some(match path.extension()?.to_str()? {
        "toml" => ("spec", format!("pass it with --spec: `hqdl query --spec {name} \"SELECT …\"`")),
        "sqlite" | "sqlite3" | "db" => {
            ("database", format!("pass it with --db: `hqdl query --db {name} \"SELECT …\"`"))
        }
        "sql" => ("file", format!("pass it with --file: `hqdl query --db DB --file {name}`")),
        _ => return None,
    })
}

/// Returns the query that clap counted as the last value of `--recordings`, which accepts any
/// number of values.
fn take_query_from_recordings(flags: &mut ModelFlags) -> Option<String> {
    let last = flags.recordings.last().filter(|_| flags.recordings.len() > 1)?;
    let query = last.to_str().filter(|_| !last.exists())?.to_owned();
    flags.recordings.pop();
    Some(query)
}

fn parse_params(all: &[String]) -> Result<Vec<(Param, Value)>, Failure> {
    let mut params: Vec<(Param, Value)> = Vec::new();
    for text in all {
        let (name, value) = text
            .split_once('=')
            .map(|(name, value)| (name.trim(), value))
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| {
                let lacking = if text.starts_with('=') { "name" } else { "value" };
                Failure::wrong_input(
                    format!("--param {text} has no {lacking}"),
                    "write --param name=value, or --param 1=value by position",
                )
            })?;
        let param = Param::parse(name);
        if params.iter().any(|(p, _)| *p == param) {
            return Err(Failure::wrong_input(
                format!("--param sets {param} twice"),
                "remove one of the two",
            ));
        }
        params.push((param, parse_literal(value)));
    }
    Ok(params)
}
