//! Read-only connection with a time limit and an interrupt, on which queries run.
//!
//! The file is opened read-only and `query_only` is set. An authorizer denies everything except
//! reads, and uses lists to decide which functions and pragmas are allowed. Until
//! [`GuardedConnection::lock_temp`] is called, the engine may register functions and create temporary tables.
//! Nothing else is ever written.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Statement};
use tokio::sync::watch;

use crate::query::connection::sqlite_message::{
    ENDS_TOO_EARLY, SqliteMessage, extract_unknown_name, restore_ingredient_names,
};
use crate::query::connection::statement::{
    ONLY_READS, find_clause_span, find_first_word_span, find_name_span, find_token_span,
};
use crate::query::connection::{best, dedup, math, search, try_cast};
use crate::query::request::error::QueryError;
use crate::query::result::query_result::RowSink;
use hqdl_database::{Database, StoreError, describe_sqlite_error};
use hqdl_model::generate::StopReason;

/// Number of `SQLite` VM instructions between two checks of the time limit: tens of microseconds.
const OPS_PER_CHECK: i32 = 1000;
/// Interval at which the watchdog checks a running statement, regardless of how long its
/// instructions take.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Deadline of a connection without a time limit.
const NO_DEADLINE: u64 = u64::MAX;

/// Maximum size of a value in this process, in bytes. `SQLite` builds a value in one step, which no
/// timeout can interrupt.
static MAX_VALUE_BYTES: AtomicI32 = AtomicI32::new(128 << 20);

/// Maximum memory that `SQLite` may use in this process, in bytes. The aggregates of JSON build a
/// value of any size before `SQLite` compares it with the maximum.
const MAX_HEAP_BYTES: i64 = 1 << 30;

/// Sets the maximum size of a value for all guarded connections that are opened afterwards. This
/// prevents one client of a server from using all memory.
pub fn set_max_value_bytes(bytes: i32) {
    MAX_VALUE_BYTES.store(bytes, Ordering::Relaxed);
}

/// Functions that access something outside the database, whether or not this build of `SQLite` has
/// them.
const DENIED_FUNCTIONS: [&str; 8] = [
    "edit",
    "eval",
    "fts3_tokenizer",
    "load_extension",
    "readfile",
    "system",
    "writefile",
    "zipfile",
];
/// Read-only pragmas, which are also available as `pragma_<name>` tables. Their arguments never
/// change a setting.
const READ_PRAGMAS: [&str; 16] = [
    "collation_list",
    "compile_options",
    "database_list",
    "foreign_key_check",
    "foreign_key_list",
    "function_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "module_list",
    "pragma_list",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
];
/// Pragmas that read without an argument and write with an argument.
const ARGUMENTLESS_PRAGMAS: [&str; 9] = [
    "application_id",
    "data_version",
    "encoding",
    "freelist_count",
    "journal_mode",
    "page_count",
    "page_size",
    "schema_version",
    "user_version",
];

/// A guarded read-only connection, used by one thread.
#[derive(Debug)]
pub struct GuardedConnection {
    database: Database,
    timeout: Option<Duration>,
    authorizer: Arc<Authorizer>,
}

/// State shared by the connection and its hooks.
#[derive(Debug)]
struct Authorizer {
    /// Whether temporary tables are read-only, too.
    is_locked: AtomicBool,
    /// Reason for the first denial that has not been reported yet.
    denial: Mutex<Option<String>>,
    origin: Instant,
    /// Deadline of the statement, in nanoseconds after `origin`.
    deadline: AtomicU64,
    /// Reason why a statement was aborted: an [`AbortReason`].
    abort_reason: AtomicU8,
    /// Whether the time limit and the interrupt are disabled.
    is_disarmed: AtomicBool,
}

/// Reason why a statement was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbortReason {
    NotAborted,
    TimedOut,
    Interrupted,
}

