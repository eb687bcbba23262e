//! Parser of casts and intervals.

use std::ops::Range;

use super::cast_target::CastTarget;
use super::expr::OTHER;
use super::functions::parse_number;
use super::literal::{
    KNOWN_TYPES, TYPES, check_range, convert_literal_text, find_misspelled_type, unknown_type_error,
};
use super::parser::{PRIMARY, Parser, SqlType, TypedSql, translation_error};
use super::text::SourceFragment;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};

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

impl Parser<'_> {
    /// Parses the type of `x::type` and casts `operand` to it.
    pub fn parse_cast(&mut self, operand: TypedSql, start: usize) -> Result<TypedSql, SqlError> {
        let type_name = self.parse_type_name()?;
        self.cast_expr(operand, &type_name, start)
    }

    /// Parses `CAST(x AS type)`.
    pub fn parse_cast_function(&mut self) -> Result<TypedSql, SqlError> {
        let start = self.next_start();
        self.position += 2;
        let operand = self.parse_expr()?;
        self.expect_word("AS")?;
        let type_name = self.parse_type_name()?;
        self.expect_symbol(b')')?;
        self.cast_expr(operand, &type_name, start)
    }

    fn cast_expr(
        &mut self,
        mut operand: TypedSql,
        type_name: &TypeName,
        start: usize,
    ) -> Result<TypedSql, SqlError> {
        let span = start..self.previous_token_end();
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
                return Ok(TypedSql {
                    sql_type: SqlType::Enum(name),
                    ..TypedSql::new(operand.text, span)
                });
            }
        }
        if type_name.is_array {
            let literal = match &operand.sql_type {
                SqlType::Literal(text) => Some(parse_array_literal(text)),
                _ => None,
            };
            let text = match literal {
                Some(Some(array)) => vec![SourceFragment::Generated(
                    hqdl_values::sql::quote_text(&array),
                    span.clone(),
                )],
                Some(None) => {
                    return Err(translation_error(
                        operand.span,
                        "this array literal",
                        "write ARRAY['a', 'b']",
                    ));
                }
                None => operand.text,
            };
            return Ok(TypedSql {
                sql_type: SqlType::Array,
                precedence: operand.precedence,
                ..TypedSql::new(text, span)
            });
        }
        if type_name.is_interval {
            let SqlType::Literal(text) = &operand.sql_type else {
                return Err(translation_error(
                    span,
                    "a computed interval",
                    "write a literal, such as INTERVAL '1 day'",
                ));
            };
            return Self::parse_interval_text(&text.clone(), span);
        }
        if let SqlType::Literal(text) = &operand.sql_type
            && type_name.length.is_none()
            && let Some(expr) = convert_literal_text(type_name.target, text, &operand.span)?
        {
            return Ok(TypedSql { span, ..expr });
        }
        let source_text = self.sql.get(operand.span.clone()).unwrap_or_default();
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
            operand.round_half_even();
        }
        let sql_type = type_name.target.sql_type();
        let precedence =
            if type_name.target == CastTarget::Unchanged { operand.precedence } else { PRIMARY };
        let template = match (type_name.scale, type_name.length) {
            (Some(scale), _) => format!("suql_round({template}, {scale})"),
            (None, Some(length)) => format!("substr({template}, 1, {length})"),
            (None, None) => template.to_owned(),
        };
        Ok(TypedSql {
            sql_type,
            precedence,
            ..TypedSql::from_template(&template, vec![operand.text], span)
        })
    }

    fn parse_type_name(&mut self) -> Result<TypeName, SqlError> {
        let token = self.expect_token()?;
        let name = token.unquoted_text(self.sql).to_ascii_uppercase();
        let is_interval = name == "INTERVAL";
        let found = TYPES.iter().find(|(names, _)| names.contains(&name.as_str()));
        let target = match found {
            Some((_, target)) => *target,
            None if UNSUPPORTED_TYPES.contains(&name.as_str()) => {
                let help = format!("the known types are {KNOWN_TYPES}");
                return Err(translation_error(token.span(), &format!("the type `{name}`"), &help));
            }
            None => CastTarget::Unchanged,
        };
        let enum_name = (found.is_none() && !is_interval).then_some(token);
        let is_number = ["NUMERIC", "DECIMAL", "NUMBER"].contains(&name.as_str());
        for more in ["PRECISION", "VARYING"] {
            self.eat_word(more);
        }
        let is_text = ["VARCHAR", "CHAR", "CHARACTER", "BPCHAR"].contains(&name.as_str());
        let (mut scale, mut length) = (None, None);
        if self.eat_symbol(b'(') {
            let mut last = None;
            let mut has_scale = false;
            while !self.is_symbol(b')') {
                let token = self.expect_token()?;
                if token.is_symbol(b',') {
                    has_scale = true;
                } else {
                    last = token.text(self.sql).parse().ok();
                }
            }
            self.expect_symbol(b')')?;
            scale = is_number.then(|| last.filter(|_| has_scale).unwrap_or(0));
            length = last.filter(|_| is_text);
        }
        let _ = self.eat_words(&["WITHOUT", "TIME", "ZONE"])
            || self.eat_words(&["WITH", "TIME", "ZONE"]);
        let mut is_array = false;
        while self.is_symbol(b'[') {
            self.position += 1;
            while !self.is_symbol(b']') {
                self.expect_token()?;
            }
            self.expect_symbol(b']')?;
            is_array = true;
        }
        Ok(TypeName { target, enum_name, is_array, is_interval, scale, length })
    }

    /// Parses the rest of `INTERVAL '…'` after its text.
    pub fn parse_interval(&mut self, span: Range<usize>) -> Result<TypedSql, SqlError> {
        let token =
            self.tokens.get(self.position - 1).copied().filter(|t| t.lexeme == TokenKind::Text);
        let mut text = token.map(|t| t.unquoted_text(self.sql)).unwrap_or_default();
        let mut span = span;
        // The unit can follow the text: INTERVAL '1' DAY
        if let Some(unit) = self.peek().filter(|t| t.lexeme == TokenKind::Word)
            && find_unit(unit.text(self.sql)).is_some()
        {
            self.position += 1;
            text = format!("{text} {}", unit.text(self.sql));
            span.end = unit.end;
        }
        Self::parse_interval_text(&text, span)
    }

    pub fn parse_interval_text(text: &str, span: Range<usize>) -> Result<TypedSql, SqlError> {
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
                Ok(TypedSql { sql_type, precedence: OTHER, ..TypedSql::from_source(span) })
            }
            None => Err(translation_error(
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
