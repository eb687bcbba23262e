//! The connections to a server, with retries. They run on a thread of their own, so that callers
//! can be on any thread, inside an async runtime or outside one.

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
use hqdl_database::postgres::address::{
    ANSWER_TIMEOUT, CONNECT_TIMEOUT, ServerAddress, error_with_cause,
};
use hqdl_database::postgres::thread::ServerThread;

/// Connections per process, so that reads, commits and lease renewals do not wait for each other.
const CONNECTIONS: usize = 6;
/// Round-trip time from which on hqdl avoids the extra round trip of preparing a statement.
const FAR: Duration = Duration::from_millis(10);
/// First and longest wait between two attempts.
const TRY_EVERY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Begins a transaction whose statements are all sent at once. If a proxy loses its COMMIT, the
/// server releases the locks after five seconds.
pub(super) const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 5000";
/// Callback for messages about an outage: when it begins and when it ends.
pub type StatusCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// A connection from the pool, for one caller.
pub(super) type Client = Object;
/// The connection that callers share if they send all of their statements at once.
pub(super) type SharedClient = Arc<Object>;

/// Error of a unit of work on a connection.
#[derive(Debug)]
pub(super) enum Failed {
    Postgres(tokio_postgres::Error),
    Facts(FactsError),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<FactsError> for Failed {
    fn from(error: FactsError) -> Self {
        Self::Facts(error)
    }
}

pub(super) type Worked<T> = Result<T, Failed>;

/// The shared connection, or the time and message of the last failure to open it.
#[derive(Default)]
struct SharedConnection {
    client: Option<SharedClient>,
    failed: Option<(Instant, String)>,
}

/// State of an ongoing outage.
struct Down {
    since: Instant,
    /// The server is reachable and returns errors, for example because its disk is full. It may
    /// still answer reads.
    refuses: bool,
}

/// A temporary failure, which is retried.
struct Passing {
    why: String,
    /// The server is reachable and returns an error, as in [`Down`].
    refuses: bool,
}

impl Passing {
    fn unreached(why: impl Into<String>) -> Self {
        Self { why: why.into(), refuses: false }
    }
}

pub(super) struct Link {
    /// The URL without its password.
    pub(super) shown: String,
    pub(super) handle: Handle,
    pool: Pool,
    /// Shortest response time so far, in microseconds.
    least: AtomicU64,
    shared: tokio::sync::Mutex<SharedConnection>,
    say: StatusCallback,
    /// How long to retry while the server is unreachable.
    patience: Duration,
    /// The outage, if there is one.
    down: Mutex<Option<Down>>,
    thread: ServerThread,
}

impl Link {
    pub(super) fn new(
        address: ServerAddress,
        say: StatusCallback,
        patience: Duration,
    ) -> Result<Self, FactsError> {
        let shown = address.display_url;
        let failed = |message: String| FactsError::Journal { path: shown.clone().into(), message };
        let thread = ServerThread::start().map_err(|e| failed(e.to_string()))?;
        let handle = thread.handle.clone();
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(address.config, address.tls, recycling);
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|e| failed(e.to_string()))?;
        let (down, shared) = (Mutex::new(None), tokio::sync::Mutex::default());
        let least = AtomicU64::new(u64::MAX);
        Ok(Self { shown, handle, pool, least, shared, say, patience, down, thread })
    }

    /// Runs `work` to its end and blocks this thread, inside an async runtime or outside one.
    pub(super) fn here<T>(&self, work: impl Future<Output = T>) -> T {
        self.thread.block_on(work)
    }

    /// Runs `work` with a connection of its own. If the server is unreachable or asks for a retry,
    /// `work` runs again until the patience is used up. It must be idempotent, because a failed
    /// attempt may have taken effect.
    pub(super) async fn run<T, F>(&self, work: impl Fn(Client) -> F) -> Result<T, FactsError>
    where
        F: Future<Output = Worked<T>>,
    {
        self.run_for(ANSWER_TIMEOUT, work).await
    }

    /// Like [`Self::run`], with the connection that all callers share. Their statements are sent
    /// without waiting for each other, and the server executes them in order.
    ///
    /// `work` must be single statements, or a transaction whose statements are all sent in one
    /// poll, and must be polled on the connection's thread. Otherwise statements of other callers
    /// would be interleaved.
    pub(super) async fn together<T, F>(
        &self,
        work: impl Fn(SharedClient) -> F,
    ) -> Result<T, FactsError>
    where
        F: Future<Output = Worked<T>>,
    {
        debug_assert!(self.thread.is_here(), "statements of others may come in between");
        self.persist(|| async {
            let client = self.shared().await?;
            let done = self.answered(ANSWER_TIMEOUT, Box::pin(work(Arc::clone(&client)))).await;
            if matches!(done, Err(LinkTrouble::Passing(_))) {
                let mut shared = self.shared.lock().await;
                shared.client.take_if(|now| Arc::ptr_eq(now, &client));
                self.let_go();
            }
            done
        })
        .await
    }

