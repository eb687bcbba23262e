//! Parser state: the tokens of a query and the current position.

use std::collections::HashMap;
use std::ops::Range;

use super::TableColumns;
use super::text::{SourceFragment, SqlText};
use crate::blendsql::lexer::{self, Brackets, Token, TokenKind};
use crate::blendsql::vendors::Vendor;
use crate::blendsql::{Call, SqlError, scan_dialect_calls};

/// Maximum nesting depth of expressions; each level is a recursion level of the parser.
const MAX_DEPTH: usize = 200;

/// An expression that has been translated to `SQLite`'s dialect.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TypedSql {
    /// Byte range in the source.
    pub span: Range<usize>,
    /// Translated text.
    pub text: SqlText,
    /// Type of the expression, with the detail that enclosing expressions need.
    pub sql_type: SqlType,
    /// Precedence of the expression's outermost operator.
    pub precedence: u8,
}

/// Type of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SqlType {
    /// Unknown type.
    Unknown,
    /// A text literal.
    Literal(String),
    /// A call, whose type is determined by a cast.
    Call,
    Array,
    /// An interval literal: amounts of `SQLite`'s units.
    Interval(Vec<(f64, &'static str)>),
    /// A computed interval, as text: `1 year 2 mons`.
    ComputedInterval,
    /// A date without a time. A text literal is converted to a date when compared with it.
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
    Integer,
    /// A NUMERIC, whose division keeps the fraction.
    Numeric,
    /// A binary floating-point number. Division keeps the fraction, and rounding is half to even.
    Float,
    /// A row value: `(a, 'x')`.
    Row(Vec<TypedSql>),
    /// A text cast to an ENUM of this name, which is only allowed in comparisons.
    Enum(String),
}

/// Tables and result columns of a SELECT.
#[derive(Default)]
pub(super) struct SuqlSelect {
    /// Arrays that are unnested into the SELECT's rows.
    pub unnested: Vec<UnnestedArray>,
    /// Tables in order.
    pub tables: Vec<SuqlTable>,
    /// Result columns, if all of them are known.
    pub results: TypedColumns,
    /// Whether the SELECT has an outer join, which can fill a table's columns with NULL.
    pub has_outer_join: bool,
    /// Whether USING or NATURAL merges columns.
    pub has_merged_columns: bool,
    /// `DISTINCT ON` of the SELECT, until the whole query has been parsed.
    pub distinct_on: Option<DistinctOn>,
}

/// A SELECT with `DISTINCT ON`, as parsed before its ORDER BY.
pub(super) struct DistinctOn {
    /// Byte range from SELECT to the `)` of ON.
    pub head: Range<usize>,
    /// Byte range of `DISTINCT ON`.
    pub words: Range<usize>,
    pub on: Vec<TypedSql>,
    /// Result columns with the tokens of their aliases.
    pub columns: Vec<(TypedSql, Option<Token>)>,
    /// Offset of FROM; `None` if there is no FROM clause.
    pub from: Option<usize>,
    /// Expressions of the clauses from FROM to HAVING or WINDOW.
    pub rows: Vec<TypedSql>,
}

/// Columns with their types, in order; `None` if they are unknown.
pub(super) type TypedColumns = Option<Vec<(String, SqlType)>>;

/// A table of a SELECT.
pub(super) struct SuqlTable {
    /// Name or alias; `None` if the table has neither.
    pub name: Option<String>,
    pub source: TableSource,
    pub columns: TypedColumns,
}

/// Source of a table's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TableSource {
    /// A table of the database, or a common table expression.
    Named(String),
    /// An unnested array.
    Array,
    /// A subquery or a function.
    Query,
}

/// An array that is unnested into rows.
pub(super) struct UnnestedArray {
    /// Table name under which the query reads the elements.
    pub alias: String,
    /// Names of the array's elements in the query.
    pub names: Vec<String>,
    /// The array, if it occurs in the result columns.
    pub array: Option<TypedSql>,
}

