//! Scanner for `SUQL`'s functions, which are calls without braces: `answer(text, 'question')` and
//! `summary(text)`, wherever an expression is allowed.

use super::ingredients::{AnswerFunction, SummaryFunction};
use super::lexer::{Brackets, Lexeme, Token};
use super::scan::Scanner;
use super::{Argument, Call, SqlError};

/// Question of `summary(text)`, as worded by `SUQL`.
const SUMMARY: &str = "what is the summary of this document?";

/// Keywords after which a name with parentheses is a table, not a function. FROM is not among them:
/// no such table exists, and the operands of `IS DISTINCT FROM` and `EXTRACT` follow it.
const TABLES: [&str; 3] = ["WITH", "RECURSIVE", "INTO"];

/// Arguments of a function, the calls in them, and the end offset.
type FunctionArguments = (Vec<Vec<Token>>, Vec<Call>, usize);

/// Returns true if the query may contain calls. Without calls, it is plain SQL.
#[must_use]
pub fn may_have_calls(sql: &str) -> bool {
    // A query that cannot be scanned counts, so that the parser reports the error.
    sql.contains("{{") || (mentions(sql) && super::scan(sql).map_or(true, |c| !c.is_empty()))
}

fn mentions(sql: &str) -> bool {
    let sql = sql.to_ascii_lowercase();
    sql.contains("answer") || sql.contains("summary")
}

impl Scanner<'_> {
    /// Reads the call that begins at `word`, if there is one; `previous` is the preceding token.
    pub(super) fn function(
        &mut self,
        word: Token,
        before: Option<Token>,
    ) -> Result<Option<Call>, SqlError> {
        let summary = word.is_word(self.sql, "summary");
        if !summary && !word.is_word(self.sql, "answer") {
            return Ok(None);
        }
        let table = before
            .is_some_and(|b| b.is(b'.') || TABLES.iter().any(|table| b.is_word(self.sql, table)));
        let start = self.at;
        let open = self.next(Brackets::Name)?.filter(|t| t.is(b'(') && !table);
        if open.is_none() || self.names_columns()? {
            self.at = start;
            return Ok(None);
        }
        self.deeper(word)?;
        let (pieces, inner, end) = self.arguments(word)?;
        self.done();
        let span = word.start..end;
        let said = |label: &str| {
            let name = word.text(self.sql).to_lowercase();
            let error =
                SqlError::new(span.clone(), format!("`{name}` has the wrong arguments"), label);
            error.help("write answer(text, 'question') or summary(text)")
        };
        let (text, question) = match (pieces.as_slice(), summary) {
            ([text], true) => (text, SUMMARY.to_owned()),
            ([text, question], false) => (text, self.question(question)?),
            (_, true) => return Err(said("expected one text")),
            (_, false) => return Err(said("expected a text and a question")),
        };
        let (Some(first), Some(last)) = (text.first(), text.last()) else {
            return Err(said("the text is missing"));
        };
        Ok(Some(Call {
            ingredient: if summary { &SummaryFunction } else { &AnswerFunction },
            values: vec![Argument::Sql(first.start..last.end)],
            span,
            question,
            options: None,
            return_type: None,
            substring: false,
            quantifier: None,
            regex: None,
            narrow: None,
            model: None,
            image: false,
            tuning: Vec::new(),
            inner,
            row: false,
        }))
    }

    /// Returns true if the parentheses just opened list the columns of a common table expression,
    /// i.e. `AS (…)` follows them. Does not advance the scanner.
    fn names_columns(&mut self) -> Result<bool, SqlError> {
        let start = self.at;
        let mut depth = 1;
        while depth > 0 {
            match self.next(Brackets::Name)? {
                Some(token) if token.is(b'(') => depth += 1,
                Some(token) if token.is(b')') => depth -= 1,
                Some(_) => {}
                None => break,
            }
        }
        let then = self.next(Brackets::Name)?.is_some_and(|t| t.is_word(self.sql, "AS"));
        let then = then
            && self.next(Brackets::Name)?.is_some_and(|t| {
                t.is(b'(') || t.is_word(self.sql, "NOT") || t.is_word(self.sql, "MATERIALIZED")
            });
        self.at = start;
        Ok(then)
    }

    /// Reads the arguments up to the closing parenthesis.
    fn arguments(&mut self, word: Token) -> Result<FunctionArguments, SqlError> {
        let (mut pieces, mut inner) = (vec![Vec::new()], Vec::new());
        let mut depth = 0_usize;
        let mut before = None;
        loop {
            let Some(token) = self.next(Brackets::Name)? else {
                return Err(SqlError::new(
                    word.span(),
                    format!("`{}` is never closed", word.text(self.sql)),
                    "this call has no `)`",
                ));
            };
            let last = before.replace(token);
            let call = match token.lexeme {
                Lexeme::Open => Some(self.call(token, false)?),
                _ => self.function(token, last)?,
            };
            let token = match call {
                Some(call) => {
                    let token = Token { lexeme: Lexeme::Call, end: call.span.end, ..token };
                    inner.push(call);
                    token
                }
                None => token,
            };
            match token.lexeme {
                Lexeme::Symbol(b'(') => depth += 1,
                Lexeme::Symbol(b')') if depth == 0 => {
                    if pieces.len() == 1 && pieces[0].is_empty() {
                        pieces.clear();
                    }
                    return Ok((pieces, inner, token.end));
                }
                Lexeme::Symbol(b')') => depth -= 1,
                Lexeme::Symbol(b',') if depth == 0 => {
                    pieces.push(Vec::new());
                    continue;
                }
                Lexeme::Close => {
                    return Err(SqlError::new(
                        word.start..token.end,
                        format!(
                            "`{}` is not closed before the end of the call around it",
                            word.text(self.sql)
                        ),
                        "no `)` before `}}`",
                    ));
                }
                _ => {}
            }
            if let Some(piece) = pieces.last_mut() {
                piece.push(token);
            }
        }
    }

    /// Parses the question, which must be a single string.
    fn question(&self, tokens: &[Token]) -> Result<String, SqlError> {
        let text = match tokens {
            [text] if text.lexeme == Lexeme::Text => text.content(self.sql),
            _ => String::new(),
        };
        if text.trim().is_empty() {
            let end = tokens.last().map_or(self.at, |t| t.end);
            let start = tokens.first().map_or(end.saturating_sub(1), |t| t.start);
            let error = SqlError::new(
                start..end,
                "the question of `answer` is not a text",
                "expected one text",
            );
            return Err(error.help("write answer(text, 'question')"));
        }
        Ok(text)
    }
}
