//! The tokens of a query, and where the parser stands among them.

use std::collections::HashMap;
use std::ops::Range;

use super::star::TableColumns;
use super::text::{Part, Text};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{self, Brackets, Lexeme, Token};
use crate::blendsql::scan;

/// How deep expressions may stand in each other; each is a level of recursion.
const DEEPEST: usize = 200;

/// What was read of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    /// The bytes it was read from.
    pub span: Range<usize>,
    /// What stands for it.
    pub text: Text,
    /// What it is, as far as that matters to what stands around it.
    pub shape: ExprShape,
    /// How tightly it holds together.
    pub level: u8,
}

/// What an expression is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ExprShape {
    /// Anything.
    Plain,
    /// A text literal.
    Literal(String),
    /// A call: its type is what it is cast to.
    Call,
    /// An array, as it is written.
    Array,
    /// A span of time that is written out: how many of which of `SQLite`'s units.
    Interval(Vec<(f64, &'static str)>),
    /// A span of time that is computed, as a text: `1 year 2 mons`.
    Span,
    /// A date without a time: a text that it is compared with is read as one.
    Date,
    /// A date with a time.
    Timestamp,
    /// A time of a day.
    Time,
    /// True or false: a text that it is compared with is read as one.
    Boolean,
    /// A text that is not written out.
    Text,
    /// A number: a text that it is compared with is read as one.
    Number,
    /// A number of the type NUMERIC, whose division has a fraction.
    Numeric,
    /// A number of a binary type: its division has a fraction, too, and it is rounded to
    /// the even one of two neighbours.
    Float,
    /// A row of values: `(a, 'x')`.
    Row(Vec<Piece>),
    /// A text cast to an ENUM of this name, which only a comparison can hold.
    Enum(String),
}

/// What a SELECT reads.
#[derive(Default)]
pub(super) struct SuqlSelect {
    /// Arrays that its rows are made of.
    pub unnested: Vec<Unnested>,
    /// Its tables, in their order.
    pub tables: Vec<SuqlTable>,
    /// Its own columns, where all of them are known.
    pub results: TypedColumns,
    /// Whether rows of a table may lack: it stands in an outer join.
    pub outer: bool,
    /// Whether USING or NATURAL makes one column of two.
    pub merged: bool,
}

/// Columns in their order and what each of them is, where they are known.
pub(super) type TypedColumns = Option<Vec<(String, ExprShape)>>;

/// What a SELECT reads, by the name that it has there.
pub(super) struct SuqlTable {
    /// The name; `None` for one that has none.
    pub name: Option<String>,
    pub of: TableOf,
    pub columns: TypedColumns,
}

/// Where the rows of a table come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TableOf {
    /// A table of the database, or a common table expression.
    Named(String),
    /// An array.
    Array,
    /// A query, or a function.
    Query,
}

/// An array that a SELECT's rows are made of.
pub(super) struct Unnested {
    /// The name its elements go by.
    pub alias: String,
    /// The names that the query gives them.
    pub names: Vec<String>,
    /// The array, when it stands in the result columns.
    pub array: Option<Piece>,
}

pub(super) struct Parser<'s> {
    pub sql: &'s str,
    pub tokens: Vec<Token>,
    pub at: usize,
    pub depth: usize,
    /// What each SELECT around reads, the innermost last.
    pub selects: Vec<SuqlSelect>,
    /// Common table expressions around, and their columns.
    pub common: Vec<(String, TypedColumns)>,
    /// What is known of the database's tables, by their names in lower case.
    pub tables: HashMap<String, TableColumns>,
    /// The columns of the query read last.
    pub columns: TypedColumns,
    /// Whether rows may be made here: in result columns, GROUP BY, ORDER BY.
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
            // E'…' ends where no backslash stands before the quote.
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

    /// Takes a word, when it is the next.
    pub fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    /// Takes words, when they are the next.
    pub fn words(&mut self, words: &[&str]) -> bool {
        let found = words.iter().enumerate().all(|(n, w)| self.is_word_at(n, w));
        if found {
            self.at += words.len();
        }
        found
    }

    /// Takes a symbol, when it is the next.
    pub fn symbol(&mut self, symbol: u8) -> bool {
        let found = self.is(symbol);
        self.at += usize::from(found);
        found
    }

    /// Takes a symbol, which must be the next; tells where it ends.
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

    /// The next token, whatever it is.
    pub fn take(&mut self) -> Result<Token, SqlError> {
        let token = self.peek().ok_or_else(|| self.expected("more"))?;
        self.at += 1;
        Ok(token)
    }

    /// Where the next token begins.
    pub fn here(&self) -> usize {
        self.peek().map_or(self.sql.len(), |t| t.start)
    }

    /// Where the last token ended.
    pub fn before(&self) -> usize {
        self.at.checked_sub(1).and_then(|n| self.tokens.get(n)).map_or(0, |t| t.end)
    }

    /// What is said where something else was expected.
    pub fn expected(&self, what: &str) -> SqlError {
        let (span, found) = match self.peek() {
            Some(token) => (token.span(), format!("`{}`", token.text(self.sql))),
            None => (self.sql.len().saturating_sub(1)..self.sql.len(), "the query's end".into()),
        };
        SqlError::new(span, format!("unexpected {found}"), format!("expected {what}"))
    }

    /// A level deeper, while there is room.
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

    /// A name that the query does not have.
    pub fn name(&mut self) -> String {
        self.fresh += 1;
        format!("hq_each{}", self.fresh)
    }
}

/// Where a text with escapes ends whose quote is at `at`.
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

    /// Words of our own, with pieces in the place of `{}`.
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

    /// True or false, by what it says.
    pub fn boolean(self) -> Self {
        Self { shape: ExprShape::Boolean, ..self }
    }

    /// The text, in parentheses where it might fall apart.
    pub fn tight(self) -> Text {
        if self.level == PRIMARY {
            return self.text;
        }
        Self::filled("({})", vec![self.text], self.span).text
    }
}

/// The level of what cannot fall apart.
pub(super) const PRIMARY: u8 = 100;

/// What is said of what `SQLite` has no words for.
pub(super) fn unsaid(span: Range<usize>, what: &str, help: &str) -> SqlError {
    let error = SqlError::new(span, format!("SQLite has no equivalent of {what}"), "here");
    if help.is_empty() { error } else { error.help(help) }
}

/// What stands from `start` on, with an operand at its end.
pub(super) fn spliced(start: usize, operand: Piece, level: u8) -> Piece {
    let span = start..operand.span.end;
    let mut text = vec![Part::Old(start..operand.span.start)];
    text.extend(operand.text);
    Piece { span, text, shape: ExprShape::Plain, level }
}

/// Pieces of the query, with what stands between them as it is.
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
