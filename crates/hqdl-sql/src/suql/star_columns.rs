//! Expands `*` and `t.*` when a SELECT is rewritten. Only a FROM clause that consists of database
//! tables is supported.

use std::ops::Range;

use crate::blendsql::lexer::{Lexeme, Token};
use hqdl_values::sql::quote_name;

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

/// Function that returns the columns of the table with a name, or `None` if there is no such table.
pub type ColumnLookup<'c> = &'c dyn Fn(&str) -> Option<TableColumns>;

/// Keywords of a join.
const JOIN_WORDS: [&str; 7] = ["JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER"];
/// Keywords of the clauses after FROM.
const CLAUSES_AFTER_FROM: [&str; 4] = ["WHERE", "GROUP", "HAVING", "WINDOW"];

/// A table of a FROM clause.
pub(super) struct StarTable {
    /// Its name or alias in the query, as SQL.
    name_sql: String,
    columns: Vec<String>,
}

/// Returns the tables of a FROM clause; `rows` are its tokens. Returns `None` if one of them might
/// not be a database table, or if a join merges columns.
pub(super) fn from_tables(
    sql: &str,
    tokens: &[Token],
    rows: Range<usize>,
    columns: ColumnLookup<'_>,
) -> Option<Vec<StarTable>> {
    let mut tables = Vec::new();
    let mut at = rows.start + 1;
    loop {
        let mut name_token = tokens.get(at).filter(|t| is_name(t))?;
        at += 1;
        if tokens.get(at).is_some_and(|t| t.is_symbol(b'.')) {
            name_token = tokens.get(at + 1).filter(|t| is_name(t))?;
            at += 2;
        }
        let table = name_token.unquoted_text(sql);
        let mut query_name = table.clone();
        let has_more = at < rows.end;
        let next = |at: usize| tokens.get(at).filter(|_| at < rows.end);
        if has_more && tokens.get(at)?.is_word(sql, "AS") {
            at += 1;
            query_name = next(at).filter(|t| is_name(t))?.unquoted_text(sql);
            at += 1;
        } else if let Some(alias) = next(at).filter(|t| is_name(t) && !ends_table(sql, t)) {
            query_name = alias.unquoted_text(sql);
            at += 1;
        }
        if may_be_cte(sql, tokens, &table) {
            return None;
        }
        tables
            .push(StarTable { name_sql: quote_name(&query_name), columns: columns(&table)?.names });
        // Skip the join condition.
        if next(at).is_some_and(|t| t.is_word(sql, "ON")) {
            let mut depth = 0_usize;
            while let Some(token) = next(at) {
                match token.lexeme {
                    Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open => depth += 1,
                    Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close => {
                        depth = depth.checked_sub(1)?;
                    }
                    Lexeme::Symbol(b',') if depth == 0 => break,
                    _ if depth == 0 && ends_table(sql, token) && !token.is_word(sql, "ON") => break,
                    _ => {}
                }
                at += 1;
            }
        }
        match next(at) {
            None => return Some(tables),
            Some(token) if CLAUSES_AFTER_FROM.iter().any(|word| token.is_word(sql, word)) => {
                return Some(tables);
            }
            Some(token) if token.is_symbol(b',') => at += 1,
            Some(_) => {
                let begin = at;
                while next(at).is_some_and(|t| JOIN_WORDS.iter().any(|word| t.is_word(sql, word))) {
                    at += 1;
                }
                if at == begin {
                    return None;
                }
            }
        }
    }
}

/// Returns the columns of `*` or `t.*`, each as SQL and as a name.
pub(super) fn star_columns(
    tables: &[StarTable],
    of: Option<&str>,
) -> Option<Vec<(String, String)>> {
    let is = |table: &&StarTable| {
        of.is_none_or(|of| table.name_sql.trim_matches('"').eq_ignore_ascii_case(of))
    };
    let of_table = |table: &StarTable| {
        let column = |column: &String| {
            (format!("{}.{}", table.name_sql, quote_name(column)), column.clone())
        };
        table.columns.iter().map(column).collect::<Vec<_>>()
    };
    let all: Vec<(String, String)> = tables.iter().filter(is).flat_map(of_table).collect();
    (!all.is_empty()).then_some(all)
}

fn is_name(token: &Token) -> bool {
    matches!(token.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name)
}

/// Returns true if a word that follows a table is not its alias.
fn ends_table(sql: &str, token: &Token) -> bool {
    ["ON", "USING", "NATURAL"]
        .iter()
        .chain(&JOIN_WORDS)
        .chain(&CLAUSES_AFTER_FROM)
        .any(|w| token.is_word(sql, w))
}

/// Returns true if the query may define a common table expression of this name: `t AS (…`, `t (a)
/// AS (…`.
fn may_be_cte(sql: &str, tokens: &[Token], table: &str) -> bool {
    let is_named = |t: &Token| is_name(t) && t.unquoted_text(sql).eq_ignore_ascii_case(table);
    let has_with = tokens.iter().any(|t| t.is_word(sql, "WITH"));
    has_with
        && tokens.windows(3).any(|three| {
            let [name_token, next, after] = three else { return false };
            is_named(name_token)
                && (next.is_symbol(b'(') || next.is_word(sql, "AS") && !is_name(after))
        })
}