/// Registers the functions that every query can call.
fn register_functions(connection: &Connection) -> rusqlite::Result<()> {
    math::register_math_functions(connection)?;
    best::register_best_aggregate(connection)?;
    search::register_search_aggregate(connection)?;
    try_cast::register_try_cast(connection)?;
    dedup::register_dedup_functions(connection, |_, _| {})?;
    hqdl_sql::suql::functions::register(connection)
}

impl GuardedConnection {
    /// Opens a guarded connection to a database. The connection is not locked yet: the engine
    /// creates its temporary tables and functions, and then calls [`Self::lock_temp`]. A statement
    /// may run for `timeout`, counted from [`Self::start_timeout`], and is aborted when `interrupt`
    /// becomes true.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database is missing, locked or not a database.
    pub fn open_for_query(
        path: &Path,
        timeout: Option<Duration>,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let guard = Self::open_without_functions(path, timeout, interrupt)?;
        guard.database.create_empty_tables()?;
        register_functions(guard.connection()).map_err(|e| guard.database.to_store_error(&e))?;
        Ok(guard)
    }

    /// Opens a guarded connection for a client's SQL that is not run as a query. The functions of
    /// queries are not registered, and the time limit starts immediately.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database is missing, locked or not a database.
    pub fn open_for_sql(
        path: &Path,
        timeout: Option<Duration>,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let guard = Self::open_without_functions(path, timeout, interrupt)?;
        guard.start_timeout();
        Ok(guard)
    }

    fn open_without_functions(
        path: &Path,
        timeout: Option<Duration>,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let mut database = Database::open(path)?;
        database.check_readable()?;
        let authorizer = Arc::new(Authorizer {
            is_locked: AtomicBool::new(false),
            denial: Mutex::new(None),
            origin: Instant::now(),
            deadline: AtomicU64::new(NO_DEADLINE),
            abort_reason: AtomicU8::new(AbortReason::NotAborted as u8),
            is_disarmed: AtomicBool::new(false),
        });
        // If the data is on a server, the local database is private: no client's SQL reaches it.
        let is_private = database.server_url().is_some();
        install_hooks(database.connection_mut(), &authorizer, interrupt, is_private)
            .map_err(|e| StoreError::from_sqlite(path, &e))?;
        Ok(Self { database, timeout, authorizer })
    }

