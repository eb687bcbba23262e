//! Parser of functions with keywords between their arguments, and of date fields.

use std::ops::Range;

use super::operator::check_pattern;
use super::parser::{Parser, SqlType, TypedSql, join_exprs, translation_error};
use super::text::SourceFragment;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Token;

/// Template for the part of a text that a regular expression matches: the first capture group, or
/// the whole match.
const REGEX_MATCH: &str = "suql_element(suql_groups({}, {}), 1)";

/// Date fields and the equivalent SQL in `SQLite`.
const DATE_PARTS: [(&str, &str); 15] = [
    ("year", "CAST(strftime('%Y', {}) AS INTEGER)"),
    ("month", "CAST(strftime('%m', {}) AS INTEGER)"),
    ("day", "CAST(strftime('%d', {}) AS INTEGER)"),
    ("hour", "CAST(strftime('%H', {}) AS INTEGER)"),
    ("minute", "CAST(strftime('%M', {}) AS INTEGER)"),
    ("second", "CAST(strftime('%S', {}) AS INTEGER)"),
    ("dow", "CAST(strftime('%w', {}) AS INTEGER)"),
    ("isodow", "CAST(strftime('%u', {}) AS INTEGER)"),
    ("doy", "CAST(strftime('%j', {}) AS INTEGER)"),
    ("week", "CAST(strftime('%V', {}) AS INTEGER)"),
    ("isoyear", "CAST(strftime('%G', {}) AS INTEGER)"),
    ("epoch", "CAST(strftime('%s', {}) AS INTEGER)"),
    ("quarter", "((CAST(strftime('%m', {}) AS INTEGER) + 2) / 3)"),
    ("decade", "(CAST(strftime('%Y', {}) AS INTEGER) / 10)"),
    ("century", "((CAST(strftime('%Y', {}) AS INTEGER) + 99) / 100)"),
];
/// Units to which a date can be truncated.
const TRUNC_UNITS: [&str; 11] = [
    "millennium",
    "century",
    "decade",
    "year",
    "quarter",
    "month",
    "week",
    "day",
    "hour",
    "minute",
    "second",
];
/// Fields of an interval.
const SPAN_PARTS: [&str; 8] =
    ["year", "quarter", "month", "day", "hour", "minute", "second", "epoch"];

