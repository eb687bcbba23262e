//! Grammar of expressions, by operator precedence.

use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind, is_word_byte};
use crate::blendsql::parse::cursor::QueryParser;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator, MatchOperator, WindowSpec};

/// Operator precedence; a higher precedence binds tighter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Precedence {
    Or,
    And,
    Not,
    /// IS in `PostgreSQL`.
    Is,
    /// Any comparison in `PostgreSQL`.
    Equality,
    Order,
    /// IN, LIKE and BETWEEN in `PostgreSQL`.
    Special,
    /// Any operator of `PostgreSQL` that has no other precedence.
    Bits,
    Sum,
    Product,
    /// `^` in `PostgreSQL`.
    Concatenation,
    Collation,
    Prefix,
    /// An expression without an operator.
    Primary,
}

impl Precedence {
    /// Returns the precedence that binds one step tighter.
    fn next_tighter(self) -> Self {
        match self {
            Self::Or => Self::And,
            Self::And => Self::Not,
            Self::Not => Self::Is,
            Self::Is => Self::Equality,
            Self::Equality => Self::Order,
            Self::Order => Self::Special,
            Self::Special => Self::Bits,
            Self::Bits => Self::Sum,
            Self::Sum => Self::Product,
            Self::Product => Self::Concatenation,
            Self::Concatenation => Self::Collation,
            Self::Collation | Self::Prefix | Self::Primary => Self::Prefix,
        }
    }
}

