//! Operators between expressions.

use std::ops::Range;

use super::expr::{ADD, AND, COMPARE, IS, MULTIPLY, NOT, OR, OTHER, POWER, SPECIAL, UNARY, across};
use super::functions::{compiled, number_of, reading, truth_of};
use super::parser::{ExprShape, PRIMARY, Parser, Piece, joined, unsaid};
use super::text::Part;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Lexeme;

/// An operator that is the next.
pub(super) struct Operator {
    pub level: u8,
    /// Its sign or word, upper case.
    sign: String,
    /// Its tokens.
    width: usize,
}

/// Signs of several characters, the longest first.
const SIGNS: [&str; 24] = [
    "!~~*", "!~*", "!~~", "#>>", "->>", "~~*", "!=", "!~", "#>", "&&", "->", "<=", "<>", "<@",
    ">=", "@>", "||", "~*", "~~", "=", "<", ">", "~", "^",
];

impl Parser<'_> {
    /// The operator that is the next, if one is.
    pub fn operator(&self) -> Option<Operator> {
        let token = self.peek()?;
        let of = |level, sign: &str, width| Some(Operator { level, sign: sign.to_owned(), width });
        if token.lexeme == Lexeme::Word {
            let word = token.text(self.sql).to_ascii_uppercase();
            return match word.as_str() {
                "OR" => of(OR, "OR", 1),
                "AND" => of(AND, "AND", 1),
                "IS" | "ISNULL" | "NOTNULL" => of(IS, &word, 1),
                "IN" | "LIKE" | "ILIKE" | "BETWEEN" | "SIMILAR" => of(SPECIAL, &word, 1),
                "NOT" => {
                    let next = self.peek_at(1)?.text(self.sql).to_ascii_uppercase();
                    let special = ["IN", "LIKE", "ILIKE", "BETWEEN", "SIMILAR"];
                    special.contains(&next.as_str()).then_some(())?;
                    of(SPECIAL, &format!("NOT {next}"), 2)
                }
                _ => None,
            };
        }
        let rest = &self.sql[token.start..];
        let sign = SIGNS.iter().find(|s| rest.starts_with(**s));
        let sign = sign
            .map(|s| (*s).to_owned())
            .or_else(|| rest.chars().next().filter(|c| "+-*/%".contains(*c)).map(String::from))?;
        let level = match sign.as_str() {
            "=" | "<" | ">" | "<=" | ">=" | "<>" | "!=" => COMPARE,
            "+" | "-" => ADD,
            "*" | "/" | "%" => MULTIPLY,
            "^" => POWER,
            _ => OTHER,
        };
        of(level, &sign, sign.len())
    }

    /// An operation whose operator is the next.
    pub fn operation(&mut self, left: Piece, operator: &Operator) -> Result<Piece, SqlError> {
        let sign = self.here();
        self.at += operator.width;
        let name = operator.sign.as_str();
        match operator.level {
            OR | AND => {
                let right = self.binary(operator.level + 1)?;
                Ok(between(left, right, operator.level))
            }
            IS => self.test(left, name, sign),
            SPECIAL => self.special_operation(left, name),
            COMPARE => self.comparison(left, name),
            _ => {
                let right = self.binary(operator.level + 1)?;
                self.arithmetic(left, right, operator)
            }
        }
    }

    /// An operand, in parentheses where `SQLite` would read on.
    fn operand(piece: Piece) -> Piece {
        if (NOT..ADD).contains(&piece.level) {
            let (span, shape) = (piece.span.clone(), piece.shape.clone());
            return Piece { span, shape, text: piece.tight(), level: PRIMARY };
        }
        piece
    }

    /// IS NULL, IS TRUE and their like.
    fn test(&mut self, left: Piece, name: &str, sign: usize) -> Result<Piece, SqlError> {
        let left = Self::operand(left);
        let start = left.span.start;
        if name == "IS" {
            self.word("NOT");
            if self.words(&["DISTINCT", "FROM"]) {
                let right = Self::operand(self.binary(COMPARE)?);
                let (left, right) = Self::as_truths(left, right)?;
                return Ok(between(left, right, IS));
            }
            if self.is_word("UNKNOWN") {
                let unknown = self.take()?;
                let mut text = left.text;
                text.push(Part::Old(left.span.end..unknown.start));
                text.push(Part::New("NULL".to_owned(), unknown.span()));
                let span = start..unknown.end;
                return Ok(Piece { span, text, shape: ExprShape::Boolean, level: IS });
            }
            if !["NULL", "TRUE", "FALSE"].iter().any(|w| self.is_word(w)) {
                return Err(self.expected("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM"));
            }
            self.at += 1;
        }
        let end = self.before();
        let mut text = left.text;
        text.push(Part::Old(left.span.end.min(sign)..end));
        Ok(Piece { span: start..end, text, shape: ExprShape::Boolean, level: IS })
    }

    /// IN, LIKE, BETWEEN and their like.
    fn special_operation(&mut self, left: Piece, name: &str) -> Result<Piece, SqlError> {
        let (negated, name) = match name.strip_prefix("NOT ") {
            Some(name) => (true, name),
            None => (false, name),
        };
        match name {
            "IN" => {
                if !self.is(b'(') {
                    // PostgreSQL has no table here: what is no list is an array.
                    let array = self.binary(OTHER)?;
                    Self::no_truth(&left)?;
                    let words =
                        if negated { "suql_all({}, '<>', {})" } else { "suql_any({}, '=', {})" };
                    let span = left.span.start..array.span.end;
                    return Ok(Piece::filled(words, vec![left.text, array.text], span).boolean());
                }
                let right = if left.shape == ExprShape::Boolean && !self.query_at(1) {
                    self.truths_in_list()?
                } else {
                    self.binary(OTHER)?
                };
                Ok(between(Self::operand(left), right, SPECIAL))
            }
            "BETWEEN" => {
                if self.is_word("SYMMETRIC") {
                    let word = self.take()?;
                    return Err(unsaid(word.span(), "BETWEEN SYMMETRIC", "order the bounds"));
                }
                let low = Self::operand(self.binary(OTHER)?);
                self.expect_word("AND")?;
                let high = Self::operand(self.binary(OTHER)?);
                let both = between(low, high, SPECIAL);
                Ok(between(Self::operand(left), both, SPECIAL))
            }
            _ => {
                if name == "SIMILAR" {
                    self.expect_word("TO")?;
                }
                let how = if name == "SIMILAR" {
                    "similar"
                } else if name == "ILIKE" {
                    "ilike"
                } else {
                    "like"
                };
                if let Some(quantified) = self.quantified(&left, how, negated)? {
                    return Ok(quantified);
                }
                Self::no_truth(&left)?;
                let right = self.binary(OTHER)?;
                if self.is_word("ESCAPE") {
                    self.at += 1;
                    let escape = self.binary(OTHER)?;
                    if escape.shape != ExprShape::Literal("\\".to_owned()) {
                        return Err(unsaid(escape.span, "another ESCAPE than `\\`", ""));
                    }
                }
                alike(left, right, how, negated, self.before())
            }
        }
    }

    fn comparison(&mut self, left: Piece, sign: &str) -> Result<Piece, SqlError> {
        let sign = if sign == "!=" { "<>" } else { sign };
        if let Some(quantified) = self.quantified(&left, sign, false)? {
            return Ok(quantified);
        }
        let right = self.binary(SPECIAL)?;
        Self::no_span(&left)?;
        Self::no_span(&right)?;
        let (left, right) = Self::as_truths(left, right)?;
        let (left, right) = Self::as_numbers(left, right)?;
        let of_enum = |piece: &Piece| matches!(piece.shape, ExprShape::Enum(_));
        if (of_enum(&left) || of_enum(&right)) && !["=", "<>"].contains(&sign) {
            let help = "compare it with the values that are meant: IN ('…', '…')";
            return Err(unsaid(across(&left, &right), "the order of an ENUM's values", help));
        }
        if left.shape == ExprShape::Array || right.shape == ExprShape::Array {
            let span = across(&left, &right);
            let words = match sign {
                "=" => "suql_same({}, {})",
                "<>" => "NOT suql_same({}, {})",
                _ => return Err(unsaid(span, "an order of arrays", "compare an element")),
            };
            let level = if sign == "=" { PRIMARY } else { NOT };
            let piece = Piece::filled(words, vec![left.text, right.text], span);
            return Ok(Piece { level, ..piece.boolean() });
        }
        Ok(between(Self::operand(left), Self::operand(right), COMPARE))
    }

    fn arithmetic(
        &mut self,
        left: Piece,
        right: Piece,
        operator: &Operator,
    ) -> Result<Piece, SqlError> {
        let span = across(&left, &right);
        let sign = operator.sign.as_str();
        let (left, right) = match sign {
            "@>" | "<@" | "&&" => (Self::as_array(left), Self::as_array(right)),
            _ => (left, right),
        };
        let both = |words: &str, left: Piece, right: Piece| {
            Piece::filled(words, vec![left.text, right.text], span.clone())
        };
        let arrays = left.shape == ExprShape::Array || right.shape == ExprShape::Array;
        Ok(match sign {
            "+" | "-" if matches!(right.shape, ExprShape::Interval(_)) => {
                return self.moved(left, &right, sign);
            }
            "^" => both("pow({}, {})", left, right),
            "@>" => both("suql_contains({}, {})", left, right).boolean(),
            "<@" => both("suql_contains({}, {})", right, left).boolean(),
            "&&" => both("suql_overlaps({}, {})", left, right).boolean(),
            "||" if arrays => both("suql_joined({}, {})", left, right),
            "~" | "~*" | "!~" | "!~*" => {
                Self::no_truth(&left)?;
                let negated = sign.starts_with('!');
                let how = if sign.ends_with('*') { "imatch" } else { "match" };
                let end = span.end;
                alike(left, right, how, negated, end)?
            }
            "~~" | "~~*" | "!~~" | "!~~*" => {
                Self::no_truth(&left)?;
                let how = if sign.ends_with('*') { "ilike" } else { "like" };
                let end = span.end;
                alike(left, right, how, sign.starts_with('!'), end)?
            }
            "#>" | "#>>" => {
                return Err(unsaid(span, &format!("`{sign}`"), "use json_extract(x, '$.path')"));
            }
            // SQLite's || and -> hold more tightly than arithmetic and signs.
            _ if operator.level == OTHER => {
                let tight = |p: Piece| Piece {
                    span: p.span.clone(),
                    level: PRIMARY,
                    shape: ExprShape::Plain,
                    text: p.tight(),
                };
                between(tight(left), tight(right), OTHER)
            }
            _ => {
                Self::no_interval(&left)?;
                Self::no_interval(&right)?;
                if let Some(days) = self.days(&left, &right, sign) {
                    return Ok(days);
                }
                let numeric = [&left, &right].into_iter().any(|p| p.shape == ExprShape::Numeric);
                let shape = if numeric { ExprShape::Numeric } else { ExprShape::Number };
                if numeric && sign == "/" {
                    // A whole NUMERIC is an integer in SQLite, and its division cuts.
                    let words = "CAST({} AS REAL) / {}";
                    let pieces = vec![left.text, Self::operand(right).tight()];
                    let level = operator.level;
                    return Ok(Piece { shape, level, ..Piece::filled(words, pieces, span) });
                }
                let of = |p: Piece| {
                    if p.level == UNARY || p.level >= ADD { p } else { Self::operand(p) }
                };
                Piece { shape, ..between(of(left), of(right), operator.level) }
            }
        })
    }

    /// A date with days added to it or taken away, or the days between two dates; `None`
    /// where neither operand is written as a date.
    fn days(&self, left: &Piece, right: &Piece, sign: &str) -> Option<Piece> {
        let date = |piece: &Piece| piece.shape == ExprShape::Date;
        let is_number = |piece: &Piece| {
            let text = self.sql.get(piece.span.clone()).unwrap_or_default();
            text.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit())
        };
        let (words, of, by) = match sign {
            "+" if date(left) && !date(right) => ("suql_days_after({}, {})", left, right),
            "+" if date(right) && !date(left) => ("suql_days_after({}, {})", right, left),
            "-" if date(left) || date(right) => ("suql_days_before({}, {})", left, right),
            _ => return None,
        };
        let shape = if sign == "+" || is_number(by) { ExprShape::Date } else { ExprShape::Plain };
        let pieces = vec![of.text.clone(), by.text.clone()];
        Some(Piece { shape, ..Piece::filled(words, pieces, across(left, right)) })
    }

    /// Two operands, a text beside what is true or false read as that.
    ///
    /// # Errors
    /// For a text that says neither.
    pub fn as_truths(left: Piece, right: Piece) -> Result<(Piece, Piece), SqlError> {
        match (&left.shape, &right.shape) {
            (ExprShape::Boolean, ExprShape::Literal(text)) => {
                let truth = Self::truth(text, right.span.clone())?;
                Ok((left, truth))
            }
            (ExprShape::Literal(text), ExprShape::Boolean) => {
                let truth = Self::truth(text, left.span.clone())?;
                Ok((truth, right))
            }
            _ => Ok((left, right)),
        }
    }

    /// Two operands, a text beside a number read as one.
    ///
    /// # Errors
    /// For a text that is none.
    pub fn as_numbers(left: Piece, right: Piece) -> Result<(Piece, Piece), SqlError> {
        let is_number = |p: &Piece| matches!(p.shape, ExprShape::Number | ExprShape::Numeric);
        let read = |piece: Piece| {
            let ExprShape::Literal(text) = &piece.shape else { return Ok(piece) };
            if number_of(text).is_none() {
                let message = format!("'{text}' is no number");
                return Err(SqlError::new(piece.span, message, "compared with one"));
            }
            let part = Part::New(format!("({})", text.trim()), piece.span.clone());
            Ok(Piece { shape: ExprShape::Number, ..Piece::new(vec![part], piece.span) })
        };
        match (is_number(&left), is_number(&right)) {
            (true, false) => Ok((left, read(right)?)),
            (false, true) => Ok((read(left)?, right)),
            _ => Ok((left, right)),
        }
    }

    /// A text that says true or false, as that.
    pub fn truth(text: &str, span: Range<usize>) -> Result<Piece, SqlError> {
        let Some(truth) = truth_of(text) else {
            let error = SqlError::new(
                span,
                format!("'{text}' is neither true nor false"),
                "compared with what is",
            );
            return Err(error.help("write TRUE or FALSE, or a text that says one: 'yes', 'no'"));
        };
        let word = if truth { "TRUE" } else { "FALSE" };
        Ok(Piece::new(vec![Part::New(word.to_owned(), span.clone())], span).boolean())
    }

    /// `('yes', 'true')`, behind IN.
    fn truths_in_list(&mut self) -> Result<Piece, SqlError> {
        let start = self.here();
        self.expect(b'(')?;
        let all: Result<Vec<Piece>, SqlError> = self
            .list()?
            .into_iter()
            .map(|piece| match piece.shape.clone() {
                ExprShape::Literal(text) => Self::truth(&text, piece.span),
                _ => Ok(piece),
            })
            .collect();
        let end = self.expect(b')')?;
        Ok(Piece::new(joined(start, all?, end), start..end))
    }

    /// What is true or false is no text and no part of an array.
    pub fn no_truth(piece: &Piece) -> Result<(), SqlError> {
        if piece.shape != ExprShape::Boolean {
            return Ok(());
        }
        let error = SqlError::new(piece.span.clone(), "this is true or false, and no text", "here");
        Err(error.help("compare it with TRUE or FALSE"))
    }

    /// A date and a span of time.
    fn moved(&mut self, left: Piece, right: &Piece, sign: &str) -> Result<Piece, SqlError> {
        let ExprShape::Interval(parts) = &right.shape else {
            return Err(self.expected("an interval"));
        };
        let span = across(&left, right);
        Self::no_interval(&left)?;
        let parts: Vec<String> = parts
            .iter()
            .flat_map(|part| {
                let turned = match (sign, part.strip_prefix('-')) {
                    ("-", Some(rest)) => format!("+{rest}"),
                    ("-", None) => format!("-{}", part.trim_start_matches('+')),
                    _ => part.clone(),
                };
                // A month that has no such day ends with its last, as in PostgreSQL.
                let ends = turned.ends_with("months") || turned.ends_with("years");
                let floor = ends.then(|| hqdl_values::sql::text("floor"));
                std::iter::once(hqdl_values::sql::text(&turned)).chain(floor)
            })
            .collect();
        let name = if left.shape == ExprShape::Date { "date" } else { "datetime" };
        let shape = if left.shape == ExprShape::Date { ExprShape::Date } else { ExprShape::Plain };
        let words = format!("{name}({{}}, {})", parts.join(", "));
        Ok(Piece { shape, ..Piece::filled(&words, vec![left.text], span) })
    }
}

