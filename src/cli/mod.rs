//! The command line: clap's types, one file per command, and the only code that prints errors. Data
//! goes to stdout, messages to stderr.

mod cache;
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
mod meta;
mod overrides;
mod plan;
mod prices;
mod progress;
mod query;
mod rows;
mod score;
mod session;
mod status;
mod suggest;
mod swan;
mod why;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use examples::{EXAMPLES, continued};
use failure::Failure;

use crate::spec::{PriceTable, Provider};

/// Add columns to a `SQLite` database and fill them with answers from a language model.
#[derive(Debug, Parser)]
#[command(name = "hqdl", version = VERSION, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    talk: Talk,
    /// Append a log of every step to this file. `RUST_LOG` sets the level [default: hqdl=debug].
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

const EXIT_CODES: &str = "Exit: 0 complete, 1 some cells could not be answered (with --require-values: or have no value), 2 wrong input, \
3 budget reached, 4 endpoint refused, 5 cache cannot be reached, 130 interrupted.";

/// Display order of the flags that every command shares: after the command's own flags.
const LAST: usize = 500;

/// Flags for the amount and the form of the output.
#[derive(Debug, Clone, Copy, Args)]
struct Talk {
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
    /// Print what `materialize` would ask, with tokens, price and time. Sends no request.
    Plan(plan::Options),
    /// Print the bundled price book: what the common models cost at their providers.
    Prices(prices::Options),
    /// Ask the model for the missing cells and publish the expanded tables.
    Materialize(materialize::Options),
    /// Read the answers of batches that were run elsewhere, and publish them.
    Import(import::Options),
    /// Run a query. Values that its calls need and the cache lacks are asked once and kept.
    Query(query::Options),
    /// Answer a question about each value of a list: JSON lines on stdin and stdout, for programs.
    Map(map::Options),
    /// Print how a query would run: routes, SQL, requests and price. Sends no request.
    Explain(explain::Options),
    /// Print where a published cell came from.
    Why(why::Options),
    /// Compare published cells with a reference you trust: accuracy, F1 and the differences.
    Score(score::Options),
    /// Set cells by hand. Your value wins over the model's answer.
    Override(overrides::Options),
    /// Drop the tables and views that hqdl made for a spec, and nothing else.
    Clean(clean::Options),
    /// List the questions that queries asked live, their cost, and the TOML that turns each into a
    /// column.
    Suggest(suggest::Options),
    /// List, count, export, import, check or rebuild the stored facts.
    Cache(cache::Options),
    /// Watch specs and keep their tables filled. Serves queries, facts and a page over HTTP.
    Daemon(daemon::Options),
    /// Print the state of the daemon that owns a cache: specs, coverage, runs.
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
        /// Directory, such as ~/.local/share/man/man1.
        dir: PathBuf,
    },
}

/// Flags of every command that uses a model. They override the spec.
#[derive(Debug, Clone, Default, Args)]
struct ModelFlags {
    /// Database to expand, instead of the spec's.
    #[arg(long, value_name = "PATH")]
    db: Option<PathBuf>,
    /// Write the expanded tables to a copy of the database at this path.
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheFlags,
    /// Kind of endpoint.
    #[arg(long, value_parser = providers())]
    provider: Option<Provider>,
    /// Model name, as the endpoint knows it.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Base URL of the endpoint. hqdl then ignores the spec's `api_key_env`, so that a key is never
    /// sent to a different endpoint.
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Environment variable that holds the API key.
    #[arg(long, value_name = "VARIABLE", value_parser = variable)]
    api_key_env: Option<String>,
    /// Price in USD per million input and output tokens, such as 0.15,0.60.
    #[arg(long, value_name = "IN,OUT", value_parser = price)]
    price: Option<PriceTable>,
    /// Recorded completions to replay instead of asking a model (implies --provider replay).
    #[arg(long, value_name = "PATH", num_args = 1..)]
    recordings: Vec<PathBuf>,
    /// Most rows in one request.
    #[arg(long, value_name = "N", value_parser = count)]
    rows_per_request: Option<u32>,
    /// Most requests in flight at once.
    #[arg(long, value_name = "N", value_parser = count)]
    concurrency: Option<u32>,
}

fn variable(text: &str) -> Result<String, String> {
    if crate::spec::is_variable(text) {
        return Ok(text.to_owned());
    }
    Err("expected the name of an environment variable, such as OPENAI_API_KEY; never pass a key itself"
        .to_owned())
}

/// Reads a flag's number of things.
fn count(text: &str) -> Result<u32, String> {
    let wrong = || "expected a whole number, 1 or more".to_owned();
    text.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)
}

