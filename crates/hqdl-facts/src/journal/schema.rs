//! Checksum of the journal's schema. `SQLite` does not detect a flipped bit in a table's definition
//! or root page number: the table then appears empty or shows another table's rows.
//!
//! The checksum is the `user_version` of the file. If the schema does not match it, the definitions
//! must be those of the applied migrations, and the file must pass an integrity check, because
//! VACUUM moves pages.

use rusqlite::Connection;

use crate::checksum::{corruption_error, register_checksum_function};
use hqdl_database::migrate::apply_journal_migrations;
use hqdl_migrations::{JOURNAL, Migration};

/// Checks the schema against its checksum, if it has one.
pub(super) fn check_schema(connection: &Connection) -> rusqlite::Result<()> {
    // Use one snapshot, because another process may be migrating the journal.
    let snapshot = connection.unchecked_transaction()?;
    let stored = read_stored_checksum(&snapshot)?;
    if stored == 0 || stored == compute_schema_checksum(&snapshot)? {
        return Ok(());
    }
    let intact: String = snapshot.query_row("PRAGMA main.integrity_check(1)", [], |r| r.get(0))?;
    if intact != "ok" {
        // The first line may be a heading, so report the last one.
        return Err(corruption_error(intact.lines().last().unwrap_or_default()));
    }
    if read_definitions(&snapshot)? != build_expected_definitions(&snapshot)? {
        return Err(corruption_error("its schema does not match its checksum"));
    }
    Ok(())
}

/// Stores the checksum of the schema, if it has changed.
pub(super) fn store_schema_checksum(connection: &Connection) -> rusqlite::Result<()> {
    if read_stored_checksum(connection)? == compute_schema_checksum(connection)? {
        return Ok(());
    }
    let transaction = connection.unchecked_transaction()?;
    let checksum = compute_schema_checksum(&transaction)?;
    transaction.pragma_update(Some("main"), "user_version", checksum)?;
    transaction.commit()
}

fn read_stored_checksum(connection: &Connection) -> rusqlite::Result<i32> {
    connection.pragma_query_value(Some("main"), "user_version", |r| r.get(0))
}

/// Returns a nonzero checksum of the schema: its definitions and root page numbers.
fn compute_schema_checksum(connection: &Connection) -> rusqlite::Result<i32> {
    let mut select = connection.prepare(
        "SELECT hex(type), hex(name), hex(tbl_name), hex(rootpage), hex(sql) FROM main.sqlite_schema
         ORDER BY rowid",
    )?;
    let mut rows = select.query([])?;
    let mut hasher = blake3::Hasher::new();
    while let Some(row) = rows.next()? {
        for at in 0..5 {
            hasher.update(row.get::<_, String>(at)?.as_bytes()).update(b"\n");
        }
    }
    let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
    Ok(i32::from_le_bytes([a, b, c, d]) | 1)
}

/// Returns the schema's definitions, without the tables that ANALYZE creates.
fn read_definitions(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT hex(type) || ' ' || hex(name) || ' ' || hex(tbl_name) || ' ' || hex(sql)
               FROM main.sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\' ORDER BY 1";
    connection.prepare(sql)?.query_map([], |r| r.get(0))?.collect()
}

/// Returns the definitions that the applied migrations create.
fn build_expected_definitions(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let applied: Vec<i32> = connection
        .prepare("SELECT version FROM main.hqdl_migration")?
        .query_map([], |r| r.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let expected = Connection::open_in_memory()?;
    register_checksum_function(&expected)?;
    let migrations: Vec<Migration> =
        JOURNAL.iter().filter(|(number, _)| applied.contains(number)).copied().collect();
    apply_journal_migrations(&expected, &migrations)?;
    read_definitions(&expected)
}