/// A comparison with a pattern.
///
/// # Errors
/// For a pattern that cannot be read.
pub(super) fn alike(
    left: Piece,
    right: Piece,
    how: &str,
    negated: bool,
    end: usize,
) -> Result<Piece, SqlError> {
    is_pattern(&right, how)?;
    let span = left.span.start..end;
    // SQLite's LIKE folds the case of ASCII, and has no escape unless told.
    let plain = match &right.shape {
        ExprShape::Literal(pattern) => {
            pattern.is_ascii()
                && !pattern.contains('\\')
                && (how == "ilike"
                    || how == "like" && !pattern.contains(|c: char| c.is_alphabetic()))
        }
        _ => false,
    };
    if plain {
        let words = if negated { "{} NOT LIKE {}" } else { "{} LIKE {}" };
        let pieces = vec![left.tight(), right.text];
        return Ok(Piece { level: SPECIAL, ..Piece::filled(words, pieces, span).boolean() });
    }
    let not = if negated { "NOT " } else { "" };
    let words = format!("{not}suql_{how}({{}}, {{}})");
    let level = if negated { NOT } else { PRIMARY };
    Ok(Piece { level, ..Piece::filled(&words, vec![left.text, right.text], span).boolean() })
}

/// Whether a pattern that is written out can be read: what cannot is told before anything
/// is asked.
///
/// # Errors
/// For one that cannot.
pub(super) fn is_pattern(pattern: &Piece, how: &str) -> Result<(), SqlError> {
    let ExprShape::Literal(text) = &pattern.shape else { return Ok(()) };
    compiled(text, reading(how), false)
        .map(drop)
        .map_err(|error| SqlError::new(pattern.span.clone(), error.to_string(), "this pattern"))
}

/// Two operands with what stands between them as it is.
fn between(left: Piece, right: Piece, level: u8) -> Piece {
    let span = across(&left, &right);
    let mut text = left.text;
    text.push(Part::Old(left.span.end..right.span.start));
    text.extend(right.text);
    let shape = if level < OTHER { ExprShape::Boolean } else { ExprShape::Plain };
    Piece { span, text, shape, level }
}
