//! Finds the calls in a query and splits each into its arguments' tokens.

pub(in crate::blendsql) mod call;

use crate::blendsql::argument::names_in;
use crate::blendsql::ingredients::{self, Which};
use crate::blendsql::lexer::{self, Brackets, Lexeme, Token};
use crate::blendsql::{Call, SqlError};
use hqdl_values::problem::nearest;

/// Maximum nesting depth of calls; each level is a recursion level of the scanner.
const DEEPEST: usize = 64;

/// Returns the outermost calls of a query in text order.
///
/// # Errors
/// [`SqlError`] at the first syntax error.
pub fn scan(sql: &str) -> Result<Vec<Call>, SqlError> {
    scan_with_tables(sql, &|_| false)
}

/// Same as [`scan`], with the database's table names. A string `'t::c'` is a column if the table
/// `t` exists, whatever the column's name is. If `t` has no such column, `SQLite` reports the
/// error.
///
/// # Errors
/// [`SqlError`] at the first syntax error.
pub fn scan_with_tables(sql: &str, is_table: &dyn Fn(&str) -> bool) -> Result<Vec<Call>, SqlError> {
    let mut scanner = Scanner { sql, is_table, at: 0, depth: 0 };
    let mut calls = Vec::new();
    let mut rows = RowsExpected::default();
    let mut before = None;
    while let Some(token) = scanner.next(Brackets::Name)? {
        let before = before.replace(token);
        if let Some(call) = scanner.function(token, before)? {
            calls.push(call);
            continue;
        }
        match token.lexeme {
            Lexeme::Open => calls.push(scanner.call(token, rows.expected())?),
            Lexeme::Close => {
                return Err(SqlError::new(
                    token.span(),
                    "this `}}` ends no call",
                    "no `{{` before it",
                ));
            }
            _ => rows.see(sql, token),
        }
    }
    Ok(calls)
}

/// A call split into its arguments, which are not parsed yet.
pub(in crate::blendsql) struct ScannedCall {
    /// The `{{` token.
    pub open: Token,
    /// Ingredient name.
    pub name: Token,
    pub ingredient: Which,
    pub row: bool,
    pub pieces: Vec<ArgumentText>,
    /// The `)` after the arguments.
    pub close: Token,
    /// Calls nested in the arguments.
    pub inner: Vec<Call>,
    /// End of `}}`.
    pub end: usize,
}

/// Tokens of one argument; never empty.
pub(in crate::blendsql) struct ArgumentText {
    /// Keyword of `keyword=…`.
    pub keyword: Option<Token>,
    pub tokens: Vec<Token>,
}

pub(in crate::blendsql) struct Scanner<'a> {
    pub sql: &'a str,
    /// Returns true if the database has a table of this name.
    is_table: &'a dyn Fn(&str) -> bool,
    /// Offset at which the next token is read.
    pub at: usize,
    depth: usize,
}

