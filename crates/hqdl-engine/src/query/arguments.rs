//! Reads a call of an ingredient from its tokens: splits it at its commas and matches its arguments
//! by keyword or position.

use std::ops::Range;

use super::QueryError;
use hqdl_sql::blendsql::lexer::{Lexeme, Token};
use hqdl_values::problem::nearest;

/// A call, split at its commas.
pub(super) struct CallText<'t> {
    pub(super) text: &'t str,
    pub(super) open: Token,
    pub(super) name: Token,
    pub(super) paren: Token,
    pub(super) pieces: Vec<ArgumentPiece>,
    /// Offset after `}}`.
    pub(super) end: usize,
}

/// Names of an argument; messages use the first one.
pub(super) type Names<'n> = &'n [&'n str];

/// Lists the arguments by their first names.
fn listed(arguments: &[Names<'_>]) -> String {
    let names: Vec<&str> = arguments.iter().filter_map(|names| names.first().copied()).collect();
    names.join(", ")
}

/// An argument of a call.
#[derive(Clone)]
pub(super) struct ArgumentPiece {
    pub(super) keyword: Option<Token>,
    pub(super) tokens: Vec<Token>,
    /// Span with its keyword and the comma after it.
    pub(super) whole: Range<usize>,
}

impl ArgumentPiece {
    pub(super) fn span(&self) -> Range<usize> {
        let first = self.tokens.first().map_or(self.whole.start, |t| t.start);
        first..self.tokens.last().map_or(first, |t| t.end)
    }

    /// Returns the content if the argument is a text, such as a question.
    pub(super) fn words(&self, text: &str) -> Option<String> {
        match self.tokens.as_slice() {
            [one] if one.lexeme == Lexeme::Text => Some(one.content(text)),
            _ => None,
        }
    }

    /// Returns the content if the argument is a text or a number.
    pub(super) fn literal(&self, text: &str) -> Option<String> {
        match self.tokens.as_slice() {
            [one] if one.lexeme == Lexeme::Text => {
                Some(one.content(text)).filter(|t| !t.contains("::"))
            }
            [one] if one.lexeme == Lexeme::Number => Some(one.text(text).to_owned()),
            [minus, one] if minus.is(b'-') && one.lexeme == Lexeme::Number => {
                Some(format!("-{}", one.text(text)))
            }
            _ => None,
        }
    }
}

impl<'t> CallText<'t> {
    /// Reads the call that the `n`th token opens; `None` if it is not closed.
    pub(super) fn read(text: &'t str, tokens: &[Token], n: usize) -> Option<Self> {
        let [open, name, paren] = *tokens.get(n..n + 3)? else { return None };
        let mut pieces = Vec::new();
        let (mut depth, mut begin) = (0_usize, n + 3);
        for at in n + 3..tokens.len() {
            let token = tokens[at];
            match token.lexeme {
                Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open => depth += 1,
                Lexeme::Symbol(b')') if depth == 0 => {
                    pieces.extend(Self::piece(tokens.get(begin..at)?, None));
                    let last = tokens.get(at + 1).filter(|t| t.lexeme == Lexeme::Close)?;
                    return Some(Self { text, open, name, paren, pieces, end: last.end });
                }
                Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close => {
                    depth = depth.checked_sub(1)?;
                }
                Lexeme::Symbol(b',') if depth == 0 => {
                    pieces.extend(Self::piece(tokens.get(begin..at)?, Some(token)));
                    begin = at + 1;
                }
                _ => {}
            }
        }
        None
    }

    fn piece(tokens: &[Token], comma: Option<Token>) -> Option<ArgumentPiece> {
        let (first, last) = (tokens.first()?, tokens.last()?);
        let whole = first.start..comma.map_or(last.end, |c| c.end);
        let named = matches!(tokens, [name, equals, next, ..]
            if name.lexeme == Lexeme::Word && equals.is(b'=') && !next.is(b'='));
        let skip = if named { 2 } else { 0 };
        Some(ArgumentPiece {
            keyword: named.then_some(*first),
            tokens: tokens[skip..].to_vec(),
            whole,
        })
    }

    pub(super) fn error(&self, message: String, label: &str, help: &str) -> QueryError {
        QueryError::sql(message, Some(self.name.span()), label, help)
    }

    pub(super) fn says(&self, keyword: &str) -> bool {
        self.pieces.iter().any(|p| p.keyword.is_some_and(|k| k.is_word(self.text, keyword)))
    }

    pub(super) fn needs(&self, what: &str) -> QueryError {
        let name = self.name.text(self.text);
        self.error(format!("`{name}` needs {what}"), "in this call", "")
    }

    /// Matches arguments by keyword or position; each may have several names. Also returns those
    /// with unknown keywords.
    pub(super) fn given(
        &self,
        arguments: &[Names<'_>],
    ) -> Result<(Vec<Option<&ArgumentPiece>>, Vec<&ArgumentPiece>), QueryError> {
        let mut given: Vec<Option<&ArgumentPiece>> = vec![None; arguments.len()];
        let (mut places, mut others) = (0..arguments.len(), Vec::new());
        for piece in &self.pieces {
            let place = match piece.keyword {
                None => places.next().ok_or_else(|| {
                    let name = self.name.text(self.text);
                    let message = format!("`{name}` takes at most {}", listed(arguments));
                    QueryError::sql(message, Some(piece.span()), "one too many", "")
                })?,
                Some(keyword) => {
                    let is =
                        |names: &Names<'_>| names.iter().any(|n| keyword.is_word(self.text, n));
                    match arguments.iter().position(is) {
                        Some(place) => place,
                        None => {
                            others.push(piece);
                            continue;
                        }
                    }
                }
            };
            if given[place].replace(piece).is_some() {
                let message = format!("`{}` appears twice", arguments[place][0]);
                return Err(QueryError::sql(message, Some(piece.span()), "second time", ""));
            }
        }
        Ok((given, others))
    }

    /// Matches arguments by keyword or position, and rejects those with unknown keywords.
    pub(super) fn only<const N: usize>(
        &self,
        arguments: [Names<'_>; N],
    ) -> Result<[Option<&ArgumentPiece>; N], QueryError> {
        let (given, others) = self.given(&arguments)?;
        if let Some(keyword) = others.first().and_then(|other| other.keyword) {
            let (name, word) = (self.name.text(self.text), keyword.text(self.text));
            let near = nearest(word, arguments.iter().map(|names| names[0]));
            let near = near.map_or(String::new(), |near| format!("did you mean `{near}=`? "));
            return Err(QueryError::sql(
                format!("`{name}` has no argument `{word}`"),
                Some(keyword.span()),
                "not an argument",
                format!("{near}its arguments are {}", listed(&arguments)),
            ));
        }
        let mut given = given.into_iter();
        Ok(std::array::from_fn(|_| given.next().flatten()))
    }
}
