//! Parser of functions with keywords between their arguments, and of date fields.

use std::ops::Range;

use super::operator::is_pattern;
use super::parser::{ExprShape, Parser, Piece, joined, unsaid};
use super::text::Part;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Token;

/// The part of a text that a regular expression matches: the first capture group, or the whole
/// match.
const MATCHED: &str = "suql_element(suql_groups({}, {}), 1)";

/// Date fields and the equivalent SQL in `SQLite`.
const PARTS: [(&str, &str); 15] = [
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
/// Units for truncating a date.
const TRUNCS: [&str; 11] = [
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
    /// Parses a function with keywords between its arguments.
    pub fn worded(&mut self, token: Token, name: &str) -> Result<Option<Piece>, SqlError> {
        let (start, back) = (token.start, self.at);
        self.at += 2;
        match name {
            "EXTRACT" => {
                let part = self.take()?.content(self.sql);
                self.expect_word("FROM")?;
                let of = self.expr()?;
                let end = self.expect(b')')?;
                Self::part_of("date_part", &part, of, start..end).map(Some)
            }
            "POSITION" => {
                let what = self.binary(super::expr::OTHER)?;
                self.expect_word("IN")?;
                let of = self.expr()?;
                let end = self.expect(b')')?;
                Ok(Some(Piece::filled("instr({}, {})", vec![of.text, what.text], start..end)))
            }
            "OVERLAY" => {
                let mut pieces = vec![self.expr()?.text];
                for (n, word) in ["PLACING", "FROM", "FOR"].into_iter().enumerate() {
                    if n == 2 && !self.is_word(word) {
                        break;
                    }
                    self.expect_word(word)?;
                    pieces.push(self.expr()?.text);
                }
                let end = self.expect(b')')?;
                let words = format!("suql_overlay({})", vec!["{}"; pieces.len()].join(", "));
                let piece = Piece::filled(&words, pieces, start..end);
                Ok(Some(Piece { shape: ExprShape::Text, ..piece }))
            }
            "SUBSTRING" => {
                let of = self.expr()?;
                if self.symbol(b',') {
                    self.at = back;
                    return self.substring(token).map(Some);
                }
                let from = if self.word("FROM") { Some(self.expr()?) } else { None };
                let length = if self.word("FOR") { Some(self.expr()?) } else { None };
                let end = self.expect(b')')?;
                if let Some(ExprShape::Literal(_)) = from.as_ref().map(|from| &from.shape) {
                    if length.is_some() {
                        return Err(unsaid(start..end, "a pattern with an escape", ""));
                    }
                    from.as_ref().map_or(Ok(()), |pattern| is_pattern(pattern, "match"))?;
                    let pieces = [of.text].into_iter().chain(from.map(|from| from.text)).collect();
                    return Ok(Some(Piece::filled(MATCHED, pieces, start..end)));
                }
                let one = || vec![Part::New("1".to_owned(), start..end)];
                let mut pieces = vec![of.text, from.map_or_else(one, |f| f.text)];
                pieces.extend(length.map(|l| l.text));
                let words = if pieces.len() == 3 {
                    "suql_substr({}, {}, {})"
                } else {
                    "suql_substr({}, {})"
                };
                Ok(Some(Piece::filled(words, pieces, start..end)))
            }
            _ => {
                let side = ["BOTH", "LEADING", "TRAILING"].into_iter().find(|w| self.word(w));
                let first = if self.is_word("FROM") { None } else { Some(self.expr()?) };
                if !self.word("FROM") {
                    self.at = back;
                    return if side.is_some() { Err(self.expected("FROM")) } else { Ok(None) };
                }
                let of = self.expr()?;
                let end = self.expect(b')')?;
                let by = match side {
                    Some("LEADING") => "ltrim",
                    Some("TRAILING") => "rtrim",
                    _ => "trim",
                };
                let mut pieces = vec![of.text];
                pieces.extend(first.map(|f| f.text));
                let holes = vec!["{}"; pieces.len()].join(", ");
                Ok(Some(Piece::filled(&format!("{by}({holes})"), pieces, start..end)))
            }
        }
    }

    /// Parses `substring(x, 1, 2)`.
    fn substring(&mut self, token: Token) -> Result<Piece, SqlError> {
        self.at += 2;
        let pieces = self.list()?;
        let end = self.expect(b')')?;
        let span = token.start..end;
        if let [of, pattern] = pieces.as_slice()
            && matches!(pattern.shape, ExprShape::Literal(_))
        {
            is_pattern(pattern, "match")?;
            let pieces = vec![of.text.clone(), pattern.text.clone()];
            return Ok(Piece::filled(MATCHED, pieces, span));
        }
        let text = joined(token.end, pieces, end);
        let name = Part::New("suql_substr".to_owned(), token.span());
        Ok(Piece::new([vec![name], text].concat(), span))
    }

    /// Extracts a field of a date or interval, or truncates a date.
    pub fn part_of(
        name: &str,
        part: &str,
        of: Piece,
        span: Range<usize>,
    ) -> Result<Piece, SqlError> {
        let part = part.to_lowercase();
        let (words, shape) = if name == "date_trunc" {
            let known = TRUNCS.contains(&part.as_str());
            (known.then(|| format!("suql_trunc('{part}', {{}})")), ExprShape::Timestamp)
        } else if of.shape == ExprShape::Span {
            let known = SPAN_PARTS.contains(&part.as_str());
            (known.then(|| format!("suql_span_part('{part}', {{}})")), ExprShape::Numeric)
        } else {
            let found = PARTS.iter().find(|(name, _)| *name == part);
            (found.map(|(_, words)| (*words).to_owned()), ExprShape::Numeric)
        };
        match words {
            Some(words) => Ok(Piece { shape, ..Piece::filled(&words, vec![of.text], span) }),
            None => Err(unsaid(span, &format!("the part `{part}` of a date"), "")),
        }
    }
}
