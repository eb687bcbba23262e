//! Quotes names and texts for use in SQL. Values from a model or a user never pass through these
//! functions; they are bound as parameters.

use rusqlite::Connection;
use rusqlite::config::DbConfig;

/// Makes a connection reject a double-quoted name that is not a column, which `SQLite` otherwise
/// treats as a string literal.
///
/// Use this only for connections that neither run a user's SQL nor read a user's views: a view with
/// `b = "x"` would fail.
///
/// # Errors
/// Fails if `SQLite` rejects the settings.
pub fn reject_quoted_texts(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    Ok(())
}

/// Returns a quoted identifier.
#[must_use]
pub fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns quoted identifiers, each preceded by `prefix`, separated by commas.
#[must_use]
pub fn quote_names<'a>(prefix: &str, names: impl IntoIterator<Item = &'a String>) -> String {
    let quoted: Vec<String> =
        names.into_iter().map(|n| format!("{prefix}{}", quote_name(n))).collect();
    quoted.join(", ")
}

/// Returns a quoted text literal, for names in the SQL text of a view.
#[must_use]
pub fn quote_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