impl Scanner<'_> {
    pub(in crate::blendsql) fn next(
        &mut self,
        brackets: Brackets,
    ) -> Result<Option<Token>, SqlError> {
        let token = lexer::next(self.sql, self.at, brackets)?;
        self.at = token.map_or(self.sql.len(), |t| t.end);
        Ok(token)
    }

    /// Reads the next token of the call that begins at `open`.
    fn inside(&mut self, open: Token, brackets: Brackets) -> Result<Token, SqlError> {
        let token = self.next(brackets)?.ok_or_else(|| {
            SqlError::new(open.span(), "a call is never closed", "this call has no `}}`")
        })?;
        let is_column = matches!(token.lexeme, Lexeme::Text | Lexeme::Quoted)
            && names_in(&token.content(self.sql)).is_some_and(|(table, _)| (self.is_table)(&table));
        Ok(if is_column { Token { lexeme: Lexeme::OldColumn, ..token } } else { token })
    }

    /// Enters a nested call. Fails if the nesting is too deep.
    pub(in crate::blendsql) fn deeper(&mut self, open: Token) -> Result<(), SqlError> {
        if self.depth >= DEEPEST {
            return Err(SqlError::new(
                open.span(),
                format!("calls are nested more than {DEEPEST} levels deep"),
                "one too many",
            ));
        }
        self.depth += 1;
        Ok(())
    }

    /// Leaves a call.
    pub(in crate::blendsql) fn done(&mut self) {
        self.depth -= 1;
    }

    /// Reads the call whose `{{` has just been read.
    pub(in crate::blendsql) fn call(&mut self, open: Token, row: bool) -> Result<Call, SqlError> {
        self.deeper(open)?;
        let name = self.inside(open, Brackets::Name)?;
        let ingredient = ingredient(self.sql, open, name)?;
        let paren = self.inside(open, Brackets::Name)?;
        if !paren.is(b'(') {
            return Err(SqlError::new(
                paren.span(),
                format!("`{}` has no arguments", ingredient.name()),
                "expected `(`",
            ));
        }
        let (mut pieces, mut inner) = (Vec::new(), Vec::new());
        let close = loop {
            let (piece, end) = self.piece(open, paren, &mut inner)?;
            let last = end.is(b')');
            match piece {
                Some(piece) => pieces.push(piece),
                // An empty list and a trailing comma are allowed.
                None if last => break end,
                None => {
                    return Err(SqlError::new(
                        end.span(),
                        "an argument is missing",
                        "expected an argument before this comma",
                    ));
                }
            }
            if last {
                break end;
            }
        };
        let end = self.inside(open, Brackets::Name)?;
        if end.lexeme != Lexeme::Close {
            return Err(SqlError::new(
                end.span(),
                format!("unexpected text between `)` and `}}}}` of `{}`", ingredient.name()),
                "expected `}}`",
            )
            .help("write what you do with the answer after `}}`"));
        }
        self.done();
        call::read(
            self.sql,
            ScannedCall { open, name, ingredient, row, pieces, close, inner, end: end.end },
        )
    }

    /// Reads one argument and the `,` or `)` that ends it.
    fn piece(
        &mut self,
        open: Token,
        paren: Token,
        inner: &mut Vec<Call>,
    ) -> Result<(Option<ArgumentText>, Token), SqlError> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut nest: Vec<Token> = Vec::new();
        let mut rows = RowsExpected::default();
        let mut keyword = None;
        let mut brackets = Brackets::Name;
        let end = loop {
            if let (None, &[name, equals]) = (keyword, tokens.as_slice())
                && name.lexeme == Lexeme::Word
                && equals.is(b'=')
                && self.sql.as_bytes().get(self.at) != Some(&b'=')
            {
                keyword = Some(name);
                tokens.clear();
                if ingredients::keyword::takes_a_list(name.text(self.sql)) {
                    brackets = Brackets::List;
                }
            }
            let token = self.inside(open, brackets)?;
            // Only a list that begins with `[` has Python syntax throughout.
            if keyword.is_some() && tokens.is_empty() && !token.is(b'[') && !token.is(b'{') {
                brackets = Brackets::Name;
            }
            let nested = match brackets {
                Brackets::Name => self.function(token, tokens.last().copied())?,
                Brackets::List => None,
            };
            if let Some(nested) = nested {
                tokens.push(Token { lexeme: Lexeme::Call, end: nested.span.end, ..token });
                inner.push(nested);
                continue;
            }
            let token = match (token.lexeme, nest.last()) {
                // `}}` closes two dictionaries here, not the call.
                (Lexeme::Close, Some(brace)) if brace.is(b'{') => {
                    self.at = token.start + 1;
                    Token { lexeme: Lexeme::Symbol(b'}'), end: self.at, ..token }
                }
                (Lexeme::Close, within) => {
                    return Err(open_until_the_end(*within.unwrap_or(&paren), token));
                }
                // The comma is missing: no operand can follow here.
                (Lexeme::Word, None) if call::begins_argument(self.sql, &tokens, token) => {
                    self.at = token.start;
                    break Token {
                        lexeme: Lexeme::Symbol(b','),
                        start: token.start,
                        end: token.start,
                    };
                }
                _ => token,
            };
            match token.lexeme {
                Lexeme::Open => {
                    let nested = self.call(token, rows.expected())?;
                    tokens.push(Token {
                        lexeme: Lexeme::Call,
                        start: nested.span.start,
                        end: nested.span.end,
                    });
                    inner.push(nested);
                    continue;
                }
                Lexeme::Symbol(b',' | b')') if nest.is_empty() => break token,
                Lexeme::Symbol(symbol @ (b')' | b']' | b'}')) => {
                    let opened = nest.pop();
                    if opened.is_none_or(|o| !o.is(partner(symbol))) {
                        return Err(SqlError::new(
                            token.span(),
                            format!("`{}` closes nothing", char::from(symbol)),
                            match opened {
                                Some(o) => format!("a `{}` is open here", o.text(self.sql)),
                                None => String::from("nothing is open here"),
                            },
                        ));
                    }
                    tokens.push(token);
                }
                Lexeme::Symbol(b'(' | b'[' | b'{') => {
                    nest.push(token);
                    tokens.push(token);
                }
                _ => tokens.push(token),
            }
            rows.see(self.sql, token);
        };
        if let Some(keyword) = keyword.filter(|_| tokens.is_empty()) {
            return Err(SqlError::new(
                keyword.start..end.start,
                format!("`{}` has no value", keyword.text(self.sql)),
                "expected a value after `=`",
            ));
        }
        let piece = (!tokens.is_empty()).then_some(ArgumentText { keyword, tokens });
        Ok((piece, end))
    }
}

