//! Finds matching brackets in tokens, and the tokens between them.

use crate::blendsql::lexer::{Token, TokenKind};

/// Returns the index of the bracket that closes the bracket at the first token; 0 if the first
/// token is not a bracket, and `None` if the bracket is not closed.
fn find_closing_bracket(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().position(|token| {
        match token.lexeme {
            TokenKind::Symbol(b'(' | b'[' | b'{') => depth += 1,
            TokenKind::Symbol(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })
}

/// Splits tokens at the commas outside of all brackets. Skips empty parts.
pub(super) fn split_at_commas(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut begin, mut n) = (Vec::new(), 0, 0);
    while n < tokens.len() {
        if tokens[n].is_symbol(b',') {
            parts.push(&tokens[begin..n]);
            begin = n + 1;
        }
        n += find_closing_bracket(&tokens[n..]).unwrap_or(0) + 1;
    }
    parts.push(&tokens[begin..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns the tokens between brackets that enclose everything, such as `(…)` or `PROMPT(…)`.
/// `word` is the word before the brackets. Returns `None` if there are no such brackets.
pub(super) fn strip_brackets<'t>(
    sql: &str,
    tokens: &'t [Token],
    word: Option<&str>,
    open: u8,
) -> Option<&'t [Token]> {
    let rest = match word {
        Some(word) => tokens.split_first().filter(|(first, _)| first.is_word(sql, word))?.1,
        None => tokens,
    };
    rest.first().filter(|first| first.is_symbol(open))?;
    let close = find_closing_bracket(rest)?;
    (close + 1 == rest.len()).then(|| &rest[1..close])
}

/// Splits tokens at each `||` outside of all brackets and of `CASE … END`.
pub(super) fn split_at_pipes<'t>(sql: &str, tokens: &'t [Token]) -> Vec<&'t [Token]> {
    let (mut parts, mut begin, mut n, mut cases) = (Vec::new(), 0, 0, 0_usize);
    while n < tokens.len() {
        let is_pipe = |n: usize| tokens.get(n).is_some_and(|token| token.is_symbol(b'|'));
        if tokens[n].is_word(sql, "CASE") {
            cases += 1;
        } else if tokens[n].is_word(sql, "END") {
            cases = cases.saturating_sub(1);
        }
        if cases == 0 && is_pipe(n) && is_pipe(n + 1) {
            parts.push(&tokens[begin..n]);
            begin = n + 2;
            n += 1;
        }
        n += find_closing_bracket(&tokens[n..]).unwrap_or(0) + 1;
    }
    parts.push(&tokens[begin..]);
    parts.retain(|part| !part.is_empty());
    parts
}
