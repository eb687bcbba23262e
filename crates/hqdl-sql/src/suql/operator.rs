//! Parser of operators.

use std::ops::Range;

use super::expr::{
    ADD, AND, COMPARE, IS, MULTIPLY, NOT, OR, OTHER, POWER, SPECIAL, UNARY, join_spans,
};
use super::functions::{compile_pattern, find_pattern_syntax};
use super::parser::{PRIMARY, Parser, SqlType, TypedSql, join_exprs, translation_error};
use super::text::{SourceFragment, SqlText};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::TokenKind;

/// The operator at the current position.
pub(super) struct Operator {
    pub precedence: u8,
    /// Symbol or keyword of the operator, in upper case.
    sign: String,
    /// Number of tokens of the operator.
    token_count: usize,
}

/// Symbolic operators except `+ - * / %`. A longer operator comes before its prefixes.
const SIGNS: [&str; 24] = [
    "!~~*", "!~*", "!~~", "#>>", "->>", "~~*", "!=", "!~", "#>", "&&", "->", "<=", "<>", "<@",
    ">=", "@>", "||", "~*", "~~", "=", "<", ">", "~", "^",
];

impl Parser<'_> {
    /// Returns the operator at the current position, if there is one.
    pub fn peek_operator(&self) -> Option<Operator> {
        let token = self.peek()?;
        let new_operator = |precedence, sign: &str, token_count| {
            Some(Operator { precedence, sign: sign.to_owned(), token_count })
        };
        if token.lexeme == TokenKind::Word {
            let word = token.text(self.sql).to_ascii_uppercase();
            return match word.as_str() {
                "OR" => new_operator(OR, "OR", 1),
                "AND" => new_operator(AND, "AND", 1),
                "IS" | "ISNULL" | "NOTNULL" => new_operator(IS, &word, 1),
                "IN" | "LIKE" | "ILIKE" | "BETWEEN" | "SIMILAR" => new_operator(SPECIAL, &word, 1),
                "NOT" => {
                    let next = self.peek_at(1)?.text(self.sql).to_ascii_uppercase();
                    let special = ["IN", "LIKE", "ILIKE", "BETWEEN", "SIMILAR"];
                    special.contains(&next.as_str()).then_some(())?;
                    new_operator(SPECIAL, &format!("NOT {next}"), 2)
                }
                _ => None,
            };
        }
        let rest = &self.sql[token.start..];
        let sign = SIGNS.iter().find(|s| rest.starts_with(**s));
        let sign = sign
            .map(|s| (*s).to_owned())
            .or_else(|| rest.chars().next().filter(|c| "+-*/%".contains(*c)).map(String::from))?;
        let precedence = match sign.as_str() {
            "=" | "<" | ">" | "<=" | ">=" | "<>" | "!=" => COMPARE,
            "+" | "-" => ADD,
            "*" | "/" | "%" => MULTIPLY,
            "^" => POWER,
            _ => OTHER,
        };
        new_operator(precedence, &sign, sign.len())
    }

    /// Parses the rest of an operation, starting at its operator.
    pub fn parse_operation(
        &mut self,
        left: TypedSql,
        operator: &Operator,
    ) -> Result<TypedSql, SqlError> {
        let sign = self.next_start();
        self.position += operator.token_count;
        let name = operator.sign.as_str();
        match operator.precedence {
            OR | AND => {
                let right = self.parse_binary(operator.precedence + 1)?;
                let (left, right) = (Self::to_condition(left), Self::to_condition(right));
                Ok(join_operands(left, right, operator.precedence))
            }
            IS => self.parse_is(left, name, sign),
            SPECIAL => self.parse_special_operation(left, name),
            COMPARE => self.parse_comparison(left, name),
            _ => {
                let right = self.parse_binary(operator.precedence + 1)?;
                self.translate_binary_operation(left, right, operator)
            }
        }
    }

    /// Adds parentheses to an operand if `SQLite`'s precedence requires them.
    fn parenthesize_operand(expr: TypedSql) -> TypedSql {
        if (NOT..ADD).contains(&expr.precedence) {
            let (span, sql_type) = (expr.span.clone(), expr.sql_type.clone());
            return TypedSql {
                span,
                sql_type,
                text: expr.into_parenthesized(),
                precedence: PRIMARY,
            };
        }
        expr
    }

    /// Parses IS NULL, IS TRUE and similar tests.
    fn parse_is(&mut self, left: TypedSql, name: &str, sign: usize) -> Result<TypedSql, SqlError> {
        let mut left = Self::parenthesize_operand(left);
        let start = left.span.start;
        if name == "IS" {
            self.eat_word("NOT");
            if ["TRUE", "FALSE", "UNKNOWN"].iter().any(|word| self.is_word(word)) {
                left = Self::to_condition(left);
            }
            if self.eat_words(&["DISTINCT", "FROM"]) {
                let right = Self::parenthesize_operand(self.parse_binary(COMPARE)?);
                let (left, right) = Self::unify_operands(left, right)?;
                return Ok(join_operands(left, right, IS));
            }
            if self.is_word("UNKNOWN") {
                let unknown = self.expect_token()?;
                let mut text = left.text;
                text.push(SourceFragment::Source(left.span.end..unknown.start));
                text.push(SourceFragment::Generated("NULL".to_owned(), unknown.span()));
                let span = start..unknown.end;
                return Ok(TypedSql { span, text, sql_type: SqlType::Boolean, precedence: IS });
            }
            if !["NULL", "TRUE", "FALSE"].iter().any(|w| self.is_word(w)) {
                return Err(self.expected_error("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM"));
            }
            self.position += 1;
        }
        let end = self.previous_token_end();
        let mut text = left.text;
        text.push(SourceFragment::Source(left.span.end.min(sign)..end));
        Ok(TypedSql { span: start..end, text, sql_type: SqlType::Boolean, precedence: IS })
    }

    /// Parses IN, LIKE, BETWEEN and similar operations.
    fn parse_special_operation(
        &mut self,
        left: TypedSql,
        name: &str,
    ) -> Result<TypedSql, SqlError> {
        let (negated, name) = match name.strip_prefix("NOT ") {
            Some(name) => (true, name),
            None => (false, name),
        };
        match name {
            "IN" => {
                if !self.is_symbol(b'(') {
                    // PostgreSQL does not allow a table here, so anything but a list is an array.
                    let array = self.parse_binary(OTHER)?;
                    Self::ensure_not_boolean(&left)?;
                    let template =
                        if negated { "suql_all({}, '<>', {})" } else { "suql_any({}, '=', {})" };
                    let span = left.span.start..array.span.end;
                    return Ok(TypedSql::from_template(
                        template,
                        vec![left.text, array.text],
                        span,
                    )
                    .with_boolean_type());
                }
                if self.is_query_at(1) {
                    let right = self.parse_binary(OTHER)?;
                    return Ok(join_operands(Self::parenthesize_operand(left), right, SPECIAL));
                }
                if left.sql_type == SqlType::Array {
                    return self.parse_array_list(&left, negated);
                }
                let (left, right) = self.parse_in_list(left)?;
                Ok(join_operands(Self::parenthesize_operand(left), right, SPECIAL))
            }
            "BETWEEN" => {
                let symmetric = self.eat_word("SYMMETRIC");
                let (left, low) = Self::unify_operands(left, self.parse_binary(OTHER)?)?;
                self.expect_word("AND")?;
                let (left, high) = Self::unify_operands(left, self.parse_binary(OTHER)?)?;
                let (low, high) =
                    (Self::parenthesize_operand(low), Self::parenthesize_operand(high));
                if symmetric {
                    let template = "({} BETWEEN {} AND {} OR {} BETWEEN {} AND {})";
                    let template =
                        if negated { format!("(NOT {template})") } else { template.to_owned() };
                    let span = left.span.start..high.span.end;
                    let [of, low, high] = [left, low, high].map(TypedSql::into_parenthesized);
                    let there = [of.clone(), low.clone(), high.clone()];
                    let operands = there.into_iter().chain([of, high, low]).collect();
                    return Ok(
                        TypedSql::from_template(&template, operands, span).with_boolean_type()
                    );
                }
                let both = join_operands(low, high, SPECIAL);
                Ok(join_operands(Self::parenthesize_operand(left), both, SPECIAL))
            }
            _ => {
                if name == "SIMILAR" {
                    self.expect_word("TO")?;
                }
                let syntax = if name == "SIMILAR" {
                    "similar"
                } else if name == "ILIKE" {
                    "ilike"
                } else {
                    "like"
                };
                if let Some(quantified) =
                    self.parse_quantified_comparison(&left, syntax, negated)?
                {
                    return Ok(quantified);
                }
                Self::ensure_not_boolean(&left)?;
                let right = self.parse_binary(OTHER)?;
                if self.is_word("ESCAPE") {
                    self.position += 1;
                    let escape = self.parse_binary(OTHER)?;
                    if escape.sql_type != SqlType::Literal("\\".to_owned()) {
                        let help = "escape with a backslash, and leave ESCAPE out";
                        return Err(translation_error(escape.span, "this ESCAPE character", help));
                    }
                }
                translate_pattern_match(left, right, syntax, negated, self.previous_token_end())
            }
        }
    }

    fn parse_comparison(&mut self, left: TypedSql, sign: &str) -> Result<TypedSql, SqlError> {
        let sign = if sign == "!=" { "<>" } else { sign };
        if let Some(quantified) = self.parse_quantified_comparison(&left, sign, false)? {
            return Ok(quantified);
        }
        let right = self.parse_binary(SPECIAL)?;
        if let Some(spans) = Self::compare_intervals(&left, &right, sign)? {
            return Ok(spans);
        }
        Self::ensure_not_interval(&left)?;
        Self::ensure_not_interval(&right)?;
        let (left, right) = Self::unify_operands(left, right)?;
        let of_enum = |expr: &TypedSql| matches!(expr.sql_type, SqlType::Enum(_));
        if (of_enum(&left) || of_enum(&right)) && !["=", "<>"].contains(&sign) {
            let help = "list the values that you mean: IN ('…', '…')";
            return Err(translation_error(
                join_spans(&left, &right),
                "the order of an ENUM's values",
                help,
            ));
        }
        if left.sql_type == SqlType::Array || right.sql_type == SqlType::Array {
            let span = join_spans(&left, &right);
            let template = match sign {
                "=" => "suql_same({}, {})",
                "<>" => "NOT suql_same({}, {})",
                _ => {
                    let construct = format!("`{sign}` between arrays");
                    return Err(translation_error(
                        span,
                        &construct,
                        "compare single elements: a[1]",
                    ));
                }
            };
            let precedence = if sign == "=" { PRIMARY } else { NOT };
            let expr = TypedSql::from_template(template, vec![left.text, right.text], span);
            return Ok(TypedSql { precedence, ..expr.with_boolean_type() });
        }
        Ok(join_operands(
            Self::parenthesize_operand(left),
            Self::parenthesize_operand(right),
            COMPARE,
        ))
    }

    #[expect(clippy::too_many_lines, reason = "one case for each operator")]
    fn translate_binary_operation(
        &mut self,
        left: TypedSql,
        right: TypedSql,
        operator: &Operator,
    ) -> Result<TypedSql, SqlError> {
        let span = join_spans(&left, &right);
        let sign = operator.sign.as_str();
        let (left, right) = match sign {
            "@>" | "<@" | "&&" => (Self::coerce_to_array(left), Self::coerce_to_array(right)),
            _ => (left, right),
        };
        let fill_both = |template: &str, left: TypedSql, right: TypedSql| {
            TypedSql::from_template(template, vec![left.text, right.text], span.clone())
        };
        let arrays = left.sql_type == SqlType::Array || right.sql_type == SqlType::Array;
        Ok(match sign {
            "+" | "-" if matches!(right.sql_type, SqlType::Interval(_)) => {
                return Self::add_interval(left, &right, sign);
            }
            "+" if matches!(left.sql_type, SqlType::Interval(_)) => {
                return Self::add_interval(right, &left, sign);
            }
            "*" if matches!(left.sql_type, SqlType::Interval(_)) => {
                return self.multiply_interval(&left, &right, span);
            }
            "*" if matches!(right.sql_type, SqlType::Interval(_)) => {
                return self.multiply_interval(&right, &left, span);
            }
            "^" => fill_both("pow({}, {})", left, right),
            "@>" => fill_both("suql_contains({}, {})", left, right).with_boolean_type(),
            "<@" => fill_both("suql_contains({}, {})", right, left).with_boolean_type(),
            "&&" => fill_both("suql_overlaps({}, {})", left, right).with_boolean_type(),
            "||" if arrays => {
                let sql_type = SqlType::Array;
                TypedSql { sql_type, ..fill_both("suql_joined({}, {})", left, right) }
            }
            "~" | "~*" | "!~" | "!~*" => {
                Self::ensure_not_boolean(&left)?;
                let negated = sign.starts_with('!');
                let syntax = if sign.ends_with('*') { "imatch" } else { "match" };
                let end = span.end;
                translate_pattern_match(left, right, syntax, negated, end)?
            }
            "~~" | "~~*" | "!~~" | "!~~*" => {
                Self::ensure_not_boolean(&left)?;
                let syntax = if sign.ends_with('*') { "ilike" } else { "like" };
                let end = span.end;
                translate_pattern_match(left, right, syntax, sign.starts_with('!'), end)?
            }
            "#>" | "#>>" => translate_json_path(left, &right, sign, span)?,
            // The result is always a text.
            "->>" => {
                let template = "CAST(suql_json_text({} -> {}) AS TEXT)";
                let operands = vec![left.into_parenthesized(), right.into_parenthesized()];
                TypedSql {
                    sql_type: SqlType::Text,
                    ..TypedSql::from_template(template, operands, span)
                }
            }
            // In SQLite, || and -> have a higher precedence than arithmetic and signs.
            _ if operator.precedence == OTHER => {
                let parenthesize = |p: TypedSql| {
                    let span = p.span.clone();
                    if sign == "||" && p.sql_type == SqlType::Boolean {
                        return TypedSql::from_template("suql_said({})", vec![p.text], span);
                    }
                    TypedSql::new(p.into_parenthesized(), span)
                };
                let sql_type = if sign == "||" { SqlType::Text } else { SqlType::Unknown };
                TypedSql {
                    sql_type,
                    ..join_operands(parenthesize(left), parenthesize(right), OTHER)
                }
            }
            _ => {
                Self::ensure_value(&left)?;
                Self::ensure_value(&right)?;
                let as_number = |expr: TypedSql, other: &SqlType| match expr.sql_type.clone() {
                    SqlType::Literal(text) if other.is_number() => {
                        Self::convert_literal(expr, &text, other)
                    }
                    _ => Ok(expr),
                };
                let right_type = right.sql_type.clone();
                let right = as_number(right, &left.sql_type)?;
                let left = as_number(left, &right_type)?;
                if let Some(days) = self.translate_date_arithmetic(&left, &right, sign)? {
                    return Ok(days);
                }
                let is_fractional =
                    |p: &TypedSql| [SqlType::Numeric, SqlType::Float].contains(&p.sql_type);
                let is_fractional = is_fractional(&left) || is_fractional(&right);
                let sql_type = match left.sql_type.unify(&right.sql_type) {
                    sql_type if sql_type.is_number() => sql_type,
                    _ if is_fractional => SqlType::Numeric,
                    _ => SqlType::Integer,
                };
                if sign == "%" && is_fractional {
                    return Ok(TypedSql { sql_type, ..fill_both("mod({}, {})", left, right) });
                }
                if is_fractional && sign == "/" {
                    // `SQLite` stores a whole NUMERIC as an integer, and integer division
                    // truncates.
                    let template = "CAST({} AS REAL) / {}";
                    let operands =
                        vec![left.text, Self::parenthesize_operand(right).into_parenthesized()];
                    let precedence = operator.precedence;
                    return Ok(TypedSql {
                        sql_type,
                        precedence,
                        ..TypedSql::from_template(template, operands, span)
                    });
                }
                let parenthesize = |p: TypedSql| {
                    if p.precedence == UNARY || p.precedence >= ADD {
                        p
                    } else {
                        Self::parenthesize_operand(p)
                    }
                };
                TypedSql {
                    sql_type,
                    ..join_operands(parenthesize(left), parenthesize(right), operator.precedence)
                }
            }
        })
    }

    /// Translates date arithmetic: a date plus or minus days, the days between two dates, or the
    /// interval between two timestamps. Returns `None` if no operand is a date or time.
    ///
    /// # Errors
    /// Returns [`SqlError`] for an invalid combination, such as a timestamp plus a number.
    fn translate_date_arithmetic(
        &self,
        left: &TypedSql,
        right: &TypedSql,
        sign: &str,
    ) -> Result<Option<TypedSql>, SqlError> {
        use SqlType::{ComputedInterval, Date, Integer, Timestamp, Unknown};
        let has_type = |expr: &TypedSql, sql_type: &SqlType| expr.sql_type == *sql_type;
        let span = join_spans(left, right);
        let operands = [left, right];
        if sign == "-" && operands.iter().any(|p| has_type(p, &Timestamp)) {
            let other = operands
                .iter()
                .find(|p| !has_type(p, &Timestamp))
                .map_or(&Timestamp, |p| &p.sql_type);
            if !other.is_number() && *other != ComputedInterval {
                let operands = vec![right.text.clone(), left.text.clone()];
                let expr = TypedSql::from_template("suql_between({}, {})", operands, span);
                return Ok(Some(TypedSql { sql_type: ComputedInterval, ..expr }));
            }
        }
        let (first, second) = if has_type(right, &Date) { (right, left) } else { (left, right) };
        if sign == "+" && has_type(first, &Date) && has_type(second, &SqlType::Time) {
            let operands = vec![first.text.clone(), second.text.clone()];
            let expr = TypedSql::from_template("suql_timestamp({} || ' ' || {})", operands, span);
            return Ok(Some(TypedSql { sql_type: Timestamp, ..expr }));
        }
        if operands
            .iter()
            .any(|p| matches!(p.sql_type, Timestamp | SqlType::Time | ComputedInterval))
        {
            let help = "add or subtract an interval: d + INTERVAL '1 day'";
            return Err(translation_error(span, &format!("this `{sign}` with a time"), help));
        }
        let is_number = |expr: &TypedSql| {
            let text = self.sql.get(expr.span.clone()).unwrap_or_default();
            expr.sql_type.is_number()
                || text.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit())
        };
        let (template, date, amount) = match sign {
            "+" if has_type(left, &Date) && !has_type(right, &Date) => {
                ("suql_days_after({}, {})", left, right)
            }
            "+" if has_type(right, &Date) && !has_type(left, &Date) => {
                ("suql_days_after({}, {})", right, left)
            }
            "-" if operands.iter().any(|p| has_type(p, &Date)) => {
                ("suql_days_before({}, {})", left, right)
            }
            _ if operands.iter().any(|p| has_type(p, &Date)) => {
                let help = "add or subtract a number of days: d + 7";
                return Err(translation_error(span, &format!("this `{sign}` with a date"), help));
            }
            _ => return Ok(None),
        };
        let sql_type = match () {
            () if sign == "+" || is_number(amount) => Date,
            () if has_type(amount, &Date) => Integer,
            () => Unknown,
        };
        let operands = vec![date.text.clone(), amount.text.clone()];
        Ok(Some(TypedSql { sql_type, ..TypedSql::from_template(template, operands, span) }))
    }

    /// Parses the list `(x, y, …)` of `array IN (x, y, …)`, and compares the arrays element by
    /// element.
    fn parse_array_list(&mut self, left: &TypedSql, negated: bool) -> Result<TypedSql, SqlError> {
        self.expect_symbol(b'(')?;
        let all: Vec<TypedSql> =
            self.parse_exprs()?.into_iter().map(Self::coerce_to_array).collect();
        let end = self.expect_symbol(b')')?;
        let comparisons = vec!["suql_same({}, {})"; all.len()].join(" OR ");
        let template =
            if negated { format!("(NOT ({comparisons}))") } else { format!("({comparisons})") };
        let operands = all.into_iter().flat_map(|expr| [left.text.clone(), expr.text]).collect();
        Ok(TypedSql::from_template(&template, operands, left.span.start..end).with_boolean_type())
    }

    /// Parses `(x, 'y', …)` after IN, and unifies the types of the left operand and each element.
    fn parse_in_list(&mut self, left: TypedSql) -> Result<(TypedSql, TypedSql), SqlError> {
        let start = self.next_start();
        self.expect_symbol(b'(')?;
        let (mut left, mut all) = (left, Vec::new());
        for expr in self.parse_exprs()? {
            let (converted, expr) = Self::unify_operands(left, expr)?;
            left = converted;
            all.push(expr);
        }
        let end = self.expect_symbol(b')')?;
        Ok((left, TypedSql::new(join_exprs(start, all, end), start..end)))
    }

    /// Compares a computed interval with another interval by their lengths. A month counts as 30
    /// days.
    fn compare_intervals(
        left: &TypedSql,
        right: &TypedSql,
        sign: &str,
    ) -> Result<Option<TypedSql>, SqlError> {
        if ![left, right].iter().any(|expr| expr.sql_type == SqlType::ComputedInterval) {
            return Ok(None);
        }
        let length = |expr: &TypedSql| -> Result<SqlText, SqlError> {
            let interval_type = match &expr.sql_type {
                SqlType::Literal(text) => {
                    Self::parse_interval_text(text, expr.span.clone())?.sql_type
                }
                sql_type => sql_type.clone(),
            };
            let SqlType::Interval(parts) = interval_type else {
                let template = "suql_span_part('length', {})";
                return Ok(TypedSql::from_template(
                    template,
                    vec![expr.text.clone()],
                    expr.span.clone(),
                )
                .text);
            };
            let seconds = |unit| match unit {
                "years" => 360.0 * 86_400.0,
                "months" => 30.0 * 86_400.0,
                "days" => 86_400.0,
                "hours" => 3600.0,
                "minutes" => 60.0,
                _ => 1.0,
            };
            let total: f64 = parts.iter().map(|(n, unit)| n * seconds(*unit)).sum();
            Ok(vec![SourceFragment::Generated(total.to_string(), expr.span.clone())])
        };
        let template = format!("{{}} {sign} {{}}");
        let operands = vec![length(left)?, length(right)?];
        let expr = TypedSql::from_template(&template, operands, join_spans(left, right));
        Ok(Some(TypedSql { precedence: COMPARE, ..expr.with_boolean_type() }))
    }

    /// Fails for a boolean where a text or an array element is required.
    pub fn ensure_not_boolean(expr: &TypedSql) -> Result<(), SqlError> {
        if expr.sql_type != SqlType::Boolean {
            return Ok(());
        }
        let error = SqlError::new(expr.span.clone(), "this is a boolean, not a text", "here");
        Err(error.with_help("compare it with TRUE or FALSE"))
    }

    /// Multiplies an interval by a literal number.
    fn multiply_interval(
        &self,
        interval: &TypedSql,
        factor: &TypedSql,
        span: Range<usize>,
    ) -> Result<TypedSql, SqlError> {
        let SqlType::Interval(parts) = &interval.sql_type else {
            return Err(self.expected_error("an interval"));
        };
        let number =
            self.sql.get(factor.span.clone()).and_then(|text| text.trim().parse::<f64>().ok());
        let Some(times) = number else {
            let help = "write the interval out: d + INTERVAL '3 days'";
            return Err(translation_error(span, "an interval times a computed number", help));
        };
        let parts = parts.iter().map(|(n, unit)| (n * times, *unit)).collect();
        Ok(TypedSql {
            sql_type: SqlType::Interval(parts),
            precedence: OTHER,
            ..TypedSql::from_source(span)
        })
    }

    /// Adds an interval to a date or time.
    fn add_interval(left: TypedSql, right: &TypedSql, sign: &str) -> Result<TypedSql, SqlError> {
        let span = join_spans(&left, right);
        let span = span.start.min(right.span.start)..span.end.max(left.span.end);
        let SqlType::Interval(parts) = &right.sql_type else {
            return Err(translation_error(
                span,
                "a computed interval",
                "write a literal, such as INTERVAL '3 days'",
            ));
        };
        Self::ensure_value(&left)?;
        let parts: Vec<String> = parts
            .iter()
            .flat_map(|(n, unit)| {
                let n = if sign == "-" { -n } else { *n };
                // If the resulting month has fewer days, the day becomes the month's last one, as
                // in PostgreSQL.
                let clamps_to_month_end = ["months", "years"].contains(unit);
                let floor = clamps_to_month_end.then(|| hqdl_values::sql::quote_text("floor"));
                std::iter::once(hqdl_values::sql::quote_text(&format!("{n:+} {unit}"))).chain(floor)
            })
            .collect();
        // A time of day wraps around at midnight.
        let (function, sql_type) = match left.sql_type {
            SqlType::Time => ("time", SqlType::Time),
            _ => ("datetime", SqlType::Timestamp),
        };
        let template = format!("{function}({{}}, {})", parts.join(", "));
        Ok(TypedSql { sql_type, ..TypedSql::from_template(&template, vec![left.text], span) })
    }
}

