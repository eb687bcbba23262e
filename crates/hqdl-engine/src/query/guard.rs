//! Read-only connection with time limit and interrupt that queries run on.
//!
//! The file is opened read-only and `query_only` is set. An authorizer denies everything except
//! reads, with lists of functions and pragmas. Until [`Guard::lock`] the engine may register
//! functions and create temporary tables. Nothing else is ever written.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Statement};
use tokio::sync::watch;

use super::statement::{ONLY_READS, first_word, token_at, word};
use super::{QueryError, Sink, math};
use hqdl_database::{Database, StoreError, message};
use hqdl_model::generate::Stopped;
use hqdl_spec::Catalog;
use hqdl_sql::blendsql::ingredients::{self, Which};
use hqdl_values::problem::nearest;

/// Number of `SQLite` VM instructions between two checks of the time limit: some tens of
/// microseconds.
const OPS: i32 = 1000;
/// Deadline of a connection without a time limit.
const NEVER: u64 = u64::MAX;

/// Maximum size of a value in this process, in bytes. It is needed because `SQLite` builds a value
/// in one step, which no timeout can interrupt.
static LONGEST: AtomicI32 = AtomicI32::new(128 << 20);

/// Sets the maximum size of a value for all guarded connections opened later, so that one client of
/// a server cannot use all memory.
pub fn limit_values(bytes: i32) {
    LONGEST.store(bytes, Ordering::Relaxed);
}

