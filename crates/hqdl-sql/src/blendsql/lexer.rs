//! Lexer for `SQLite`'s SQL, complete enough to distinguish string literals, comments and quoted
//! identifiers from everything else.
//!
//! All significant bytes are ASCII, so every token begins and ends at a char boundary.

use std::ops::Range;

use super::SqlError;

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Keyword or unquoted identifier.
    Word,
    /// String literal: `'…'`, or `PostgreSQL`'s `$$…$$`, `$tag$…$tag$` and `E'…'`.
    Text,
    /// `"…"`: an identifier in `SQLite`, often a string for users of `BlendSQL`.
    Quoted,
    /// Quoted identifier: `` `…` `` or `[…]`.
    Name,
    /// Number, including any letters that follow directly.
    Number,
    /// Parameter: `?`, `?1`, `:x`, `@x`, `$x`.
    Parameter,
    /// `{{`
    Open,
    /// `}}`
    Close,
    /// `::`
    Colons,
    /// A complete call that has already been parsed.
    Call,
    /// `'t::c'` within a call, if the database has the table.
    LegacyColumn,
    /// Any other byte.
    Symbol(u8),
}

/// A token with its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Kind of the token.
    pub lexeme: TokenKind,
    /// Offset of the token's first byte.
    pub start: usize,
    /// Offset after the token's last byte.
    pub end: usize,
}

impl Token {
    /// Returns the token's byte range.
    pub fn span(self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns true if the token is the single byte `symbol`.
    pub fn is_symbol(self, symbol: u8) -> bool {
        self.lexeme == TokenKind::Symbol(symbol)
    }

    /// Returns the token's source text.
    pub fn text(self, sql: &str) -> &str {
        sql.get(self.span()).unwrap_or_default()
    }

    /// Returns true if the token is the unquoted word `word`, ignoring case.
    pub fn is_word(self, sql: &str, word: &str) -> bool {
        self.lexeme == TokenKind::Word && self.text(sql).eq_ignore_ascii_case(word)
    }

    /// Returns the text of a string or identifier without its quotes, and other tokens unchanged.
    pub fn unquoted_text(self, sql: &str) -> String {
        let text = self.text(sql);
        match self.lexeme {
            TokenKind::Text if text.starts_with(['E', 'e']) => {
                unescape(text.get(2..text.len() - 1).unwrap_or_default())
            }
            TokenKind::Text | TokenKind::LegacyColumn if text.starts_with('$') => {
                let tag = text.get(1..).and_then(|rest| rest.find('$')).map_or(0, |end| end + 2);
                text.get(tag..text.len().saturating_sub(tag)).unwrap_or_default().to_owned()
            }
            TokenKind::Text | TokenKind::Quoted | TokenKind::Name | TokenKind::LegacyColumn => {
                unquote(text)
            }
            _ => text.to_owned(),
        }
    }
}

/// Removes surrounding quotes of any kind and unescapes doubled quotes inside them.
pub fn unquote(text: &str) -> String {
    let mut chars = text.chars();
    let (Some(open), Some(_)) = (chars.next(), chars.next_back()) else { return String::new() };
    let inside = chars.as_str();
    match open {
        '[' => inside.to_owned(),
        '"' => inside.replace("\"\"", "\""),
        '`' => inside.replace("``", "`"),
        _ => inside.replace("''", "'"),
    }
}

/// Decodes the escapes of an E'…' string.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            if c == '\'' {
                // Skip the second quote of a doubled quote.
                chars.next();
            }
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(other) => out.push(other),
            None => out.push('\\'),
        }
    }
    out
}

/// Returns the string E'…' of `PostgreSQL` that begins with `word`, or `word` if there is none. The
/// string ends at the first quote without a backslash before it.
///
/// # Errors
/// Returns [`SqlError`] for an unterminated string.
pub(super) fn extend_escaped_string(sql: &str, word: Token) -> Result<Token, SqlError> {
    let bytes = sql.as_bytes();
    if !word.is_word(sql, "E") || bytes.get(word.end) != Some(&b'\'') {
        return Ok(word);
    }
    let mut end = word.end + 1;
    while let Some(byte) = bytes.get(end) {
        end += match (byte, bytes.get(end + 1)) {
            (b'\\', _) | (b'\'', Some(b'\'')) => 2,
            (b'\'', _) => return Ok(Token { lexeme: TokenKind::Text, end: end + 1, ..word }),
            _ => 1,
        };
    }
    Err(unclosed_quote_error(bytes, word.end, "text", "'"))
}

