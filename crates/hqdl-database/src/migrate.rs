//! Migrations of hqdl's own tables: `migrations/*/*.sql`, applied in the order of their numbers, in
//! one transaction. `PRAGMA user_version` belongs to the user, so an expanded database stores its
//! version in `hqdl_object`, and the journal in `hqdl_migration`.

use hqdl_migrations::{DATABASE, JOURNAL, Migration};
use rusqlite::{Connection, TransactionBehavior, ffi};

/// Temporary view that presents the tables of versions before 6 as the current `hqdl_object`, so
/// that a database can be read without migrating it. The view has no inputs, layout or checksums,
/// so queries read the facts instead of the published tables, and a run publishes again.
const EARLIER_TABLES: &str = "CREATE TEMP VIEW hqdl_object AS
    SELECT o.name, o.type, o.expansion, e.spec, e.key, e.columns, NULL AS layout, e.rows,
      e.published_at, NULL AS inputs, NULL AS checksums
    FROM main.hqdl_object AS o
    LEFT JOIN main.hqdl_expansion AS e ON o.type = 'table' AND e.name = o.name";

/// hqdl's own tables, ending with the table of expansion names. The tables are dropped together
/// with the last expansion, after the views `hqdl_evidence` and `hqdl_cell`.
pub(crate) const OWN_TABLES: [&str; 4] =
    ["hqdl_edit", "hqdl_record", "hqdl_completion", "hqdl_object"];

/// Migrates the bookkeeping of an expanded database to the current version.
///
/// # Errors
/// Fails with `SQLite`'s error if a migration fails, or with an error if a newer version of hqdl
/// wrote the tables.
pub fn migrate_database(connection: &Connection) -> rusqlite::Result<()> {
    let newest = DATABASE.last().map_or(0, |(n, _)| *n);
    let missing_from = |c: &Connection| match read_database_version(c)? {
        version if version > newest => Err(newer_version_error(version, newest)),
        version => Ok(version),
    };
    // If the tables are up to date, no lock is needed.
    if missing_from(connection)? == newest {
        return Ok(());
    }
    run_in_transaction(connection, |c| {
        c.execute_batch("DROP VIEW IF EXISTS temp.hqdl_object")?;
        let version = missing_from(c)?;
        for (_, sql) in DATABASE.iter().filter(|(n, _)| *n > version) {
            c.execute_batch(sql)?;
        }
        let insert = "INSERT OR REPLACE INTO hqdl_object (name, type, expansion)
                      VALUES ('hqdl_version', 'version', ?1)";
        c.execute(insert, [newest.to_string()]).map(drop)
    })
}

/// Creates the temporary view through which an earlier version's tables can be read.
pub(crate) fn create_compatibility_view(connection: &Connection) -> rusqlite::Result<()> {
    if !has_table(connection, "hqdl_expansion")? {
        return Ok(());
    }
    connection.execute_batch(EARLIER_TABLES)
}

/// Returns the version of hqdl's tables in an expanded database; 0 if there are none.
fn read_database_version(c: &Connection) -> rusqlite::Result<i32> {
    let select = if has_table(c, "hqdl_migration")? {
        "SELECT max(version) FROM hqdl_migration"
    } else if has_table(c, "hqdl_object")? {
        "SELECT CAST(max(expansion) AS INTEGER) FROM main.hqdl_object WHERE type = 'version'"
    } else {
        return Ok(0);
    };
    c.query_row(select, [], |row| row.get::<_, Option<i32>>(0)).map(Option::unwrap_or_default)
}

fn has_table(c: &Connection, name: &str) -> rusqlite::Result<bool> {
    c.prepare("SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?1")?.exists([name])
}

/// Runs `migrate` in the open transaction, or in a new one if none is open.
fn run_in_transaction(
    connection: &Connection,
    migrate: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    if !connection.is_autocommit() {
        return migrate(connection);
    }
    let transaction =
        rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    migrate(&transaction)?;
    transaction.commit()
}

/// Returns the error for a database written by a newer version of hqdl.
fn newer_version_error(version: i32, known: i32) -> rusqlite::Error {
    let message = format!(
        "a newer hqdl wrote it (version {version}; this hqdl supports versions up to {known}); nothing was changed"
    );
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_MISMATCH), Some(message))
}

/// Migrates the journal to the current version.
///
/// # Errors
/// Fails with `SQLite`'s error if the journal cannot be read or a migration fails.
pub fn migrate_journal(connection: &Connection) -> rusqlite::Result<()> {
    let find_missing = |c: &Connection| -> rusqlite::Result<Vec<Migration>> {
        if !has_table(c, "hqdl_migration")? {
            return Ok(JOURNAL.to_vec());
        }
        let applied: Vec<i32> = c
            .prepare("SELECT version FROM hqdl_migration")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let newest = JOURNAL.last().map_or(0, |(n, _)| *n);
        if let Some(later) = applied.iter().max().filter(|n| **n > newest) {
            return Err(newer_version_error(*later, newest));
        }
        Ok(JOURNAL.iter().filter(|(n, _)| !applied.contains(n)).copied().collect())
    };
    // If no migration is missing, no lock is needed.
    if find_missing(connection)?.is_empty() {
        return Ok(());
    }
    run_in_transaction(connection, |c| apply_journal_migrations(c, &find_missing(c)?))
}

/// Applies migrations to a journal, and records them in it.
///
/// # Errors
/// Fails with `SQLite`'s error if a migration fails.
pub fn apply_journal_migrations(c: &Connection, migrations: &[Migration]) -> rusqlite::Result<()> {
    c.execute_batch(
        "CREATE TABLE IF NOT EXISTS hqdl_migration (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    )?;
    for (number, sql) in migrations {
        c.execute_batch(sql)?;
        c.execute(
            "INSERT INTO hqdl_migration VALUES (?1, ?2)",
            (number, jiff::Timestamp::now().to_string()),
        )?;
    }
    Ok(())
}
