//! The connections to a server, with retries. They run on their own thread, so that callers can be
//! on any thread, inside or outside an async runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;
use tracing::debug;

use crate::FactsError;
use crate::store::StatusCallback;
use hqdl_database::postgres::address::{
    ANSWER_TIMEOUT, CONNECT_TIMEOUT, ServerAddress, describe_connection_error,
};
use hqdl_database::postgres::thread::ServerThread;

/// Number of connections per process. With several, reads, commits and lease renewals do not wait
/// for each other.
const CONNECTIONS: usize = 6;
/// Minimum round-trip time for which hqdl avoids the extra round trip of preparing a statement.
const HIGH_LATENCY: Duration = Duration::from_millis(10);
/// Shortest and longest pause between two attempts.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Begins a transaction whose statements are all sent at once. If a proxy loses the COMMIT, the
/// server releases the locks after five seconds.
pub(super) const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 5000";
/// The same limit for a transaction that has begun. Every transaction sends it before it locks
/// anything: if the connection breaks without the server's notice, the server would otherwise hold
/// the locks for hours, and no process could commit.
pub(super) const LIMIT_IDLE_TIME: &str = "SET LOCAL idle_in_transaction_session_timeout = 5000";

/// A connection from the pool, for one caller.
pub(super) type Client = Object;
/// The connection shared by callers that send all of their statements at once.
pub(super) type SharedClient = Arc<Object>;

/// Error of a unit of work on a connection.
#[derive(Debug)]
pub(super) enum WorkError {
    Postgres(tokio_postgres::Error),
    Facts(FactsError),
}

impl From<tokio_postgres::Error> for WorkError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<FactsError> for WorkError {
    fn from(error: FactsError) -> Self {
        Self::Facts(error)
    }
}

pub(super) type WorkResult<T> = Result<T, WorkError>;

/// The shared connection, or the time and message of the last failed attempt to open it.
#[derive(Default)]
struct SharedConnection {
    client: Option<SharedClient>,
    failed: Option<(Instant, String)>,
}

/// State of an ongoing outage.
struct Outage {
    since: Instant,
    /// Whether the server is reachable but returns errors, for example because its disk is full. It
    /// may still answer reads.
    is_refusal: bool,
}

/// A temporary failure, which is retried.
struct TemporaryFailure {
    why: String,
    /// Whether the server is reachable but returned an error; see [`Outage`].
    is_refusal: bool,
}

impl TemporaryFailure {
    fn unreachable(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_refusal: false }
    }
}

pub(super) struct ConnectionPool {
    /// The URL without its password.
    pub(super) display_url: String,
    pub(super) handle: Handle,
    pool: Pool,
    /// Shortest response time so far, in microseconds.
    min_latency: AtomicU64,
    shared: tokio::sync::Mutex<SharedConnection>,
    on_status: StatusCallback,
    /// How long to retry while the server is unreachable.
    retry_timeout: Duration,
    /// The outage, if there is one.
    outage: Mutex<Option<Outage>>,
    thread: ServerThread,
}

