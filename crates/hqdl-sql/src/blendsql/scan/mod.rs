//! Finds the calls in a query and splits each into its arguments' tokens.

mod blocking;
pub(in crate::blendsql) mod call;
mod macro_call;
mod vendor_call;

use crate::blendsql::argument::{split_legacy_column, token_span};
use crate::blendsql::ingredients::{self, IngredientRef};
use crate::blendsql::lexer::{self, Brackets, Token, TokenKind};
use crate::blendsql::macros::{FindMacro, MacroSignature, WrittenArgument, find_macro_ingredient};
use crate::blendsql::vendors::Vendor;
use crate::blendsql::{Call, SqlError};
use hqdl_values::format::format_name_list;
use hqdl_values::problem::find_nearest;

/// Maximum nesting depth of calls; each level is a recursion level of the scanner.
const MAX_DEPTH: usize = 64;

/// Returns the outermost calls of a query in text order.
///
/// # Errors
/// Returns [`SqlError`] at the first syntax error.
pub fn scan_calls(sql: &str) -> Result<Vec<Call>, SqlError> {
    scan_query(sql, ScanSettings::default()).map(|found| found.calls)
}

/// Grammar of a query's text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::blendsql) enum Grammar {
    Sqlite,
    /// The grammar of a `PostgreSQL` server, to which the text is sent.
    Postgres,
    /// `PostgreSQL`'s syntax, which is translated to `SQLite`'s. `answer` and `summary` are functions
    /// until then.
    Suql,
}

/// Settings that decide what a call is.
#[derive(Clone, Copy)]
pub(in crate::blendsql) struct ScanSettings<'a> {
    /// Returns true if the database has a table of this name.
    pub is_table: &'a dyn Fn(&str) -> bool,
    /// Macros that a call may name; `None` if macros are not accepted.
    pub find_macro: Option<FindMacro<'a>>,
    /// Engine whose functions are calls, if any.
    pub vendor: Option<Vendor>,
    pub grammar: Grammar,
}

impl Default for ScanSettings<'_> {
    fn default() -> Self {
        Self { is_table: &|_| false, find_macro: None, vendor: None, grammar: Grammar::Sqlite }
    }
}

/// Tokens of a query and its outermost calls.
pub(crate) struct ScannedQuery {
    /// All tokens in text order, including those inside the calls.
    pub tokens: Vec<Token>,
    pub calls: Vec<Call>,
}

impl ScannedQuery {
    /// Returns true if a query or a call begins the text, possibly in parentheses.
    pub fn begins_query(&self, sql: &str) -> bool {
        let first = self.tokens.iter().find(|token| !token.is_symbol(b'('));
        let words = ["SELECT", "TABLE", "VALUES", "WITH"];
        first.is_some_and(|first| {
            self.calls.iter().any(|call| call.span.start == first.start)
                || words.iter().any(|word| first.is_word(sql, word))
        })
    }
}

/// Reads all tokens of a query, and its calls.
pub(in crate::blendsql) fn scan_query(
    sql: &str,
    settings: ScanSettings<'_>,
) -> Result<ScannedQuery, SqlError> {
    let (tokens, at, depth) = (Vec::new(), 0, 0);
    let ScanSettings { is_table, find_macro, vendor, grammar } = settings;
    let mut scanner = Scanner { sql, is_table, find_macro, vendor, grammar, tokens, at, depth };
    let brackets = vendor.map_or(Brackets::Name, Vendor::brackets);
    let mut calls = Vec::new();
    let mut rows = ValuesRowTracker::default();
    let mut previous = None;
    while let Some(token) = scanner.next_token(brackets)? {
        let previous = previous.replace(token);
        if let Some(call) = scanner.read_function_call(token, previous)? {
            calls.push(call);
            continue;
        }
        match token.lexeme {
            TokenKind::Open => calls.push(scanner.read_call(token, rows.is_row_expected())?),
            TokenKind::Close => {
                return Err(SqlError::new(
                    token.span(),
                    "this `}}` ends no call",
                    "no `{{` before it",
                ));
            }
            _ => rows.observe_token(sql, token),
        }
    }
    Ok(ScannedQuery { tokens: scanner.tokens, calls })
}

/// A call split into its arguments, which are not parsed yet.
pub(in crate::blendsql) struct ScannedCall {
    /// The `{{` token.
    pub open: Token,
    /// Ingredient name.
    pub name: Token,
    pub ingredient: IngredientRef,
    pub is_values_row: bool,
    pub arguments: Vec<WrittenArgument>,
    /// The `)` after the arguments.
    pub close: Token,
    /// Calls nested in the arguments.
    pub inner: Vec<Call>,
    /// End offset of `}}`.
    pub end: usize,
}

