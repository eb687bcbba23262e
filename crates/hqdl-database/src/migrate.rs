//! Migrations of hqdl's own tables: `migrations/*/*.sql`, applied in the order of their numbers, in
//! one transaction. `PRAGMA user_version` belongs to the user, so the applied versions are stored
//! in a table.

use hqdl_migrations::{DATABASE, JOURNAL, Migration};
use rusqlite::{Connection, TransactionBehavior, ffi};

/// Migrates the bookkeeping of an expanded database to the current version.
///
/// # Errors
/// Fails with an error of `SQLite`.
pub fn migrate_database(connection: &Connection) -> rusqlite::Result<()> {
    apply_missing(connection, DATABASE)
}

/// Migrates the journal to the current version.
///
/// # Errors
/// Fails with an error of `SQLite`.
pub fn migrate_journal(connection: &Connection) -> rusqlite::Result<()> {
    apply_missing(connection, JOURNAL)
}

/// Returns the error for a database of a newer hqdl version, which this one cannot maintain.
fn newer_version_error(version: i32, known: i32) -> rusqlite::Error {
    let message = format!(
        "it has version {version}, but this hqdl supports versions up to {known}: use the hqdl that wrote it, or a newer one; nothing was changed"
    );
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_MISMATCH), Some(message))
}

fn apply_missing(connection: &Connection, migrations: &[Migration]) -> rusqlite::Result<()> {
    let find_missing = |c: &Connection| -> rusqlite::Result<Vec<Migration>> {
        let exists: bool = c.query_row(
            "SELECT count(*) FROM sqlite_schema WHERE name = 'hqdl_migration'",
            [],
            |row| row.get(0),
        )?;
        if !exists {
            return Ok(migrations.to_vec());
        }
        let applied: Vec<i32> = c
            .prepare("SELECT version FROM hqdl_migration")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let newest = migrations.last().map_or(0, |(n, _)| *n);
        if let Some(later) = applied.iter().max().filter(|n| **n > newest) {
            return Err(newer_version_error(*later, newest));
        }
        Ok(migrations.iter().filter(|(n, _)| !applied.contains(n)).copied().collect())
    };
    // In the usual case no lock is needed.
    if find_missing(connection)?.is_empty() {
        return Ok(());
    }
    let is_nested = !connection.is_autocommit();
    let transaction = if is_nested {
        None
    } else {
        Some(rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?)
    };
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS hqdl_migration (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    )?;
    for (number, sql) in find_missing(connection)? {
        connection.execute_batch(sql)?;
        connection.execute(
            "INSERT INTO hqdl_migration VALUES (?1, ?2)",
            (number, jiff::Timestamp::now().to_string()),
        )?;
    }
    transaction.map_or(Ok(()), rusqlite::Transaction::commit)
}
