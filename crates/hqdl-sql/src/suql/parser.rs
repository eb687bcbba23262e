//! Parser state: the tokens of a query and the current position.

use std::collections::HashMap;
use std::ops::Range;

use super::star::TableColumns;
use super::text::{Part, Text};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{self, Brackets, Lexeme, Token};
use crate::blendsql::scan;

/// Maximum nesting depth of expressions; each level is a recursion level of the parser.
const DEEPEST: usize = 200;

/// A translated expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    /// Byte range in the source.
    pub span: Range<usize>,
    /// Translated text.
    pub text: Text,
    /// Type of the expression, as far as enclosing expressions depend on it.
    pub shape: ExprShape,
    /// Precedence of its outermost operator.
    pub level: u8,
}

/// Type of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ExprShape {
    /// Unknown type.
    Plain,
    /// A text literal.
    Literal(String),
    /// A call; its type is determined by a cast.
    Call,
    /// An array.
    Array,
    /// An interval literal: amounts of `SQLite`'s units.
    Interval(Vec<(f64, &'static str)>),
    /// A computed interval, as text: `1 year 2 mons`.
    Span,
    /// A date without a time. A text literal compared with it is converted to a date.
    Date,
    /// A date with a time.
    Timestamp,
    /// A time of day.
    Time,
    /// A boolean. A text literal compared with it is converted to a boolean.
    Boolean,
    /// A text that is not a literal.
    Text,
    /// An integer. A text literal compared with it is converted to a number.
    Number,
    /// A NUMERIC, whose division keeps the fraction.
    Numeric,
    /// A binary floating-point number. Its division keeps the fraction, and it is rounded half to
    /// even.
    Float,
    /// A row value: `(a, 'x')`.
    Row(Vec<Piece>),
    /// A text cast to an ENUM of this name, which is only allowed in comparisons.
    Enum(String),
}

/// Tables and result columns of a SELECT.
#[derive(Default)]
pub(super) struct SuqlSelect {
    /// Arrays that its rows are unnested from.
    pub unnested: Vec<Unnested>,
    /// Tables in order.
    pub tables: Vec<SuqlTable>,
    /// Result columns, if all of them are known.
    pub results: TypedColumns,
    /// Whether it has an outer join, so that rows of a table may be missing.
    pub outer: bool,
    /// Whether USING or NATURAL merges columns.
    pub merged: bool,
}

/// Columns with their types, in order; `None` if they are unknown.
pub(super) type TypedColumns = Option<Vec<(String, ExprShape)>>;

/// A table of a SELECT.
pub(super) struct SuqlTable {
    /// Name or alias; `None` if it has neither.
    pub name: Option<String>,
    pub of: TableOf,
    pub columns: TypedColumns,
}

/// Source of a table's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TableOf {
    /// A table of the database, or a common table expression.
    Named(String),
    /// An unnested array.
    Array,
    /// A subquery or a function.
    Query,
}

/// An array that is unnested into rows.
pub(super) struct Unnested {
    /// Table name of its elements.
    pub alias: String,
    /// Names of its elements in the query.
    pub names: Vec<String>,
    /// The array, if it occurs in the result columns.
    pub array: Option<Piece>,
}

pub(super) struct Parser<'s> {
    pub sql: &'s str,
    pub tokens: Vec<Token>,
    pub at: usize,
    pub depth: usize,
    /// The current and enclosing SELECTs, the innermost last.
    pub selects: Vec<SuqlSelect>,
    /// Visible common table expressions with their columns.
    pub common: Vec<(String, TypedColumns)>,
    /// Columns of the database's tables, by lower-case name.
    pub tables: HashMap<String, TableColumns>,
    /// Columns of the last parsed query.
    pub columns: TypedColumns,
    /// Whether set-returning functions are allowed: in result columns, GROUP BY and ORDER BY.
    pub may_unnest: bool,
    pub fresh: usize,
}

impl<'s> Parser<'s> {
    pub fn new(sql: &'s str) -> Result<Self, SqlError> {
        let calls = if sql.contains("{{") { scan(sql)? } else { Vec::new() };
        let mut tokens = Vec::new();
        let mut at = 0;
        while let Some(mut token) = lexer::next(sql, at, Brackets::List)? {
            if token.lexeme == Lexeme::Open
                && let Some(call) = calls.iter().find(|c| c.span.start == token.start)
            {
                token = Token { lexeme: Lexeme::Call, end: call.span.end, ..token };
            }
            // E'…' ends at the first quote without a backslash before it.
            if token.is_word(sql, "E") && sql.as_bytes().get(token.end) == Some(&b'\'') {
                token = Token { lexeme: Lexeme::Text, end: escaped(sql, token.end)?, ..token };
            }
            at = token.end;
            tokens.push(token);
        }
        Ok(Self {
            sql,
            tokens,
            at: 0,
            depth: 0,
            selects: Vec::new(),
            common: Vec::new(),
            tables: HashMap::new(),
            columns: None,
            may_unnest: false,
            fresh: 0,
        })
    }

    pub fn peek(&self) -> Option<Token> {
        self.tokens.get(self.at).copied()
    }

    pub fn peek_at(&self, n: usize) -> Option<Token> {
        self.tokens.get(self.at + n).copied()
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.peek().is_some_and(|t| t.is_word(self.sql, word))
    }

    pub fn is_word_at(&self, n: usize, word: &str) -> bool {
        self.peek_at(n).is_some_and(|t| t.is_word(self.sql, word))
    }

    pub fn is(&self, symbol: u8) -> bool {
        self.peek().is_some_and(|t| t.is(symbol))
    }