/// Translates a comparison with a pattern.
///
/// # Errors
/// Returns [`SqlError`] for an invalid pattern.
pub(super) fn translate_pattern_match(
    left: TypedSql,
    right: TypedSql,
    syntax: &str,
    negated: bool,
    end: usize,
) -> Result<TypedSql, SqlError> {
    check_pattern(&right, syntax)?;
    let span = left.span.start..end;
    // SQLite's LIKE ignores the case of ASCII letters and has no default escape character.
    let is_plain_like = match &right.sql_type {
        SqlType::Literal(pattern) => {
            pattern.is_ascii()
                && !pattern.contains('\\')
                && (syntax == "ilike"
                    || syntax == "like" && !pattern.contains(|c: char| c.is_alphabetic()))
        }
        _ => false,
    };
    if is_plain_like {
        let template = if negated { "{} NOT LIKE {}" } else { "{} LIKE {}" };
        let operands = vec![left.into_parenthesized(), right.text];
        return Ok(TypedSql {
            precedence: SPECIAL,
            ..TypedSql::from_template(template, operands, span).with_boolean_type()
        });
    }
    let not = if negated { "NOT " } else { "" };
    let template = format!("{not}suql_{syntax}({{}}, {{}})");
    let precedence = if negated { NOT } else { PRIMARY };
    Ok(TypedSql {
        precedence,
        ..TypedSql::from_template(&template, vec![left.text, right.text], span).with_boolean_type()
    })
}

