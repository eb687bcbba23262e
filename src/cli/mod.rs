//! The command line, with one file per command. Only this module prints errors. Data goes to
//! stdout, messages to stderr.

mod approve;
mod ask;
mod audit;
mod cache;
mod chat;
mod check;
mod clean;
mod daemon;
mod examples;
mod explain;
mod failure;
mod import;
mod init;
mod input;
mod interrupt;
mod log;
mod map;
mod materialize;
mod mcp;
mod meta;
mod overrides;
mod plan;
mod prices;
mod progress;
mod propose;
mod query;
mod rows;
mod score;
mod session;
mod status;
mod stdout;
mod suggest;
mod swan;
mod why;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use examples::{EXAMPLES, wrap_example};
use failure::Failure;

use crate::problem::find_nearest;
use crate::session::user_cache_dir;
use crate::spec::is_server;
use crate::spec::{PriceTable, Provider};

/// Add columns to a `SQLite` or `PostgreSQL` database and fill them with answers from a language
/// model.
#[derive(Debug, Parser)]
#[command(name = "hqdl", version = VERSION, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    output_options: OutputOptions,
    /// Append a log of every step to this file. `RUST_LOG` sets the level (default: hqdl=debug).
    #[arg(
        long, global = true, value_name = "FILE", env = "HQDL_LOG_FILE", display_order = LAST + 3
    )]
    log: Option<PathBuf>,
}

/// Version of hqdl, with the commit of release builds.
const VERSION: &str = match option_env!("HQDL_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

const EXIT_CODES: &str = "Exit: 0 complete, 1 some cells have no valid answer (with --require-values: no value), 2 wrong input, \
3 budget reached, 4 endpoint rejects requests or is unreachable, 5 cache cannot be reached, 6 approval needed, 130 interrupted.";

/// Display order of the flags that every command shares: after the command's own flags.
const LAST: usize = 500;

/// Flags for the verbosity and the format of the output.
#[derive(Debug, Clone, Copy, Args)]
struct OutputOptions {
    /// Print the result as JSON on stdout.
    #[arg(long, global = true, display_order = LAST)]
    json: bool,
    /// Print errors only.
    #[arg(long, short, global = true, display_order = LAST + 1)]
    quiet: bool,
    /// Print more detail.
    #[arg(long, short, global = true, display_order = LAST + 2)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a first spec for a database.
    Init(init::Options),
    /// Check specs and report every problem with its line.
    Check(check::Options),
    /// Print what `materialize` would ask, with tokens, cost and time. Sends no request.
    Plan(plan::Options),
    /// Print the bundled price book: the providers' prices for common models.
    Prices(prices::Options),
    /// Ask the model for the missing cells and publish the tables.
    Materialize(materialize::Options),
    /// Read the answers of batches that were run elsewhere, and publish them.
    Import(import::Options),
    /// Run a query. For values that are not stored, ask the model and store the answers.
    Query(query::Options),
    /// Answer a question in plain words: a model writes the SQL, you approve the cost, and hqdl
    /// runs it.
    Ask(ask::Options),
    /// Answer a series of questions, each of which may refer to the earlier ones.
    Chat(chat::Options),
    /// Serve the database to an assistant with the Model Context Protocol, on stdin and stdout.
    Mcp(mcp::Options),
    /// Show the query and the maximum cost of an assistant's plan, and ask whether to approve it.
    Approve(approve::Options),
    /// Answer a question about each value of a list. Reads and writes JSON lines, for use by
    /// programs.
    Map(map::Options),
    /// Print how a query would run: routes, SQL, requests and cost. Sends no request.
    Explain(explain::Options),
    /// Print where a published cell came from.
    Why(why::Options),
    /// Compare published cells with a reference you trust: accuracy, F1 and the differences. Same as
    /// `audit --report --truth`.
    Score(score::Options),
    /// Measure accuracy: draw a random sample of rows, compare the answers with true values that
    /// you provide, and report how many are right.
    Audit(audit::Options),
    /// Set cells by hand. Your values take precedence over the model's answers.
    Override(overrides::Options),
    /// Drop the tables and views that hqdl made for a spec, and nothing else.
    Clean(clean::Options),
    /// List the questions that queries asked the model, with their cost and the TOML that turns
    /// each into a column.
    Suggest(suggest::Options),
    /// List, count, export, import, check or rebuild the stored facts.
    Cache(cache::Options),
    /// Watch specs and keep their tables filled. Serves queries, facts and a page over HTTP.
    Daemon(daemon::Options),
    /// Print the state of the daemon that uses this cache: specs, coverage, runs.
    Status(status::Options),
    /// Evaluate on SWAN, a benchmark of hybrid queries: prepare its databases, run its questions,
    /// score the answers.
    #[command(subcommand)]
    Swan(swan::Command),
    /// Print a shell completion script.
    Completions {
        /// Name of the shell.
        shell: clap_complete::Shell,
    },
    /// Write a man page for each command into a directory.
    Man {
        /// Output directory, such as ~/.local/share/man/man1.
        dir: PathBuf,
    },
}

/// Flags of every command that uses a model. They override the spec.
#[derive(Debug, Clone, Default, Args)]
struct ModelFlags {
    /// Database to use instead of the spec's.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Publish into a copy of the database at this path, or as Parquet files into a folder (with a
    /// slash at its end).
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheFlags,
    /// API of the endpoint.
    #[arg(long, value_parser = build_provider_parser())]
    provider: Option<Provider>,
    /// Model name, as the endpoint knows it.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    model: Option<String>,
    /// Base URL of the endpoint (implies --provider openai). hqdl then ignores the spec's
    /// `api_key_env`, so that a key is never sent to a different endpoint.
    #[arg(long, value_name = "URL", value_parser = parse_base_url)]
    base_url: Option<String>,
    /// Environment variable that contains the API key.
    #[arg(long, value_name = "VARIABLE", value_parser = parse_variable)]
    api_key_env: Option<String>,
    /// Price in USD per million input and output tokens, such as 0.15,0.60.
    #[arg(long, value_name = "IN,OUT", allow_hyphen_values = true, value_parser = parse_price)]
    price: Option<PriceTable>,
    /// Recorded completions to replay instead of asking a model (implies --provider replay).
    #[arg(long, value_name = "PATH", num_args = 1..)]
    recordings: Vec<PathBuf>,
    /// Maximum number of rows in one request.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_count::<u32>)]
    rows_per_request: Option<u32>,
    /// Maximum number of requests in flight at once.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_count::<u32>)]
    concurrency: Option<u32>,
}

fn parse_variable(text: &str) -> Result<String, String> {
    if crate::spec::is_env_variable_name(text) {
        return Ok(text.to_owned());
    }
    Err("expected the name of an environment variable, such as OPENAI_API_KEY; never pass a key itself"
        .to_owned())
}

/// Parses a whole number, 0 or more.
fn parse_whole_number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "expected a whole number, 0 or more".to_owned())
}

