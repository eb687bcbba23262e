//! Parser of expressions, with `PostgreSQL`'s precedence.

use std::ops::Range;

use super::cast::CastTarget;
use super::parser::{ExprShape, Parser, Piece, joined, spliced, unsaid};
use super::text::Part;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Lexeme, Token};

pub(super) const OR: u8 = 1;
pub(super) const AND: u8 = 2;
pub(super) const NOT: u8 = 3;
pub(super) const IS: u8 = 4;
pub(super) const COMPARE: u8 = 5;
pub(super) const SPECIAL: u8 = 6;
pub(super) const OTHER: u8 = 7;
pub(super) const ADD: u8 = 8;
pub(super) const MULTIPLY: u8 = 9;
pub(super) const POWER: u8 = 10;
pub(super) const UNARY: u8 = 11;

/// Keywords that neither begin an expression nor can be an alias.
pub(super) const RESERVED: [&str; 42] = [
    "ALL",
    "AND",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CROSS",
    "DESC",
    "ELSE",
    "END",
    "EXCEPT",
    "FETCH",
    "FILTER",
    "FOR",
    "FROM",
    "FULL",
    "GROUP",
    "HAVING",
    "ILIKE",
    "IN",
    "INNER",
    "INTERSECT",
    "IS",
    "JOIN",
    "LEFT",
    "LIKE",
    "LIMIT",
    "NATURAL",
    "NULLS",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "OUTER",
    "RIGHT",
    "SELECT",
    "THEN",
    "UNION",
    "USING",
    "WHEN",
    "WHERE",
    "WINDOW",
];

