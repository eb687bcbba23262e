//! The daemon: specs watched and kept materialized, cache and limits shared, and
//! HTTP on loopback to ask it all.
//!
//! ```text
//! watch | clock | http | signals → Event → one loop → checks, runs (threads) → Event
//! ```
//!
//! The loop owns what changes: which specs are in force, what each
//! lacks, which runs are under way. It never waits for anything else: reading a
//! spec, asking a model and writing tables happen on threads that report back as
//! events. What it knows it publishes as a [`DaemonStatus`], which
//! every client reads without asking the loop.
//!
//! It ends in this order: no more connections and no more runs; what is in
//! flight is finished, or left when the grace is over (and counts as spent, as
//! after a kill); the cache is lent to nobody any more; the index is flushed; the
//! lock is let go of.

mod clients;
mod event;
mod files;
mod house;
mod http;
mod job;
mod listing;
mod loaded;
mod metrics;
mod notify;
mod runs;
mod servers;
mod signals;
mod spec;
mod specs;
mod spending;
mod state;
mod status;
mod watch;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use status::{DaemonStatus, RunState};

use crate::facts::Facts;
use crate::failure::Failure;
use crate::query::guard::limit_values;

/// Where it listens when nobody says.
pub const LISTEN: &str = "127.0.0.1:4735";
/// Bytes that a value in a query of a client may have.
const VALUE: i32 = 16 << 20;
/// The variable that holds the token of clients.
pub const TOKEN: &str = "HQDL_TOKEN";

/// Limits of each client; 0 means no limit.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// Requests a second.
    pub requests: u32,
    /// Requests that may come at once.
    pub burst: u32,
    /// Event streams and POST requests at once.
    pub streams: u32,
    /// Megabytes sent a minute.
    pub megabytes: u32,
}

/// How a daemon is to run.
pub struct Settings {
    /// The directory of the specs, or one spec.
    pub specs: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Unix socket that it serves the same on.
    pub socket: Option<PathBuf>,
    /// What each client may use.
    pub client_limits: ClientLimits,
    /// Proxies whose `X-Forwarded-For` names the client.
    pub trusted_proxies: Vec<IpAddr>,
    /// Names that clients may call it by, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// What clients must show; demanded beyond loopback.
    pub token: Option<secrecy::SecretString>,
    /// Whether it asks for what is missing by itself.
    pub spend: bool,
    /// Looks at the files so often, instead of being told by the system.
    pub poll: Option<Duration>,
    /// How long what is in flight may take at the end.
    pub grace: Duration,
    /// Rows that one query may bring.
    pub max_rows: u64,
    /// Bytes that one query may bring.
    pub max_bytes: u64,
    /// How long a client may take to read the rows of a query, besides the time
    /// that the database may take.
    pub read_within: Duration,
    /// Opens the log file again: after a rotation.
    pub reopen_log: Box<dyn Fn() + Send + Sync>,
    /// Who is told what happens, line by line.
    pub say: Box<dyn Fn(&str) + Send + Sync>,
}

/// Runs until a signal ends it.
///
/// # Errors
/// [`Failure`] when it cannot begin: the address is taken, the specs cannot be
/// read, there is no token for an address that others reach.
pub fn run(facts: Arc<Facts>, settings: Settings) -> Result<(), Failure> {
    if !settings.listen.ip().is_loopback() && settings.token.is_none() {
        return Err(Failure::input(
            format!("other machines can reach {}, but no token is set", settings.listen),
            format!("export {TOKEN}=… (at least 16 characters), or listen on 127.0.0.1"),
        ));
    }
    limit_values(VALUE);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_keep_alive(Duration::from_secs(5))
        .build()
        .map_err(|e| Failure::input(format!("cannot start: {e}"), ""))?;
    let ended = runtime.block_on(state::run(facts, settings));
    // A query that does not end has had its grace.
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}