/// Operator that follows an operand.
#[derive(Debug, Clone, Copy)]
enum Infix {
    And,
    Or,
    Compare(&'static str),
    Binary(&'static str),
    Is,
    /// ISNULL, NOTNULL or NOT NULL.
    NullTest,
    Between,
    In,
    Match(MatchOperator),
    Collate,
    /// `::` with a type.
    Cast,
}

impl Infix {
    /// Returns the operator's precedence in `PostgreSQL`.
    fn postgres_level(self) -> Precedence {
        match self {
            Self::Or => Precedence::Or,
            Self::And => Precedence::And,
            Self::Is | Self::NullTest => Precedence::Is,
            Self::Compare(_) => Precedence::Equality,
            Self::Between | Self::In | Self::Match(_) => Precedence::Special,
            Self::Binary("+" | "-") => Precedence::Sum,
            Self::Binary("*" | "/" | "%") => Precedence::Product,
            Self::Binary("^") => Precedence::Concatenation,
            Self::Binary(_) => Precedence::Bits,
            Self::Collate => Precedence::Collation,
            Self::Cast => Precedence::Prefix,
        }
    }
}

/// Returns the operator that consists of these symbols, and its precedence in `SQLite`.
fn find_infix(sign: &str) -> Option<(Infix, Precedence)> {
    Some(match sign {
        "=" | "==" => (Infix::Compare("="), Precedence::Equality),
        "<>" | "!=" => (Infix::Compare("<>"), Precedence::Equality),
        "<" => (Infix::Compare("<"), Precedence::Order),
        "<=" => (Infix::Compare("<="), Precedence::Order),
        ">" => (Infix::Compare(">"), Precedence::Order),
        ">=" => (Infix::Compare(">="), Precedence::Order),
        "&" => (Infix::Binary("&"), Precedence::Bits),
        "|" => (Infix::Binary("|"), Precedence::Bits),
        "<<" => (Infix::Binary("<<"), Precedence::Bits),
        ">>" => (Infix::Binary(">>"), Precedence::Bits),
        "+" => (Infix::Binary("+"), Precedence::Sum),
        "-" => (Infix::Binary("-"), Precedence::Sum),
        "*" => (Infix::Binary("*"), Precedence::Product),
        "/" => (Infix::Binary("/"), Precedence::Product),
        "%" => (Infix::Binary("%"), Precedence::Product),
        "||" => (Infix::Binary("||"), Precedence::Concatenation),
        "->" => (Infix::Binary("->"), Precedence::Concatenation),
        "->>" => (Infix::Binary("->>"), Precedence::Concatenation),
        _ => return None,
    })
}

impl QueryParser<'_> {
    /// Parses an expression up to the first token that does not belong to it.
    pub fn parse_expr(&mut self) -> Result<Expr, SqlError> {
        self.parse_binary(Precedence::Or, false)
    }

    /// Parses an expression whose operators bind at least as tightly as `loosest`. If `ends_at_and`
    /// is true, stops before an AND, which then belongs to an enclosing BETWEEN.
    pub(super) fn parse_binary(
        &mut self,
        loosest: Precedence,
        ends_at_and: bool,
    ) -> Result<Expr, SqlError> {
        let start = self.next_start();
        let around = std::mem::take(&mut self.height);
        let mut left = self.parse_nested(Self::parse_operand)?;
        while let Some((infix, tokens, precedence)) = self.peek_infix(&left) {
            if precedence < loosest || ends_at_and && matches!(infix, Infix::And) {
                break;
            }
            self.at += tokens;
            let left_height = self.height;
            let kind = self.parse_nested(|p| p.parse_right_side(infix, precedence, left))?;
            self.height = self.height.max(left_height + 1);
            self.check_height(start)?;
            left = Expr { span: self.span_from(start), kind };
        }
        self.height = self.height.max(around);
        Ok(left)
    }

    /// Returns the operator after `left`, its number of tokens, and its precedence.
    fn peek_infix(&self, left: &Expr) -> Option<(Infix, usize, Precedence)> {
        let token = self.peek()?;
        if let Some(tokens) = self.pattern_operator_length() {
            return Some((Infix::Match(MatchOperator::Like), tokens, Precedence::Bits));
        }
        if let Some(sign) = self.peek_postgres_operator() {
            let infix = Infix::Binary(sign);
            return Some((infix, sign.len(), infix.postgres_level()));
        }
        if let Some((sign, tokens)) = self.peek_operator() {
            if sign == "::" {
                let is_cast = self.is_postgres || self.is_legacy_cast(left);
                return is_cast.then_some((Infix::Cast, 1, Precedence::Prefix));
            }
            let (infix, level) = find_infix(sign)?;
            return Some((
                infix,
                tokens,
                if self.is_postgres { infix.postgres_level() } else { level },
            ));
        }
        if token.lexeme != TokenKind::Word {
            return None;
        }
        if self.is_word("AND") {
            return Some((Infix::And, 1, Precedence::And));
        }
        if self.is_word("OR") {
            return Some((Infix::Or, 1, Precedence::Or));
        }
        if self.is_word("COLLATE") {
            return Some((Infix::Collate, 1, Precedence::Collation));
        }
        if self.is_postgres && self.is_word("AT") && self.is_word_after(1, "TIME") {
            return Some((Infix::Binary("AT TIME ZONE"), 3, Precedence::Collation));
        }
        let (infix, tokens) = self.peek_equality()?;
        let level = if self.is_postgres { infix.postgres_level() } else { Precedence::Equality };
        Some((infix, tokens, level))
    }

    /// Returns the next operator if it begins with a word and has the precedence of `=`, and its
    /// number of tokens.
    fn peek_equality(&self) -> Option<(Infix, usize)> {
        let not = usize::from(self.is_word("NOT"));
        let is = |word: &str| self.is_word_after(not, word);
        if not == 0 && self.is_word("IS") {
            return Some((Infix::Is, 1));
        }
        if not == 0 && (self.is_word("ISNULL") || self.is_word("NOTNULL")) {
            return Some((Infix::NullTest, 1));
        }
        if not == 1 && is("NULL") {
            return Some((Infix::NullTest, 2));
        }
        if is("BETWEEN") {
            return Some((Infix::Between, not + 1));
        }
        if is("IN") {
            return Some((Infix::In, not + 1));
        }
        if self.is_postgres && is("SIMILAR") && self.is_word_after(not + 1, "TO") {
            return Some((Infix::Match(MatchOperator::Like), not + 2));
        }
        let operators = [
            ("LIKE", MatchOperator::Like),
            ("GLOB", MatchOperator::Glob),
            ("MATCH", MatchOperator::Match),
            ("REGEXP", MatchOperator::Regexp),
        ];
        let postgres = [("LIKE", MatchOperator::Like), ("ILIKE", MatchOperator::Like)];
        let operators = if self.is_postgres { &postgres[..] } else { &operators };
        let found = operators.iter().copied().find(|(word, _)| is(word));
        found.map(|(_, operator)| (Infix::Match(operator), not + 1))
    }

    /// Parses the part of an expression that follows an operator.
    fn parse_right_side(
        &mut self,
        infix: Infix,
        precedence: Precedence,
        left: Expr,
    ) -> Result<ExprKind, SqlError> {
        let tighter = precedence.next_tighter();
        Ok(match infix {
            Infix::And => {
                let right = self.parse_binary(tighter, false)?;
                ExprKind::And(join_operands(left, right, |kind| match kind {
                    ExprKind::And(parts) => Ok(parts),
                    other => Err(other),
                }))
            }
            Infix::Or => {
                let right = self.parse_binary(tighter, false)?;
                ExprKind::Or(join_operands(left, right, |kind| match kind {
                    ExprKind::Or(parts) => Ok(parts),
                    other => Err(other),
                }))
            }
            Infix::Compare(sign) => {
                let right = self.parse_comparand(tighter)?;
                ExprKind::Compare(sign, Box::new(left), Box::new(right))
            }
            Infix::Binary(sign) => {
                let right = self.parse_binary(tighter, false)?;
                ExprKind::Operation(ExprOperator::Infix(sign), vec![left, right])
            }
            Infix::Is => self.parse_is(left)?,
            Infix::NullTest => ExprKind::Operation(ExprOperator::NullTest, vec![left]),
            Infix::Between => {
                let _symmetric = self.is_postgres && self.eat_word("SYMMETRIC");
                let loosest = if self.is_postgres { tighter } else { Precedence::Or };
                let low = self.parse_binary(loosest, true)?;
                self.expect_word("AND")?;
                let high = self.parse_binary(tighter, false)?;
                ExprKind::Operation(ExprOperator::Between, vec![left, low, high])
            }
            Infix::In => self.parse_in(left)?,
            Infix::Match(operator) => {
                let mut operands = vec![left, self.parse_comparand(tighter)?];
                if self.eat_word("ESCAPE") {
                    operands.push(self.parse_binary(tighter, false)?);
                }
                ExprKind::Operation(ExprOperator::Match(operator), operands)
            }
            Infix::Collate => {
                let name = self.read_name()?;
                ExprKind::Operation(ExprOperator::Collate(name), vec![left])
            }
            Infix::Cast => {
                let colons = self.previous_token_end() - 2;
                let type_name = self.read_postgres_type()?;
                self.replace_legacy_cast(&left, colons, &type_name)?;
                ExprKind::Cast(Box::new(left), type_name)
            }
        })
    }

    /// Parses the right side of a comparison. A cast after ANY (…) applies to the comparison.
    fn parse_comparand(&mut self, loosest: Precedence) -> Result<Expr, SqlError> {
        if self.begins_quantifier() {
            return self.parse_nested(Self::parse_operand);
        }
        self.parse_binary(loosest, false)
    }

    /// Parses the part of an expression that follows IS.
    fn parse_is(&mut self, left: Expr) -> Result<ExprKind, SqlError> {
        let not = self.eat_word("NOT");
        let distinct = self.eat_word("DISTINCT");
        if distinct {
            self.expect_word("FROM")?;
        }
        // The right side of `PostgreSQL`'s IS is a keyword, except after DISTINCT FROM.
        let right = match (self.is_postgres, distinct) {
            (true, false) => self.parse_operand()?,
            (true, true) => self.parse_binary(Precedence::Equality, false)?,
            _ => self.parse_binary(Precedence::Equality.next_tighter(), false)?,
        };
        let sign = if not == distinct { "IS" } else { "IS NOT" };
        Ok(ExprKind::Compare(sign, Box::new(left), Box::new(right)))
    }

    /// Parses the part of an expression that follows IN.
    fn parse_in(&mut self, operand: Expr) -> Result<ExprKind, SqlError> {
        let negated = self.tokens[..self.at].iter().rev().nth(1);
        let negated = negated.is_some_and(|t| t.is_word(self.sql, "NOT"));
        let (mut list, mut query, mut is_answer) = (Vec::new(), None, false);
        if self.is_symbol(b'(') && self.begins_query_after(1) {
            query = Some(Box::new(self.parse_query_in_parens()?));
        } else if self.is_symbol(b'(') {
            list = self.parse_list_in_parens()?;
        } else if self.is_suql {
            // PostgreSQL does not allow a table here, so anything but a list is an array.
            list = vec![self.parse_binary(Precedence::Bits, false)?];
            is_answer = true;
        } else if self.peek().is_some_and(|t| t.lexeme == TokenKind::Call) {
            list = vec![self.parse_call()?];
            is_answer = true;
        } else {
            self.read_name()?;
            if self.eat_symbol(b'.') {
                self.read_name()?;
            }
            if self.is_symbol(b'(') {
                list = self.parse_list_in_parens()?;
            }
        }
        Ok(ExprKind::In { negated, operand: Box::new(operand), list, query, is_answer })
    }

    /// Parses expressions in parentheses, which may be empty.
    pub fn parse_list_in_parens(&mut self) -> Result<Vec<Expr>, SqlError> {
        self.expect_symbol(b'(')?;
        if self.eat_symbol(b')') {
            return Ok(Vec::new());
        }
        let list = self.read_list(Self::parse_expr)?;
        self.expect_symbol(b')')?;
        Ok(list)
    }

    /// Parses an operand with its prefix operators.
    fn parse_operand(&mut self) -> Result<Expr, SqlError> {
        let start = self.next_start();
        let Some(token) = self.peek() else { return Err(self.unexpected_error()) };
        let kind = match token.lexeme {
            TokenKind::Call => return self.parse_call(),
            TokenKind::Symbol(b'(') => self.parse_parenthesized()?,
            TokenKind::Symbol(symbol @ (b'+' | b'-' | b'~')) => {
                // Operators of several symbols, such as `->`, are not prefix operators.
                if self.peek_operator().is_some_and(|(_, tokens)| tokens > 1) {
                    return Err(self.unexpected_error());
                }
                self.at += 1;
                let sign = match symbol {
                    b'+' => "+",
                    b'-' => "-",
                    _ => "~",
                };
                // In PostgreSQL, arithmetic binds tighter than `~`.
                let is_loose = symbol == b'~' && self.is_postgres;
                let loosest = if is_loose { Precedence::Sum } else { Precedence::Prefix };
                let operand = self.parse_binary(loosest, false)?;
                ExprKind::Operation(ExprOperator::Prefix(sign), vec![operand])
            }
            TokenKind::Number if is_number(self.text(token)) => self.read_literal(1),
            TokenKind::Text if self.is_text_literal(token) && !self.is_symbol_after(1, b'.') => {
                self.read_literal(1)
            }
            TokenKind::Parameter if is_parameter(self.text(token)) => {
                self.at += 1;
                ExprKind::Operation(ExprOperator::Unknown, Vec::new())
            }
            // `$tag$…$tag$` is a string in PostgreSQL; in SQLite it is a parameter if it is one
            // word.
            TokenKind::Text
                if is_parameter(self.text(token))
                    && (self.is_postgres || self.text(token).bytes().all(is_word_byte)) =>
            {
                self.at += 1;
                ExprKind::Operation(ExprOperator::Unknown, Vec::new())
            }
            TokenKind::Word => self.parse_word(token)?,
            _ => self.parse_name()?,
        };
        self.parse_subscripts(Expr { span: self.span_from(start), kind })
    }

    /// Returns true if the token is a string. `$tag$…$tag$` is one only in `PostgreSQL`.
    fn is_text_literal(&self, token: Token) -> bool {
        !self.text(token).starts_with('$') || self.is_suql
    }

    fn read_literal(&mut self, tokens: usize) -> ExprKind {
        self.at += tokens;
        ExprKind::Literal
    }

    /// Parses an operand that begins with a word.
    fn parse_word(&mut self, token: Token) -> Result<ExprKind, SqlError> {
        const TIMES: [&str; 3] = ["CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP"];
        let is = |word: &str| token.is_word(self.sql, word);
        if is("NULL") || TIMES.iter().any(|word| is(word)) {
            return Ok(self.read_literal(1));
        }
        if is("NOT") {
            self.at += 1;
            let operand = self.parse_binary(Precedence::Not, false)?;
            return Ok(ExprKind::Not(Box::new(operand)));
        }
        if is("EXISTS") {
            self.at += 1;
            return Ok(ExprKind::Exists(Box::new(self.parse_query_in_parens()?)));
        }
        if is("CASE") {
            return self.parse_case();
        }
        if is("CAST") {
            return self.parse_cast();
        }
        if is("RAISE") {
            return self.parse_raise();
        }
        if let Some(kind) = self.parse_postgres_word()? {
            return Ok(kind);
        }
        if self.begins_try_cast() {
            return self.parse_try_cast();
        }
        if self.begins_blob(token) {
            return self.parse_blob();
        }
        self.parse_name()
    }

    /// Parses `x'…'`.
    fn parse_blob(&mut self) -> Result<ExprKind, SqlError> {
        let digits = self.peek_after(1).map(|t| t.unquoted_text(self.sql)).unwrap_or_default();
        let is_hex =
            digits.len().is_multiple_of(2) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if is_hex { Ok(self.read_literal(2)) } else { Err(self.unexpected_error()) }
    }

    /// Parses a column with its qualifiers, or a function.
    fn parse_name(&mut self) -> Result<ExprKind, SqlError> {
        let Some(first) = self.peek() else { return Err(self.unexpected_error()) };
        if self.is_identifier(first) && self.is_symbol_after(1, b'(') {
            return self.parse_function();
        }
        let mut column = self.read_name()?;
        let mut table = None;
        for _ in 0..2 {
            if !self.eat_symbol(b'.') {
                break;
            }
            if self.is_postgres && self.eat_symbol(b'*') {
                return Ok(ExprKind::Operation(ExprOperator::TableRow(column), Vec::new()));
            }
            if self.is_postgres && self.is_symbol_after(1, b'(') {
                return self.parse_function();
            }
            table = Some(std::mem::replace(&mut column, self.read_name()?));
        }
        if first.lexeme == TokenKind::Text && table.is_none() {
            return Err(self.unexpected_error());
        }
        Ok(ExprKind::Column { table, column })
    }

    /// Parses `(…)`: a query, an expression or a row value.
    pub(super) fn parse_parenthesized(&mut self) -> Result<ExprKind, SqlError> {
        if self.begins_query_after(1) {
            return Ok(ExprKind::Scalar(Box::new(self.parse_query_in_parens()?)));
        }
        self.expect_symbol(b'(')?;
        let mut items = self.read_list(Self::parse_expr)?;
        self.expect_symbol(b')')?;
        Ok(match items.pop() {
            Some(only) if items.is_empty() => ExprKind::Paren(Box::new(only)),
            last => {
                items.extend(last);
                ExprKind::Operation(ExprOperator::Row, items)
            }
        })
    }

    fn parse_case(&mut self) -> Result<ExprKind, SqlError> {
        self.expect_word("CASE")?;
        let operand = if self.is_word("WHEN") { None } else { Some(Box::new(self.parse_expr()?)) };
        let mut whens = Vec::new();
        while whens.is_empty() || self.is_word("WHEN") {
            self.expect_word("WHEN")?;
            let when = self.parse_expr()?;
            self.expect_word("THEN")?;
            whens.push((when, self.parse_expr()?));
        }
        let otherwise =
            if self.eat_word("ELSE") { Some(Box::new(self.parse_expr()?)) } else { None };
        self.expect_word("END")?;
        Ok(ExprKind::Case { operand, whens, otherwise })
    }

    fn parse_cast(&mut self) -> Result<ExprKind, SqlError> {
        self.expect_word("CAST")?;
        self.expect_symbol(b'(')?;
        let value = self.parse_expr()?;
        self.expect_word("AS")?;
        let type_name =
            if self.is_postgres { self.read_postgres_type()? } else { self.read_sqlite_type()? };
        self.expect_symbol(b')')?;
        Ok(ExprKind::Cast(Box::new(value), type_name))
    }

    /// Reads the name of a type, which may be empty.
    pub(super) fn read_sqlite_type(&mut self) -> Result<String, SqlError> {
        let start = self.next_start();
        while self.peek().is_some_and(|t| self.is_name(t)) {
            self.at += 1;
        }
        if self.at > 0 && self.previous_token_end() > start && self.eat_symbol(b'(') {
            self.read_list(|p| {
                let _signed = p.eat_symbol(b'+') || p.eat_symbol(b'-');
                match p.advance() {
                    Some(token) if is_number(p.text(token)) => Ok(()),
                    _ => {
                        p.at = p.at.saturating_sub(1);
                        Err(p.unexpected_error())
                    }
                }
            })?;
            self.expect_symbol(b')')?;
        }
        Ok(self.sql.get(self.span_from(start)).unwrap_or_default().to_owned())
    }

    fn parse_raise(&mut self) -> Result<ExprKind, SqlError> {
        self.expect_word("RAISE")?;
        self.expect_symbol(b'(')?;
        let mut message = Vec::new();
        if !self.eat_word("IGNORE") {
            if !["ROLLBACK", "ABORT", "FAIL"].iter().any(|word| self.eat_word(word)) {
                return Err(self.unexpected_error());
            }
            self.expect_symbol(b',')?;
            message.push(self.parse_expr()?);
        }
        self.expect_symbol(b')')?;
        Ok(ExprKind::Operation(ExprOperator::Unknown, message))
    }

    /// Parses a function with its arguments, FILTER and OVER.
    fn parse_function(&mut self) -> Result<ExprKind, SqlError> {
        let name = self.read_name()?.to_lowercase();
        self.expect_symbol(b'(')?;
        let (mut args, mut has_modifier) = (Vec::new(), false);
        if !self.eat_symbol(b'*') {
            has_modifier = self.eat_word("DISTINCT");
            if !has_modifier {
                self.eat_word("ALL");
            }
            if !self.is_symbol(b')') && !self.is_word("ORDER") {
                args = self.parse_function_arguments(&name)?;
            }
            has_modifier |= self.is_word("ORDER");
            args.extend(self.parse_order_by()?.into_iter().map(|term| term.expr));
        }
        self.expect_symbol(b')')?;
        args.extend(self.parse_within_group()?);
        let mut filter = None;
        if self.is_word("FILTER") && self.is_symbol_after(1, b'(') {
            self.at += 2;
            self.expect_word("WHERE")?;
            filter = Some(Box::new(self.parse_expr()?));
            self.expect_symbol(b')')?;
        }
        let over = self.peek_after(1);
        let mut window = None;
        if self.is_word("OVER") && over.is_some_and(|t| t.is_symbol(b'(') || self.is_name(t)) {
            self.at += 1;
            window = Some(Box::new(if self.is_symbol(b'(') {
                self.parse_window()?
            } else {
                self.read_name()?;
                WindowSpec { has_base: true, ..WindowSpec::default() }
            }));
        }
        Ok(ExprKind::Function { name, window, has_modifier, filter, args })
    }

    /// Parses a call with its arguments.
    pub fn parse_call(&mut self) -> Result<Expr, SqlError> {
        let Some(n) = self.peek().and_then(|token| self.call_at(token)) else {
            return Err(self.unexpected_error());
        };
        let expr = self.parse_arguments(n)?;
        self.advance();
        Ok(expr)
    }
}

/// Merges both operands of an AND or OR into one list.
fn join_operands(
    left: Expr,
    right: Expr,
    take_operands: impl Fn(ExprKind) -> Result<Vec<Expr>, ExprKind>,
) -> Vec<Expr> {
    let mut all = match take_operands(left.kind) {
        Ok(inner) => inner,
        Err(kind) => vec![Expr { span: left.span, kind }],
    };
    all.push(right);
    all
}

/// Returns true if a token begins like a parameter.
fn is_parameter(text: &str) -> bool {
    text.starts_with(['?', ':', '@', '$']) && text.as_bytes().get(1) != Some(&b'$')
}

/// Returns true if a token that begins with a digit is a number.
fn is_number(text: &str) -> bool {
    let digits = |text: &str, is_digit: fn(&u8) -> bool| {
        !text.is_empty()
            && text.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| is_digit(&b)))
    };
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return digits(hex, u8::is_ascii_hexdigit);
    }
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            (mantissa, exponent.strip_prefix(['+', '-']).unwrap_or(exponent))
        }
        None => (text, "0"),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_part = |part: &str| part.is_empty() || digits(part, u8::is_ascii_digit);
    digits(exponent, u8::is_ascii_digit)
        && is_part(whole)
        && is_part(fraction)
        && !(whole.is_empty() && fraction.is_empty())
}