/// Parses a whole number, 1 or more.
fn parse_count<N: std::str::FromStr + PartialOrd + From<u8>>(text: &str) -> Result<N, String> {
    let wrong = || "expected a whole number, 1 or more".to_owned();
    text.parse().ok().filter(|n| *n >= N::from(1_u8)).ok_or_else(wrong)
}

/// Checks that an assistant's queries that need no approval fit the limit of all its queries.
fn check_spending_limits(allow_usd: f64, max_usd: f64) -> Result<(), Failure> {
    if allow_usd <= max_usd {
        return Ok(());
    }
    Err(Failure::wrong_input(
        format!("--allow-usd {allow_usd} is more than --max-usd {max_usd}"),
        format!(
            "--max-usd limits all queries: raise it to at least {allow_usd}, or lower --allow-usd"
        ),
    ))
}

fn parse_price(text: &str) -> Result<PriceTable, String> {
    let wrong = || "expected two prices of 0 or more, such as 0.15,0.60".to_owned();
    let (input, output) = text.split_once(',').ok_or_else(wrong)?;
    let usd = |text: &str| {
        let usd: f64 = text.trim().parse().map_err(|_| wrong())?;
        if usd.is_finite() && usd >= 0.0 { Ok(usd) } else { Err(wrong()) }
    };
    Ok(PriceTable { input: usd(input)?, output: usd(output)?, ..PriceTable::default() })
}

/// Returns the URL if it is an HTTP or HTTPS URL.
fn parse_base_url(text: &str) -> Result<String, String> {
    if text.starts_with("http://") || text.starts_with("https://") {
        return Ok(text.to_owned());
    }
    Err("expected http://… or https://…".to_owned())
}

/// Parses a budget in USD.
fn parse_budget(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(usd) if usd.is_finite() && usd >= 0.0 => Ok(usd),
        _ => Err("expected an amount in USD, 0 or more, such as 2.50".to_owned()),
    }
}

/// Cache selection, shared by every command that reads facts.
#[derive(Debug, Clone, Default, Args)]
struct CacheFlags {
    /// Cache of facts: a directory, or `postgres://user@host/database` to share it between machines
    /// [default: hqdl in your data directory].
    #[arg(long, global = true, value_name = "DIR|URL", env = "HQDL_CACHE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    cache: Option<PathBuf>,
    /// Use an empty temporary cache, which is deleted at the end. Overrides --cache and
    /// `HQDL_CACHE`.
    #[arg(long, global = true)]
    no_cache: bool,
}

