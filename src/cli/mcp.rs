//! Implements `hqdl mcp`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::failure::Failure;
use super::input::{self, open_for_query};
use super::{CacheFlags, ModelFlags, OutputOptions, session};
use crate::approval::{PlanStore, SpendingLedger, SpendingLimits};
use crate::mcp::config::{Assistant, build_config};
use crate::mcp::context::{DEFAULT_TIMEOUT, ServerContext, plans_dir};
use crate::spec::Provider;
use crate::spec::is_server;

/// Flag that prints the configuration.
const PRINT_CONFIG: &str = "--print-config";
/// Flags whose values are paths.
const PATH_FLAGS: [&str; 6] =
    ["--spec", "--db", "--output", "--cache", "--recordings", "--log-file"];
/// Environment variables that contain paths, and the flags that override them.
const PATH_VARIABLES: [(&str, &str); 2] =
    [("HQDL_CACHE", "--cache"), ("HQDL_LOG_FILE", "--log-file")];

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec whose database, columns, questions and examples the assistant sees.
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Maximum total cost in USD of the queries that run without your approval.
    #[arg(long, value_name = "USD", default_value = "0", allow_hyphen_values = true, value_parser = super::parse_budget)]
    allow_usd: f64,
    /// Maximum total cost in USD of all queries, including those that you approve.
    #[arg(long, value_name = "USD", default_value = "1", allow_hyphen_values = true, value_parser = super::parse_budget)]
    max_usd: f64,
    /// Time limit in seconds for the database's work in one pass [default: 60].
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = input::parse_seconds)]
    timeout: Option<Duration>,
    /// Print the configuration with which an assistant starts this server, and exit.
    #[arg(long, value_enum, value_name = "ASSISTANT")]
    print_config: Option<Assistant>,
    #[command(flatten)]
    flags: ModelFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let Options { spec, flags, .. } = options;
    super::check_spending_limits(options.allow_usd, options.max_usd)?;
    let (session, target) = open_for_query(spec.as_deref(), flags, None, "mcp", output_options)?;
    if let Some(assistant) = options.print_config {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("hqdl"));
        let given = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
        let args = make_args_absolute(given);
        let config = build_config(assistant, &program, &args, &collect_absolute_variables(&args));
        anstream::println!("{config:#}");
        return Ok(ExitCode::SUCCESS);
    }
    session::print_cache_location(session.facts()?, output_options);
    let is_named = spec.is_some() || flags.model.is_some();
    let model = if session.spec.model.provider == Provider::Replay || is_named {
        session.connect_model().map_err(Failure::from)
    } else {
        Err(Failure::wrong_input(
            "a question needs a model, but none is named",
            "start the server with --model NAME, or --spec SPEC with a [model]",
        ))
    };
    let limits = SpendingLimits { allow_usd: options.allow_usd, max_usd: options.max_usd };
    let context = ServerContext {
        needs_approval: false,
        target,
        facts: session.facts()?.clone(),
        model,
        plans: open_plans(&flags.cache)?,
        ledger: SpendingLedger::new(limits),
        approve_command: build_approve_command(&flags.cache),
        has_page: false,
        timeout: options.timeout.unwrap_or(DEFAULT_TIMEOUT),
        rows_per_request: flags.rows_per_request,
        edits: std::sync::Arc::default(),
        spec: session.spec,
    };
    crate::mcp::serve_stdio(context)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the stored plans. They are on this machine even if the cache is on a server.
pub fn open_plans(flags: &CacheFlags) -> Result<PlanStore, Failure> {
    PlanStore::open(&plans_dir(&flags.local_dir()?))
        .map_err(|e| Failure::wrong_input(e.to_string(), "pass another --cache"))
}

/// Returns the command that approves a plan, without the plan's id.
pub fn build_approve_command(flags: &CacheFlags) -> String {
    match flags.cache.as_ref().filter(|cache| !flags.no_cache && !is_server(cache)) {
        Some(dir) => format!("hqdl approve --cache {}", quote_for_shell(&to_absolute_path(dir))),
        None => "hqdl approve".to_owned(),
    }
}

fn quote_for_shell(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:\\".contains(c);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

fn to_absolute_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

/// Returns the absolute path of a file. The URL of a cache or a database is returned unchanged.
fn to_absolute_location(text: &str) -> String {
    let path = Path::new(text);
    if is_server(path) { text.to_owned() } else { to_absolute_path(path) }
}

/// Returns arguments without `--print-config`, and with absolute paths.
fn make_args_absolute(given: impl Iterator<Item = String>) -> Vec<String> {
    let mut args = Vec::new();
    let mut flag = String::new();
    for arg in given {
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value)),
            _ => (arg.as_str(), None),
        };
        let is_flag = name.starts_with("--");
        if is_flag {
            name.clone_into(&mut flag);
        }
        if flag == PRINT_CONFIG {
            continue;
        }
        let is_path = PATH_FLAGS.contains(&flag.as_str());
        args.push(match value {
            Some(value) if is_path => format!("{flag}={}", to_absolute_location(value)),
            None if is_path && !is_flag => to_absolute_location(&arg),
            _ => arg,
        });
    }
    args
}

/// Returns the path variables whose flag is absent from `args`, with absolute paths. The
/// configuration must contain these variables, because the assistant starts the server without the
/// user's environment.
fn collect_absolute_variables(args: &[String]) -> BTreeMap<&'static str, String> {
    let is_given = |flag: &str| args.iter().any(|arg| arg.split('=').next() == Some(flag));
    let variables = PATH_VARIABLES.iter().filter(|(_, flag)| !is_given(flag));
    let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    variables.filter_map(|(name, _)| Some((*name, to_absolute_location(&value(name)?)))).collect()
}