    /// Returns a function that disables the time limit and the interrupt. Any thread may call it.
    pub fn disarm_handle(&self) -> impl Fn() + Send + Sync + 'static {
        let authorizer = Arc::clone(&self.authorizer);
        move || authorizer.is_disarmed.store(true, Ordering::Relaxed)
    }

    /// If the timeout or the interrupt aborted a statement, returns the corresponding error.
    #[must_use]
    pub fn abort_error(&self) -> Option<QueryError> {
        let abort_reason = self.authorizer.abort_reason.load(Ordering::Relaxed);
        if abort_reason == AbortReason::TimedOut as u8 {
            Some(QueryError::Timeout(self.timeout.unwrap_or_default()))
        } else {
            (abort_reason == AbortReason::Interrupted as u8).then(|| StopReason::Interrupted.into())
        }
    }

    /// Returns the `SQLite` connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        self.database.connection()
    }

    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// Makes the `temp` schema read-only, too. Call this before preparing the user's SQL.
    ///
    /// # Errors
    /// Returns [`StoreError`] if `SQLite` rejects the setting.
    pub fn lock_temp(&self) -> Result<(), StoreError> {
        self.set_query_only(true)?;
        self.authorizer.is_locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the `temp` schema writable again for the engine, between two passes.
    ///
    /// # Errors
    /// Returns [`StoreError`] if `SQLite` rejects the setting.
    pub fn unlock_temp(&self) -> Result<(), StoreError> {
        self.authorizer.is_locked.store(false, Ordering::Relaxed);
        self.set_query_only(false)
    }

    fn set_query_only(&self, on: bool) -> Result<(), StoreError> {
        self.connection()
            .pragma_update(None, "query_only", on)
            .map_err(|e| self.database.to_store_error(&e))
    }

    /// Starts the time limit of a pass.
    pub fn start_timeout(&self) {
        let deadline = self.timeout.map_or(NO_DEADLINE, |t| {
            self.authorizer.elapsed_nanos().saturating_add(saturating_nanos(t))
        });
        self.authorizer.deadline.store(deadline, Ordering::Relaxed);
    }

    /// Starts a thread that aborts the running statement at its deadline, and ends when the
    /// returned sender is dropped. `SQLite` calls the progress handler only every thousand
    /// instructions, which can build many values of 100 MB, but it checks for interrupts at each
    /// row.
    fn start_watchdog(&self) -> Option<mpsc::Sender<()>> {
        self.timeout?;
        let (sender, ended) = mpsc::channel();
        let authorizer = Arc::clone(&self.authorizer);
        let statement = self.connection().get_interrupt_handle();
        let watch = move || {
            while ended.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if authorizer.has_timed_out() {
                    statement.interrupt();
                }
            }
        };
        thread::Builder::new().spawn(watch).ok().map(|_| sender)
    }

    /// Runs `work` with the time limit paused, so that the time in which the caller consumes rows
    /// does not count.
    pub fn with_timeout_paused<T>(&self, work: impl FnOnce() -> T) -> T {
        let deadline = self.authorizer.deadline.load(Ordering::Relaxed);
        if deadline == NO_DEADLINE {
            return work();
        }
        let began = self.authorizer.elapsed_nanos();
        self.authorizer.deadline.store(NO_DEADLINE, Ordering::Relaxed);
        let done = work();
        let deadline = deadline.saturating_add(self.authorizer.elapsed_nanos() - began);
        self.authorizer.deadline.store(deadline, Ordering::Relaxed);
        done
    }

    /// Runs `work` with a shorter time limit. Returns `None` if `work` exceeded it; afterwards the
    /// connection can be used again.
    ///
    /// # Errors
    /// Returns the error of `work`, unless the shorter limit caused it.
    pub fn with_time_limit<T, E>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let outer = self.authorizer.deadline.load(Ordering::Relaxed);
        let inner = self.authorizer.elapsed_nanos().saturating_add(saturating_nanos(limit));
        self.authorizer.deadline.store(inner.min(outer), Ordering::Relaxed);
        let done = work();
        self.authorizer.deadline.store(outer, Ordering::Relaxed);
        let reason = self.authorizer.abort_reason.load(Ordering::Relaxed);
        if done.is_err()
            && reason == AbortReason::TimedOut as u8
            && !self.authorizer.has_timed_out()
        {
            self.authorizer.abort_reason.store(AbortReason::NotAborted as u8, Ordering::Relaxed);
            return Ok(None);
        }
        done.map(Some)
    }

    /// Runs a statement whose parameters are bound, starts the [time limit](Self::start_timeout),
    /// and sends columns and rows to a sink. Returns the number of rows. Errors point into `sql`.
    ///
    /// # Errors
    /// Returns [`QueryError`] if `SQLite` or the sink fails, or if the query times out or is
    /// interrupted.
    pub fn stream_rows(
        &self,
        statement: &mut Statement<'_>,
        sql: &str,
        sink: &mut dyn RowSink,
    ) -> Result<u64, QueryError> {
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let width = names.len();
        sink.write_columns(&names).map_err(QueryError::Output)?;
        self.start_timeout();
        let _watchdog = self.start_watchdog();
        let mut rows = statement.raw_query();
        let mut count = 0;
        while let Some(row) = rows.next().map_err(|e| self.query_error(&e, sql))? {
            let values: Vec<ValueRef<'_>> =
                (0..width).map(|n| row.get_ref(n).unwrap_or(ValueRef::Null)).collect();
            self.with_timeout_paused(|| sink.write_row(&values)).map_err(QueryError::Output)?;
            count += 1;
        }
        sink.finish().map_err(QueryError::Output)?;
        Ok(count)
    }

    /// Converts an error of this connection to a denial, an abort or a database failure. Any other
    /// error becomes an error in `sql`, with its span if known.
    #[must_use]
    pub fn query_error(&self, error: &rusqlite::Error, sql: &str) -> QueryError {
        let abort_reason =
            self.authorizer.abort_reason.swap(AbortReason::NotAborted as u8, Ordering::Relaxed);
        let denial = self.authorizer.denial.lock().unwrap_or_else(PoisonError::into_inner).take();
        let span = match error {
            rusqlite::Error::SqlInputError { offset, .. } => {
                usize::try_from(*offset).ok().and_then(|at| find_token_span(sql, at))
            }
            _ => None,
        };
        if let Some(what) = denial {
            // Denials of functions begin with the quoted name.
            let help = if what.starts_with('`') {
                "leave this function out: it reads or changes more than the database"
            } else {
                "write one SELECT, WITH or VALUES over tables of the database"
            };
            return QueryError::in_sql(
                ONLY_READS,
                span.or_else(|| find_first_word_span(sql)),
                what,
                help,
            );
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted)
                if abort_reason == AbortReason::TimedOut as u8
                    || self.authorizer.has_timed_out() =>
            {
                QueryError::Timeout(self.timeout.unwrap_or_default())
            }
            Some(ErrorCode::OperationInterrupted) => StopReason::Interrupted.into(),
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::PermissionDenied,
            ) => self.database.to_store_error(error).into(),
            Some(ErrorCode::TooBig) => QueryError::in_sql(
                format!("a value is longer than {} bytes", MAX_VALUE_BYTES.load(Ordering::Relaxed)),
                None,
                "",
                "select a part of it with `substr`",
            ),
            Some(ErrorCode::OutOfMemory) => QueryError::in_sql(
                format!("SQLite would need more than {} MB of memory", MAX_HEAP_BYTES >> 20),
                None,
                "",
                "select fewer rows or shorter values, or aggregate them outside the query",
            ),
            _ => {
                let message = restore_ingredient_names(&describe_sqlite_error(error));
                // `SQLite` reports the name of an unknown table, but not its offset.
                let span = span.or_else(|| {
                    let end = sql.trim_end().len();
                    let is_at_end = message == ENDS_TOO_EARLY;
                    is_at_end
                        .then_some(end..end)
                        .or_else(|| find_clause_span(sql, &message))
                        .or_else(|| find_name_span(sql, extract_unknown_name(&message)))
                });
                let (span_in_sql, database) = (span.as_ref(), &self.database);
                let explained =
                    SqliteMessage { message: &message, sql, span: span_in_sql, database };
                let help = explained.suggest_fix();
                QueryError::in_sql(message, span, "", help)
            }
        }
    }
}

