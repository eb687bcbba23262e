//! Syntax that only `PostgreSQL` has, in queries that are sent to a server:
//!
//! | syntax | node |
//! |---|---|
//! | `ILIKE`, `SIMILAR TO`, `~`, `!~*`, `~~` | LIKE |
//! | `DATE '…'`, `interval '…' day` | a literal |
//! | `x::numeric(5, 2)[]` | CAST |

use crate::blendsql::SqlError;
use crate::blendsql::lexer::Lexeme;
use crate::blendsql::parse::cursor::QueryParser;

/// Types whose name may precede a text.
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
/// Operators that compare a text with a pattern, ordered so that none is a prefix of a later one.
const PATTERN_OPERATORS: [&str; 8] = ["!~~*", "!~~", "!~*", "!~", "~~*", "~~", "~*", "~"];
/// Words that may follow the string of an interval.
const FIELDS: [&str; 6] = ["YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"];
/// Words that may follow the first word of a type name.
const MORE_OF_TYPE: [&str; 6] = ["PRECISION", "VARYING", "WITH", "WITHOUT", "TIME", "ZONE"];
/// Types whose name may have several words.
const LONG_TYPES: [&str; 4] = ["DOUBLE", "CHARACTER", "TIME", "TIMESTAMP"];

impl QueryParser<'_> {
    /// Returns the number of tokens of a literal that begins with its type.
    pub(super) fn typed_literal_token_count(&self) -> Option<usize> {
        let is_text = self.peek_after(1).is_some_and(|t| t.lexeme == Lexeme::Text);
        if !is_text || !TYPES.iter().any(|word| self.is_word(word)) {
            return None;
        }
        let has_field = self.is_word("INTERVAL") && FIELDS.iter().any(|f| self.is_word_after(2, f));
        Some(if has_field { 3 } else { 2 })
    }

    /// Returns the number of tokens of an operator that compares a text with a pattern.
    pub(super) fn pattern_operator_length(&self) -> Option<usize> {
        let rest = self.sql.get(self.peek()?.start..self.text_end)?;
        let sign = PATTERN_OPERATORS.into_iter().find(|sign| rest.starts_with(sign));
        sign.filter(|_| self.is_server).map(str::len)
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
                Some(token) if token.lexeme == Lexeme::Number => Ok(()),
                _ => Err(p.unexpected_error()),
            })?;
            self.expect_symbol(b')')?;
        }
        // The lexer reads `[]` as a quoted name.
        while self.peek().is_some_and(|t| t.lexeme == Lexeme::Name && self.text(t).starts_with('['))
        {
            self.at += 1;
        }
        Ok(self.sql.get(self.span_from(start)).unwrap_or_default().to_owned())
    }
}