pub(in crate::blendsql) struct Scanner<'s, 'a> {
    pub sql: &'s str,
    /// Returns true if the database has a table of this name.
    is_table: &'a dyn Fn(&str) -> bool,
    /// Macros that a call may name; `None` if macros are not accepted.
    pub find_macro: Option<FindMacro<'a>>,
    /// Engine whose functions are calls, if any.
    vendor: Option<Vendor>,
    pub grammar: Grammar,
    /// All tokens before `at`.
    tokens: Vec<Token>,
    /// Offset at which the next token is read.
    pub at: usize,
    depth: usize,
}

impl Scanner<'_, '_> {
    pub(in crate::blendsql) fn next_token(
        &mut self,
        brackets: Brackets,
    ) -> Result<Option<Token>, SqlError> {
        // The calls of a query in SUQL have SQLite's syntax.
        let is_postgres = match self.grammar {
            Grammar::Sqlite => false,
            Grammar::Postgres => true,
            Grammar::Suql => self.depth == 0,
        };
        let brackets = if is_postgres { Brackets::List } else { brackets };
        let mut token = lexer::next_token(self.sql, self.at, brackets)?;
        if let Some(word) = token.as_mut().filter(|_| is_postgres) {
            *word = lexer::extend_escaped_string(self.sql, *word)?;
        }
        self.at = token.map_or(self.sql.len(), |t| t.end);
        let has_strings = self.vendor.is_some_and(Vendor::has_double_quoted_strings);
        let token = token.map(|token| match token.lexeme {
            TokenKind::Quoted if has_strings => Token { lexeme: TokenKind::Text, ..token },
            _ => token,
        });
        if let Some(token) = token {
            // A lookahead may already have added tokens from here on.
            while self.tokens.last().is_some_and(|last| last.start >= token.start) {
                self.tokens.pop();
            }
            self.tokens.push(token);
        }
        Ok(token)
    }

    /// Reads the next token of the call that begins at `open`.
    fn next_call_token(&mut self, open: Token, brackets: Brackets) -> Result<Token, SqlError> {
        let token = self.next_token(brackets)?.ok_or_else(|| {
            SqlError::new(open.span(), "a call is never closed", "this call has no `}}`")
        })?;
        let is_column = matches!(token.lexeme, TokenKind::Text | TokenKind::Quoted)
            && split_legacy_column(&token.unquoted_text(self.sql))
                .is_some_and(|(table, _)| (self.is_table)(&table));
        Ok(if is_column { Token { lexeme: TokenKind::LegacyColumn, ..token } } else { token })
    }

    /// Enters a nested call. Fails if the nesting is too deep.
    pub(in crate::blendsql) fn enter_call(&mut self, open: Token) -> Result<(), SqlError> {
        if self.depth >= MAX_DEPTH {
            return Err(SqlError::new(
                open.span(),
                format!("calls are nested more than {MAX_DEPTH} levels deep"),
                "one too many",
            ));
        }
        self.depth += 1;
        Ok(())
    }

    pub(in crate::blendsql) fn leave_call(&mut self) {
        self.depth -= 1;
    }