fn price(text: &str) -> Result<PriceTable, String> {
    let wrong = || "expected two prices, such as 0.15,0.60".to_owned();
    let (input, output) = text.split_once(',').ok_or_else(wrong)?;
    let usd = |text: &str| {
        let usd: f64 = text.trim().parse().map_err(|_| wrong())?;
        if usd.is_finite() && usd >= 0.0 { Ok(usd) } else { Err(wrong()) }
    };
    Ok(PriceTable { input: usd(input)?, output: usd(output)?, ..PriceTable::default() })
}

/// Parses a budget in USD.
fn budget(text: &str) -> Result<f64, String> {
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
    #[arg(long, global = true, value_name = "DIR|URL", env = "HQDL_CACHE")]
    cache: Option<PathBuf>,
    /// Start with an empty cache and keep nothing. Overrides --cache and `HQDL_CACHE`.
    #[arg(long, global = true)]
    no_cache: bool,
}

/// Returns the parser of `--provider`, which lists the known names.
fn providers() -> impl TypedValueParser<Value = Provider> {
    PossibleValuesParser::new(Provider::ALL.map(Provider::name))
        .try_map(|name| Provider::named(&name).ok_or("no provider"))
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    main_of(std::env::args_os())
}

/// Runs a command line. The first word is the program's name.
#[must_use]
pub fn main_of(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = command().try_get_matches_from(words);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // clap reports help and version as errors, too.
        Err(said) => {
            let _ = said.print();
            return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(failure::WRONG_INPUT));
        }
    };
    if let Some(Err(failure)) = cli.log.as_deref().map(log::start) {
        return failure.print(cli.talk.json);
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), process = std::process::id(), "begins");
    let ended = match cli.command {
        Command::Init(options) => init::run(&options, cli.talk),
        Command::Check(options) => check::run(&options, cli.talk),
        Command::Plan(options) => plan::run(&options, cli.talk),
        Command::Prices(options) => prices::run(&options, cli.talk),
        Command::Materialize(options) => materialize::run(&options, cli.talk),
        Command::Import(options) => import::run(&options, cli.talk),
        Command::Query(options) => query::run(&options, cli.talk),
        Command::Map(options) => map::run(&options, cli.talk),
        Command::Explain(options) => explain::run(&options, cli.talk),
        Command::Why(options) => why::run(&options, cli.talk),
        Command::Score(options) => score::run(&options, cli.talk),
        Command::Override(options) => overrides::run(&options, cli.talk),
        Command::Clean(options) => clean::run(&options, cli.talk),
        Command::Suggest(options) => suggest::run(&options, cli.talk),
        Command::Cache(options) => cache::run(&options, cli.talk),
        Command::Daemon(options) => daemon::run(&options, cli.talk),
        Command::Status(options) => status::run(&options, cli.talk),
        Command::Swan(command) => swan::run(&command, cli.talk),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "hqdl", &mut script);
            // A reader such as `head` may close the pipe early.
            let _ = std::io::Write::write_all(&mut std::io::stdout(), &script);
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { dir } => std::fs::create_dir_all(&dir)
            .and_then(|()| clap_mangen::generate_to(command(), &dir))
            .map(|()| ExitCode::SUCCESS)
            .map_err(|e| {
                let message = format!("{}: {e}", dir.display());
                Failure::input(message, "name a directory that you can write to")
            }),
    };
    ended.unwrap_or_else(|failure: Failure| failure.print(cli.talk.json))
}

/// Returns the command line. Its help texts are the doc comments of its types without backticks,
/// with examples at the end.
#[must_use]
pub fn command() -> clap::Command {
    fn plain(text: Option<&clap::builder::StyledStr>) -> Option<String> {
        text.map(|text| text.to_string().replace('`', ""))
    }
    fn complete(mut command: clap::Command, path: &str) -> clap::Command {
        if let Some(about) = plain(command.get_about()) {
            command = command.about(about);
        }
        if let Some(about) = plain(command.get_long_about()) {
            command = command.long_about(about);
        }
        if let Some(examples) = examples::help_of(path) {
            command = command.after_help(examples);
        }
        let argument = |mut argument: clap::Arg| {
            if let Some(help) = plain(argument.get_help()) {
                argument = argument.help(help);
            }
            if let Some(help) = plain(argument.get_long_help()) {
                argument = argument.long_help(help);
            }
            argument
        };
        command.mut_args(argument).mut_subcommands(|inner| {
            let path = format!("{path} {}", inner.get_name());
            complete(inner, path.trim_start())
        })
    }
    complete(Cli::command(), "")
}
