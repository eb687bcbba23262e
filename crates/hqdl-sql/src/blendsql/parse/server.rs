//! Syntax that only `PostgreSQL` has, in queries that are sent to a server:
//!
//! | syntax | node |
//! |---|---|
//! | `ILIKE`, `SIMILAR TO`, `~`, `!~*`, `~~` | LIKE |
//! | `DATE '…'`, `interval '…' day` | a literal |
//! | `x::numeric(5, 2)[]` | CAST |
//! | `x AT TIME ZONE y`, `x @> y`, `x ^ y` | a binary operation |
//! | `ARRAY[…]`, `x[1]` | a literal, `x` |
//! | `ANY (…)`, `ARRAY (…)` | the query or expression in parentheses |
//! | `extract(year FROM x)`, `position(x IN y)` | a function |
//! | `mode() WITHIN GROUP (ORDER BY x)` | a function with the argument `x` |
//! | `FETCH FIRST n ROWS ONLY` | LIMIT |

use crate::blendsql::SqlError;
use crate::blendsql::lexer::TokenKind;
use crate::blendsql::parse::cursor::QueryParser;
use crate::blendsql::parse::expr::Precedence;
use crate::blendsql::tree::Expr;

/// Types whose name may precede a string literal.
const TYPES: [&str; 12] = [
    "DATE",
    "TIME",
    "TIMETZ",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "INTERVAL",
    "NUMERIC",
    "INTEGER",
    "BOOLEAN",
    "UUID",
    "JSON",
    "JSONB",
];
/// Operators that compare a text with a pattern, ordered so that no operator is a prefix of a later
/// one.
const PATTERN_OPERATORS: [&str; 8] = ["!~~*", "!~~", "!~*", "!~", "~~*", "~~", "~*", "~"];
/// Binary operators that `SQLite` does not have, ordered so that no operator is a prefix of a later
/// one.
const BINARY_OPERATORS: [&str; 8] = ["@>", "<@", "&&", "#>>", "#>", "#-", "^@", "^"];
/// Functions whose arguments are separated by words instead of commas, with the separating words.
const WORD_SEPARATED: [(&str, &[&str]); 5] = [
    ("extract", &["FROM"]),
    ("overlay", &["PLACING", "FROM", "FOR"]),
    ("position", &["IN"]),
    ("substring", &["FROM", "FOR", "SIMILAR", "ESCAPE"]),
    ("trim", &["FROM"]),
];
/// Words before a query or an array in parentheses.
const QUANTIFIERS: [&str; 4] = ["ALL", "ANY", "ARRAY", "SOME"];
/// Words that may follow the string of an interval.
const FIELDS: [&str; 6] = ["YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"];
/// Words that may follow the first word of a type name.
const MORE_OF_TYPE: [&str; 6] = ["PRECISION", "VARYING", "WITH", "WITHOUT", "TIME", "ZONE"];
/// Types whose name may have several words.
const LONG_TYPES: [&str; 4] = ["DOUBLE", "CHARACTER", "TIME", "TIMESTAMP"];

