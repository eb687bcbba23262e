//! Databases on a `PostgreSQL` server, for specs that name a server URL.
//!
//! A [`Database`](crate::Database) on a server has the same interface as a file. In addition to the
//! connection to the server, it has a private `SQLite` database in a temporary file. Keys are
//! streamed into it and grouped there (`source`), and the published state is read into it
//! (`bookkeeping`). Tables are first published to the local database, so that publishing has only
//! one implementation. The differences are then sent to the server in one transaction
//! (`publication`). `catalog` lists the server's objects, and `values` converts values.
//!
//! A connection is opened on demand, and reopened after an outage of the server. A transaction
//! fails if its connection is lost.

pub mod address;
mod bookkeeping;
mod catalog;
mod clean;
mod entity_rows;
mod publication;
pub mod query;
mod sample;
mod layout;
mod source;
mod target;
pub mod thread;
mod values;
mod view;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::error::Elapsed;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tracing::warn;

use self::address::{AddressError, CONNECT_TIMEOUT, ServerAddress, describe_connection_error};
use self::thread::ServerThread;
use crate::StoreError;
use hqdl_values::sql;

pub(crate) use self::catalog::to_values;
pub(crate) use self::source::{CopiedRows, SELECTED_COLUMN};

/// Default schema of the published tables.
const DEFAULT_SCHEMA: &str = "expanded";
/// Number of rows read or written at once.
const BATCH_ROWS: usize = 2000;
/// Session settings that fix the format of values, independent of the server's settings.
const SESSION_SETTINGS: &str =
    "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET intervalstyle = 'postgres';
  SET bytea_output = 'hex'; SET extra_float_digits = 1; SET client_encoding = 'UTF8';
  SET standard_conforming_strings = on; SET default_transaction_isolation = 'read committed';
  SET lock_timeout = '10s'; SET cursor_tuple_fraction = 1.0";

/// Connection to a server, used by a [`Database`](crate::Database).
pub(crate) struct DatabaseServer {
    address: ServerAddress,
    /// Schema of the published tables.
    schema: String,
    thread: ServerThread,
    client: Mutex<Option<Arc<Client>>>,
    /// Whether a transaction is open.
    in_transaction: AtomicBool,
}

/// Maximum time to wait for a server to start.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns true if an unreachable server is probably starting: either it reports that it is
/// starting, or it was reachable before.
fn is_probably_starting(error: &tokio_postgres::Error, was_connected: bool) -> bool {
    match error.code() {
        Some(code) => *code == SqlState::CANNOT_CONNECT_NOW,
        None => {
            let cause = std::error::Error::source(error);
            was_connected && cause.and_then(|c| c.downcast_ref::<std::io::Error>()).is_some()
        }
    }
}

impl fmt::Debug for DatabaseServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("url", &self.address.display_url).finish_non_exhaustive()
    }
}

type Params<'p> = [&'p (dyn ToSql + Sync)];

impl DatabaseServer {
    /// Connects to a server by its URL.
    pub(crate) fn connect(url: &Path) -> Result<Self, StoreError> {
        let to_error = |to_error: AddressError| StoreError::Server {
            url: to_error.display_url,
            message: to_error.message,
            hint: to_error.hint,
        };
        let address = ServerAddress::parse(&url.to_string_lossy()).map_err(to_error)?;
        let schema = address.schema.clone().unwrap_or_else(|| DEFAULT_SCHEMA.to_owned());
        let thread = ServerThread::start().map_err(|error| StoreError::File {
            path: PathBuf::from(&address.display_url),
            error,
        })?;
        let (client, in_transaction) = (Mutex::new(None), AtomicBool::new(false));
        let server = Self { address, schema, thread, client, in_transaction };
        server.connection()?;
        Ok(server)
    }

    pub(crate) fn display_url(&self) -> &str {
        &self.address.display_url
    }

    /// Returns the qualified name of an object in the schema of the published tables.
    fn qualify_name(&self, name: &str) -> String {
        format!("{}.{}", sql::quote_name(&self.schema), sql::quote_name(name))
    }

