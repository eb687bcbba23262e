//! Parses a value argument of a call: a column in legacy syntax, a query, or any expression.

use std::ops::Range;

use super::lexer::{Token, TokenKind, unquote};
use super::{Argument, SqlError};

/// Types of a cast `x::TYPE`. `SQLite` would convert a value that is cast to DATE to a number.
const CAST_TYPES: [&str; 11] = [
    "INT", "INTEGER", "BIGINT", "SMALLINT", "TEXT", "VARCHAR", "REAL", "FLOAT", "DOUBLE",
    "NUMERIC", "DECIMAL",
];

/// Returns true if the token is the type of a cast. It is then not the column of `table::column`.
pub(super) fn is_cast_type(sql: &str, token: Token) -> bool {
    CAST_TYPES.iter().any(|name| token.is_word(sql, name))
}

/// Returns the byte range from the first token to the last.
pub(super) fn token_span(tokens: &[Token]) -> Range<usize> {
    match (tokens.first(), tokens.last()) {
        (Some(first), Some(last)) => first.start..last.end,
        _ => 0..0,
    }
}

/// Parses a value. Returns `None` for Python's `None` and SQL's NULL.
pub(super) fn parse_argument(sql: &str, tokens: &[Token]) -> Result<Option<Argument>, SqlError> {
    if is_null_word(sql, tokens) {
        return Ok(None);
    }
    if begins_query(sql, tokens) {
        return Err(bare_query_error(tokens));
    }
    let (layers, inside) = strip_parens(tokens);
    if inside.is_empty() {
        return Err(SqlError::new(token_span(tokens), "`()` is empty", "expected a value"));
    }
    if layers > 0 && begins_query(sql, inside) {
        return Ok(Some(Argument::Query(token_span(inside))));
    }
    Ok(Some(match parse_legacy_column(sql, inside) {
        Some((table, column)) => {
            Argument::Column { table: Some(table), column, span: token_span(tokens) }
        }
        None => Argument::Sql(token_span(tokens)),
    }))
}

/// Parses a join column. A string must name a column in the legacy syntax `t::c`.
pub(super) fn parse_join_column(sql: &str, tokens: &[Token]) -> Result<Option<Argument>, SqlError> {
    let [text] = tokens else { return parse_argument(sql, tokens) };
    match split_legacy_column(&text.unquoted_text(sql)) {
        Some((table, column)) if matches!(text.lexeme, TokenKind::Text | TokenKind::Quoted) => {
            Ok(Some(Argument::Column { table: Some(table), column, span: text.span() }))
        }
        None if text.lexeme == TokenKind::Text => {
            let error = SqlError::new(text.span(), "a text is not a column", "expected a column");
            Err(error.with_help("write t.c or 't::c'"))
        }
        _ => parse_argument(sql, tokens),
    }
}

/// Returns true if the only token is `None` or `NULL`.
pub(super) fn is_null_word(sql: &str, tokens: &[Token]) -> bool {
    matches!(tokens, [word] if word.is_word(sql, "none") || word.is_word(sql, "null"))
}

pub(super) fn begins_query(sql: &str, tokens: &[Token]) -> bool {
    let Some(first) = tokens.first() else { return false };
    // A column can be named `with`.
    let continues = matches!(tokens.get(1), Some(t) if !matches!(t.lexeme, TokenKind::Symbol(_)));
    first.is_word(sql, "SELECT")
        || first.is_word(sql, "VALUES") && tokens.len() > 1
        || first.is_word(sql, "WITH") && continues
}

pub(super) fn bare_query_error(tokens: &[Token]) -> SqlError {
    SqlError::new(
        token_span(tokens),
        "a query as an argument needs parentheses",
        "expected `(` before",
    )
    .with_help("write (SELECT …)")
}

