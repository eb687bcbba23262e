//! The journal, which stores every completion and the facts parsed from it.

mod answers;
mod claims;
mod dictionary;
mod integrity;
mod batch_jobs;
mod questions;
pub(crate) mod rates;
mod records;
mod endpoint_features;
pub(crate) mod requests;
pub(crate) mod reservations;
mod refresh;
mod schema;
mod sessions;
mod spending;

use crate::completion::Completion;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use serde::ser::{Serialize, SerializeSeq, Serializer};
use serde_json::Value as Json;

use crate::checksum::{AnswerRow, Damage, compute_answer_checksum};
use crate::record::Fact;
use crate::sessions::FactsSession;
use crate::{FactsError, checksum};
use hqdl_database::{self as store, migrate};
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::key::Entity;

/// SQL predicate: the row's session is alive.
pub(crate) const ALIVE: &str = "session IN (SELECT id FROM session)";
/// Selects the unfinished runs of live sessions.
pub(crate) const ACTIVE_RUNS: &str =
    "SELECT id FROM run WHERE session IN (SELECT id FROM session) AND ended_at IS NULL";

/// The journal's file, open for reading and writing.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Reentrant, because a caller that holds the connection may call a method that locks it again.
    connection: ReentrantMutex<Connection>,
    pub(crate) session: Arc<FactsSession>,
    /// Damage that was found when this process last built the records.
    damage: Mutex<Damage>,
}

/// Number of prepared statements cached per connection, which is more than the journal uses.
const STATEMENT_CACHE_SIZE: usize = 128;
/// Maximum number of attempts to take the write lock, with [`LOCK_PAUSE`] between them: a minute in
/// total. `SQLite`'s own pauses grow to 100 ms, in which time other writers can commit many times.
const LOCK_ATTEMPTS: i32 = 60_000;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Busy handler of `SQLite`: pauses, and returns true to request another attempt to take the lock.
fn pause_before_retry(attempts: i32) -> bool {
    std::thread::sleep(LOCK_PAUSE);
    attempts < LOCK_ATTEMPTS
}

