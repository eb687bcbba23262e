//! Translates casts and intervals.

use std::ops::Range;

use super::cast_target::CastTarget;
use super::functions::parse_number;
use super::literal::{
    KNOWN_TYPES, check_range, convert_literal_text, find_cast_target, find_misspelled_type,
    unknown_type_error,
};
use super::translator::{SqlType, Translator, TypedExpr};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::parse::Precedence;
use crate::blendsql::tree::Expr;
use hqdl_values::sql::quote_text;

/// `PostgreSQL` types that have no equivalent in `SQLite`; any other unknown name is treated as an
/// ENUM.
const UNSUPPORTED_TYPES: [&str; 18] = [
    "BIT",
    "BOX",
    "BYTEA",
    "CIDR",
    "CIRCLE",
    "GEOGRAPHY",
    "GEOMETRY",
    "HSTORE",
    "INET",
    "LSEG",
    "MACADDR",
    "OID",
    "POINT",
    "POLYGON",
    "REGCLASS",
    "TSQUERY",
    "TSVECTOR",
    "XML",
];

/// Interval units: `PostgreSQL`'s name, `SQLite`'s unit, and the number of `SQLite` units.
const INTERVAL_UNITS: [(&str, &str, f64); 10] = [
    ("YEAR", "years", 1.0),
    ("DECADE", "years", 10.0),
    ("MONTH", "months", 1.0),
    ("MON", "months", 1.0),
    ("WEEK", "days", 7.0),
    ("DAY", "days", 1.0),
    ("HOUR", "hours", 1.0),
    ("MINUTE", "minutes", 1.0),
    ("MIN", "minutes", 1.0),
    ("SECOND", "seconds", 1.0),
];

/// A parsed type name.
struct TypeName {
    target: CastTarget,
    /// Name of an unknown type, which may be an ENUM; `None` for a known type.
    enum_name: Option<Token>,
    is_array: bool,
    is_interval: bool,
    /// Digits after the decimal point, if specified.
    scale: Option<u32>,
    /// Maximum length of a text, if specified.
    length: Option<u32>,
}

