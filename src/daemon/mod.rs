//! The daemon watches specs and keeps their tables filled. It shares the cache and the rate limits
//! with other processes, and serves queries, facts and a page over HTTP.
//!
//! ```text
//! watch | clock | http | signals → Event → one loop → checks, runs (threads) → Event
//! ```
//!
//! The loop owns all mutable state: the specs in force, their missing cells, and the runs in
//! progress. It never blocks: threads read specs, ask models and write tables, and send their
//! results as events. The loop publishes its state as a [`DaemonStatus`], which clients read
//! directly.
//!
//! The daemon shuts down in this order:
//!
//! 1. The daemon stops accepting connections and starting runs.
//! 2. Requests in flight finish. After the grace period, the daemon abandons the remaining ones,
//!    which count as spent.
//! 3. The daemon stops serving the cache to other processes.
//! 4. It flushes the index.
//! 5. It releases the lock.

mod clients;
mod event;
mod files;
mod context;
mod http;
mod job;
mod spec_files;
mod active_spec;
mod metrics;
mod notify;
mod query_uses;
mod runs;
mod servers;
mod signals;
mod spec;
mod specs;
mod spending;
mod state;
mod status;
mod status_socket;
mod watch;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use status::{DaemonStatus, RunState};
pub use status_socket::request_status;

use crate::approval::{PlanStore, SpendingLimits};
use crate::facts::Facts;
use crate::failure::Failure;
use crate::query::connection::guard::set_max_value_bytes;

/// Default address and port.
pub const LISTEN: &str = "127.0.0.1:4735";
/// Maximum size of a value in a client's query, in bytes.
const MAX_VALUE_BYTES: i32 = 16 << 20;
/// Environment variable that contains the clients' token.
pub const TOKEN: &str = "HQDL_TOKEN";

/// Limits of each client; 0 means no limit.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// Requests per second.
    pub requests: u32,
    /// Requests that a client may send at once.
    pub burst: u32,
    /// Concurrent event streams and POST requests.
    pub streams: u32,
    /// Megabytes sent per minute.
    pub megabytes: u32,
}

/// Settings of the daemon.
pub struct Settings {
    /// Directory of the specs, or one spec file.
    pub specs: PathBuf,
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// Unix socket to listen on as well.
    pub socket: Option<PathBuf>,
    /// Limits of each client.
    pub client_limits: ClientLimits,
    /// Proxies whose `X-Forwarded-For` header names the client.
    pub trusted_proxies: Vec<IpAddr>,
    /// Host names that clients may use, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Token that clients must send. `None` is allowed only for a loopback address.
    pub token: Option<secrecy::SecretString>,
    /// Limits on what assistants may spend.
    pub assistant_limits: SpendingLimits,
    /// Plans of assistants that wait for approval.
    pub plans: PlanStore,
    /// Command that approves a plan, without the plan's id.
    pub approve_command: String,
    /// Whether the daemon asks for missing cells without approval.
    pub spend: bool,
    /// Whether the page may change specs.
    pub edit: bool,
    /// Maximum size of an uploaded file, in bytes.
    pub max_upload: u64,
    /// Interval for polling files; `None` to use the system's change events.
    pub poll: Option<Duration>,
    /// Time for requests in flight to finish at shutdown.
    pub grace: Duration,
    /// Maximum number of rows of one query.
    pub max_rows: u64,
    /// Maximum number of bytes of one query's rows.
    pub max_bytes: u64,
    /// Time limit for a client to read a query's rows, in addition to the query's timeout.
    pub read_within: Duration,
    /// Reopens the log file after a rotation.
    pub reopen_log: Box<dyn Fn() + Send + Sync>,
    /// Receives a line for each event of interest.
    pub status_callback: Box<dyn Fn(&str) + Send + Sync>,
}

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// Returns a [`Failure`] if the daemon cannot start: the address is in use, the specs cannot be
/// read, or other machines can reach the address and there is no token.
pub fn run(facts: Arc<Facts>, settings: Settings) -> Result<(), Failure> {
    if !settings.listen.ip().is_loopback() && settings.token.is_none() {
        return Err(Failure::wrong_input(
            format!("other machines can reach {}, but no token is set", settings.listen),
            format!("export {TOKEN}=… (at least 16 characters), or listen on 127.0.0.1"),
        ));
    }
    set_max_value_bytes(MAX_VALUE_BYTES);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_keep_alive(Duration::from_secs(5))
        .build()
        .map_err(|e| {
            Failure::wrong_input(
                format!("cannot start: {}", crate::format::describe_io_error(&e)),
                "",
            )
        })?;
    let ended = runtime.block_on(state::run_daemon(facts, settings));
    // The grace period is over, so do not wait for queries that are still running.
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}
