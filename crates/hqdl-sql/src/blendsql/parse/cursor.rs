//! Position in a query's tokens, and the checks that every rule of the grammar shares.

use std::collections::HashMap;

use crate::blendsql::ingredients::Subject;
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::parse::keywords;
use crate::blendsql::tree::{Query, Span};
use crate::blendsql::{Call, SqlError};
use crate::translated::Edits;

/// `SQLite`'s maximum expression depth.
pub(super) const MAX_DEPTH: usize = 1000;

/// Edits that replace the syntax of earlier versions.
#[derive(Default)]
pub(super) struct LegacySyntax {
    pub edits: Edits,
    /// Columns `'t::c'` whose table has not been found yet, as call indices and value indices
    /// within the call.
    pub columns: Vec<(usize, usize)>,
    /// Whether the dialect has `SAFE_CAST`.
    pub has_safe_cast: bool,
}

/// Parser of one query. The tokens include those inside the calls, since the arguments of a call
/// are parsed from the same list.
pub(super) struct QueryParser<'s> {
    pub sql: &'s str,
    pub tokens: &'s [Token],
    /// All calls of the query.
    pub calls: &'s [Call],
    /// Index of each call, by the offset at which the call begins.
    pub call_starts: HashMap<usize, usize>,
    /// Queries in `options=` that were parsed.
    pub options: Vec<Query>,
    /// Whether the query has `PostgreSQL`'s syntax.
    pub is_postgres: bool,
    /// Whether the query is translated to `SQLite`'s dialect, so that the tree can contain
    /// constructs that the planner does not support.
    pub is_suql: bool,
    /// Index of the next token.
    pub at: usize,
    /// Index after the last token to parse.
    pub end: usize,
    /// End offset of the part of the text that is parsed.
    pub text_end: usize,
    /// Number of enclosing nodes.
    pub depth: usize,
    /// Height of the highest node that was completed inside the current node.
    pub height: usize,
    /// Edits that replace the syntax of earlier versions; `None` if that syntax is not accepted.
    pub legacy: Option<LegacySyntax>,
}

