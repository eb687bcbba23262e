//! `hqdl mcp`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::failure::Failure;
use super::input::{self, open_for_query};
use super::{CacheFlags, ModelFlags, OutputOptions, session};
use crate::approval::{PlanStore, SpendingLedger, SpendingLimits};
use crate::facts::is_server;
use crate::mcp::config::{Assistant, format_config};
use crate::mcp::context::{ServerContext, plans_dir};
use crate::session::user_cache;
use crate::spec::Provider;

/// Default time limit of the database's work in one pass.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

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
    #[arg(long, value_name = "SECONDS", value_parser = input::parse_seconds)]
    timeout: Option<Duration>,
    /// Print the configuration with which an assistant starts this server, and exit.
    #[arg(long, value_enum, value_name = "ASSISTANT")]
    print_config: Option<Assistant>,
    #[command(flatten)]
    flags: ModelFlags,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let Options { spec, flags, .. } = options;
    let (session, target) = open_for_query(spec.as_deref(), flags, None, "mcp", output_options)?;
    if let Some(assistant) = options.print_config {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("hqdl"));
        let config = format_config(assistant, &program, &absolute_args(options));
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
        target,
        facts: session.facts()?.clone(),
        model,
        plans: open_plans(&flags.cache)?,
        ledger: SpendingLedger::new(limits),
        approve_command: approve_command(&flags.cache),
        timeout: options.timeout.unwrap_or(DEFAULT_TIMEOUT),
        rows_per_request: flags.rows_per_request,
        spec: session.spec,
    };
    crate::mcp::serve_stdio(context)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the stored plans. They are on this machine even if the cache is on a server.
pub fn open_plans(flags: &CacheFlags) -> Result<PlanStore, Failure> {
    let local = flags.cache.as_ref().filter(|cache| !flags.no_cache && !is_server(cache));
    let local = local.filter(|dir| !dir.as_os_str().is_empty());
    let dir = local.map_or_else(user_cache, |dir| Ok(dir.clone()))?;
    PlanStore::open(&plans_dir(&dir))
        .map_err(|e| Failure::wrong_input(e.to_string(), "pass another --cache"))
}

fn approve_command(flags: &CacheFlags) -> String {
    match flags.cache.as_ref().filter(|cache| !flags.no_cache && !is_server(cache)) {
        Some(dir) => format!("hqdl approve --cache {}", quote_for_shell(&absolute(dir))),
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

fn absolute(path: &std::path::Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

/// Returns this process's arguments without `--print-config`, and with absolute paths.
fn absolute_args(options: &Options) -> Vec<String> {
    let flags = &options.flags;
    let cache = flags.cache.cache.as_deref().filter(|cache| !is_server(cache));
    let paths = [options.spec.as_deref(), flags.db.as_deref(), flags.output.as_deref(), cache];
    let mut args = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        if arg == "--print-config" {
            given.next();
        } else if !arg.starts_with("--print-config=") {
            let path = paths.iter().flatten().find(|path| path.as_os_str() == arg.as_str());
            args.push(path.filter(|path| !is_server(path)).map_or(arg, |path| absolute(path)));
        }
    }
    args
}
