//! hqdl's own tables, kept up to date: `migrations/*/*.sql` by number, each once,
//! in one transaction. The user's `PRAGMA user_version` is the user's, so what
//! was applied is written in a table.

use hqdl_migrations::{DATABASE, JOURNAL, Migration};
use rusqlite::{Connection, TransactionBehavior, ffi};

/// Brings the bookkeeping of an expanded database up to date.
///
/// # Errors
/// `SQLite`'s.
pub fn database(connection: &Connection) -> rusqlite::Result<()> {
    apply(connection, DATABASE)
}

/// Brings the journal up to date.
///
/// # Errors
/// `SQLite`'s.
pub fn journal(connection: &Connection) -> rusqlite::Result<()> {
    apply(connection, JOURNAL)
}

/// What a newer program has written, an older one does not know how to keep.
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
    // The usual case takes no lock.
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