    /// Reads the call whose `{{` has just been read.
    pub(in crate::blendsql) fn read_call(
        &mut self,
        open: Token,
        is_values_row: bool,
    ) -> Result<Call, SqlError> {
        self.enter_call(open)?;
        let name = self.next_call_token(open, Brackets::Name)?;
        let signature = self.find_macro.filter(|_| name.lexeme == TokenKind::Word);
        let signature = signature.and_then(|find| find(name.text(self.sql)));
        let ingredient = match signature {
            Some(MacroSignature { subject, .. }) => find_macro_ingredient(subject),
            None => find_ingredient(self.sql, open, name)?,
        };
        let written_name = match signature {
            Some(_) => name.text(self.sql),
            None => ingredient.name(),
        };
        let paren = self.next_call_token(open, Brackets::Name)?;
        if !paren.is_symbol(b'(') {
            return Err(SqlError::new(
                paren.span(),
                format!("`{written_name}` has no arguments"),
                "expected `(`",
            ));
        }
        let (mut arguments, mut inner) = (Vec::new(), Vec::new());
        let close = loop {
            let (argument, end) =
                self.read_argument(open, paren, signature.is_some(), &mut inner)?;
            let last = end.is_symbol(b')');
            match argument {
                Some(argument) => arguments.push(argument),
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
        let end = self.next_call_token(open, Brackets::Name)?;
        if end.lexeme != TokenKind::Close {
            if !self.sql[end.span().start..].contains("}}") {
                let message = format!("the call of `{written_name}` does not end");
                return Err(SqlError::new(end.span(), message, "expected `}}`")
                    .with_help("write `}}` after the `)` of the call"));
            }
            return Err(SqlError::new(
                end.span(),
                format!("unexpected text between `)` and `}}}}` of `{written_name}`"),
                "expected `}}`",
            )
            .with_help("write what you do with the answer after `}}`"));
        }
        let scanned = ScannedCall {
            open,
            name,
            ingredient,
            is_values_row,
            arguments,
            close,
            inner,
            end: end.end,
        };
        let title = call::read_title(self.sql, name, &scanned.arguments);
        let call = match signature {
            Some(signature) => self.build_macro_call(scanned, paren, signature),
            None => call::build_call(self.sql, scanned),
        };
        self.leave_call();
        Ok(Call { title, ..call? })
    }

    /// Reads one argument and the `,` or `)` that ends it.
    fn read_argument(
        &mut self,
        open: Token,
        paren: Token,
        is_macro: bool,
        inner: &mut Vec<Call>,
    ) -> Result<(Option<WrittenArgument>, Token), SqlError> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut nest: Vec<Token> = Vec::new();
        let mut rows = ValuesRowTracker::default();
        let mut keyword = None;
        let mut brackets = Brackets::Name;
        let end = loop {
            if let (None, &[name, equals]) = (keyword, tokens.as_slice())
                && name.lexeme == TokenKind::Word
                && equals.is_symbol(b'=')
                && self.sql.as_bytes().get(self.at) != Some(&b'=')
            {
                keyword = Some(name);
                tokens.clear();
                if ingredients::keyword::accepts_list(name.text(self.sql), is_macro) {
                    brackets = Brackets::List;
                }
            }
            let mut token = self.next_call_token(open, brackets)?;
            if is_macro && begins_list(self.sql, token) {
                (self.at, brackets) = (token.start, Brackets::List);
                token = self.next_call_token(open, brackets)?;
            }
            let begins_python = token.is_symbol(b'[') || token.is_symbol(b'{');
            // Only a list that begins with `[` has Python syntax throughout.
            if keyword.is_some() && tokens.is_empty() && !begins_python {
                brackets = Brackets::Name;
            }
            let nested = match brackets {
                Brackets::Name => self.read_function_call(token, tokens.last().copied())?,
                Brackets::List => None,
            };
            if let Some(nested) = nested {
                tokens.push(Token { lexeme: TokenKind::Call, end: nested.span.end, ..token });
                inner.push(nested);
                continue;
            }
            let token = match (token.lexeme, nest.last()) {
                // `}}` closes two dictionaries here, not the call.
                (TokenKind::Close, Some(brace)) if brace.is_symbol(b'{') => {
                    self.at = token.start + 1;
                    Token { lexeme: TokenKind::Symbol(b'}'), end: self.at, ..token }
                }
                (TokenKind::Close, within) => {
                    return Err(unclosed_bracket_error(*within.unwrap_or(&paren), token));
                }
                // A comma is missing, because no operand can follow here.
                (TokenKind::Word, None) if call::begins_argument(self.sql, &tokens, token) => {
                    self.at = token.start;
                    let (lexeme, end) = (TokenKind::Symbol(b','), token.start);
                    break Token { lexeme, end, ..token };
                }
                _ => token,
            };
            match token.lexeme {
                TokenKind::Open => {
                    let nested = self.read_call(token, rows.is_row_expected())?;
                    tokens.push(Token {
                        lexeme: TokenKind::Call,
                        start: nested.span.start,
                        end: nested.span.end,
                    });
                    inner.push(nested);
                    continue;
                }
                TokenKind::Symbol(b',' | b')') if nest.is_empty() => break token,
                _ => {
                    track_bracket(self.sql, &mut nest, token)?;
                    tokens.push(token);
                }
            }
            rows.observe_token(self.sql, token);
        };
        Ok((build_argument(self.sql, keyword, tokens, end)?, end))
    }
}

/// Opens or closes a bracket. Fails if the token closes a bracket that is not the last open one.
fn track_bracket(sql: &str, nest: &mut Vec<Token>, token: Token) -> Result<(), SqlError> {
    match token.lexeme {
        TokenKind::Symbol(b'(' | b'[' | b'{') => nest.push(token),
        TokenKind::Symbol(symbol @ (b')' | b']' | b'}')) => {
            let opened = nest.pop();
            if opened.is_none_or(|o| !o.is_symbol(opening_bracket(symbol))) {
                return Err(unopened_bracket_error(sql, opened, token));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the argument with these tokens, or `None` if there are none. `end` is the token that ends
/// it.
fn build_argument(
    sql: &str,
    keyword: Option<Token>,
    tokens: Vec<Token>,
    end: Token,
) -> Result<Option<WrittenArgument>, SqlError> {
    match keyword {
        Some(keyword) if tokens.is_empty() => Err(SqlError::new(
            keyword.start..end.start,
            format!("`{}` has no value", keyword.text(sql)),
            "expected a value after `=`",
        )),
        _ if tokens.is_empty() => Ok(None),
        _ => {
            let end = if end.is_symbol(b',') { end.end } else { token_span(&tokens).end };
            Ok(Some(WrittenArgument { keyword, tokens, end }))
        }
    }
}

/// Returns true if a bracketed token is a list instead of a name: it begins with a quote or a
/// brace, or consists of numbers.
fn begins_list(sql: &str, token: Token) -> bool {
    let inside = token.text(sql).strip_prefix('[').filter(|_| token.lexeme == TokenKind::Name);
    inside.is_some_and(|inside| {
        inside.trim_start().starts_with(['\'', '"', '{'])
            || inside.bytes().all(|b| b.is_ascii_digit() || b" ,.+-]".contains(&b))
    })
}

/// Finds the ingredient that the first word of a call names.
fn find_ingredient(sql: &str, open: Token, name: Token) -> Result<IngredientRef, SqlError> {
    let all = ingredients::list_ingredients();
    let names = || all.iter().map(|i| i.name());
    let known_names = || format_name_list("ingredient", names());
    match name.lexeme {
        TokenKind::Word => {}
        TokenKind::Close => {
            let span = open.start..name.end;
            return Err(SqlError::new(span, "a call is empty", "expected an ingredient")
                .with_help(known_names()));
        }
        _ => {
            let error = SqlError::new(name.span(), "a call names no ingredient", "expected a name");
            return Err(error.with_help(known_names()));
        }
    }
    let word = name.text(sql);
    if let Some(found) = all.iter().copied().find(|i| i.name().eq_ignore_ascii_case(word)) {
        return Ok(found);
    }
    let error =
        SqlError::new(name.span(), format!("there is no ingredient `{word}`"), "not an ingredient");
    Err(match find_nearest(word, names()) {
        Some(near) => error.with_suggestion(near),
        None => error.with_help(known_names()),
    })
}

fn unclosed_bracket_error(opened: Token, close: Token) -> SqlError {
    let (open, end) = match opened.lexeme {
        TokenKind::Symbol(b'[') => ("[", "]"),
        _ => ("(", ")"),
    };
    SqlError::new(
        opened.start..close.end,
        format!("`{open}` is not closed before the end of the call"),
        format!("no `{end}` before `}}}}`"),
    )
}

fn unopened_bracket_error(sql: &str, opened: Option<Token>, close: Token) -> SqlError {
    let label = match opened {
        Some(opened) => format!("a `{}` is open here", opened.text(sql)),
        None => String::from("nothing is open here"),
    };
    SqlError::new(close.span(), format!("`{}` closes nothing", close.text(sql)), label)
}

fn opening_bracket(close: u8) -> u8 {
    match close {
        b')' => b'(',
        b']' => b'[',
        _ => b'{',
    }
}

/// Tracks, for each parenthesis depth, whether `VALUES` expects a row next.
#[derive(Default)]
struct ValuesRowTracker {
    outer_levels: Vec<bool>,
    is_expected: bool,
}

impl ValuesRowTracker {
    fn is_row_expected(&self) -> bool {
        self.is_expected
    }

    fn observe_token(&mut self, sql: &str, token: Token) {
        match token.lexeme {
            TokenKind::Symbol(b'(' | b'[' | b'{') => {
                self.outer_levels.push(self.is_expected);
                self.is_expected = false;
            }
            TokenKind::Symbol(b')' | b']' | b'}') => {
                self.is_expected = self.outer_levels.pop().unwrap_or(false);
            }
            // A comma between two rows changes nothing.
            TokenKind::Symbol(b',') => {}
            _ => self.is_expected = token.is_word(sql, "VALUES"),
        }
    }
}
