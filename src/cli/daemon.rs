//! Implements `hqdl daemon`.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde_json::json;

use super::failure::Failure;
use super::mcp::{build_approve_command, open_plans};
use super::{CacheFlags, OutputOptions, log, session};
use crate::approval::SpendingLimits;
use crate::daemon::{self, ClientLimits, Settings, TOKEN};
use crate::facts::Facts;
use crate::session::Cache;
use crate::spec::UncheckedSpec;

/// Time to wait for another process to release the cache.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum length of a token, in characters.
const MIN_TOKEN_LENGTH: usize = 16;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Directory whose *.toml files are the specs, or one spec file.
    #[arg(long, value_name = "DIR", default_value = "specs")]
    specs: PathBuf,
    /// Address and port to listen on; port 0 picks a free port. If the address is not loopback,
    /// clients must send the token in `HQDL_TOKEN`.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address, default_value = daemon::LISTEN)]
    listen: SocketAddr,
    /// Also listen on this Unix socket. Its file mode is 0660, so that this user and group can
    /// connect.
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Host name that clients may use for this machine, in addition to its addresses.
    #[arg(long, value_name = "NAME", value_parser = parse_host)]
    host: Vec<String>,
    /// Send no request without approval: only plan, and publish stored answers. A query with
    /// `budget` and a run started over HTTP or on the page count as approved.
    #[arg(long)]
    no_spend: bool,
    /// Allow changes of specs on the page: adding them for an uploaded file, editing them, and
    /// keeping questions with their queries as examples.
    #[arg(long)]
    edit: bool,
    /// Maximum size in megabytes of a file that a client uploads on the page; 0 allows no uploads.
    #[arg(long, value_name = "MB", default_value_t = 512, allow_hyphen_values = true,
          value_parser = super::parse_whole_number::<u64>)]
    max_upload: u64,
    /// Check the files at this interval (2 if omitted, at most 3600), for file systems without
    /// change events (network drives).
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = parse_poll_seconds)]
    poll: Option<u64>,
    /// Time limit for requests in flight to finish at shutdown.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_hyphen_values = true,
          value_parser = super::parse_whole_number::<u64>)]
    grace: u64,
    /// Maximum number of rows that one HTTP query returns.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, allow_hyphen_values = true, value_parser = super::parse_count::<u64>)]
    max_rows: u64,
    /// Maximum size in bytes of the rows that one HTTP query returns.
    #[arg(long, value_name = "N", default_value_t = 1 << 30, allow_hyphen_values = true, value_parser = super::parse_count::<u64>)]
    max_bytes: u64,
    /// Time limit for a client to read a query's rows, in addition to the query's timeout. After
    /// it, the daemon ends the query.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, allow_hyphen_values = true,
          value_parser = super::parse_whole_number::<u64>)]
    read_within: u64,
    #[command(flatten)]
    client: ClientFlags,
    #[command(flatten)]
    assistant: AssistantFlags,
    #[command(flatten)]
    cache: CacheFlags,
}

/// Limits on what assistants may spend over MCP, at `/mcp`.
#[derive(Debug, clap::Args)]
struct AssistantFlags {
    /// Maximum total cost in USD of the assistants' queries that run without your approval, until
    /// the daemon ends.
    #[arg(long, value_name = "USD", default_value = "0", allow_hyphen_values = true, value_parser = super::parse_budget, conflicts_with = "no_spend")]
    allow_usd: f64,
    /// Maximum total cost in USD of all the assistants' queries, including those that you approve,
    /// until the daemon ends.
    #[arg(long, value_name = "USD", default_value = "1", allow_hyphen_values = true, value_parser = super::parse_budget)]
    max_usd: f64,
}

/// Limits of each client: of an address, or of a user on the Unix socket.
#[derive(Debug, clap::Args)]
struct ClientFlags {
    /// Maximum number of requests per second from one client. Above it, the daemon answers with
    /// status 429. 0 means no limit.
    #[arg(long, value_name = "N", default_value_t = 50, allow_hyphen_values = true, value_parser = super::parse_whole_number::<u32>)]
    client_requests: u32,
    /// Maximum number of requests that one client may send at once, even if they exceed
    /// --client-requests.
    #[arg(long, value_name = "N", default_value_t = 100, allow_hyphen_values = true, value_parser = super::parse_count::<u32>)]
    client_burst: u32,
    /// Maximum number of event streams and POST requests (queries, plans, runs) that one client may
    /// have open at once. 0 means no limit.
    #[arg(long, value_name = "N", default_value_t = 8, allow_hyphen_values = true, value_parser = super::parse_whole_number::<u32>)]
    client_streams: u32,
    /// Maximum number of megabytes that the daemon sends to one client per minute. 0 means no
    /// limit.
    #[arg(long, value_name = "MB", default_value_t = 256, allow_hyphen_values = true,
          value_parser = super::parse_whole_number::<u32>)]
    client_megabytes: u32,
    /// Address of a proxy whose `X-Forwarded-For` header names the client.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_proxy)]
    trusted_proxy: Vec<IpAddr>,
}

