//! The columns that `*` and `t.*` stand for in a SELECT that is written anew: those of
//! the tables behind FROM, where that names tables and nothing else.

use std::ops::Range;

use crate::blendsql::lexer::{Lexeme, Token};
use hqdl_values::sql::name;

/// What is known of a table of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumns {
    /// Its columns, as `*` has them.
    pub names: Vec<String>,
    /// What these are declared as, in the same order; empty where that is not known.
    pub types: Vec<String>,
    /// Whether each of its rows has a number by the name of `rowid`: views have none.
    pub has_rowid: bool,
}

/// The columns of a table of the database, by its name; `None` where there is none.
pub type Columns<'c> = &'c dyn Fn(&str) -> Option<TableColumns>;

/// Words that stand before or within a join.
const JOINS: [&str; 7] = ["JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER"];
/// What ends FROM.
const AFTER: [&str; 4] = ["WHERE", "GROUP", "HAVING", "WINDOW"];

/// A table behind FROM.
pub(super) struct StarTable {
    /// What the query calls it, as SQL.
    called: String,
    columns: Vec<String>,
}

/// The tables of `rows`, which begin with FROM; `None` where one is no table of the
/// database for certain, or columns of two are one.
pub(super) fn tables(
    sql: &str,
    tokens: &[Token],
    rows: Range<usize>,
    columns: Columns<'_>,
) -> Option<Vec<StarTable>> {
    let mut tables = Vec::new();
    let mut at = rows.start + 1;
    loop {
        let mut named = tokens.get(at).filter(|t| is_name(t))?;
        at += 1;
        if tokens.get(at).is_some_and(|t| t.is(b'.')) {
            named = tokens.get(at + 1).filter(|t| is_name(t))?;
            at += 2;
        }
        let table = named.content(sql);
        let mut called = table.clone();
        let more = at < rows.end;
        let next = |at: usize| tokens.get(at).filter(|_| at < rows.end);
        if more && tokens.get(at)?.is_word(sql, "AS") {
            at += 1;
            called = next(at).filter(|t| is_name(t))?.content(sql);
            at += 1;
        } else if let Some(alias) = next(at).filter(|t| is_name(t) && !ends(sql, t)) {
            called = alias.content(sql);
            at += 1;
        }
        if is_common(sql, tokens, &table) {
            return None;
        }
        tables.push(StarTable { called: name(&called), columns: columns(&table)?.names });
        // What joins it.
        if next(at).is_some_and(|t| t.is_word(sql, "ON")) {
            let mut depth = 0_usize;
            while let Some(token) = next(at) {
                match token.lexeme {
                    Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open => depth += 1,
                    Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close => {
                        depth = depth.checked_sub(1)?;
                    }
                    Lexeme::Symbol(b',') if depth == 0 => break,
                    _ if depth == 0 && ends(sql, token) && !token.is_word(sql, "ON") => break,
                    _ => {}
                }
                at += 1;
            }
        }
        match next(at) {
            None => return Some(tables),
            Some(token) if AFTER.iter().any(|word| token.is_word(sql, word)) => {
                return Some(tables);
            }
            Some(token) if token.is(b',') => at += 1,
            Some(_) => {
                let begin = at;
                while next(at).is_some_and(|t| JOINS.iter().any(|word| t.is_word(sql, word))) {
                    at += 1;
                }
                if at == begin {
                    return None;
                }
            }
        }
    }
}

/// The columns that `*` is, or `t.*`, as SQL and by name.
pub(super) fn columns(tables: &[StarTable], of: Option<&str>) -> Option<Vec<(String, String)>> {
    let is = |table: &&StarTable| {
        of.is_none_or(|of| table.called.trim_matches('"').eq_ignore_ascii_case(of))
    };
    let of_table = |table: &StarTable| {
        let column =
            |column: &String| (format!("{}.{}", table.called, name(column)), column.clone());
        table.columns.iter().map(column).collect::<Vec<_>>()
    };
    let all: Vec<(String, String)> = tables.iter().filter(is).flat_map(of_table).collect();
    (!all.is_empty()).then_some(all)
}

fn is_name(token: &Token) -> bool {
    matches!(token.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name)
}

/// Whether a word is none of a table's, but what comes behind it.
fn ends(sql: &str, token: &Token) -> bool {
    ["ON", "USING", "NATURAL"].iter().chain(&JOINS).chain(&AFTER).any(|w| token.is_word(sql, w))
}

/// Whether the query may call rows of its own so: `t AS (…`, `t (a) AS (…`.
fn is_common(sql: &str, tokens: &[Token], table: &str) -> bool {
    let names = |t: &Token| is_name(t) && t.content(sql).eq_ignore_ascii_case(table);
    let has_with = tokens.iter().any(|t| t.is_word(sql, "WITH"));
    has_with
        && tokens.windows(3).any(|three| {
            let [named, next, after] = three else { return false };
            names(named) && (next.is(b'(') || next.is_word(sql, "AS") && !is_name(after))
        })
}