impl Parser<'_> {
    pub fn expr(&mut self) -> Result<Piece, SqlError> {
        self.deeper(|p| p.binary(OR))
    }

    /// Parses a comma-separated list of expressions.
    pub fn list(&mut self) -> Result<Vec<Piece>, SqlError> {
        let mut all = vec![self.expr()?];
        while self.symbol(b',') {
            all.push(self.expr()?);
        }
        Ok(all)
    }

    /// Parses an expression of operators with at least this precedence.
    pub fn binary(&mut self, least: u8) -> Result<Piece, SqlError> {
        let mut left = self.prefix(least)?;
        loop {
            let Some(operator) = self.operator() else { return Ok(left) };
            if operator.level < least {
                return Ok(left);
            }
            left = self.deeper(|p| p.operation(left, &operator))?;
        }
    }

    fn prefix(&mut self, least: u8) -> Result<Piece, SqlError> {
        let start = self.here();
        if self.is_word("NOT") {
            let at = self.here();
            self.at += 1;
            let operand = self.deeper(|p| p.binary(NOT.max(least.min(NOT))))?;
            return Ok(spliced(at, Self::condition(operand), NOT).boolean());
        }
        if self.is(b'-') || self.is(b'+') {
            self.at += 1;
            let mut operand = self.deeper(|p| p.binary(UNARY))?;
            // In SQLite, || has a higher precedence than a sign.
            if operand.level < UNARY {
                let span = operand.span.clone();
                operand = Piece::new(operand.tight(), span);
            }
            let shape = match &operand.shape {
                number if number.is_number() => number.clone(),
                ExprShape::Date | ExprShape::Timestamp | ExprShape::Time | ExprShape::Boolean => {
                    return Err(unsaid(start..operand.span.end, "a sign without a number", ""));
                }
                _ => ExprShape::Number,
            };
            return Ok(Piece { shape, ..spliced(start, operand, UNARY) });
        }
        let mut piece = self.primary()?;
        loop {
            if self.peek().is_some_and(|t| t.lexeme == Lexeme::Colons) {
                self.at += 1;
                piece = self.cast(piece, start)?;
            } else if self.is(b'[') {
                piece = self.subscript(piece)?;
            } else if self.is_word("COLLATE") {
                self.at += 1;
                let name = self.take()?;
                // These collations compare byte by byte, as SQLite does.
                if !["C", "POSIX", "ucs_basic"].contains(&name.content(self.sql).as_ref()) {
                    return Err(unsaid(name.span(), "a collation of PostgreSQL", "leave it out"));
                }
                let span = start..name.span().end;
                let shape = piece.shape.clone();
                let text = Piece::filled("{} COLLATE BINARY", vec![piece.text], span.clone()).text;
                piece = Piece { shape, ..Piece::new(text, span) };
            } else if self.is_word("AT") && self.is_word_at(1, "TIME") {
                let span = self.here()..self.peek_at(2).map_or(self.sql.len(), |t| t.end);
                return Err(unsaid(span, "a time zone", "SQLite's times are in UTC"));
            } else {
                return Ok(piece);
            }
        }
    }

    fn primary(&mut self) -> Result<Piece, SqlError> {
        let Some(token) = self.peek() else { return Err(self.expected("an expression")) };
        match token.lexeme {
            Lexeme::Number | Lexeme::Parameter | Lexeme::Call => {
                self.at += 1;
                let mut piece = Piece::old(token.span());
                match token.lexeme {
                    Lexeme::Call => piece.shape = ExprShape::Call,
                    Lexeme::Number if token.text(self.sql).contains('.') => {
                        piece.shape = ExprShape::Numeric;
                    }
                    Lexeme::Number => piece.shape = ExprShape::Number,
                    _ => {}
                }
                Ok(piece)
            }
            // E'…' with escapes, and $$…$$.
            Lexeme::Text if !token.text(self.sql).starts_with('\'') => {
                self.at += 1;
                let text = if token.text(self.sql).starts_with('$') {
                    token.content(self.sql)
                } else {
                    let inside = token.start + 2..token.end - 1;
                    unescaped(self.sql.get(inside).unwrap_or_default())
                };
                let part = Part::New(hqdl_values::sql::text(&text), token.span());
                let shape = ExprShape::Literal(text);
                Ok(Piece { shape, ..Piece::new(vec![part], token.span()) })
            }
            Lexeme::Text => {
                self.at += 1;
                let shape = ExprShape::Literal(token.content(self.sql));
                Ok(Piece { shape, ..Piece::old(token.span()) })
            }
            Lexeme::Symbol(b'(') => self.parentheses(),
            Lexeme::Symbol(b'*') => {
                self.at += 1;
                Ok(Piece::old(token.span()))
            }
            Lexeme::Quoted | Lexeme::Name => self.named(),
            Lexeme::Word => {
                if let Some(special) = self.special(token)? {
                    return Ok(special);
                }
                if RESERVED.iter().any(|w| token.is_word(self.sql, w)) && !self.is_call(token) {
                    return Err(self.expected("an expression"));
                }
                self.named()
            }
            _ => Err(self.expected("an expression")),
        }
    }

    /// Returns true for `left(x, 1)` and `right(…)`: LEFT and RIGHT are also function names.
    fn is_call(&self, token: Token) -> bool {
        ["LEFT", "RIGHT"].iter().any(|w| token.is_word(self.sql, w))
            && self.peek_at(1).is_some_and(|t| t.is(b'('))
    }

    /// Returns true if a query begins at a token.
    pub fn query_at(&self, n: usize) -> bool {
        ["SELECT", "WITH", "VALUES", "TABLE"].iter().any(|w| self.is_word_at(n, w))
            || self.peek_at(n).is_some_and(|t| t.is(b'(')) && self.query_at_deeper(n + 1)
    }

    fn query_at_deeper(&self, n: usize) -> bool {
        let mut n = n;
        while self.peek_at(n).is_some_and(|t| t.is(b'(')) {
            n += 1;
        }
        ["SELECT", "WITH", "VALUES"].iter().any(|w| self.is_word_at(n, w)) && self.closes_query(n)
    }

    /// Returns true if the parentheses around the query at a token contain nothing else.
    fn closes_query(&self, n: usize) -> bool {
        let mut depth = 0_i32;
        let mut at = n;
        while let Some(token) = self.peek_at(at) {
            if token.is(b'(') {
                depth += 1;
            } else if token.is(b')') {
                depth -= 1;
                if depth < 0 {
                    let next = self.peek_at(at + 1);
                    let set = ["UNION", "EXCEPT", "INTERSECT", "ORDER", "LIMIT", "OFFSET", "FETCH"];
                    return next
                        .is_none_or(|t| t.is(b')') || set.iter().any(|w| t.is_word(self.sql, w)));
                }
            }
            at += 1;
        }
        false
    }

    fn parentheses(&mut self) -> Result<Piece, SqlError> {
        self.in_parentheses(false)
    }

    /// Parses the contents of parentheses. If `allows_no_columns` is true, a query in them may have
    /// no result columns.
    fn in_parentheses(&mut self, bare: bool) -> Result<Piece, SqlError> {
        let start = self.here();
        self.at += 1;
        if self.query_at(0) {
            let at = self.here();
            let text = self.deeper(|p| p.query_of(bare))?;
            let query = Piece::new(text, at..self.before());
            let end = self.expect(b')')?;
            let text = joined(start, vec![query], end);
            let shape = match self.columns.take().as_deref() {
                Some([(_, only)]) => only.clone(),
                _ => ExprShape::Plain,
            };
            return Ok(Piece { shape, ..Piece::new(text, start..end) });
        }
        let all = self.list()?;
        let end = self.expect(b')')?;
        let shape = match all.as_slice() {
            [one] => match &one.shape {
                ExprShape::Literal(_) => ExprShape::Plain,
                other => other.clone(),
            },
            row => ExprShape::Row(row.to_vec()),
        };
        if let ([one], ExprShape::Interval(_)) = (all.as_slice(), &shape) {
            return Ok(Piece { span: start..end, ..one.clone() });
        }
        for piece in &all {
            Self::no_span(piece)?;
        }
        let text = joined(start, all, end);
        Ok(Piece { shape, ..Piece::new(text, start..end) })
    }

    /// Fails for expressions that are not values: an interval, or a text cast to a possible ENUM.
    pub fn no_interval(piece: &Piece) -> Result<(), SqlError> {
        match &piece.shape {
            ExprShape::Enum(name) => Err(super::literal::no_type(name, piece.span.clone())),
            _ => Self::no_span(piece),
        }
    }

    /// Fails for an interval, which is not a value in `SQLite`.
    pub fn no_span(piece: &Piece) -> Result<(), SqlError> {
        match piece.shape {
            ExprShape::Interval(_) => Err(unsaid(
                piece.span.clone(),
                "an interval without a date",
                "add it to a date: d + INTERVAL '1 day'",
            )),
            _ => Ok(()),
        }
    }

    /// Parses a column or a function call.
    fn named(&mut self) -> Result<Piece, SqlError> {
        let first = self.take()?;
        let mut names = vec![first];
        while self.is(b'.') {
            self.at += 1;
            if self.is(b'*') {
                let star = self.take()?;
                let span = first.start..star.end;
                let table = names.last().map(|token| token.content(self.sql));
                return Ok(Piece::new(vec![Part::Star(span.clone(), table)], span));
            }
            let next = self.take()?;
            if !matches!(next.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name) {
                self.at -= 1;
                return Err(self.expected("a name"));
            }
            names.push(next);
        }
        if self.is(b'(') {
            return self.function(first, &names);
        }
        let span = first.start..self.before();
        let content = |t: &Token| t.content(self.sql);
        let part = match names.as_slice() {
            [column] => Part::Column(span.clone(), None, content(column)),
            [table, column] => Part::Column(span.clone(), Some(content(table)), content(column)),
            _ => Part::Old(span.clone()),
        };
        let alone = |word: &str| matches!(names.as_slice(), [one] if one.is_word(self.sql, word));
        let shape = match names.as_slice() {
            _ if alone("CURRENT_DATE") => ExprShape::Date,
            _ if alone("CURRENT_TIMESTAMP") || alone("LOCALTIMESTAMP") => ExprShape::Timestamp,
            _ if alone("TRUE") || alone("FALSE") => ExprShape::Boolean,
            _ if alone("NULL") => ExprShape::Plain,
            [column] => self.type_of(None, &content(column)),
            [table, column] => self.type_of(Some(&content(table)), &content(column)),
            _ => ExprShape::Plain,
        };
        Ok(Piece { shape, ..Piece::new(vec![part], span) })
    }

    /// Parses expressions that begin with a keyword.
    fn special(&mut self, token: Token) -> Result<Option<Piece>, SqlError> {
        let next = self.peek_at(1);
        let text_next = next.is_some_and(|t| t.lexeme == Lexeme::Text);
        let word = token.text(self.sql).to_ascii_uppercase();
        let opens = next.is_some_and(|t| t.is(b'('));
        match word.as_str() {
            "CASE" => self.case().map(Some),
            "EXISTS" if opens => {
                self.at += 1;
                let query = self.in_parentheses(true)?;
                Ok(Some(spliced(token.start, query, super::parser::PRIMARY).boolean()))
            }
            "CAST" if opens => self.cast_function().map(Some),
            "ARRAY" if opens || next.is_some_and(|t| t.is(b'[')) => self.array().map(Some),
            "ROW" if opens => {
                self.at += 1;
                let row = self.parentheses()?;
                Ok(Some(Piece { span: token.start..row.span.end, ..row }))
            }
            "EXTRACT" | "OVERLAY" | "POSITION" | "SUBSTRING" | "TRIM" if opens => {
                let shape = if word == "POSITION" { ExprShape::Number } else { ExprShape::Text };
                let of = |piece: Piece| match piece.shape {
                    ExprShape::Plain => Piece { shape, ..piece },
                    _ => piece,
                };
                Ok(self.worded(token, &word)?.map(of))
            }
            "INTERVAL" if text_next => {
                self.at += 2;
                self.interval(token.start..self.before()).map(Some)
            }
            "DATE" | "TIME" | "TIMESTAMP" | "TIMESTAMPTZ" if text_next => {
                self.at += 1;
                let text = self.primary()?;
                let target = match word.as_str() {
                    "DATE" => CastTarget::Date,
                    "TIME" => CastTarget::Time,
                    _ => CastTarget::Timestamp,
                };
                let span = token.start..text.span.end;
                if let ExprShape::Literal(said) = &text.shape
                    && let Some(piece) = super::literal::literal(target, said, &text.span)?
                {
                    return Ok(Some(Piece { span, ..piece }));
                }
                let shape = target.shape();
                Ok(Some(Piece { shape, ..Piece::filled(target.template(), vec![text.text], span) }))
            }
            "B" | "X" | "U" if text_next && next.is_some_and(|t| t.start == token.end) => {
                let span = token.start..next.map_or(token.end, |t| t.end);
                Err(unsaid(span, "a bit string", "write a number, or a text in '…'"))
            }
            _ => Ok(None),
        }
    }

    fn case(&mut self) -> Result<Piece, SqlError> {
        let start = self.here();
        self.at += 1;
        let (mut pieces, mut given) = (Vec::new(), Vec::new());
        let mut result = |parser: &mut Self, pieces: &mut Vec<Piece>| {
            given.push(pieces.len());
            pieces.push(parser.expr()?);
            Ok::<(), SqlError>(())
        };
        let has_operand = !self.is_word("WHEN");
        if has_operand {
            pieces.push(self.expr()?);
        }
        while self.word("WHEN") {
            let mut when = Self::condition(self.expr()?);
            if let Some(operand) = pieces.first_mut().filter(|_| has_operand) {
                (*operand, when) = Self::beside(operand.clone(), when)?;
            }
            pieces.push(when);
            self.expect_word("THEN")?;
            result(self, &mut pieces)?;
        }
        if self.word("ELSE") {
            result(self, &mut pieces)?;
        }
        self.expect_word("END")?;
        let end = self.before();
        let results = pieces.iter_mut().enumerate().filter(|(n, _)| given.contains(n));
        let shape = self.as_one(results.map(|(_, piece)| piece).collect())?;
        let text = joined(start, pieces, end);
        Ok(Piece { shape, ..Piece::new(text, start..end) })
    }

    /// Parses the subscript in `x[1]`.
    fn subscript(&mut self, of: Piece) -> Result<Piece, SqlError> {
        self.at += 1;
        let index = self.expr()?;
        if self.is(b':') || self.peek().is_some_and(|t| t.lexeme == Lexeme::Parameter) {
            return Err(unsaid(of.span.start..self.here() + 1, "a slice of an array", ""));
        }
        let end = self.expect(b']')?;
        let span = of.span.start..end;
        Ok(Piece::filled("suql_element({}, {})", vec![of.text, index.text], span))
    }
}

/// Decodes the escapes of an E'…' string.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            if c == '\'' {
                // Skip the second quote of a doubled one.
                chars.next();
            }
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(other) => out.push(other),
            None => out.push('\\'),
        }
    }
    out
}

/// Returns the byte range from one expression to another.
pub(super) fn across(left: &Piece, right: &Piece) -> Range<usize> {
    left.span.start..right.span.end
}
