//! hqdl's own tables, kept up to date: `migrations/*/*.sql` in order, each once,
//! in one transaction. The user's `PRAGMA user_version` is the user's, so what
//! was applied is written in a table.

use rusqlite::{Connection, TransactionBehavior};

const DATABASE: [&str; 2] = [
    include_str!("../../migrations/database/0001_bookkeeping.sql"),
    include_str!("../../migrations/database/0002_standing.sql"),
];
const JOURNAL: [&str; 7] = [
    include_str!("../../migrations/journal/0001_facts.sql"),
    include_str!("../../migrations/journal/0002_batches.sql"),
    include_str!("../../migrations/journal/0003_restarts.sql"),
    include_str!("../../migrations/journal/0004_questions.sql"),
    include_str!("../../migrations/journal/0005_changed.sql"),
    include_str!("../../migrations/journal/0006_sessions.sql"),
    include_str!("../../migrations/journal/0012_indexes.sql"),
];

/// Brings the bookkeeping of an expanded database up to date.
///
/// # Errors
/// `SQLite`'s.
pub fn database(connection: &Connection) -> rusqlite::Result<()> {
    apply(connection, &DATABASE)
}

/// Brings the journal up to date.
///
/// # Errors
/// `SQLite`'s.
pub fn journal(connection: &Connection) -> rusqlite::Result<()> {
    apply(connection, &JOURNAL)
}

fn apply(connection: &Connection, all: &[&str]) -> rusqlite::Result<()> {
    let version = |c: &Connection| -> rusqlite::Result<usize> {
        let exists: bool = c.query_row(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'hqdl_migration'",
            [],
            |row| row.get(0),
        )?;
        if !exists {
            return Ok(0);
        }
        c.query_row("SELECT coalesce(max(version), 0) FROM hqdl_migration", [], |row| row.get(0))
    };
    // The usual case takes no lock.
    if version(connection)? >= all.len() {
        return Ok(());
    }
    let nested = !connection.is_autocommit();
    let transaction = if nested {
        None
    } else {
        Some(rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?)
    };
    let done = version(connection)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS hqdl_migration (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    )?;
    for (n, sql) in all.iter().enumerate().skip(done) {
        connection.execute_batch(sql)?;
        connection.execute(
            "INSERT INTO hqdl_migration VALUES (?1, ?2)",
            (n + 1, jiff::Timestamp::now().to_string()),
        )?;
    }
    transaction.map_or(Ok(()), rusqlite::Transaction::commit)
}