/// Installs the hooks that make a connection read-only and abortable.
fn install_hooks(
    connection: &mut Connection,
    authorizer: &Arc<Authorizer>,
    interrupt: watch::Receiver<bool>,
    is_private: bool,
) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false)?;
    // Forbid every way to attach a database.
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES.load(Ordering::Relaxed))?;
    // The limit applies to all connections of the process.
    connection.pragma_update(None, "hard_heap_limit", MAX_HEAP_BYTES)?;
    let watched_authorizer = Arc::clone(authorizer);
    connection.progress_handler(
        OPS_PER_CHECK,
        Some(move || {
            let abort_reason = if watched_authorizer.is_disarmed.load(Ordering::Relaxed) {
                return false;
            } else if *interrupt.borrow() {
                AbortReason::Interrupted
            } else if watched_authorizer.has_timed_out() {
                AbortReason::TimedOut
            } else {
                return false;
            };
            watched_authorizer.abort_reason.store(abort_reason as u8, Ordering::Relaxed);
            true
        }),
    )?;
    if is_private {
        return Ok(());
    }
    let authorizer = Arc::clone(authorizer);
    connection.authorizer(Some(move |access: AuthContext<'_>| {
        match find_denial_reason(&access, authorizer.is_locked.load(Ordering::Relaxed)) {
            None => Authorization::Allow,
            Some(what) => {
                // Keep the first denial, which concerns the user's text; later denials are its
                // consequences.
                authorizer
                    .denial
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(what);
                Authorization::Deny
            }
        }
    }))
}

