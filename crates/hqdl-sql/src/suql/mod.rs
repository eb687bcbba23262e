//! `SUQL`'s dialect: translates `PostgreSQL`'s syntax into `SQLite`'s.
//!
//! [`translate`] visits the tree of a query, which has `PostgreSQL`'s precedence, and collects the
//! edits that replace the constructs that `SQLite` does not have. All other bytes are copied, so that
//! every position can be mapped back to the original query. Arrays become JSON arrays. The result is
//! then parsed and prepared like any `SQLite` query.
//!
//! | syntax | translation |
//! |---|---|
//! | `'x' = ANY (c)`, `x <> ALL (c)` | membership of the array's elements |
//! | `ARRAY['a', 'b']`, `@>`, `<@`, `&&`, `= ARRAY[…]` | JSON arrays, compared as sets or as a whole |
//! | `unnest(c)`, in FROM or in SELECT | `json_each` |
//! | `ILIKE`, `LIKE`, `~`, `~*`, `SIMILAR TO` | LIKE with `PostgreSQL`'s rules (case-sensitive, `\` escapes), regular expressions |
//! | `x::type`, `CAST` | `SQLite`'s types; integers are rounded |
//! | `a || b * c`, `a = b IN (…)` | with parentheses where the precedence differs |
//! | `INTERVAL`, `DATE '…'`, `now()`, `EXTRACT` | `SQLite`'s date functions |
//! | `SELECT DISTINCT ON (a) … ORDER BY a, b` | the first row of each group, by `row_number()` |
//! | `to_char(d, 'Month YYYY')` | a function that formats dates and numbers |
//! | `LIMIT ALL`, `OFFSET` alone, `FETCH FIRST` | LIMIT and OFFSET |
//! | `ST_Distance_Sphere(a, b)` | a question, because texts have no coordinates |
//!
//! Without `NULLS FIRST` or `NULLS LAST`, NULLs sort first, as in `SQLite`.

mod array;
mod cast_target;
mod date_functions;
mod declared_type;
mod distinct_on;
mod expr;
mod function;
pub mod functions;
mod casts;
mod literal;
mod names;
mod operator;
mod select;
mod special_syntax;
mod tables;
mod translator;

pub use crate::translated::TranslatedQuery;
pub use function::has_function;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::parse::{ParsedQuery, parse_suql_query, scan_suql_query};
use crate::blendsql::vendors::Vendor;
use crate::translated::Edits;
use translator::Translator;

/// Columns of a database table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumns {
    /// Column names, in the order of `*`.
    pub names: Vec<String>,
    /// Declared types, in the same order; empty if they are unknown.
    pub types: Vec<String>,
    /// Whether the table has a `rowid`; views have none.
    pub has_rowid: bool,
}

/// Function that returns the columns of a table by name, or `None` if there is no such table.
pub type ColumnLookup<'c> = &'c dyn Fn(&str) -> Option<TableColumns>;

/// Stack size of the parser thread; unused stack is not allocated.
const STACK_BYTES: usize = 64 << 20;

/// Returns the columns of all tables whose name occurs in the query.
fn find_known_tables(
    sql: &str,
    tokens: &[Token],
    columns: ColumnLookup<'_>,
) -> HashMap<String, TableColumns> {
    let mut tables = HashMap::new();
    for token in tokens {
        if matches!(token.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name) {
            let name = token.unquoted_text(sql).to_lowercase();
            if let (Entry::Vacant(slot), true) = (tables.entry(name.clone()), !name.is_empty())
                && let Some(table) = columns(&name)
            {
                slot.insert(table);
            }
        }
    }
    tables
}

/// Translates a query into `SQLite`'s dialect without a database schema.
///
/// # Errors
/// Returns [`SqlError`] for invalid syntax, or a construct that `SQLite` does not support.
pub fn translate(sql: &str) -> Result<TranslatedQuery, SqlError> {
    translate_with_columns(sql, None, &|_| None)
}

/// Translates a query into `SQLite`'s dialect. `columns` looks up the columns of a table by name. The
/// calls of the vendor's functions are copied, because a later pass replaces them.
///
/// # Errors
/// Returns [`SqlError`] for invalid syntax, or a construct that `SQLite` does not support.
pub fn translate_with_columns(
    sql: &str,
    vendor: Option<Vendor>,
    columns: ColumnLookup<'_>,
) -> Result<TranslatedQuery, SqlError> {
    let scanned = scan_suql_query(sql, vendor)?;
    // Pass other statements through. They are rejected later, as in any dialect.
    if !scanned.begins_query(sql) {
        return Ok(Edits::default().apply_to(sql)?);
    }
    let tokens = scanned.tokens.clone();
    // Call `columns` before the thread starts, because it need not be `Sync`.
    let tables = find_known_tables(sql, &tokens, columns);
    let run = move || {
        let parsed = parse_suql_query(sql, scanned)?;
        let mut translator = Translator::new(sql, tokens, tables);
        translator.translate_statement(&parsed.query)?;
        Ok(translator.into_edits().apply_to(sql)?)
    };
    run_on_large_stack(run)
}

/// Parses a query in `SUQL`. The arguments of its calls are not parsed.
///
/// # Errors
/// Returns [`SqlError`] with the location of the syntax error.
pub fn parse_query(sql: &str, vendor: Option<Vendor>) -> Result<ParsedQuery, SqlError> {
    let scanned = scan_suql_query(sql, vendor)?;
    run_on_large_stack(|| parse_suql_query(sql, scanned))
}

/// Runs the parser, which is recursive, on a thread with enough stack, regardless of the caller's
/// stack size.
fn run_on_large_stack<T: Send>(
    run: impl FnOnce() -> Result<T, SqlError> + Send,
) -> Result<T, SqlError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, run).map(std::thread::ScopedJoinHandle::join) {
            Ok(result) => result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(SqlError::new(0..0, format!("cannot start a thread: {error}"), "")),
        }
    })
}