/// Functions that access something outside the database, in this build of `SQLite` or another.
const FUNCTIONS: [&str; 8] = [
    "edit",
    "eval",
    "fts3_tokenizer",
    "load_extension",
    "readfile",
    "system",
    "writefile",
    "zipfile",
];
/// Read-only pragmas, which are also available as `pragma_<name>` tables. Their argument never sets
/// anything.
const PRAGMAS: [&str; 16] = [
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
/// Pragmas that read without an argument and write with one.
const TELLING: [&str; 9] = [
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

/// A guarded read-only connection. It is used by one thread.
#[derive(Debug)]
pub struct Guard {
    database: Database,
    timeout: Option<Duration>,
    gate: Arc<Authorizer>,
}

/// State that the connection's hooks share with it.
#[derive(Debug)]
struct Authorizer {
    /// Whether temporary tables are read-only, too.
    locked: AtomicBool,
    /// Reason of the latest denial.
    refused: Mutex<Option<String>>,
    origin: Instant,
    /// Deadline of the statement, in nanoseconds after `origin`.
    deadline: AtomicU64,
    /// Reason why a statement was aborted: a [`Broken`].
    broken: AtomicU8,
    /// Whether time limit and interrupt are disabled.
    free: AtomicBool,
}

/// Reason why a statement was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    No,
    Late,
    Interrupted,
}

impl Guard {
    /// Opens a database under guard. It is unlocked: the engine creates its temporary tables and
    /// functions, and then calls [`lock`](Self::lock). A statement may run for `timeout`, counted
    /// from [`start`](Self::start), and is aborted when `interrupt` becomes true.
    ///
    /// # Errors
    /// [`StoreError`] if the database is missing, locked or not a database.
    pub fn open(
        path: &Path,
        timeout: Option<Duration>,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let guard = Self::bare(path, timeout, interrupt)?;
        guard.database.outline()?;
        let registered = math::register(guard.connection())
            .and_then(|()| hqdl_sql::suql::functions::register(guard.connection()));
        registered.map_err(|e| guard.database.error(&e))?;
        Ok(guard)
    }

    /// Opens a database under guard without the functions of queries, for other SQL of a client.
    /// The time limit starts now.
    ///
    /// # Errors
    /// [`StoreError`] if the database is missing, locked or not a database.
    pub fn watch(
        path: &Path,
        timeout: Option<Duration>,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let guard = Self::bare(path, timeout, interrupt)?;
        guard.start();
        Ok(guard)
    }

    fn bare(
        path: &Path,
        timeout: Option<Duration>,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let mut database = Database::open(path)?;
        let gate = Arc::new(Authorizer {
            locked: AtomicBool::new(false),
            refused: Mutex::new(None),
            origin: Instant::now(),
            deadline: AtomicU64::new(NEVER),
            broken: AtomicU8::new(Broken::No as u8),
            free: AtomicBool::new(false),
        });
        // With a server, the local database is a private one that no SQL of a client reaches.
        let own = database.url().is_some();
        arm(database.connection_mut(), &gate, interrupt, own)
            .map_err(|e| StoreError::from_sqlite(path, &e))?;
        Ok(Self { database, timeout, gate })
    }

    /// Returns a function that disables time limit and interrupt. It may be called from any thread.
    pub fn freeing(&self) -> impl Fn() + Send + Sync + 'static {
        let gate = Arc::clone(&self.gate);
        move || gate.free.store(true, Ordering::Relaxed)
    }

    /// Returns the reason if the timeout or the interrupt aborted a statement.
    #[must_use]
    pub fn broken(&self) -> Option<QueryError> {
        let broken = self.gate.broken.load(Ordering::Relaxed);
        if broken == Broken::Late as u8 {
            Some(QueryError::Timeout(self.timeout.unwrap_or_default()))
        } else {
            (broken == Broken::Interrupted as u8).then(|| Stopped::Interrupted.into())
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

    /// Makes the `temp` schema read-only, too. Call it before the user's SQL is prepared.
    ///
    /// # Errors
    /// [`StoreError`] if `SQLite` rejects the setting.
    pub fn lock(&self) -> Result<(), StoreError> {
        self.query_only(true)?;
        self.gate.locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the `temp` schema writable again for the engine, between two passes.
    ///
    /// # Errors
    /// [`StoreError`] if `SQLite` rejects the setting.
    pub fn unlock(&self) -> Result<(), StoreError> {
        self.gate.locked.store(false, Ordering::Relaxed);
        self.query_only(false)
    }

    fn query_only(&self, on: bool) -> Result<(), StoreError> {
        self.connection().pragma_update(None, "query_only", on).map_err(|e| self.database.error(&e))
    }

    /// Starts the time limit of a pass.
    pub fn start(&self) {
        let deadline = self.timeout.map_or(NEVER, |t| self.gate.now().saturating_add(nanos(t)));
        self.gate.deadline.store(deadline, Ordering::Relaxed);
    }

    /// Runs `work` with the time limit paused, so that a slow consumer of the rows does not count
    /// as a slow query.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        let deadline = self.gate.deadline.load(Ordering::Relaxed);
        if deadline == NEVER {
            return work();
        }
        let began = self.gate.now();
        let done = work();
        let deadline = deadline.saturating_add(self.gate.now() - began);
        self.gate.deadline.store(deadline, Ordering::Relaxed);
        done
    }

    /// Runs a statement whose parameters are bound, starts the [time limit](Self::start), and sends
    /// columns and rows to a sink. Returns the number of rows. Errors point into `sql`.
    ///
    /// # Errors
    /// [`QueryError`] of `SQLite`, the timeout, the interrupt or the sink.
    pub fn stream(
        &self,
        statement: &mut Statement<'_>,
        sql: &str,
        sink: &mut dyn Sink,
    ) -> Result<u64, QueryError> {
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let width = names.len();
        sink.columns(&names).map_err(QueryError::Output)?;
        self.start();
        let mut rows = statement.raw_query();
        let mut count = 0;
        while let Some(row) = rows.next().map_err(|e| self.error(&e, sql))? {
            let values: Vec<ValueRef<'_>> =
                (0..width).map(|n| row.get_ref(n).unwrap_or(ValueRef::Null)).collect();
            self.aside(|| sink.row(&values)).map_err(QueryError::Output)?;
            count += 1;
        }
        sink.finish().map_err(QueryError::Output)?;
        Ok(count)
    }

    /// Converts an error of this connection: a denial, an abort, a failure of the database, or else
    /// an error in `sql` with its span.
    #[must_use]
    pub fn error(&self, error: &rusqlite::Error, sql: &str) -> QueryError {
        let broken = self.gate.broken.swap(Broken::No as u8, Ordering::Relaxed);
        let refused = self.gate.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        let span = match error {
            rusqlite::Error::SqlInputError { offset, .. } => {
                usize::try_from(*offset).ok().and_then(|at| token_at(sql, at))
            }
            _ => None,
        };
        if let Some(what) = refused {
            let help = "write one SELECT, WITH or VALUES over tables of the database";
            return QueryError::sql(ONLY_READS, span.or_else(|| first_word(sql)), what, help);
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) if broken == Broken::Late as u8 => {
                QueryError::Timeout(self.timeout.unwrap_or_default())
            }
            Some(ErrorCode::OperationInterrupted) => Stopped::Interrupted.into(),
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::PermissionDenied,
            ) => self.database.error(error).into(),
            Some(ErrorCode::TooBig) => QueryError::sql(
                format!("a value is longer than {} bytes", LONGEST.load(Ordering::Relaxed)),
                None,
                "",
                "select a part of it with `substr`",
            ),
            _ => {
                let message = message(error);
                let help = self.meant(&message);
                // `SQLite` names an unknown table, but not its offset.
                let span = span.or_else(|| word(sql, unknown(&message)));
                QueryError::sql(message, span, "", help)
            }
        }
    }

    /// Returns a hint for a misspelt table or column.
    fn meant(&self, message: &str) -> String {
        let known: Vec<String> = match message.split_once(": ") {
            Some(("no such function", name)) => {
                let is = |i: &Which| i.name().eq_ignore_ascii_case(name);
                let found = ingredients::all().into_iter().find(is);
                return found.map_or_else(
                    || "use a function of SQLite; docs/reference/queries.md lists those of SUQL".to_owned(),
                    |found| format!("write the call in double braces: {{{{{}(…)}}}}", found.name()),
                );
            }
            Some(("no such table", _)) => self.database.tables(),
            Some(("no such column", name)) => {
                let mut tables = self.database.tables();
                // If the name is qualified by an existing table, suggest only its columns.
                let named = name.rsplit_once('.').map(|(of, _)| of);
                let is = |t: &String| named.is_some_and(|of| t.eq_ignore_ascii_case(of));
                if tables.iter().any(is) {
                    tables.retain(is);
                }
                let columns = tables.iter().filter_map(|t| self.database.columns(t)).flatten();
                columns.map(|(name, _)| name).collect()
            }
            _ if message.starts_with("near \"ILIKE\"") => {
                return "ILIKE is PostgreSQL syntax: use `--dialect suql`, or LIKE, which ignores the case of ASCII letters in SQLite"
                    .to_owned();
            }
            _ if message == "incomplete input" => {
                return "the query ends too early: complete it, as in SELECT name FROM city"
                    .to_owned();
            }
            _ => return String::new(),
        };
        let wrong = unknown(message);
        // `SQLite` rejects `t.c` although the table `t` has a column `c`.
        let table = message.strip_prefix("no such column: ").and_then(|name| name.rsplit_once('.'));
        if let Some((table, column)) = table
            && known.iter().any(|name| name.eq_ignore_ascii_case(column))
        {
            return format!("FROM has no table or alias `{table}`");
        }
        match (nearest(wrong, known.iter().map(String::as_str)), table) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, Some((table, _))) if self.database.columns(table).is_some() => {
                format!("`{table}` has the columns {}", first_names(&known))
            }
            (None, Some((table, _))) => {
                format!("`{table}` must be a table or an alias in FROM that has this column")
            }
            (None, None) if message.starts_with("no such table") && !known.is_empty() => {
                format!("the tables are {}", first_names(&known))
            }
            (None, None) => String::new(),
        }
    }
}