    /// Consumes a keyword, if it is next.
    pub fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    /// Consumes a sequence of keywords, if it is next.
    pub fn words(&mut self, words: &[&str]) -> bool {
        let found = words.iter().enumerate().all(|(n, w)| self.is_word_at(n, w));
        if found {
            self.at += words.len();
        }
        found
    }

    /// Consumes a symbol, if it is next.
    pub fn symbol(&mut self, symbol: u8) -> bool {
        let found = self.is(symbol);
        self.at += usize::from(found);
        found
    }

    /// Consumes the required symbol and returns its end offset.
    pub fn expect(&mut self, symbol: u8) -> Result<usize, SqlError> {
        match self.peek() {
            Some(token) if token.is(symbol) => {
                self.at += 1;
                Ok(token.end)
            }
            _ => Err(self.expected(&format!("`{}`", char::from(symbol)))),
        }
    }

    pub fn expect_word(&mut self, word: &str) -> Result<(), SqlError> {
        if self.word(word) { Ok(()) } else { Err(self.expected(word)) }
    }

    /// Consumes the next token.
    pub fn take(&mut self) -> Result<Token, SqlError> {
        let token = self.peek().ok_or_else(|| self.expected("more"))?;
        self.at += 1;
        Ok(token)
    }

    /// Returns the start of the next token.
    pub fn here(&self) -> usize {
        self.peek().map_or(self.sql.len(), |t| t.start)
    }

    /// Returns the end of the last token.
    pub fn before(&self) -> usize {
        self.at.checked_sub(1).and_then(|n| self.tokens.get(n)).map_or(0, |t| t.end)
    }

    /// Creates an error for an unexpected token.
    pub fn expected(&self, what: &str) -> SqlError {
        let (span, found) = match self.peek() {
            Some(token) => (token.span(), format!("`{}`", token.text(self.sql))),
            None => (self.sql.len().saturating_sub(1)..self.sql.len(), "the query's end".into()),
        };
        SqlError::new(span, format!("unexpected {found}"), format!("expected {what}"))
    }

    /// Runs `parse` one level deeper. Fails if the nesting is too deep.
    pub fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        if self.depth >= DEEPEST {
            let at = self.here();
            return Err(SqlError::new(
                at..(at + 1).min(self.sql.len()),
                format!("expressions are nested more than {DEEPEST} levels deep"),
                "one too many",
            ));
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// Returns a new table alias that the query does not use.
    pub fn name(&mut self) -> String {
        self.fresh += 1;
        format!("hq_each{}", self.fresh)
    }
}

/// Returns the end of the E'…' string whose opening quote is at `at`.
fn escaped(sql: &str, at: usize) -> Result<usize, SqlError> {
    let bytes = sql.as_bytes();
    let mut end = at + 1;
    while let Some(byte) = bytes.get(end) {
        end += match (byte, bytes.get(end + 1)) {
            (b'\\', _) | (b'\'', Some(b'\'')) => 2,
            (b'\'', _) => return Ok(end + 1),
            _ => 1,
        };
    }
    Err(SqlError::new(at..at + 1, "a quoted text is never closed", "it has no closing `'`"))
}

impl Piece {
    pub fn old(span: Range<usize>) -> Self {
        Self { text: vec![Part::Old(span.clone())], span, shape: ExprShape::Plain, level: PRIMARY }
    }

    pub fn new(text: Text, span: Range<usize>) -> Self {
        Self { span, text, shape: ExprShape::Plain, level: PRIMARY }
    }

    /// Creates an expression from a template, in which each `{}` is replaced by an operand.
    pub fn filled(words: &str, pieces: Vec<Text>, span: Range<usize>) -> Self {
        let mut text = Vec::new();
        let mut pieces = pieces.into_iter();
        for (n, word) in words.split("{}").enumerate() {
            if n > 0 {
                text.extend(pieces.next().unwrap_or_default());
            }
            if !word.is_empty() {
                text.push(Part::New(word.to_owned(), span.clone()));
            }
        }
        Self::new(text, span)
    }

    /// Sets the type to boolean.
    pub fn boolean(self) -> Self {
        Self { shape: ExprShape::Boolean, ..self }
    }

    /// Returns the text, in parentheses if it has an operator.
    pub fn tight(self) -> Text {
        if self.level == PRIMARY {
            return self.text;
        }
        Self::filled("({})", vec![self.text], self.span).text
    }
}

/// Precedence of expressions without an operator.
pub(super) const PRIMARY: u8 = 100;

/// Creates an error for a construct that `SQLite` does not support.
pub(super) fn unsaid(span: Range<usize>, what: &str, help: &str) -> SqlError {
    let error = SqlError::new(span, format!("SQLite has no equivalent of {what}"), "here");
    if help.is_empty() { error } else { error.help(help) }
}

/// Prepends the source text from `start` on to an operand.
pub(super) fn spliced(start: usize, operand: Piece, level: u8) -> Piece {
    let span = start..operand.span.end;
    let mut text = vec![Part::Old(start..operand.span.start)];
    text.extend(operand.text);
    Piece { span, text, shape: ExprShape::Plain, level }
}

/// Joins expressions with the unchanged source text between them.
pub(super) fn joined(start: usize, pieces: Vec<Piece>, end: usize) -> Text {
    let (mut text, mut at) = (Vec::new(), start);
    for piece in pieces {
        text.push(Part::Old(at..piece.span.start.max(at)));
        at = piece.span.end;
        text.extend(piece.text);
    }
    text.push(Part::Old(at..end.max(at)));
    text
}
