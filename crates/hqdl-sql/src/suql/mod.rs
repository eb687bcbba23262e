//! `SUQL`'s dialect: `PostgreSQL`'s spellings, brought into `SQLite`'s words.
//!
//! [`translate`] parses a query by `PostgreSQL`'s precedence and writes what
//! `SQLite` says otherwise; all other bytes pass through as they are, so that
//! every place leads back to the query as it was written. Arrays are JSON
//! arrays. What it writes is parsed and prepared by `SQLite` like any query.
//!
//! | written | runs as |
//! |---|---|
//! | `'x' = ANY (c)`, `x <> ALL (c)` | membership of the array's elements |
//! | `ARRAY['a', 'b']`, `@>`, `<@`, `&&`, `= ARRAY[…]` | JSON arrays, compared as sets or whole |
//! | `unnest(c)`, in FROM or in SELECT | `json_each` |
//! | `ILIKE`, `LIKE`, `~`, `~*`, `SIMILAR TO` | LIKE by `PostgreSQL`'s rules (case counts, `\` escapes), regular expressions |
//! | `x::type`, `CAST` | `SQLite`'s types; whole numbers are rounded |
//! | `a || b * c`, `a = b IN (…)` | with parentheses, where precedence differs |
//! | `INTERVAL`, `DATE '…'`, `now()`, `EXTRACT` | `SQLite`'s date functions |
//! | `SELECT DISTINCT ON (a) … ORDER BY a, b` | the first of each, by `row_number()` |
//! | `to_char(d, 'Month YYYY')` | its words, by a function |
//! | `LIMIT ALL`, `OFFSET` alone, `FETCH FIRST` | LIMIT and OFFSET |
//! | `ST_Distance_Sphere(a, b)` | a question: texts have no coordinates |
//!
//! NULLs are ordered as in `SQLite` (least) where the query does not say
//! `NULLS FIRST` or `NULLS LAST`.

mod array;
mod cast;
mod count;
mod day;
mod declared;
mod distinct_on;
mod expr;
mod from;
mod function;
pub mod functions;
mod kinds;
mod literal;
mod operator;
mod parser;
mod query;
mod star;
mod text;
mod to_char;
mod worded;

pub use star::{Columns, TableColumns};
pub use text::Translated;

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::blendsql::SqlError;
use crate::blendsql::lexer::{self, Brackets, Lexeme, Token};

/// Bytes of stack for a query; what is not used costs nothing.
const STACK: usize = 64 << 20;

/// What is known of the tables that a query may name.
fn known_tables(sql: &str, columns: Columns<'_>) -> HashMap<String, TableColumns> {
    let mut tables = HashMap::new();
    let mut at = 0;
    while let Ok(Some(token)) = lexer::next(sql, at, Brackets::List) {
        at = token.end;
        if matches!(token.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name) {
            let name = token.content(sql).to_lowercase();
            if let (Entry::Vacant(place), true) = (tables.entry(name.clone()), !name.is_empty())
                && let Some(table) = columns(&name)
            {
                place.insert(table);
            }
        }
    }
    tables
}

/// The query with blanks in the place of `public.` before a table and a name of it: the
/// schema of what is in no other.
fn without_schema(sql: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(sql);
    let (mut at, mut last) = (0, [None; 4]);
    while let Ok(Some(token)) = lexer::next(sql, at, Brackets::List) {
        at = token.end;
        last.rotate_left(1);
        last[3] = Some(token);
        let is_name = |t: Token| matches!(t.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name);
        if let [Some(schema), Some(dot), Some(table), Some(second)] = last
            && is_name(schema)
            && schema.content(sql).eq_ignore_ascii_case("public")
            && dot.is(b'.')
            && is_name(table)
            && second.is(b'.')
            && !sql[..schema.start].trim_end().ends_with('.')
        {
            let blanks = " ".repeat(dot.end - schema.start);
            text.to_mut().replace_range(schema.start..dot.end, &blanks);
        }
    }
    text
}

/// Brings a query into `SQLite`'s words; of a database that nothing is known of.
///
/// # Errors
/// [`SqlError`] at what cannot be read, or cannot be said in `SQLite`.
pub fn translate(sql: &str) -> Result<Translated, SqlError> {
    translate_over(sql, &|_| None)
}

/// The same over a database, of which `columns` says what columns a table has.
///
/// # Errors
/// [`SqlError`] at what cannot be read, or cannot be said in `SQLite`.
pub fn translate_over(sql: &str, columns: Columns<'_>) -> Result<Translated, SqlError> {
    let sql = without_schema(sql);
    let sql = sql.as_ref();
    // Asked before another thread is there.
    let rewritten = distinct_on::written(sql, columns)?;
    let tables = known_tables(sql, columns);
    let read = || {
        let in_words = |sql: &str| -> Result<Translated, SqlError> {
            let mut parser = parser::Parser::new(sql)?;
            parser.tables.clone_from(&tables);
            let text = parser.statement()?;
            Ok(Translated::of(sql, &text))
        };
        match rewritten {
            None => in_words(sql),
            Some(first) => match in_words(&first.sql) {
                Ok(second) => Ok(second.after(&first)),
                Err(error) => Err(SqlError { span: first.place(&error.span), ..error }),
            },
        }
    };
    // Where there is room for expressions as deep as they may be, whatever thread
    // the caller has.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        match thread.spawn_scoped(scope, read).map(std::thread::ScopedJoinHandle::join) {
            Ok(ended) => ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(SqlError::new(0..0, format!("cannot start a thread: {error}"), "")),
        }
    })
}
