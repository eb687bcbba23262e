//! Databases on a `PostgreSQL` server, for a spec with a URL.
//!
//! A [`Database`](crate::Database) on a server has the same interface as a file. In addition to the
//! connection, it has a private `SQLite` database in a temporary file. Keys are streamed into it
//! and grouped there (`source`), and the published state is read into it (`bookkeeping`). Tables
//! are first published there, so that publishing has one implementation; the differences are then
//! sent to the server in one transaction (`publication`). `catalog` lists the server's objects,
//! `values` converts values.
//!
//! A connection is opened on demand, and reopened after an outage of the server. A transaction
//! fails if its connection is lost.

pub mod address;
mod bookkeeping;
mod catalog;
mod clean;
mod publication;
pub mod query;
mod sample;
mod shape;
mod source;
pub mod thread;
mod tls;
mod values;
mod view;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tracing::warn;

use self::address::{Address, BadAddress, said};
use self::thread::ServerThread;
use crate::StoreError;
use hqdl_values::sql;

pub(crate) use self::catalog::told;
pub(crate) use self::publication::Publishing;
pub(crate) use self::source::WANTED;

/// Default schema of the published tables.
const SCHEMA: &str = "expanded";
/// Number of rows that are read or written at once.
const ROWS: usize = 2000;
/// Session settings that fix the format of values, independent of the server's settings.
const SESSION: &str = "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET intervalstyle = 'postgres';
  SET bytea_output = 'hex'; SET extra_float_digits = 1; SET client_encoding = 'UTF8';
  SET standard_conforming_strings = on; SET default_transaction_isolation = 'read committed';
  SET lock_timeout = '10s'; SET cursor_tuple_fraction = 1.0";

/// Connection to a server that a [`Database`](crate::Database) uses.
pub(crate) struct DatabaseServer {
    address: Address,
    /// Schema of the published tables.
    schema: String,
    thread: ServerThread,
    client: Mutex<Option<Arc<Client>>>,
    /// Whether a transaction is open.
    working: AtomicBool,
}

/// Maximum time to wait for a server that is starting.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns true if an unreachable server is probably starting: it reports that, or it was reachable
/// before.
fn comes_back(error: &tokio_postgres::Error, again: bool) -> bool {
    match error.code() {
        Some(code) => *code == SqlState::CANNOT_CONNECT_NOW,
        None => {
            let cause = std::error::Error::source(error);
            again && cause.and_then(|c| c.downcast_ref::<std::io::Error>()).is_some()
        }
    }
}

impl fmt::Debug for DatabaseServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("url", &self.address.shown).finish_non_exhaustive()
    }
}

type Params<'p> = [&'p (dyn ToSql + Sync)];

impl DatabaseServer {
    /// Connects to the server of a URL.
    pub(crate) fn connect(url: &Path) -> Result<Self, StoreError> {
        let bad = |bad: BadAddress| StoreError::Server {
            url: bad.shown,
            message: bad.message,
            hint: bad.hint,
        };
        let address = Address::read(&url.to_string_lossy()).map_err(bad)?;
        let schema = address.schema.clone().unwrap_or_else(|| SCHEMA.to_owned());
        let thread = ServerThread::start()
            .map_err(|error| StoreError::File { path: PathBuf::from(&address.shown), error })?;
        let (client, working) = (Mutex::new(None), AtomicBool::new(false));
        let server = Self { address, schema, thread, client, working };
        server.client()?;
        Ok(server)
    }

    /// Returns the URL for messages.
    pub(crate) fn shown(&self) -> &str {
        &self.address.shown
    }

    /// Returns the qualified name of an object in the schema that is published into.
    fn own(&self, name: &str) -> String {
        format!("{}.{}", sql::name(&self.schema), sql::name(name))
    }