impl ConnectionPool {
    pub(super) fn new(
        address: ServerAddress,
        on_status: StatusCallback,
        retry_timeout: Duration,
    ) -> Result<Self, FactsError> {
        let display_url = address.display_url;
        let failed =
            |message: String| FactsError::Journal { path: display_url.clone().into(), message };
        let thread = ServerThread::start().map_err(|e| failed(e.to_string()))?;
        let handle = thread.handle.clone();
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(address.config, address.tls, recycling);
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|e| failed(e.to_string()))?;
        let (outage, shared) = (Mutex::new(None), tokio::sync::Mutex::default());
        let min_latency = AtomicU64::new(u64::MAX);
        Ok(Self {
            display_url,
            handle,
            pool,
            min_latency,
            shared,
            on_status,
            retry_timeout,
            outage,
            thread,
        })
    }

    /// Runs `work` to completion and blocks this thread, inside or outside an async runtime.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.thread.block_on(work)
    }

    /// Runs `work` with a connection of its own. If the server is unreachable or requests a retry,
    /// `work` runs again until the retry timeout expires. `work` must be idempotent, because a
    /// failed attempt may have taken effect.
    pub(super) async fn with_client<T, F>(
        &self,
        work: impl Fn(Client) -> F,
    ) -> Result<T, FactsError>
    where
        F: Future<Output = WorkResult<T>>,
    {
        self.with_timeout(ANSWER_TIMEOUT, work).await
    }

    /// Like [`Self::with_client`], but on the connection that all callers share. Callers send their
    /// statements without waiting for each other, and the server executes them in order.
    ///
    /// `work` must consist of single statements, or of a transaction whose statements are all sent
    /// in one poll, and must be polled on the connection's thread. Otherwise statements of other
    /// callers would be interleaved.
    pub(super) async fn with_shared_client<T, F>(
        &self,
        work: impl Fn(SharedClient) -> F,
    ) -> Result<T, FactsError>
    where
        F: Future<Output = WorkResult<T>>,
    {
        debug_assert!(self.thread.is_current_thread(), "statements of others may come in between");
        self.retry_work(|| async {
            let client = self.get_shared_client().await?;
            let done = self.await_reply(ANSWER_TIMEOUT, Box::pin(work(Arc::clone(&client)))).await;
            if matches!(done, Err(ConnectionError::Temporary(_))) {
                let mut shared = self.shared.lock().await;
                shared.client.take_if(|now| Arc::ptr_eq(now, &client));
                self.close_idle_connections();
            }
            done
        })
        .await
    }

    /// Like [`Self::with_client`], but with the given timeout.
    pub(super) async fn with_timeout<T, F>(
        &self,
        within: Duration,
        work: impl Fn(Client) -> F,
    ) -> Result<T, FactsError>
    where
        F: Future<Output = WorkResult<T>>,
    {
        self.retry_work(|| self.try_once(within, &work)).await
    }

    /// Calls `once` until it succeeds, fails permanently, or the retry timeout expires.
    async fn retry_work<T, F>(&self, once: impl Fn() -> F) -> Result<T, FactsError>
    where
        F: Future<Output = Result<T, ConnectionError>>,
    {
        let (mut wait, mut failed) = (RETRY_PAUSES[0], None);
        loop {
            match once().await {
                Ok(done) => {
                    self.end_outage(failed.is_some());
                    return Ok(done);
                }
                Err(error) => self.wait_to_retry(error, &mut wait, &mut failed).await?,
            }
        }
    }

    /// Waits before the next attempt, or returns the error if the retry timeout has expired.
    /// `failed` is the time of the first failure.
    async fn wait_to_retry(
        &self,
        error: ConnectionError,
        wait: &mut Duration,
        failed: &mut Option<Instant>,
    ) -> Result<(), FactsError> {
        let failure = match error {
            ConnectionError::Final(error) => return Err(error),
            ConnectionError::Temporary(failure) => failure,
            ConnectionError::Conflict => {
                let first = *failed.get_or_insert_with(Instant::now);
                if first.elapsed() >= self.retry_timeout {
                    return Err(self.conflict_error());
                }
                tokio::time::sleep(RETRY_PAUSES[0].mul_f64(fastrand::f64())).await;
                return Ok(());
            }
        };
        let why = failure.why.as_str();
        debug!(why, failure.is_refusal, "the server is unreachable or returns an error");
        let first = *failed.get_or_insert_with(Instant::now);
        if self.record_outage(&failure) || first.elapsed() >= self.retry_timeout {
            return Err(FactsError::Unreachable {
                url: self.display_url.clone(),
                message: failure.why,
            });
        }
        tokio::time::sleep(wait.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        *wait = (*wait * 2).min(RETRY_PAUSES[1]);
        Ok(())
    }

    fn conflict_error(&self) -> FactsError {
        let message = "it conflicted with another transaction".to_owned();
        FactsError::Unreachable { url: self.display_url.clone(), message }
    }

    /// Runs `work` once.
    async fn try_once<T, F>(
        &self,
        within: Duration,
        work: &impl Fn(Client) -> F,
    ) -> Result<T, ConnectionError>
    where
        F: Future<Output = WorkResult<T>>,
    {
        let done = match self.get_client().await {
            Ok(client) => self.await_reply(within, Box::pin(work(client))).await,
            Err(error) => Err(error),
        };
        if matches!(done, Err(ConnectionError::Temporary(_))) {
            self.close_idle_connections();
        }
        done
    }

    /// Closes the idle connections: if one does not answer, the others probably do not either.
    fn close_idle_connections(&self) {
        self.pool.retain(|_, _| false);
    }

    /// Returns a connection from the pool.
    async fn get_client(&self) -> Result<Client, ConnectionError> {
        // Waiting for a connection has no timeout, because every connection returns to the pool.
        let times =
            Timeouts { wait: None, create: Some(CONNECT_TIMEOUT), recycle: Some(CONNECT_TIMEOUT) };
        self.pool.timeout_get(&times).await.map_err(|e| match e {
            PoolError::Backend(e) => self.classify_error(&e),
            // The server accepted the connection but did not answer.
            PoolError::Timeout(_) => {
                let why = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
                ConnectionError::Temporary(TemporaryFailure::unreachable(why))
            }
            other => ConnectionError::Temporary(TemporaryFailure::unreachable(other.to_string())),
        })
    }

    /// Returns the shared connection and opens it if necessary.
    async fn get_shared_client(&self) -> Result<SharedClient, ConnectionError> {
        let started_at = Instant::now();
        let mut shared = self.shared.lock().await;
        if let Some(client) = shared.client.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        // This caller already waited while another attempt failed, so it does not wait again.
        if let Some((_, why)) = shared.failed.as_ref().filter(|(at, _)| *at > started_at) {
            return Err(ConnectionError::Temporary(TemporaryFailure::unreachable(why)));
        }
        match self.get_client().await {
            Ok(client) => {
                let client = Arc::new(client);
                *shared = SharedConnection { client: Some(Arc::clone(&client)), failed: None };
                Ok(client)
            }
            Err(error) => {
                if let ConnectionError::Temporary(failure) = &error {
                    shared.failed = Some((Instant::now(), failure.why.clone()));
                }
                Err(error)
            }
        }
    }

    /// Runs `work` with a timeout, and classifies its error.
    async fn await_reply<T>(
        &self,
        within: Duration,
        work: impl Future<Output = WorkResult<T>>,
    ) -> Result<T, ConnectionError> {
        let began = Instant::now();
        match tokio::time::timeout(within, work).await {
            Ok(Ok(done)) => {
                self.record_latency(began.elapsed());
                Ok(done)
            }
            Ok(Err(WorkError::Postgres(e))) => Err(self.classify_error(&e)),
            Ok(Err(WorkError::Facts(e))) => Err(ConnectionError::Final(e)),
            Err(_) => {
                let why = format!("no answer within {} s", within.as_secs());
                Err(ConnectionError::Temporary(TemporaryFailure::unreachable(why)))
            }
        }
    }

    fn record_latency(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.min_latency.fetch_min(micros, Ordering::Relaxed);
    }

    /// Returns true if the server's round-trip time is long.
    pub(super) fn is_high_latency(&self) -> bool {
        let min_latency = self.min_latency.load(Ordering::Relaxed);
        min_latency != u64::MAX && Duration::from_micros(min_latency) >= HIGH_LATENCY
    }

    /// Ends the outage after a success. If the server was refusing writes, a read that succeeds on
    /// its first attempt does not end the outage.
    fn end_outage(&self, had_failed: bool) {
        let mut outage = self.lock_outage();
        if let Some(was) = outage.take_if(|outage| had_failed || !outage.is_refusal) {
            let again = if was.is_refusal { "works again" } else { "can be reached again" };
            (self.on_status)(&format!("the cache {} {again}", self.display_url));
        }
    }

    /// Shows a message to the user.
    pub(super) fn report_status(&self, message: &str) {
        (self.on_status)(message);
    }

    /// Records a failure and returns true if the outage has lasted longer than the retry timeout.
    fn record_outage(&self, failure: &TemporaryFailure) -> bool {
        let mut outage = self.lock_outage();
        let outage = outage.get_or_insert_with(|| {
            let seconds = self.retry_timeout.as_secs();
            let is_refusal = failure.is_refusal;
            let not = if is_refusal { "fails" } else { "cannot be reached" };
            (self.on_status)(&format!(
                "the cache {} {not} ({}); hqdl retries for {seconds} s",
                self.display_url, failure.why
            ));
            Outage { since: Instant::now(), is_refusal }
        });
        outage.since.elapsed() >= self.retry_timeout
    }

    fn lock_outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Classifies a database error as temporary, as a conflict, or as final with its message and
    /// hint.
    fn classify_error(&self, error: &tokio_postgres::Error) -> ConnectionError {
        let url = self.display_url.clone();
        let Some(server) = error.as_db_error() else {
            let cause = std::error::Error::source(error);
            let io = cause.and_then(|c| c.downcast_ref::<std::io::Error>());
            let broken = error.is_closed()
                || io.is_some_and(|io| io.kind() != std::io::ErrorKind::InvalidData);
            let message = describe_connection_error(error);
            if broken || message.starts_with("timeout") || message.contains("unexpected EOF") {
                return ConnectionError::Temporary(TemporaryFailure::unreachable(message));
            }
            let hint = if message.contains("password") {
                "set it in PGPASSWORD or ~/.pgpass"
            } else {
                "check the URL, its sslmode and the server's certificate (sslrootcert)"
            };
            return ConnectionError::Final(FactsError::Refused { url, message, hint });
        };
        let message = match server.detail() {
            Some(detail) => format!("{}: {detail}", server.message()),
            None => server.message().to_owned(),
        };
        let code = server.code();
        if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code) {
            return ConnectionError::Conflict;
        }
        let passes = ["08", "53", "57P", "58"].iter().any(|class| code.code().starts_with(class))
            || [
                SqlState::LOCK_NOT_AVAILABLE,
                SqlState::QUERY_CANCELED,
                SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            ]
            .contains(code);
        if passes {
            // A server that is starting up or shutting down counts as unreachable.
            let is_refusal = !["08", "57P"].iter().any(|class| code.code().starts_with(class));
            return ConnectionError::Temporary(TemporaryFailure { why: message, is_refusal });
        }
        let hint = match code.code() {
            "28P01" | "28000" => "check the user and the password in PGPASSWORD or ~/.pgpass",
            "3D000" => "create the database (`createdb`), or correct its name in the URL",
            "42501" => {
                "use a role with this permission; docs/guides/shared-cache.md lists the permissions of each"
            }
            "25006" => "connect to the primary server; this one is a replica or read-only",
            "42P01" | "3F000" => {
                "the schema `hqdl` was made by something else, or lost; restore it"
            }
            _ => return ConnectionError::Final(FactsError::Journal { path: url.into(), message }),
        };
        ConnectionError::Final(FactsError::Refused { url, message, hint })
    }
}

enum ConnectionError {
    /// A retry may succeed.
    Temporary(TemporaryFailure),
    /// A concurrent transaction conflicted with this one.
    Conflict,
    Final(FactsError),
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.pool.close();
    }
}
