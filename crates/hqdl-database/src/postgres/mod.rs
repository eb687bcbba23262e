//! A database on a server: `PostgreSQL`, where a spec names a URL.
//!
//! To whoever works with a [`Database`](crate::Database) it is one like any other. Beside
//! the connection there is a `SQLite` database of this process alone, in a temporary file:
//! keys are streamed into it and grouped there (`source`), what stands is noted there
//! (`bookkeeping`), and what is published is first written there, so that there is one
//! way of publishing; what differs then goes to the server, in one transaction
//! (`publication`). `catalog` says what the server has, `values` how values travel.
//!
//! A connection is made when one is needed, and again when the server was gone meanwhile;
//! a transaction whose connection is gone has failed.

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

/// The schema that is published into, where a spec names none.
const SCHEMA: &str = "expanded";
/// Rows that are read, or written, at once.
const ROWS: usize = 2000;
/// How values, numbers and moments are written, whatever the server's settings.
const SESSION: &str = "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET intervalstyle = 'postgres';
  SET bytea_output = 'hex'; SET extra_float_digits = 1; SET client_encoding = 'UTF8';
  SET standard_conforming_strings = on; SET default_transaction_isolation = 'read committed';
  SET lock_timeout = '10s'; SET cursor_tuple_fraction = 1.0";

/// A server, as one [`Database`](crate::Database) uses it.
pub(crate) struct DatabaseServer {
    address: Address,
    /// The schema that is published into.
    schema: String,
    thread: ServerThread,
    client: Mutex<Option<Arc<Client>>>,
    /// Whether a transaction is under way.
    working: AtomicBool,
}

/// How long a server that is starting is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether a server that could not be reached is about to be there: it is starting, or was
/// there before and starts again.
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

    /// The URL, as it may be shown.
    pub(crate) fn shown(&self) -> &str {
        &self.address.shown
    }

    /// Something of the schema that is published into, as SQL names it.
    fn own(&self, name: &str) -> String {
        format!("{}.{}", sql::name(&self.schema), sql::name(name))
    }

    /// The connection, a new one where the last is gone.
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

    /// A new connection.
    fn connected(&self) -> Result<Client, tokio_postgres::Error> {
        self.thread.wait(async {
            let tls = self.address.tls.clone();
            let (client, connection) = self.address.config.connect(tls).await?;
            drop(self.thread.handle.spawn(connection));
            client.batch_execute(SESSION).await?;
            // What is published is found by its name, after everything of the user's.
            let path = "SELECT set_config('search_path',
                concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident($1)), false)";
            client.query(path, &[&self.schema]).await?;
            Ok(client)
        })
    }

    /// Runs a statement; its rows.
    fn rows(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, StoreError> {
        let client = self.client()?;
        self.thread.wait(client.query(sql, params)).map_err(|e| self.error(&e))
    }

    /// Runs a statement of one row and one column.
    fn one<T>(&self, sql: &str, params: &Params<'_>) -> Result<T, StoreError>
    where
        T: for<'r> tokio_postgres::types::FromSql<'r>,
    {
        let client = self.client()?;
        let row = self.thread.wait(client.query_one(sql, params));
        row.and_then(|row| row.try_get(0)).map_err(|e| self.error(&e))
    }

    /// Runs a statement; how many rows it changed.
    fn execute(&self, sql: &str, params: &Params<'_>) -> Result<u64, StoreError> {
        let client = self.client()?;
        self.thread.wait(client.execute(sql, params)).map_err(|e| self.error(&e))
    }

    /// Runs statements without parameters.
    fn batch(&self, sql: &str) -> Result<(), StoreError> {
        let client = self.client()?;
        self.thread.wait(client.batch_execute(sql)).map_err(|e| self.error(&e))
    }

    /// The columns that a SELECT yields, with their types.
    fn describe(&self, sql: &str) -> Result<Vec<(String, Type)>, StoreError> {
        let client = self.client()?;
        let statement = self.thread.wait(client.prepare(sql)).map_err(|e| self.error(&e))?;
        let column = |c: &tokio_postgres::Column| (c.name().to_owned(), c.type_().clone());
        Ok(statement.columns().iter().map(column).collect())
    }

    /// Begins a transaction, which is undone unless it is committed.
    fn begin(&self, mode: &str) -> Result<Transaction<'_>, StoreError> {
        self.batch(&format!("BEGIN {mode}"))?;
        self.working.store(true, Ordering::Relaxed);
        Ok(Transaction { server: self, open: true })
    }

    fn failed(&self, message: String) -> StoreError {
        let hint = "check the server, then run this again; everything answered is kept";
        StoreError::Server { url: self.address.shown.clone(), message, hint }
    }

    /// Gives an error of the server its meaning.
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

/// A transaction under way.
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
            // One whose connection is gone is undone already.
            drop(self.server.batch("ROLLBACK"));
            self.server.working.store(false, Ordering::Relaxed);
        }
    }
}

/// Quoted names, joined by commas.
fn names<'n>(all: impl IntoIterator<Item = &'n str>) -> String {
    all.into_iter().map(sql::name).collect::<Vec<_>>().join(", ")
}