impl Translator<'_> {
    /// Translates `x::type` or `CAST(x AS type)`.
    pub fn translate_cast(&mut self, expr: &Expr, operand: &Expr) -> Result<TypedExpr, SqlError> {
        let mut operand = self.translate_expr(operand)?;
        let span = expr.span.clone();
        let type_name = self.read_type_name(operand.span.end..span.end)?;
        if let Some(token) = type_name.enum_name {
            let name = token.unquoted_text(self.sql);
            let of_enum = match operand.sql_type {
                SqlType::Literal(_) => true,
                SqlType::Array => type_name.is_array,
                _ => false,
            };
            if !of_enum || find_misspelled_type(&name).is_some() {
                return Err(unknown_type_error(&name, token.span()));
            }
            if !type_name.is_array {
                self.fill(span.clone(), "{}", [&operand]);
                return Ok(TypedExpr::new(span, SqlType::Enum(name)));
            }
        }
        if type_name.is_array {
            return self.cast_to_array(&operand, span);
        }
        if type_name.is_interval {
            let SqlType::Literal(text) = &operand.sql_type else {
                return Err(SqlError::untranslatable(
                    span,
                    "a computed interval",
                    "write a literal, such as INTERVAL '1 day'",
                ));
            };
            return Self::parse_interval(text, span);
        }
        if let SqlType::Literal(text) = &operand.sql_type
            && type_name.length.is_none()
            && let Some((sql, sql_type)) =
                convert_literal_text(type_name.target, text, &operand.span)?
        {
            self.replace(span.clone(), sql);
            return Ok(TypedExpr::new(span, sql_type));
        }
        let source_text = self.text(&operand.span);
        if let Some(number) = parse_number(source_text) {
            check_range(type_name.target, &number, source_text, &operand.span)?;
        }
        let template = match (type_name.target, &operand.sql_type) {
            (target, SqlType::Call) => target.call_template(),
            // PostgreSQL casts a boolean to the text `true` or `false`.
            (CastTarget::Text, SqlType::Boolean) => "suql_said({})",
            (target, _) => target.template(),
        };
        if matches!(type_name.target, CastTarget::Integer(_)) {
            self.round_half_even(&mut operand);
        }
        let is_unchanged = type_name.target == CastTarget::Unchanged;
        let precedence = if is_unchanged { operand.precedence } else { Precedence::Primary };
        let template = match (type_name.scale, type_name.length) {
            (Some(scale), _) => format!("suql_round({template}, {scale})"),
            (None, Some(length)) => format!("substr({template}, 1, {length})"),
            (None, None) => template.to_owned(),
        };
        self.fill(span.clone(), &template, [&operand]);
        let sql_type = type_name.target.sql_type();
        Ok(TypedExpr { precedence, ..TypedExpr::new(span, sql_type) })
    }

    fn cast_to_array(
        &mut self,
        operand: &TypedExpr,
        span: Range<usize>,
    ) -> Result<TypedExpr, SqlError> {
        match &operand.sql_type {
            SqlType::Literal(text) => {
                let array = parse_array_literal(text).ok_or_else(|| {
                    let (construct, help) = ("this array literal", "write ARRAY['a', 'b']");
                    SqlError::untranslatable(operand.span.clone(), construct, help)
                })?;
                self.replace(span.clone(), quote_text(&array));
            }
            _ => _ = self.fill(span.clone(), "{}", [operand]),
        }
        let precedence = operand.precedence;
        Ok(TypedExpr { precedence, ..TypedExpr::new(span, SqlType::Array) })
    }

    /// Reads the type in the text after a cast's operand: `::type` or `AS type)`.
    fn read_type_name(&self, span: Range<usize>) -> Result<TypeName, SqlError> {
        let unexpected = || SqlError::new(span.clone(), "a cast without a type", "expected a type");
        let [_, token, more @ ..] = self.tokens_in(&span) else { return Err(unexpected()) };
        let name = token.unquoted_text(self.sql).to_ascii_uppercase();
        let is_interval = name == "INTERVAL";
        let found = find_cast_target(&name);
        if found.is_none() && UNSUPPORTED_TYPES.contains(&name.as_str()) {
            let help = format!("the known types are {KNOWN_TYPES}");
            let construct = format!("the type `{name}`");
            return Err(SqlError::untranslatable(token.span(), &construct, &help));
        }
        let enum_name = (found.is_none() && !is_interval).then_some(*token);
        let is_number = ["NUMERIC", "DECIMAL", "NUMBER"].contains(&name.as_str());
        let is_text = ["VARCHAR", "CHAR", "CHARACTER", "BPCHAR"].contains(&name.as_str());
        let arguments = more.iter().take_while(|token| !token.is_symbol(b'['));
        let numbers = arguments.filter(|token| token.lexeme == TokenKind::Number);
        let numbers: Vec<Option<u32>> =
            numbers.map(|token| token.text(self.sql).parse().ok()).collect();
        let (scale, length) = match numbers.as_slice() {
            [] => (None, None),
            [one] => (is_number.then_some(0), one.filter(|_| is_text)),
            [.., last] => (is_number.then(|| last.unwrap_or(0)), last.filter(|_| is_text)),
        };
        let is_array = more.iter().any(|token| token.is_symbol(b'['));
        let target = found.unwrap_or(CastTarget::Unchanged);
        Ok(TypeName { target, enum_name, is_array, is_interval, scale, length })
    }

    /// Parses the text of an interval.
    pub fn parse_interval(text: &str, span: Range<usize>) -> Result<TypedExpr, SqlError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_ago = words.last().is_some_and(|w| w.eq_ignore_ascii_case("ago"));
        let words = &words[..words.len() - usize::from(is_ago)];
        let parts: Option<Vec<(f64, &'static str)>> = words
            .chunks(2)
            .map(|pair| {
                let [number, unit] = pair else { return None };
                let (unit, times) = find_unit(unit)?;
                let number: f64 = number.parse().ok()?;
                Some((number * times * if is_ago { -1.0 } else { 1.0 }, unit))
            })
            .collect();
        match parts.filter(|p| !p.is_empty()) {
            Some(parts) => {
                let sql_type = SqlType::Interval(parts);
                let precedence = Precedence::Bits;
                Ok(TypedExpr { precedence, ..TypedExpr::new(span, sql_type) })
            }
            None => Err(SqlError::untranslatable(
                span,
                "this interval",
                "write numbers and units, such as '3 days'",
            )),
        }
    }
}

fn find_unit(word: &str) -> Option<(&'static str, f64)> {
    let word = word.to_ascii_uppercase();
    let singular = word.strip_suffix('S').filter(|w| w.len() > 1).unwrap_or(&word);
    INTERVAL_UNITS
        .iter()
        .find(|(name, ..)| *name == singular || *name == word)
        .map(|(_, unit, n)| (*unit, *n))
}

/// Converts an array literal `{a,"b c"}` to a JSON array. Returns `None` if the text is not an
/// array literal.
pub(super) fn parse_array_literal(text: &str) -> Option<String> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (mut all, mut element, mut quoted, mut was_quoted) =
        (Vec::new(), String::new(), false, false);
    let mut chars = inside.chars();
    let mut finish = |element: &mut String, was_quoted: &mut bool| {
        let text = if *was_quoted { element.clone() } else { element.trim().to_owned() };
        let null = !*was_quoted && text.eq_ignore_ascii_case("null");
        all.push(if null { serde_json::Value::Null } else { text.into() });
        element.clear();
        *was_quoted = false;
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => element.extend(chars.next()),
            '"' => {
                quoted = !quoted;
                was_quoted = true;
            }
            ',' if !quoted => finish(&mut element, &mut was_quoted),
            '{' | '}' if !quoted => return None,
            _ => element.push(c),
        }
    }
    if !inside.trim().is_empty() {
        finish(&mut element, &mut was_quoted);
    }
    Some(serde_json::Value::from(all).to_string())
}