impl QueryParser<'_> {
    /// Returns the next token. A call counts as a single token.
    pub fn peek(&self) -> Option<Token> {
        self.token_at(self.at)
    }

    fn token_at(&self, at: usize) -> Option<Token> {
        let token = *self.tokens.get(at).filter(|_| at < self.end)?;
        Some(match self.call_at(token) {
            Some(n) => Token { lexeme: TokenKind::Call, end: self.calls[n].span.end, ..token },
            None => token,
        })
    }

    /// Returns the index of the call that begins with a token, if there is one.
    pub fn call_at(&self, token: Token) -> Option<usize> {
        // Calls begin with `{{` or with the name of a function.
        let can_begin = matches!(token.lexeme, TokenKind::Open | TokenKind::Word | TokenKind::Call);
        self.call_starts.get(&token.start).copied().filter(|_| can_begin)
    }

    /// Returns the token that is `count` tokens after the next one. Only the last of these tokens
    /// may be a call.
    pub fn peek_after(&self, count: usize) -> Option<Token> {
        self.token_at(self.at + count)
    }

    /// Moves past the next token and returns it.
    pub fn advance(&mut self) -> Option<Token> {
        let token = self.peek()?;
        self.at += 1;
        if token.lexeme == TokenKind::Call {
            self.at += self.tokens[self.at..self.end].partition_point(|t| t.start < token.end);
        }
        Some(token)
    }

    /// Returns the start of the next token, or the end of the text.
    pub fn next_start(&self) -> usize {
        self.peek().map_or(self.text_end, |t| t.start)
    }

    /// Returns the end of the preceding token.
    pub fn previous_token_end(&self) -> usize {
        let Some(before) = self.at.checked_sub(1) else { return 0 };
        self.tokens.get(before).map_or(0, |t| t.end)
    }

    /// Returns the text from `start` to the end of the preceding token.
    pub fn span_from(&self, start: usize) -> Span {
        start..self.previous_token_end().max(start)
    }

    pub fn text(&self, token: Token) -> &str {
        token.text(self.sql)
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.is_word_after(0, word)
    }

    pub fn is_word_after(&self, count: usize, word: &str) -> bool {
        self.peek_after(count).is_some_and(|t| t.is_word(self.sql, word))
    }

    pub fn is_symbol(&self, symbol: u8) -> bool {
        self.is_symbol_after(0, symbol)
    }

    pub fn is_symbol_after(&self, count: usize, symbol: u8) -> bool {
        self.peek_after(count).is_some_and(|t| t.is_symbol(symbol))
    }

    /// Moves past a word if it is next. Returns true if it was.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    /// Moves past a symbol if it is next. Returns true if it was.
    pub fn eat_symbol(&mut self, symbol: u8) -> bool {
        let found = self.is_symbol(symbol);
        self.at += usize::from(found);
        found
    }

    pub fn expect_word(&mut self, word: &str) -> Result<(), SqlError> {
        if self.eat_word(word) { Ok(()) } else { Err(self.unexpected_error()) }
    }

    pub fn expect_symbol(&mut self, symbol: u8) -> Result<(), SqlError> {
        if self.eat_symbol(symbol) { Ok(()) } else { Err(self.unexpected_error()) }
    }

    /// Returns true if the token can be the name of a table, a column or an alias: `nm` in
    /// `SQLite`'s grammar.
    pub fn is_name(&self, token: Token) -> bool {
        token.lexeme == TokenKind::Text && !self.is_postgres && !self.text(token).starts_with('$')
            || self.is_identifier(token)
    }

    /// Returns true if the token is a name that is not quoted with `'`.
    pub fn is_identifier(&self, token: Token) -> bool {
        match token.lexeme {
            TokenKind::Quoted | TokenKind::Name => true,
            TokenKind::Word => !keywords::is_reserved(self.text(token)) && !self.begins_blob(token),
            _ => false,
        }
    }

    /// Returns true if the token is the `x` of a blob literal `x'…'`.
    pub fn begins_blob(&self, token: Token) -> bool {
        token.is_word(self.sql, "x") && self.sql.as_bytes().get(token.end) == Some(&b'\'')
    }

    /// Reads a name.
    pub fn read_name(&mut self) -> Result<String, SqlError> {
        match self.peek() {
            Some(token) if self.is_name(token) => {
                self.at += 1;
                Ok(token.unquoted_text(self.sql))
            }
            _ => Err(self.unexpected_error()),
        }
    }

    /// Reads an alias with or without AS.
    pub fn read_alias(&mut self) -> Result<Option<String>, SqlError> {
        if self.eat_word("AS") {
            let text = self.peek().filter(|t| self.is_postgres && t.lexeme == TokenKind::Text);
            self.at += usize::from(text.is_some());
            return match text {
                Some(text) => Ok(Some(text.unquoted_text(self.sql))),
                None => self.read_name().map(Some),
            };
        }
        match self.peek() {
            Some(token) if self.is_name(token) && !self.continues_clause(token) => {
                self.read_name().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns true for a word that is a name elsewhere but continues the query after a table or
    /// an expression.
    fn continues_clause(&self, token: Token) -> bool {
        if token.lexeme != TokenKind::Word {
            return false;
        }
        let is_window =
            || self.peek_after(1).is_some_and(|t| self.is_name(t)) && self.is_word_after(2, "AS");
        // Keywords of `PostgreSQL` that are names in `SQLite`.
        let is_postgres_keyword = || {
            let words = ["FETCH", "FOR", "OFFSET", "LATERAL"];
            self.is_postgres && words.iter().any(|word| token.is_word(self.sql, word))
        };
        is_postgres_keyword()
            || keywords::requires_as(self.text(token))
            || token.is_word(self.sql, "WINDOW") && is_window()
    }

    /// Reads a list of one or more items, separated by commas.
    pub fn read_list<T>(
        &mut self,
        read_item: impl Fn(&mut Self) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        let mut items = vec![read_item(self)?];
        while self.eat_symbol(b',') {
            items.push(read_item(self)?);
        }
        Ok(items)
    }

    /// Runs `parse` one level deeper. Fails if that exceeds the maximum depth of `SQLite`.
    pub fn parse_nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let start = self.next_start();
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.depth_error(start));
        }
        let around = std::mem::take(&mut self.height);
        let parsed = parse(self);
        self.depth -= 1;
        self.height = around.max(self.height + 1);
        parsed
    }

    /// Counts a node that encloses the most recently parsed nodes. Fails if that exceeds the
    /// maximum depth.
    pub fn add_enclosing_node(&mut self, start: usize) -> Result<(), SqlError> {
        self.height += 1;
        self.check_height(start)
    }

    /// Fails if the most recently completed nodes exceed the maximum depth.
    pub fn check_height(&self, start: usize) -> Result<(), SqlError> {
        if self.depth + self.height > MAX_DEPTH { Err(self.depth_error(start)) } else { Ok(()) }
    }

    fn depth_error(&self, start: usize) -> SqlError {
        let message = format!("the query is nested more than {MAX_DEPTH} levels deep");
        let span = start..self.previous_token_end().max(start);
        SqlError::new(span, message, "here")
            .with_help("SQLite does not allow more; put the values into a table, or write IN (…)")
    }

    /// Returns the error for the next token, which no rule of the grammar allows here.
    pub fn unexpected_error(&self) -> SqlError {
        let Some(token) = self.peek() else {
            let span = self.text_end..(self.text_end + 1).min(self.sql.len()).max(self.text_end);
            if self.text_end < self.sql.trim_end().len() {
                return SqlError::new(span, "this expression ends too early", "here")
                    .with_help("complete it before this place, or remove its last operator");
            }
            return SqlError::new(span, "incomplete SQL statement", "here")
                .with_help("the query ends too early: complete it, as in SELECT name FROM city");
        };
        if let Some(n) = self.call_at(token) {
            let call = &self.calls[n];
            let label = "a call is a value, as a column is";
            let error = SqlError::new(call.span.clone(), "a call is not allowed here", label);
            return match call.ingredient.subject() {
                Subject::Pair => error.with_help(
                    "a join without ON needs columns of two tables; write FROM t JOIN u ON {{LLMJoin(t.a, u.b)}}",
                ),
                _ => error.with_help("use the call in the result columns, in WHERE or in ORDER BY"),
            };
        }
        let end = self.peek_operator().map_or(token.end, |(_, tokens)| {
            self.peek_after(tokens - 1).map_or(token.end, |last| last.end)
        });
        let text = self.sql.get(token.start..end).unwrap_or_default();
        SqlError::new(token.start..end, format!("near \"{text}\": syntax error"), "here")
            .with_help("correct the SQL here, or just before")
    }

    /// Returns the next operator and its number of tokens. An operator such as `->>` consists of
    /// several adjacent symbols.
    pub fn peek_operator(&self) -> Option<(&'static str, usize)> {
        const OPERATORS: [&str; 22] = [
            "->>", "->", "||", "<<", ">>", "<=", "<>", ">=", "==", "!=", "<", ">", "=", "+", "-",
            "*", "/", "%", "&", "|", "~", "::",
        ];
        let first = self.peek()?;
        if first.lexeme == TokenKind::Colons {
            return Some(("::", 1));
        }
        if !matches!(first.lexeme, TokenKind::Symbol(_)) {
            return None;
        }
        let rest = self.sql.get(first.start..self.text_end)?;
        let found = OPERATORS.into_iter().find(|sign| rest.starts_with(sign))?;
        Some((found, found.len()))
    }
}
