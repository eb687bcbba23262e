//! Parser of casts and intervals.

use std::ops::Range;

use super::cast::CastTarget;
use super::expr::OTHER;
use super::functions::number_of;
use super::literal::{KNOWN_TYPES, TYPES, in_range, literal, no_type, slip};
use super::parser::{ExprShape, PRIMARY, Parser, Piece, unsaid};
use super::text::Part;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Lexeme, Token};

/// `PostgreSQL` types that have no equivalent in `SQLite`; any other unknown name is treated as an
/// ENUM.
const OTHERS: [&str; 18] = [
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
const UNITS: [(&str, &str, f64); 10] = [
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
struct WrittenType {
    target: CastTarget,
    /// The name, if it is not a known type; possibly an ENUM.
    named: Option<Token>,
    array: bool,
    interval: bool,
    /// Digits after the decimal point, if specified.
    scale: Option<u32>,
    /// Maximum length of a text, if specified.
    length: Option<u32>,
}

impl Parser<'_> {
    /// Parses the type of `x::type` and casts `operand` to it.
    pub fn cast(&mut self, of: Piece, start: usize) -> Result<Piece, SqlError> {
        let kind = self.kind()?;
        self.cast_to(of, &kind, start)
    }

    /// Parses `CAST(x AS type)`.
    pub fn cast_function(&mut self) -> Result<Piece, SqlError> {
        let start = self.here();
        self.at += 2;
        let of = self.expr()?;
        self.expect_word("AS")?;
        let kind = self.kind()?;
        self.expect(b')')?;
        self.cast_to(of, &kind, start)
    }

    fn cast_to(
        &mut self,
        mut of: Piece,
        kind: &WrittenType,
        start: usize,
    ) -> Result<Piece, SqlError> {
        let span = start..self.before();
        if let Some(token) = kind.named {
            let name = token.content(self.sql);
            let of_enum = match of.shape {
                ExprShape::Literal(_) => true,
                ExprShape::Array => kind.array,
                _ => false,
            };
            if !of_enum || slip(&name).is_some() {
                return Err(no_type(&name, token.span()));
            }
            if !kind.array {
                return Ok(Piece { shape: ExprShape::Enum(name), ..Piece::new(of.text, span) });
            }
        }
        if kind.array {
            let literal = match &of.shape {
                ExprShape::Literal(text) => Some(elements(text)),
                _ => None,
            };
            let text = match literal {
                Some(Some(array)) => vec![Part::New(hqdl_values::sql::text(&array), span.clone())],
                Some(None) => {
                    return Err(unsaid(of.span, "this array", "write ARRAY['a', 'b']"));
                }
                None => of.text,
            };
            return Ok(Piece {
                shape: ExprShape::Array,
                level: of.level,
                ..Piece::new(text, span)
            });
        }
        if kind.interval {
            let ExprShape::Literal(text) = &of.shape else {
                return Err(unsaid(span, "an interval that is computed", "write INTERVAL '1 day'"));
            };
            return Self::span_of_time(&text.clone(), span);
        }
        if let ExprShape::Literal(text) = &of.shape
            && kind.length.is_none()
            && let Some(piece) = literal(kind.target, text, &of.span)?
        {
            return Ok(Piece { span, ..piece });
        }
        let written = self.sql.get(of.span.clone()).unwrap_or_default();
        if let Some(number) = number_of(written) {
            in_range(kind.target, &number, written, &of.span)?;
        }
        let words = match (kind.target, &of.shape) {
            (target, ExprShape::Call) => target.call_template(),
            // PostgreSQL casts a boolean to the text true or false.
            (CastTarget::Text, ExprShape::Boolean) => "suql_said({})",
            (target, _) => target.template(),
        };
        if matches!(kind.target, CastTarget::Integer(_)) {
            of.as_even();
        }
        let shape = kind.target.shape();
        let level = if kind.target == CastTarget::AsItIs { of.level } else { PRIMARY };
        let words = match (kind.scale, kind.length) {
            (Some(scale), _) => format!("suql_round({words}, {scale})"),
            (None, Some(length)) => format!("substr({words}, 1, {length})"),
            (None, None) => words.to_owned(),
        };
        Ok(Piece { shape, level, ..Piece::filled(&words, vec![of.text], span) })
    }

    fn kind(&mut self) -> Result<WrittenType, SqlError> {
        let token = self.take()?;
        let name = token.content(self.sql).to_ascii_uppercase();
        let interval = name == "INTERVAL";
        let found = TYPES.iter().find(|(names, _)| names.contains(&name.as_str()));
        let target = match found {
            Some((_, target)) => *target,
            None if OTHERS.contains(&name.as_str()) => {
                let help = format!("{KNOWN_TYPES} are known");
                return Err(unsaid(token.span(), &format!("the type `{name}`"), &help));
            }
            None => CastTarget::AsItIs,
        };
        let named = (found.is_none() && !interval).then_some(token);
        let number = ["NUMERIC", "DECIMAL", "NUMBER"].contains(&name.as_str());
        for more in ["PRECISION", "VARYING"] {
            self.word(more);
        }
        let of_text = ["VARCHAR", "CHAR", "CHARACTER", "BPCHAR"].contains(&name.as_str());
        let (mut scale, mut length) = (None, None);
        if self.symbol(b'(') {
            let mut last = None;
            let mut many = false;
            while !self.is(b')') {
                let token = self.take()?;
                if token.is(b',') {
                    many = true;
                } else {
                    last = token.text(self.sql).parse().ok();
                }
            }
            self.expect(b')')?;
            scale = number.then(|| last.filter(|_| many).unwrap_or(0));
            length = last.filter(|_| of_text);
        }
        let _ = self.words(&["WITHOUT", "TIME", "ZONE"]) || self.words(&["WITH", "TIME", "ZONE"]);
        let mut array = false;
        while self.is(b'[') {
            self.at += 1;
            while !self.is(b']') {
                self.take()?;
            }
            self.expect(b']')?;
            array = true;
        }
        Ok(WrittenType { target, named, array, interval, scale, length })
    }

    /// Parses `INTERVAL '…'` after its text.
    pub fn interval(&mut self, span: Range<usize>) -> Result<Piece, SqlError> {
        let token = self.tokens.get(self.at - 1).copied().filter(|t| t.lexeme == Lexeme::Text);
        let mut text = token.map(|t| t.content(self.sql)).unwrap_or_default();
        let mut span = span;
        // The unit can follow the text: INTERVAL '1' DAY
        if let Some(unit) = self.peek().filter(|t| t.lexeme == Lexeme::Word)
            && unit_of(unit.text(self.sql)).is_some()
        {
            self.at += 1;
            text = format!("{text} {}", unit.text(self.sql));
            span.end = unit.end;
        }
        Self::span_of_time(&text, span)
    }

    pub fn span_of_time(text: &str, span: Range<usize>) -> Result<Piece, SqlError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let ago = words.last().is_some_and(|w| w.eq_ignore_ascii_case("ago"));
        let words = &words[..words.len() - usize::from(ago)];
        let parts: Option<Vec<(f64, &'static str)>> = words
            .chunks(2)
            .map(|pair| {
                let [number, unit] = pair else { return None };
                let (unit, times) = unit_of(unit)?;
                let number: f64 = number.parse().ok()?;
                Some((number * times * if ago { -1.0 } else { 1.0 }, unit))
            })
            .collect();
        match parts.filter(|p| !p.is_empty()) {
            Some(parts) => {
                let shape = ExprShape::Interval(parts);
                Ok(Piece { shape, level: OTHER, ..Piece::old(span) })
            }
            None => Err(unsaid(span, "this interval", "write a literal such as '3 days'")),
        }
    }
}

fn unit_of(word: &str) -> Option<(&'static str, f64)> {
    let word = word.to_ascii_uppercase();
    let one = word.strip_suffix('S').filter(|w| w.len() > 1).unwrap_or(&word);
    UNITS.iter().find(|(name, ..)| *name == one || *name == word).map(|(_, unit, n)| (*unit, *n))
}

/// Converts an array literal `{a,"b c"}` to a JSON array; `None` if the text is not an array
/// literal.
pub(super) fn elements(text: &str) -> Option<String> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (mut all, mut one, mut quoted, mut was_quoted) = (Vec::new(), String::new(), false, false);
    let mut chars = inside.chars();
    let mut end = |one: &mut String, was_quoted: &mut bool| {
        let text = if *was_quoted { one.clone() } else { one.trim().to_owned() };
        let null = !*was_quoted && text.eq_ignore_ascii_case("null");
        all.push(if null { serde_json::Value::Null } else { text.into() });
        one.clear();
        *was_quoted = false;
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => one.extend(chars.next()),
            '"' => {
                quoted = !quoted;
                was_quoted = true;
            }
            ',' if !quoted => end(&mut one, &mut was_quoted),
            '{' | '}' if !quoted => return None,
            _ => one.push(c),
        }
    }
    if !inside.trim().is_empty() {
        end(&mut one, &mut was_quoted);
    }
    Some(serde_json::Value::from(all).to_string())
}
