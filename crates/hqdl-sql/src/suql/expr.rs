//! Parser of expressions, with `PostgreSQL`'s precedence.

use std::ops::Range;

use super::cast_target::CastTarget;
use super::parser::{Parser, SqlType, TypedSql, join_exprs, prepend_source, translation_error};
use super::text::SourceFragment;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};

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
pub(super) const RESERVED_WORDS: [&str; 42] = [
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
    pub fn parse_expr(&mut self) -> Result<TypedSql, SqlError> {
        self.parse_nested(|p| p.parse_binary(OR))
    }

    /// Parses a comma-separated list of expressions.
    pub fn parse_exprs(&mut self) -> Result<Vec<TypedSql>, SqlError> {
        let mut all = vec![self.parse_expr()?];
        while self.eat_symbol(b',') {
            all.push(self.parse_expr()?);
        }
        Ok(all)
    }

    /// Parses an expression whose operators have at least this precedence.
    pub fn parse_binary(&mut self, min_precedence: u8) -> Result<TypedSql, SqlError> {
        let mut left = self.parse_prefix(min_precedence)?;
        loop {
            let Some(operator) = self.peek_operator() else { return Ok(left) };
            if operator.precedence < min_precedence {
                return Ok(left);
            }
            left = self.parse_nested(|p| p.parse_operation(left, &operator))?;
        }
    }

    fn parse_prefix(&mut self, min_precedence: u8) -> Result<TypedSql, SqlError> {
        let start = self.next_start();
        if self.is_word("NOT") {
            let at = self.next_start();
            self.position += 1;
            let operand =
                self.parse_nested(|p| p.parse_binary(NOT.max(min_precedence.min(NOT))))?;
            return Ok(prepend_source(at, Self::to_condition(operand), NOT).with_boolean_type());
        }
        if self.is_symbol(b'-') || self.is_symbol(b'+') {
            self.position += 1;
            let mut operand = self.parse_nested(|p| p.parse_binary(UNARY))?;
            // In SQLite, || has a higher precedence than a sign.
            if operand.precedence < UNARY {
                let span = operand.span.clone();
                operand = TypedSql::new(operand.into_parenthesized(), span);
            }
            let sql_type = match &operand.sql_type {
                number if number.is_number() => number.clone(),
                SqlType::Date | SqlType::Timestamp | SqlType::Time | SqlType::Boolean => {
                    return Err(translation_error(
                        start..operand.span.end,
                        "a sign before a date, a time or a boolean",
                        "write a sign before numbers only",
                    ));
                }
                _ => SqlType::Integer,
            };
            return Ok(TypedSql { sql_type, ..prepend_source(start, operand, UNARY) });
        }
        let mut expr = self.parse_primary()?;
        loop {
            if self.peek().is_some_and(|t| t.lexeme == TokenKind::Colons) {
                self.position += 1;
                expr = self.parse_cast(expr, start)?;
            } else if self.is_symbol(b'[') {
                expr = self.parse_subscript(expr)?;
            } else if self.is_word("COLLATE") {
                self.position += 1;
                let name = self.expect_token()?;
                // These collations compare byte by byte, as SQLite does.
                if !["C", "POSIX", "ucs_basic"].contains(&name.unquoted_text(self.sql).as_ref()) {
                    return Err(translation_error(
                        name.span(),
                        "a PostgreSQL collation",
                        "leave COLLATE out; texts are compared byte by byte",
                    ));
                }
                let span = start..name.span().end;
                let sql_type = expr.sql_type.clone();
                let text =
                    TypedSql::from_template("{} COLLATE BINARY", vec![expr.text], span.clone())
                        .text;
                expr = TypedSql { sql_type, ..TypedSql::new(text, span) };
            } else if self.is_word("AT") && self.is_word_at(1, "TIME") {
                let span = self.next_start()..self.peek_at(2).map_or(self.sql.len(), |t| t.end);
                return Err(translation_error(
                    span,
                    "AT TIME ZONE",
                    "leave it out; all times are in UTC",
                ));
            } else {
                return Ok(expr);
            }
        }
    }

    fn parse_primary(&mut self) -> Result<TypedSql, SqlError> {
        let Some(token) = self.peek() else { return Err(self.expected_error("an expression")) };
        match token.lexeme {
            TokenKind::Number | TokenKind::Parameter | TokenKind::Call => {
                self.position += 1;
                let mut expr = TypedSql::from_source(token.span());
                match token.lexeme {
                    TokenKind::Call => expr.sql_type = SqlType::Call,
                    TokenKind::Number if token.text(self.sql).contains('.') => {
                        expr.sql_type = SqlType::Numeric;
                    }
                    TokenKind::Number => expr.sql_type = SqlType::Integer,
                    _ => {}
                }
                Ok(expr)
            }
            // E'…' with escapes, and $$…$$.
            TokenKind::Text if !token.text(self.sql).starts_with('\'') => {
                self.position += 1;
                let text = if token.text(self.sql).starts_with('$') {
                    token.unquoted_text(self.sql)
                } else {
                    let inside = token.start + 2..token.end - 1;
                    unescape(self.sql.get(inside).unwrap_or_default())
                };
                let fragment =
                    SourceFragment::Generated(hqdl_values::sql::quote_text(&text), token.span());
                let sql_type = SqlType::Literal(text);
                Ok(TypedSql { sql_type, ..TypedSql::new(vec![fragment], token.span()) })
            }
            TokenKind::Text => {
                self.position += 1;
                let sql_type = SqlType::Literal(token.unquoted_text(self.sql));
                Ok(TypedSql { sql_type, ..TypedSql::from_source(token.span()) })
            }
            TokenKind::Symbol(b'(') => self.parse_parentheses(),
            TokenKind::Symbol(b'*') => {
                self.position += 1;
                Ok(TypedSql::from_source(token.span()))
            }
            TokenKind::Quoted | TokenKind::Name => self.parse_name(),
            TokenKind::Word => {
                if let Some(special) = self.parse_keyword_expression(token)? {
                    return Ok(special);
                }
                if RESERVED_WORDS.iter().any(|w| token.is_word(self.sql, w))
                    && !self.is_left_or_right_call(token)
                {
                    return Err(self.expected_error("an expression"));
                }
                self.parse_name()
            }
            _ => Err(self.expected_error("an expression")),
        }
    }

    /// Returns true for `left(x, 1)` and `right(…)`: LEFT and RIGHT are keywords as well as
    /// function names.
    fn is_left_or_right_call(&self, token: Token) -> bool {
        ["LEFT", "RIGHT"].iter().any(|w| token.is_word(self.sql, w))
            && self.peek_at(1).is_some_and(|t| t.is_symbol(b'('))
    }

    /// Returns true if a query begins at a token.
    pub fn is_query_at(&self, n: usize) -> bool {
        ["SELECT", "WITH", "VALUES", "TABLE"].iter().any(|w| self.is_word_at(n, w))
            || self.peek_at(n).is_some_and(|t| t.is_symbol(b'(')) && self.is_nested_query_at(n + 1)
    }

    fn is_nested_query_at(&self, n: usize) -> bool {
        let mut n = n;
        while self.peek_at(n).is_some_and(|t| t.is_symbol(b'(')) {
            n += 1;
        }
        ["SELECT", "WITH", "VALUES"].iter().any(|w| self.is_word_at(n, w))
            && self.is_closed_query(n)
    }

    /// Returns true if the parentheses around the query at a token contain nothing else.
    fn is_closed_query(&self, n: usize) -> bool {
        let mut depth = 0_i32;
        let mut at = n;
        while let Some(token) = self.peek_at(at) {
            if token.is_symbol(b'(') {
                depth += 1;
            } else if token.is_symbol(b')') {
                depth -= 1;
                if depth < 0 {
                    let next = self.peek_at(at + 1);
                    let set = ["UNION", "EXCEPT", "INTERSECT", "ORDER", "LIMIT", "OFFSET", "FETCH"];
                    return next.is_none_or(|t| {
                        t.is_symbol(b')') || set.iter().any(|w| t.is_word(self.sql, w))
                    });
                }
            }
            at += 1;
        }
        false
    }

    fn parse_parentheses(&mut self) -> Result<TypedSql, SqlError> {
        self.parse_in_parentheses(false)
    }

    /// Parses the contents of parentheses. If `allows_no_columns` is true, a query in them may have
    /// no result columns.
    fn parse_in_parentheses(&mut self, allows_no_columns: bool) -> Result<TypedSql, SqlError> {
        let start = self.next_start();
        self.position += 1;
        if self.is_query_at(0) {
            let at = self.next_start();
            let text = self.parse_nested(|p| p.parse_nested_query(allows_no_columns))?;
            let query = TypedSql::new(text, at..self.previous_token_end());
            let end = self.expect_symbol(b')')?;
            let text = join_exprs(start, vec![query], end);
            let sql_type = match self.columns.take().as_deref() {
                Some([(_, only)]) => only.clone(),
                _ => SqlType::Unknown,
            };
            return Ok(TypedSql { sql_type, ..TypedSql::new(text, start..end) });
        }
        let all = self.parse_exprs()?;
        let end = self.expect_symbol(b')')?;
        let sql_type = match all.as_slice() {
            [one] => match &one.sql_type {
                SqlType::Literal(_) => SqlType::Unknown,
                other => other.clone(),
            },
            row => SqlType::Row(row.to_vec()),
        };
        if let ([one], SqlType::Interval(_)) = (all.as_slice(), &sql_type) {
            return Ok(TypedSql { span: start..end, ..one.clone() });
        }
        for expr in &all {
            Self::ensure_not_interval(expr)?;
        }
        let text = join_exprs(start, all, end);
        Ok(TypedSql { sql_type, ..TypedSql::new(text, start..end) })
    }

    /// Fails for expressions that are not values: an interval, or a text cast to a possible ENUM.
    pub fn ensure_value(expr: &TypedSql) -> Result<(), SqlError> {
        match &expr.sql_type {
            SqlType::Enum(name) => Err(super::literal::unknown_type_error(name, expr.span.clone())),
            _ => Self::ensure_not_interval(expr),
        }
    }

    /// Fails for an interval, which is not a value in `SQLite`.
    pub fn ensure_not_interval(expr: &TypedSql) -> Result<(), SqlError> {
        match expr.sql_type {
            SqlType::Interval(_) => Err(translation_error(
                expr.span.clone(),
                "an interval that is not added to a date",
                "add it to a date: d + INTERVAL '1 day'",
            )),
            _ => Ok(()),
        }
    }

    /// Parses a column or a function call.
    fn parse_name(&mut self) -> Result<TypedSql, SqlError> {
        let first = self.expect_token()?;
        let mut names = vec![first];
        while self.is_symbol(b'.') {
            self.position += 1;
            if self.is_symbol(b'*') {
                let star = self.expect_token()?;
                let span = first.start..star.end;
                let table = names.last().map(|token| token.unquoted_text(self.sql));
                return Ok(TypedSql::new(vec![SourceFragment::Star(span.clone(), table)], span));
            }
            let next = self.expect_token()?;
            if !matches!(next.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name) {
                self.position -= 1;
                return Err(self.expected_error("a name"));
            }
            names.push(next);
        }
        if self.is_symbol(b'(') {
            return self.parse_function(first, &names);
        }
        let span = first.start..self.previous_token_end();
        let content = |t: &Token| t.unquoted_text(self.sql);
        let fragment = match names.as_slice() {
            [column] => SourceFragment::Column(span.clone(), None, content(column)),
            [table, column] => {
                SourceFragment::Column(span.clone(), Some(content(table)), content(column))
            }
            _ => SourceFragment::Source(span.clone()),
        };
        let is_single =
            |word: &str| matches!(names.as_slice(), [one] if one.is_word(self.sql, word));
        let sql_type = match names.as_slice() {
            _ if is_single("CURRENT_DATE") => SqlType::Date,
            _ if is_single("CURRENT_TIMESTAMP") || is_single("LOCALTIMESTAMP") => {
                SqlType::Timestamp
            }
            _ if is_single("TRUE") || is_single("FALSE") => SqlType::Boolean,
            _ if is_single("NULL") => SqlType::Unknown,
            [column] => self.find_column_type(None, &content(column)),
            [table, column] => self.find_column_type(Some(&content(table)), &content(column)),
            _ => SqlType::Unknown,
        };
        Ok(TypedSql { sql_type, ..TypedSql::new(vec![fragment], span) })
    }

    /// Parses an expression that begins with a keyword. Returns `None` for any other token.
    fn parse_keyword_expression(&mut self, token: Token) -> Result<Option<TypedSql>, SqlError> {
        let next = self.peek_at(1);
        let text_next = next.is_some_and(|t| t.lexeme == TokenKind::Text);
        let word = token.text(self.sql).to_ascii_uppercase();
        let opens = next.is_some_and(|t| t.is_symbol(b'('));
        match word.as_str() {
            "CASE" => self.parse_case().map(Some),
            "EXISTS" if opens => {
                self.position += 1;
                let query = self.parse_in_parentheses(true)?;
                Ok(Some(
                    prepend_source(token.start, query, super::parser::PRIMARY).with_boolean_type(),
                ))
            }
            "CAST" if opens => self.parse_cast_function().map(Some),
            "ARRAY" if opens || next.is_some_and(|t| t.is_symbol(b'[')) => {
                self.parse_array().map(Some)
            }
            "ROW" if opens => {
                self.position += 1;
                let row = self.parse_parentheses()?;
                Ok(Some(TypedSql { span: token.start..row.span.end, ..row }))
            }
            "EXTRACT" | "OVERLAY" | "POSITION" | "SUBSTRING" | "TRIM" if opens => {
                let sql_type = if word == "POSITION" { SqlType::Integer } else { SqlType::Text };
                let with_type = |expr: TypedSql| match expr.sql_type {
                    SqlType::Unknown => TypedSql { sql_type, ..expr },
                    _ => expr,
                };
                Ok(self.parse_special_syntax(token, &word)?.map(with_type))
            }
            "INTERVAL" if text_next => {
                self.position += 2;
                self.parse_interval(token.start..self.previous_token_end()).map(Some)
            }
            "DATE" | "TIME" | "TIMESTAMP" | "TIMESTAMPTZ" if text_next => {
                self.position += 1;
                let text = self.parse_primary()?;
                let target = match word.as_str() {
                    "DATE" => CastTarget::Date,
                    "TIME" => CastTarget::Time,
                    _ => CastTarget::Timestamp,
                };
                let span = token.start..text.span.end;
                if let SqlType::Literal(literal_text) = &text.sql_type
                    && let Some(expr) =
                        super::literal::convert_literal_text(target, literal_text, &text.span)?
                {
                    return Ok(Some(TypedSql { span, ..expr }));
                }
                let sql_type = target.sql_type();
                Ok(Some(TypedSql {
                    sql_type,
                    ..TypedSql::from_template(target.template(), vec![text.text], span)
                }))
            }
            "B" | "X" | "U" if text_next && next.is_some_and(|t| t.start == token.end) => {
                let span = token.start..next.map_or(token.end, |t| t.end);
                Err(translation_error(span, "a bit string", "write a number, or a text in '…'"))
            }
            _ => Ok(None),
        }
    }

    fn parse_case(&mut self) -> Result<TypedSql, SqlError> {
        let start = self.next_start();
        self.position += 1;
        let (mut exprs, mut result_positions) = (Vec::new(), Vec::new());
        let mut parse_result = |parser: &mut Self, exprs: &mut Vec<TypedSql>| {
            result_positions.push(exprs.len());
            exprs.push(parser.parse_expr()?);
            Ok::<(), SqlError>(())
        };
        let has_operand = !self.is_word("WHEN");
        if has_operand {
            exprs.push(self.parse_expr()?);
        }
        while self.eat_word("WHEN") {
            let mut when = Self::to_condition(self.parse_expr()?);
            if let Some(operand) = exprs.first_mut().filter(|_| has_operand) {
                (*operand, when) = Self::unify_operands(operand.clone(), when)?;
            }
            exprs.push(when);
            self.expect_word("THEN")?;
            parse_result(self, &mut exprs)?;
        }
        if self.eat_word("ELSE") {
            parse_result(self, &mut exprs)?;
        }
        self.expect_word("END")?;
        let end = self.previous_token_end();
        let results = exprs.iter_mut().enumerate().filter(|(n, _)| result_positions.contains(n));
        let sql_type = self.coerce_to_common_type(results.map(|(_, expr)| expr).collect())?;
        let text = join_exprs(start, exprs, end);
        Ok(TypedSql { sql_type, ..TypedSql::new(text, start..end) })
    }

    /// Parses the subscript in `x[1]`.
    fn parse_subscript(&mut self, array: TypedSql) -> Result<TypedSql, SqlError> {
        self.position += 1;
        let index = self.parse_expr()?;
        if self.is_symbol(b':') || self.peek().is_some_and(|t| t.lexeme == TokenKind::Parameter) {
            return Err(translation_error(
                array.span.start..self.next_start() + 1,
                "a slice of an array",
                "select single elements: a[1]",
            ));
        }
        let end = self.expect_symbol(b']')?;
        let span = array.span.start..end;
        Ok(TypedSql::from_template("suql_element({}, {})", vec![array.text, index.text], span))
    }
}

/// Decodes the escapes of an E'…' string.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            if c == '\'' {
                // Skip the second quote of a doubled quote.
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
pub(super) fn join_spans(left: &TypedSql, right: &TypedSql) -> Range<usize> {
    left.span.start..right.span.end
}