impl QueryParser<'_> {
    /// Returns the number of tokens of the next literal if the literal begins with its type.
    pub(super) fn typed_literal_token_count(&self) -> Option<usize> {
        let is_text = self.peek_after(1).is_some_and(|t| t.lexeme == TokenKind::Text);
        if !is_text || !TYPES.iter().any(|word| self.is_word(word)) {
            return None;
        }
        let has_field = self.is_word("INTERVAL") && FIELDS.iter().any(|f| self.is_word_after(2, f));
        Some(if has_field { 3 } else { 2 })
    }

    /// Returns the number of tokens of the next operator if it compares a text with a pattern.
    pub(super) fn pattern_operator_length(&self) -> Option<usize> {
        let rest = self.sql.get(self.peek()?.start..self.text_end)?;
        let sign = PATTERN_OPERATORS.into_iter().find(|sign| rest.starts_with(sign));
        sign.filter(|_| self.is_server).map(str::len)
    }

    /// Returns the next binary operator if `SQLite` does not have it.
    pub(super) fn peek_server_operator(&self) -> Option<&'static str> {
        let rest = self.sql.get(self.peek()?.start..self.text_end)?;
        BINARY_OPERATORS.into_iter().find(|sign| self.is_server && rest.starts_with(sign))
    }

    /// Returns true if ANY, ALL, SOME or ARRAY is next, followed by an opening parenthesis.
    pub(super) fn begins_quantifier(&self) -> bool {
        let is_quantifier = QUANTIFIERS.iter().any(|word| self.is_word(word));
        self.is_server && is_quantifier && self.is_symbol_after(1, b'(')
    }

    /// Returns true if an array `ARRAY[…]` is next. The lexer reads `[…]` as a quoted name.
    pub(super) fn begins_array(&self) -> bool {
        let is_list = |token| self.text(token).starts_with('[');
        self.is_server && self.is_word("ARRAY") && self.peek_after(1).is_some_and(is_list)
    }

    /// Skips the subscripts of an array. The lexer reads `[1]` as a quoted name.
    pub(super) fn skip_subscripts(&mut self) {
        while self.is_server
            && self
                .peek()
                .is_some_and(|t| t.lexeme == TokenKind::Name && self.text(t).starts_with('['))
        {
            self.at += 1;
        }
    }

    /// Parses a function's arguments, which may be separated by words instead of commas.
    pub(super) fn parse_server_arguments(&mut self, function: &str) -> Result<Vec<Expr>, SqlError> {
        let separators =
            WORD_SEPARATED.iter().find(|(name, _)| self.is_server && *name == function);
        let Some((_, separators)) = separators else { return self.read_list(Self::parse_expr) };
        if function == "extract" {
            // The field is a keyword or a string, not a column.
            self.advance();
            self.expect_word("FROM")?;
        } else if function == "trim" {
            let _side = ["BOTH", "LEADING", "TRAILING"].iter().any(|word| self.eat_word(word));
            self.eat_word("FROM");
        }
        let mut arguments = Vec::new();
        loop {
            arguments.push(self.parse_binary(Precedence::Order, false)?);
            if !self.eat_symbol(b',') && !separators.iter().any(|word| self.eat_word(word)) {
                return Ok(arguments);
            }
        }
    }

    /// Parses WITHIN GROUP (ORDER BY …) if it is next.
    pub(super) fn parse_within_group(&mut self) -> Result<Vec<Expr>, SqlError> {
        if !self.is_server || !self.is_word("WITHIN") || !self.is_word_after(1, "GROUP") {
            return Ok(Vec::new());
        }
        self.at += 2;
        self.expect_symbol(b'(')?;
        let terms = self.parse_order_by()?;
        self.expect_symbol(b')')?;
        Ok(terms.into_iter().map(|term| term.expr).collect())
    }

    /// Parses LIMIT, OFFSET and FETCH in any order. Returns the limit and the offset.
    pub(super) fn parse_server_limit(&mut self) -> Result<(Option<Expr>, Option<Expr>), SqlError> {
        let (mut limit, mut offset) = (None, None);
        loop {
            if self.eat_word("LIMIT") {
                limit = if self.eat_word("ALL") { None } else { Some(self.parse_expr()?) };
            } else if self.eat_word("OFFSET") {
                offset = Some(self.parse_expr()?);
                let _unit = self.eat_word("ROWS") || self.eat_word("ROW");
            } else if self.eat_word("FETCH") {
                if !self.eat_word("FIRST") {
                    self.expect_word("NEXT")?;
                }
                if !self.is_word("ROW") && !self.is_word("ROWS") {
                    limit = Some(self.parse_expr()?);
                }
                if !self.eat_word("ROWS") {
                    self.expect_word("ROW")?;
                }
                if self.eat_word("WITH") {
                    // `WITH TIES` can return more rows than the limit.
                    self.expect_word("TIES")?;
                    limit = None;
                } else {
                    self.expect_word("ONLY")?;
                }
            } else {
                return Ok((limit, offset));
            }
        }
    }

    /// Reads the type after a `::`.
    pub(super) fn read_server_type(&mut self) -> Result<String, SqlError> {
        let start = self.next_start();
        let is_long = LONG_TYPES.iter().any(|word| self.is_word(word));
        self.read_name()?;
        while is_long && MORE_OF_TYPE.iter().any(|word| self.is_word(word)) {
            self.at += 1;
        }
        if self.eat_symbol(b'(') {
            self.read_list(|p| match p.advance() {
                Some(token) if token.lexeme == TokenKind::Number => Ok(()),
                _ => Err(p.unexpected_error()),
            })?;
            self.expect_symbol(b')')?;
        }
        self.skip_subscripts();
        Ok(self.sql.get(self.span_from(start)).unwrap_or_default().to_owned())
    }
}
