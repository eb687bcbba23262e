//! Finds double-quoted names that `SQLite` reads as texts because there is no such column
//! (<https://www.sqlite.org/quirks.html>, section 8). A misspelled column then becomes a constant.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error};

use hqdl_sql::blendsql::lexer::{self, Brackets, Token, TokenKind};
use hqdl_values::sql;

/// Returns a note for each double-quoted name that `SQLite` reads as a text.
pub(in crate::query) fn describe_quoted_texts(
    statement: &str,
    connection: &Connection,
) -> Vec<String> {
    let max_names = find_quoted_tokens(statement).len();
    if max_names == 0 || connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false).is_err()
    {
        return Vec::new();
    }
    let (mut statement, mut names) = (statement.to_owned(), Vec::new());
    // Each iteration finds one double-quoted name that `SQLite` reads as a text.
    for _ in 0..max_names {
        let Err(Error::SqlInputError { offset, .. }) = connection.prepare(&statement).map(drop)
        else {
            break;
        };
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let Some(token) =
            find_quoted_tokens(&statement).into_iter().find(|token| token.start == at)
        else {
            break;
        };
        let name = token.unquoted_text(&statement);
        statement.replace_range(token.span(), &sql::quote_text(&name));
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // Restore the default, because the user's statement and the views may depend on it.
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, true);
    let note = |name: &String| {
        let text = sql::quote_text(name);
        format!(
            "there is no column \"{name}\" here, so SQLite reads it as the text {text}: if you mean the text, write {text}"
        )
    };
    names.iter().map(note).collect()
}

fn find_quoted_tokens(statement: &str) -> Vec<Token> {
    let tokens = lexer::read_tokens(statement, Brackets::Name);
    tokens.filter(|token| token.lexeme == TokenKind::Quoted).collect()
}