impl CacheFlags {
    /// Returns the cache directory. If the cache is on a server or temporary, returns the user's
    /// default directory.
    fn local_dir(&self) -> Result<PathBuf, Failure> {
        let given = self.cache.as_ref().filter(|dir| !self.no_cache && !is_server(dir));
        let given = given.filter(|dir| !dir.as_os_str().is_empty());
        Ok(given.map_or_else(user_cache_dir, |dir| Ok(dir.clone()))?)
    }
}

/// Returns the parser of `--provider`, which lists the known names.
fn build_provider_parser() -> impl TypedValueParser<Value = Provider> {
    PossibleValuesParser::new(Provider::ALL.map(Provider::name))
        .try_map(|name| Provider::from_name(&name).ok_or("no provider"))
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    stdout::exit_on_print_errors();
    stdout::finish(run_command_line(std::env::args_os()))
}

/// Runs a command line. The first word is the program's name.
#[must_use]
pub fn run_command_line(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed = build_command().try_get_matches_from(&args);
    let parsed = parsed.and_then(|matches| {
        failure::set_without_cache(has_no_cache_flag(&matches));
        Cli::from_arg_matches(&matches)
    });
    let cli = match parsed {
        Ok(cli) => cli,
        // clap reports help and version as errors, too.
        Err(error) => {
            let mut error = if error.use_stderr() {
                remove_variables(build_command()).try_get_matches_from(&args).err().unwrap_or(error)
            } else {
                error
            };
            if error.kind() == clap::error::ErrorKind::UnknownArgument {
                use clap::error::{ContextKind, ContextValue};
                // clap suggests `-- --option`, but no command accepts options as values.
                error.remove(ContextKind::Suggested);
                if let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidArg)
                    && written.starts_with("-- ")
                {
                    let tip = "pass a query that begins with a comment in --file, or as - on stdin";
                    let tip = ContextValue::StyledStrs(vec![tip.into()]);
                    error.insert(ContextKind::Suggested, tip);
                }
                if let Some(tip) = suggest_argument(&args) {
                    // The usage line shows the argument that clap suggests.
                    error.remove(ContextKind::SuggestedArg);
                    error.remove(ContextKind::Usage);
                    let tip = ContextValue::StyledStrs(vec![tip.into()]);
                    error.insert(ContextKind::Suggested, tip);
                }
            }
            remove_distant_suggestion(&mut error);
            if let Err(error) = error.print() {
                return ExitCode::from(stdout::report_write_error(&error));
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::WRONG_INPUT));
        }
    };
    if cli.output_options.quiet && cli.output_options.verbose {
        return Failure::wrong_input(
            "--quiet and --verbose exclude each other",
            "remove one of them",
        )
        .print_error(cli.output_options.json);
    }
    if let Some(Err(failure)) = cli.log.as_deref().map(log::start_logging) {
        return failure.print_error(cli.output_options.json);
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), process = std::process::id(), "begins");
    let result = match cli.command {
        Command::Init(options) => init::run(&options, cli.output_options),
        Command::Check(options) => check::run(&options, cli.output_options),
        Command::Plan(options) => plan::run(&options, cli.output_options),
        Command::Prices(options) => prices::run(&options, cli.output_options),
        Command::Materialize(options) => materialize::run(&options, cli.output_options),
        Command::Import(options) => import::run(&options, cli.output_options),
        Command::Query(options) => query::run(&options, cli.output_options),
        Command::Ask(options) => ask::run(&options, cli.output_options),
        Command::Chat(options) => chat::run(&options, cli.output_options),
        Command::Mcp(options) => mcp::run(&options, cli.output_options),
        Command::Approve(options) => approve::run(&options, cli.output_options),
        Command::Map(options) => map::run(&options, cli.output_options),
        Command::Explain(options) => explain::run(&options, cli.output_options),
        Command::Why(options) => why::run(&options, cli.output_options),
        Command::Score(options) => score::run(&options, cli.output_options),
        Command::Audit(options) => audit::run(&options, cli.output_options),
        Command::Override(options) => overrides::run(&options, cli.output_options),
        Command::Clean(options) => clean::run(&options, cli.output_options),
        Command::Suggest(options) => suggest::run(&options, cli.output_options),
        Command::Cache(options) => cache::run(&options, cli.output_options),
        Command::Daemon(options) => daemon::run(&options, cli.output_options),
        Command::Status(options) => status::run(&options, cli.output_options),
        Command::Swan(command) => swan::run(&command, cli.output_options),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut build_command(), "hqdl", &mut script);
            Ok(stdout::write_all(&script))
        }
        Command::Man { dir } => std::fs::create_dir_all(&dir)
            .and_then(|()| clap_mangen::generate_to(build_command(), &dir))
            .map(|()| ExitCode::SUCCESS)
            .map_err(|e| {
                let reason = match e.kind() {
                    std::io::ErrorKind::AlreadyExists => "it is a file".to_owned(),
                    _ => crate::format::describe_write_error(&dir, &e),
                };
                let message = format!("cannot write to {}: {reason}", dir.display());
                Failure::wrong_input(message, "name a directory that you can write to")
            }),
    };
    result.unwrap_or_else(|failure: Failure| failure.print_error(cli.output_options.json))
}

