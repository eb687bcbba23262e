//! Translates functions with keywords between their arguments, and date fields.

use std::ops::Range;

use super::function::SuqlCall;
use super::operator::check_pattern;
use super::translator::{SqlType, Translator, TypedExpr, fill_template};
use crate::blendsql::SqlError;

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

impl Translator<'_> {
    /// Translates a function with keywords between its arguments. Returns `None` for any other call.
    pub fn translate_special_syntax(
        &mut self,
        call: &SuqlCall<'_>,
    ) -> Result<Option<TypedExpr>, SqlError> {
        let span = call.span.clone();
        let new = match (call.name, call.args.as_slice()) {
            ("extract", [of]) => {
                let inside = self.tokens_in(&(call.paren..span.end));
                let part = inside.get(1).map(|part| part.unquoted_text(self.sql));
                return self
                    .translate_date_part("date_part", &part.unwrap_or_default(), of, span)
                    .map(Some);
            }
            ("position", [needle, of]) => {
                let found = self.fill(span, "instr({}, {})", [of, needle]);
                return Ok(Some(TypedExpr { sql_type: SqlType::Integer, ..found }));
            }
            ("overlay", args) => {
                let template = format!("suql_overlay({})", vec!["{}"; args.len()].join(", "));
                self.fill(span, &template, args)
            }
            ("substring", [of, rest @ ..]) if !rest.is_empty() => {
                self.translate_substring(call, of, rest)?
            }
            ("trim", args @ [first, ..]) => {
                let words = self.tokens_in(&(call.paren..first.span.start));
                let side = words.get(1).map(|side| side.text(self.sql).to_ascii_uppercase());
                let function = match side.as_deref() {
                    Some("LEADING") => "ltrim",
                    Some("TRAILING") => "rtrim",
                    _ => "trim",
                };
                let is_swapped = match args {
                    [first, second] => self.has_word(first.span.end..second.span.start, "FROM"),
                    _ => false,
                };
                if side.is_none() && !is_swapped {
                    return Ok(None);
                }
                let mut args: Vec<&TypedExpr> = args.iter().collect();
                if is_swapped {
                    args.reverse();
                }
                let template = format!("{function}({})", vec!["{}"; args.len()].join(", "));
                self.fill(span, &template, args)
            }
            _ => return Ok(None),
        };
        Ok(Some(TypedExpr { sql_type: SqlType::Text, ..new }))
    }

    /// Translates `substring(x FROM 1 FOR 2)` and `substring(x, 1, 2)`; `rest` are the arguments
    /// after the text.
    fn translate_substring(
        &mut self,
        call: &SuqlCall<'_>,
        of: &TypedExpr,
        rest: &[TypedExpr],
    ) -> Result<TypedExpr, SqlError> {
        let span = call.span.clone();
        let word = self.tokens_in(&(of.span.end..rest[0].span.start)).first();
        let is_call = word.is_some_and(|comma| comma.is_symbol(b','));
        let is_length = word.is_some_and(|word| word.is_word(self.sql, "FOR"));
        let is_pattern = matches!(rest[0].sql_type, SqlType::Literal(_)) && !is_length;
        match rest {
            [pattern] if is_pattern => {
                check_pattern(pattern, "match")?;
                Ok(self.fill(span, REGEX_MATCH, [of, pattern]))
            }
            _ if is_call => {
                self.replace(span.start..call.paren, "suql_substr");
                Ok(TypedExpr::new(span, SqlType::Text))
            }
            _ if is_pattern || rest.len() > 2 => {
                let construct = "`substring` with a pattern and an escape character";
                let help = "use a regular expression: substring(x FROM '…')";
                Err(SqlError::untranslatable(span, construct, help))
            }
            _ => {
                let from = is_length.then(|| "1".into());
                let operands = [of.span.clone().into()].into_iter().chain(from);
                let operands: Vec<_> =
                    operands.chain(rest.iter().map(|arg| arg.span.clone().into())).collect();
                let template = format!("suql_substr({})", vec!["{}"; operands.len()].join(", "));
                self.replace(span.clone(), fill_template(&template, operands));
                Ok(TypedExpr::new(span, SqlType::Text))
            }
        }
    }

    /// Extracts a field of a date or interval, or truncates a date.
    pub fn translate_date_part(
        &mut self,
        name: &str,
        part: &str,
        of: &TypedExpr,
        span: Range<usize>,
    ) -> Result<TypedExpr, SqlError> {
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
        let Some(template) = template else {
            let construct = format!("the part `{part}` of a date or interval");
            let help = "use year, quarter, month, day, hour, minute or second";
            return Err(SqlError::untranslatable(span, &construct, help));
        };
        Ok(TypedExpr { sql_type, ..self.fill(span, &template, [of]) })
    }
}
