//! Writing names and texts into SQL. Values of a model or a user never pass
//! through here: they are bound as parameters.

use rusqlite::Connection;
use rusqlite::config::DbConfig;

/// Makes a connection reject a double-quoted name that is no column, which `SQLite`
/// otherwise reads as a text. Only for connections that run no SQL and read no view of a
/// user: a view with `b = "x"` would fail.
///
/// # Errors
/// `SQLite`'s.
pub fn refuse_quoted_texts(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    Ok(())
}

/// A quoted identifier.
#[must_use]
pub fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quoted identifiers, joined by commas, each after `prefix`.
#[must_use]
pub fn names<'a>(prefix: &str, all: impl IntoIterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = all.into_iter().map(|n| format!("{prefix}{}", name(n))).collect();
    quoted.join(", ")
}

/// A quoted text literal, for names of things inside a view's text.
#[must_use]
pub fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