/// Returns the first names of a list, with a sign if there are more.
fn first_names(names: &[String]) -> String {
    const NAMED: usize = 8;
    let more = if names.len() > NAMED { " …" } else { "" };
    let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    format!("{}{more}", first.join(", "))
}

/// Returns the name at the end of an `SQLite` message, without qualifier and quotes.
fn unknown(message: &str) -> &str {
    let name = message.rsplit(": ").next().unwrap_or_default();
    name.rsplit('.').next().unwrap_or(name).trim_matches('"')
}

/// Makes a connection read-only and abortable.
fn arm(
    connection: &mut Connection,
    gate: &Arc<Authorizer>,
    interrupt: watch::Receiver<bool>,
    own: bool,
) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false)?;
    // Forbid every way to attach a database.
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST.load(Ordering::Relaxed))?;
    let watched = Arc::clone(gate);
    connection.progress_handler(
        OPS,
        Some(move || {
            let broken = if watched.free.load(Ordering::Relaxed) {
                return false;
            } else if *interrupt.borrow() {
                Broken::Interrupted
            } else if watched.is_late() {
                Broken::Late
            } else {
                return false;
            };
            watched.broken.store(broken as u8, Ordering::Relaxed);
            true
        }),
    )?;
    if own {
        return Ok(());
    }
    let gate = Arc::clone(gate);
    connection.authorizer(Some(move |asked: AuthContext<'_>| {
        match refusal(&asked, gate.locked.load(Ordering::Relaxed)) {
            None => Authorization::Allow,
            Some(what) => {
                // Keep the first denial: it is about the user's text, and the others follow from
                // it.
                gate.refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
                Authorization::Deny
            }
        }
    }))
}

impl Authorizer {
    fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    fn is_late(&self) -> bool {
        let deadline = self.deadline.load(Ordering::Relaxed);
        deadline != NEVER && self.now() >= deadline
    }
}

/// Returns a duration in nanoseconds, capped at 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// Returns the reason if an action is denied.
fn refusal(asked: &AuthContext<'_>, locked: bool) -> Option<String> {
    let named = |all: &[&str], name: &str| all.iter().any(|n| n.eq_ignore_ascii_case(name));
    match asked.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => None,
        AuthAction::Function { function_name } => {
            named(&FUNCTIONS, function_name).then(|| format!("`{function_name}` is not allowed"))
        }
        AuthAction::Pragma { pragma_name, pragma_value } => {
            let tells = named(&PRAGMAS, pragma_name)
                || (named(&TELLING, pragma_name) && pragma_value.is_none());
            let own = !locked && named(&["query_only", "temp_store"], pragma_name);
            (!tells && !own).then(|| format!("the pragma `{pragma_name}` is not allowed"))
        }
        action => {
            let own = !locked && asked.database_name == Some("temp") && is_temporary(&action);
            // A transaction has no schema, and only `temp` can be written in one.
            let own = own
                || !locked
                    && matches!(
                        action,
                        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. }
                    );
            (!own).then(|| words(&action))
        }
    }
}

/// Returns whether an action creates, fills or drops tables.
fn is_temporary(action: &AuthAction<'_>) -> bool {
    matches!(
        action,
        // A virtual table creates its shadow tables in `temp` under their plain names.
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
fn words(action: &AuthAction<'_>) -> String {
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