    /// Like [`Self::run`], with a timeout of its own.
    pub(super) async fn run_for<T, F>(
        &self,
        within: Duration,
        work: impl Fn(Client) -> F,
    ) -> Result<T, FactsError>
    where
        F: Future<Output = Worked<T>>,
    {
        self.persist(|| self.once(within, &work)).await
    }

    /// Calls `once` until it succeeds, or until the patience is used up.
    async fn persist<T, F>(&self, once: impl Fn() -> F) -> Result<T, FactsError>
    where
        F: Future<Output = Result<T, LinkTrouble>>,
    {
        let (mut wait, mut failed) = (TRY_EVERY[0], None);
        loop {
            match once().await {
                Ok(done) => {
                    self.done(failed.is_some());
                    return Ok(done);
                }
                Err(trouble) => self.pause(trouble, &mut wait, &mut failed).await?,
            }
        }
    }

    /// Waits before the next attempt, or returns the error if no patience is left. `failed` is the
    /// time of the first failure.
    async fn pause(
        &self,
        trouble: LinkTrouble,
        wait: &mut Duration,
        failed: &mut Option<Instant>,
    ) -> Result<(), FactsError> {
        let passing = match trouble {
            LinkTrouble::Final(error) => return Err(error),
            LinkTrouble::Passing(passing) => passing,
            LinkTrouble::Conflict => {
                let first = *failed.get_or_insert_with(Instant::now);
                if first.elapsed() >= self.patience {
                    return Err(self.in_the_way());
                }
                tokio::time::sleep(TRY_EVERY[0].mul_f64(fastrand::f64())).await;
                return Ok(());
            }
        };
        let why = passing.why.as_str();
        debug!(why, passing.refuses, "the server is not reached, or refuses");
        let first = *failed.get_or_insert_with(Instant::now);
        if self.is_down(&passing) || first.elapsed() >= self.patience {
            return Err(FactsError::Unreachable { url: self.shown.clone(), message: passing.why });
        }
        tokio::time::sleep(wait.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        *wait = (*wait * 2).min(TRY_EVERY[1]);
        Ok(())
    }

    fn in_the_way(&self) -> FactsError {
        let message = "another transaction was in the way".to_owned();
        FactsError::Unreachable { url: self.shown.clone(), message }
    }

    /// Runs `work` once.
    async fn once<T, F>(
        &self,
        within: Duration,
        work: &impl Fn(Client) -> F,
    ) -> Result<T, LinkTrouble>
    where
        F: Future<Output = Worked<T>>,
    {
        let done = match self.client().await {
            Ok(client) => self.answered(within, Box::pin(work(client))).await,
            Err(trouble) => Err(trouble),
        };
        if matches!(done, Err(LinkTrouble::Passing(_))) {
            self.let_go();
        }
        done
    }

    /// Closes the idle connections: if one does not answer, the others probably do not either.
    fn let_go(&self) {
        self.pool.retain(|_, _| false);
    }

    /// Returns a connection from the pool.
    async fn client(&self) -> Result<Client, LinkTrouble> {
        // Waiting has no timeout, because every connection returns to the pool.
        let times =
            Timeouts { wait: None, create: Some(CONNECT_TIMEOUT), recycle: Some(CONNECT_TIMEOUT) };
        self.pool.timeout_get(&times).await.map_err(|e| match e {
            PoolError::Backend(e) => self.trouble(&e),
            // The server accepted the connection and did not answer.
            PoolError::Timeout(_) => {
                let why = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
                LinkTrouble::Passing(Passing::unreached(why))
            }
            other => LinkTrouble::Passing(Passing::unreached(other.to_string())),
        })
    }

    /// Returns the shared connection and opens it if necessary.
    async fn shared(&self) -> Result<SharedClient, LinkTrouble> {
        let came = Instant::now();
        let mut shared = self.shared.lock().await;
        if let Some(client) = shared.client.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        // The caller has already waited while another attempt failed, so it does not wait again.
        if let Some((_, why)) = shared.failed.as_ref().filter(|(at, _)| *at > came) {
            return Err(LinkTrouble::Passing(Passing::unreached(why)));
        }
        match self.client().await {
            Ok(client) => {
                let client = Arc::new(client);
                *shared = SharedConnection { client: Some(Arc::clone(&client)), failed: None };
                Ok(client)
            }
            Err(trouble) => {
                if let LinkTrouble::Passing(passing) = &trouble {
                    shared.failed = Some((Instant::now(), passing.why.clone()));
                }
                Err(trouble)
            }
        }
    }

    /// Runs `work` with a timeout, and classifies its error.
    async fn answered<T>(
        &self,
        within: Duration,
        work: impl Future<Output = Worked<T>>,
    ) -> Result<T, LinkTrouble> {
        let began = Instant::now();
        match tokio::time::timeout(within, work).await {
            Ok(Ok(done)) => {
                self.took(began.elapsed());
                Ok(done)
            }
            Ok(Err(Failed::Postgres(e))) => Err(self.trouble(&e)),
            Ok(Err(Failed::Facts(e))) => Err(LinkTrouble::Final(e)),
            Err(_) => {
                let why = format!("no answer within {} s", within.as_secs());
                Err(LinkTrouble::Passing(Passing::unreached(why)))
            }
        }
    }

    fn took(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.least.fetch_min(micros, Ordering::Relaxed);
    }

    /// Returns true if the round trip to the server is long.
    pub(super) fn is_far(&self) -> bool {
        let least = self.least.load(Ordering::Relaxed);
        least != u64::MAX && Duration::from_micros(least) >= FAR
    }

    /// Ends the outage after a success. If the server refused writes, a read that succeeds at once
    /// does not end the outage.
    fn done(&self, had_failed: bool) {
        let mut down = self.down();
        if let Some(was) = down.take_if(|down| had_failed || !down.refuses) {
            let again = if was.refuses { "works again" } else { "can be reached again" };
            (self.say)(&format!("the cache {} {again}", self.shown));
        }
    }

    /// Records a failure and returns true if the outage has lasted longer than the patience.
    fn is_down(&self, passing: &Passing) -> bool {
        let mut down = self.down();
        let down = down.get_or_insert_with(|| {
            let seconds = self.patience.as_secs();
            let refuses = passing.refuses;
            let not = if refuses { "fails" } else { "cannot be reached" };
            (self.say)(&format!(
                "the cache {} {not} ({}); hqdl retries for {seconds} s",
                self.shown, passing.why
            ));
            Down { since: Instant::now(), refuses }
        });
        down.since.elapsed() >= self.patience
    }

    fn down(&self) -> MutexGuard<'_, Option<Down>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Classifies a database error as temporary, as a conflict or as final, with its message and
    /// hint.
    fn trouble(&self, error: &tokio_postgres::Error) -> LinkTrouble {
        let url = self.shown.clone();
        let Some(server) = error.as_db_error() else {
            let cause = std::error::Error::source(error);
            let io = cause.and_then(|c| c.downcast_ref::<std::io::Error>());
            let broken = error.is_closed()
                || io.is_some_and(|io| io.kind() != std::io::ErrorKind::InvalidData);
            let message = error_with_cause(error);
            if broken || message.starts_with("timeout") || message.contains("unexpected EOF") {
                return LinkTrouble::Passing(Passing::unreached(message));
            }
            let hint = if message.contains("password") {
                "set it in PGPASSWORD or ~/.pgpass"
            } else {
                "check the URL, its sslmode and the server's certificate (sslrootcert)"
            };
            return LinkTrouble::Final(FactsError::Refused { url, message, hint });
        };
        let message = match server.detail() {
            Some(detail) => format!("{}: {detail}", server.message()),
            None => server.message().to_owned(),
        };
        let code = server.code();
        if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code) {
            return LinkTrouble::Conflict;
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
            let refuses = !["08", "57P"].iter().any(|class| code.code().starts_with(class));
            return LinkTrouble::Passing(Passing { why: message, refuses });
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
            _ => return LinkTrouble::Final(FactsError::Journal { path: url.into(), message }),
        };
        LinkTrouble::Final(FactsError::Refused { url, message, hint })
    }
}

enum LinkTrouble {
    /// A retry may succeed.
    Passing(Passing),
    /// A concurrent transaction conflicted with this one.
    Conflict,
    Final(FactsError),
}

impl Drop for Link {
    fn drop(&mut self) {
        self.pool.close();
    }
}
