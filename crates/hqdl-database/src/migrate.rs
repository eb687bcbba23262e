//! Migrations of hqdl's own tables: `migrations/*/*.sql`, applied in the order of their numbers, in
//! one transaction. `PRAGMA user_version` belongs to the user, so the applied versions are stored
//! in a table.

use hqdl_migrations::{DATABASE, JOURNAL, Migration};
use rusqlite::{Connection, TransactionBehavior, ffi};

/// Migrates the bookkeeping of an expanded database to the current version.
///
/// # Errors
/// Fails with an error of `SQLite`.
pub fn database(connection: &Connection) -> rusqlite::Result<()> {
    apply(connection, DATABASE)
}

/// Migrates the journal to the current version.
///
/// # Errors
/// Fails with an error of `SQLite`.
pub fn journal(connection: &Connection) -> rusqlite::Result<()> {
    apply(connection, JOURNAL)
}

/// Returns the error for a database of a newer hqdl version, which this one cannot maintain.
fn newer(version: i32, known: i32) -> rusqlite::Error {
    let said = format!(
        "it has version {version}, but this hqdl supports versions up to {known}: use the hqdl that wrote it, or a newer one; nothing was changed"
    );
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_MISMATCH), Some(said))
}

fn apply(connection: &Connection, all: &[Migration]) -> rusqlite::Result<()> {
    let missing = |c: &Connection| -> rusqlite::Result<Vec<Migration>> {
        let exists: bool = c.query_row(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'hqdl_migration'",
            [],
            |row| row.get(0),
        )?;
        if !exists {
            return Ok(all.to_vec());
        }
        let done: Vec<i32> = c
            .prepare("SELECT version FROM hqdl_migration")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let known = all.last().map_or(0, |(n, _)| *n);
        if let Some(later) = done.iter().max().filter(|n| **n > known) {
            return Err(newer(*later, known));
        }
        Ok(all.iter().filter(|(n, _)| !done.contains(n)).copied().collect())
    };
    // In the usual case no lock is needed.
    if missing(connection)?.is_empty() {
        return Ok(());
    }
    let nested = !connection.is_autocommit();
    let transaction = if nested {
        None
    } else {
        Some(rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?)
    };
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS hqdl_migration (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    )?;
    for (number, sql) in missing(connection)? {
        connection.execute_batch(sql)?;
        connection.execute(
            "INSERT INTO hqdl_migration VALUES (?1, ?2)",
            (number, jiff::Timestamp::now().to_string()),
        )?;
    }
    transaction.map_or(Ok(()), rusqlite::Transaction::commit)
}
