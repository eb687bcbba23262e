//! Parser of arrays, which are JSON arrays in `SQLite`.

use super::expr::SPECIAL;
use super::parser::{ExprShape, PRIMARY, Parser, Piece, unsaid};
use super::text::Part;
use crate::blendsql::SqlError;

impl Parser<'_> {
    /// Converts the array literal `'{a,b}'` where an array is expected.
    pub fn as_array(piece: Piece) -> Piece {
        let ExprShape::Literal(text) = &piece.shape else { return piece };
        // `{"a": 1}` is a JSON document; `{}` is an empty array.
        let document = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
        if document.is_ok_and(|members| !members.is_empty()) {
            return piece;
        }
        let Some(array) = super::kinds::elements(text) else { return piece };
        let part = Part::New(hqdl_values::sql::text(&array), piece.span.clone());
        Piece { shape: ExprShape::Array, ..Piece::new(vec![part], piece.span) }
    }

    /// Parses `ARRAY[…]` and `ARRAY(SELECT …)`.
    pub fn array(&mut self) -> Result<Piece, SqlError> {
        let start = self.here();
        self.at += 1;
        if self.is(b'(') && self.query_at(1) {
            self.at += 1;
            let query = self.deeper(Self::query)?;
            let end = self.expect(b')')?;
            let words = "(WITH hq_array(v) AS ({}) SELECT json_group_array(v) FROM hq_array)";
            let piece = Piece::filled(words, vec![query], start..end);
            return Ok(Piece { shape: ExprShape::Array, ..piece });
        }
        self.expect(b'[')?;
        let all = if self.is(b']') { Vec::new() } else { self.list()? };
        let end = self.expect(b']')?;
        let words = format!("json_array({})", vec!["{}"; all.len()].join(", "));
        let nested = all.iter().any(|p| p.shape == ExprShape::Array);
        if nested {
            return Err(unsaid(start..end, "an array of arrays", "write a plain one"));
        }
        let pieces = all.into_iter().map(|p| p.text).collect();
        Ok(Piece { shape: ExprShape::Array, ..Piece::filled(&words, pieces, start..end) })
    }

    /// Parses ANY, SOME or ALL after an operator; `None` if there is none.
    pub fn quantified(
        &mut self,
        left: &Piece,
        sign: &str,
        negated: bool,
    ) -> Result<Option<Piece>, SqlError> {
        let any = self.is_word("ANY") || self.is_word("SOME");
        let opens = self.peek_at(1).is_some_and(|t| t.is(b'('));
        if !opens || !any && !self.is_word("ALL") {
            return Ok(None);
        }
        self.at += 2;
        let is_query = self.query_at(0);
        let start = self.here();
        let array = if is_query {
            Piece::new(self.deeper(Self::query)?, start..self.before())
        } else {
            Self::as_array(self.expr()?)
        };
        let end = self.expect(b')')?;
        let span = left.span.start..end;
        if array.shape == ExprShape::Array {
            Self::no_truth(left)?;
        }
        let operand = left.clone().tight();
        // = ANY is equivalent to IN, and <> ALL to NOT IN.
        let within = match (sign, any) {
            ("=", true) => Some("IN"),
            ("<>", false) => Some("NOT IN"),
            _ => None,
        };
        if let Some(within) = within {
            if is_query {
                let words = format!("{{}} {within} ({{}})");
                let piece = Piece::filled(&words, vec![operand, array.text], span);
                return Ok(Some(Piece { level: SPECIAL, ..piece.boolean() }));
            }
            if let Some(inside) = elements(&array) {
                let words = format!("{{}} {within} ({{}})");
                let piece = Piece::filled(&words, vec![operand, inside], span);
                return Ok(Some(Piece { level: SPECIAL, ..piece.boolean() }));
            }
        }
        let array = if is_query {
            let words = "(WITH hq_array(v) AS ({}) SELECT json_group_array(v) FROM hq_array)";
            Piece::filled(words, vec![array.text], array.span).text
        } else {
            array.text
        };
        let function = if any { "suql_any" } else { "suql_all" };
        let sign = if negated { format!("not {sign}") } else { sign.to_owned() };
        let words = format!("{function}({{}}, '{sign}', {{}})");
        let piece = Piece::filled(&words, vec![left.text.clone(), array], span);
        Ok(Some(Piece { level: PRIMARY, ..piece.boolean() }))
    }
}

/// Returns the elements of a non-empty `ARRAY[…]`; `None` for any other expression.
fn elements(array: &Piece) -> Option<Vec<Part>> {
    let [Part::New(first, _), inside @ .., Part::New(last, _)] = array.text.as_slice() else {
        return None;
    };
    (first == "json_array(" && last == ")" && !inside.is_empty()).then(|| inside.to_vec())
}