impl Authorizer {
    fn elapsed_nanos(&self) -> u64 {
        saturating_nanos(self.origin.elapsed())
    }

    fn has_timed_out(&self) -> bool {
        let deadline = self.deadline.load(Ordering::Relaxed);
        let is_disarmed = self.is_disarmed.load(Ordering::Relaxed);
        !is_disarmed && deadline != NO_DEADLINE && self.elapsed_nanos() >= deadline
    }
}

/// Returns a duration in nanoseconds, capped at 584 years.
fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NO_DEADLINE)
}

/// Returns the reason why an action is denied, or `None` if it is allowed.
fn find_denial_reason(access: &AuthContext<'_>, locked: bool) -> Option<String> {
    let is_listed = |all: &[&str], name: &str| all.iter().any(|n| n.eq_ignore_ascii_case(name));
    match access.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => None,
        AuthAction::Function { function_name } => is_listed(&DENIED_FUNCTIONS, function_name)
            .then(|| format!("`{function_name}` is not allowed")),
        AuthAction::Pragma { pragma_name, pragma_value } => {
            let is_read_only = is_listed(&READ_PRAGMAS, pragma_name)
                || (is_listed(&ARGUMENTLESS_PRAGMAS, pragma_name) && pragma_value.is_none());
            let is_allowed = !locked && is_listed(&["query_only", "temp_store"], pragma_name);
            (!is_read_only && !is_allowed)
                .then(|| format!("the pragma `{pragma_name}` is not allowed"))
        }
        action => {
            let is_allowed =
                !locked && access.database_name == Some("temp") && is_temporary(&action);
            // A transaction has no schema, but it can write only to `temp`.
            let is_allowed = is_allowed
                || !locked
                    && matches!(
                        action,
                        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. }
                    );
            (!is_allowed).then(|| describe_action(&action))
        }
    }
}

/// Returns true if an action on the `temp` schema creates, fills or drops tables.
fn is_temporary(action: &AuthAction<'_>) -> bool {
    matches!(
        action,
        // A virtual table creates its shadow tables as `temp.name` without TEMP, so `SQLite`
        // reports the plain actions for them.
        AuthAction::CreateTable { .. }
            | AuthAction::CreateIndex { .. }
            | AuthAction::DropTable { .. }
            | AuthAction::DropIndex { .. }
            | AuthAction::CreateTempTable { .. }
            | AuthAction::CreateTempIndex { .. }
            | AuthAction::CreateTempView { .. }
            | AuthAction::CreateVtable { .. }
            | AuthAction::DropTempTable { .. }
            | AuthAction::DropTempIndex { .. }
            | AuthAction::DropTempView { .. }
            | AuthAction::DropVtable { .. }
            | AuthAction::Insert { .. }
            | AuthAction::Update { .. }
            | AuthAction::Delete { .. }
            | AuthAction::Reindex { .. }
            | AuthAction::Analyze { .. }
    )
}

/// Returns a description of a denied action.
fn describe_action(action: &AuthAction<'_>) -> String {
    match action {
        AuthAction::Insert { table_name } => format!("it would write to `{table_name}`"),
        AuthAction::Update { table_name, .. } => format!("it would change `{table_name}`"),
        AuthAction::Delete { table_name } => format!("it would delete from `{table_name}`"),
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => {
            "it would attach a database".to_owned()
        }
        _ => "it would change the database or its connection".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Connection, register_functions};
    use hqdl_sql::blendsql::runtime::CALL_AGGREGATES;

    #[test]
    fn every_own_aggregate_replaces_a_call() -> rusqlite::Result<()> {
        let connection = Connection::open_in_memory()?;
        register_functions(&connection)?;
        let sql =
            "SELECT DISTINCT name FROM pragma_function_list WHERE type <> 's' AND name LIKE 'hq%'";
        let mut statement = connection.prepare(sql)?;
        let names =
            statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
        let is_listed = |name: &String| CALL_AGGREGATES.iter().any(|found| found.function == name);
        assert!(!names.is_empty() && names.iter().all(is_listed), "{names:?}");
        Ok(())
    }
}