impl Parser<'_> {
    /// Parses a function with keywords between its arguments. Returns `None` for a `trim` whose
    /// arguments are separated by commas.
    pub fn parse_special_syntax(
        &mut self,
        token: Token,
        name: &str,
    ) -> Result<Option<TypedSql>, SqlError> {
        let (start, saved_position) = (token.start, self.position);
        self.position += 2;
        match name {
            "EXTRACT" => {
                let part = self.expect_token()?.unquoted_text(self.sql);
                self.expect_word("FROM")?;
                let of = self.parse_expr()?;
                let end = self.expect_symbol(b')')?;
                Self::translate_date_part("date_part", &part, of, start..end).map(Some)
            }
            "POSITION" => {
                let needle = self.parse_binary(super::expr::OTHER)?;
                self.expect_word("IN")?;
                let of = self.parse_expr()?;
                let end = self.expect_symbol(b')')?;
                Ok(Some(TypedSql::from_template(
                    "instr({}, {})",
                    vec![of.text, needle.text],
                    start..end,
                )))
            }
            "OVERLAY" => {
                let mut operands = vec![self.parse_expr()?.text];
                for (n, word) in ["PLACING", "FROM", "FOR"].into_iter().enumerate() {
                    if n == 2 && !self.is_word(word) {
                        break;
                    }
                    self.expect_word(word)?;
                    operands.push(self.parse_expr()?.text);
                }
                let end = self.expect_symbol(b')')?;
                let template = format!("suql_overlay({})", vec!["{}"; operands.len()].join(", "));
                let expr = TypedSql::from_template(&template, operands, start..end);
                Ok(Some(TypedSql { sql_type: SqlType::Text, ..expr }))
            }
            "SUBSTRING" => {
                let of = self.parse_expr()?;
                if self.eat_symbol(b',') {
                    self.position = saved_position;
                    return self.parse_substring_call(token).map(Some);
                }
                let from = if self.eat_word("FROM") { Some(self.parse_expr()?) } else { None };
                let length = if self.eat_word("FOR") { Some(self.parse_expr()?) } else { None };
                let end = self.expect_symbol(b')')?;
                if let Some(SqlType::Literal(_)) = from.as_ref().map(|from| &from.sql_type) {
                    if length.is_some() {
                        let construct = "`substring` with a pattern and an escape character";
                        let help = "use a regular expression: substring(x FROM '…')";
                        return Err(translation_error(start..end, construct, help));
                    }
                    from.as_ref().map_or(Ok(()), |pattern| check_pattern(pattern, "match"))?;
                    let operands =
                        [of.text].into_iter().chain(from.map(|from| from.text)).collect();
                    return Ok(Some(TypedSql::from_template(REGEX_MATCH, operands, start..end)));
                }
                let one = || vec![SourceFragment::Generated("1".to_owned(), start..end)];
                let mut operands = vec![of.text, from.map_or_else(one, |f| f.text)];
                operands.extend(length.map(|l| l.text));
                let template = if operands.len() == 3 {
                    "suql_substr({}, {}, {})"
                } else {
                    "suql_substr({}, {})"
                };
                Ok(Some(TypedSql::from_template(template, operands, start..end)))
            }
            _ => {
                let side = ["BOTH", "LEADING", "TRAILING"].into_iter().find(|w| self.eat_word(w));
                let first = if self.is_word("FROM") { None } else { Some(self.parse_expr()?) };
                if !self.eat_word("FROM") {
                    self.position = saved_position;
                    return if side.is_some() {
                        Err(self.expected_error("FROM"))
                    } else {
                        Ok(None)
                    };
                }
                let of = self.parse_expr()?;
                let end = self.expect_symbol(b')')?;
                let function = match side {
                    Some("LEADING") => "ltrim",
                    Some("TRAILING") => "rtrim",
                    _ => "trim",
                };
                let mut operands = vec![of.text];
                operands.extend(first.map(|f| f.text));
                let placeholders = vec!["{}"; operands.len()].join(", ");
                Ok(Some(TypedSql::from_template(
                    &format!("{function}({placeholders})"),
                    operands,
                    start..end,
                )))
            }
        }
    }

    /// Parses `substring(x, 1, 2)`.
    fn parse_substring_call(&mut self, token: Token) -> Result<TypedSql, SqlError> {
        self.position += 2;
        let exprs = self.parse_exprs()?;
        let end = self.expect_symbol(b')')?;
        let span = token.start..end;
        if let [of, pattern] = exprs.as_slice()
            && matches!(pattern.sql_type, SqlType::Literal(_))
        {
            check_pattern(pattern, "match")?;
            let operands = vec![of.text.clone(), pattern.text.clone()];
            return Ok(TypedSql::from_template(REGEX_MATCH, operands, span));
        }
        let text = join_exprs(token.end, exprs, end);
        let name = SourceFragment::Generated("suql_substr".to_owned(), token.span());
        Ok(TypedSql::new([vec![name], text].concat(), span))
    }

    /// Extracts a field of a date or interval, or truncates a date.
    pub fn translate_date_part(
        name: &str,
        part: &str,
        of: TypedSql,
        span: Range<usize>,
    ) -> Result<TypedSql, SqlError> {
        let part = part.to_lowercase();
        let (template, sql_type) = if name == "date_trunc" {
            let is_known = TRUNC_UNITS.contains(&part.as_str());
            (is_known.then(|| format!("suql_trunc('{part}', {{}})")), SqlType::Timestamp)
        } else if of.sql_type == SqlType::ComputedInterval {
            let is_known = SPAN_PARTS.contains(&part.as_str());
            (is_known.then(|| format!("suql_span_part('{part}', {{}})")), SqlType::Numeric)
        } else {
            let found = DATE_PARTS.iter().find(|(name, _)| *name == part);
            (found.map(|(_, template)| (*template).to_owned()), SqlType::Numeric)
        };
        match template {
            Some(template) => {
                Ok(TypedSql { sql_type, ..TypedSql::from_template(&template, vec![of.text], span) })
            }
            None => {
                let construct = format!("the part `{part}` of a date or interval");
                let help = "use year, quarter, month, day, hour, minute or second";
                Err(translation_error(span, &construct, help))
            }
        }
    }
}