/// Parses the host name of `--host`.
fn parse_host(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['/', '@', ' ']) {
        return Err("expected a host name, such as facts.example.org".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_poll_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 1 to 3600".to_owned())
}

fn parse_proxy(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "expected an IP address, such as 10.0.0.1".to_owned())
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let form = "expected an address and a port, such as 127.0.0.1:4735";
        match text.rsplit_once(':').map(|(_, port)| port.parse::<u32>()) {
            Some(Ok(port)) if port > u32::from(u16::MAX) => {
                format!("{port} is not a port: expected a number from 0 to 65535")
            }
            _ => form.to_owned(),
        }
    })
}

/// Checks that `--specs` is a directory or a spec file. If the path does not exist, prints a note.
fn check_specs_path(path: &Path, quiet: bool) -> Result<(), Failure> {
    let hint = "name a directory of specs, or one spec file, with --specs";
    if path.is_dir()
        || path.extension().is_some_and(|extension| extension == "toml") && path.exists()
    {
        return Ok(());
    }
    match std::fs::metadata(path) {
        Ok(_) => Err(UncheckedSpec::read(path).err().map_or_else(
            || Failure::wrong_input(format!("{} does not end in .toml", path.display()), hint),
            Failure::from,
        )),
        // Accept it, because a directory may be mounted later.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if !quiet {
                let path = path.display();
                anstream::eprintln!("--specs: {path} does not exist yet; the daemon waits for it");
            }
            Ok(())
        }
        Err(error) => {
            let reason = crate::format::describe_io_error(&error);
            Err(Failure::wrong_input(
                format!("--specs: cannot read {}: {reason}", path.display()),
                hint,
            ))
        }
    }
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let token = std::env::var(TOKEN).ok().filter(|t| !t.is_empty());
    if token.as_ref().is_some_and(|t| t.chars().count() < MIN_TOKEN_LENGTH) {
        return Err(Failure::wrong_input(
            format!("the token in {TOKEN} is too short"),
            format!(
                "use {MIN_TOKEN_LENGTH} characters or more, for example from `openssl rand -hex 16`"
            ),
        ));
    }
    super::check_spending_limits(options.assistant.allow_usd, options.assistant.max_usd)?;
    check_specs_path(&options.specs, output_options.quiet)?;
    let command = format!("daemon {}", options.specs.display());
    let facts = if options.cache.no_cache {
        Facts::open_temporary()?
    } else {
        match session::select_cache(&options.cache, &command) {
            Cache::Dir { owner_description, .. } => Facts::open_with_index(
                &session::find_cache_dir(&options.cache)?,
                &owner_description,
                TAKEOVER_TIMEOUT,
            )?,
            other => other.open()?,
        }
    };
    let settings = Settings {
        specs: options.specs.clone(),
        listen: options.listen,
        socket: options.socket.clone(),
        client_limits: ClientLimits {
            requests: options.client.client_requests,
            burst: options.client.client_burst,
            streams: options.client.client_streams,
            megabytes: options.client.client_megabytes,
        },
        trusted_proxies: options.client.trusted_proxy.iter().map(IpAddr::to_canonical).collect(),
        hosts: options.host.clone(),
        token: token.map(SecretString::from),
        assistant_limits: SpendingLimits {
            allow_usd: options.assistant.allow_usd,
            max_usd: options.assistant.max_usd,
        },
        plans: open_plans(&options.cache)?,
        approve_command: build_approve_command(&options.cache),
        spend: !options.no_spend,
        edit: options.edit,
        max_upload: options.max_upload.saturating_mul(1_000_000),
        poll: options.poll.map(Duration::from_secs),
        grace: Duration::from_secs(options.grace),
        max_rows: options.max_rows,
        max_bytes: options.max_bytes,
        read_within: Duration::from_secs(options.read_within),
        reopen_log: Box::new(log::reopen_log),
        status_callback: Box::new(move |line| print_line(line, output_options)),
    };
    daemon::run(Arc::new(facts), settings)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a status line of the daemon on stderr; with `--json`, prints an event on stdout.
fn print_line(line: &str, output_options: OutputOptions) {
    // A closed stdout or stderr must not stop the daemon.
    let _ = if output_options.json {
        writeln!(anstream::stdout(), "{}", json!({ "event": "said", "message": line }))
    } else if output_options.quiet {
        Ok(())
    } else {
        writeln!(anstream::stderr(), "{line}")
    };
}
