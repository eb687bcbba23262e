//! Parser of operators.

use std::ops::Range;

use super::expr::{ADD, AND, COMPARE, IS, MULTIPLY, NOT, OR, OTHER, POWER, SPECIAL, UNARY, across};
use super::functions::{compiled, reading};
use super::parser::{ExprShape, PRIMARY, Parser, Piece, joined, unsaid};
use super::text::{Part, Text};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Lexeme;

/// The operator at the current position.
pub(super) struct Operator {
    pub level: u8,
    /// Its symbol or keyword, in upper case.
    sign: String,
    /// Number of its tokens.
    width: usize,
}

/// Operators of several characters; an operator precedes its prefixes.
const SIGNS: [&str; 24] = [
    "!~~*", "!~*", "!~~", "#>>", "->>", "~~*", "!=", "!~", "#>", "&&", "->", "<=", "<>", "<@",
    ">=", "@>", "||", "~*", "~~", "=", "<", ">", "~", "^",
];

impl Parser<'_> {
    /// Returns the operator at the current position, if there is one.
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

    /// Parses the rest of an operation from its operator on.
    pub fn operation(&mut self, left: Piece, operator: &Operator) -> Result<Piece, SqlError> {
        let sign = self.here();
        self.at += operator.width;
        let name = operator.sign.as_str();
        match operator.level {
            OR | AND => {
                let right = self.binary(operator.level + 1)?;
                let (left, right) = (Self::condition(left), Self::condition(right));
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

    /// Adds parentheses to an operand if `SQLite`'s precedence requires them.
    fn operand(piece: Piece) -> Piece {
        if (NOT..ADD).contains(&piece.level) {
            let (span, shape) = (piece.span.clone(), piece.shape.clone());
            return Piece { span, shape, text: piece.tight(), level: PRIMARY };
        }
        piece
    }

    /// Parses IS NULL, IS TRUE and similar tests.
    fn test(&mut self, left: Piece, name: &str, sign: usize) -> Result<Piece, SqlError> {
        let mut left = Self::operand(left);
        let start = left.span.start;
        if name == "IS" {
            self.word("NOT");
            if ["TRUE", "FALSE", "UNKNOWN"].iter().any(|word| self.is_word(word)) {
                left = Self::condition(left);
            }
            if self.words(&["DISTINCT", "FROM"]) {
                let right = Self::operand(self.binary(COMPARE)?);
                let (left, right) = Self::beside(left, right)?;
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

    /// Parses IN, LIKE, BETWEEN and similar operators.
    fn special_operation(&mut self, left: Piece, name: &str) -> Result<Piece, SqlError> {
        let (negated, name) = match name.strip_prefix("NOT ") {
            Some(name) => (true, name),
            None => (false, name),
        };
        match name {
            "IN" => {
                if !self.is(b'(') {
                    // PostgreSQL does not allow a table here, so anything but a list is an array.
                    let array = self.binary(OTHER)?;
                    Self::no_truth(&left)?;
                    let words =
                        if negated { "suql_all({}, '<>', {})" } else { "suql_any({}, '=', {})" };
                    let span = left.span.start..array.span.end;
                    return Ok(Piece::filled(words, vec![left.text, array.text], span).boolean());
                }
                if self.query_at(1) {
                    let right = self.binary(OTHER)?;
                    return Ok(between(Self::operand(left), right, SPECIAL));
                }
                if left.shape == ExprShape::Array {
                    return self.in_arrays(&left, negated);
                }
                let (left, right) = self.in_list(left)?;
                Ok(between(Self::operand(left), right, SPECIAL))
            }
            "BETWEEN" => {
                let symmetric = self.word("SYMMETRIC");
                let (left, low) = Self::beside(left, self.binary(OTHER)?)?;
                self.expect_word("AND")?;
                let (left, high) = Self::beside(left, self.binary(OTHER)?)?;
                let (low, high) = (Self::operand(low), Self::operand(high));
                if symmetric {
                    let words = "({} BETWEEN {} AND {} OR {} BETWEEN {} AND {})";
                    let words = if negated { format!("(NOT {words})") } else { words.to_owned() };
                    let span = left.span.start..high.span.end;
                    let [of, low, high] = [left, low, high].map(Piece::tight);
                    let there = [of.clone(), low.clone(), high.clone()];
                    let pieces = there.into_iter().chain([of, high, low]).collect();
                    return Ok(Piece::filled(&words, pieces, span).boolean());
                }
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
        if let Some(spans) = Self::spans(&left, &right, sign)? {
            return Ok(spans);
        }
        Self::no_span(&left)?;
        Self::no_span(&right)?;
        let (left, right) = Self::beside(left, right)?;
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
                return Self::moved(left, &right, sign);
            }
            "+" if matches!(left.shape, ExprShape::Interval(_)) => {
                return Self::moved(right, &left, sign);
            }
            "*" if matches!(left.shape, ExprShape::Interval(_)) => {
                return self.times(&left, &right, span);
            }
            "*" if matches!(right.shape, ExprShape::Interval(_)) => {
                return self.times(&right, &left, span);
            }
            "^" => both("pow({}, {})", left, right),
            "@>" => both("suql_contains({}, {})", left, right).boolean(),
            "<@" => both("suql_contains({}, {})", right, left).boolean(),
            "&&" => both("suql_overlaps({}, {})", left, right).boolean(),
            "||" if arrays => {
                let shape = ExprShape::Array;
                Piece { shape, ..both("suql_joined({}, {})", left, right) }
            }
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
            "#>" | "#>>" => along(left, &right, sign, span)?,
            // The result is always a text.
            "->>" => {
                let words = "CAST(suql_json_text({} -> {}) AS TEXT)";
                let pieces = vec![left.tight(), right.tight()];
                Piece { shape: ExprShape::Text, ..Piece::filled(words, pieces, span) }
            }
            // In SQLite, || and -> have a higher precedence than arithmetic and signs.
            _ if operator.level == OTHER => {
                let tight = |p: Piece| {
                    let span = p.span.clone();
                    if sign == "||" && p.shape == ExprShape::Boolean {
                        return Piece::filled("suql_said({})", vec![p.text], span);
                    }
                    Piece::new(p.tight(), span)
                };
                let shape = if sign == "||" { ExprShape::Text } else { ExprShape::Plain };
                Piece { shape, ..between(tight(left), tight(right), OTHER) }
            }
            _ => {
                Self::no_interval(&left)?;
                Self::no_interval(&right)?;
                let as_number = |piece: Piece, other: &ExprShape| match piece.shape.clone() {
                    ExprShape::Literal(text) if other.is_number() => {
                        Self::read_as(piece, &text, other)
                    }
                    _ => Ok(piece),
                };
                let of_right = right.shape.clone();
                let right = as_number(right, &left.shape)?;
                let left = as_number(left, &of_right)?;
                if let Some(days) = self.days(&left, &right, sign)? {
                    return Ok(days);
                }
                let fraction =
                    |p: &Piece| [ExprShape::Numeric, ExprShape::Float].contains(&p.shape);
                let fraction = fraction(&left) || fraction(&right);
                let shape = match left.shape.or(&right.shape) {
                    shape if shape.is_number() => shape,
                    _ if fraction => ExprShape::Numeric,
                    _ => ExprShape::Number,
                };
                if sign == "%" && fraction {
                    return Ok(Piece { shape, ..both("mod({}, {})", left, right) });
                }
                if fraction && sign == "/" {
                    // SQLite stores a whole NUMERIC as an integer, whose division truncates.
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

    /// Translates date arithmetic: a date plus or minus days, the days between two dates, or the
    /// interval between two timestamps. Returns `None` if no operand is a date or time.
    ///
    /// # Errors
    /// [`SqlError`] for an invalid combination, such as a timestamp plus a number.
    fn days(&self, left: &Piece, right: &Piece, sign: &str) -> Result<Option<Piece>, SqlError> {
        use ExprShape::{Date, Number, Plain, Span, Timestamp};
        let is = |piece: &Piece, shape: &ExprShape| piece.shape == *shape;
        let span = across(left, right);
        let both = [left, right];
        if sign == "-" && both.iter().any(|p| is(p, &Timestamp)) {
            let other = both.iter().find(|p| !is(p, &Timestamp)).map_or(&Timestamp, |p| &p.shape);
            if !other.is_number() && *other != Span {
                let pieces = vec![right.text.clone(), left.text.clone()];
                let piece = Piece::filled("suql_between({}, {})", pieces, span);
                return Ok(Some(Piece { shape: Span, ..piece }));
            }
        }
        let (first, second) = if is(right, &Date) { (right, left) } else { (left, right) };
        if sign == "+" && is(first, &Date) && is(second, &ExprShape::Time) {
            let pieces = vec![first.text.clone(), second.text.clone()];
            let piece = Piece::filled("suql_timestamp({} || ' ' || {})", pieces, span);
            return Ok(Some(Piece { shape: Timestamp, ..piece }));
        }
        if both.iter().any(|p| matches!(p.shape, Timestamp | ExprShape::Time | Span)) {
            let help = "add an interval: d + INTERVAL '1 day'";
            return Err(unsaid(span, "this calculation with a time", help));
        }
        let is_number = |piece: &Piece| {
            let text = self.sql.get(piece.span.clone()).unwrap_or_default();
            piece.shape.is_number()
                || text.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit())
        };
        let (words, of, by) = match sign {
            "+" if is(left, &Date) && !is(right, &Date) => ("suql_days_after({}, {})", left, right),
            "+" if is(right, &Date) && !is(left, &Date) => ("suql_days_after({}, {})", right, left),
            "-" if both.iter().any(|p| is(p, &Date)) => ("suql_days_before({}, {})", left, right),
            _ if both.iter().any(|p| is(p, &Date)) => {
                let help = "add days to a date, or subtract them";
                return Err(unsaid(span, "this calculation with a date", help));
            }
            _ => return Ok(None),
        };
        let shape = match () {
            () if sign == "+" || is_number(by) => Date,
            () if is(by, &Date) => Number,
            () => Plain,
        };
        let pieces = vec![of.text.clone(), by.text.clone()];
        Ok(Some(Piece { shape, ..Piece::filled(words, pieces, span) }))
    }

    /// Parses `(x, y, …)` after an array and IN; arrays are compared by their elements.
    fn in_arrays(&mut self, left: &Piece, negated: bool) -> Result<Piece, SqlError> {
        self.expect(b'(')?;
        let all: Vec<Piece> = self.list()?.into_iter().map(Self::as_array).collect();
        let end = self.expect(b')')?;
        let each = vec!["suql_same({}, {})"; all.len()].join(" OR ");
        let words = if negated { format!("(NOT ({each}))") } else { format!("({each})") };
        let pieces = all.into_iter().flat_map(|piece| [left.text.clone(), piece.text]).collect();
        Ok(Piece::filled(&words, pieces, left.span.start..end).boolean())
    }

    /// Parses `(x, 'y', …)` after IN and converts each element to the type of the left operand.
    fn in_list(&mut self, left: Piece) -> Result<(Piece, Piece), SqlError> {
        let start = self.here();
        self.expect(b'(')?;
        let (mut left, mut all) = (left, Vec::new());
        for piece in self.list()? {
            let (read, piece) = Self::beside(left, piece)?;
            left = read;
            all.push(piece);
        }
        let end = self.expect(b')')?;
        Ok((left, Piece::new(joined(start, all, end), start..end)))
    }

    /// Compares a computed interval with another interval or with a literal one by their lengths. A
    /// month counts as 30 days.
    fn spans(left: &Piece, right: &Piece, sign: &str) -> Result<Option<Piece>, SqlError> {
        if ![left, right].iter().any(|piece| piece.shape == ExprShape::Span) {
            return Ok(None);
        }
        let length = |piece: &Piece| -> Result<Text, SqlError> {
            let written = match &piece.shape {
                ExprShape::Literal(text) => Self::span_of_time(text, piece.span.clone())?.shape,
                shape => shape.clone(),
            };
            let ExprShape::Interval(parts) = written else {
                let words = "suql_span_part('length', {})";
                return Ok(Piece::filled(words, vec![piece.text.clone()], piece.span.clone()).text);
            };
            let seconds = |unit| match unit {
                "years" => 360.0 * 86_400.0,
                "months" => 30.0 * 86_400.0,
                "days" => 86_400.0,
                "hours" => 3600.0,
                "minutes" => 60.0,
                _ => 1.0,
            };
            let all: f64 = parts.iter().map(|(n, unit)| n * seconds(*unit)).sum();
            Ok(vec![Part::New(all.to_string(), piece.span.clone())])
        };
        let words = format!("{{}} {sign} {{}}");
        let pieces = vec![length(left)?, length(right)?];
        let piece = Piece::filled(&words, pieces, across(left, right));
        Ok(Some(Piece { level: COMPARE, ..piece.boolean() }))
    }

    /// Fails for a boolean, which is neither a text nor an array element.
    pub fn no_truth(piece: &Piece) -> Result<(), SqlError> {
        if piece.shape != ExprShape::Boolean {
            return Ok(());
        }
        let error = SqlError::new(piece.span.clone(), "this is a boolean, not a text", "here");
        Err(error.help("compare it with TRUE or FALSE"))
    }

    /// Multiplies an interval by a literal number.
    fn times(&self, of: &Piece, by: &Piece, span: Range<usize>) -> Result<Piece, SqlError> {
        let ExprShape::Interval(parts) = &of.shape else {
            return Err(self.expected("an interval"));
        };
        let number = self.sql.get(by.span.clone()).and_then(|text| text.trim().parse::<f64>().ok());
        let Some(times) = number else {
            let help = "write it out: d + INTERVAL '3 days'";
            return Err(unsaid(span, "an interval times what is computed", help));
        };
        let parts = parts.iter().map(|(n, unit)| (n * times, *unit)).collect();
        Ok(Piece { shape: ExprShape::Interval(parts), level: OTHER, ..Piece::old(span) })
    }

    /// Adds an interval to a date or time.
    fn moved(left: Piece, right: &Piece, sign: &str) -> Result<Piece, SqlError> {
        let span = across(&left, right);
        let span = span.start.min(right.span.start)..span.end.max(left.span.end);
        let ExprShape::Interval(parts) = &right.shape else {
            return Err(unsaid(span, "this interval", "write a literal such as '3 days'"));
        };
        Self::no_interval(&left)?;
        let parts: Vec<String> = parts
            .iter()
            .flat_map(|(n, unit)| {
                let n = if sign == "-" { -n } else { *n };
                // A day after the end of a month becomes the month's last day, as in PostgreSQL.
                let ends = ["months", "years"].contains(unit);
                let floor = ends.then(|| hqdl_values::sql::text("floor"));
                std::iter::once(hqdl_values::sql::text(&format!("{n:+} {unit}"))).chain(floor)
            })
            .collect();
        // A time of day wraps around at midnight.
        let (function, shape) = match left.shape {
            ExprShape::Time => ("time", ExprShape::Time),
            _ => ("datetime", ExprShape::Timestamp),
        };
        let words = format!("{function}({{}}, {})", parts.join(", "));
        Ok(Piece { shape, ..Piece::filled(&words, vec![left.text], span) })
    }
}

/// Translates a comparison with a pattern.
///
/// # Errors
/// [`SqlError`] for an invalid pattern.
pub(super) fn alike(
    left: Piece,
    right: Piece,
    how: &str,
    negated: bool,
    end: usize,
) -> Result<Piece, SqlError> {
    is_pattern(&right, how)?;
    let span = left.span.start..end;
    // SQLite's LIKE ignores the case of ASCII letters and has no default escape character.
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

/// Checks a literal pattern, so that an invalid one is reported before any request is made.
///
/// # Errors
/// [`SqlError`] if the pattern is invalid.
pub(super) fn is_pattern(pattern: &Piece, how: &str) -> Result<(), SqlError> {
    let ExprShape::Literal(text) = &pattern.shape else { return Ok(()) };
    compiled(text, reading(how), false)
        .map(drop)
        .map_err(|error| SqlError::new(pattern.span.clone(), error.to_string(), "this pattern"))
}

/// Joins two operands with the unchanged source text between them.
fn between(left: Piece, right: Piece, level: u8) -> Piece {
    let span = across(&left, &right);
    let mut text = left.text;
    text.push(Part::Old(left.span.end..right.span.start));
    text.extend(right.text);
    let shape = if level < OTHER { ExprShape::Boolean } else { ExprShape::Plain };
    Piece { span, text, shape, level }
}

/// Translates the JSON operators `#>` and `#>>`.
fn along(left: Piece, path: &Piece, sign: &str, span: Range<usize>) -> Result<Piece, SqlError> {
    let Some(steps) = steps(path) else {
        let help = "use json_extract(x, '$.path')";
        return Err(unsaid(span, &format!("`{sign}` by a computed path"), help));
    };
    let texts = vec![left.tight()];
    Ok(if sign == "#>" {
        Piece::filled(&format!("({{}}{steps})"), texts, span)
    } else {
        let words = format!("CAST(suql_json_text({{}}{steps}) AS TEXT)");
        Piece { shape: ExprShape::Text, ..Piece::filled(&words, texts, span) }
    })
}

/// Converts a JSON path literal `'{a,0}'` to `->` operators. Returns `None` for a computed path.
fn steps(path: &Piece) -> Option<String> {
    let ExprShape::Literal(text) = &path.shape else { return None };
    let path: Vec<serde_json::Value> = serde_json::from_str(&super::kinds::elements(text)?).ok()?;
    let step = |step: &serde_json::Value| {
        let said = step.as_str().map_or_else(|| step.to_string(), str::to_owned);
        match said.parse::<i64>() {
            Ok(at) => format!(" -> {at}"),
            Err(_) => format!(" -> {}", hqdl_values::sql::text(&said)),
        }
    };
    Some(path.iter().map(step).collect())
}