impl Journal {
    /// Opens the journal, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`FactsError::Journal`] if the file cannot be opened or migrated, or if its schema is
    /// damaged.
    pub(crate) fn open(path: &Path, session: Arc<FactsSession>) -> Result<Self, FactsError> {
        let error = |e: rusqlite::Error| journal_error(path, &e);
        let mut connection = Connection::open(path).map_err(error)?;
        connection.busy_handler(Some(pause_before_retry)).map_err(error)?;
        connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_SIZE);
        hqdl_values::sql::reject_quoted_texts(&connection).map_err(error)?;
        // FULL, so that paid answers also survive a power cut. The commit thread groups commits, so
        // this costs one fsync for many answers.
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF;",
            )
            .map_err(error)?;
        checksum::register_checksum_function(&connection).map_err(error)?;
        schema::check_schema(&connection).map_err(error)?;
        migrate::migrate_journal(&connection).map_err(error)?;
        schema::store_schema_checksum(&connection).map_err(error)?;
        records::attach_records(&connection, path).map_err(error)?;
        let (path, connection) = (path.to_owned(), ReentrantMutex::new(connection));
        Ok(Self { path, connection, session, damage: Mutex::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the connection, for the exclusive use of this thread until the guard is dropped.
    pub(crate) fn connection(&self) -> ReentrantMutexGuard<'_, Connection> {
        self.connection.lock()
    }

    /// Registers this process's session, unless it is already registered.
    fn register_session(&self) -> rusqlite::Result<()> {
        let FactsSession { id, number, description, .. } = &*self.session;
        let sql = "INSERT OR IGNORE INTO session (id, holder, entered_at, number) VALUES (?1, ?2, ?3, ?4)";
        self.connection()
            .prepare_cached(sql)?
            .execute(params![id, description, store::current_timestamp(), number])
            .map(drop)
    }

    /// Returns the damage that was found when this process last built the records.
    pub(crate) fn known_damage(&self) -> Damage {
        self.damage.lock().clone()
    }

    fn set_known_damage(&self, damage: Damage) {
        *self.damage.lock() = damage;
    }

    pub(crate) fn error(&self, error: &rusqlite::Error) -> FactsError {
        journal_error(&self.path, error)
    }

    pub(crate) fn with_connection<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, FactsError> {
        work(&self.connection()).map_err(|e| self.error(&e))
    }

    /// Runs `work` in a new write transaction, or in the current transaction if there is one. A new
    /// transaction takes the write lock at its beginning, so that what it reads does not change
    /// before it writes.
    pub(crate) fn transact<T>(
        &self,
        work: impl FnOnce() -> Result<T, FactsError>,
    ) -> Result<T, FactsError> {
        let connection = self.connection();
        if !connection.is_autocommit() {
            return work();
        }
        let transaction = Transaction::new_unchecked(&connection, TransactionBehavior::Immediate)
            .map_err(|e| self.error(&e))?;
        let result = work()?;
        transaction.commit().map_err(|e| self.error(&e))?;
        Ok(result)
    }

    /// Runs `work` in one transaction that is visible to other processes, but is not flushed to
    /// disk.
    pub(crate) fn transact_unflushed<T>(
        &self,
        work: impl FnOnce() -> rusqlite::Result<T>,
    ) -> Result<T, FactsError> {
        let connection = self.connection();
        let run = || {
            connection.execute_batch("PRAGMA main.synchronous = NORMAL")?;
            self.run_in_transaction(|_| work())
        };
        let result = run();
        let restored = connection.execute_batch("PRAGMA main.synchronous = FULL");
        result.and_then(|value| restored.map(|()| value)).map_err(|e| self.error(&e))
    }

    /// Returns a number that changes when another connection commits.
    pub(crate) fn data_version(&self) -> rusqlite::Result<i64> {
        let c = self.connection();
        c.prepare_cached("PRAGMA main.data_version")?.query_row([], |r| r.get(0))
    }

    /// Runs `work` in a new write transaction, or in the current transaction if there is one.
    fn run_in_transaction<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let connection = self.connection();
        if !connection.is_autocommit() {
            return work(&connection);
        }
        let transaction = Transaction::new_unchecked(&connection, TransactionBehavior::Immediate)?;
        let result = work(&transaction)?;
        transaction.commit()?;
        Ok(result)
    }

    /// Like [`Journal::transact`], but passes the connection to the closure.
    pub(crate) fn transact_with_connection<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, FactsError> {
        self.run_in_transaction(work).map_err(|e| self.error(&e))
    }

    /// Runs `work`, which only reads, in one transaction, so that it sees a consistent snapshot.
    pub(crate) fn with_snapshot<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, FactsError> {
        let connection = self.connection();
        let all = || {
            if !connection.is_autocommit() {
                return work(&connection);
            }
            let transaction = connection.unchecked_transaction()?;
            let read = work(&transaction)?;
            transaction.commit()?;
            Ok(read)
        };
        all().map_err(|e| self.error(&e))
    }

    /// Stores a completion and returns its id.
    pub(crate) fn insert_completion(&self, c: &Completion) -> rusqlite::Result<i64> {
        let connection = self.connection();
        let mut insert = connection.prepare_cached(
            "INSERT INTO completion (run, model, prompt_hash, content, error, input_tokens, cached_input_tokens,
               output_tokens, cost_usd, asked_at, seconds, cells, parameters, assumed_cache_writes,
               evidence)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        )?;
        insert.insert(params![
            c.run,
            c.model,
            c.prompt_hash,
            c.content,
            c.error,
            c.input_tokens,
            c.cached_input_tokens,
            c.output_tokens,
            c.cost_usd,
            c.asked_at,
            c.seconds,
            c.cells,
            c.parameters,
            c.assumed_cache_writes,
            c.evidence
        ])
    }

    /// Stores the facts of an entity and returns the id of the new answer row.
    pub(crate) fn insert_answer(
        &self,
        (completion, model): (i64, u32),
        entity: &Entity,
        facts: &[Fact],
    ) -> rusqlite::Result<i64> {
        let connection = self.connection();
        let mut insert = connection.prepare_cached(
            "INSERT INTO answer (completion, entity, cells, checksum) VALUES (?1, ?2, ?3, ?4)",
        )?;
        let cells = cells_to_json(facts);
        let checksum = compute_answer_checksum(entity.as_str(), completion, model, &cells);
        insert.insert(params![completion, entity.as_str(), cells, checksum])
    }

    /// Returns the id of the last answer row.
    pub(crate) fn load_last_row_id(&self) -> Result<i64, FactsError> {
        let sql = "SELECT coalesce(max(id), 0) FROM answer";
        self.with_connection(|c| c.prepare_cached(sql)?.query_row([], |r| r.get(0)))
    }
}