/// Meaning of `[`: the start of a quoted identifier, as in `SQLite`, or of a list, as in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brackets {
    /// `[a name]`
    Name,
    /// `[a, list]`
    List,
}

/// Returns the next token at or after `at`, or `None` at the end of the text.
///
/// # Errors
/// Returns [`SqlError`] for an unterminated string or quoted identifier. An unterminated `/*`
/// comment extends to the end of the text, as in `SQLite`.
pub fn next_token(sql: &str, at: usize, brackets: Brackets) -> Result<Option<Token>, SqlError> {
    let bytes = sql.as_bytes();
    let start = skip_whitespace(bytes, at);
    let byte_at = |n: usize| bytes.get(start + n).copied();
    let Some(first) = byte_at(0) else { return Ok(None) };
    let token_until = |lexeme, end| Ok(Some(Token { lexeme, start, end }));
    if first == b'$'
        && let Some(end) = find_dollar_quoted_end(sql, start)
    {
        return token_until(TokenKind::Text, end);
    }
    match (first, byte_at(1)) {
        (b'\'', _) => token_until(TokenKind::Text, find_quoted_end(bytes, start, b'\'', "text")?),
        (b'"', _) => token_until(TokenKind::Quoted, find_quoted_end(bytes, start, b'"', "name")?),
        (b'`', _) => token_until(TokenKind::Name, find_quoted_end(bytes, start, b'`', "name")?),
        (b'[', _) if brackets == Brackets::Name => {
            match bytes.iter().skip(start).position(|b| *b == b']') {
                Some(length) => token_until(TokenKind::Name, start + length + 1),
                None => Err(unclosed_quote_error(bytes, start, "name", "]")),
            }
        }
        (b'{', Some(b'{')) => token_until(TokenKind::Open, start + 2),
        (b'}', Some(b'}')) => token_until(TokenKind::Close, start + 2),
        (b':', Some(b':')) => token_until(TokenKind::Colons, start + 2),
        (b'?', _) => token_until(
            TokenKind::Parameter,
            find_run_end(bytes, start + 1, |b| b.is_ascii_digit()),
        ),
        (b':' | b'@' | b'$', Some(next)) if is_word_byte(next) => {
            token_until(TokenKind::Parameter, find_run_end(bytes, start + 1, is_word_byte))
        }
        (b'0'..=b'9', _) | (b'.', Some(b'0'..=b'9')) => {
            token_until(TokenKind::Number, find_number_end(bytes, start))
        }
        (first, _) if is_word_byte(first) => {
            token_until(TokenKind::Word, find_run_end(bytes, start, is_word_byte))
        }
        (first, _) => token_until(TokenKind::Symbol(first), start + 1),
    }
}

/// Returns the tokens of a text, up to the first one that is invalid. The iterator does not show
/// whether it reached the end of the text; if a missing token matters, call [`next_token`].
pub fn read_tokens(sql: &str, brackets: Brackets) -> impl Iterator<Item = Token> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let token = next_token(sql, at, brackets).ok().flatten()?;
        at = token.end;
        Some(token)
    })
}

/// Returns true if a text contains the braces of a call outside of its strings, names and comments.
pub fn has_call_braces(sql: &str) -> bool {
    read_tokens(sql, Brackets::Name).any(|token| token.lexeme == TokenKind::Open)
}