    /// Returns the open connection, or a new one if it was closed.
    fn connection(&self) -> Result<Arc<Client>, StoreError> {
        let mut current = self.client.lock();
        match &*current {
            Some(client) if !client.is_closed() => return Ok(Arc::clone(client)),
            Some(_) if self.in_transaction.load(Ordering::Relaxed) => {
                return Err(self.server_error("the connection was lost".to_owned()));
            }
            _ => {}
        }
        let was_connected = current.is_some();
        let started = Instant::now();
        let mut has_warned = false;
        let client = loop {
            match self.open_connection() {
                // A server that has answered before may be restarting.
                Err(_) if was_connected && started.elapsed() < STARTUP_TIMEOUT => {}
                Err(_) => return Err(self.silent_server_error()),
                Ok(Err(error))
                    if started.elapsed() < STARTUP_TIMEOUT
                        && is_probably_starting(&error, was_connected) =>
                {
                    if !std::mem::replace(&mut has_warned, true) {
                        let (url, seconds) = (self.display_url(), STARTUP_TIMEOUT.as_secs());
                        let error = describe_connection_error(&error);
                        warn!(
                            url,
                            error, "the database cannot be reached; hqdl retries for {seconds} s"
                        );
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
                Ok(client) => break Arc::new(client.map_err(|e| self.to_store_error(&e))?),
            }
        };
        *current = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Opens a new connection. Returns `Err` if the server accepts the connection but does not
    /// answer in time.
    fn open_connection(&self) -> Result<Result<Client, tokio_postgres::Error>, Elapsed> {
        let connecting = async {
            let tls = self.address.tls.clone();
            let (client, connection) = self.address.config.connect(tls).await?;
            drop(self.thread.handle.spawn(connection));
            client.batch_execute(SESSION_SETTINGS).await?;
            // Put the schema of the published tables last in the search path, after the user's
            // schemas.
            let path = "SELECT set_config('search_path',
                concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident($1)), false)";
            client.query(path, &[&self.schema]).await?;
            Ok(client)
        };
        // A timer needs the runtime, which is available only inside `block_on`.
        self.thread.block_on(async { tokio::time::timeout(CONNECT_TIMEOUT, connecting).await })
    }

    /// Returns the error for a server that accepts connections but does not answer.
    fn silent_server_error(&self) -> StoreError {
        let message = format!("the server does not answer within {} s", CONNECT_TIMEOUT.as_secs());
        let hint = "check the host and the port: does PostgreSQL listen there?";
        StoreError::Server { url: self.address.display_url.clone(), message, hint }
    }

    /// Runs a statement and returns its rows.
    fn query_rows(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, StoreError> {
        let client = self.connection()?;
        self.thread.block_on(client.query(sql, params)).map_err(|e| self.to_store_error(&e))
    }

    /// Runs a statement that returns one row with one column.
    fn query_one<T>(&self, sql: &str, params: &Params<'_>) -> Result<T, StoreError>
    where
        T: for<'r> tokio_postgres::types::FromSql<'r>,
    {
        let client = self.connection()?;
        let row = self.thread.block_on(client.query_one(sql, params));
        row.and_then(|row| row.try_get(0)).map_err(|e| self.to_store_error(&e))
    }

    /// Runs a statement and returns the number of changed rows.
    fn execute(&self, sql: &str, params: &Params<'_>) -> Result<u64, StoreError> {
        let client = self.connection()?;
        self.thread.block_on(client.execute(sql, params)).map_err(|e| self.to_store_error(&e))
    }

    /// Runs statements without parameters.
    fn execute_batch(&self, sql: &str) -> Result<(), StoreError> {
        let client = self.connection()?;
        self.thread.block_on(client.batch_execute(sql)).map_err(|e| self.to_store_error(&e))
    }

    /// Returns the columns of a SELECT, with their types.
    fn describe_columns(&self, sql: &str) -> Result<Vec<(String, Type)>, StoreError> {
        let client = self.connection()?;
        let statement =
            self.thread.block_on(client.prepare(sql)).map_err(|e| self.to_store_error(&e))?;
        let to_column = |c: &tokio_postgres::Column| (c.name().to_owned(), c.type_().clone());
        Ok(statement.columns().iter().map(to_column).collect())
    }

    fn begin_transaction(&self, mode: &str) -> Result<Transaction<'_>, StoreError> {
        self.execute_batch(&format!("BEGIN {mode}"))?;
        self.in_transaction.store(true, Ordering::Relaxed);
        Ok(Transaction { server: self, is_open: true })
    }

    /// Limits the time of each statement of the open transaction.
    fn set_statement_timeout(&self, timeout: Duration) -> Result<(), StoreError> {
        let milliseconds = timeout.as_millis().max(1);
        self.execute_batch(&format!("SET LOCAL statement_timeout = {milliseconds}"))
    }

    fn server_error(&self, message: String) -> StoreError {
        let hint = "check the server, then run this again; all answers are kept";
        StoreError::Server { url: self.address.display_url.clone(), message, hint }
    }

    /// Classifies a server error.
    fn to_store_error(&self, error: &tokio_postgres::Error) -> StoreError {
        let url = self.address.display_url.clone();
        let Some(db_error) = error.as_db_error() else {
            let message = describe_connection_error(error);
            let hint = if message.contains("password") {
                "set it in PGPASSWORD or ~/.pgpass"
            } else if message.contains("does not use TLS") {
                "enable TLS on the server, or write sslmode=prefer in the URL"
            } else {
                "check the URL, and that the server is running; all answers are kept"
            };
            return StoreError::Server { url, message, hint };
        };
        let message = match db_error.detail() {
            Some(detail) => format!("{}: {}", db_error.message(), detail.replace('\n', "; ")),
            None => db_error.message().to_owned(),
        };
        let user = self.address.config.get_user().unwrap_or_default();
        let (message, hint) = match db_error.code().code() {
            "28000" if message.contains("pg_hba.conf") => (
                format!(
                    "the server does not admit the user `{user}` from this host to this database"
                ),
                "its administrator must add an entry to pg_hba.conf",
            ),
            "42501" => self.explain_denial(message, user),
            code => match choose_hint(code) {
                Some(hint) => (message, hint),
                None if code.starts_with("42") || code.starts_with("22") => {
                    return StoreError::Statement { url, message };
                }
                None => (message, "check the server, then run this again; all answers are kept"),
            },
        };
        StoreError::Server { url, message, hint }
    }

    /// Returns the message and the hint for an operation that `user` has no permission for.
    fn explain_denial(&self, message: String, user: &str) -> (String, &'static str) {
        let relation = ["table ", "view ", "materialized view "]
            .iter()
            .find_map(|kind| message.strip_prefix("permission denied for ")?.strip_prefix(kind));
        if let Some(name) = relation {
            let message = format!("{message}: its owner can run GRANT SELECT ON {name} TO {user}");
            return (message, "docs/reference/postgresql.md lists the permissions of a role");
        }
        if message.starts_with("permission denied for database ") {
            let message =
                format!("`{user}` may not create the schema `{}`: {message}", self.schema);
            let hint = "use another role, or let the database's owner create the schema for this one; docs/reference/postgresql.md lists the permissions";
            return (message, hint);
        }
        (
            message,
            "use a role with this permission; docs/reference/postgresql.md lists the permissions",
        )
    }
}

/// Returns the hint for an error code of the server.
fn choose_hint(code: &str) -> Option<&'static str> {
    Some(match code {
        "28P01" | "28000" => "check the user and the password in PGPASSWORD or ~/.pgpass",
        "3D000" => "create the database (`createdb`), or correct its name in the URL",
        "25006" => "connect to the primary server; this one is a replica or read-only",
        "55P03" => {
            "another session holds a lock: wait until it ends, then run this again; nothing was lost"
        }
        "2BP01" => {
            "the columns of the table have changed: drop the views that depend on it, run this again, then create them again; all answers are kept"
        }
        "54000" => "PostgreSQL cannot index a key of more than 2,704 bytes: choose a shorter key",
        _ => return None,
    })
}

/// An open transaction, which is rolled back on drop.
struct Transaction<'s> {
    server: &'s DatabaseServer,
    is_open: bool,
}

impl Transaction<'_> {
    fn commit(mut self) -> Result<(), StoreError> {
        let result = self.server.execute_batch("COMMIT");
        self.is_open = result.is_err();
        if !self.is_open {
            self.server.in_transaction.store(false, Ordering::Relaxed);
        }
        result
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // If the connection was lost, the server has already rolled back.
            drop(self.server.execute_batch("ROLLBACK"));
            self.server.in_transaction.store(false, Ordering::Relaxed);
        }
    }
}

/// Returns quoted names, separated by commas.
fn quote_name_list<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    names.into_iter().map(sql::quote_name).collect::<Vec<_>>().join(", ")
}