/// Returns the facts of an entity as the JSON text of an answer row.
pub(crate) fn cells_to_json(facts: &[Fact]) -> String {
    let cells: Vec<JournalCell<'_>> = facts.iter().map(JournalCell).collect();
    serde_json::to_string(&cells).unwrap_or_default()
}

/// A fact as an answer row stores it: `[identity_id, value_list, state, value, raw, repair,
/// logprob]`, without trailing nulls.
struct JournalCell<'f>(&'f Fact);

impl Serialize for JournalCell<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Fact { identity_id, list, answer, logprob, .. } = self.0;
        let value = answer.value.to_json();
        let length = match (logprob, &answer.repair, &answer.raw) {
            (Some(_), _, _) => 7,
            (None, Some(_), _) => 6,
            (None, None, Some(_)) => 5,
            (None, None, None) if !value.is_null() => 4,
            (None, None, None) => 3,
        };
        let mut cell = serializer.serialize_seq(Some(length))?;
        cell.serialize_element(identity_id)?;
        cell.serialize_element(list)?;
        cell.serialize_element(answer.state.name())?;
        if length > 3 {
            cell.serialize_element(&value)?;
        }
        if length > 4 {
            cell.serialize_element(&answer.raw)?;
        }
        if length > 5 {
            cell.serialize_element(&answer.repair)?;
        }
        if length > 6 {
            cell.serialize_element(logprob)?;
        }
        cell.end()
    }
}

/// Parses the facts of an answer row, or returns what is wrong with it.
pub(crate) fn parse_cells(row: &AnswerRow) -> Result<Vec<Fact>, String> {
    let cells: Vec<Json> =
        serde_json::from_str(&row.cells).map_err(|e| format!("line {}: {e}", row.id))?;
    let fact = |cell: &Json| {
        parse_fact(cell, row.completion, row.model)
            .ok_or_else(|| format!("line {}: not a fact: {cell}", row.id))
    };
    cells.iter().map(fact).collect()
}

pub(crate) fn parse_fact(cell: &Json, completion: i64, model: u32) -> Option<Fact> {
    let text = |n: usize| cell.get(n).and_then(Json::as_str).map(str::to_owned);
    let id = |n: usize| cell.get(n).and_then(Json::as_u64).and_then(|i| u32::try_from(i).ok());
    Some(Fact {
        identity_id: id(0)?,
        list: id(1),
        model,
        completion,
        asked: completion,
        answer: Answer {
            state: State::from_name(cell.get(2)?.as_str()?)?,
            value: cell.get(3).map_or(CellValue::Nothing, CellValue::from_json),
            raw: text(4),
            repair: text(5),
        },
        logprob: cell.get(6).and_then(Json::as_f64),
    })
}

fn journal_error(path: &Path, error: &rusqlite::Error) -> FactsError {
    if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
        return FactsError::DiskFull { path: path.to_owned() };
    }
    if records::is_corruption_error(error) {
        return FactsError::Damaged {
            path: path.to_owned(),
            message: store::describe_sqlite_error(error),
        };
    }
    FactsError::Journal { path: path.to_owned(), message: store::describe_sqlite_error(error) }
}