/// Checks a literal pattern, so that an invalid pattern is reported before any request is made.
///
/// # Errors
/// Returns [`SqlError`] if the pattern is invalid.
pub(super) fn check_pattern(pattern: &TypedSql, syntax: &str) -> Result<(), SqlError> {
    let SqlType::Literal(text) = &pattern.sql_type else { return Ok(()) };
    compile_pattern(text, find_pattern_syntax(syntax), false).map(drop).map_err(|error| {
        SqlError::new(pattern.span.clone(), error.to_string(), "this pattern").with_help(
            "correct the pattern; to match a special character literally, put `\\` before it",
        )
    })
}

/// Joins two operands with the unchanged source text between them.
fn join_operands(left: TypedSql, right: TypedSql, precedence: u8) -> TypedSql {
    let span = join_spans(&left, &right);
    let mut text = left.text;
    text.push(SourceFragment::Source(left.span.end..right.span.start));
    text.extend(right.text);
    let sql_type = if precedence < OTHER { SqlType::Boolean } else { SqlType::Unknown };
    TypedSql { span, text, sql_type, precedence }
}

/// Translates the JSON operators `#>` and `#>>`.
fn translate_json_path(
    left: TypedSql,
    path: &TypedSql,
    sign: &str,
    span: Range<usize>,
) -> Result<TypedSql, SqlError> {
    let Some(operators) = convert_json_path(path) else {
        let help = "use json_extract(x, '$.path')";
        return Err(translation_error(span, &format!("`{sign}` with a computed path"), help));
    };
    let texts = vec![left.into_parenthesized()];
    Ok(if sign == "#>" {
        TypedSql::from_template(&format!("({{}}{operators})"), texts, span)
    } else {
        let template = format!("CAST(suql_json_text({{}}{operators}) AS TEXT)");
        TypedSql { sql_type: SqlType::Text, ..TypedSql::from_template(&template, texts, span) }
    })
}

/// Converts a JSON path literal `'{a,0}'` to `->` operators. Returns `None` for a computed path.
fn convert_json_path(path: &TypedSql) -> Option<String> {
    let SqlType::Literal(text) = &path.sql_type else { return None };
    let path: Vec<serde_json::Value> =
        serde_json::from_str(&super::casts::parse_array_literal(text)?).ok()?;
    let step = |step: &serde_json::Value| {
        let key = step.as_str().map_or_else(|| step.to_string(), str::to_owned);
        match key.parse::<i64>() {
            Ok(at) => format!(" -> {at}"),
            Err(_) => format!(" -> {}", hqdl_values::sql::quote_text(&key)),
        }
    };
    Some(path.iter().map(step).collect())
}