/// Returns true if `--no-cache` is set, for whichever command.
fn has_no_cache_flag(matches: &clap::ArgMatches) -> bool {
    let is_set = matches.try_get_one::<bool>("no_cache").ok().flatten().copied();
    let of_subcommand = || matches.subcommand().is_some_and(|(_, of)| has_no_cache_flag(of));
    is_set.unwrap_or(false) || of_subcommand()
}

/// Returns advice about an unexpected argument: a spec or a database that comes before a query, or
/// the question of `hqdl map`, which is read from stdin.
fn suggest_argument(args: &[OsString]) -> Option<String> {
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    match words.get(1) {
        Some(&"map") if words.iter().any(|word| word.starts_with("--question")) => Some(
            "write the question on stdin: {\"question\": \"…\", \"values\": [\"…\"]}".to_owned(),
        ),
        Some(&"query" | &"explain") => words[1..].windows(2).find_map(|pair| {
            let is_argument = !pair[0].starts_with("--") && !pair[1].starts_with('-');
            let (_, advice) = is_argument
                .then(|| input::describe_input_file(std::path::Path::new(pair[1])))??;
            Some(advice)
        }),
        // An option that comes before its command.
        Some(option) if option.starts_with("--") => {
            let root = Cli::command();
            let mut global = root.get_arguments().filter_map(clap::Arg::get_long);
            if global.any(|name| option.strip_prefix("--") == Some(name)) {
                return None;
            }
            let (name, _) = option[2..].split_once('=').unwrap_or((&option[2..], ""));
            let (word, command) =
                words.iter().find_map(|word| Some((word, root.find_subcommand(word)?)))?;
            command.get_arguments().find(|argument| argument.get_long() == Some(name))?;
            Some(format!("write it after the command: `hqdl {word} {option} …`"))
        }
        _ => None,
    }
}

/// Removes clap's suggestion unless the value looks like a misspelling of it.
fn remove_distant_suggestion(error: &mut clap::Error) {
    use clap::error::{ContextKind, ContextValue};
    if let (Some(ContextValue::String(written)), Some(ContextValue::String(suggested))) =
        (error.get(ContextKind::InvalidValue), error.get(ContextKind::SuggestedValue))
        && find_nearest(written, [suggested.as_str()]).is_none()
    {
        error.remove(ContextKind::SuggestedValue);
    }
}

/// Returns a command whose options are not read from environment variables. clap shows options
/// that have a variable in the usage line of an error, as if they were required.
fn remove_variables(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| arg.env(clap::builder::Resettable::Reset))
        .mut_subcommands(remove_variables)
}

/// Returns the command line. Its help texts are the doc comments of its types without backticks,
/// with examples at the end.
#[must_use]
pub fn build_command() -> clap::Command {
    fn strip_backticks(text: Option<&clap::builder::StyledStr>) -> Option<String> {
        text.map(|text| text.to_string().replace('`', ""))
    }
    fn add_examples(mut command: clap::Command, path: &str) -> clap::Command {
        if let Some(about) = strip_backticks(command.get_about()) {
            command = command.about(about);
        }
        if let Some(about) = strip_backticks(command.get_long_about()) {
            command = command.long_about(about);
        }
        if let Some(examples) = examples::format_examples(path) {
            command = command.after_help(examples);
        }
        let argument = |mut argument: clap::Arg| {
            if let Some(help) = strip_backticks(argument.get_help()) {
                argument = argument.help(help);
            }
            if let Some(help) = strip_backticks(argument.get_long_help()) {
                argument = argument.long_help(help);
            }
            argument
        };
        command.mut_args(argument).mut_subcommands(|inner| {
            let path = format!("{path} {}", inner.get_name());
            add_examples(inner, path.trim_start())
        })
    }
    add_examples(Cli::command(), "")
}