/// Finds the ingredient that the first word of a call names.
fn ingredient(sql: &str, open: Token, name: Token) -> Result<Which, SqlError> {
    let all = ingredients::all();
    let names = || all.iter().map(|i| i.name());
    let known = || format!("there are {}", names().collect::<Vec<_>>().join(", "));
    match name.lexeme {
        Lexeme::Word => {}
        Lexeme::Close => {
            let span = open.start..name.end;
            return Err(
                SqlError::new(span, "a call is empty", "expected an ingredient").help(known())
            );
        }
        _ => {
            let error = SqlError::new(name.span(), "a call names no ingredient", "expected a name");
            return Err(error.help(known()));
        }
    }
    let word = name.text(sql);
    if let Some(found) = all.iter().copied().find(|i| i.name().eq_ignore_ascii_case(word)) {
        return Ok(found);
    }
    let error =
        SqlError::new(name.span(), format!("there is no ingredient `{word}`"), "not an ingredient");
    Err(match nearest(word, names()) {
        Some(near) => error.suggest(near),
        None => error.help(known()),
    })
}

fn open_until_the_end(opened: Token, close: Token) -> SqlError {
    let (open, end) = match opened.lexeme {
        Lexeme::Symbol(b'[') => ("[", "]"),
        _ => ("(", ")"),
    };
    SqlError::new(
        opened.start..close.end,
        format!("`{open}` is not closed before the end of the call"),
        format!("no `{end}` before `}}}}`"),
    )
}

fn partner(close: u8) -> u8 {
    match close {
        b')' => b'(',
        b']' => b'[',
        _ => b'{',
    }
}

/// Tracks for each parenthesis depth whether `VALUES` expects a row next.
#[derive(Default)]
struct RowsExpected {
    outer: Vec<bool>,
    here: bool,
}

impl RowsExpected {
    fn expected(&self) -> bool {
        self.here
    }

    fn see(&mut self, sql: &str, token: Token) {
        match token.lexeme {
            Lexeme::Symbol(b'(' | b'[' | b'{') => {
                self.outer.push(self.here);
                self.here = false;
            }
            Lexeme::Symbol(b')' | b']' | b'}') => self.here = self.outer.pop().unwrap_or(false),
            // A comma separates two rows.
            Lexeme::Symbol(b',') => {}
            _ => self.here = token.is_word(sql, "VALUES"),
        }
    }
}