/// Strips the pairs of parentheses that enclose all tokens. Returns the number of pairs and the
/// tokens inside them.
pub(super) fn strip_parens(tokens: &[Token]) -> (usize, &[Token]) {
    let leading = tokens.iter().take_while(|t| t.is_symbol(b'(')).count();
    // Index of the closing parenthesis that matches each leading `(`.
    let mut closes = vec![0; leading];
    let mut open = Vec::new();
    for (n, token) in tokens.iter().enumerate() {
        if token.is_symbol(b'(') {
            open.push(n);
        } else if token.is_symbol(b')')
            && let Some(close) = open.pop().and_then(|o| closes.get_mut(o))
        {
            *close = n;
        }
    }
    let layers =
        closes.iter().enumerate().take_while(|(n, c)| **c > 0 && **c + n + 1 == tokens.len());
    let layers = layers.count();
    (layers, tokens.get(layers..tokens.len() - layers).unwrap_or_default())
}

/// Parses a column in legacy syntax, quoted or bare. Returns the table and column names, or `None`
/// if the tokens are anything else.
pub(super) fn parse_legacy_column(sql: &str, tokens: &[Token]) -> Option<(String, String)> {
    match tokens {
        [column] if column.lexeme == TokenKind::LegacyColumn => {
            split_legacy_column(&column.unquoted_text(sql))
        }
        [text] if matches!(text.lexeme, TokenKind::Text | TokenKind::Quoted) => {
            parse_column_string(&text.unquoted_text(sql))
        }
        [table, colons, column]
            if is_name(*table)
                && colons.lexeme == TokenKind::Colons
                && is_name(*column)
                && !is_cast_type(sql, *column) =>
        {
            Some((table.unquoted_text(sql), column.unquoted_text(sql)))
        }
        _ => None,
    }
}

/// Returns true if the token can be the name of a table or column.
pub(super) fn is_name(token: Token) -> bool {
    matches!(token.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name)
}

/// Parses `t::c` within a string. Names may contain apostrophes, but a table name with both an
/// apostrophe and whitespace looks like a sentence and is rejected.
fn parse_column_string(text: &str) -> Option<(String, String)> {
    let (table, column) = text.split_once("::")?;
    let looks_like_sentence = table.contains('\'') && table.trim().contains(char::is_whitespace);
    let table = parse_name(table).filter(|_| !looks_like_sentence)?;
    Some((table, parse_name(column)?))
}

/// Splits the legacy syntax `t::c` into table and column name without restricting the names.
/// Returns `None` if there is no `::` or a name is empty.
#[must_use]
pub fn split_legacy_column(text: &str) -> Option<(String, String)> {
    let (table, column) = text.split_once("::")?;
    let name = |text: &str| {
        let text = text.trim();
        if is_quoted(text) { unquote(text) } else { text.to_owned() }
    };
    let (table, column) = (name(table), name(column));
    (!table.is_empty() && !column.is_empty()).then_some((table, column))
}

/// Parses one side of `::`: a quoted name, or an unquoted name that does not look like a sentence.
fn parse_name(text: &str) -> Option<String> {
    let text = text.trim();
    if is_quoted(text) {
        return Some(unquote(text)).filter(|name| !name.is_empty());
    }
    let is_forbidden = |c: char| matches!(c, '"' | '`' | '?' | '!' | ';' | '{' | '}' | '\n' | '\r');
    (!text.is_empty() && !text.contains("::") && !text.contains(is_forbidden))
        .then(|| text.to_owned())
}

/// Returns true if the text is a single quoted identifier.
fn is_quoted(text: &str) -> bool {
    let strip_quotes = |open, close| text.strip_prefix(open)?.strip_suffix(close);
    let quotes = [('"', '"'), ('`', '`'), ('[', ']')];
    quotes.iter().find_map(|(open, close)| Some((strip_quotes(*open, *close)?, close))).is_some_and(
        |(inside, close)| !inside.replace(&format!("{close}{close}"), "").contains(*close),
    )
}