pub(super) struct Parser<'s> {
    pub sql: &'s str,
    pub tokens: Vec<Token>,
    pub position: usize,
    pub depth: usize,
    /// The current and enclosing SELECTs, the innermost last.
    pub selects: Vec<SuqlSelect>,
    /// Visible common table expressions with their columns.
    pub ctes: Vec<(String, TypedColumns)>,
    /// Columns of the database's tables, by lower-case name.
    pub tables: HashMap<String, TableColumns>,
    /// Columns of the last parsed query.
    pub columns: TypedColumns,
    /// Whether set-returning functions are allowed: in result columns, GROUP BY and ORDER BY.
    pub may_unnest: bool,
    pub alias_count: usize,
}

/// Appends the byte ranges of the calls that the translation copies, in text order: calls in braces
/// and of a vendor's functions. The arguments of `answer` and `summary` are translated instead.
fn add_copied_calls(calls: Vec<Call>, copied: &mut Vec<Range<usize>>) {
    for call in calls {
        if call.is_in_braces() || call.macro_call.is_some() {
            copied.push(call.span);
        } else {
            add_copied_calls(call.inner, copied);
        }
    }
}

impl<'s> Parser<'s> {
    pub fn new(sql: &'s str, vendor: Option<Vendor>) -> Result<Self, SqlError> {
        let has_calls = sql.contains("{{") || vendor.is_some();
        let mut calls = Vec::new();
        if has_calls {
            add_copied_calls(scan_dialect_calls(sql, vendor)?, &mut calls);
        }
        let mut tokens = Vec::new();
        let mut at = 0;
        while let Some(mut token) = lexer::next_token(sql, at, Brackets::List)? {
            if let Ok(n) = calls.binary_search_by_key(&token.start, |call| call.start) {
                token = Token { lexeme: TokenKind::Call, end: calls[n].end, ..token };
            }
            // E'…' ends at the first quote without a backslash before it.
            if token.is_word(sql, "E") && sql.as_bytes().get(token.end) == Some(&b'\'') {
                token = Token {
                    lexeme: TokenKind::Text,
                    end: find_escaped_string_end(sql, token.end)?,
                    ..token
                };
            }
            at = token.end;
            tokens.push(token);
        }
        Ok(Self {
            sql,
            tokens,
            position: 0,
            depth: 0,
            selects: Vec::new(),
            ctes: Vec::new(),
            tables: HashMap::new(),
            columns: None,
            may_unnest: false,
            alias_count: 0,
        })
    }

    pub fn peek(&self) -> Option<Token> {
        self.tokens.get(self.position).copied()
    }

    pub fn peek_at(&self, n: usize) -> Option<Token> {
        self.tokens.get(self.position + n).copied()
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.peek().is_some_and(|t| t.is_word(self.sql, word))
    }

    pub fn is_word_at(&self, n: usize, word: &str) -> bool {
        self.peek_at(n).is_some_and(|t| t.is_word(self.sql, word))
    }

    pub fn is_symbol(&self, symbol: u8) -> bool {
        self.peek().is_some_and(|t| t.is_symbol(symbol))
    }

    /// Consumes a keyword if it is next. Returns true if it was.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.position += usize::from(found);
        found
    }

    /// Consumes a sequence of keywords if it is next. Returns true if it was.
    pub fn eat_words(&mut self, words: &[&str]) -> bool {
        let found = words.iter().enumerate().all(|(n, w)| self.is_word_at(n, w));
        if found {
            self.position += words.len();
        }
        found
    }

    /// Consumes a symbol if it is next. Returns true if it was.
    pub fn eat_symbol(&mut self, symbol: u8) -> bool {
        let found = self.is_symbol(symbol);
        self.position += usize::from(found);
        found
    }

    /// Consumes the required symbol and returns its end offset.
    pub fn expect_symbol(&mut self, symbol: u8) -> Result<usize, SqlError> {
        match self.peek() {
            Some(token) if token.is_symbol(symbol) => {
                self.position += 1;
                Ok(token.end)
            }
            _ => Err(self.expected_error(&format!("`{}`", char::from(symbol)))),
        }
    }

    pub fn expect_word(&mut self, word: &str) -> Result<(), SqlError> {
        if self.eat_word(word) { Ok(()) } else { Err(self.expected_error(word)) }
    }

    /// Consumes the next token. Fails at the end of the query.
    pub fn expect_token(&mut self) -> Result<Token, SqlError> {
        let token = self.peek().ok_or_else(|| self.expected_error("more"))?;
        self.position += 1;
        Ok(token)
    }

    /// Returns the start of the next token.
    pub fn next_start(&self) -> usize {
        self.peek().map_or(self.sql.len(), |t| t.start)
    }

    /// Returns the end of the preceding token.
    pub fn previous_token_end(&self) -> usize {
        self.position.checked_sub(1).and_then(|n| self.tokens.get(n)).map_or(0, |t| t.end)
    }

    /// Creates an error for an unexpected token.
    pub fn expected_error(&self, expectation: &str) -> SqlError {
        let (span, message) = match self.peek() {
            Some(token) => (token.span(), format!("unexpected `{}`", token.text(self.sql))),
            None => {
                let end = self.sql.len();
                (end.saturating_sub(1)..end, "the query ends too early".to_owned())
            }
        };
        SqlError::new(span, message, format!("expected {expectation}"))
    }

    /// Runs `parse` one level deeper. Fails if the nesting is too deep.
    pub fn parse_nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        if self.depth >= MAX_DEPTH {
            let at = self.next_start();
            return Err(SqlError::new(
                at..(at + 1).min(self.sql.len()),
                format!("expressions are nested more than {MAX_DEPTH} levels deep"),
                "one too many",
            ));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Returns a new table alias that the query does not use.
    pub fn new_alias(&mut self) -> String {
        self.alias_count += 1;
        format!("hq_each{}", self.alias_count)
    }
}