/// Returns true if the outermost SELECT has an `ORDER BY` (outside of all parentheses).
///
/// # Errors
/// Returns [`SqlError`] for an unterminated string or quoted identifier.
pub fn has_outer_order_by(sql: &str) -> Result<bool, SqlError> {
    let (mut at, mut depth, mut after_order) = (0, 0_usize, false);
    while let Some(token) = next_token(sql, at, Brackets::Name)? {
        match token.lexeme {
            TokenKind::Symbol(b'(') => depth += 1,
            TokenKind::Symbol(b')') => depth = depth.saturating_sub(1),
            _ if depth == 0 && after_order && token.is_word(sql, "BY") => return Ok(true),
            _ => {}
        }
        after_order = token.is_word(sql, "ORDER");
        at = token.end;
    }
    Ok(false)
}

/// Returns the offset after the whitespace and comments at `at`.
fn skip_whitespace(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match (bytes.get(at), bytes.get(at + 1)) {
            (Some(b' ' | b'\t' | b'\n' | b'\r' | b'\x0c'), _) => at += 1,
            (Some(b'-'), Some(b'-')) => at = find_run_end(bytes, at, |b| b != b'\n'),
            (Some(b'/'), Some(b'*')) => {
                let inside = bytes.get(at + 2..).unwrap_or_default();
                let end = inside.windows(2).position(|pair| pair == b"*/");
                at = end.map_or(bytes.len(), |length| at + 2 + length + 2);
            }
            _ => return at,
        }
    }
}

/// Returns the end of the quoted token that begins at `start`.
fn find_quoted_end(bytes: &[u8], start: usize, quote: u8, noun: &str) -> Result<usize, SqlError> {
    let mut at = start + 1;
    loop {
        at = find_run_end(bytes, at, |b| b != quote);
        match (bytes.get(at), bytes.get(at + 1)) {
            (None, _) => {
                return Err(unclosed_quote_error(
                    bytes,
                    start,
                    noun,
                    &char::from(quote).to_string(),
                ));
            }
            (_, Some(next)) if *next == quote => at += 2,
            _ => return Ok(at + 1),
        }
    }
}

/// Returns the end of the string that begins with `$$` or `$tag$` at `start`. Returns `None` for a
/// parameter or an unterminated string.
fn find_dollar_quoted_end(sql: &str, start: usize) -> Option<usize> {
    let rest = sql.get(start..)?;
    let length = rest.get(1..)?.find('$')? + 2;
    let (tag, rest) = rest.split_at_checked(length)?;
    let name = &tag.as_bytes()[1..length - 1];
    let is_name = |b: &u8| is_word_byte(*b) && *b != b'$';
    if !name.iter().all(is_name) || name.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    Some(start + length + rest.find(tag)? + length)
}

fn unclosed_quote_error(bytes: &[u8], start: usize, noun: &str, closing: &str) -> SqlError {
    let opening = char::from(bytes.get(start).copied().unwrap_or_default());
    let error = SqlError::new(
        start..start + 1,
        format!("a quoted {noun} is never closed"),
        format!("this `{opening}` has no closing `{closing}`"),
    );
    if closing == "]" {
        return error;
    }
    error.with_help(format!("write a `{closing}` inside a quoted {noun} twice"))
}

/// Returns the end of a number, including a signed exponent and any letters that follow directly.
fn find_number_end(bytes: &[u8], start: usize) -> usize {
    let hex = matches!(bytes.get(start + 1), Some(b'x' | b'X'));
    let mut at = start;
    loop {
        at = find_run_end(bytes, at, |b| is_word_byte(b) || b == b'.');
        let after_e = matches!(bytes.get(at.wrapping_sub(1)), Some(b'e' | b'E'));
        let signed = matches!(bytes.get(at), Some(b'+' | b'-'));
        let digit = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        if hex || !after_e || !signed || !digit {
            return at;
        }
        at += 1;
    }
}

/// Returns true for bytes of an identifier. Like `SQLite`, treats every non-ASCII byte as a letter.
pub fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// Returns the end of the run of bytes at `at` that satisfy `is_part`.
fn find_run_end(bytes: &[u8], at: usize, is_part: impl Fn(u8) -> bool) -> usize {
    bytes.iter().skip(at).position(|b| !is_part(*b)).map_or(bytes.len(), |length| at + length)
}