    /// Returns the connection, or a new one if the last was closed.
    fn client(&self) -> Result<Arc<Client>, StoreError> {
        let mut held = self.client.lock();
        match &*held {
            Some(client) if !client.is_closed() => return Ok(Arc::clone(client)),
            Some(_) if self.working.load(Ordering::Relaxed) => {
                return Err(self.failed("the connection was lost".to_owned()));
            }
            _ => {}
        }
        let again = held.is_some();
        let began = Instant::now();
        let mut told = false;
        let client = loop {
            match self.connected() {
                Err(error) if began.elapsed() < PATIENCE && comes_back(&error, again) => {
                    if !std::mem::replace(&mut told, true) {
                        let (url, seconds) = (self.shown(), PATIENCE.as_secs());
                        let error = said(&error);
                        warn!(
                            url,
                            error, "the database cannot be reached; hqdl retries for {seconds} s"
                        );
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
                client => break Arc::new(client.map_err(|e| self.error(&e))?),
            }
        };
        *held = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Opens a new connection.
    fn connected(&self) -> Result<Client, tokio_postgres::Error> {
        self.thread.wait(async {
            let tls = self.address.tls.clone();
            let (client, connection) = self.address.config.connect(tls).await?;
            drop(self.thread.handle.spawn(connection));
            client.batch_execute(SESSION).await?;
            // The schema of the published tables comes last in the search path, after the user's
            // schemas.
            let path = "SELECT set_config('search_path',
                concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident($1)), false)";
            client.query(path, &[&self.schema]).await?;
            Ok(client)
        })
    }

    /// Runs a statement and returns its rows.
    fn rows(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, StoreError> {
        let client = self.client()?;
        self.thread.wait(client.query(sql, params)).map_err(|e| self.error(&e))
    }

    /// Runs a statement with one row and one column.
    fn one<T>(&self, sql: &str, params: &Params<'_>) -> Result<T, StoreError>
    where
        T: for<'r> tokio_postgres::types::FromSql<'r>,
    {
        let client = self.client()?;
        let row = self.thread.wait(client.query_one(sql, params));
        row.and_then(|row| row.try_get(0)).map_err(|e| self.error(&e))
    }

    /// Runs a statement and returns the number of changed rows.
    fn execute(&self, sql: &str, params: &Params<'_>) -> Result<u64, StoreError> {
        let client = self.client()?;
        self.thread.wait(client.execute(sql, params)).map_err(|e| self.error(&e))
    }

    /// Runs statements without parameters.
    fn batch(&self, sql: &str) -> Result<(), StoreError> {
        let client = self.client()?;
        self.thread.wait(client.batch_execute(sql)).map_err(|e| self.error(&e))
    }

    /// Returns the columns of a SELECT, with their types.
    fn describe(&self, sql: &str) -> Result<Vec<(String, Type)>, StoreError> {
        let client = self.client()?;
        let statement = self.thread.wait(client.prepare(sql)).map_err(|e| self.error(&e))?;
        let column = |c: &tokio_postgres::Column| (c.name().to_owned(), c.type_().clone());
        Ok(statement.columns().iter().map(column).collect())
    }

    /// Begins a transaction, which is rolled back unless it is committed.
    fn begin(&self, mode: &str) -> Result<Transaction<'_>, StoreError> {
        self.batch(&format!("BEGIN {mode}"))?;
        self.working.store(true, Ordering::Relaxed);
        Ok(Transaction { server: self, open: true })
    }

    fn failed(&self, message: String) -> StoreError {
        let hint = "check the server, then run this again; everything answered is kept";
        StoreError::Server { url: self.address.shown.clone(), message, hint }
    }

    /// Classifies an error of the server.
    fn error(&self, error: &tokio_postgres::Error) -> StoreError {
        let url = self.address.shown.clone();
        let Some(told) = error.as_db_error() else {
            let message = said(error);
            let hint = if message.contains("password") {
                "set it in PGPASSWORD or ~/.pgpass"
            } else {
                "check the URL, and that the server is running; everything answered is kept"
            };
            return StoreError::Server { url, message, hint };
        };
        let message = match told.detail() {
            Some(detail) => format!("{}: {}", told.message(), detail.replace('\n', "; ")),
            None => told.message().to_owned(),
        };
        let hint = match told.code().code() {
            "28P01" | "28000" => "check the user and the password in PGPASSWORD or ~/.pgpass",
            "3D000" => "create the database (`createdb`), or correct its name in the URL",
            "42501" => {
                "use a role with this permission; docs/guides/shared-cache.md lists the permissions of each"
            }
            "25006" => "connect to the primary server; this one is a replica or read-only",
            "55P03" => {
                "another session holds a lock: wait until it ends, then run this again; nothing was lost"
            }
            "2BP01" => {
                "the columns of the table have changed: drop the views that depend on it, run this again, then create them again; everything answered is kept"
            }
            "54000" => {
                "PostgreSQL cannot index a key of more than 2,704 bytes: choose a shorter key"
            }
            code if code.starts_with("42") => {
                return StoreError::Statement { url, message };
            }
            _ => "check the server, then run this again; everything answered is kept",
        };
        StoreError::Server { url, message, hint }
    }
}

/// Open transaction.
struct Transaction<'s> {
    server: &'s DatabaseServer,
    open: bool,
}

impl Transaction<'_> {
    fn commit(mut self) -> Result<(), StoreError> {
        let done = self.server.batch("COMMIT");
        self.open = done.is_err();
        if !self.open {
            self.server.working.store(false, Ordering::Relaxed);
        }
        done
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.open {
            // The server has already rolled back if the connection is lost.
            drop(self.server.batch("ROLLBACK"));
            self.server.working.store(false, Ordering::Relaxed);
        }
    }
}

/// Returns quoted names, separated by commas.
fn names<'n>(all: impl IntoIterator<Item = &'n str>) -> String {
    all.into_iter().map(sql::name).collect::<Vec<_>>().join(", ")
}