/// Returns the end of the E'…' string whose opening quote is at `at`.
fn find_escaped_string_end(sql: &str, at: usize) -> Result<usize, SqlError> {
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

impl TypedSql {
    pub fn from_source(span: Range<usize>) -> Self {
        Self {
            text: vec![SourceFragment::Source(span.clone())],
            span,
            sql_type: SqlType::Unknown,
            precedence: PRIMARY,
        }
    }

    pub fn new(text: SqlText, span: Range<usize>) -> Self {
        Self { span, text, sql_type: SqlType::Unknown, precedence: PRIMARY }
    }

    /// Creates an expression from a template by replacing each `{}` with an operand.
    pub fn from_template(template: &str, operands: Vec<SqlText>, span: Range<usize>) -> Self {
        let mut text = Vec::new();
        let mut operands = operands.into_iter();
        for (n, word) in template.split("{}").enumerate() {
            if n > 0 {
                text.extend(operands.next().unwrap_or_default());
            }
            if !word.is_empty() {
                text.push(SourceFragment::Generated(word.to_owned(), span.clone()));
            }
        }
        Self::new(text, span)
    }

    /// Sets the type to boolean.
    pub fn with_boolean_type(self) -> Self {
        Self { sql_type: SqlType::Boolean, ..self }
    }

    /// Returns the text, in parentheses if its outermost part is an operator.
    pub fn into_parenthesized(self) -> SqlText {
        if self.precedence == PRIMARY {
            return self.text;
        }
        Self::from_template("({})", vec![self.text], self.span).text
    }
}

/// Precedence of expressions without an operator.
pub(super) const PRIMARY: u8 = 100;

/// Creates an error for a construct that has no translation to `SQLite`. `help` suggests what to
/// write instead.
pub(super) fn translation_error(span: Range<usize>, construct: &str, help: &str) -> SqlError {
    let message = format!("hqdl cannot translate {construct} to SQLite");
    SqlError::new(span, message, "here").with_help(help)
}

/// Prepends the source text that begins at `start` to an operand.
pub(super) fn prepend_source(start: usize, operand: TypedSql, precedence: u8) -> TypedSql {
    let span = start..operand.span.end;
    let mut text = vec![SourceFragment::Source(start..operand.span.start)];
    text.extend(operand.text);
    TypedSql { span, text, sql_type: SqlType::Unknown, precedence }
}

/// Joins expressions with the unchanged source text between them.
pub(super) fn join_exprs(start: usize, exprs: Vec<TypedSql>, end: usize) -> SqlText {
    let (mut text, mut at) = (Vec::new(), start);
    for expr in exprs {
        text.push(SourceFragment::Source(at..expr.span.start.max(at)));
        at = expr.span.end;
        text.extend(expr.text);
    }
    text.push(SourceFragment::Source(at..end.max(at)));
    text
}
